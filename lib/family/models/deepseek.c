/*
 * The layers of DeepSeek's models and similar ones: a number or a list in config.json says which
 * are dense; all others have experts and a shared expert, which is an MLP, as wide as several
 * experts, through which every token passes.
 */
#include "lib/family/models/deepseek.h"

#include "lib/block/gqa.h"
#include "lib/block/mla.h"
#include "lib/family/family.h"

/* clang-format off */
const struct fm_weight fm_deepseek_gqa_weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};

const struct fm_weight fm_deepseek_mla_weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};

const struct fm_weight fm_deepseek_indexed_weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_MLA_INDEXER_WEIGHTS(FM_ATTENTION "indexer."),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Read a number from 0 to `limit`; absent or null: *count is not changed. */
static int read_count(int *count, const cJSON *json, const char *key, int limit, struct fm_err *err)
{
    int64_t value = *count;
    int rc = fm_json_opt_int(json, key, 0, limit, &value, err);
    *count = (int)value;
    return rc;
}

/* Read mlp_layer_types, "dense" or "sparse" for each layer. */
static int read_list(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    struct fm_layers dense = {{0}};
    if (!cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(json, "mlp_layer_types")))
        return fm_fail(err, FM_EFORMAT, "key 'mlp_layer_types' is not an array");
    if (fm_keys_layers(&dense, c->L, json, "mlp_layer_types", "dense", "sparse", err))
        return err->code;
    c->M = 0;
    for (int l = 0; l < c->L; l++)
        if (!fm_layers_has(&dense, l))
            c->moe[c->M++] = (int16_t)l;
    if (c->M == 0)
        return fm_fail(err, FM_ECONFIG, "no layer is a mixture of experts (mlp_layer_types)");
    return FM_OK;
}

/* Make the first layers dense by the value of `key`. */
static int take_first(struct fm_config *c, int dense, const char *key, struct fm_err *err)
{
    if (dense >= c->L)
        return fm_fail(err, FM_ECONFIG, "no layer is a mixture of experts (%s %d of %d)", key,
                       dense, c->L);
    c->M = c->L - dense;
    for (int m = 0; m < c->M; m++)
        c->moe[m] = (int16_t)(dense + m);
    return FM_OK;
}

/* A list, if the family reads one, decides, and a number must agree with it.  Without a list, a
 * number that transformers does not read must be the default. */
static int read_dense(struct fm_config *c, const struct fm_deepseek_layers *o,
                      const struct fm_keys *keys, struct fm_err *err)
{
    const char *key = o->dense_key ? o->dense_key : "first_k_dense_replace";
    bool listed = o->listed && fm_json_value(keys->json, "mlp_layer_types");
    int dense = o->dense;
    int rc = read_count(&dense, keys->json, key, FM_LAYERS_MAX, err);
    if (!rc)
        rc = listed ? read_list(c, keys->json, err) : take_first(c, dense, key, err);
    if (rc)
        return rc;
    if (listed && fm_json_value(keys->json, key) && (c->moe[0] != dense || c->M != c->L - dense))
        return fm_fail(
            err, FM_ECONFIG,
            "mlp_layer_types and %s %d name different layers; programs differ in which they "
            "read; correct one of them",
            key, dense);
    if (o->unread && !listed && dense != o->dense)
        return fm_fail(err, FM_ECONFIG,
                       "%s %d%s is not supported for %s: runtimes disagree about it; supported: %d",
                       key, dense, o->listed ? " without mlp_layer_types" : "", keys->family,
                       o->dense);
    return c->M < c->L
               ? fm_keys_size(&c->dense, keys->json, "intermediate_size", FM_CHANNELS_MAX, err)
               : FM_OK;
}

/* transformers does not read this key; with another value, only every moe_layer_freq-th layer would
 * have experts. */
static const struct fm_keys_only every[] = {{"moe_layer_freq", "1"}, {NULL, NULL}};

/* As a list, moe_layer_freq has 1 for each layer with experts and 0 for the others. */
static int check_every(const struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const char *key = every->key;
    const cJSON *list;
    struct fm_layers moe = {{0}};
    if (!cJSON_IsArray(fm_json_value(keys->json, key)))
        return fm_keys_only(keys, every, err);
    for (int m = 0; m < c->M; m++)
        fm_layers_add(&moe, c->moe[m]);
    int rc = fm_keys_list(&list, keys->json, key, c->L, err);
    return rc ? rc : fm_keys_agree(list, &moe, true, "mlp_layer_types", err);
}

int fm_deepseek_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const struct fm_deepseek_layers *o = c->family->layers_options;
    const char *key = c->family->shared_key;
    int shared = o->shared, width = 0;
    if (read_dense(c, o, keys, err) || check_every(c, keys, err))
        return err->code;
    if (o->width_key)
        return fm_keys_size(&c->shared, keys->json, o->width_key, FM_CHANNELS_MAX, err);
    if ((key && read_count(&shared, keys->json, key, FM_EXPERTS_MAX, err)) ||
        fm_keys_size(&width, keys->json, "moe_intermediate_size", FM_CHANNELS_MAX, err))
        return err->code;
    if ((int64_t)shared * width > FM_CHANNELS_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "%s %d times moe_intermediate_size %d is more than %d channels", key, shared,
                       width, FM_CHANNELS_MAX);
    c->shared = shared * width;
    return FM_OK;
}
