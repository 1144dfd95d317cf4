/*
 * What distinguishes one family of models from another: how config.json spells its sizes,
 * under which names its tensors lie in each kind of directory, and which of the engine's
 * variants it uses.  The tables, and how to add a family, are in lib/family/families.c.
 */
#ifndef FM_FAMILY_H
#define FM_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"
#include "lib/block/block.h"

/* Where a model's tensors come from. */
enum fm_source {
    FM_SOURCE_STOCK,  /* a checkpoint of the family, as transformers names it */
    FM_SOURCE_ONLINE, /* a bundle's weights/ members, or a native export */
    FM_SOURCE_RAGGED, /* a ragged export */
    FM_SOURCES
};

/* What a tensor becomes in memory. */
enum fm_weight_part {
    FM_PART_ENDS,     /* a field of struct fm_ends */
    FM_PART_LAYER,    /* a field of struct fm_layer */
    FM_PART_MLP_GATE, /* (D, H): even rows of mlp_gate_up */
    FM_PART_MLP_UP,   /* (D, H): odd rows */
    FM_PART_MLP_DOWN, /* (H, D): transposed */
    FM_PART_GATE,     /* (I, H) of one expert: the even rows of gate_up */
    FM_PART_UP,       /* (I, H): the odd rows */
    FM_PART_DOWN,     /* (H, I): transposed */
    FM_PART_GATE_UP,  /* all experts of a layer, online layout */
    FM_PART_DOWN_T
};

/* Where a tensor exists: in models and layers that have all of these. */
enum fm_weight_when {
    FM_ALWAYS = 0,
    FM_UNTIED = 1 << 0,    /* the head is not the embedding */
    FM_MOE = 1 << 1,       /* a layer of experts */
    FM_DENSE = 1 << 2,     /* a layer without */
    FM_SHARED = 1 << 3,    /* a layer of experts with a shared one */
    FM_QKV_BIAS = 1 << 4,  /* q, k and v have biases */
    FM_O_BIAS = 1 << 5,    /* the output projection has one */
    FM_QK_NORM = 1 << 6,   /* q and k are normalised */
    FM_NORM_BIAS = 1 << 7, /* norms have biases */
    FM_HEAD_BIAS = 1 << 8  /* lm_head has one */
};

/* One row of a family's table of tensors. */
struct fm_weight {
    const char *name[FM_SOURCES]; /* {l} and {e} stand for numbers; NULL: not in that source */
    enum fm_weight_part part;
    size_t field;  /* offsetof in struct fm_ends or fm_layer, for those two parts */
    char shape[4]; /* letters: V H E I, q = Q C, g = G C, D width of the MLP, S = 2 sum of caps,
                      s = sum of caps, a and b widths of the norms of q and k, 1 */
    unsigned when; /* bits of enum fm_weight_when */
};

struct fm_model_family {
    const char *name;       /* model_type */
    const char *class_name; /* "Mixtral": class prefix in transformers 5; ours is Fm in front */
    const char *served_as;  /* architecture that servers know, where transformers 5 saves class_name
                               ForCausalLM and they do not know that; NULL: they do */
    const char *width_key;  /* of the experts' channels */
    const char *bias_key;   /* attention biases; NULL: the family has none */
    bool bias, o_bias;      /* bias_key where config.json lacks it; o_proj obeys it as well */
    bool window;            /* sliding_window is obeyed; else refused where it is switched on */
    bool sparse_layers;     /* decoder_sparse_step and mlp_only_layers: some layers are dense */
    bool shared_expert;
    bool norm_topk; /* weights of chosen experts are renormalised; with topk_key config.json says */
    bool topk_key;
    bool clip;                  /* clip_qkv */
    bool norm_bias, head_bias;  /* norms are LayerNorms; lm_head_bias is obeyed */
    bool sparsemixer, longrope; /* its router; its rotation is known */
    int gguf_router;            /* enum fm_router that llama.cpp has built in; -1: another */
    enum fm_qk_norm qk_norm;
    double rope_theta, eps; /* where config.json has none */
    int positions;
    const struct fm_weight *weight; /* ends with a row that has no names */
};

/* The table of lib/family/families.c; NULL: not there. */
const struct fm_model_family *fm_families_find(const char *name);
/* "mixtral, qwen2_moe": all there are. */
void fm_families_list(char *text, size_t size);

/*
 * Parse and check config.json (text, size bytes, not NUL-terminated).  Every number is
 * checked against a named limit; keys of transformers 4 and 5 are both read.
 * FM_EFORMAT for broken JSON, FM_ECONFIG for a model that is not supported, by name.
 */
int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err);

/* "mixtral": config.json's model_type. */
const char *fm_config_family(const struct fm_config *config);

/* Parameters of the whole model at these widths ((M, E), NULL: full), and those active for one
 * token when experts are chosen evenly (mean width times K per layer). */
uint64_t fm_config_params(const struct fm_config *config, const uint32_t *widths);
uint64_t fm_config_params_active(const struct fm_config *config, const uint32_t *widths);

/* False at the row that ends a table. */
static inline bool fm_weights_more(const struct fm_weight *w)
{
    return w->name[FM_SOURCE_STOCK] || w->name[FM_SOURCE_ONLINE] || w->name[FM_SOURCE_RAGGED];
}

#define FM_WEIGHT_NAME_BYTES 160

/* The name of a row of the table for layer l and expert e (where it has those). */
void fm_weights_name(char name[FM_WEIGHT_NAME_BYTES], const char *pattern, int l, int e);

/* Does layer l (-1: the ends) of this model have the row's tensor? */
bool fm_weights_exists(const struct fm_config *config, const struct fm_weight *w, int l);

/* The row that `name` is, in that kind of source, with its layer and expert (-1 where it has
 * none), both inside the model; NULL: none of this model's tensors. */
const struct fm_weight *fm_weights_find(const struct fm_config *config, enum fm_source source,
                                        const char *name, int *l, int *e);

/* True where the tensor of a stock checkpoint holds an expert's gate, up or down. */
bool fm_weights_is_expert(const struct fm_weight *w);

/* Elements of the row's tensor in layer l, whose experts have `channels` caps together. */
uint64_t fm_weights_count(const struct fm_config *config, const struct fm_weight *w, int l,
                          uint64_t channels);

/*
 * FM_EFORMAT unless the tensor of layer l has the row's shape; `channels` is the sum of the
 * layer's caps.  FM_ECONFIG with advice unless its dtype is BF16, F16 or F32.
 */
int fm_weights_check(const struct fm_config *config, const struct fm_weight *w,
                     const struct fm_tensor *t, int l, uint64_t channels, struct fm_err *err);

#endif
