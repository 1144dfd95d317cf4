/*
 * Tensors that come with a checkpoint and belong to no decoder layer of it: layers for multi-token
 * prediction, which guess the token behind the next one, and parts of a multimodal model that no
 * text meets.  No tool computes with them, so nothing
 * of them is ranked, masked or trained, and no loss counts theirs.  A bundle keeps them byte for
 * byte as they are stored, exports leave them out unless --keep-extra is given.
 *
 * A family says how its own are named; a tensor is one of them by its name alone, whatever number
 * of layers config.json speaks of.  Sparse indexers are refused but in families whose attention
 * without them is the same as far as sequences go (FM_PART_CARRIED).
 */
#ifndef FM_EXTRA_H
#define FM_EXTRA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"
#include "lib/block/block.h"

/* Layers for multi-token prediction of one model. */
#define FM_EXTRA_LAYERS_MAX 16

/* What a family says of them; lists end with NULL. */
struct fm_extra_form {
    const char *const *name;  /* how their names begin; {x} is the number of the layer,
                                 where that is not said, of the name in this list */
    const char *mark;         /* the one tensor that every such layer has and no decoder layer;
                                 NULL: names say enough */
    bool behind;              /* numbers go on from num_hidden_layers; else from 0 */
    const char *const *count; /* keys of config.json that say how many, the usual one first; NULL:
                                 none does */
    const char *flag;         /* key that says whether there are any; NULL: none */
};

/* Names of layers that are numbered on behind the last decoder layer; the product that joins what
 * is known of two tokens marks one. */
#define FM_EXTRA_BEHIND "model.layers.{x}."
#define FM_EXTRA_BEHIND_MARK FM_EXTRA_BEHIND "eh_proj.weight"

/* As DeepSeek-V3 has them, and those after its pattern: layers behind the last. */
extern const struct fm_extra_form fm_extra_nextn;

/* As Qwen3-Next has them, and those after it: one set, of which config.json says nothing. */
extern const struct fm_extra_form fm_extra_mtp;

/* Those of a model, counted. */
struct fm_extra {
    const struct fm_extra_form *form; /* the family's, where there are any */
    uint64_t tensors, bytes;
    int first;             /* the number of the 0th layer in names */
    unsigned seen, marked; /* bit i: the i-th layer has a tensor; has the mark */
};

/* config->extra_layers: how many config.json says there are.  FM_ECONFIG beyond the limit. */
int fm_extra_read(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* Which of the layers a tensor of that name is in, from 0; -1: in none. */
int fm_extra_layer(const struct fm_config *config, const char *name);

/* Count it; false where it is in none of them. */
bool fm_extra_add(struct fm_extra *extra, const struct fm_config *config,
                  const struct fm_tensor *tensor);

/* Once all are counted: FM_EFORMAT where a layer has not its mark, so that it may be a decoder
 * layer that config.json does not count. */
int fm_extra_check(const struct fm_extra *extra, const struct fm_config *config,
                   struct fm_err *err);

/* Layers that have a tensor. */
int fm_extra_layers(const struct fm_extra *extra);

/* Of a layer with that number in names, from 0; -1: there can be none. */
int fm_extra_index(const struct fm_config *config, int64_t number);

/* Are they told apart by names, so that they may be something else than layers? */
bool fm_extra_named(const struct fm_extra *extra);

/* "46", "61, 62": their numbers; "mtp., model.visual.": how their names begin. */
#define FM_EXTRA_TEXT 128
void fm_extra_print(char text[FM_EXTRA_TEXT], const struct fm_extra *extra);

/* Where there are any, a key of an object: "extra": {"layers": [46], "tensors", "bytes"}. */
void fm_extra_json(cJSON *object, const struct fm_extra *extra);

/* A sentence for the user where config.json says another number of layers than there are; else
 * text[0] is 0. */
#define FM_EXTRA_NOTE 128
void fm_extra_note(char text[FM_EXTRA_NOTE], const struct fm_extra *extra,
                   const struct fm_config *config);

/* FM_ECONFIG for a tensor of a sparse indexer, by name, in a family that has none. */
int fm_extra_refuse(const struct fm_config *config, const char *name, struct fm_err *err);

#endif
