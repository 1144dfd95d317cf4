/*
 * The cost of a run, for --dry-run: bytes, sweeps, floating-point operations.  No weights are read
 * and nothing is written.  forecast.h estimates the time.
 */
#ifndef FM_ESTIMATE_H
#define FM_ESTIMATE_H

#include <stdint.h>

#include "formats/quant/quant.h"
#include "lib/data/separator.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* A file of the checkpoint that is copied unchanged. */
struct fm_estimate_file {
    char name[FM_CARRIED_NAME_MAX + 1];
    uint64_t bytes;
};

#define FM_ESTIMATE_CODES 256 /* size of `codes` in struct fm_estimate */
#define FM_ESTIMATE_KINDS 5   /* for fm-train: steps of the method, and four of measuring */

/* A run with different options, and the FLOPs of its matrix products. */
#define FM_ESTIMATE_CHANGES 6
struct fm_estimate_change {
    char options[48]; /* "--steps 250" */
    double flops;
};

/* Forecast of the time (forecast.h). */
struct fm_forecast {
    int threads;                  /* number of threads of the probe */
    double rate_least, rate_most; /* FLOP/s of all threads and ranks; slices of the probe differ */
    double seconds_least, seconds_most;
    double loading; /* part of these seconds, for converting the weights that are read */
    int ranks;
    int working;                      /* ranks that have work in the most expensive kind of sweep */
    struct fm_estimate_change halved; /* the first change that halves the time; options[0] is 0 if
                                         none does */
    double halved_seconds;            /* upper bound of its time, like seconds_most */
};

struct fm_estimate {
    bool text; /* the suite encodes some of the tokens, with this separator after each document */
    struct fm_separator separator;
    uint64_t disk;   /* approximate bytes of the output */
    uint64_t state;  /* bytes of a state file of fm-recover, with --state */
    uint64_t memory; /* largest number of resident bytes */
    uint64_t least;  /* smallest memory limit that the run can keep; 0: the given limit suffices */
    uint64_t
        enough; /* the memory limit at which the run neither spills nor reads more; 0: unknown */
    double enough_more; /* the share of additional operations at that limit, because fewer inner
                           values are kept */
    uint64_t spill;     /* bytes beyond --memory, in temporary files */
    uint64_t read;      /* bytes of weights that the run reads */
    bool drafts;        /* these include a layer for multi-token prediction */
    bool turned;   /* the last sweep had a backward pass, whose last layer is still in memory */
    double values; /* the number of these weights */
    char codes[FM_ESTIMATE_CODES];  /* whether bundles will keep the codes; "" for unquantised
                                       weights */
    char storage[FM_STORAGE_NAMES]; /* "fp8": storage of the checkpoint; "": unquantised */
    uint64_t stored, written; /* bytes of all tensors: in the checkpoint; in bundles and exports */
    uint64_t sweeps;          /* passes over the model */
    uint64_t tokens;          /* token positions computed, over all lanes */
    int longest;              /* longest sequence for which results are exactly the model's */
    const char *exact; /* the reason for that limit; NULL: it is the model's number of positions */
    uint64_t held, used;          /* tokens in the calibration files, and tokens used; 0: unknown */
    int evaluated, evaluated_len; /* sequences that quality is measured on, and tokens of each */
    const char *precision;        /* precision of products: "f32", "bf16" */
    const char *method;           /* method that makes the masks; NULL: the run makes no masks */
    double reach;                 /* largest budget that masks can have */
    double beyond;                /* by how much --budget may exceed that; 0: both are unknown */
    double flops;                 /* of the matrix products */
    double making;                /* of these, those before the first measurement */
    double useful; /* FLOPs without recomputation: one forward, and each gradient once */
    struct {
        double flops;
        int leaves;
    } kind[FM_ESTIMATE_KINDS]; /* kinds of sweeps; leaves: how many ranks can share one */
    int kinds;
    struct fm_estimate_change change[FM_ESTIMATE_CHANGES]; /* suggested options, those with the
                                                              least effect on the result first */
    int changes;
    struct fm_forecast forecast;                     /* filled in for --dry-run */
    struct fm_estimate_file carried[FM_CARRIED_MAX]; /* the carried files, for the first stage */
    int carried_count;
    char left[FM_CARRIED_MAX][FM_CARRIED_NAME_MAX + 2]; /* what is not carried, as printable text */
    int left_count, left_more;
};

/* One kind of sweep of a run. */
struct fm_estimate_sweep {
    uint64_t count; /* sweeps of this kind, all of the same size */
    uint64_t rows;  /* tokens in one sweep, over its micro-batches */
    int T;          /* tokens of a sequence */
    int lanes;      /* networks in it */
    int backward;   /* lanes with gradients */
    bool scores;    /* computes weight gradients as well: fm-rank */
    bool draft;     /* it goes through a layer for multi-token prediction only */
    bool narrow;    /* the gradients at h have the students' widths: fm-recover */
    bool gate_up;   /* products with gate_up can be kept for the backward: fm-recover in float32 */
    int merged;     /* copies of a layer's experts with an adapter merged */
    double kept;    /* mean share of the channels that the students keep, 1 for all */
    int leaves;     /* units that ranks can share; 0: those of a step's micro-batches */
};

/* Bytes of the copy of a layer's experts in a sweep with an adapter merged. */
uint64_t fm_estimate_merged(const struct fm_config *config);

/* Bytes that a process needs in addition to weights and scratch. */
uint64_t fm_estimate_process(const struct fm_model *model);

/*
 * Bytes of `memory` that the resident layers and the threads' scratch leave for the boundaries of a
 * sweep of `batches` micro-batches of `rows` tokens in `lanes` lanes; `cut` is that of the sweep's
 * options.  Returns 0 if all boundaries are spilled.
 */
uint64_t fm_estimate_boundaries(const struct fm_model *model, int batches, int rows, int cut,
                                int lanes, uint64_t memory);

/*
 * Add the sweeps that measure `masks` masks, of which `group` go into one sweep, and the rest into
 * a last one; both in parts of `part` of the tokens.  Of `each`, lanes is the number of full models
 * beside the masks of a sweep, and count how often the masks are measured.
 */
void fm_estimate_add_masks(struct fm_estimate *estimate, const struct fm_model *model,
                           const struct fm_estimate_sweep *each, uint64_t masks, uint64_t group,
                           uint64_t part, uint64_t memory);

/* Add a suggestion for a shorter run. */
void fm_estimate_suggest(struct fm_estimate *estimate, double flops, const char *fmt, ...)
    FM_PRINTF(3, 4);

/* Add one kind of sweep to *estimate; nothing if its count is 0.  A last sweep that is smaller than
 * the others is a kind of its own, so that nothing is counted that is not done. */
void fm_estimate_add(struct fm_estimate *estimate, const struct fm_model *model,
                     const struct fm_estimate_sweep *sweep, uint64_t memory);

/* Add sweeps through a layer for multi-token prediction, after those of the model. */
void fm_estimate_add_draft(struct fm_estimate *estimate, const struct fm_model *draft,
                           const struct fm_estimate_sweep *sweep);

/*
 * Let `make` compute *estimate for a run within `memory` bytes.  If the run needs more, the models
 * (a list that ends with NULL) are limited to fewer resident layers.  Call it before the models
 * read weights.
 */
typedef void fm_estimate_maker(struct fm_estimate *estimate, void *self, uint64_t memory);
void fm_estimate_fit(struct fm_estimate *estimate, struct fm_model *const *model, uint64_t memory,
                     fm_estimate_maker *make, void *self);

/*
 * The smallest memory limit, at most `memory`, at which the run computes at most `more` times
 * additional operations (INFINITY: any number), and spills and reads no more, than within `memory`.
 */
uint64_t fm_estimate_enough(fm_estimate_maker *make, void *self, uint64_t memory, double more);

/* FM_EUSAGE if the run cannot stay within its limit of memory; only a warning if that limit is not
 * firm (lib/run/machine.h). */
int fm_estimate_fits(const struct fm_estimate *estimate, const struct fm_run_options *run,
                     struct fm_err *err);

/* The checks before a run: fm_estimate_fits, then space for the output (FM_ECREATE), including
 * `copied` bytes of its input, for the state (FM_ECREATE) and for spilled data (FM_EIO), and for
 * the state beside either of the others on one filesystem (FM_ECREATE).  Spilled boundaries are
 * freed before the output is written, so these two are not added; spilled moments of an adapter,
 * which are freed after it, are neither. */
int fm_estimate_check(const struct fm_estimate *estimate, const struct fm_run_options *run,
                      uint64_t copied, struct fm_err *err);

#endif
