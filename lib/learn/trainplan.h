/*
 * What a run of fm-train will do: which families it makes, how many sequences a step of each reads,
 * and what that costs.
 */
#ifndef FM_TRAINPLAN_H
#define FM_TRAINPLAN_H

#include "lib/learn/estimate.h"
#include "lib/learn/trainstate.h"

/* So many sequences, or all there are. */
int fm_train_sequences(const struct fm_calib *calib, int want);

/* Sequences of a budget of exchange, or of a round of --refine. */
int fm_train_around(const struct fm_calib *calib, const struct fm_train_options *o);

/* Sequences of a step of learning. */
int fm_train_batch(const struct fm_run_options *run);

/* Work, memory and disk of making and measuring the masks. */
void fm_trainplan_estimate(struct fm_estimate *estimate, const struct fm_train_options *o,
                           struct fm_task *task, const struct fm_decimal *step,
                           const struct fm_decimal *until);

/* Offer what would take less: fewer steps, or a method that takes none. */
void fm_trainplan_offer(struct fm_estimate *estimate, const struct fm_train_options *o,
                        struct fm_task *task, const struct fm_decimal *step,
                        const struct fm_decimal *until);

/* The trainer's shares of an estimate, in the order in which fm_trainplan_estimate added them. */
void fm_trainplan_work(struct fm_trainer *t, const struct fm_estimate *estimate);

#endif
