/*
 * This room, kernels/clip/cuda: libfm_clip on NVIDIA GPUs.  Which tile reads what, and the layout
 * of numbers, is plain C in headers; routing and kernels are device code, written against the few
 * instructions of clip_cuda_ptx.cuh, and their launches in .cu files.  In reading order:
 * clip_cuda_tiles.h, clip_cuda_job.h, clip_cuda_maps.h, clip_cuda_ptx.cuh, clip_cuda.cuh,
 * clip_cuda_route.cuh, clip_cuda_mma.cuh, clip_cuda.cu; clip_cuda_blas.cu and clip_cuda_cublas.cu
 * (the baselines, and finding cuBLAS), clip_cuda_gpu.cu (memory and timing for measurements).
 *
 * Private to the CUDA side of the clipped FFN: the prepared layer, and functions that enqueue the
 * kernels of one step on a stream.  Those of type cudaError_t return the error of the launch
 * itself.
 */
#ifndef FM_CLIP_CUDA_H
#define FM_CLIP_CUDA_H

#include <cuda_runtime.h>

#include "kernels/clip/clip_device.h"
#include "kernels/clip/cuda/clip_cuda_job.h"

struct fm_clip_blas; /* buffers and handle of the baselines, clip_cuda_blas.cu */

/* A layer on a CUDA device.  row0, cap and faults are in our own device memory.  After preparing,
 * calls change only *faults and may run concurrently; those of baselines also change *blas, and may
 * not. */
struct fm_clip_cuda_layer {
    struct fm_clip clip; /* first member: struct fm_clip is a prefix */
    struct fm_clip_layer given;
    int64_t *row0;
    int32_t *cap, *faults;
    int64_t *host_row0; /* copies for the baselines */
    int32_t *host_cap;
    int32_t path; /* MMA, NAIVE or BUCKET */
    int32_t processors;
    int32_t ctas;              /* blocks that share the tiles of a product */
    struct fm_clip_blas *blas; /* NAIVE and BUCKET */
};

/* Routing: ids -> plan. `whole`: the chunk is the whole call; otherwise fm_clip_cuda_count_call
 * has written the rows of the call to counts_call. */
cudaError_t fm_clip_cuda_route(const struct fm_cuda_job *job, bool whole, cudaStream_t stream);
cudaError_t fm_clip_cuda_count_call(const struct fm_cuda_job *job, int64_t slots,
                                    cudaStream_t stream);
/* x = rows of hidden; out = weighted sums of y. */
cudaError_t fm_clip_cuda_gather(const struct fm_cuda_job *job, cudaStream_t stream);
cudaError_t fm_clip_cuda_combine(const struct fm_cuda_job *job, cudaStream_t stream);

/* Load the kernels; set *ctas to the number of blocks that share the tiles. */
cudaError_t fm_clip_cuda_route_prepare(int type);
cudaError_t fm_clip_cuda_mma_prepare(int type, int processors, int32_t *ctas);
/* Both products. */
cudaError_t fm_clip_cuda_mma(const struct fm_cuda_job *job, cudaStream_t stream);

/* cuBLAS, loaded once and kept, from the loader's path, CUDA's folders or Python's packages; NULL
 * if it is in none of these. */
void *fm_clip_cuda_cublas(void);

/* The baselines of fm-bench: sizes on the host, cuBLAS loaded at run time. */
int32_t fm_clip_cuda_blas_prepare(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error);
void fm_clip_cuda_blas_release(struct fm_clip_blas *blas);
int32_t fm_clip_cuda_blas(struct fm_clip_cuda_layer *layer, const struct fm_cuda_job *job,
                          cudaStream_t stream, struct fm_clip_error *error);

/* Set error to "what: <CUDA's message>" and return FM_CLIP_ENOMEM or FM_CLIP_EDEVICE. */
int32_t fm_clip_cuda_fail(struct fm_clip_error *error, cudaError_t code, const char *what);

#endif
