/*
 * This room, lib/model: where the weights of a model lie, and how a layer of them comes into
 * memory.  It knows files, by way of lib/family's tables, and no operation: it computes nothing.
 * In reading order: this header, source and stored (where a weight is on disk), model.c with
 * loading.c, prefetch.c and slots.c (opening, reading, memory), ignored (what config.json says of
 * codes), packed and interleave (what a bundle has, and its order), checkpoint and weightsum (for
 * stages that move or know a checkpoint by its bytes).
 *
 * A model that is open: its sizes (lib/block/block.h), and its weights, layer by layer.
 *
 * Weights live in float32 in the online layout (kernels/ops/kernels.h) whatever the file holds; but
 * what the products of the table in use would round to bfloat16 is that in memory: projections and
 * the LM head, and the matrices of experts, MLPs and the embedding where they are that on disk. One
 * layer is resident at a time, and the system is asked to have the next one ready; where all of
 * them fit into --memory they stay.
 *
 * A model is opened from
 *   - a checkpoint directory with stock names (original channel order, or ranked
 *     by a permutation given with fm_model_rank),
 *   - a bundle, or a `native` or `ragged` export (already ranked, maybe clipped).
 * The rest of the suite does not see which.
 */
#ifndef FM_MODEL_H
#define FM_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/tensor/hfdir.h"
#include "kernels/ops/kernels.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "lib/model/weightsum.h"

struct fm_model;

/*
 * Open a checkpoint directory, a native or ragged export, or a bundle file (told apart by what
 * is there).  Headers only; no weight is read.  `memory` bytes decide how many layers stay.
 * Errors name the file and the tensor.
 */
int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err);
/* The same of a checkpoint or ragged export whose directory is open already, so that all that is
 * said of it comes from one opening.  Borrows dir until close. */
int fm_model_open_dir(struct fm_model **model, const struct fm_hfdir *dir, uint64_t memory,
                      struct fm_err *err);
void fm_model_close(struct fm_model *model); /* NULL is fine */

const struct fm_config *fm_model_config(const struct fm_model *model);

/* Tensors of no decoder layer that lie where it was opened. */
const struct fm_extra *fm_model_extra(const struct fm_model *model);

/* Dtype of the expert weights on disk: what merged weights are rounded to.  Of a storage of codes,
 * what their values are written as. */
enum fm_dtype fm_model_dtype(const struct fm_model *model);

/* Bytes that one direction of one sweep reads where no layer stays, and those outside the layers.
 */
void fm_model_read_bytes(const struct fm_model *model, uint64_t *layers, uint64_t *nonlayer);

/* Bytes of all tensors as they are stored, and as bundles and exports have them. */
void fm_model_bytes(const struct fm_model *model, uint64_t *stored, uint64_t *written);

/* Channels each expert has on disk, (M, E); I everywhere in a full model. Borrowed. */
const uint32_t *fm_model_caps(const struct fm_model *model);

/* Read experts in ranked order from now on: channel j in memory is channel order[(l E + e) I + j]
 * of the file.  Borrows `order` (M, E, I), checked to be permutations by the caller; NULL: the
 * file's order again.  For stock checkpoints alone: all others are ranked already. */
void fm_model_rank(struct fm_model *model, const int32_t *order);

/* `ops` convert the weights from now on, to the type its products take; weights in memory that have
 * another type are read again.  How many layers stay follows.  Borrows ops. */
void fm_model_use(struct fm_model *model, const struct fm_ops *ops);

/* Embedding, last norm, LM head: read at the first call, resident until close.  FM_ESAVED where the
 * calling thread's run is to end (fm_pool_heed), as fm_model_layer. */
int fm_model_nonlayer(struct fm_model *model, const struct fm_nonlayer **nonlayer,
                      struct fm_err *err);

/*
 * Layer l, resident until the next call of fm_model_layer; the system is asked to have `next` (or
 * -1) ready.  FM_EFORMAT names the tensor that holds NaN or Inf.
 */
int fm_model_layer(struct fm_model *model, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err);

/*
 * Weights that are stored as codes (lib/block/storage.h) have their exact values in float32; a
 * bundle keeps them in fm_model_dtype, or keeps the codes.  From now on they are read as they will
 * be there: all of them, or all but the experts', for merging an adapter into those and rounding
 * afterwards.  Plain weights are the same in any case.  What a caller has of weights is gone.
 */
enum fm_model_rounding { FM_MODEL_EXACT, FM_MODEL_ROUND_ALL, FM_MODEL_ROUND_REST };
void fm_model_round(struct fm_model *model, enum fm_model_rounding rounding);

/* Will the bundle keep the codes?  Then FM_MODEL_ROUND_ALL rounds nothing.  At first that is so of
 * a bundle that has codes, and not of a checkpoint. */
void fm_model_keep_codes(struct fm_model *model, bool keep);

/* Every layer and the nonlayer, as they are read, must have these sums (lib/model/weightsum.h),
 * else reading ends with FM_ECONFIG.  Borrows wanted. */
void fm_model_want(struct fm_model *model, const struct fm_weightsum *wanted);

/* The sums of the checkpoint; what was not read so far is read, until *stop (NULL: no stop) is not
 * 0: then FM_ESAVED. */
int fm_model_sums(struct fm_model *model, struct fm_weightsum *sums, const atomic_int *stop,
                  struct fm_err *err);
/* The sums of the checkpoint in `dir`, which is read once, layer by layer. */
int fm_model_sums_of(struct fm_weightsum *sums, const struct fm_hfdir *dir, const atomic_int *stop,
                     struct fm_err *err);

/* Bytes that one resident layer takes; and that the model holds once a sweep went through it: the
 * nonlayer, the layers that stay, the slot of the others and what is on its way into it. */
uint64_t fm_model_layer_bytes(const struct fm_model *model);
uint64_t fm_model_resident_bytes(const struct fm_model *model);

#endif
