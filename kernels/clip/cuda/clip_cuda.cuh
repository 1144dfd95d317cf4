/*
 * Device helpers of the clipped FFN: number types, the gate, the exchange inside a quad, and the
 * tiles of a block.
 */
#ifndef FM_CLIP_CUDA_CUH
#define FM_CLIP_CUDA_CUH

#include "kernels/clip/cuda/clip_cuda_job.h"
#include "kernels/clip/cuda/clip_cuda_maps.h"
#include "kernels/clip/cuda/clip_cuda_ptx.cuh"

__device__ __forceinline__ float to_float(__half v)
{
    return __half2float(v);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

/* Rounded once, to nearest, ties to even. */
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ __half from_float<__half>(float v)
{
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}

/* Two numbers of 16 bits in one register, `low` at the lower address. */
template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high)
{
    __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
}
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&v);
}

/* silu(g) u with fast exponential and division (errors of a few units in the last place of
 * float32): for results that are rounded to 16 bits.  Below about -87 the quotient is 0; the
 * exact one is at most about 1e-36. */
__device__ __forceinline__ float gated_fast(float g, float u)
{
    return __fdividef(g, 1.0f + __expf(-g)) * u;
}

/* The exchange described at fm_map_quad_keep: v[c] is the channel that this lane has in group c of
 * four; returns the four consecutive channels that it gets. */
template <typename T>
__device__ __forceinline__ uint2 quad_channels(const float v[4], uint32_t lane)
{
    uint32_t pair[2];
    bool odd = fm_map_quad_keep(lane, 0), high = fm_map_quad_keep(lane, 1);
#pragma unroll
    for (int p = 0; p < 2; p++) {
        float own = odd ? v[2 * p + 1] : v[2 * p], give = odd ? v[2 * p] : v[2 * p + 1];
        float got = __shfl_xor_sync(0xffffffffu, give, 1);
        pair[p] = odd ? pack<T>(got, own) : pack<T>(own, got);
    }
    uint32_t own = high ? pair[1] : pair[0], give = high ? pair[0] : pair[1];
    uint32_t got = __shfl_xor_sync(0xffffffffu, give, 2);
    return high ? make_uint2(got, own) : make_uint2(own, got);
}

/* The tile of this block in a round; false after the last. */
__device__ __forceinline__ bool next_tile(const struct fm_cuda_job &job, int product, int32_t round,
                                          struct fm_cuda_tile *tile, struct fm_cuda_group *group)
{
    int32_t t = fm_cuda_item((int32_t)blockIdx.x, job.ctas, round);
    if (t >= job.totals->tiles[product - 1])
        return false;
    *tile = fm_cuda_take(product, job.totals, job.groups, job.begin[product - 1], t, job.H);
    *group = job.groups[tile->group];
    return true;
}

#endif
