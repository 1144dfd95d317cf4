/*
 * The methods of fm-train: the ways to make a family of masks.  Each is one descriptor in its own
 * file in lib/methods, and one row of the list below; other code reads the descriptor, and names a
 * method only to choose that one.  A descriptor has facts, which other rooms may read too, and the
 * functions of a run, which lib/learn calls (lib/learn/trainer.h).
 */
#ifndef FM_METHODS_H
#define FM_METHODS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"
#include "lib/masks/masks.h"

struct cJSON;
struct fm_estimate_sweep;
struct fm_journal_item;
struct fm_task;
struct fm_train_options;
struct fm_trainer;

struct fm_method {
    const char *name; /* of --method, in manifests and messages */

    /* ---- facts ---- */

    bool trains; /* it trains on batches in steps, and has the options of training; the step of a
                    mask is the number of these steps */
    bool shapes; /* it gives each expert a width: --granularity applies, gaps between masks are
                    filled, and the step of a mask is the number of a budget, unless it trains */
    bool weighs; /* it compares experts by their scores, which only scores by taylor allow; if it
                    trains, only with a --prior above 0 */
    struct fm_decimal actions; /* step of the usual --actions; den 0: one for each budget step up
                                  to --until */

    /* ---- functions; one that is NULL does nothing ---- */

    /* Describe the sweeps of all steps in *sweep; T and kept are already set.  NULL: the method
     * takes no steps. */
    void (*cost)(struct fm_estimate_sweep *sweep, const struct fm_train_options *o,
                 const struct fm_task *task);
    /* Add masks to t->masks, which has the full one: all of them, or none before the first step. */
    int (*begin)(struct fm_trainer *t, struct fm_err *err);
    /* Take a step, or set *done if the family is complete.  After an error, the state that save
     * lists is as before the step. */
    int (*step)(struct fm_trainer *t, bool *done, struct fm_err *err);
    /* Add the method's arrays to those of a state file, which has the family already. */
    void (*save)(struct fm_journal_item *item, size_t *items, struct fm_trainer *t);
    /* Called when these arrays, and the family, have been read. */
    void (*resumed)(struct fm_trainer *t);
    /* Channels removed by the steps themselves; NULL: those that the last mask removes. */
    uint64_t (*removed)(const struct fm_trainer *t, const struct fm_masks *f);
    /* Add its options to the manifest. */
    void (*record)(struct cJSON *options, const struct fm_trainer *t);
    void (*release)(struct fm_trainer *t); /* free what begin allocated; begin may have failed */
};

/* The list, in the order of --help: a row NAME for each method, whose file defines fm_method_NAME.
 * State files have the position of a method in the list. */
/* clang-format off */
#define FM_METHOD_ROWS(ROW) \
    ROW(learned)            \
    ROW(saliency)           \
    ROW(uniform)            \
    ROW(exchange)
/* clang-format on */

#define FM_METHOD_DECLARE(name) extern const struct fm_method fm_method_##name;
FM_METHOD_ROWS(FM_METHOD_DECLARE)

/* All methods, in the order of the list; the last is NULL. */
extern const struct fm_method *const fm_methods[];
#define FM_METHODS_MAX 16

/* NULL if no method has that name. */
const struct fm_method *fm_methods_find(const char *name);
/* The position of a method in fm_methods. */
int fm_methods_index(const struct fm_method *method);

#endif
