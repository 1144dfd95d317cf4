/*
 * This room, lib/learn: the tools that compute scores (rank), masks (train) and adapters (recover).
 * Each is a visitor of lib/engine's sweep, and a loop around the sweep whose state can be saved and
 * resumed.  Layers are computed in lib/engine, and members are read and written in lib/stage.  In
 * reading order: this header, runner; criterion, rank, blend; quality, train, trainer; maskgrad
 * (for methods, lib/methods); recover, recoverer, tune; estimate and forecast (the cost of a run).
 *
 * Shared by rank, train and recover: opening a run's inputs and checking that they fit together,
 * drawing sequences, and measuring masks.
 */
#ifndef FM_TASK_H
#define FM_TASK_H

#include "formats/bundle/bundle.h"
#include "formats/file/lock.h"
#include "formats/tensor/hfdir.h"
#include "lib/data/calib.h"
#include "lib/engine/sweep.h"
#include "lib/learn/estimate.h"
#include "lib/learn/quality.h"
#include "lib/model/model.h"
#include "lib/state/journal.h"
#include "lib/run/run.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

/* A measurement in progress, for the state file: the first of its masks and their number, 1 with an
 * adapter, the number of micro-batches that are done, and their measures. */
struct fm_measured {
    int64_t first, masks, adapter, done;
    struct fm_measure *measure; /* (done, 1 + masks) */
    uint64_t words;             /* int64_t in them; 0: no measurement is in progress */
};

struct fm_task {
    const struct fm_run_options *run;
    const struct fm_ops *ops;
    struct fm_hfdir dir;
    struct fm_model *model;
    const struct fm_config *config;
    struct fm_calib calib, held;   /* to work on; to measure on */
    struct fm_bundle in;           /* the stage stream, if there is one */
    struct fm_ranking ranking;     /* of the stream; the model is read in this order */
    struct fm_digest identity;     /* of the manifest's "model" */
    struct fm_reading_sums wanted; /* the weights that the stream was made from */
    struct fm_lock lock;           /* on run->outputs.state */
    uint64_t memory;               /* bytes for everything; resident layers take at most half */
    int batch;                     /* sequences of a step; the runner sets it */
    int cut;                       /* see struct fm_sweep_options, as is keep_last */
    bool keep_last;
    double units;                /* of the stage that is reported: what the current sweep completes;
                                    0: one */
    double began;                /* fm_clock_now() at open */
    struct fm_measured measured; /* by fm_task_measure, or from a state file */
    /* The current epoch, and its order. */
    uint32_t *epoch;
    int64_t epoch_number;
};

/*
 * Open run->inputs.model, the tokens to work on and to measure on (fm_quality_open) and, if `needs`
 * names a member that the tool requires, the stream run->inputs.stream with its ranking.  Warns if
 * the ranking may have been made from the tokens held out here.  Checks that the output can be
 * written.  FM_ELOCKED if another run has the state file.
 *
 * `dry`: for --dry-run, which touches neither the output nor the state file nor, for the run
 * itself, a stream on standard input.
 */
int fm_task_open(struct fm_task *task, const struct fm_run_options *run, const char *needs,
                 bool dry, struct fm_err *err);
void fm_task_close(struct fm_task *task); /* zeroed struct is fine */

/* Open only the model and the tokens, also the held-out ones if `hold`. */
int fm_task_open_inputs(struct fm_task *task, const struct fm_run_options *run, bool hold,
                        struct fm_err *err);

/* Compute *estimate with `plan`, and keep fewer layers resident if that is necessary to stay within
 * task->memory (fm_estimate_fit).  If the user set no limit, task->memory is reduced to what keeps
 * the speed.  `plan` must change nothing but *estimate. */
typedef void fm_task_planner(struct fm_estimate *estimate, struct fm_task *task, void *self);
void fm_task_plan(struct fm_estimate *estimate, struct fm_task *task, fm_task_planner *plan,
                  void *self);

/* Make a sweep that uses the task's memory beyond its resident layers, and the run's stop flag. */
int fm_task_sweep(struct fm_sweep **sweep, struct fm_task *task, int batches, int rows, int lanes,
                  uint64_t memory, struct fm_err *err);

/* Run the sweep over micro-batches of `micro` sequences, ids (batches, micro, T); what the visitor
 * does not take of the lanes' measures is lost.  counts as for fm_sweep_run. */
int fm_task_run(const struct fm_task *task, struct fm_sweep *sweep, const int32_t *ids, int batches,
                int micro, const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                int64_t *counts, struct fm_err *err);

/* Warn if the batch of a step has fewer leaves (lib/engine/sweep.h) than there are ranks. */
void fm_task_warn_idle(const struct fm_task *task, int batches, int rows);

/*
 * Copy sequences [at, at + n) of an endless stream to ids (n, T): all of calib in a seeded
 * permutation, then in the next one, and so on.
 */
int fm_task_draw(struct fm_task *task, int32_t *ids, uint64_t at, int n, struct fm_err *err);

/* To be called by all ranks between two steps: FM_ESAVED if one of them was asked to stop. */
int fm_task_stopped(const struct fm_task *task, struct fm_err *err);

/* Tokens of a part of the held-out sequences, for the estimate: all if there is no state file. */
uint64_t fm_task_part(const struct fm_task *task, uint64_t masks);

/* Items of a state file: the measurement in progress; return their number.  Before the items are
 * read from a file, fm_task_state_take allocates them. */
size_t fm_task_state_items(struct fm_journal_item *item, struct fm_task *task);
int fm_task_state_take(struct fm_task *task, const struct fm_journal *journal, struct fm_err *err);

/*
 * Measure masks `number` (count) of the family on the held-out sequences, without an adapter if it
 * is NULL, in pieces that fit into one sweep within the task's memory.  `took` is called with the
 * numbers and figures (n) of each piece, and may save them; with a state file, it is called with n
 * 0 after parts of a piece, which fm_task_state_items has.  Progress is reported over all pieces.
 * All ranks must call it; FM_ESAVED if one of them was asked to stop.
 */
typedef int fm_task_took(void *self, const int *number, const struct fm_quality *quality, int n,
                         struct fm_err *err);
int fm_task_measure(struct fm_task *task, const struct fm_masks *family, const int *number,
                    int count, const struct fm_adapter *adapter, fm_task_took *took, void *self,
                    struct fm_err *err);

/* FM_ECONFIG if the weights of a rank differ from those of rank 0. */
int fm_task_same_weights(const struct fm_task *task, struct fm_err *err);

#endif
