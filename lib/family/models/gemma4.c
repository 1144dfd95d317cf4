/*
 * Gemma 4 with experts (26B-A4B), the text part of wrapper gemma4: layers without a window have
 * heads of another width and values that are their keys; experts beside an MLP, both with GELU,
 * each with its own norms; a router with an input of its own, and a factor for every expert.
 * Source: transformers' modular_gemma4.py.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "lib/block/gqa.h"
#include "lib/block/mlp.h"
#include "lib/block/norm.h"
#include "lib/block/softmax.h"
#include "lib/block/swiglu.h"
#include "lib/family/decoder.h"
#include "lib/family/family.h"

#define LAYER "model.layers.{l}."

/* clang-format off */
static const struct fm_weight weights[] = {
    FM_DECODER_ENDS,
    FM_NORM(LAYER "input_layernorm.weight", input_norm, FM_ALWAYS),
    FM_NORM(LAYER "post_attention_layernorm.weight", attention_norm, FM_ALWAYS),
    FM_NORM(LAYER "pre_feedforward_layernorm.weight", post_norm, FM_ALWAYS),
    FM_NORM(LAYER "post_feedforward_layernorm.weight", mlp_norm, FM_ALWAYS),
    FM_NORM(LAYER "post_feedforward_layernorm_1.weight", shared_output_norm, FM_MOE),
    FM_NORM(LAYER "pre_feedforward_layernorm_2.weight", experts_norm, FM_MOE),
    FM_NORM(LAYER "post_feedforward_layernorm_2.weight", experts_output_norm, FM_MOE),
    {FM_SAME(LAYER "layer_scalar"), FM_PART_NORM, FM_LAYER_FIELD(scalar), "1", FM_ALWAYS},
    FM_GQA_WEIGHTS(FM_ATTENTION),
    FM_MLP_WEIGHTS(FM_MLP, FM_SHARED),
    FM_ROUTER_WEIGHT(LAYER "router.proj.weight", LAYER "router.proj.weight"),
    FM_NORM(LAYER "router.scale", router.norm, FM_MOE),
    {FM_SAME(LAYER "router.per_expert_scale"), FM_PART_NORM, FM_LAYER_FIELD(router.scale), "E",
     FM_MOE},
    FM_SWIGLU_EITHER_WEIGHTS(LAYER),
    FM_WEIGHTS_END,
};
/* clang-format on */

static int read_layers(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    double cap = 0;
    int rc = fm_json_opt_double(keys->json, "final_logit_softcapping", FLT_MIN, FLT_MAX, &cap, err);
    c->softcap = (float)cap;
    c->embed_scale = (float)sqrt(c->H);
    c->apart = true;
    return rc ? rc
              : fm_keys_size(&c->shared, keys->json, "intermediate_size", FM_CHANNELS_MAX, err);
}

/* The entry of layer l in an object whose names are numbers of layers; NULL: none. */
static const cJSON *entry_of(const cJSON *object, int l)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, object)
    {
        const char *name = entry->string;
        int number;
        if (fm_weights_number(&number, &name, FM_LAYERS_MAX) && *name == '\0' && number == l)
            return entry;
    }
    return NULL;
}

/* Check that per_layer_config, which transformers saves and reads in place of the two other keys,
 * has only the two sizes, and only for layers that exist. */
static int check_entries(const struct fm_config *c, const cJSON *object, struct fm_err *err)
{
    const cJSON *entry, *key;
    if (!cJSON_IsObject(object))
        return fm_fail(err, FM_EFORMAT, "key 'per_layer_config' is not an object");
    cJSON_ArrayForEach(entry, object)
    {
        const char *name = entry->string;
        int l;
        if (!fm_weights_number(&l, &name, c->L) || *name || !cJSON_IsObject(entry))
            return fm_fail(err, FM_EFORMAT,
                           "per_layer_config: '%.64s' is not an object for one of layers 0 to %d",
                           entry->string, c->L - 1);
        cJSON_ArrayForEach(key, entry)
        {
            if (strcmp(key->string, "head_dim") != 0 &&
                strcmp(key->string, "num_key_value_heads") != 0)
                return fm_fail(err, FM_ECONFIG,
                               "per_layer_config of layer %d has '%.64s'; supported: head_dim, "
                               "num_key_value_heads",
                               l, key->string);
        }
    }
    return FM_OK;
}

/* Read the sizes of every layer from per_layer_config: layers without a window must agree, and the
 * others must have the usual ones. */
static int read_entries(int *width, int *groups, const struct fm_config *c, const cJSON *object,
                        struct fm_err *err)
{
    bool seen = false;
    int rc = check_entries(c, object, err);
    for (int l = 0; l < c->L && !rc; l++) {
        const cJSON *entry = entry_of(object, l);
        bool full = fm_gqa_full(c, l);
        int own_width = c->C, own_groups = c->G;
        if (fm_keys_size_opt(&own_width, entry, "head_dim", FM_HEAD_DIM_MAX, err) ||
            fm_keys_size_opt(&own_groups, entry, "num_key_value_heads", FM_HEADS_MAX, err))
            return fm_within(err, "per_layer_config of layer %d", l);
        if (full && !seen) {
            *width = own_width;
            *groups = own_groups;
        }
        if (own_width != (full ? *width : c->C) || own_groups != (full ? *groups : c->G))
            rc = fm_fail(err, FM_ECONFIG,
                         "per_layer_config gives layer %d head_dim %d and num_key_value_heads %d, "
                         "unlike other layers of its layer_types; all must agree",
                         l, own_width, own_groups);
        seen = seen || full;
    }
    return rc;
}

/* Read the sizes of layers without a window, of which the last layer must be one. */
static int read_full(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *object = fm_json_value(keys->json, "per_layer_config");
    int width = 512, groups = c->G;
    bool each = object != NULL;
    if (!fm_gqa_full(c, c->L - 1))
        return fm_fail(err, FM_ECONFIG,
                       "the last layer is sliding_attention, which transformers turns into "
                       "full_attention; set full_attention in layer_types");
    if (each && read_entries(&width, &groups, c, object, err))
        return err->code;
    int said_width = width, said_groups = groups;
    if (fm_keys_size_opt(&said_width, keys->json, "global_head_dim", FM_HEAD_DIM_MAX, err) ||
        (c->gqa->shared && fm_keys_size_opt(&said_groups, keys->json, "num_global_key_value_heads",
                                            FM_HEADS_MAX, err)))
        return err->code;
    if (each && (said_width != width || said_groups != groups))
        return fm_fail(err, FM_ECONFIG,
                       "global_head_dim %d or num_global_key_value_heads %d contradicts "
                       "per_layer_config, and programs differ in which they read; keep one of them",
                       said_width, said_groups);
    if (said_width % 2 != 0)
        return fm_fail(err, FM_EFORMAT, "global_head_dim %d is not even", said_width);
    fm_gqa_differ(c, said_width, said_groups);
    return FM_OK;
}

/* In layers with a window all pairs are rotated, whatever partial_rotary_factor says. */
static int check_rotation(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    (void)keys;
    const struct fm_gqa *g = c->gqa;
    if (g->window_rope.R == g->window_width)
        return FM_OK;
    return fm_fail(err, FM_ECONFIG,
                   "partial_rotary_factor of sliding_attention is not 1; programs differ in "
                   "whether they read it");
}

static const struct fm_rope_options window_rope = {
    .theta = 1e4, .partial = 1, .partial_object = 1, .layer_type = "sliding_attention"};

static const struct fm_gqa_options attention = {.window = true,
                                                .alternates = true,
                                                .every = 6,
                                                .usual_window = 512,
                                                .shared_key = "attention_k_eq_v",
                                                .value_norm = true,
                                                .divisor = 1,
                                                .read_full = read_full,
                                                .read_more = check_rotation,
                                                .qk_norm = FM_QK_NORM_HEAD,
                                                .rope = {.theta = 1e6,
                                                         .proportional = true,
                                                         .partial_object = 1,
                                                         .layer_type = "full_attention"},
                                                .window_rope = &window_rope};

static const struct fm_softmax_options router = {.scaled = true};

static const struct fm_keys_only only[] = {{"enable_moe_block", "true"},
                                           {"hidden_size_per_layer_input", "0"},
                                           {"num_kv_shared_layers", "0"},
                                           {"use_double_wide_mlp", "false"},
                                           /* Tokens of text attend only to earlier ones. */
                                           {"use_bidirectional_attention", "'vision'"},
                                           {NULL, NULL}};

const struct fm_model_family fm_gemma4 = {
    .name = "gemma4_text",
    .class_name = "Gemma4",
    .width_key = "moe_intermediate_size",
    .chosen_key = "top_k_experts",
    .read_layers = read_layers,
    FM_BLOCKS(fm_gqa, fm_softmax, fm_geglu, fm_rmsnorm),
    .output_norms = FM_NORMS_ATTENTION | FM_NORMS_MLP,
    .saved_fused = true,
    .tied = true,
    .eps = 1e-6,
    .positions = 131072,
    .only = only,
    .needed = "enable_moe_block head_dim hidden_size_per_layer_input num_key_value_heads "
              "rope_parameters", /* transformers' defaults are false, 256, 256, 4, two rotations */
    .keys = "attention_k_eq_v final_logit_softcapping global_head_dim hidden_activation "
            "num_global_key_value_heads per_layer_config use_bidirectional_attention "
            "vocab_size_per_layer_input",
    .weight = weights,
};
