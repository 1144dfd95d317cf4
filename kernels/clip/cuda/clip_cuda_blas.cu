/*
 * The baselines that the fused paths are measured against.  Both need the sizes on the host, so a
 * call waits for the device; buffers grow as needed and are kept.
 *
 *   naive   per expert: copy the prefix of its weights out, multiply, gate, multiply
 *   bucket  the FlexMoE paper's design: experts bucketed by width, widths rounded up, one grouped
 *           cuBLAS product per bucket and projection, a gate that zeroes the padding, weighted
 *           scatter-add
 *
 * cuBLAS is found at run time, so the library does not depend on it.
 */
#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_blas.cuh"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <vector>

#define WIDTH_MULTIPLE 128
#define ELEMENTS 8 /* rows begin at multiples of 16 bytes, which cuBLAS loads at once */

/* cublasGemmGroupedBatchedEx; headers before 12.5 do not declare it. */
typedef cublasStatus_t (*grouped_function)(cublasHandle_t, const cublasOperation_t[],
                                           const cublasOperation_t[], const int[], const int[],
                                           const int[], const void *, const void *const[],
                                           cudaDataType_t, const int[], const void *const[],
                                           cudaDataType_t, const int[], const void *, void *const[],
                                           cudaDataType_t, const int[], int, const int[],
                                           cublasComputeType_t);

struct fm_clip_blas {
    void *library;
    cublasHandle_t handle;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
    grouped_function gemm_grouped;
    void *buffer[4]; /* indexed by enum buffer */
    size_t bytes[4];
};

enum buffer { GATE_UP, SUMS, COPY, POINTERS };

/* One group of a chunk: the rows of one expert with one width. */
struct part {
    int expert, width, aligned, row, rows;
    int stride; /* elements between rows of h; twice that for gate/up products */
    size_t gu;  /* first element of its gate/up products */
    size_t h;
};

int32_t fm_clip_cuda_blas_prepare(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error)
{
    struct fm_clip_blas *blas = new fm_clip_blas();
    layer->blas = blas;
    blas->library = fm_clip_cuda_cublas();
    if (!blas->library)
        return fm_clip_fail(
            error, FM_CLIP_EDEVICE,
            "cuBLAS: no libcublas.so.13, .12 or .so on the loader's path, in CUDA's "
            "folders or in Python's packages");
    auto create = (decltype(&cublasCreate_v2))dlsym(blas->library, "cublasCreate_v2");
    blas->destroy = (decltype(blas->destroy))dlsym(blas->library, "cublasDestroy_v2");
    blas->set_stream = (decltype(blas->set_stream))dlsym(blas->library, "cublasSetStream_v2");
    blas->gemm = (decltype(blas->gemm))dlsym(blas->library, "cublasGemmEx");
    blas->gemm_grouped = (grouped_function)dlsym(blas->library, "cublasGemmGroupedBatchedEx");
    if (!create || !blas->destroy || !blas->set_stream || !blas->gemm || !blas->gemm_grouped)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: this version is older than 12.5");
    if (create(&blas->handle) != CUBLAS_STATUS_SUCCESS)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: cannot create a handle");
    return FM_CLIP_OK;
}

void fm_clip_cuda_blas_release(struct fm_clip_blas *blas)
{
    if (!blas)
        return;
    if (blas->handle)
        blas->destroy(blas->handle);
    for (void *buffer : blas->buffer)
        cudaFree(buffer);
    delete blas; /* the library is not unloaded, because its threads are still running */
}

/* Make a buffer at least `bytes` long. */
static cudaError_t grow(struct fm_clip_blas *blas, enum buffer which, size_t bytes)
{
    if (bytes <= blas->bytes[which])
        return cudaSuccess;
    cudaFree(blas->buffer[which]);
    blas->bytes[which] = 0;
    cudaError_t code = cudaMalloc(&blas->buffer[which], bytes);
    if (code == cudaSuccess)
        blas->bytes[which] = bytes;
    return code;
}

/* Copy the groups of the chunk to the host, and sort them by aligned width, widest first. */
static cudaError_t fetch_parts(std::vector<part> &parts, const struct fm_cuda_job *job, bool naive,
                               const int32_t *cap, cudaStream_t stream)
{
    struct fm_cuda_plan_totals totals;
    cudaError_t code =
        cudaMemcpyAsync(&totals, job->totals, sizeof totals, cudaMemcpyDeviceToHost, stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(stream);
    if (code != cudaSuccess)
        return code;
    std::vector<struct fm_cuda_group> groups((size_t)totals.groups);
    code = cudaMemcpyAsync(groups.data(), job->groups, groups.size() * sizeof groups[0],
                           cudaMemcpyDeviceToHost, stream);
    if (code == cudaSuccess)
        code = cudaStreamSynchronize(stream);
    size_t h = 0;
    for (const struct fm_cuda_group &g : groups) {
        int up = fm_cuda_ceil(g.width, WIDTH_MULTIPLE) * WIDTH_MULTIPLE;
        int aligned = naive ? g.width : std::min(up, cap[g.expert]);
        int stride = fm_cuda_ceil(aligned, ELEMENTS) * ELEMENTS;
        parts.push_back({g.expert, g.width, aligned, g.row, g.rows, stride, 2 * h, h});
        h += (size_t)g.rows * (size_t)stride;
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [](const part &a, const part &b) { return a.aligned > b.aligned; });
    return code;
}

template <typename T> static cudaDataType_t type_of();
template <> cudaDataType_t type_of<__half>()
{
    return CUDA_R_16F;
}
template <> cudaDataType_t type_of<__nv_bfloat16>()
{
    return CUDA_R_16BF;
}

static const float one = 1.0f, zero = 0.0f;

/* Compute expert by expert, after copying the prefix out of the resident weights. */
template <typename T>
static cublasStatus_t run_naive(const struct fm_clip_cuda_layer *layer,
                                const struct fm_cuda_job *job, const std::vector<part> &parts,
                                cudaStream_t stream)
{
    const struct fm_clip_blas *blas = layer->blas;
    T *gu = (T *)blas->buffer[GATE_UP], *copy = (T *)blas->buffer[COPY], *h = (T *)job->h;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    size_t H = (size_t)job->H;
    for (const part &p : parts) {
        size_t first = (size_t)layer->host_row0[p.expert], k = (size_t)p.width;
        cudaMemcpyAsync(copy, (const T *)job->gate_up + 2 * first * H, 2 * k * H * sizeof(T),
                        cudaMemcpyDeviceToDevice, stream);
        status = blas->gemm(blas->handle, CUBLAS_OP_T, CUBLAS_OP_N, 2 * p.width, p.rows, job->H,
                            &one, copy, type_of<T>(), job->H, (const T *)job->x + p.row * H,
                            type_of<T>(), job->H, &zero, gu + p.gu, type_of<T>(), 2 * p.stride,
                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
        gate_rows<T><<<512, 256, 0, stream>>>(h + p.h, gu + p.gu, p.rows, p.width, p.stride);
        cudaMemcpyAsync(copy, (const T *)job->down + first * H, k * H * sizeof(T),
                        cudaMemcpyDeviceToDevice, stream);
        status = blas->gemm(blas->handle, CUBLAS_OP_N, CUBLAS_OP_N, job->H, p.rows, p.width, &one,
                            copy, type_of<T>(), job->H, h + p.h, type_of<T>(), p.stride, &zero,
                            (T *)job->y + p.row * H, type_of<T>(), job->H, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT);
        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
    }
    return status;
}

/* One grouped product: arrays with an element per expert of a bucket, each expert a group. */
struct grouped {
    std::vector<cublasOperation_t> across, along;
    std::vector<int> m, n, k, lda, ldb, ldc, ones;
    std::vector<const void *> pointers; /* A, B, C of all */
    std::vector<float> alpha, beta;
};

/* The space for n pointers in their buffer: rounded up, so that the next array is aligned. */
static size_t pointers_of(size_t n)
{
    return (n + ELEMENTS - 1) / ELEMENTS * ELEMENTS;
}

template <typename T>
static cublasStatus_t run_grouped(const struct fm_clip_blas *blas, struct grouped &g,
                                  cublasOperation_t op, const std::vector<const void *> &A,
                                  const std::vector<const void *> &B,
                                  const std::vector<const void *> &C, cudaStream_t stream)
{
    size_t n = A.size();
    g.across.assign(n, op);
    g.along.assign(n, CUBLAS_OP_N);
    g.ones.assign(n, 1);
    g.alpha.assign(n, one);
    g.beta.assign(n, zero);
    size_t each = pointers_of(n);
    g.pointers.assign(3 * each, nullptr);
    std::copy(A.begin(), A.end(), g.pointers.begin());
    std::copy(B.begin(), B.end(), g.pointers.begin() + (ptrdiff_t)each);
    std::copy(C.begin(), C.end(), g.pointers.begin() + (ptrdiff_t)(2 * each));
    void **device = (void **)blas->buffer[POINTERS];
    /* the source is pageable host memory, so it may be reused when the call returns */
    if (cudaMemcpyAsync(device, g.pointers.data(), 3 * each * sizeof(void *),
                        cudaMemcpyHostToDevice, stream) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return blas->gemm_grouped(blas->handle, g.across.data(), g.along.data(), g.m.data(), g.n.data(),
                              g.k.data(), g.alpha.data(), (const void *const *)device, type_of<T>(),
                              g.lda.data(), (const void *const *)(device + each), type_of<T>(),
                              g.ldb.data(), g.beta.data(), device + 2 * each, type_of<T>(),
                              g.ldc.data(), (int)n, g.ones.data(), CUBLAS_COMPUTE_32F);
}

template <typename T>
static cublasStatus_t run_bucket(const struct fm_clip_cuda_layer *layer,
                                 const struct fm_cuda_job *job, const part *parts, size_t count,
                                 cudaStream_t stream)
{
    const struct fm_clip_blas *blas = layer->blas;
    T *gu = (T *)blas->buffer[GATE_UP], *h = (T *)job->h;
    size_t H = (size_t)job->H;
    struct grouped first, second;
    std::vector<const void *> w1, x, p1, w2, hs, p2;
    for (size_t i = 0; i < count; i++) {
        const part &p = parts[i];
        size_t row0 = (size_t)layer->host_row0[p.expert];
        w1.push_back((const T *)job->gate_up + 2 * row0 * H);
        x.push_back((const T *)job->x + p.row * H);
        p1.push_back(gu + p.gu);
        w2.push_back((const T *)job->down + row0 * H);
        hs.push_back(h + p.h);
        p2.push_back((T *)job->y + p.row * H);
        for (struct grouped *g : {&first, &second}) {
            g->m.push_back(g == &first ? 2 * p.aligned : job->H);
            g->n.push_back(p.rows);
            g->k.push_back(g == &first ? job->H : p.aligned);
            g->lda.push_back(job->H);
            g->ldb.push_back(g == &first ? job->H : p.stride);
            g->ldc.push_back(g == &first ? 2 * p.stride : job->H);
        }
    }
    cublasStatus_t status = run_grouped<T>(blas, first, CUBLAS_OP_T, w1, x, p1, stream);
    if (status != CUBLAS_STATUS_SUCCESS)
        return status;
    for (size_t i = 0; i < count; i++)
        gate_rows<T><<<512, 256, 0, stream>>>(h + parts[i].h, gu + parts[i].gu, parts[i].rows,
                                              parts[i].width, parts[i].stride);
    return run_grouped<T>(blas, second, CUBLAS_OP_N, w2, hs, p2, stream);
}

template <typename T>
static int32_t run_as(struct fm_clip_cuda_layer *layer, const struct fm_cuda_job *job,
                      cudaStream_t stream, struct fm_clip_error *error)
{
    struct fm_clip_blas *blas = layer->blas;
    std::vector<part> parts;
    bool naive = layer->path == FM_CLIP_NAIVE;
    cudaError_t code = fetch_parts(parts, job, naive, layer->host_cap, stream);
    size_t h = 0, widest = 0, H = (size_t)job->H;
    for (const part &p : parts) {
        h += (size_t)p.rows * (size_t)p.stride;
        widest = std::max(widest, (size_t)p.width);
    }
    size_t sums = (size_t)job->n * H * sizeof(float);
    if (code == cudaSuccess)
        code = grow(blas, GATE_UP, 2 * h * sizeof(T));
    if (code == cudaSuccess)
        code = grow(blas, SUMS, sums);
    if (code == cudaSuccess && naive)
        code = grow(blas, COPY, 2 * widest * H * sizeof(T));
    if (code == cudaSuccess)
        code = grow(blas, POINTERS, 3 * pointers_of(parts.size() + 1) * sizeof(void *));
    if (code == cudaSuccess)
        code = cudaMemsetAsync(blas->buffer[SUMS], 0, sums, stream);
    if (code == cudaSuccess)
        code = fm_clip_cuda_gather(job, stream);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "the buffers of the baseline");
    cublasStatus_t status = blas->set_stream(blas->handle, stream);
    if (naive && status == CUBLAS_STATUS_SUCCESS)
        status = run_naive<T>(layer, job, parts, stream);
    for (size_t i = 0, next; !naive && i < parts.size() && status == CUBLAS_STATUS_SUCCESS;
         i = next) {
        for (next = i + 1; next < parts.size() && parts[next].aligned == parts[i].aligned; next++)
            continue;
        status = run_bucket<T>(layer, job, &parts[i], next - i, stream);
    }
    if (status != CUBLAS_STATUS_SUCCESS)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: status %d", (int)status);
    unsigned blocks = (unsigned)std::min(job->slots, 65536);
    scatter_rows<T>
        <<<blocks, 256, 0, stream>>>(*job, (float *)blas->buffer[SUMS], (const T *)job->y);
    round_rows<T><<<blocks, 256, 0, stream>>>(*job, (const float *)blas->buffer[SUMS]);
    code = cudaGetLastError();
    return code == cudaSuccess ? FM_CLIP_OK
                               : fm_clip_cuda_fail(error, code, "launch of the baseline");
}

int32_t fm_clip_cuda_blas(struct fm_clip_cuda_layer *layer, const struct fm_cuda_job *job,
                          cudaStream_t stream, struct fm_clip_error *error)
{
    return job->type == FM_CLIP_F16 ? run_as<__half>(layer, job, stream, error)
                                    : run_as<__nv_bfloat16>(layer, job, stream, error);
}
