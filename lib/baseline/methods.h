/*
 * The suite's own methods.  Each function does what a user would do with a tool, on streams in a
 * working directory.  None of them uses the tokens on which quality is measured.
 */
#ifndef FM_METHODS_H
#define FM_METHODS_H

#include "lib/learn/criterion.h"
#include "lib/masks/masks.h"
#include "lib/baseline/spent.h"
#include "lib/run/run.h"

/* Each writes the stream `to`, replacing it; *spent receives its cost.  steps 0: the default. */
int fm_methods_rank(const struct fm_run_options *run, const char *to, enum fm_criterion criterion,
                    struct fm_spent *spent, struct fm_err *err);
int fm_methods_train(const struct fm_run_options *run, const char *from, const char *to,
                     enum fm_method method, const char *until, int steps, struct fm_spent *spent,
                     struct fm_err *err);
int fm_methods_recover(const struct fm_run_options *run, const char *from, const char *to,
                       int steps, struct fm_spent *spent, struct fm_err *err);

/* fm-train's default method. */
enum fm_method fm_methods_usual(void);

#endif
