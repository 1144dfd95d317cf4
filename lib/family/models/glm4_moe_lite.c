/* GLM-4.7-Flash: DeepSeek-V3's layers, and a list that says which of them are dense. */
#include "lib/block/mla.h"
#include "lib/block/norm.h"
#include "lib/family/models/deepseek.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

#include <string.h>

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_MLA_WEIGHTS(FM_ATTENTION),
    FM_DEEPSEEK_MOE_WEIGHTS,
    FM_DEEPSEEK_BIAS_WEIGHT,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* mlp_layer_types, "dense" or "sparse" for each layer. */
static int read_list(struct fm_config *c, const cJSON *list, struct fm_err *err)
{
    const cJSON *type;
    int l = 0;
    c->M = 0;
    cJSON_ArrayForEach(type, list)
    {
        bool sparse = cJSON_IsString(type) && strcmp(type->valuestring, "sparse") == 0;
        if (!sparse && (!cJSON_IsString(type) || strcmp(type->valuestring, "dense") != 0))
            return fm_fail(err, FM_ECONFIG,
                           "mlp_layer_types '%.64s' is not supported; supported: dense, sparse",
                           cJSON_IsString(type) ? type->valuestring : "?");
        if (sparse && l < c->L)
            c->moe[c->M++] = (int16_t)l;
        l++;
    }
    if (l != c->L)
        return fm_fail(err, FM_EFORMAT, "mlp_layer_types has %d entries for %d layers", l, c->L);
    if (c->M == 0)
        return fm_fail(err, FM_ECONFIG, "no layer is a mixture of experts (mlp_layer_types)");
    return FM_OK;
}

/* The list says it where there is one; first_k_dense_replace, which transformers does not read, may
 * only say the same. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const struct fm_deepseek_layers defaults = {.dense = 1, .shared = 1};
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(keys->json, "mlp_layer_types");
    const cJSON *first = cJSON_GetObjectItemCaseSensitive(keys->json, "first_k_dense_replace");
    bool listed = list && !cJSON_IsNull(list), said = first && !cJSON_IsNull(first);
    int rc = fm_deepseek_layers(c, &defaults, keys, err), dense = c->L - c->M;
    if (!rc && listed)
        rc = cJSON_IsArray(list)
                 ? read_list(c, list, err)
                 : fm_fail(err, FM_EFORMAT, "key 'mlp_layer_types' is not an array");
    if (rc)
        return rc;
    if (said && listed && (c->moe[0] != dense || c->M != c->L - dense))
        return fm_fail(err, FM_ECONFIG,
                       "mlp_layer_types and first_k_dense_replace %d are not the same layers",
                       dense);
    if (!listed && dense != 1)
        return fm_fail(err, FM_ECONFIG,
                       "first_k_dense_replace %d without mlp_layer_types is not supported for %s: "
                       "runtimes disagree about it; supported: 1",
                       dense, keys->family);
    c->dense = c->M < c->L ? c->dense : 0;
    return FM_OK;
}

static const struct fm_mla_options attention = {.interleave_key = true,
                                                .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_scored_options router = FM_DEEPSEEK_V3_ROUTER(1.8);

const struct fm_model_family fm_glm4_moe_lite = {
    .name = "glm4_moe_lite",
    .class_name = "Glm4MoeLite",
    .width_key = "moe_intermediate_size",
    .experts_key = "n_routed_experts",
    .shared_key = "n_shared_experts",
    .read_layers = read_layers,
    .attention = &fm_mla,
    .router = &fm_scored,
    .expert = &fm_swiglu,
    .norm = &fm_rmsnorm,
    .attention_options = &attention,
    .router_options = &router,
    .eps = 1e-5,
    .positions = 202752,
    .keys = FM_DEEPSEEK_KEYS " " FM_MLA_KEYS,
    .weight = weights,
    .extra = &fm_extra_nextn,
};
