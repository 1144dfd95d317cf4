/*
 * What a run will cost, for --dry-run: bytes, sweeps, floating-point operations.  Nothing of the
 * weights is read and nothing is written.  How long it takes: forecast.h.
 */
#ifndef FM_ESTIMATE_H
#define FM_ESTIMATE_H

#include <stdint.h>

#include "formats/tensor/hfdir.h"
#include "lib/data/separator.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* A file of the checkpoint that travels along. */
struct fm_estimate_file {
    char name[FM_CARRIED_NAME_MAX + 1];
    uint64_t bytes;
};

#define FM_ESTIMATE_CODES 128 /* bytes of a sentence */
#define FM_ESTIMATE_KINDS 4   /* of fm-train: steps of the method, two of --refine, measuring */

/* A run with other options, and what its matrix products take. */
#define FM_ESTIMATE_CHANGES 4
struct fm_estimate_change {
    char options[48]; /* "--steps 250" */
    double flops;
};

/* How long it takes, forecast.h. */
struct fm_forecast {
    bool assumed;                 /* --assume-rate */
    int threads;                  /* of the probe */
    double rate_least, rate_most; /* FLOP/s of all threads: slices of the probe differ */
    double seconds_least, seconds_most;
    int ranks; /* that share the work; of the most expensive kind of sweep some may have none */
    int working;
    struct fm_estimate_change halved; /* the first change that halves the time; options[0] is 0 */
    double halved_seconds;            /* and the most that it takes */
};

struct fm_estimate {
    bool text; /* we encode some of the tokens, with this after each document */
    struct fm_separator separator;
    uint64_t disk;                 /* bytes of the output, about */
    uint64_t memory;               /* bytes resident at the most */
    uint64_t spill;                /* bytes of temporary files beyond --memory */
    uint64_t read;                 /* bytes of weights read */
    char codes[FM_ESTIMATE_CODES]; /* whether bundles will keep them; "" for plain weights */
    const char *storage; /* "fp8": how the checkpoint has its weights; NULL: as plain numbers */
    uint64_t stored, written; /* bytes of all its tensors: so, and in bundles and exports */
    uint64_t sweeps;          /* passes over the model */
    uint64_t tokens;          /* token positions computed, over all lanes */
    int longest;              /* tokens of a sequence that the model computes as we do, */
    const char *exact;        /* why no more; NULL: it has no more positions */
    uint64_t held, used; /* tokens in the files of calibration data, and of them used; 0: unknown */
    const char *precision; /* of products: "f32", "bf16" */
    const char *method;    /* that makes masks; NULL: none are made */
    double flops;          /* of the matrix products */
    double useful;         /* of these, what is not made again: a forward, and each gradient once */
    struct {
        double flops;
        int leaves;
    } kind[FM_ESTIMATE_KINDS]; /* of sweeps: which ranks can share them */
    int kinds;
    struct fm_estimate_change
        change[FM_ESTIMATE_CHANGES]; /* of the options, the least harmful first */
    int changes;
    struct fm_forecast forecast;                     /* of a --dry-run */
    struct fm_estimate_file carried[FM_CARRIED_MAX]; /* of the first stage */
    int carried_count;
};

/* One kind of sweep of a run: how often, with what. */
struct fm_estimate_sweep {
    uint64_t count; /* sweeps of this kind */
    uint64_t rows;  /* tokens in one sweep, over its micro-batches */
    int T;          /* tokens of a sequence */
    int lanes;      /* networks in it */
    int backward;   /* lanes that go back too */
    bool scores;    /* weight gradients as well: fm-rank */
    int merged;     /* copies of a layer's experts with an adapter merged */
    double kept;    /* mean share of the channels that students keep, 1: all */
    int leaves;     /* that ranks can share; 0: those of a step's micro-batches */
};

/*
 * Bytes of `memory` that are left for the boundaries of a sweep, once the layers that stay and
 * the threads' scratch have theirs; rows: tokens of a micro-batch.  0: everything is spilled.
 */
uint64_t fm_estimate_boundaries(const struct fm_model *model, int rows, uint64_t memory);

/* One more way to a shorter run. */
void fm_estimate_suggest(struct fm_estimate *estimate, double flops, const char *fmt, ...)
    FM_PRINTF(3, 4);

/* Add one kind of sweep to *estimate. */
void fm_estimate_add(struct fm_estimate *estimate, const struct fm_model *model,
                     const struct fm_estimate_sweep *sweep, uint64_t memory);

/*
 * Before the run: space for the output (FM_ECREATE), `copied` bytes of its input included, and for
 * what is spilled (FM_EIO).  Gives the advice below.
 */
int fm_estimate_check(const struct fm_estimate *estimate, const struct fm_run_options *run,
                      uint64_t copied, struct fm_err *err);

/* A warning where --memory is below what the run needs at the least, with what it needs. */
void fm_estimate_advise(const struct fm_estimate *estimate, const struct fm_run_options *run);

#endif
