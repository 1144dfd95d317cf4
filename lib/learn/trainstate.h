/*
 * A training run and its state file: logits, the families so far and what was measured of
 * them.  A run that finds the state of one with the same parameters continues there.
 */
#ifndef FM_TRAINSTATE_H
#define FM_TRAINSTATE_H

#include "lib/learn/learn.h"
#include "lib/learn/options.h"
#include "lib/learn/walk.h"
#include "lib/run/journal.h"

enum {
    FM_TRAIN_MADE,   /* what the method makes */
    FM_TRAIN_RESULT, /* what the stream gets: that, filled, refined and measured */
    FM_TRAIN_FAMILIES
};

struct fm_trainer {
    struct fm_task task;
    const struct fm_train_options *options;
    struct fm_actions actions;
    struct fm_decimal step, until;
    struct fm_learn learn; /* in use if `learns` */
    struct fm_walk walk;
    bool learns, walks, exchanges; /* one of them, or none */
    struct fm_worth worth;         /* of exchange, then of --refine */
    int64_t idle;                  /* of the mask at hand, the last rounds that found nothing */
    int64_t refined;               /* rounds of --refine; -1: gaps are filled since */
    struct fm_masks masks[FM_TRAIN_FAMILIES];
    struct fm_digest params;
    struct fm_journal_clock clock;
    struct {
        double make, refine, measure;
    } work;      /* of each part, in FLOPs, as estimated */
    bool warned; /* that the method came short of `until` */
    int resumed; /* steps and budgets that came from the state file */
};

/* Steps of training, or budgets that a walk has come to. */
int fm_trainstate_steps(const struct fm_trainer *t);

/* Write run->state; the same only where the last time is long ago. */
int fm_trainstate_save(struct fm_trainer *t, struct fm_err *err);
int fm_trainstate_save_if_due(struct fm_trainer *t, struct fm_err *err);

/* Read run->state, if there is one, into a trainer that is ready to begin.  FM_ECONFIG where it
 * belongs to another run. */
int fm_trainstate_resume(struct fm_trainer *t, struct fm_err *err);

#endif
