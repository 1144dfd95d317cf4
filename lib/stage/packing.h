/*
 * State of packing, shared by lib/stage/pack.c, which plans the bundle and writes its members, and
 * lib/stage/packweights.c, which copies the weights from the checkpoint.
 */
#ifndef FM_PACKING_H
#define FM_PACKING_H

#include <stdint.h>

#include <pthread.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/safetensors.h"
#include "lib/engine/adapter.h"
#include "lib/model/checkpoint.h"
#include "lib/run/taskgroup.h"
#include "lib/stage/budgets.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "lib/stage/volumes.h"

/* Tensors outside the experts are copied in pieces of this size. */
#define FM_PACKING_PIECE_BYTES FM_WEIGHTSUM_PIECE

/* A member under weights/: its header, and its tensors in file order. */
struct fm_packing_volume {
    char name[FM_VOLUMES_NAME_BYTES];
    char *header;
    uint64_t header_bytes, file_bytes;
    struct fm_tensor *tensor;
    size_t tensors;
    const char **name_of; /* (tensors) names in order of parts, or of `from`; `tensor` has the same
                             pointers */
    int layer;            /* -1: tensors outside the experts */
    const struct fm_stored *from; /* (tensors) the tensors' sources */
    bool extra;                   /* extra tensors, whose values are not checked */
    size_t part;
};

struct fm_packing {
    const struct fm_run_options *run;
    const struct fm_pack_options *options;
    struct fm_pack_report *report;
    struct fm_bundle in;
    struct fm_checkpoint cp;
    struct fm_ranking ranking;
    struct fm_budgets budgets;
    struct fm_adapter adapter;
    const struct fm_ops *ops; /* NULL: no adapter of experts; without any adapter, adapter.M is 0 */
    struct fm_packed_layers packed; /* the tensors of each layer */
    struct fm_segments seg;
    struct fm_packing_volume *volume; /* layers, the other tensors, extra tensors */
    int volumes;
    struct fm_stage_parts parts;
    void *segments; /* bytes of the member; all digests are zero until they are known */
    size_t segments_bytes;
    struct fm_bundle_writer *writer; /* NULL: a pass that only computes digests */
    uint64_t scratch;                /* bytes of a task's scratch */
    int at_once;                     /* number of experts of one volume that are made in parallel */
    struct fm_weightsum wanted,
        sums;             /* sums of the ranked checkpoint, and of the one that is read */
    pthread_mutex_t lock; /* guards sums, and the pieces of struct run */
    struct fm_taskgroup tasks;
};

/* Dtype in which an expert is reordered: the bundle's, or float32 if an adapter is merged into
 * values of codes, so that they are rounded only once, after the merge. */
static inline enum fm_dtype fm_packing_made_as(const struct fm_packing *p)
{
    return p->cp.config.scheme.storage && p->ops ? FM_F32 : p->cp.dtype;
}

/*
 * Pass over all weights once: compute the digests of p->seg, and append the weights if there is a
 * writer.  Members are made in parallel; when a pipe is written, one after another, with the
 * experts of each in parallel.  `stage` is the name in progress reports.
 */
int fm_packing_pass(struct fm_packing *p, const char *stage, struct fm_err *err);
/* After a pass: FM_ECONFIG if the weights differ from those that were ranked. */
int fm_packing_check_sums(const struct fm_packing *p, struct fm_err *err);

#endif
