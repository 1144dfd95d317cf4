/* The kernels of the check itself: random numbers, and the definition in float64. */
#ifndef TESTS_GPU_KERNELS_CUH
#define TESTS_GPU_KERNELS_CUH

#include <stdint.h>

#include "kernels/clip/clip.h"

static __device__ __host__ inline double number_at(const void *base, int type, int64_t i)
{
    if (type == FM_CLIP_F16)
        return __half2float(((const __half *)base)[i]);
    return __bfloat162float(((const __nv_bfloat16 *)base)[i]);
}

static __device__ inline uint64_t mixed(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Roughly normal numbers, each a sum of four uniform ones. */
static __global__ void fill_numbers(void *to, int type, int64_t n, uint64_t seed, float scale)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t bits = mixed(seed * 0x100000001b3u + (uint64_t)i);
        float sum = 0;
        for (int j = 0; j < 4; j++)
            sum += (float)(bits >> 16 * j & 0xffff) / 65536.0f - 0.5f;
        float v = sum * 1.7320508f * scale;
        if (type == FM_CLIP_F16)
            ((__half *)to)[i] = __float2half_rn(v);
        else
            ((__nv_bfloat16 *)to)[i] = __float2bfloat16_rn(v);
    }
}

/* h[i, c] = silu(gate_c . x) (up_c . x) of slot i, one warp per (i, c). */
static __global__ void define_h(double *h, const void *hidden, const void *gate_up, int type, int H,
                                int I, const int64_t *row0, const int32_t *expert,
                                const int32_t *width, const int32_t *token, int slots)
{
    int64_t warp = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32;
    int lane = (int)threadIdx.x % 32;
    for (; warp < (int64_t)slots * I; warp += (int64_t)gridDim.x * blockDim.x / 32) {
        int i = (int)(warp / I), c = (int)(warp % I);
        double g = 0, u = 0;
        if (c < width[i]) {
            int64_t row = 2 * (row0[expert[i]] + c) * H, x = (int64_t)token[i] * H;
            for (int j = lane; j < H; j += 32) {
                double v = number_at(hidden, type, x + j);
                g += v * number_at(gate_up, type, row + j);
                u += v * number_at(gate_up, type, row + H + j);
            }
        }
        for (int d = 16; d > 0; d /= 2) {
            g += __shfl_xor_sync(0xffffffffu, g, d);
            u += __shfl_xor_sync(0xffffffffu, u, d);
        }
        if (lane == 0)
            h[warp] = c < width[i] ? g / (1 + exp(-g)) * u : 0;
    }
}

/* out[t] is the sum over the K slots of token t, size[t] the sum of the terms' absolute values. */
static __global__ void define_out(double *out, double *size, const double *h, const void *down,
                                  int type, int H, int I, const int64_t *row0,
                                  const int32_t *expert, const int32_t *width, const float *weights,
                                  int tokens, int K)
{
    int column = (int)(blockIdx.x * blockDim.x + threadIdx.x), t = (int)blockIdx.y;
    if (column >= H || t >= tokens)
        return;
    double sum = 0, most = 0;
    for (int s = 0; s < K; s++) {
        int i = t * K + s;
        for (int c = 0; c < width[i]; c++) {
            double term = weights[i] * h[(int64_t)i * I + c] *
                          number_at(down, type, (row0[expert[i]] + c) * H + column);
            sum += term;
            most += fabs(term);
        }
    }
    out[(int64_t)t * H + column] = sum;
    size[(int64_t)t * H + column] = most;
}

#endif
