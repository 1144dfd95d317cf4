/* The kernels of the baselines (clip_cuda_blas.cu): everything except cuBLAS's products. */
#ifndef FM_CLIP_CUDA_BLAS_CUH
#define FM_CLIP_CUDA_BLAS_CUH

#include "kernels/clip/cuda/clip_cuda.cuh"

/* h = silu(g) u of interleaved gate/up products, zero from `width` to the end of the row. */
template <typename T>
static __global__ void gate_rows(T *h, const T *gu, int rows, int width, int stride)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)rows * stride;
         i += (int64_t)gridDim.x * blockDim.x)
        h[i] = from_float<T>(
            i % stride < width ? gated_fast(to_float(gu[2 * i]), to_float(gu[2 * i + 1])) : 0.0f);
}

/* sums[token] += weight * y[row], in any order. */
template <typename T>
static __global__ void scatter_rows(const __grid_constant__ fm_cuda_job job, float *sums,
                                    const T *y)
{
    for (int64_t r = blockIdx.x; r < job.totals->rows; r += gridDim.x) {
        int32_t slot = job.row_slot[r];
        float weight = job.weights[slot];
        for (int32_t c = (int32_t)threadIdx.x; c < job.H; c += (int32_t)blockDim.x)
            atomicAdd(&sums[(int64_t)(slot / job.K) * job.H + c],
                      weight * to_float(y[r * job.H + c]));
    }
}

template <typename T>
static __global__ void round_rows(const __grid_constant__ fm_cuda_job job, const float *sums)
{
    for (int64_t t = blockIdx.x; t < job.n; t += gridDim.x)
        for (int32_t c = (int32_t)threadIdx.x; c < job.H; c += (int32_t)blockDim.x)
            ((T *)job.out)[t * job.out_stride + c] = from_float<T>(sums[t * job.H + c]);
}

#endif
