/*
 * Rotary angles. transformers 4 writes rope_theta and rope_scaling, and transformers 5 writes
 * rope_parameters; checkpoints of both exist, and some have both keys.  All are converted to one
 * frequency per pair of rotated elements, 1 / (theta^(2 i / R) factor[i]), where R elements of a
 * head are rotated, and to a scale of cos and sin.  Types other than "default" define the factors:
 * longrope lists them, YaRN and llama3 compute them, and those of "proportional" are 1 or infinite.
 *
 * Programs differ in which key they read if several give the same value: transformers 5 forgets
 * rope_parameters if there is a rope_scaling, and transformers 4 reads no rope_parameters.  So each
 * of the two objects must give the same rotation, and a key of the model the same value as the
 * object's.
 */
#include "lib/block/rope.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum type { UNSAID, DEFAULT, LONGROPE, YARN, LLAMA3, PROPORTIONAL };

/* Read `rope_type` and `type` of an object.  If present they must be "default" or a type that the
 * family supports, and equal. */
static int read_type(enum type *type, const struct fm_rope_options *options, const cJSON *object,
                     const char *where, const char *family, struct fm_err *err)
{
    const char *keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = fm_json_value(object, keys[i]);
        if (!v)
            continue;
        const char *name = cJSON_IsString(v) ? v->valuestring : "?";
        const char *usual = options->proportional ? "proportional" : "default";
        enum type said = strcmp(name, usual) == 0 ? options->proportional ? PROPORTIONAL : DEFAULT
                         : options->longrope && !strcmp(name, "longrope") ? LONGROPE
                         : options->yarn && !strcmp(name, "yarn")         ? YARN
                         : options->llama3 && !strcmp(name, "llama3")     ? LLAMA3
                                                                          : UNSAID;
        if (said == UNSAID)
            return fm_fail(err, FM_ECONFIG,
                           "%s: %s '%.64s' is not supported for %s; supported: %s%s%s%s", where,
                           keys[i], name, family, usual, options->longrope ? ", longrope" : "",
                           options->yarn ? ", yarn" : "", options->llama3 ? ", llama3" : "");
        if (*type != UNSAID && *type != said)
            return fm_fail(err, FM_ECONFIG,
                           "%s: %s '%s' contradicts another key of config.json; keep one of them",
                           where, keys[i], name);
        *type = said;
    }
    return FM_OK;
}

/* Check that a key of the model and the same key of its object have one value. */
static int check_value(const cJSON *json, const cJSON *object, const char *key, struct fm_err *err)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(json, key);
    const cJSON *other = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(own) || !cJSON_IsNumber(other) || own->valuedouble == other->valuedouble)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "%s %g differs from %s %g of %s, and programs differ in which they read; keep "
                   "one of them",
                   key, own->valuedouble, key, other->valuedouble, object->string);
}

/* Read the number of positions that the model was originally trained on: the model's own key or
 * that of `rope`, else all positions. json NULL: the model's own key is not read, as in
 * transformers if each type of layer has its own object. */
static int read_original(int *original, const cJSON *json, const cJSON *rope, struct fm_err *err)
{
    const char *key = "original_max_position_embeddings";
    int rc = fm_keys_size_opt(original, rope, key, FM_POSITIONS_MAX, err);
    if (!rc)
        rc = fm_keys_size_opt(original, json, key, FM_POSITIONS_MAX, err);
    return rc ? rc : check_value(json, rope, key, err);
}

/* Read the factors and the scale for short sequences, and the length up to which they apply: a
 * longer sequence would use different factors from its first token on. */
static int read_longrope(struct fm_rope *r, struct fm_config *c, const cJSON *json,
                         const cJSON *rope, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rope, "short_factor"), *factor;
    double scale = 0;
    int original = c->T_max, n = 0;
    int rc = fm_json_opt_double(rope, "short_mscale", 0, FLT_MAX, &scale, err);
    if (!rc)
        rc = read_original(&original, json, rope, err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(factor, list)
    {
        double value = cJSON_IsNumber(factor) ? factor->valuedouble : 0;
        if (n < r->R / 2 && value > 0 && value <= FLT_MAX)
            r->factor[n++] = (float)value;
        else
            n = r->R;
    }
    if (n != r->R / 2 || !(scale > 0))
        return fm_fail(err, FM_EFORMAT,
                       "longrope needs short_mscale, and short_factor with %d numbers, above 0",
                       r->R / 2);
    r->scale = (float)scale;
    c->T_max = original < c->T_max ? original : c->T_max;
    c->T_exact = c->T_max;
    c->exact = "the range of longrope's short factors";
    return FM_OK;
}

/* The fractional index of the pair that makes `turns` full turns in `original` positions. */
static double pair_of(const struct fm_rope *r, int original, double turns)
{
    const double two_pi = 6.283185307179586;
    return r->R * log(original / (turns * two_pi)) / (2 * log(r->theta));
}

/* Pairs before `low` keep their frequency, pairs from `high` on turn `factor` times slower, and
 * pairs in between are interpolated linearly; low and high are the pairs that make beta_fast and
 * beta_slow turns in the original positions. */
static void ramp(struct fm_rope *r, double factor, double low, double high)
{
    low = fmax(low, 0);
    high = fmin(high, r->R - 1);
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->R / 2; i++) {
        double slow = fmin(fmax((i - low) / (high - low), 0), 1);
        r->factor[i] = (float)(1 / (slow / factor + (1 - slow)));
    }
}

static double attention_of(double factor, double mscale)
{
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

/* YaRN (arXiv 2309.00071) with DeepSeek's mscale and mscale_all_dim, as transformers reads it: 0
 * means not set. */
static int read_yarn(struct fm_rope *r, const struct fm_config *c, const cJSON *json,
                     const cJSON *rope, struct fm_err *err)
{
    double factor = 0, fast = 0, slow = 0, mscale = 0, all = 0, scale = -1;
    const struct {
        const char *key;
        double *value;
    } number[] = {{"factor", &factor}, {"beta_fast", &fast},     {"beta_slow", &slow},
                  {"mscale", &mscale}, {"mscale_all_dim", &all}, {"attention_factor", &scale}};
    bool whole = true;
    int original = c->T_max;
    for (size_t i = 0; i < sizeof number / sizeof *number; i++)
        if (fm_json_opt_double(rope, number[i].key, 0, 1e9, number[i].value, err))
            return err->code;
    if (fm_json_opt_bool(rope, "truncate", &whole, err) ||
        read_original(&original, json, rope, err))
        return err->code;
    if (factor < 1 || r->theta <= 1)
        return fm_fail(err, FM_EFORMAT, "yarn needs a factor of 1 or more, and rope_theta above 1");
    double low = pair_of(r, original, fast > 0 ? fast : 32);
    double high = pair_of(r, original, slow > 0 ? slow : 1);
    ramp(r, factor, whole ? floor(low) : low, whole ? ceil(high) : high);
    if (scale < 0)
        scale = mscale > 0 && all > 0 ? attention_of(factor, mscale) / attention_of(factor, all)
                                      : attention_of(factor, 1);
    r->scale = (float)scale;
    r->m = attention_of(factor, all);
    return FM_OK;
}

/* Llama 3: pairs that make fewer than `low` turns in the original positions turn `factor` times
 * slower, pairs that make more than `high` keep their frequency, and frequencies in between are
 * interpolated by the number of turns. */
static int read_llama3(struct fm_rope *r, const cJSON *json, const cJSON *rope, struct fm_err *err)
{
    const double two_pi = 6.283185307179586;
    double factor = 0, low = 0, high = 0;
    int original = 0;
    if (fm_json_opt_double(rope, "factor", 0, 1e9, &factor, err) ||
        fm_json_opt_double(rope, "low_freq_factor", 0, 1e9, &low, err) ||
        fm_json_opt_double(rope, "high_freq_factor", 0, 1e9, &high, err) ||
        read_original(&original, json, rope, err))
        return err->code;
    if (factor < 1 || !(low > 0) || high <= low || original == 0)
        return fm_fail(err, FM_EFORMAT,
                       "llama3 needs a factor of 1 or more, low_freq_factor above 0, a larger "
                       "high_freq_factor, and original_max_position_embeddings");
    for (int i = 0; i < r->R / 2; i++) {
        double turns = original / (two_pi * pow(r->theta, 2.0 * i / r->R));
        double keep = fmin(fmax((turns - low) / (high - low), 0), 1);
        r->factor[i] = (float)(1 / ((1 - keep) / factor + keep));
    }
    return FM_OK;
}

/* Read the factors of a type that computes them. */
static int read_factors(struct fm_rope *r, const struct fm_config *c, enum type type,
                        const cJSON *json, const cJSON *rope, struct fm_err *err)
{
    return type == YARN     ? read_yarn(r, c, json, rope, err)
           : type == LLAMA3 ? read_llama3(r, json, rope, err)
                            : FM_OK;
}

void fm_rope_plain(struct fm_rope *r, double theta, int R)
{
    r->theta = theta;
    r->R = R;
    r->pairs = false;
    r->scale = 1;
    r->m = 1;
    for (int i = 0; i < FM_HEAD_DIM_MAX / 2; i++)
        r->factor[i] = 1;
}

/* R = partial_rotary_factor times `width`, rounded down as in transformers.  The factor is that of
 * `rope`, else the model's, else it follows from dims_key, else it is the family's; dims_key must
 * give the same R. */
static int read_partial(struct fm_rope *r, int width, const struct fm_rope_options *options,
                        const cJSON *json, const cJSON *rope, struct fm_err *err)
{
    const char *key = "partial_rotary_factor";
    double partial = options->layer_type && json ? options->partial_object : options->partial;
    int dims = 0, rc = FM_OK;
    if (options->dims_key)
        rc = fm_keys_size_opt(&dims, json, options->dims_key, width, err);
    if (dims > 0)
        partial = (double)dims / width;
    if (!rc)
        rc = fm_json_opt_double(json, key, 0, 1, &partial, err);
    if (!rc && rope)
        rc = fm_json_opt_double(rope, key, 0, 1, &partial, err);
    r->R = (int)(width * partial);
    if (!rc && (r->R < 2 || r->R % 2 != 0))
        rc = fm_fail(err, FM_ECONFIG,
                     "%s %g rotates %d of %d elements of a head; only an even number of 2 or more "
                     "is supported",
                     key, partial, r->R, width);
    if (!rc && dims > 0 && dims != r->R)
        rc = fm_fail(err, FM_ECONFIG,
                     "%s is %d, and %s rotates %d of %d elements; programs differ in which they "
                     "read",
                     options->dims_key, dims, key, r->R, width);
    return rc ? rc : check_value(json, rope, key, err);
}

/* Rotate the first pairs of a head of `width`, partial_rotary_factor of them, at the frequencies
 * that they have if all are rotated. */
static int read_proportional(struct fm_rope *r, int width, const struct fm_rope_options *options,
                             const cJSON *rope, struct fm_err *err)
{
    double partial = options->partial_object, factor = 1;
    int rc = fm_json_opt_double(rope, "partial_rotary_factor", 0, 1, &partial, err);
    if (!rc)
        rc = fm_json_opt_double(rope, "factor", 0, FLT_MAX, &factor, err);
    if (!rc && factor != 1)
        rc = fm_fail(err, FM_ECONFIG, "%s: factor %g is not supported; supported: 1",
                     options->layer_type, factor);
    r->R = width;
    for (int i = (int)floor(width * partial / 2); i < width / 2; i++)
        r->factor[i] = INFINITY;
    return rc;
}

static int check_whole(const cJSON *object, struct fm_err *err)
{
    double partial = 1;
    int rc = fm_json_opt_double(object, "partial_rotary_factor", 0, 1, &partial, err);
    if (!rc && partial < 1)
        rc = fm_fail(err, FM_ECONFIG, "partial_rotary_factor %g is not supported; supported: 1",
                     partial);
    return rc;
}

int fm_rope_whole(const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *scaling = cJSON_GetObjectItemCaseSensitive(keys->json, "rope_scaling");
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(keys->json, "rope_parameters");
    if (check_whole(keys->json, err) || check_whole(scaling, err) || check_whole(rope, err))
        return err->code;
    return FM_OK;
}

/* Check the model's own keys, which transformers does not read if layers differ in their rotation.
 */
static int check_own(const struct fm_rope *r, int width, const struct fm_rope_options *options,
                     const struct fm_keys *keys, struct fm_err *err)
{
    double theta = r->theta, partial = (double)r->R / width;
    int rc = FM_OK;
    if (fm_json_value(keys->json, "rope_scaling"))
        return fm_fail(
            err, FM_ECONFIG,
            "rope_scaling is not supported for %s; use rope_parameters for each type of layer",
            keys->family);
    if (options->theta_key)
        rc = fm_json_opt_double(keys->json, options->theta_key, 1, 1e18, &theta, err);
    if (!rc && options->theta_key)
        rc = fm_json_opt_double(keys->json, "partial_rotary_factor", 0, 1, &partial, err);
    if (!rc && theta != r->theta)
        rc = fm_fail(
            err, FM_ECONFIG,
            "%s %g differs from the rope_theta %g of %s, and programs differ in which they read",
            options->theta_key, theta, r->theta, options->layer_type);
    if (!rc && (int)(width * partial + 1e-9) != r->R)
        rc = fm_fail(err, FM_ECONFIG,
                     "partial_rotary_factor %g does not rotate %d elements, as %s does, and "
                     "programs differ in which they read",
                     partial, r->R, options->layer_type);
    return rc;
}

/* Refuse a partial_rotary_factor of the model if the object of a type of layer lacks one:
 * transformers copies it there, and other programs use a default. */
static int check_inherited(const cJSON *object, const struct fm_keys *keys, const char *layer_type,
                           struct fm_err *err)
{
    const char *key = "partial_rotary_factor";
    const cJSON *own = fm_json_value(object, key), *model = fm_json_value(keys->json, key);
    if (own || !model)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "%s is outside rope_parameters, which lacks it for '%s'; some programs use it "
                   "for those layers, others a default; add %s to '%s'",
                   key, layer_type, key, layer_type);
}

/* Read the rotation of one type of layer. */
static int read_layer_type(struct fm_rope *r, struct fm_config *c, int width,
                           const struct fm_rope_options *options, const struct fm_keys *keys,
                           struct fm_err *err)
{
    const cJSON *all = fm_json_value(keys->json, "rope_parameters");
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(all, options->layer_type);
    enum type type = UNSAID;
    if (all && !cJSON_IsObject(object))
        return fm_fail(err, FM_ECONFIG,
                       "rope_parameters has no object '%s'; for %s, programs read the rotation of "
                       "each type of layer there",
                       options->layer_type, keys->family);
    if ((options->proportional ? read_proportional(r, width, options, object, err)
                               : read_partial(r, width, options, object, NULL, err)) ||
        (all && read_type(&type, options, object, options->layer_type, keys->family, err)))
        return err->code;
    if (all && !cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(object, "rope_theta")))
        return fm_fail(err, FM_EFORMAT, "%s of rope_parameters has no rope_theta",
                       options->layer_type);
    if (all && options->proportional && type == UNSAID)
        return fm_fail(err, FM_EFORMAT, "%s of rope_parameters has no rope_type",
                       options->layer_type);
    if ((all && fm_json_opt_double(object, "rope_theta", 1, 1e18, &r->theta, err)) ||
        (all && !options->theta_key && check_inherited(object, keys, options->layer_type, err)) ||
        read_factors(r, c, type, NULL, object, err))
        return err->code;
    return check_own(r, width, options, keys, err);
}

/* Read the rotation from the model's keys and one of the two objects; NULL: it has neither. */
static int read_object(struct fm_rope *r, struct fm_config *c, int width,
                       const struct fm_rope_options *options, const struct fm_keys *keys,
                       const cJSON *object, struct fm_err *err)
{
    const cJSON *json = keys->json;
    enum type type = UNSAID;
    if ((options->partial > 0 && read_partial(r, width, options, json, object, err)) ||
        fm_json_opt_double(json, "rope_theta", 1, 1e18, &r->theta, err))
        return err->code;
    if (!object)
        return FM_OK;
    if (!cJSON_IsObject(object))
        return fm_fail(err, FM_EFORMAT, "key '%s' is not an object", object->string);
    const cJSON *key;
    cJSON_ArrayForEach(key, object)
    {
        if (cJSON_IsObject(key))
            return fm_fail(err, FM_ECONFIG,
                           "%s: '%s' is an object, as for types of layers, but layers of %s do "
                           "not differ in their rotation",
                           object->string, key->string, keys->family);
    }
    if (read_type(&type, options, object, object->string, keys->family, err) ||
        fm_json_opt_double(object, "rope_theta", 1, 1e18, &r->theta, err) ||
        check_value(json, object, "rope_theta", err))
        return err->code;
    if (type == LONGROPE)
        return read_longrope(r, c, json, object, err);
    return read_factors(r, c, type, json, object, err);
}

/* Whether both rotate all pairs of elements in the same way. */
static bool is_same(const struct fm_rope *a, const struct fm_rope *b)
{
    for (int i = 0; i < a->R / 2; i++)
        if (a->factor[i] != b->factor[i])
            return false;
    return a->theta == b->theta && a->R == b->R && a->scale == b->scale && a->m == b->m;
}

int fm_rope_read(struct fm_rope *r, struct fm_config *c, int width,
                 const struct fm_rope_options *options, const struct fm_keys *keys,
                 struct fm_err *err)
{
    const cJSON *scaling = fm_json_value(keys->json, "rope_scaling");
    const cJSON *parameters = fm_json_value(keys->json, "rope_parameters");
    int positions = c->T_max, exact = c->T_exact;
    fm_rope_plain(r, options->theta, width);
    r->pairs = options->pairs;
    if (options->layer_type)
        return read_layer_type(r, c, width, options, keys, err);
    if (cJSON_IsObject(scaling) && !scaling->child)
        scaling = NULL;
    if (cJSON_IsObject(parameters) && !parameters->child)
        parameters = NULL;
    struct fm_rope other = *r;
    int rc = read_object(r, c, width, options, keys, scaling ? scaling : parameters, err);
    if (rc || !scaling || !parameters)
        return rc;
    int reached = c->T_max;
    c->T_max = positions;
    c->T_exact = exact;
    rc = read_object(&other, c, width, options, keys, parameters, err);
    if (rc || (is_same(r, &other) && c->T_max == reached))
        return rc;
    return fm_fail(err, FM_ECONFIG,
                   "rope_scaling and rope_parameters give different rotations, and programs differ "
                   "in which they read; keep one of them");
}

void fm_rope_fill(float *cos_table, float *sin_table, const struct fm_rope *r, int T)
{
    int half = r->R / 2;
    for (int i = 0; i < half; i++) {
        float power = (float)(2 * i) / (float)r->R;
        float whole = r->factor[i] * (float)pow(r->theta, (double)power);
        float frequency = 1.0f / whole;
        for (int t = 0; t < T; t++) {
            float angle = (float)t * frequency;
            size_t at = (size_t)t * (size_t)half + (size_t)i;
            cos_table[at] = (float)cos((double)angle) * r->scale;
            sin_table[at] = (float)sin((double)angle) * r->scale;
        }
    }
}
