/*
 * The architecture in one page: what a mixture-of-experts decoder is made of,
 * and where its weights come from.
 *
 * Weights live in float32 in the online layout (kernels/kernels.h) whatever the
 * file holds.  One layer is resident at a time, the next is read ahead; where
 * --memory has room for all of them they stay.  A model is opened from
 *   - a checkpoint directory with stock names (original channel order, or ranked
 *     by a permutation given with fm_model_rank),
 *   - a bundle, or a `native` or `ragged` export (already ranked, maybe clipped).
 * The rest of the suite does not see which.
 */
#ifndef FM_MODEL_H
#define FM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"

/* A family: one row of the table in lib/config.c, one table of tensors in lib/weights.c. */
struct fm_model_family;

struct fm_config {
    const struct fm_model_family *family;
    int L;          /* decoder layers, every one a mixture of experts */
    int H, Q, G, C; /* hidden, query heads, key/value heads, head width */
    int E, K, I;    /* experts, chosen per token, channels of an expert */
    int V;          /* vocabulary */
    int T_max;      /* max_position_embeddings */
    int window;     /* sliding window, 0: none */
    float eps;      /* of every norm */
    double rope_theta;
    bool tied; /* lm_head is the embedding */
};

/*
 * Parse and check config.json (text, size bytes, not NUL-terminated).  Every number is
 * checked against a named limit; keys of transformers 4 and 5 are both read.
 * FM_EFORMAT for broken JSON, FM_ECONFIG for a model that is not supported, by name.
 */
int fm_config_parse(struct fm_config *config, const char *text, size_t size, struct fm_err *err);

/* "mixtral": config.json's model_type. */
const char *fm_config_family(const struct fm_config *config);

/* Parameters of the whole model at these widths ((L, E), NULL: full), and those active for one
 * token when experts are chosen evenly (mean width times K per layer). */
uint64_t fm_config_params(const struct fm_config *config, const uint32_t *widths);
uint64_t fm_config_params_active(const struct fm_config *config, const uint32_t *widths);

/* One decoder layer in memory.  Expert e has cap[e] channels (I in a full model):
 * gate_up rows [2 row0[e], 2 (row0[e] + cap[e])), down rows [row0[e], row0[e] + cap[e]). */
struct fm_layer {
    float *input_norm;    /* (H) */
    float *q, *k, *v, *o; /* (Q C, H), (G C, H), (G C, H), (H, Q C) */
    float *post_norm;     /* (H) */
    float *router;        /* (E, H) */
    float *gate_up;       /* (2 sum cap, H) */
    float *down;          /* (sum cap, H) */
    int64_t *row0;        /* (E) */
    int *cap;             /* (E) */
};

/* What lies outside the layers. */
struct fm_ends {
    float *embed; /* (V, H) */
    float *norm;  /* (H) */
    float *head;  /* (V, H); the same block as embed where tied */
};

struct fm_model;

/*
 * Open a checkpoint directory, a native or ragged export, or a bundle file (told apart by what
 * is there).  Headers only; no weight is read.  `memory` bytes decide how many layers stay.
 * Errors name the file and the tensor.
 */
int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err);
void fm_model_close(struct fm_model *model); /* NULL is fine */

const struct fm_config *fm_model_config(const struct fm_model *model);

/* Dtype of the expert weights on disk: what merged weights are rounded to. */
enum fm_dtype fm_model_dtype(const struct fm_model *model);

/* Channels each expert has on disk, (L, E); I everywhere in a full model. Borrowed. */
const uint32_t *fm_model_caps(const struct fm_model *model);

/* Tensors of the files that the model does not use (old buffers, heads of other tasks): fm-pack
 * carries them.  *names and their texts live as long as the model. */
size_t fm_model_unknown(const struct fm_model *model, const char *const **names);

/* Read experts in ranked order from now on: channel j in memory is channel order[(l E + e) I + j]
 * of the file.  Borrows `order` (L, E, I), checked to be permutations by the caller; NULL: the
 * file's order again.  For stock checkpoints alone: all others are ranked already. */
void fm_model_rank(struct fm_model *model, const int32_t *order);

/* Embedding, last norm, head: read at the first call, resident until close. */
int fm_model_ends(struct fm_model *model, const struct fm_ends **ends, struct fm_err *err);

/*
 * Layer l, resident until the next call of fm_model_layer; `next` (or -1) is read ahead by a
 * thread of its own.  FM_EFORMAT names the tensor that holds NaN or Inf.
 */
int fm_model_layer(struct fm_model *model, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err);

/* Bytes that one resident layer takes; and that the model holds once a sweep went through it: the
 * ends, the layers that stay, the slot of the others and what is read ahead for it. */
uint64_t fm_model_layer_bytes(const struct fm_model *model);
uint64_t fm_model_resident_bytes(const struct fm_model *model);

#endif
