/*
 * MiniMax-M3, the text part: grouped-query attention; in most layers a sparse indexer that chooses
 * index_topk_blocks blocks of keys (in shorter sequences, all keys); clamped SwiGLU without biases
 * in experts, shared expert and dense layers; norms that multiply by 1 + w.
 *
 * The published checkpoint is multimodal and stores every matrix separately; transformers' text
 * class saves fused matrices under different names (wrapper_form of lib/family/family.h).  Its
 * config.json also has its own keys, which must agree with those of transformers if both are
 * present.  Source: transformers' modular_minimax_m3_vl.py.
 */
#include <string.h>

#include "lib/block/clamped.h"
#include "lib/block/gqa.h"
#include "lib/block/mlp.h"
#include "lib/block/norm.h"
#include "lib/block/scored.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"

#define MOE "model.layers.{l}.block_sparse_moe."
#define SHARED(prefix) prefix "shared_experts."

/* clang-format off */
/* WHOLE: the names of a tensor of the multimodal checkpoint; in a ragged export it has the text
 * class's name.  CARRIED and ROUTER have a row for each form of checkpoint, FUSED only rows for
 * that of the text class. */
#define WHOLE(name, text) {name, name, text}
#define CARRIED(whole, text, shape)                                                                \
    {WHOLE(FM_ATTENTION whole, FM_ATTENTION text), FM_PART_CARRIED, 0, shape,                      \
     FM_GQA_INDEXER | FM_EACH},                                                                    \
    {FM_SAME(FM_ATTENTION text), FM_PART_CARRIED, 0, shape, FM_GQA_INDEXER | FM_FUSED}
#define ROUTER(whole, text, f, shape)                                                              \
    {WHOLE(MOE whole, FM_MLP text), FM_PART_ROUTER, FM_LAYER_FIELD(router.f), shape,               \
     FM_MOE | FM_EACH},                                                                            \
    {FM_SAME(FM_MLP text), FM_PART_ROUTER, FM_LAYER_FIELD(router.f), shape, FM_MOE | FM_FUSED}
#define FUSED(prefix, when)                                                                        \
    {FM_SAME(prefix "gate_up_proj.weight"), FM_PART_MLP_GATE_UP, 0, "FH", when | FM_FUSED},        \
    {FM_SAME(prefix "down_proj.weight"), FM_PART_MLP_DOWN, 0, "HD", when | FM_FUSED}

static const struct fm_weight weights[] = {
    FM_DECODER_WEIGHTS,
    FM_GQA_WEIGHTS(FM_ATTENTION),
    CARRIED("index_q_proj.weight", "indexer.q_proj.weight", "iH"),
    CARRIED("index_k_proj.weight", "indexer.k_proj.weight", "wH"),
    CARRIED("index_q_norm.weight", "indexer.q_norm.weight", "w"),
    CARRIED("index_k_norm.weight", "indexer.k_norm.weight", "w"),
    FM_MLP_WEIGHTS(FM_MLP, FM_DENSE | FM_EACH),
    FUSED(FM_MLP, FM_DENSE),
    FM_MLP_WEIGHTS_AS(SHARED(MOE), SHARED(FM_MLP), FM_SHARED | FM_EACH),
    FUSED(SHARED(FM_MLP), FM_SHARED),
    ROUTER("gate.weight", "gate.weight", w, "EH"),
    ROUTER("e_score_correction_bias", "gate.e_score_correction_bias", choice_bias, "E"),
    {FM_STOCK(MOE "experts.{e}.w1.weight"), FM_PART_GATE, 0, "IH", FM_MOE | FM_EACH},
    {FM_STOCK(MOE "experts.{e}.w3.weight"), FM_PART_UP, 0, "IH", FM_MOE | FM_EACH},
    {FM_STOCK(MOE "experts.{e}.w2.weight"), FM_PART_DOWN, 0, "HI", FM_MOE | FM_EACH},
    {FM_STOCK(FM_MLP "experts.gate_up_proj"), FM_PART_GATE_THEN_UP, 0, "EJH", FM_MOE | FM_FUSED},
    {FM_STOCK(FM_MLP "experts.down_proj"), FM_PART_DOWN, 0, "EHI", FM_MOE | FM_FUSED},
    FM_SWIGLU_ONLINE_WEIGHTS,
    FM_WEIGHTS_END,
};
/* clang-format on */

/* Which layers a list marks: by the string `on` (all others are `off`), or by 1 and 0. */
struct marks {
    const char *key, *on, *off;
    bool said; /* the list is present */
    bool layer[FM_LAYERS_MAX];
};

static int read_marks(struct marks *m, const cJSON *object, int L, struct fm_err *err)
{
    const cJSON *list, *entry;
    int l = 0, rc = fm_keys_array(&list, object, m->key, err);
    if (rc)
        return rc;
    m->said = list != NULL;
    cJSON_ArrayForEach(entry, list)
    {
        const char *text = cJSON_GetStringValue(entry);
        double number = cJSON_IsNumber(entry) ? entry->valuedouble : -1;
        bool on = m->on ? text && strcmp(text, m->on) == 0 : number == 1;
        if (!on && !(m->on ? text && strcmp(text, m->off) == 0 : number == 0))
            return fm_fail(err, FM_ECONFIG,
                           "%s of layer %d is '%.64s', which is not supported; supported: %s, %s",
                           m->key, l, text ? text : "?", m->on ? m->on : "1", m->on ? m->off : "0");
        if (l < L)
            m->layer[l] = on;
        l++;
    }
    return !m->said || l == L
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", m->key, l, L);
}

/* Read two lists with the same meaning, the second one from `object`.  Either may be missing; two
 * must agree.  Sets *first to the result. */
static int read_both(struct marks *first, const cJSON *json, struct marks *second,
                     const cJSON *object, int L, struct fm_err *err)
{
    int rc = read_marks(first, json, L, err);
    if (!rc)
        rc = read_marks(second, object, L, err);
    for (int l = 0; l < L && !rc; l++)
        if (first->said && second->said && first->layer[l] != second->layer[l])
            rc = fm_fail(err, FM_ECONFIG,
                         "%s and %s differ in layer %d, and programs differ in which they read",
                         first->key, second->key, l);
    if (!rc && !first->said && second->said)
        *first = *second;
    return rc;
}

/* Without a list every layer has experts. */
static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    struct marks moe = {.key = "mlp_layer_types", .on = "sparse", .off = "dense"};
    struct marks own = {.key = "moe_layer_freq"};
    int rc = read_both(&moe, keys->json, &own, keys->json, c->L, err);
    c->M = 0;
    for (int l = 0; l < c->L && !rc; l++)
        if (!moe.said || moe.layer[l])
            c->moe[c->M++] = (int16_t)l;
    if (!rc && c->M == 0)
        rc = fm_fail(err, FM_ECONFIG, "no layer is a mixture of experts (%s)", moe.key);
    if (!rc && c->M < c->L)
        rc = fm_keys_size(&c->dense, keys->json, "dense_intermediate_size", FM_CHANNELS_MAX, err);
    return rc ? rc
              : fm_keys_size(&c->shared, keys->json, "shared_intermediate_size", FM_CHANNELS_MAX,
                             err);
}

/* Read a size of the indexer under transformers' key or the published one, which must agree. */
static int read_size(int *size, const cJSON *json, const char *key, const cJSON *sparse,
                     const char *own, int limit, struct fm_err *err)
{
    int other = 0;
    int rc = fm_keys_size_opt(&other, sparse, own, limit, err);
    *size = other;
    if (!rc && other > 0)
        rc = fm_keys_size_opt(size, json, key, limit, err);
    else if (!rc)
        rc = fm_keys_size(size, json, key, limit, err);
    return rc || other == 0 || *size == other
               ? rc
               : fm_fail(err, FM_ECONFIG,
                         "%s %d is not %s %d, and programs differ in which they read", key, *size,
                         own, other);
}

/* Keys of sparse_attention_config that transformers does not read. */
static const struct fm_keys_only only_sparse[] = {{"use_sparse_attention", "true"},
                                                  {"sparse_score_type", "'max'"},
                                                  {"sparse_init_block", "0"},
                                                  {NULL, NULL}};

/* Refuse indexers with a value branch, which layers with 0 in sparse_disable_index_value have. */
static int check_values(const struct marks *indexed, const cJSON *sparse, int L, struct fm_err *err)
{
    struct marks off = {.key = "sparse_disable_index_value"};
    int rc = read_marks(&off, sparse, L, err);
    for (int l = 0; l < L && !rc; l++)
        if (off.said && indexed->layer[l] && !off.layer[l])
            rc = fm_fail(err, FM_ECONFIG,
                         "%s of layer %d is 0, which is not supported; supported: 1", off.key, l);
    return rc;
}

/* Sizes of the indexer, and the length up to which it chooses all keys. */
static int read_sizes(struct fm_config *c, const cJSON *json, const cJSON *sparse,
                      struct fm_err *err)
{
    struct fm_gqa *g = c->gqa;
    int block = 0, blocks = 0;
    if (read_size(&g->index_heads, json, "index_n_heads", sparse, "sparse_num_index_heads",
                  FM_HEADS_MAX, err) ||
        read_size(&g->index_width, json, "index_head_dim", sparse, "sparse_index_dim",
                  FM_HEAD_DIM_MAX, err) ||
        read_size(&block, json, "index_block_size", sparse, "sparse_block_size", FM_POSITIONS_MAX,
                  err) ||
        read_size(&blocks, json, "index_topk_blocks", sparse, "sparse_topk_blocks",
                  FM_POSITIONS_MAX, err))
        return err->code;
    if (c->Q % g->index_heads != 0)
        return fm_fail(err, FM_EFORMAT,
                       "num_attention_heads %d is not a multiple of index_n_heads %d", c->Q,
                       g->index_heads);
    if ((int64_t)block * blocks < c->T_exact) {
        c->T_exact = block * blocks;
        c->exact = "the range in which sparse attention (index_topk_blocks) attends to all keys";
    }
    return FM_OK;
}

/* transformers reads partial_rotary_factor and not rotary_dim, so the two must agree. */
static int check_rotation(const struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int dims = c->gqa->rope.R;
    int rc = fm_keys_size_opt(&dims, json, "rotary_dim", FM_HEAD_DIM_MAX, err);
    return rc || dims == c->gqa->rope.R
               ? rc
               : fm_fail(err, FM_ECONFIG,
                         "rotary_dim is %d, and partial_rotary_factor rotates %d of %d elements; "
                         "programs differ in which they read",
                         dims, c->gqa->rope.R, c->C);
}

/* Without a list no layer has an indexer. */
static int read_indexer(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *json = keys->json;
    const cJSON *sparse = fm_json_value(json, "sparse_attention_config");
    const struct fm_keys own = {.json = sparse, .family = keys->family};
    struct marks indexed = {
        .key = "layer_types", .on = "minimax_m3_sparse", .off = "full_attention"};
    struct marks freq = {.key = "sparse_attention_freq"};
    bool any = false;
    if (sparse && !cJSON_IsObject(sparse))
        return fm_fail(err, FM_EFORMAT, "key 'sparse_attention_config' is not an object");
    int rc = check_rotation(c, json, err);
    if (!rc)
        rc = read_both(&indexed, json, &freq, sparse, c->L, err);
    for (int l = 0; l < c->L && !rc; l++) {
        any |= indexed.layer[l];
        if (indexed.layer[l])
            fm_layers_add(&c->gqa->indexed, l);
    }
    if (rc || !any)
        return rc;
    rc = fm_keys_only(&own, only_sparse, err);
    if (!rc)
        rc = check_values(&indexed, sparse, c->L, err);
    return rc ? rc : read_sizes(c, json, sparse, err);
}

static const struct fm_gqa_options attention = {.qk_norm = FM_QK_NORM_HEAD,
                                                .other_layers = true,
                                                .read_more = read_indexer,
                                                .rope = {.theta = 5e6, .partial = 1}};

static const struct fm_scored_options router = {.sigmoid = true, .renormalised = true, .scale = 2};

/* transformers reads none of these. */
static const struct fm_keys_only only[] = {{"use_gemma_norm", "true"},
                                           {"use_qk_norm", "true"},
                                           {"qk_norm_type", "'per_head'"},
                                           {"use_routing_bias", "true"},
                                           {"norm_topk_prob", "true"},
                                           {"n_shared_experts", "1"},
                                           {"attention_output_gate", "false"},
                                           {"attention_bias", "false"},
                                           {"swiglu_beta", "1"},
                                           {NULL, NULL}};

/* The parts for images; and layers for multi-token prediction, which config.json counts but the
 * published checkpoint does not have. */
static const char *const extra_names[] = {
    "vision_tower.", "multi_modal_projector.", "patch_merge_mlp.", "mtp.", "model.mtp.", NULL};
static const struct fm_extra_form extra = {.name = extra_names, .parts = 7};

const struct fm_model_family fm_minimax_m3 = {
    .name = "minimax_m3_vl_text",
    .class_name = "MiniMaxM3VL",
    .width_key = "intermediate_size",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_scored, fm_swiglu_clamped_unbiased, fm_rmsnorm_plus),
    .indexed = true,
    .wrapper_form = true,
    .eps = 1e-6,
    .positions = 524288,
    .only = only,
    .needed = "head_dim num_key_value_heads", /* transformers' defaults are 128 and 4 */
    .keys = "dense_intermediate_size index_block_size index_head_dim index_local_blocks "
            "index_n_heads index_topk_blocks mlp_layer_types moe_layer_freq num_mtp_modules "
            "num_nextn_predict_layers rotary_dim routed_scaling_factor router_jitter_noise "
            "scoring_func shared_intermediate_size sparse_attention_config swiglu_alpha "
            "swiglu_limit",
    .weight = weights,
    .extra = &extra,
};
