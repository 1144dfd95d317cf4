/*
 * Extra tensors of a checkpoint, which the decoder does not use: layers for multi-token prediction,
 * which predict the token after the next one, and parts of a multimodal model for images and the
 * like.  No tool computes with them, except that fm-rank --keep-extra ranks the experts of a layer
 * for multi-token prediction; they are not masked or trained, and contribute to no loss of the
 * model.  A bundle keeps them byte for byte as they are stored; exports leave them out unless
 * --keep-extra is given.
 *
 * A family defines their names; whether a tensor is extra follows from its name and the number of
 * decoder layers, not from the number of extra layers in config.json.  If the model is the text
 * part of a wrapper, so is every tensor outside the modules that the family's table has.  Sparse
 * indexers are refused, except in families whose attention is the same without them up to the
 * supported sequence length (FM_PART_CARRIED).
 */
#ifndef FM_EXTRA_H
#define FM_EXTRA_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/block/block.h"

/* Limit on a model's layers for multi-token prediction. */
#define FM_EXTRA_LAYERS_MAX 16

/* The index of tensors of a wrapper's other parts whose names are in no family's list. */
#define FM_EXTRA_PARTS FM_EXTRA_LAYERS_MAX

/* The tensors of a layer for multi-token prediction, as patterns with {x}.  Its decoder layer is
 * one with experts and full attention, and it computes (fm_extra_twin_layer says which)
 *
 *     y = layer(proj [norm(embed[next token]; enorm), norm(norm(h; the model's); hnorm)])
 *
 * from the last boundary h of the decoder; norm and head give its prediction of the token after the
 * next one. */
struct fm_extra_draft {
    const char *block;               /* prefix of the decoder layer's tensors */
    const char *enorm, *hnorm;       /* (H) */
    const char *proj;                /* (H, 2 H) */
    const char *norm, *head, *embed; /* used instead of the model's; head and embed may be missing
                                        in a checkpoint, or NULL: then they are the model's */
};

/* Extra tensors of a family; lists end with NULL. */
struct fm_extra_form {
    const char *const *name; /* prefixes of their names; {x} is the layer's number; without {x} it
                                is the prefix's index in this list */
    unsigned parts;   /* bit i: name i is of another part of the model, not of such a layer */
    const char *mark; /* the tensor that every such layer has and no decoder layer has; NULL: names
                         suffice */
    bool after;       /* layer numbers continue from num_hidden_layers; else they start at 0 */
    const char *const
        *count; /* keys of config.json for the number of layers, the usual one first; NULL: none */
    const char *flag;        /* key that says whether there are such layers; NULL: none */
    const char *const *list; /* keys of lists with an entry for every decoder layer, which may have
                                others for such layers; NULL: none */
    const char *const *object;          /* keys of objects that describe other parts; NULL: none */
    const struct fm_extra_draft *draft; /* how layer 0 of them is computed; NULL: it is not */
};

/* Names of layers that are numbered after the last decoder layer.  They are recognised by the
 * projection that combines two tokens. */
#define FM_EXTRA_AFTER "model.layers.{x}."
#define FM_EXTRA_AFTER_MARK FM_EXTRA_AFTER "eh_proj.weight"

/* Layers after the last decoder layer, as in DeepSeek-V3 and similar families; the macros have what
 * Hy3 has in common with them. */
#define FM_EXTRA_NEXTN_DRAFT                                                                       \
    .block = FM_EXTRA_AFTER, .enorm = FM_EXTRA_AFTER "enorm.weight",                               \
    .hnorm = FM_EXTRA_AFTER "hnorm.weight", .proj = FM_EXTRA_AFTER_MARK
#define FM_EXTRA_NEXTN_FORM                                                                        \
    .name = fm_extra_nextn_names, .mark = FM_EXTRA_AFTER_MARK, .after = true,                      \
    .count = fm_extra_nextn_counts
extern const char *const fm_extra_nextn_names[], *const fm_extra_nextn_counts[];
extern const struct fm_extra_form fm_extra_nextn;

/* One layer with names of its own, as in Qwen3-Next and Qwen3.5. */
extern const struct fm_extra_draft fm_extra_mtp_draft;

/* One set of layers, whose number is in no key of config.json, as in Qwen3-Next. */
extern const struct fm_extra_form fm_extra_mtp;

/* Counts of a model's extra tensors. */
struct fm_extra {
    const struct fm_extra_form *form; /* the family's, if there are any */
    uint64_t tensors, bytes;
    int first;             /* number of the first extra layer in tensor names */
    unsigned seen, marked; /* bit i: layer i has a tensor; layer i has the mark; FM_EXTRA_PARTS:
                              there are other parts, which need no mark */
    bool experts;          /* a layer for multi-token prediction has experts */
};

/* Set config->extra_layers, the number in config.json.  FM_ECONFIG beyond the limit. */
int fm_extra_read(struct fm_config *config, const struct fm_keys *keys, struct fm_err *err);

/* Index of the layer that has the tensor of that name, from 0, or FM_EXTRA_PARTS; -1: none. */
int fm_extra_layer(const struct fm_config *config, const char *name);

/* The decoder layer whose blocks and sizes a layer for multi-token prediction has: the last one
 * with experts and full attention. */
int fm_extra_twin_layer(const struct fm_config *config);

/* The number in names of a layer for multi-token prediction that is computed: the first. */
int fm_extra_number(const struct fm_config *config);

/* Whether an extra tensor is used in place of a tensor of the decoder: of that layer, or the last
 * norm, the head or the embedding.  Then `twin` is that tensor's name. */
bool fm_extra_twin(char twin[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                   const char *name);

/* The reverse, for a tensor of that layer: the extra tensor's name. */
const char *fm_extra_of_twin(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                             const char *twin);

/* Whether the extra tensors are one layer for multi-token prediction, which can be computed.
 * FM_ECONFIG, with the reason, if they are not. */
int fm_extra_can_draft(const struct fm_extra *extra, const struct fm_config *config,
                       struct fm_err *err);

/* Count the tensor; false if it is not extra. */
bool fm_extra_add(struct fm_extra *extra, const struct fm_config *config,
                  const struct fm_tensor *tensor);

/* Call after all tensors have been counted.  FM_EFORMAT if a layer lacks its mark, because it may
 * be a decoder layer that config.json does not count. */
int fm_extra_check(const struct fm_extra *extra, const struct fm_config *config,
                   struct fm_err *err);

/* Number of layers that have a tensor. */
int fm_extra_layers(const struct fm_extra *extra);

/* Whether there are tensors of FM_EXTRA_PARTS. */
bool fm_extra_parts(const struct fm_extra *extra);

/* Whether there are tensors of other parts of the model, under any names. */
bool fm_extra_others(const struct fm_extra *extra);

/* Index, from 0, of the layer with that number in names; -1 if there can be no such layer. */
int fm_extra_index(const struct fm_config *config, int64_t number);

/* Whether extra tensors are identified by prefixes of names instead of layer numbers, or only
 * belong to other parts.  Such tensors need not belong to layers. */
bool fm_extra_named(const struct fm_extra *extra);

/* Write the numbers of the extra layers ("46", "61, 62"), or the prefixes of their names and
 * "others" for FM_EXTRA_PARTS ("mtp., model.visual."); "" if there are only such parts. */
#define FM_EXTRA_TEXT 128
void fm_extra_print(char text[FM_EXTRA_TEXT], const struct fm_extra *extra);

/* If there are extra tensors, add a key to an object: "extra": {"layers": [46], "tensors",
 * "bytes"}, and "parts": true for those of FM_EXTRA_PARTS. */
void fm_extra_json(cJSON *object, const struct fm_extra *extra);

/* A sentence for the user if the number of extra layers in config.json is not the
 * checkpoint's; else "". */
#define FM_EXTRA_NOTE 128
void fm_extra_note(char text[FM_EXTRA_NOTE], const struct fm_extra *extra,
                   const struct fm_config *config);

/* FM_ECONFIG for a tensor of a sparse indexer, by name, in a family that does not support one. */
int fm_extra_refuse(const struct fm_config *config, const char *name, struct fm_err *err);

#endif
