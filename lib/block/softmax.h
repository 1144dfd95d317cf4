/*
 * Router blocks "softmax" and "softmax-raw": the K largest of a softmax over all experts, with
 * their probabilities as weights; renormalised to sum 1, or raw.  "softmax-scaled": renormalised,
 * then multiplied by a factor of each expert.
 */
#ifndef FM_SOFTMAX_H
#define FM_SOFTMAX_H

#include "lib/block/router.h"

/* Options of a family. */
struct fm_softmax_options {
    bool renormalised; /* default */
    bool key;          /* norm_topk_prob of config.json overrides the default */
    bool scaled;       /* renormalised, and every expert has a factor; no key overrides it */
};

/* A family names fm_softmax, whose `read` installs the block that config.json selects. */
extern const struct fm_router fm_softmax, fm_softmax_raw, fm_softmax_scaled;

#endif
