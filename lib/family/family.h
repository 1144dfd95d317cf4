/*
 * This room, lib/family: how config.json of a family of models spells its sizes, under which names
 * its tensors are stored in each kind of directory, and which blocks (lib/block/block.h) it is made
 * of.  A family is one file in lib/family/models and one row of the list below; families.c says how
 * to add one.
 *
 * In reading order beside these: parse.c (config.json to sizes), decoder.h (names that nearly all
 * families share) and weights.c (the tables), extra (tensors of no decoder layer).
 */
#ifndef FM_FAMILY_H
#define FM_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"
#include "lib/block/block.h"

struct fm_extra_form; /* lib/family/extra.h */

struct fm_model_family {
    const char *name;       /* model_type */
    const char *alias;      /* another one, where architectures names class_name ForCausalLM all the
                               same; NULL: none */
    const char *class_name; /* "Mixtral": class prefix in transformers 5; ours is Fm in front */
    const char *width_key;  /* of the experts' channels */
    const char *width_twin; /* another key of the same number, which other programs read; NULL:
                               there is none */
    const char *experts_key, *chosen_key; /* of E and K; NULL: num_experts or num_local_experts,
                                             num_experts_per_tok, which are read as well */
    const char *shared_key; /* how many experts the shared one is as wide as; NULL: its width is a
                               key of its own, or there is none */
    /* Which layers have experts (all are in config->moe when it is called), and how wide the other
     * MLPs are; NULL: every layer has experts and nothing else. */
    int (*read_layers)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    /* Its blocks, and what it says of them: a struct of the block's header, or NULL. */
    const struct fm_attention *attention;
    const struct fm_router *router;
    const struct fm_expert_form *expert;
    const struct fm_norm *norm;
    const void *attention_options, *router_options;
    bool indexed; /* a small attention chooses what the large one sees; its attention block knows
                     up to which length that is everything, and its tensors are carried */
    unsigned output_norms; /* bits of enum fm_output_norms */
    bool head_bias;        /* lm_head_bias is obeyed */
    bool tied;             /* where config.json has no tie_word_embeddings */
    double eps;            /* if config.json does not set it */
    int positions;
    const struct fm_keys_only *only; /* keys of config.json that can have one value only; NULL:
                                        no such */
    const char *needed; /* keys that it must have, "one two", since transformers would take numbers
                           of its own where they are not there or null; NULL: no such */
    const char *keys;   /* of config.json, "one two": what its class in transformers, servers' code
                           and published checkpoints have beside those of every family
                           (fm_families_knows) and those that this row names above and below */
    const struct fm_weight *weight;    /* its table; ends with a row that has no names */
    const struct fm_extra_form *extra; /* tensors of no decoder layer; NULL: it has none */
};

/* The list: a row for each family, fm_NAME of its file.  Sentences list them in this order. */
/* clang-format off */
#define FM_FAMILY_ROWS(ROW) \
    ROW(mixtral)            \
    ROW(qwen2_moe)          \
    ROW(qwen3_moe)          \
    ROW(olmoe)              \
    ROW(phimoe)             \
    ROW(glm4_moe)           \
    ROW(dots1)              \
    ROW(solar_open)         \
    ROW(hy_v3)              \
    ROW(exaone_moe)         \
    ROW(afmoe)              \
    ROW(minimax_m2)         \
    ROW(ernie4_5_moe)       \
    ROW(deepseek_v2)        \
    ROW(deepseek_v3)        \
    ROW(glm4_moe_lite)      \
    ROW(deepseek_v32)       \
    ROW(glm_moe_dsa)        \
    ROW(axk1)               \
    ROW(gpt_oss)            \
    ROW(qwen3_next)         \
    ROW(qwen3_5_moe)
/* clang-format on */

#define FM_FAMILY_DECLARE(name) extern const struct fm_model_family fm_##name;
FM_FAMILY_ROWS(FM_FAMILY_DECLARE)

/* By name or alias; NULL: there is none. */
const struct fm_model_family *fm_families_find(const char *name);
/* Is it a key of config.json that models of the family have, and that loads no code? */
bool fm_families_knows(const struct fm_model_family *family, const char *key);
/* Do its checkpoints have the experts of a layer in one tensor? */
bool fm_families_fused(const struct fm_model_family *family);
/* Of config.json of an export with our modelling file and codes: an object that has the
 * checkpoint's quantization_config, under that name. */
#define FM_CODES_KEY "fm_codes"
/*
 * The storage that quantization_config of a config.json (`json`, the whole of it) says, into
 * config, whose family is known; nothing where it says none.  FM_ECONFIG for weights that are
 * neither numbers of one of our dtypes nor in a storage that we know: GPTQ, AWQ and the like.
 */
int fm_families_storage(struct fm_config *config, const cJSON *json, struct fm_err *err);
/* "mixtral, qwen2_moe": all there are. */
void fm_families_list(char *text, size_t size);

/*
 * Parse and check config.json (text, size bytes, not NUL-terminated).  Every number is
 * checked against a named limit; keys of transformers 4 and 5 are both read.
 * FM_EFORMAT for broken JSON, FM_ECONFIG for a model that is not supported, by name.  The caller
 * releases *config (fm_config_release); after an error it is zeroed.
 */
int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err);

/* "mixtral": config.json's model_type, the family's name or its alias. */
const char *fm_config_family(const struct fm_config *config);

/* Parameters of the whole model at these widths ((M, E), NULL: full), and those active for one
 * token when experts are chosen evenly (mean width times K per layer). */
uint64_t fm_config_params(const struct fm_config *config, const uint32_t *widths);
uint64_t fm_config_params_active(const struct fm_config *config, const uint32_t *widths);

/* False at the row that ends a table. */
static inline bool fm_weights_more(const struct fm_weight *w)
{
    return w->name[FM_NAMING_STOCK] || w->name[FM_NAMING_ONLINE] || w->name[FM_NAMING_RAGGED];
}

#define FM_WEIGHT_NAME_BYTES 160

/* The name of a row of the table for layer l and expert e (where it has those). */
void fm_weights_name(char name[FM_WEIGHT_NAME_BYTES], const char *pattern, int l, int e);

/* A decimal number below `limit` without leading zeros; *name moves behind it.  False: none. */
bool fm_weights_number(int *value, const char **name, int limit);

/* Does layer l (-1: the ends) of this model have the row's tensor? */
bool fm_weights_exists(const struct fm_config *config, const struct fm_weight *w, int l);

/* The row that `name` is, under that naming, with its layer and expert (-1 where it has
 * none), both inside the model; NULL: none of this model's tensors. */
const struct fm_weight *fm_weights_find(const struct fm_config *config, enum fm_naming naming,
                                        const char *name, int *l, int *e);

/* Of a tensor that is in no table: it is of an expert or layer that config.json does not know
 * (experts.8 of 8, layers.-1, experts.007), so that config and weights are not of one model. */
bool fm_weights_is_stray(const struct fm_config *config, const char *name);

/* Of a tensor that is in no table: the family has it, and by config.json layer *l of this model has
 * not (a shared expert of n_shared_experts 0), so that here, too, one of them is wrong. */
bool fm_weights_is_off(const struct fm_config *config, const char *name, int *l);

/* Of a family whose checkpoints have experts one by one or fused: the name of a tensor that only
 * the latter have.  False: another family. */
bool fm_weights_fused_name(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config);

/* True where it is an array of struct fm_layer as it is. */
bool fm_weights_is_field(const struct fm_weight *w);

/* True where no tool computes with the tensor. */
bool fm_weights_is_carried(const struct fm_weight *w);

/* True where the tensor holds channels of experts: of one, or of all of a layer. */
bool fm_weights_is_expert(const struct fm_weight *w);

/* Has the row a tensor for each expert under that naming, where it has any? */
bool fm_weights_per_expert(const struct fm_weight *w, enum fm_naming naming);

/* Shape of the row's tensor in layer l, whose experts have `channels` caps together; its number of
 * dimensions. */
int fm_weights_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_config *config,
                     const struct fm_weight *w, int l, uint64_t channels);

/* "(14336, 4096)" */
void fm_weights_print_shape(char *text, size_t size, const uint64_t *shape, int dims);

/* Elements of the row's tensor in layer l, whose experts have `channels` caps together. */
uint64_t fm_weights_count(const struct fm_config *config, const struct fm_weight *w, int l,
                          uint64_t channels);

/*
 * FM_EFORMAT unless the tensor of layer l has the row's shape; `channels` is the sum of the
 * layer's caps.  FM_ECONFIG with advice unless its dtype is BF16, F16 or F32, or that of the codes
 * of the config's storage.
 */
int fm_weights_check(const struct fm_config *config, const struct fm_weight *w,
                     const struct fm_tensor *t, int l, uint64_t channels, struct fm_err *err);

#endif
