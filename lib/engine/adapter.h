/*
 * What fm-recover trains: LoRA adapters on gate, up and down of every expert, only on the channels
 * that a mask keeps (fm-method(7)); or differences that are added to the routers' weights; or down
 * projections that replace the ranked ones.
 * Adapters are merged into weights in the online layout.
 *
 * Expert of width k, rank r, s = alpha / r:
 *     gate row j  += s * gate_B[j,:] gate_A          gate_A (r, H), gate_B (k, r)
 *     up   row j  += s * up_B[j,:] up_A              up_A   (r, H), up_B   (k, r)
 *     down row j  += s * (down_B down_A)[:, j]       down_A (r, k), down_B (H, r)
 * (down is stored transposed, so its row j is column j of the usual matrix).
 *
 * Router of a layer: W (E, H) += difference, and the bias of its logits (E) += difference, if there
 * is one.  A bias that serves only the choice of experts has no gradient and is left as it is.
 */
#ifndef FM_ADAPTER_H
#define FM_ADAPTER_H

#include <stdint.h>

#include "kernels/ops/kernels.h"
#include "lib/base/err.h"

enum fm_lora { FM_GATE_A, FM_GATE_B, FM_UP_A, FM_UP_B, FM_DOWN_A, FM_DOWN_B, FM_LORA_PARTS };

struct fm_adapter {
    bool router;         /* it adapts routers; r, alpha and all widths are 0 */
    bool biased;         /* routers have a bias */
    bool down;           /* it replaces the down projections; r and alpha are 0, and all widths I */
    enum fm_dtype dtype; /* of these projections */
    int M, E, H, r;
    float alpha;
    uint32_t *widths; /* (M, E): channels with an adapter */
    uint64_t *offset; /* (M E + 1): floats before expert e of the m-th layer of experts; for
                         routers and down, only the entries with e = 0 are valid */
    float *values; /* all parts, expert by expert, in the order of enum fm_lora; for routers (E, H)
                      and, if biased, (E), layer by layer; for down (E, I, H) of `dtype`, layer
                      by layer, each in whole floats */
};

/* Compute sizes from widths (M, E), which are copied; set values to zero.  fm_adapter_release
 * accepts a zeroed struct. */
int fm_adapter_init(struct fm_adapter *a, int M, int E, int H, int r, float alpha,
                    const uint32_t *widths, struct fm_err *err);
void fm_adapter_release(struct fm_adapter *a);

/* The same for routers. */
int fm_adapter_init_routers(struct fm_adapter *a, int M, int E, int H, bool biased,
                            struct fm_err *err);

/* The same for down projections of I channels, stored as `dtype`. */
int fm_adapter_init_down(struct fm_adapter *a, int M, int E, int H, int I, enum fm_dtype dtype,
                         struct fm_err *err);

/* Set the initial values, which depend only on the seed: A is normal with standard deviation 1/r, B
 * is zero; for routers all are zero. */
void fm_adapter_start(struct fm_adapter *a, uint64_t seed);

/* A part of expert e of the m-th layer with experts, inside a block with the layout of `values`:
 * values, gradients or moments. */
float *fm_adapter_part(const struct fm_adapter *a, float *block, int m, int e, enum fm_lora part);

/* Add the adapter of that expert to, or replace down in, gate_up (2 cap, H) and down (cap, H),
 * which the caller copied from the base; rows [width, cap) are not changed.  Either may be NULL. */
void fm_adapter_merge(const struct fm_adapter *a, const struct fm_ops *ops, float *gate_up,
                      float *down, int m, int e);

/* The down projection of expert e of the m-th layer with experts: (I, H), transposed. */
void *fm_adapter_down(const struct fm_adapter *a, int m, int e);

/* The differences to the router of the m-th layer with experts: (E, H) for its weights, then (E)
 * for its bias. */
const float *fm_adapter_router(const struct fm_adapter *a, int m);

#endif
