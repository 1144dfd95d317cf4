/*
 * Router block "scored": experts are chosen by their score, a sigmoid or a probability, plus a
 * trained bias that is used only for the choice; groups of experts may be left out as a whole;
 * weights are the scores, divided by their sum or not, times a factor.  DeepSeek-V2 and V3,
 * GLM-4.5, MiniMax-M2 and ERNIE-4.5 use variants of it.  The logits are computed from float32
 * operands whatever the precision of other products, as in transformers, because choices depend on
 * their last bits.
 */
#ifndef FM_SCORED_H
#define FM_SCORED_H

#include "lib/block/router.h"

/* How config.json describes groups. */
enum fm_scored_groups {
    FM_GROUPS_NONE,
    FM_GROUPS_NOAUX, /* n_group and topk_group always apply, and a group's score is the sum of its
                        two best scores; topk_method, if present, must be "noaux_tc" */
    FM_GROUPS_METHOD /* topk_method is "greedy", without groups, or "group_limited_greedy", where a
                        group's score is the score of its best expert */
};

/* Options of a family. */
struct fm_scored_options {
    bool sigmoid; /* else softmax; scoring_func, if config.json has it, must agree */
    enum fm_scored_groups groups;
    bool renormalised;     /* weights are divided by their sum; with norm_key, the default */
    bool norm_key;         /* norm_topk_prob of config.json overrides it */
    double eps;            /* added to the sum by which weights are divided */
    const char *least_key; /* key of the minimum of that divisor; NULL: none */
    double least;          /* default of that minimum */
    const char *scale_key; /* key of the factor of weights; NULL: routed_scaling_factor */
    double scale;          /* default of that factor; 0: the factor is 1 and is not read */
};

/* Values read from config.json. */
struct fm_scored {
    struct fm_route_rule rule;
};

extern const struct fm_router fm_scored;

/* Row of the choice bias; `shape` is "E", or "1E" if checkpoints store it as one row. */
/* clang-format off */
#define FM_SCORED_BIAS_WEIGHT(stock, ragged, shape)                                                \
    {{stock, stock, ragged}, FM_PART_ROUTER,                                                       \
     FM_LAYER_FIELD(router.choice_bias), shape, FM_MOE}
/* clang-format on */

#endif
