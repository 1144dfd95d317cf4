/*
 * This room, lib/stage: the meaning of the members of a stream.  To formats/bundle a member is a
 * name and bytes; here it is a ranking, a family of masks, an adapter or checksums, and everything
 * in it is checked before it is used.  In reading order: this header with stage.c and identity.c,
 * stbytes (small safetensors in memory), ranking, budgets, lorafile, volumes (weights and their
 * checksums); pack (the bundle).
 *
 * Functions that the stages of the pipeline share: every stage reads a stream (except fm-rank),
 * adds or replaces its own members, extends the history, and writes a stream.
 *
 *     struct fm_bundle in = {0};
 *     fm_stage_open(&in, run->inputs.stream, FM_MEMBER_RANKING, &err);
 *     fm_hfdir_open(&dir, run->inputs.model, &err);
 *     fm_stage_model_check(&in, &dir, &err);
 *     fm_ranking_open(&ranking, &in, &err);
 *     ...
 *     cJSON *manifest = fm_stage_manifest(FM_STAGE_TRAIN, &in, NULL, dropped);
 *     fm_provenance_tokens(fm_stage_history(manifest, "fm-train"), &calib);
 *     fm_budgets_pack(&family, &actions, config, fm_stage_tensor_bytes(&dir, config), dtype,
 *                     manifest, &frame, &size, &err);
 *     fm_stage_write(run, FM_STAGE_TRAIN, manifest, &in, NULL,
 *                    &(struct fm_stage_member){FM_MEMBER_MASKS, frame, size}, 1, &err);
 *
 * A stage that runs again replaces its members, and members that later stages made from them are
 * dropped.
 */
#ifndef FM_STAGE_H
#define FM_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/hfdir.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/masks/masks.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/*
 * Counts of the tensors outside the routed experts.  Their shapes follow from config.json, and most
 * have the dtype of the experts.  The manifest records the exceptions, other dtypes and tensors
 * that the model does not use, so that the bytes of a budget can be recomputed without the weights,
 * and a tensor that was added to a bundle later is detected: a reader compares the sums and needs
 * no list of tensors.
 */
struct fm_nonexpert {
    uint64_t elements[FM_DTYPES];          /* elements of the model's tensors, by their dtype in
                                              bundles */
    uint64_t unread_tensors, unread_bytes; /* tensors that the model does not use */
};

/*
 * Count a tensor outside the experts, inside a decoder layer or not, with its type, shape and size
 * in bundles.  FM_EFORMAT if its shape is not the model's, or its name is that of an expert's
 * tensor or of a layer's tensor that the model does not have.  `codes`: it is of a checkpoint, or
 * of a bundle of codes; codes count as their values, and what belongs to them and tensors of
 * experts do not count.
 */
int fm_nonexpert_add(struct fm_nonexpert *nonexpert, const struct fm_config *config,
                     const struct fm_tensor *tensor, bool codes, struct fm_err *err);

/* Elements of the model's tensors outside the experts, by its config; bytes of all counted ones. */
uint64_t fm_nonexpert_elements(const struct fm_config *config);
uint64_t fm_nonexpert_bytes(const struct fm_nonexpert *nonexpert);
bool fm_nonexpert_equal(const struct fm_nonexpert *a, const struct fm_nonexpert *b);

enum fm_stage { FM_STAGE_RANK, FM_STAGE_TRAIN, FM_STAGE_RECOVER, FM_STAGE_PACK };

#define FM_STAGE_DROPPED_BYTES 256

/* The facts about the model that all stages share, from the manifest. */
struct fm_stage_model {
    int L, M, E, K, H, I, V;
    int16_t moe[FM_LAYERS_MAX]; /* (M): decoder layers that have experts */
    enum fm_dtype dtype;
    uint64_t params, channel_params; /* of the whole model; of one channel of an expert */
    struct fm_extra extra;           /* extra tensors; `marked` is not set */
    struct fm_nonexpert nonexpert;   /* tensors outside the routed experts */
};

/*
 * Open a stream ("-": standard input) and check its manifest's model and history. `needs` is the
 * member that this stage requires: if it is missing, FM_ECONFIG names the tool that makes it.
 * FM_EFORMAT if the carried config.json does not fit the model.  If `needs` is NULL, only the
 * manifest's model and history are checked: fm-verify reports other faults itself.
 */
int fm_stage_open(struct fm_bundle *b, const char *path, const char *needs, struct fm_err *err);
/* The same checks for a bundle that is already open. */
int fm_stage_check(const struct fm_bundle *b, const char *needs, struct fm_err *err);

/* The manifest's "model" object for a checkpoint; `dtype` is that of its expert weights, `sums`
 * are those of its weights; NULL: the object identifies only the files. */
int fm_stage_model_identity(cJSON **model, const struct fm_hfdir *dir,
                            const struct fm_config *config, enum fm_dtype dtype,
                            const struct fm_reading_sums *sums, struct fm_err *err);
/* Sizes and dtype from the manifest, checked against the limits in lib/block. */
int fm_stage_model_read(struct fm_stage_model *model, const struct fm_bundle *b,
                        struct fm_err *err);
/* FM_EFORMAT if family, sizes or parameters of the manifest's model differ from this
 * config.json. */
int fm_stage_model_fits(const struct fm_bundle *b, const struct fm_config *config,
                        struct fm_err *err);
/* Read the carried config.json and check that it fits the manifest's model; fm_config_release
 * *config. */
int fm_stage_config_read(struct fm_config *config, const struct fm_bundle *b, struct fm_err *err);
/* Check that the carried config.json has the digest in the manifest's model, and that it fits that
 * model. */
int fm_stage_config_check(const struct fm_bundle *b, struct fm_err *err);
/* FM_ECONFIG, naming what differs, if `dir` is not the checkpoint that the stream was made from. */
int fm_stage_model_check(const struct fm_bundle *b, const struct fm_hfdir *dir, struct fm_err *err);
/* FM_ECONFIG, naming what differs, if two streams were made from different checkpoints. */
int fm_stage_model_same(const struct fm_bundle *b, const struct fm_bundle *other,
                        struct fm_err *err);

/* Bytes of the checkpoint's shards, from the manifest; FM_EFORMAT if they are not recorded. */
int fm_stage_shard_bytes(uint64_t *bytes, const struct fm_bundle *b, struct fm_err *err);

/* The sums of the weights that the stream was made from. */
int fm_stage_weights_read(struct fm_reading_sums *sums, const struct fm_bundle *b,
                          struct fm_err *err);

/* Bytes of all tensors of a checkpoint except extra ones; codes count as their values. */
uint64_t fm_stage_tensor_bytes(const struct fm_hfdir *dir, const struct fm_config *config);

/*
 * Begin a manifest.  The first stage passes `model` (ownership is taken) and no `in`; others
 * continue the manifest of `in`, without the parts that this and later stages wrote. dropped is
 * empty or a sentence for the user: "adapter.safetensors of the input is dropped: it was made from
 * what fm-train now replaces".  If there is no memory for a manifest, here or below, formats/json
 * refuses to print it, so fm_stage_write and fm_bundle_size return the error.
 */
cJSON *fm_stage_manifest(enum fm_stage stage, const struct fm_bundle *in, cJSON *model,
                         char dropped[FM_STAGE_DROPPED_BYTES]);

/* Bytes of the file of `in`, which a stage copies, without members that this and later stages made;
 * 0 for a pipe. */
uint64_t fm_stage_copied_bytes(enum fm_stage stage, const struct fm_bundle *in);

/* Append an entry of a tool to the manifest's history; returns it, borrowed, so that "options",
 * "tokens" and "result" can be added; NULL: no memory. */
cJSON *fm_stage_history(cJSON *manifest, const char *tool);
/* The last entry of a tool ("fm-rank"), or NULL; borrowed. */
const cJSON *fm_stage_history_of(const struct fm_bundle *b, const char *tool);

/*
 * The held-out cross-entropy of the checkpoint: the loss of the mask that removes nothing or, if
 * that mask was measured with an adapter, the loss that fm-recover measured without it.  False: not
 * recorded.
 */
#define FM_STAGE_ORIGINAL_CE "original_ce" /* in "result" of fm-recover's history entry */
bool fm_stage_original_ce(double *ce, const struct fm_bundle *b, const struct fm_mask *first);

/* fm-train's --budget-step; its default if the history does not record it. */
double fm_stage_budget_step(const struct fm_bundle *b);

/* A member that the stage adds, or that replaces one of the same name. */
struct fm_stage_member {
    const char *name;
    const void *data;
    size_t size;
};

/* Members of an output in canonical order; members that the caller appends come after them. */
struct fm_stage_parts {
    struct fm_part *part;
    size_t parts, capacity;
    char **owned; /* bytes and names that parts point to */
    size_t owned_count, owned_room;
};

/*
 * Collect build.json, then the carried files (of `dir` in the first stage, else of `in`), then
 * members of `in` that earlier stages made.  Each `member` is added in its place, or replaces one
 * of `in`.  Borrows in and member.data.
 */
int fm_stage_parts_collect(struct fm_stage_parts *p, enum fm_stage stage,
                           const struct fm_bundle *in, const struct fm_hfdir *dir,
                           const struct fm_stage_member *member, size_t members,
                           struct fm_err *err);
/* Append a member; its name is copied.  For fm-pack, whose weights have no bytes yet. */
int fm_stage_parts_add(struct fm_stage_parts *p, const struct fm_part *part, struct fm_err *err);
void fm_stage_parts_release(struct fm_stage_parts *p); /* zeroed struct is fine */

/* Collect, write to run->outputs.path, announce, commit.  Takes ownership of manifest, even on
 * failure. */
int fm_stage_write(const struct fm_run_options *run, enum fm_stage stage, cJSON *manifest,
                   const struct fm_bundle *in, const struct fm_hfdir *dir,
                   const struct fm_stage_member *member, size_t members, struct fm_err *err);

/* The text of build.json: versions of suite, compiler and libraries; free() it. */
int fm_stage_build(char **text, struct fm_err *err);

#endif
