/*
 * This room, lib/model: where the weights of a model are stored, and how they are read into memory,
 * layer by layer.  It finds tensors in files by lib/family's tables, and does not compute.  In
 * reading order: this header, source and stored (where a weight is on disk), reading (its bytes,
 * and digests of them), packed (the tensors of a bundle, and where channels are in them and in
 * files), model.c with loading.c (opening, memory, conversion), checkpoint (for stages that copy a
 * checkpoint's bytes).
 *
 * Opening a model gives its sizes (struct fm_config); weights are read when they are needed.
 *
 * Weights are float32 in the online layout (kernels/ops/kernels.h) whatever the file holds.  But
 * matrices whose products would round them to bfloat16 are bfloat16 in memory: projections and the
 * LM head always; the matrices of experts and MLPs if bfloat16 represents their stored values
 * exactly; the embedding if it is bfloat16 on disk.  As many layers as fit into --memory stay in
 * memory; the others share one slot, and the next one is prefetched while a layer is computed.
 *
 * A model is opened from
 *   - a checkpoint directory with stock names (original channel order, or ranked
 *     by a permutation given with fm_model_rank),
 *   - a bundle, or a `native`, `ragged`, `elastic` or `layer` export (already
 *     ranked, possibly with narrower experts).
 * The rest of the suite need not distinguish these.
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
#include "lib/model/packed.h"
#include "lib/model/reading.h"

struct fm_model;
struct fm_quantiser;

/*
 * Open a bundle, which is a regular file, or the directory of a checkpoint or an export.  Reads
 * only headers, no weights.  As many layers stay in memory as fit into `memory` bytes.  Errors name
 * the file and the tensor.
 */
int fm_model_open(struct fm_model **model, const char *path, uint64_t memory, struct fm_err *err);
/* Open a checkpoint or an export in Hugging Face format whose directory is already open, so that
 * all information about it comes from the same files.  Borrows dir until close. */
int fm_model_open_dir(struct fm_model **model, const struct fm_hfdir *dir, uint64_t memory,
                      struct fm_err *err);

/*
 * Open a checkpoint as fm_model_open_dir does, with its layer for multi-token prediction in the
 * place of fm_extra_twin_layer, and likewise the last norm, head and embedding that it has.  To be
 * called for a directory that fm_model_open_dir accepts and whose layer fm_extra_can_draft allows.
 * FM_EFORMAT if a tensor is missing or has another shape, also those of struct fm_model_joint;
 * FM_ECONFIG if one of these has a dtype that weights cannot have.
 */
int fm_model_open_draft(struct fm_model **model, const struct fm_hfdir *dir, struct fm_err *err);

/* The tensors that combine the next token's embedding with the decoder's output; `proj` has the
 * operand type of the model's ops. */
struct fm_model_joint {
    float *enorm, *hnorm; /* (H) */
    struct fm_in proj;    /* (H, 2 H) */
    void *owned;
};

/* Read them for a model of fm_model_open_draft; release takes a zeroed struct too.  FM_EFORMAT if
 * a value is not finite. */
int fm_model_joint(struct fm_model_joint *joint, const struct fm_model *model, struct fm_err *err);
void fm_model_joint_release(struct fm_model_joint *joint);
uint64_t fm_model_joint_bytes(const struct fm_config *config);
void fm_model_close(struct fm_model *model); /* NULL is fine */

const struct fm_config *fm_model_config(const struct fm_model *model);

/* Extra tensors (lib/family/extra.h) in the files of the model. */
const struct fm_extra *fm_model_extra(const struct fm_model *model);

/* Dtype of the expert weights on disk, to which merged weights are rounded; for codes, the dtype in
 * which their values are written. */
enum fm_dtype fm_model_dtype(const struct fm_model *model);

/* Bytes on disk of the decoder layers [begin, end), and of the tensors outside the layers. */
uint64_t fm_model_layers_bytes(const struct fm_model *model, int begin, int end);
uint64_t fm_model_nonlayer_bytes(const struct fm_model *model);

/* Bytes of all tensors as they are stored, and as bundles and exports store them. */
void fm_model_bytes(const struct fm_model *model, uint64_t *stored, uint64_t *written);

/* Channels that each expert has on disk, (M, E); I for all experts of a full model, 0 for those
 * that are removed.  Borrowed. */
const uint32_t *fm_model_caps(const struct fm_model *model);

/* Read experts in ranked order from now on: in the m-th layer with experts, channel j of expert e
 * in memory is channel order[(m E + e) I + j] of the file.  Borrows `order` (M, E, I), which the
 * caller has checked to be permutations; NULL restores the file's order.  Only for stock
 * checkpoints: all others are already ranked. */
void fm_model_rank(struct fm_model *model, const int32_t *order);

/* From now on convert weights with `ops`, to the operand type of its products.  Weights in memory
 * that have a different type are read again, and the number of resident layers is recomputed.
 * Borrows ops. */
void fm_model_use(struct fm_model *model, const struct fm_ops *ops);

/* The ops of the last fm_model_use. */
const struct fm_ops *fm_model_ops(const struct fm_model *model);

/* From now on keep as many layers in memory as fit into `memory` bytes.  Weights in memory are
 * freed, and read again when they are needed. */
void fm_model_limit(struct fm_model *model, uint64_t memory);

/* Embedding, last norm, LM head: read at the first call and kept in memory.  FM_ESAVED if the
 * calling thread's run was asked to stop (fm_pool_heed), as in fm_model_layer. */
int fm_model_nonlayer(struct fm_model *model, const struct fm_nonlayer **nonlayer,
                      struct fm_err *err);

/*
 * Layer l, resident until the next call of fm_model_layer; layer `next` (-1: none) is prefetched.
 * FM_EFORMAT, naming the tensor, if it holds NaN or Inf.
 */
int fm_model_layer(struct fm_model *model, int l, int next, const struct fm_layer **layer,
                   struct fm_err *err);

/*
 * By default, weights that are stored as codes (formats/quant/quant.h) are read with their exact
 * values.  A bundle stores them as fm_model_dtype, or keeps the codes.  From now on, read them as
 * the bundle will store them: all weights (FM_MODEL_ROUND_ALL), or all but the experts', which are
 * rounded only after an adapter has been merged into them.  Unquantised weights are not changed.
 * Pointers to weights become invalid.
 */
enum fm_model_rounding { FM_MODEL_EXACT, FM_MODEL_ROUND_ALL, FM_MODEL_ROUND_REST };
void fm_model_round(struct fm_model *model, enum fm_model_rounding rounding);

/* The forms in which a bundle can keep the experts of a model that has codes, as fm_packed_see
 * finds them; false, with the reason in `why`, if it cannot. */
bool fm_model_forms(struct fm_packed_layers *layers, const struct fm_model *model,
                    char why[FM_PACKED_WHY]);

/* Whether a bundle can keep the codes if channels are removed in groups of that size; false for
 * unquantised weights. */
bool fm_model_can_keep(const struct fm_model *model, int group);

/* Set whether the bundle will keep the codes; if so, FM_MODEL_ROUND_ALL rounds nothing.  The
 * default is true for a bundle or an export of codes, and false for a checkpoint. */
void fm_model_keep_codes(struct fm_model *model, bool keep);

/* From now on read a bundle as an export of these widths (M, E) is read: only the first channels of
 * each expert and, unless `quantiser` is NULL, rounded to that format, in the form `rounded`; where
 * FM_MODEL_ROUND_ALL is asked for, `all` is done.  Weights in memory are freed.  Borrows quantiser;
 * copies widths and rounded. */
void fm_model_narrow(struct fm_model *model, const uint32_t *widths, enum fm_model_rounding all,
                     const struct fm_quantiser *quantiser, const struct fm_packed *rounded);

/* Dtype in which bundles store the tensor of decoder layer l at an offset in struct fm_layer;
 * the layer must have that tensor. */
enum fm_dtype fm_model_stored(const struct fm_model *model, int l, size_t field);

/* Compare the sums (lib/model/reading.h) of the weights with `wanted` when they are read;
 * FM_ECONFIG if they differ.  Borrows wanted. */
void fm_model_want(struct fm_model *model, const struct fm_reading_sums *wanted);

/* The sums of the checkpoint.  Layers not yet read are read now; FM_ESAVED once *stop (NULL: never)
 * is nonzero. */
int fm_model_sums(struct fm_model *model, struct fm_reading_sums *sums, const atomic_int *stop,
                  struct fm_err *err);

/* Bytes of the largest layer in memory; and an upper bound of the bytes that the model holds after
 * a sweep: the weights outside the layers, the resident layers, the shared slot, and the buffers
 * for reading into it. */
uint64_t fm_model_layer_bytes(const struct fm_model *model);
uint64_t fm_model_resident_bytes(const struct fm_model *model);
/* Number of layers that stay in memory once they are read. */
int fm_model_pinned(const struct fm_model *model);

#endif
