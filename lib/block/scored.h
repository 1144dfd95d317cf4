/*
 * Router block "scored": experts are chosen by their score, a sigmoid or a probability, plus a bias
 * that training learnt for the choice alone; groups of experts may be left out as a whole; weights
 * are the scores, divided by their sum or not, times a factor.  DeepSeek-V3, V2, GLM-4.5,
 * MiniMax-M2 and ERNIE-4.5 are variants of it.  The product before it has float32 operands in any
 * precision, as transformers computes it: choices hang on its last bits.
 */
#ifndef FM_SCORED_H
#define FM_SCORED_H

#include "lib/block/router.h"

/* How config.json speaks of groups. */
enum fm_scored_groups {
    FM_GROUPS_NONE,
    FM_GROUPS_NOAUX, /* n_group and topk_group always hold, a group is the sum of its two best;
                        topk_method, where there is one, says "noaux_tc" */
    FM_GROUPS_METHOD /* topk_method: "greedy", without groups, or "group_limited_greedy", where a
                        group is as good as its best */
};

/* What a family says of it. */
struct fm_scored_options {
    bool sigmoid; /* else softmax; scoring_func, where config.json has it, must say the same */
    enum fm_scored_groups groups;
    bool renormalised;     /* where config.json does not say, */
    bool norm_key;         /* which norm_topk_prob does, if this is set */
    double eps;            /* the sum of weights and this divides them */
    const char *least_key; /* key of the least divisor; NULL: there is none */
    double least;          /* where config.json does not say */
    const char *scale_key; /* key of the factor; NULL: routed_scaling_factor */
    double scale;          /* where config.json has none; 0: not read, 1 */
};

/* What config.json says of it. */
struct fm_scored {
    struct fm_route_rule rule;
};

extern const struct fm_router fm_scored;

/* The bias; `shape` is "E", or "1E" where checkpoints hold it as one row. */
/* clang-format off */
#define FM_SCORED_BIAS_WEIGHT(stock, ragged, shape)                                                \
    {{stock, stock, ragged}, FM_PART_ROUTER,                                                       \
     FM_LAYER_FIELD(router.choice_bias), shape, FM_MOE}
/* clang-format on */

#endif
