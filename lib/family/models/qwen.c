/*
 * The layers of Qwen's models.  Their config.json can make any layer dense, by an interval
 * (decoder_sparse_step) or a list (mlp_only_layers); published models use neither, but derived
 * checkpoints do.
 */
#include "lib/family/models/qwen.h"

/* Set dense (FM_LAYERS_MAX) for the layers in mlp_only_layers. */
static int read_list(bool *dense, const struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    const cJSON *list, *entry;
    int rc = fm_keys_array(&list, json, "mlp_only_layers", err);
    if (rc)
        return rc;
    cJSON_ArrayForEach(entry, list)
    {
        int l = cJSON_IsNumber(entry) ? entry->valueint : -1;
        if (l < 0 || l != entry->valuedouble)
            return fm_fail(err, FM_EFORMAT, "key 'mlp_only_layers': an entry is not a layer index");
        if (l < c->L)
            dense[l] = true;
    }
    return FM_OK;
}

int fm_qwen_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int64_t step = 1;
    bool dense[FM_LAYERS_MAX] = {false};
    int rc = fm_json_opt_int(keys->json, "decoder_sparse_step", 1, FM_JSON_INTEGER_MAX, &step, err);
    if (!rc)
        rc = read_list(dense, c, keys->json, err);
    if (rc)
        return rc;
    c->M = 0;
    for (int l = 0; l < c->L; l++)
        if (!dense[l] && (l + 1) % step == 0)
            c->moe[c->M++] = (int16_t)l;
    if (c->M == 0)
        return fm_fail(err, FM_ECONFIG,
                       "no layer is a mixture of experts (decoder_sparse_step, mlp_only_layers)");
    return c->M < c->L
               ? fm_keys_size(&c->dense, keys->json, "intermediate_size", FM_CHANNELS_MAX, err)
               : FM_OK;
}

int fm_qwen_shared_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    int rc = fm_qwen_layers(c, keys, err);
    c->shared_mix = true;
    return rc ? rc
              : fm_keys_size(&c->shared, keys->json, "shared_expert_intermediate_size",
                             FM_CHANNELS_MAX, err);
}
