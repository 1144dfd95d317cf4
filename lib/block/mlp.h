/*
 * The MLP that every token of a layer goes through: the MLP of a dense layer, or the shared expert
 * of a layer with experts, whose output may be multiplied by sigmoid(w x), with a vector w.  It has
 * the activation of the experts and no biases, and it is never pruned.
 */
#ifndef FM_MLP_H
#define FM_MLP_H

#include "lib/block/pass.h"

/* y (N, H) += MLP of x (N, H).  kept (N, 2 D), gate and up, is kept for the backward; NULL: they
 * are computed again. */
void fm_mlp_forward(const struct fm_pass *pass, float *kept, float *y, const float *x);
/* Add the gradient at x, computed from dy (N, H), to dx (N, H). */
void fm_mlp_backward(const struct fm_pass *pass, float *kept, float *dx, const float *dy,
                     const float *x);

/* Operations of the products for one token of layer l, forward. */
double fm_mlp_flops(const struct fm_config *config, int l);

/* Parameters of one channel. */
static inline uint64_t fm_mlp_channel_params(int H)
{
    return 3 * (uint64_t)H;
}

/* The MLP's three matrices, (D, H), (D, H), (H, D), in layers selected by `when`: names in
 * checkpoints and bundles, and in ragged exports, which follow transformers' classes; and the
 * vector w. */
/* clang-format off */
#define FM_MLP_NAMED(stock, ragged, part, shape, when)                                             \
    {{stock ".weight", stock ".weight", ragged ".weight"}, part, 0, shape, when}
#define FM_MLP_WEIGHTS_AS(stock, ragged, when)                                                     \
    FM_MLP_NAMED(stock "gate_proj", ragged "gate_proj", FM_PART_MLP_GATE, "DH", when),             \
    FM_MLP_NAMED(stock "up_proj", ragged "up_proj", FM_PART_MLP_UP, "DH", when),                   \
    FM_MLP_NAMED(stock "down_proj", ragged "down_proj", FM_PART_MLP_DOWN, "HD", when)
#define FM_MLP_WEIGHTS(prefix, when) FM_MLP_WEIGHTS_AS(prefix, prefix, when)
#define FM_MLP_MIX_WEIGHT(n)                                                                       \
    {FM_SAME(n), FM_PART_MIX, FM_LAYER_FIELD(mlp_mix), "1H", FM_SHARED}
/* clang-format on */

#endif
