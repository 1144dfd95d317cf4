/*
 * Private to kernels/: the inner loop of a product whose result is used at once and never written
 * to memory.  oneDNN cannot do this: it writes each product to an array, and reading that array in
 * addition to the weights costs a fifth of the time.
 */
#ifndef FM_KERNELS_CPU_TILE_H
#define FM_KERNELS_CPU_TILE_H

#include "kernels/ops/kernels.h"

enum { FM_TILE_COLS = 32, FM_TILE_ROWS_MAX = 14 };

/* run: d (rows, FM_TILE_COLS) = a^T b, a (n, rows), b (n, FM_TILE_COLS), all packed.  A sum is
 * computed over n in order, in float32, with fused multiply-add. */
struct fm_cpu_tile {
    int rows;
    void (*run)(float *d, const float *a, const float *b, int n);
};

/* The index-th tile that the level of lib/base/isa.h allows, fastest first; NULL after the last. */
const struct fm_cpu_tile *fm_cpu_tile_get(int index);

/* channel_scores of the float32 table, computed with `tile`, or with products if it is NULL. */
void fm_cpu_tile_scores(const struct fm_cpu_tile *tile, double *s, struct fm_in gate_up,
                        struct fm_in down, struct fm_in dgu, struct fm_in x, struct fm_in h,
                        struct fm_in dy, int n, int I, int H);

/* channel_scores_each for bfloat16 rows, with the instruction VDPBF16PS; gate_up and down may be
 * F32 or BF16.  A sum over the rows of a batch is computed in float32, two rows at a time, in
 * order.  Only where fm_isa_avx512_bf16(). */
void fm_cpu_bf16_scores(double *s, struct fm_in gate_up, struct fm_in down, const uint16_t *dgu,
                        const uint16_t *x, const uint16_t *h, const uint16_t *dy,
                        const int32_t *first, int parts, int I, int H);

#endif
