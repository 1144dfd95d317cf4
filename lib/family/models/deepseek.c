/*
 * The layers of DeepSeek's models: the first few are dense, all others have experts, and beside
 * them one MLP that every token goes through, as wide as several experts.
 */
#include "lib/family/models/deepseek.h"

/* A number from 0 to `limit`; absent or null: as it was. */
static int read_count(int *count, const cJSON *json, const char *key, int limit, struct fm_err *err)
{
    int64_t value = *count;
    int rc = fm_json_opt_int(json, key, 0, limit, &value, err);
    *count = (int)value;
    return rc;
}

/* moe_layer_freq, which transformers does not read: with another than 1 every so-manieth layer
 * alone has experts. */
static int refuse_frequency(const struct fm_keys *keys, struct fm_err *err)
{
    int frequency = 1;
    int rc = fm_keys_size_opt(&frequency, keys->json, "moe_layer_freq", FM_LAYERS_MAX, err);
    return rc || frequency == 1
               ? rc
               : fm_fail(err, FM_ECONFIG, "moe_layer_freq %d is not supported for %s; supported: 1",
                         frequency, keys->family);
}

int fm_deepseek_layers(struct fm_config *c, const struct fm_deepseek_layers *defaults,
                       const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *json = keys->json;
    int dense = defaults->dense, shared = defaults->shared, width = 0;
    int rc = refuse_frequency(keys, err);
    if (!rc)
        rc = read_count(&dense, json, "first_k_dense_replace", FM_LAYERS_MAX, err);
    if (!rc)
        rc = read_count(&shared, json, "n_shared_experts", FM_EXPERTS_MAX, err);
    if (!rc)
        rc = fm_keys_size(&width, json, "moe_intermediate_size", FM_CHANNELS_MAX, err);
    if (rc)
        return rc;
    if (dense >= c->L)
        return fm_fail(err, FM_ECONFIG,
                       "no layer is a mixture of experts (first_k_dense_replace %d of %d)", dense,
                       c->L);
    if ((int64_t)shared * width > FM_CHANNELS_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "n_shared_experts %d of moe_intermediate_size %d are more than %d channels",
                       shared, width, FM_CHANNELS_MAX);
    c->shared = shared * width;
    c->M = c->L - dense;
    for (int m = 0; m < c->M; m++)
        c->moe[m] = (int16_t)(dense + m);
    return dense ? fm_keys_size(&c->dense, json, "intermediate_size", FM_CHANNELS_MAX, err) : FM_OK;
}
