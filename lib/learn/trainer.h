/*
 * A run of fm-train, for the descriptors of methods (lib/masks/methods.h, lib/methods).  A method
 * reads the task, the options and the actions, extends the family, and keeps what else
 * it needs in `own`, which its begin allocates and its release frees.
 */
#ifndef FM_TRAINER_H
#define FM_TRAINER_H

#include "lib/learn/runner.h"
#include "lib/learn/train.h"
#include "lib/masks/actions.h"

/* The arrays of the family in the state file, in addition to its widths. */
struct fm_trainer_packed {
    int64_t *steps, *methods;
    double *quality;
};

struct fm_trainer {
    struct fm_runner runner; /* runner.taken: the method counts its steps there */
    struct fm_task task;
    struct fm_train_options given;
    const struct fm_train_options *options; /* given, with the width multiple chosen */
    const struct fm_method *method;         /* of the options */
    struct fm_actions actions;
    struct fm_masks masks; /* the family so far */
    void *own;             /* of the method */
    struct fm_trainer_packed packed;
    struct fm_train_report *report;
};

/* Sequences per sweep around a mask: all, if there are fewer than wanted. */
int fm_trainer_around(const struct fm_calib *calib, const struct fm_train_options *options);

#endif
