/*
 * This room, lib/family: for each family of models, the keys of its sizes in config.json, the names
 * of its tensors in each kind of directory, and its blocks (lib/block/block.h).  A family is one
 * file in lib/family/models and one row of the list below; fm-hacking(7) describes how to add one.
 *
 * In reading order after this header and families.c: parse.c (config.json to sizes), decoder.h
 * (names that nearly all families share) and weights.c (the tables), extra (tensors that the
 * decoder does not use).
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
    const char *name;  /* model_type */
    const char *alias; /* a second model_type, accepted if `architectures` still names class_name
                          with ForCausalLM appended; NULL: none */
    const char *class_name; /* "Mixtral": prefix of classes in transformers 5; our class names add
                               Fm before it */
    const char *width_key;  /* key of the experts' width */
    const char *width_twin; /* a second key for that width, read by other programs, which is in
                               `same` too; NULL: none */
    const char *experts_key,
        *chosen_key;        /* keys of E and K, read before num_experts, num_local_experts and
                               num_experts_per_tok; NULL: none */
    const char *shared_key; /* key of the shared expert's width in multiples of an expert's; NULL:
                               the width has its own key, or there is no shared expert */
    /* Give keys of config.json that this family spells in its own way the names and forms that are
     * read here and by its blocks, before any is read; NULL: none. */
    int (*respell)(cJSON *json, struct fm_err *err);
    /* Set which layers have experts (all are in config->moe when it is called), and the widths of
     * the other MLPs; NULL: every layer has experts and no other MLP. */
    int (*read_layers)(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);
    const void *layers_options; /* for read_layers, or NULL */
    /* The family's blocks, and their options: a struct of the block's header, or NULL. */
    const struct fm_attention *attention;
    const struct fm_router *router;
    const struct fm_expert_form *expert;
    const struct fm_norm *norm;
    const void *attention_options, *router_options;
    bool indexed;      /* has a sparse indexer, which selects the keys that a query attends to; the
                          attention block sets the length up to which it selects all keys, and the
                          tensors of the indexer are copied unchanged */
    bool wrapper_form; /* multimodal checkpoints store the text part in a different form from the
                          one that the text class saves: with "language_model." before names, and
                          the rows with FM_EACH instead of those with FM_FUSED.  config.json
                          of that form has FM_HFTEXT_WRAPPER (formats/tensor/hftext.h) */
    bool saved_fused;  /* a family whose checkpoints have experts either separate or fused is
                          exported fused, because transformers saves and servers read only that */
    unsigned output_norms; /* bits of enum fm_output_norms */
    bool head_bias;        /* lm_head_bias is supported */
    bool tied;             /* default of tie_word_embeddings */
    const char *tied_key;  /* key preferred to tie_word_embeddings if present; NULL: none */
    double eps;            /* default of the epsilon of norms */
    const char *eps_key;   /* its key; NULL: rms_norm_eps */
    int positions;
    const struct fm_keys_only
        *only;          /* keys of config.json for which only one value is supported; NULL: none */
    const char *same;   /* groups of keys with one meaning (fm_keys_same), in addition to those of
                           all families (parse.c); NULL: none */
    const char *needed; /* keys that config.json must have ("one two"), because transformers would
                           use its own defaults if they are missing or null; NULL: none */
    const char *keys;   /* other keys of config.json ("one two") that its class in transformers,
                           servers or published checkpoints use, except those of every family
                           (fm_families_knows) and those in other fields of this row */
    const struct fm_weight *weight;    /* table of its tensors; ends with a row without names */
    const struct fm_extra_form *extra; /* extra tensors; NULL: none */
    const char *served_as;    /* the architecture that servers use, if they do not accept class_name
                                 followed by ForCausalLM; NULL: they do */
    const char *fused_format; /* format of `--weights` that servers read for fused experts; NULL:
                                 none */
};

/* The list of families: one row each, for the struct fm_NAME in the family's file.  Messages list
 * them in this order. */
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
    ROW(laguna)             \
    ROW(step3p5)            \
    ROW(mimo_v2_flash)      \
    ROW(mimo_v2)            \
    ROW(minimax_m2)         \
    ROW(minimax_m3)         \
    ROW(ernie4_5_moe)       \
    ROW(deepseek_v2)        \
    ROW(deepseek_v3)        \
    ROW(glm4_moe_lite)      \
    ROW(deepseek_v32)       \
    ROW(glm_moe_dsa)        \
    ROW(axk1)               \
    ROW(mistral4)           \
    ROW(gemma4)             \
    ROW(gpt_oss)            \
    ROW(lfm2_moe)           \
    ROW(granitemoe)         \
    ROW(granitemoeshared)   \
    ROW(qwen3_next)         \
    ROW(qwen3_5_moe)
/* clang-format on */

#define FM_FAMILY_DECLARE(name) extern const struct fm_model_family fm_##name;
FM_FAMILY_ROWS(FM_FAMILY_DECLARE)

/* Find a family by name or alias, or NULL. */
const struct fm_model_family *fm_families_find(const char *name);
/* Whether the key may occur in a config.json of this family, and does not make programs load code.
 */
bool fm_families_knows(const struct fm_model_family *family, const char *key);
/* Whether the family's checkpoints have the experts of a layer in one tensor. */
bool fm_families_fused(const struct fm_model_family *family);
/* Key in config.json of an export with our modelling file and codes: an object that has the
 * checkpoint's quantization_config among its keys. */
#define FM_CODES_KEY "fm_codes"
/*
 * Set config's storage from the quantization_config in `json`, which is a whole config.json or the
 * object at FM_CODES_KEY.  Without a quantization_config the storage is unchanged.  config's family
 * must be set.  FM_ECONFIG for weights that are neither numbers of a supported dtype nor in a
 * supported storage: GPTQ, AWQ and the like.
 */
int fm_families_storage(struct fm_config *config, const cJSON *json, struct fm_err *err);
/* Write the names of all families: "mixtral, qwen2_moe, ...". */
void fm_families_list(char *text, size_t size);

/*
 * Parse and check config.json (text, size bytes, not NUL-terminated).  Every number is checked
 * against a named limit; keys of transformers 4 and 5 are both read.  FM_EFORMAT for broken JSON;
 * FM_ECONFIG, naming the key or family, for a model that is not supported.  The caller releases
 * *config (fm_config_release); after an error it is zeroed.
 */
int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err);

/* "mixtral": the family's name or its alias, whichever model_type in config.json gives. */
const char *fm_config_family(const struct fm_config *config);

/* Parameters of the whole model at these widths ((M, E), NULL: full), and those active for one
 * token if experts are chosen evenly (mean width times K per layer). */
uint64_t fm_config_params(const struct fm_config *config, const uint32_t *widths);
uint64_t fm_config_params_active(const struct fm_config *config, const uint32_t *widths);

/* False for the row that ends a table. */
static inline bool fm_weights_more(const struct fm_weight *w)
{
    return w->name[FM_NAMING_STOCK] || w->name[FM_NAMING_ONLINE] || w->name[FM_NAMING_RAGGED];
}

#define FM_WEIGHT_NAME_BYTES 160

/* The name of a row of the table for layer l and expert e (if the pattern has them). */
void fm_weights_name(char name[FM_WEIGHT_NAME_BYTES], const char *pattern, int l, int e);

/*
 * Names in exports: the first function gives the name of the table's row with that part, for layer
 * l and expert e; the second, the name of a checkpoint's tensor outside the experts (unchanged
 * unless the table has another name for exports).
 */
void fm_weights_name_of(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config,
                        enum fm_naming naming, enum fm_weight_part part, int l, int e);
void fm_weights_rename(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                       enum fm_naming naming, const char *stock);

/* Read a decimal number below `limit` without leading zeros and advance *name past it; false if
 * *name does not begin with one. */
bool fm_weights_number(int *value, const char **name, int limit);

/* Whether layer l (-1: outside the layers) of this model has the row's tensor. */
bool fm_weights_exists(const struct fm_config *config, const struct fm_weight *w, int l);

/* Whether the routers of this model add a bias to their logits. */
bool fm_weights_biased_router(const struct fm_config *config);

/* The row of the tensor `name` under that naming scheme, with its layer and expert (-1 if it has
 * none), both in the model's range; NULL if the model has no such tensor. */
const struct fm_weight *fm_weights_find(const struct fm_config *config, enum fm_naming naming,
                                        const char *name, int *l, int *e);

/* For a tensor that is in no table: whether it is of an expert or layer that config.json does not
 * have (experts.8 of 8, layers.-1, experts.007), so that config and weights do not match. */
bool fm_weights_is_stray(const struct fm_config *config, const char *name);

/* For a tensor that is in no table: whether the family has such a tensor, but according to
 * config.json layer *l of this model does not (a shared expert with n_shared_experts 0), so that
 * config and weights do not match. */
bool fm_weights_is_off(const struct fm_config *config, const char *name, int *l);

/* For a family whose checkpoints have experts either separate or fused: the name of a tensor of
 * layer l that only fused checkpoints have.  False for other families. */
bool fm_weights_fused_name(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config, int l);

/* Whether the tensor becomes a field of struct fm_layer with its elements in the same order. */
bool fm_weights_is_field(const struct fm_weight *w);

/* Whether no tool computes with the tensor. */
bool fm_weights_is_carried(const struct fm_weight *w);

/* Whether the tensor holds channels of experts: of one, or of all of a layer. */
bool fm_weights_is_expert(const struct fm_weight *w);

/* Whether the row is one tensor for each expert; that naming scheme must have the row. */
bool fm_weights_per_expert(const struct fm_weight *w, enum fm_naming naming);

/* Set the shape of the row's tensor in layer l, where `channels` is the sum of its experts' caps;
 * return its number of dimensions. */
int fm_weights_shape(uint64_t shape[FM_ST_DIMS_MAX], const struct fm_config *config,
                     const struct fm_weight *w, int l, uint64_t channels);

/* "(14336, 4096)" */
void fm_weights_print_shape(char *text, size_t size, const uint64_t *shape, int dims);

/* Elements of the row's tensor in layer l; 0 for the experts of a ragged export. */
uint64_t fm_weights_count(const struct fm_config *config, const struct fm_weight *w, int l);

/* FM_EFORMAT unless a tensor has that shape; `who` begins the reason, as in "config.json
 * requires". */
int fm_weights_check_shape(const struct fm_tensor *t, const uint64_t *want, int dims,
                           const char *who, struct fm_err *err);

/*
 * FM_EFORMAT unless the tensor of layer l has the row's shape; `channels` is the sum of the
 * layer's caps.  FM_ECONFIG with advice unless its dtype is BF16, F16 or F32, or that of the codes
 * of its module's storage, which may be NULL.
 */
int fm_weights_check(const struct fm_config *config, const struct fm_weight *w,
                     const struct fm_tensor *t, const struct fm_storage *storage, int l,
                     uint64_t channels, struct fm_err *err);

#endif
