/*
 * This room, kernels/serve: what a decoder needs to serve token after token, which training does
 * not: a cache, products with bfloat16 weights, and the same on a GPU.  Only fm-bench serve uses
 * it, to show what clipping is worth in a whole model.  In reading order: this header,
 * cpu_serve.c, serve_gpu.h, serve_cuda.cuh.
 *
 * What a serving loop needs beside the table of operations and libfm_clip: products with weights
 * that stay in bfloat16, a cache of keys and values, and attention of one new position over it.
 * The letters are those of kernels/ops/kernels.h; the bits of a row do not depend on the threads.
 *
 * The contract is another than that of struct fm_device, on purpose.  What is measured here is what
 * a server does, and servers call libfm_clip, whose layers and rows are plain pointers of the host
 * or of CUDA (kernels/clip/clip.h), never memory of an fm_device.  So on the CPU everything here is
 * the host's memory, for a table whose device is the host (fm_device_host) and no other; on a GPU
 * serve_gpu.h keeps arrays, stream and errors by libfm_clip's idiom, because one step is one
 * captured graph: an alloc, a copy or a sync between its operations would end the capture.
 */
#ifndef FM_SERVE_KERNELS_H
#define FM_SERVE_KERNELS_H

#include "kernels/ops/kernels.h"
#include "lib/base/dtype.h"

/* Keys and values of one layer. */
struct fm_serve_cache {
    enum fm_dtype dtype; /* F32 or BF16 */
    int T, G, C;         /* most positions */
    void *k, *v;         /* (S, T, G, C) each */
};

/* y (M, N) = x (M, K) w^T + beta y, beta 0 or 1; w (N, K) of `dtype`, F32 or BF16, is widened a
 * few rows at a time.  M, N and K are the product's own sizes, as those of gemm are. */
void fm_serve_product(const struct fm_ops *ops, float *y, const float *x, const void *w,
                      enum fm_dtype dtype, int M, int N, int K, float beta);

/* k, v (S, n, G, C) become positions [t0, t0 + n) of sequences [s0, s0 + S).  Both are rounded in
 * place to what the cache holds, so that what follows sees the values that later steps will. */
void fm_serve_store(const struct fm_serve_cache *cache, float *k, float *v, int s0, int S, int t0,
                    int n);

/* o (S, Q, C): one position q (S, Q, C) of each of the first S sequences looks at the first
 * `length` in the cache; query head h on key head h / (Q / G), scores times C^-0.5. */
void fm_serve_attend(float *o, const float *q, const struct fm_serve_cache *cache, int S, int Q,
                     int length);

#endif
