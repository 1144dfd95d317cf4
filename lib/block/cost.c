/*
 * Sums over a layer's blocks.  A product of (N, K) and (K, M) is counted as 2 N K M operations, so
 * that plans can be compared with the counts of fm-bench's meter.
 */
#include "lib/block/cost.h"

#include "lib/block/experts.h"
#include "lib/block/mlp.h"

/* The router's products, forward or backward; 0 for a dense layer. */
static double router(const struct fm_config *c, int l)
{
    return fm_config_moe(c, l) < 0 ? 0 : c->router->flops(c);
}

struct fm_flops fm_cost_layer(const struct fm_config *c, int l, int T)
{
    struct fm_flops f = fm_attention_of(c, l)->flops(c, l, T);
    f.products += router(c, l) + fm_mlp_flops(c, l);
    return f;
}

double fm_cost_expert(const struct fm_config *c)
{
    return 2.0 * (double)fm_expert_channel_weights(c->expert, c->H) * c->I;
}

double fm_cost_lm_head(const struct fm_config *c)
{
    return 2.0 * c->H * c->V;
}

/* Boundaries, norms and their gradients take 8 H floats, 4 H more with output norms or a residual
 * scale, and 8 H more if experts and MLP are apart; the MLP's gate, up, activation and their
 * gradients take 6 times its width; the rows of K experts take K H. */
uint64_t fm_cost_token_floats(const struct fm_config *c)
{
    uint64_t H = (uint64_t)c->H, mlp = (uint64_t)(c->dense > c->shared ? c->dense : c->shared);
    uint64_t output = c->output_norms || c->residual_scale != 1 ? 4 : 0, apart = c->apart ? 8 : 0;
    return (8 + output + apart) * H + c->attention->scratch(c) + 6 * mlp + (uint64_t)c->K * H;
}

/* Input, output and gradient of the row (H each); the products of gate_up (r I) and the activation
 * (I), with their gradients. */
uint64_t fm_cost_row_floats(const struct fm_config *c)
{
    return 3 * (uint64_t)c->H + 2 * ((uint64_t)c->expert->rows + 1) * (uint64_t)c->I;
}
