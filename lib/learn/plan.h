/*
 * What a run will cost, for --dry-run: bytes, sweeps, floating-point operations, and a
 * guess of the time from a short probe of the machine's matrix product.  Nothing of the
 * weights is read and nothing is written.
 */
#ifndef FM_PLAN_H
#define FM_PLAN_H

#include <stdint.h>

#include "formats/tensor/hfdir.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* A file of the checkpoint that travels along. */
struct fm_plan_file {
    char name[FM_CARRIED_NAME_MAX + 1];
    uint64_t bytes;
};

struct fm_plan {
    uint64_t disk;       /* bytes of the output */
    uint64_t memory;     /* bytes resident at the most */
    uint64_t spill;      /* bytes of temporary files beyond --memory */
    uint64_t read;       /* bytes of weights read */
    const char *storage; /* "fp8": how the checkpoint has its weights; NULL: as plain numbers */
    uint64_t stored, written; /* bytes of all its tensors: so, and in bundles and exports */
    uint64_t sweeps;          /* passes over the model */
    uint64_t tokens;          /* token positions computed, over all lanes */
    uint64_t held, used; /* tokens in the files of calibration data, and of them used; 0: unknown */
    double flops;        /* of the matrix products */
    double useful;       /* of these, what is not made again: a forward, and each gradient once */
    double rate;         /* flops per second of the probe */
    double seconds;      /* flops / rate, plus a third for all that is not a product */
    struct fm_plan_file carried[FM_CARRIED_MAX]; /* of the first stage */
    int carried_count;
};

/* One kind of sweep of a run: how often, with what. */
struct fm_plan_sweep {
    uint64_t count; /* sweeps of this kind */
    uint64_t rows;  /* tokens in one sweep, over its micro-batches */
    int T;          /* tokens of a sequence */
    int lanes;      /* networks in it */
    int backward;   /* lanes that go back too */
    bool scores;    /* weight gradients as well: fm-rank */
    int merged;     /* copies of a layer's experts with an adapter merged */
    double kept;    /* mean share of the channels that students keep, 1: all */
};

/*
 * Bytes of `memory` that are left for the boundaries of a sweep, once the layers that stay and
 * the threads' scratch have theirs; rows: tokens of a micro-batch.  0: everything is spilled.
 */
uint64_t fm_plan_room(const struct fm_model *model, int rows, uint64_t memory);

/* Add one kind of sweep to *plan. */
void fm_plan_add(struct fm_plan *plan, const struct fm_model *model,
                 const struct fm_plan_sweep *sweep, uint64_t memory);

/*
 * Before the run: room for the output (FM_ECREATE), `copied` bytes of its input included, and for
 * what is spilled (FM_EIO).  A --memory below what the run needs at the least is a warning that
 * says how much is used.
 */
int fm_plan_check(const struct fm_plan *plan, const struct fm_run_options *run, uint64_t copied,
                  struct fm_err *err);

/* Probe the machine (some tens of milliseconds) and fill rate and seconds. */
void fm_plan_time(struct fm_plan *plan, const struct fm_ops *ops);

#endif
