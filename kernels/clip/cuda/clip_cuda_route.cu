/*
 * Launches of routing, gather and combine.  A call with few slots and experts is routed by one
 * block in one launch, because a launch takes as long as the work.
 */
#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_route.cuh"

#define ONE_BLOCK_SLOTS 2048
#define ONE_BLOCK_EXPERTS 4096

static unsigned blocks_for(int64_t items, int per_block, unsigned most)
{
    int64_t n = (items + per_block - 1) / per_block;
    return n < 1 ? 1 : n > most ? most : (unsigned)n;
}

cudaError_t fm_clip_cuda_count_call(const struct fm_cuda_job *job, int64_t slots,
                                    cudaStream_t stream)
{
    cudaError_t code =
        cudaMemsetAsync(job->counts_call, 0, (size_t)job->E * sizeof(int32_t), stream);
    if (code != cudaSuccess)
        return code;
    route_count<<<blocks_for(slots, 256, 4096), 256, 0, stream>>>(*job, slots);
    return cudaGetLastError();
}

cudaError_t fm_clip_cuda_route(const struct fm_cuda_job *given, bool whole, cudaStream_t stream)
{
    struct fm_cuda_job job = *given;
    job.parts = fm_cuda_parts(job.slots, job.E);
    if (whole)
        job.counts_call = job.counts;
    if (whole && job.slots <= ONE_BLOCK_SLOTS && job.E <= ONE_BLOCK_EXPERTS) {
        route_one<<<1, ROUTE_BLOCK, 0, stream>>>(job);
        return cudaGetLastError();
    }
    cudaError_t code = cudaMemsetAsync(job.counts, 0, (size_t)job.E * sizeof(int32_t), stream);
    if (code != cudaSuccess)
        return code;
    unsigned experts = blocks_for(job.E, 8, 8192), parts = blocks_for(job.parts, 8, 8192);
    route_count_parts<<<parts, 256, 0, stream>>>(job);
    route_part_offsets<<<1, ROUTE_BLOCK, 0, stream>>>(job);
    route_seat_parts<<<parts, 256, 0, stream>>>(job);
    route_close<<<experts, 256, 0, stream>>>(job);
    route_plan<<<1, ROUTE_BLOCK, 0, stream>>>(job);
    return cudaGetLastError();
}

cudaError_t fm_clip_cuda_gather(const struct fm_cuda_job *job, cudaStream_t stream)
{
    unsigned blocks = blocks_for(job->slots, 1, 65536);
    if (job->hidden_stride % 8 == 0 && (uintptr_t)job->hidden % 16 == 0)
        gather_rows<uint4><<<blocks, 256, 0, stream>>>(*job, job->H / 8, job->hidden_stride / 8);
    else
        gather_rows<uint16_t><<<blocks, 256, 0, stream>>>(*job, job->H, job->hidden_stride);
    return cudaGetLastError();
}

template <typename T>
static cudaError_t combine_as(const struct fm_cuda_job *job, cudaStream_t stream)
{
    bool wide = job->out_stride % 4 == 0 && (uintptr_t)job->out % (4 * sizeof(T)) == 0;
    dim3 grid(blocks_for(job->n, 1, 65536), blocks_for(job->H, wide ? 1024 : 256, 65535));
    if (wide)
        combine_rows<T, 4><<<grid, 256, 0, stream>>>(*job);
    else
        combine_rows<T, 1><<<grid, 256, 0, stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t fm_clip_cuda_combine(const struct fm_cuda_job *job, cudaStream_t stream)
{
    if (job->type == FM_CLIP_F16)
        return combine_as<__half>(job, stream);
    return combine_as<__nv_bfloat16>(job, stream);
}

/* Loading a kernel may wait for the device, so it is done before the first call. */
cudaError_t fm_clip_cuda_route_prepare(int type)
{
    const void *kernels[] = {
        (const void *)route_one,
        (const void *)route_count,
        (const void *)route_count_parts,
        (const void *)route_part_offsets,
        (const void *)route_seat_parts,
        (const void *)route_close,
        (const void *)route_plan,
        (const void *)gather_rows<uint4>,
        (const void *)gather_rows<uint16_t>,
        type == FM_CLIP_F16 ? (const void *)combine_rows<__half, 4>
                            : (const void *)combine_rows<__nv_bfloat16, 4>,
        type == FM_CLIP_F16 ? (const void *)combine_rows<__half, 1>
                            : (const void *)combine_rows<__nv_bfloat16, 1>,
    };
    cudaError_t code = cudaSuccess;
    for (const void *kernel : kernels) {
        cudaFuncAttributes attributes;
        if (code == cudaSuccess)
            code = cudaFuncGetAttributes(&attributes, kernel);
    }
    return code;
}
