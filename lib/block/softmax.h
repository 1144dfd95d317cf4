/*
 * Router blocks "softmax" and "softmax-raw": the K largest of a softmax over all experts, with
 * their probabilities as weights; renormalised to sum 1, or raw.
 */
#ifndef FM_SOFTMAX_H
#define FM_SOFTMAX_H

#include "lib/block/router.h"

/* Options of a family. */
struct fm_softmax_options {
    bool renormalised; /* default */
    bool key;          /* norm_topk_prob of config.json overrides the default */
};

/* A family names fm_softmax, whose `read` installs the block that config.json selects. */
extern const struct fm_router fm_softmax, fm_softmax_raw;

#endif
