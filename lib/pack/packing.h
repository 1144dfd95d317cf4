/*
 * A bundle in the making: what lib/pack/pack.c, which plans it and writes its members, and
 * lib/pack/packweights.c, which carries the weights from the checkpoint into it, share.
 */
#ifndef FM_PACKING_H
#define FM_PACKING_H

#include <stdint.h>

#include <pthread.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/safetensors.h"
#include "lib/engine/adapter.h"
#include "lib/model/checkpoint.h"
#include "lib/pack/pack.h"
#include "lib/run/taskgroup.h"
#include "lib/stage/budgets.h"
#include "lib/stage/ranking.h"
#include "lib/stage/segments.h"
#include "lib/stage/stage.h"
#include "lib/stage/volumes.h"

/* Tensors that are not experts' are copied in pieces of this size. */
#define FM_PACKING_PIECE_BYTES FM_WEIGHTSUM_PIECE

/* A member under weights/: its header, and its tensors in file order. */
struct fm_packing_volume {
    char name[FM_VOLUMES_NAME_BYTES];
    char *header;
    uint64_t header_bytes, file_bytes;
    struct fm_tensor *tensor;
    size_t tensors;
    const char *name_of[FM_PACKED_PARTS_MAX]; /* the names in `tensor` of the parts of experts */
    int layer;                                /* -1: tensors that are no experts' */
    const struct fm_stored *from;             /* (tensors) these, sorted by name */
    bool extra; /* they are of no decoder layer: values are not looked at */
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
    const struct fm_ops *ops; /* NULL: no adapter */
    struct fm_packed packed;  /* the tensors of a layer */
    struct fm_stored *rest;   /* (rests) tensors that are no experts', sorted by name; where codes
                                 are kept, scales are some of them */
    size_t rests;
    struct fm_segments seg;
    struct fm_packing_volume *volume; /* layers, the rest, tensors of no layer */
    int volumes;
    struct fm_stage_parts parts;
    void *segments; /* the member, once its digests are known */
    size_t segments_bytes;
    struct fm_bundle_writer *writer;  /* NULL: the pass that only takes digests */
    int at_once;                      /* experts of one volume in work at once */
    struct fm_weightsum wanted, sums; /* of the checkpoint: that was ranked, and that passes */
    pthread_mutex_t lock;             /* on sums */
    struct fm_taskgroup tasks;
};

/* Dtype in which an expert is put in order: the bundle's, but float32 where an adapter is merged
 * into values of codes, which are rounded with it, once. */
static inline enum fm_dtype fm_packing_made_as(const struct fm_packing *p)
{
    return p->cp.config.storage && p->ops ? FM_F32 : p->cp.dtype;
}

/*
 * All weights once: into the digests of p->seg, and appended where there is a writer.  To a file,
 * members are made side by side; to a pipe, one after another and the experts of each side by side.
 * `stage` is the name under which progress is reported.
 */
int fm_packing_pass(struct fm_packing *p, const char *stage, struct fm_err *err);
/* After a pass: FM_ECONFIG where a layer is not the one that was ranked. */
int fm_packing_check_sums(const struct fm_packing *p, struct fm_err *err);

#endif
