/*
 * Router blocks "softmax" and "softmax-raw": the K largest of a softmax over all experts, with
 * their probabilities as weights; renormalised to sum 1, or as they are.
 */
#ifndef FM_SOFTMAX_H
#define FM_SOFTMAX_H

#include "lib/block/router.h"

/* What a family says of it. */
struct fm_softmax_options {
    bool renormalised; /* where config.json does not say */
    bool key;          /* norm_topk_prob of config.json says */
};

/* A family names the first; its `read` sets the one that the weights are. */
extern const struct fm_router fm_softmax, fm_softmax_raw;

#endif
