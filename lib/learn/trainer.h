/*
 * A run of fm-train, for the descriptors of methods (lib/masks/methods.h, lib/methods).  A method
 * reads the task, the options, the actions and the range, extends the family, and keeps what else
 * it needs in `own`, which its begin allocates and its release frees.
 */
#ifndef FM_TRAINER_H
#define FM_TRAINER_H

#include "lib/learn/options.h"
#include "lib/learn/task.h"
#include "lib/masks/actions.h"
#include "lib/masks/methods.h"

/* The budgets of a family, and which of its masks are measured. */
struct fm_trainer_range {
    struct fm_decimal step, until, measure;
};

struct fm_trainer {
    struct fm_task task;
    const struct fm_train_options *options;
    const struct fm_method *method; /* of the options */
    struct fm_actions actions;
    struct fm_trainer_range range;
    struct fm_masks masks; /* the family so far */
    int64_t taken;         /* number of steps so far; the method counts them */
    void *own;             /* of the method */
    struct fm_digest params;
    struct fm_journal_clock clock;
    struct {
        double make, measure;
    } work;      /* FLOPs of each part, as estimated */
    bool warned; /* of a method that ran out of steps */
    int resumed; /* steps restored from the state file */
};

/* Everything from which a method's sweeps are planned, before the output or the state file is
 * opened. */
struct fm_trainer_plan {
    const struct fm_train_options *options;
    const struct fm_task *task;
    const struct fm_trainer_range *range;
};

/* Sequences per step of a method that trains; and per sweep around a mask: all, if there are fewer
 * than wanted. */
int fm_trainer_batch(const struct fm_run_options *run);
int fm_trainer_around(const struct fm_calib *calib, const struct fm_train_options *options);

/* Add an array to a state file's. */
void fm_trainer_item(struct fm_journal_item *item, size_t *items, const char *name,
                     enum fm_dtype dtype, uint64_t count, void *data);

#endif
