/*
 * Private to kernels/: channel_scores on CPUs whose matrix registers multiply bfloat16 (AMX).
 */
#ifndef FM_KERNELS_CPU_AMX_H
#define FM_KERNELS_CPU_AMX_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops/kernels.h"

/* The CPU has them and the system lets this process use them. */
bool fm_cpu_amx(void);

/*
 * Adds into s (I) the sum over the `per` rows i of channel i / per, and over H, of (W dW)^2, where
 * dW (per I, H) = a^T b is made in float32, 32 x 32 values at a time, and dropped.  a (n, per I)
 * and b (n, H) are BF16, W (per I, H) F32 or BF16.  Needs fm_cpu_amx.
 */
void fm_cpu_amx_scores(double *s, int per, struct fm_in W, const uint16_t *a, const uint16_t *b,
                       int n, int I, int H);

#endif
