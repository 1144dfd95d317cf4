/*
 * The run of a tool that computes: fm-rank, fm-train, fm-recover.  The runner opens inputs, checks
 * memory and disk, resumes and saves the state, takes the steps, writes the stream, and makes the
 * forecast of a --dry-run.  What the three do differently is in a struct fm_work, whose functions
 * receive the tool's own struct, `self`.
 *
 *     open, plan                  before anything is computed
 *     params, begin, resumed      the state file is read into the arrays that begin allocated
 *     step, step, ...             between steps the run can stop, and saves its state
 *     finish, report              what follows the last step: measuring, the result for the user
 *     record, result, members     the stream, written by rank 0
 */
#ifndef FM_RUNNER_H
#define FM_RUNNER_H

#include "formats/file/text.h"
#include "lib/learn/task.h"

#define FM_WORK_MEMBERS 2

/* Of the functions, those marked so may be NULL. */
struct fm_work {
    const char *tool;    /* "fm-rank": of state files and history */
    enum fm_stage stage; /* members that it replaces, and whose successors it drops */
    const char *needs;   /* a member of run->inputs.stream; NULL: the run does not read a stream */
    int batch;           /* sequences of a step without --batch */
    /* For messages about steps: "rank", "batch", "batches".  NULL: steps report themselves. */
    const char *verb, *unit, *units;

    /* ---- before the run ---- */

    /* Choose what depends on the model, the tokens and the stream.  In a dry run the stream may be
     * absent (task->in.members 0). */
    int (*open)(void *self, struct fm_err *err);
    /* Describe memory, disk and sweeps in *estimate; estimate->making is the FLOPs of the steps. */
    fm_task_planner *plan;
    /* For --dry-run: add what only the user needs, such as suggestions. */
    void (*forecast)(void *self, struct fm_estimate *estimate);

    /* ---- the run ---- */

    /* Print the tool's own options that determine the result.  runner.c:digest_params adds what
     * determines the results of all tools. */
    void (*params)(void *self, struct fm_text *text);
    /* Allocate everything, as it is before the first step. */
    int (*begin)(void *self, struct fm_err *err);
    /* List the arrays of the state. */
    size_t (*state)(void *self, struct fm_journal_item *item);
    /* Before the arrays are read: allocate those that grow during a run.  May be NULL. */
    int (*size)(void *self, const struct fm_journal *journal, struct fm_err *err);
    /* After they have been read: check them, and set runner->taken, unless it is one of them.  May
     * be NULL. */
    int (*resumed)(void *self, struct fm_err *err);
    /* Before they are saved: collect what other ranks or structs have.  May be NULL. */
    int (*collect)(void *self, struct fm_err *err);
    /* Take a step, and set runner->taken; or set *done if there are no more. */
    int (*step)(void *self, bool *done, struct fm_err *err);
    int (*finish)(void *self, struct fm_err *err);
    /* Fill the report for the user; its seconds are in the runner. */
    int (*report)(void *self, struct fm_err *err);

    /* ---- the stream ---- */

    /* Add to "options" and to "result" of the history entry. */
    void (*record)(void *self, cJSON *options);
    void (*result)(void *self, cJSON *result);
    /* Make members, whose data the runner frees, and complete the manifest. */
    int (*members)(void *self, cJSON *manifest, struct fm_stage_member *member, size_t *members,
                   struct fm_err *err);
};

struct fm_runner {
    const struct fm_work *work;
    void *self;
    struct fm_task *task;
    int64_t steps;                   /* set by open or begin: number of all steps; 0: unknown */
    int64_t taken;                   /* steps so far */
    int resumed;                     /* of these, those from the state file */
    bool advanced;                   /* something was done that the state file does not have */
    double work_steps, work_measure; /* FLOPs, as estimated */
    double seconds, seconds_step;    /* of the whole run; mean of a step, 0: no step */
    struct fm_digest params;
    struct fm_journal_clock clock;
};

/*
 * The caller sets work, self and task, and afterwards closes the task and releases what begin and
 * open made, also after an error.  If `dry` is not NULL, only fill that: --dry-run, which reads
 * run->inputs.stream unless it is standard input.
 */
int fm_runner_run(struct fm_runner *runner, const struct fm_run_options *run,
                  struct fm_estimate *dry, struct fm_err *err);

/* After a step or a part of a measurement: save the state if it is time.  A run that is stopped
 * before the first of them writes no state file, or leaves that of an earlier run as it is. */
int fm_runner_due(struct fm_runner *runner, struct fm_err *err);

/* The manifest of the stream, for its size in a forecast; takes ownership of model. */
cJSON *fm_runner_manifest(struct fm_runner *runner, cJSON *model);

/* An array for the state. */
void fm_runner_item(struct fm_journal_item *item, size_t *items, const char *name,
                    enum fm_dtype dtype, uint64_t count, void *data);

#endif
