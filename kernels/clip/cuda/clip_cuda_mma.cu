/* Launches of the products, whose kernels are in clip_cuda_mma.cuh. */
#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_mma.cuh"

static const void *product(int type, int which)
{
    if (type == FM_CLIP_F16)
        return which ? (const void *)mma_product<__half, 2> : (const void *)mma_product<__half, 1>;
    return which ? (const void *)mma_product<__nv_bfloat16, 2>
                 : (const void *)mma_product<__nv_bfloat16, 1>;
}

cudaError_t fm_clip_cuda_mma_prepare(int type, int processors, int32_t *ctas)
{
    int fit = 0;
    for (int p = 0; p < 2; p++) {
        const void *kernel = product(type, p);
        int blocks = 0;
        cudaError_t code =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, MMA_BYTES);
        if (code == cudaSuccess)
            code = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, MMA_THREADS,
                                                                 MMA_BYTES);
        if (code != cudaSuccess)
            return code;
        fit = fit == 0 || blocks < fit ? blocks : fit;
    }
    if (fit < 1)
        return cudaErrorLaunchOutOfResources;
    *ctas = fit * processors;
    return cudaSuccess;
}

cudaError_t fm_clip_cuda_mma(const struct fm_cuda_job *job, cudaStream_t stream)
{
    void *arguments[] = {(void *)job};
    cudaError_t code = cudaSuccess;
    for (int p = 0; p < 2 && code == cudaSuccess; p++)
        code = cudaLaunchKernel(product(job->type, p), dim3((unsigned)job->ctas), dim3(MMA_THREADS),
                                arguments, MMA_BYTES, stream);
    return code;
}
