/* Launches of the mma and plain paths, whose kernels are in clip_cuda_mma.cuh. */
#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_mma.cuh"

/* Both products for one type. */
struct pair {
    const void *product[2];
    int threads, bytes;
};

static struct pair kernels_of(int type, bool plain)
{
    if (type == FM_CLIP_F32)
        return {{(const void *)plain_product<float, 1>, (const void *)plain_product<float, 2>},
                PLAIN_THREADS,
                0};
    if (type == FM_CLIP_F16 && plain)
        return {{(const void *)plain_product<__half, 1>, (const void *)plain_product<__half, 2>},
                PLAIN_THREADS,
                0};
    if (type == FM_CLIP_F16)
        return {{(const void *)mma_product<__half, 1>, (const void *)mma_product<__half, 2>},
                MMA_THREADS,
                MMA_BYTES};
    if (plain)
        return {{(const void *)plain_product<__nv_bfloat16, 1>,
                 (const void *)plain_product<__nv_bfloat16, 2>},
                PLAIN_THREADS,
                0};
    return {
        {(const void *)mma_product<__nv_bfloat16, 1>, (const void *)mma_product<__nv_bfloat16, 2>},
        MMA_THREADS,
        MMA_BYTES};
}

cudaError_t fm_clip_cuda_mma_prepare(int type, bool plain, int processors,
                                     struct fm_cuda_shape *shape)
{
    struct pair kernels = kernels_of(type, plain);
    int fit = 0;
    for (const void *kernel : kernels.product) {
        int blocks = 0;
        cudaError_t code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                kernels.bytes);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kernels.threads,
                                                                 (size_t)kernels.bytes);
        if (code != cudaSuccess)
            return code;
        fit = fit == 0 || blocks < fit ? blocks : fit;
    }
    if (fit < 1)
        return cudaErrorLaunchOutOfResources;
    *shape = {{MMA_ROWS, MMA_ROWS}, {MMA_COLS, MMA_COLS}, fit * processors};
    return cudaSuccess;
}

cudaError_t fm_clip_cuda_mma(const struct fm_cuda_job *job, bool plain, cudaStream_t stream)
{
    struct pair kernels = kernels_of(job->type, plain);
    void *arguments[] = {(void *)job};
    cudaError_t code = cudaSuccess;
    for (int p = 0; p < 2 && code == cudaSuccess; p++)
        code = cudaLaunchKernel(kernels.product[p], dim3((unsigned)job->shape.ctas),
                                dim3((unsigned)kernels.threads), arguments, (size_t)kernels.bytes,
                                stream);
    return code;
}
