/*
 * What distinguishes one family of models from another: how config.json spells its sizes,
 * and under which names its tensors lie in each kind of directory.  A further family is a row in
 * lib/config.c, a table in lib/weights.c, and the ops it needs.
 */
#ifndef FM_FAMILY_H
#define FM_FAMILY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/safetensors.h"
#include "lib/model.h"

/* Where a model's tensors come from. */
enum fm_source {
    FM_SOURCE_STOCK,  /* a checkpoint of the family, as transformers names it */
    FM_SOURCE_ONLINE, /* a bundle's weights/ members, or a native export */
    FM_SOURCE_RAGGED, /* a ragged export */
    FM_SOURCES
};

/* What a tensor becomes in memory. */
enum fm_weight_part {
    FM_PART_ENDS,    /* a field of struct fm_ends */
    FM_PART_LAYER,   /* a field of struct fm_layer */
    FM_PART_GATE,    /* (I, H) of one expert: the even rows of gate_up */
    FM_PART_UP,      /* (I, H): the odd rows */
    FM_PART_DOWN,    /* (H, I): transposed */
    FM_PART_GATE_UP, /* all experts of a layer, online layout */
    FM_PART_DOWN_T
};

/* One row of a family's table of tensors. */
struct fm_weight {
    const char *name[FM_SOURCES]; /* {l} and {e} stand for numbers; NULL: not in that source */
    enum fm_weight_part part;
    size_t field;  /* offsetof in struct fm_ends or fm_layer, for those two parts */
    char shape[4]; /* letters: V H E I, q = Q C, g = G C, S = 2 sum of caps, s = sum of caps */
    bool untied;   /* absent where the head is the embedding */
};

struct fm_model_family {
    const char *name;       /* model_type */
    const char *class_name; /* "Mixtral": class prefix in transformers 5; ours is Fm in front */
    const char *experts_key, *width_key;
    double rope_theta;              /* where config.json has none */
    const struct fm_weight *weight; /* ends with a row that has no names */
};

/* The tables of lib/weights.c. */
extern const struct fm_weight fm_weights_mixtral[];

/* False at the row that ends a table. */
static inline bool fm_weights_more(const struct fm_weight *w)
{
    return w->name[FM_SOURCE_STOCK] || w->name[FM_SOURCE_ONLINE] || w->name[FM_SOURCE_RAGGED];
}

#define FM_WEIGHT_NAME_BYTES 160

/* The name of a row of the table for layer l and expert e (where it has those). */
void fm_weights_name(char name[FM_WEIGHT_NAME_BYTES], const char *pattern, int l, int e);

/* The row that `name` is, in that kind of source, with its layer and expert (-1 where it has
 * none), both inside the model; NULL: none of this model's tensors. */
const struct fm_weight *fm_weights_find(const struct fm_config *config, enum fm_source source,
                                        const char *name, int *l, int *e);

/* True where the tensor of a stock checkpoint holds an expert's gate, up or down. */
bool fm_weights_is_expert(const struct fm_weight *w);

/*
 * FM_EFORMAT unless the tensor has the row's shape; `channels` is the sum of the layer's caps.
 * FM_ECONFIG with advice unless its dtype is BF16, F16 or F32.
 */
int fm_weights_check(const struct fm_config *config, const struct fm_weight *w,
                     const struct fm_tensor *t, uint64_t channels, struct fm_err *err);

#endif
