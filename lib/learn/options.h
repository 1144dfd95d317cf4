/* Options of fm-train, and constants that are not options. */
#ifndef FM_LEARN_OPTIONS_H
#define FM_LEARN_OPTIONS_H

#include <stdint.h>

#include "lib/masks/masks.h"
#include "lib/masks/methods.h"

/* Limits of the options; the library and the command line refuse values outside them. */
#define FM_TRAIN_STEPS_MAX 1000000
#define FM_TRAIN_SAMPLES_MAX 64 /* each is a lane of the sweep, in addition to the teacher */
#define FM_TRAIN_PRIOR_MAX 1000
#define FM_TRAIN_LR_MIN 1e-12
#define FM_TRAIN_LR_MAX 1000
#define FM_TRAIN_MULTIPLE_MAX (1 << 20)

struct fm_train_options {
    const struct fm_method *method;
    enum fm_granularity granularity; /* experts that share a width; not for uniform */
    /* "0.1,0.4,0.7,1"; NULL: ten, from 0.1 to 1; for exchange twenty, from 0.05 to 1; one per
     * budget step for uniform, and if all experts share one width. */
    const char *actions;
    uint32_t width_multiple;        /* 0: the ranking's channel group */
    struct fm_decimal budget_step;  /* 0.01 */
    struct fm_decimal until;        /* 0.80 */
    struct fm_decimal measure_step; /* 0.05: the masks nearest to its multiples are measured */
    int steps;                      /* 500 */
    int samples;                    /* subnets per batch, 1 */
    /* eta, 4: strength with which the scores initialise the logits; 0: as in the paper
     * (fm-method(7)).  On a small trained model, over three seeds, the loss with 4 is 0.002 lower
     * than with 2 at a budget of 0.4, 0.001 lower at 0.2 and 0.001 higher at 0.6. */
    double prior;
    double lr; /* of Adam on the logits, 0.02 */
    /* Constants without an option. */
    double beta1, beta2;                /* Adam: 0.9 0.99 */
    double tau_first, tau_last;         /* temperature: 2 0.5 */
    double entropy_first, entropy_last; /* weight of the entropy: 0.02 0 */
    double gain; /* of the controller, which divides it by the number of steps: 400; with 200 and
                    eta 4, runs often end below `until` */
    int around_sequences; /* minimum sequences per sweep of exchange: 8 */
    int around_tokens;    /* minimum tokens of such a sweep: 2560 */
};

#endif
