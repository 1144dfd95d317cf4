/*
 * Rotary angles.  transformers 4 writes rope_theta and rope_scaling, 5 writes
 * rope_parameters; checkpoints of both are about, and some have both.  Everything becomes one
 * frequency per pair of a head: theta^(2 i / R) times a factor, and a scale of cos and sin, where R
 * of the head's elements are rotated.
 */
#include "lib/block/rope.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* `type` or `rope_type` of an object, where there is one, must be "default", or one that the family
 * knows. */
static int check_type(struct fm_config *c, const struct fm_rope_options *options,
                      const cJSON *object, const char *where, const char *family,
                      struct fm_err *err)
{
    const char *keys[] = {"rope_type", "type"};
    for (int i = 0; i < 2; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, keys[i]);
        if (!v || cJSON_IsNull(v))
            continue;
        const char *type = cJSON_IsString(v) ? v->valuestring : "?";
        c->longrope = options->longrope && strcmp(type, "longrope") == 0;
        if (!c->longrope && strcmp(type, "default") != 0)
            return fm_fail(err, FM_ECONFIG,
                           "%s: %s '%.64s' is not supported for %s; supported: default%s", where,
                           keys[i], type, family, options->longrope ? ", longrope" : "");
    }
    return FM_OK;
}

/* The factors and the scale of short sequences, and as far as they go: a longer one would take
 * others from its first token on. */
static int read_longrope(struct fm_rope *r, struct fm_config *c, const cJSON *json,
                         const cJSON *rope, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(rope, "short_factor"), *factor;
    double scale = 0;
    int original = c->T_max, n = 0;
    int rc = fm_json_opt_double(rope, "short_mscale", 0, FLT_MAX, &scale, err);
    for (int i = 0; i < 2 && !rc; i++)
        rc = fm_keys_size_opt(&original, i ? json : rope, "original_max_position_embeddings",
                              FM_POSITIONS_MAX, err);
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
    return FM_OK;
}

void fm_rope_plain(struct fm_rope *r, double theta, int R)
{
    r->theta = theta;
    r->R = R;
    r->pairs = false;
    r->scale = 1;
    for (int i = 0; i < FM_HEAD_DIM_MAX / 2; i++)
        r->factor[i] = 1;
}

/* R = partial_rotary_factor of `width`, rounded down as transformers does: rope_parameters' own,
 * else that of the model, else what dims_key makes it, else the family's. */
static int read_partial(struct fm_rope *r, int width, const struct fm_rope_options *options,
                        const cJSON *json, struct fm_err *err)
{
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(json, "rope_parameters");
    const char *key = "partial_rotary_factor";
    double partial = options->partial;
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
    return rc;
}

/* transformers 4: rope_theta and rope_scaling; 5: rope_parameters, which wins. */
int fm_rope_read(struct fm_rope *r, struct fm_config *c, int width,
                 const struct fm_rope_options *options, const struct fm_keys *keys,
                 struct fm_err *err)
{
    const cJSON *json = keys->json;
    const char *objects[] = {"rope_scaling", "rope_parameters"};
    int rc = FM_OK;
    fm_rope_plain(r, options->theta, width);
    r->pairs = options->pairs;
    if (options->partial > 0)
        rc = read_partial(r, width, options, json, err);
    if (!rc)
        rc = fm_json_opt_double(json, "rope_theta", 1, 1e18, &r->theta, err);
    for (int i = 0; i < 2 && !rc; i++) {
        const cJSON *object = cJSON_GetObjectItemCaseSensitive(json, objects[i]);
        if (!object || cJSON_IsNull(object))
            continue;
        if (!cJSON_IsObject(object))
            return fm_fail(err, FM_EFORMAT, "key '%s' is not an object", objects[i]);
        rc = check_type(c, options, object, objects[i], keys->family, err);
        if (!rc)
            rc = fm_json_opt_double(object, "rope_theta", 1, 1e18, &r->theta, err);
        if (!rc && c->longrope)
            rc = read_longrope(r, c, json, object, err);
    }
    return rc;
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
