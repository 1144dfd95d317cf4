/*
 * This room, lib/stage: the parts of a stream as the tools mean them.  formats/bundle knows a
 * member as a name and bytes; here it is a ranking, a family of masks, an adapter, checksums, with
 * everything in it checked before it is used.  In reading order: this header with stage.c and
 * identity.c, stbytes (small safetensors in memory), ranking, budgets, lorafile, segments,
 * volumes, nonexpert (tensors that are not routed experts), uptodate (--if-changed).
 *
 * What the stages of the pipeline share: every one reads a stream (fm-rank reads none), adds or
 * replaces members of its own, extends the history, and writes a stream.
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
 * A stage that runs again replaces what it made, and what later stages made of that is dropped.
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
#include "lib/stage/nonexpert.h"

enum fm_stage { FM_STAGE_RANK, FM_STAGE_TRAIN, FM_STAGE_RECOVER, FM_STAGE_PACK };

#define FM_STAGE_DROPPED_BYTES 256

/* What of the model every stage agrees on, from the manifest. */
struct fm_stage_model {
    int L, M, E, K, H, I, V;
    int16_t moe[FM_LAYERS_MAX]; /* (M): decoder layers that have experts */
    enum fm_dtype dtype;
    uint64_t params, channel_params; /* of all; of one channel of an expert */
    struct fm_extra extra;           /* tensors of no decoder layer; marks are not known */
    struct fm_nonexpert nonexpert;   /* tensors that are no experts' */
};

/*
 * Open a stream ("-": standard input) and check its manifest's model and history.  `needs` is the
 * member this stage builds on: FM_ECONFIG names the tool that makes it where it lacks, FM_EFORMAT
 * where the carried config.json is not that of the model.  NULL for callers that only read
 * (fm-verify lists such faults itself).
 */
int fm_stage_open(struct fm_bundle *b, const char *path, const char *needs, struct fm_err *err);
/* The same checks of a bundle that is open. */
int fm_stage_check(const struct fm_bundle *b, const char *needs, struct fm_err *err);

/* The manifest's "model" object for a checkpoint; `dtype` is that of its expert weights, `sums` are
 * those of its weights, or NULL: without them it is an identity of the files only. */
int fm_stage_model_identity(cJSON **model, const struct fm_hfdir *dir,
                            const struct fm_config *config, enum fm_dtype dtype,
                            const struct fm_weightsum *sums, struct fm_err *err);
/* Sizes and dtype from the manifest, checked against the limits of lib/block/keys.h. */
int fm_stage_model_read(struct fm_stage_model *model, const struct fm_bundle *b,
                        struct fm_err *err);
/* FM_EFORMAT where family, sizes or parameters of the manifest's model are not those of this
 * config.json. */
int fm_stage_model_fits(const struct fm_bundle *b, const struct fm_config *config,
                        struct fm_err *err);
/* The carried config.json, which fits the manifest's model; fm_config_release *config. */
int fm_stage_config_read(struct fm_config *config, const struct fm_bundle *b, struct fm_err *err);
/* It is that of the manifest's model by its digest, too. */
int fm_stage_config_check(const struct fm_bundle *b, struct fm_err *err);
/* FM_ECONFIG, naming both digests, where `dir` is not the checkpoint the stream was made from. */
int fm_stage_model_check(const struct fm_bundle *b, const struct fm_hfdir *dir, struct fm_err *err);

/* Bytes of the shards of the checkpoint, by the manifest; FM_EFORMAT where it does not say them. */
int fm_stage_shard_bytes(uint64_t *bytes, const struct fm_bundle *b, struct fm_err *err);

/* The sums of the weights that the stream was made from. */
int fm_stage_weights_read(struct fm_weightsum *sums, const struct fm_bundle *b, struct fm_err *err);

/* Bytes of all tensors of a checkpoint but those of no decoder layer, as bundles have them. */
uint64_t fm_stage_tensor_bytes(const struct fm_hfdir *dir, const struct fm_config *config);

/*
 * Begin a manifest.  The first stage gives `model` (taken over) and no `in`; others continue the
 * manifest of `in`, without what this and later stages wrote.  dropped[0] is 0, or it is a
 * sentence for the user: "adapter.safetensors of the input is dropped: fm-recover made it for
 * other masks".  Here and below a manifest that there is no memory for is one that formats/json
 * does not print, so fm_stage_write and fm_bundle_size say it.
 */
cJSON *fm_stage_manifest(enum fm_stage stage, const struct fm_bundle *in, cJSON *model,
                         char dropped[FM_STAGE_DROPPED_BYTES]);

/* Append an entry of a tool to the manifest's history, and return it, borrowed, for its "options",
 * "tokens" and "result"; NULL: no memory. */
cJSON *fm_stage_history(cJSON *manifest, const char *tool);
/* The last entry of a tool ("fm-rank"), or NULL; borrowed. */
const cJSON *fm_stage_history_of(const struct fm_bundle *b, const char *tool);

/*
 * Held-out cross-entropy of the checkpoint itself: of the mask that removes nothing, or, where its
 * figures are with an adapter, what fm-recover measured without.  False: not recorded.
 */
#define FM_STAGE_ORIGINAL_CE "original_ce" /* in "result" of fm-recover's history entry */
bool fm_stage_original_ce(double *ce, const struct fm_bundle *b, const struct fm_mask *first);

/* fm-train's --budget-step; its default where the history does not say. */
double fm_stage_budget_step(const struct fm_bundle *b);

/* A member that the stage adds, or puts in the place of one of that name. */
struct fm_stage_member {
    const char *name;
    const void *data;
    size_t size;
};

/* Members of an output in canonical order; what the caller appends comes after them. */
struct fm_stage_parts {
    struct fm_part *part;
    size_t parts, capacity;
    char **owned; /* bytes and names that parts point to */
    size_t owned_count, owned_room;
};

/*
 * build.json, then the carried files (of `dir` on the first stage, else of `in`), then members of
 * `in` that earlier stages made, with `member` in their places.  Borrows in and member.data.
 */
int fm_stage_parts_collect(struct fm_stage_parts *p, enum fm_stage stage,
                           const struct fm_bundle *in, const struct fm_hfdir *dir,
                           const struct fm_stage_member *member, size_t members,
                           struct fm_err *err);
/* Append one, name copied: for fm-pack, whose weights have no bytes yet. */
int fm_stage_parts_add(struct fm_stage_parts *p, const struct fm_part *part, struct fm_err *err);
void fm_stage_parts_release(struct fm_stage_parts *p); /* zeroed struct is fine */

/* Collect, write to run->outputs.path, announce, commit.  Takes manifest over, in failure too. */
int fm_stage_write(const struct fm_run_options *run, enum fm_stage stage, cJSON *manifest,
                   const struct fm_bundle *in, const struct fm_hfdir *dir,
                   const struct fm_stage_member *member, size_t members, struct fm_err *err);

/* The text of build.json: versions of suite, compiler and libraries; free() it. */
int fm_stage_build(char **text, struct fm_err *err);

#endif
