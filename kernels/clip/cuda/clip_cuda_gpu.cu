/*
 * clip_gpu.h on CUDA.  The events that time a run enclose only its work.  Before it, memory larger
 * than any L2 cache is written and then other memory is read; otherwise the run would include the
 * time to write back dirty lines.
 */
#include "kernels/clip/clip_gpu.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_gpu.cuh"

#define FLUSH_BYTES ((size_t)512 << 20)

/* Device memory that can grow; the destructor frees it. */
struct block {
    void *p = nullptr;
    size_t bytes = 0;
    ~block()
    {
        cudaFree(p);
    }
    bool reserve(size_t wanted)
    {
        if (wanted <= bytes)
            return true;
        cudaFree(p);
        p = nullptr;
        bytes = cudaMalloc(&p, wanted) == cudaSuccess ? wanted : 0;
        return bytes > 0;
    }
    bool write(const void *from, size_t n)
    {
        return reserve(n + !n) && cudaMemcpy(p, from, n, cudaMemcpyHostToDevice) == cudaSuccess;
    }
};

struct fm_clip_gpu {
    struct fm_clip_layer layer; /* pointers to device memory */
    struct block gate_up, down, row0, cap, widths, budget;
    struct block hidden, ids, weights, budgets, out, workspace, flushed;
    struct fm_clip *prepared[FM_CLIP_MMA + 1];
    bool refused[FM_CLIP_MMA + 1];
    cudaStream_t stream;
    cudaEvent_t begin, end;
    char name[256];
};

int32_t fm_clip_gpu_open(struct fm_clip_gpu **gpu, const struct fm_clip_layer *host,
                         struct fm_clip_error *error)
{
    *gpu = nullptr;
    if (fm_clip_available(FM_CLIP_CUDA, error) != FM_CLIP_OK)
        return FM_CLIP_EDEVICE;
    struct fm_clip_gpu *g = new fm_clip_gpu();
    size_t E = (size_t)host->E, bytes = (size_t)fm_clip_type_bytes(host->type);
    size_t matrix = (size_t)host->channels * (size_t)host->H * bytes;
    cudaDeviceProp device;
    bool good = g->gate_up.write(host->gate_up, 2 * matrix) && g->down.write(host->down, matrix) &&
                g->row0.write(host->row0, E * sizeof(int64_t)) &&
                g->cap.write(host->cap, E * sizeof(int32_t)) &&
                g->widths.write(host->widths, (size_t)host->B * E * sizeof(int32_t)) &&
                g->budget.reserve(sizeof(int32_t)) && g->flushed.reserve(FLUSH_BYTES) &&
                cudaStreamCreate(&g->stream) == cudaSuccess &&
                cudaEventCreate(&g->begin) == cudaSuccess &&
                cudaEventCreate(&g->end) == cudaSuccess &&
                cudaGetDeviceProperties(&device, 0) == cudaSuccess;
    if (!good) {
        fm_clip_gpu_close(g);
        return fm_clip_cuda_fail(error, cudaGetLastError(), "a layer on the device");
    }
    memcpy(g->name, device.name, sizeof g->name);
    g->layer = *host;
    g->layer.device = FM_CLIP_CUDA;
    g->layer.ordinal = g->layer.threads = 0;
    g->layer.gate_up = g->gate_up.p;
    g->layer.down = g->down.p;
    g->layer.row0 = (const int64_t *)g->row0.p;
    g->layer.cap = (const int32_t *)g->cap.p;
    g->layer.widths = (const int32_t *)g->widths.p;
    g->layer.budget = g->budget.p;
    g->layer.budget_type = FM_CLIP_I32;
    *gpu = g;
    return FM_CLIP_OK;
}

void fm_clip_gpu_close(struct fm_clip_gpu *g)
{
    if (!g)
        return;
    for (struct fm_clip *clip : g->prepared)
        fm_clip_release(clip);
    if (g->begin)
        cudaEventDestroy(g->begin);
    if (g->end)
        cudaEventDestroy(g->end);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    delete g;
}

const char *fm_clip_gpu_name(const struct fm_clip_gpu *gpu)
{
    return gpu->name;
}

/* The layer prepared for a path, once; NULL if the path is not supported. */
static struct fm_clip *prepare_path(struct fm_clip_gpu *g, int32_t path)
{
    if (path < 0 || path > FM_CLIP_MMA || g->refused[path])
        return nullptr;
    if (!g->prepared[path]) {
        struct fm_clip_layer layer = g->layer;
        layer.path = path;
        g->refused[path] = fm_clip_prepare(&g->prepared[path], &layer, nullptr) != FM_CLIP_OK;
    }
    return g->prepared[path];
}

/* Copy the arrays of a call from the host to the device, and point the call at the copies. */
static bool upload(struct fm_clip_gpu *g, struct fm_clip_call *call, int32_t budget)
{
    size_t bytes = (size_t)fm_clip_type_bytes(g->layer.type), N = (size_t)call->N;
    size_t slots = N * (size_t)call->K;
    uint64_t workspace = fm_clip_workspace_bytes(&g->layer, call->N, call->K);
    if (!g->hidden.write(call->hidden, N * (size_t)call->hidden_stride * bytes) ||
        !g->ids.write(call->ids, slots * (size_t)fm_clip_type_bytes(call->ids_type)) ||
        !g->weights.write(call->weights, slots * sizeof(float)) ||
        (call->budgets && !g->budgets.write(call->budgets, N * sizeof(int32_t))) ||
        !g->budget.write(&budget, sizeof budget) ||
        !g->out.reserve(N * (size_t)call->out_stride * bytes) || !g->workspace.reserve(workspace))
        return false;
    call->hidden = g->hidden.p;
    call->ids = g->ids.p;
    call->weights = (const float *)g->weights.p;
    call->budgets = call->budgets ? (const int32_t *)g->budgets.p : nullptr;
    call->out = g->out.p;
    call->workspace = g->workspace.p;
    call->workspace_bytes = workspace;
    call->stream = g->stream;
    call->threads = 0;
    call->budget = nullptr;
    call->budget_type = 0;
    return true;
}

/* Evict everything from the L2 cache, and leave no dirty lines in it. */
static cudaError_t flush(void *memory, cudaStream_t stream)
{
    const size_t part = FLUSH_BYTES / 2;
    cudaError_t code = cudaMemsetAsync(memory, 1, part, stream);
    if (code != cudaSuccess)
        return code;
    read_all<<<512, 512, 0, stream>>>((const uint4 *)((char *)memory + part),
                                      (int64_t)(part / sizeof(uint4)), (uint32_t *)memory);
    return cudaGetLastError();
}

static bool begin_clock(struct fm_clip_gpu *g)
{
    return flush(g->flushed.p, g->stream) == cudaSuccess &&
           cudaEventRecord(g->begin, g->stream) == cudaSuccess;
}

static double end_clock(struct fm_clip_gpu *g)
{
    float ms = 0;
    return cudaEventRecord(g->end, g->stream) == cudaSuccess &&
                   cudaEventSynchronize(g->end) == cudaSuccess &&
                   cudaEventElapsedTime(&ms, g->begin, g->end) == cudaSuccess
               ? ms / 1e3
               : 0;
}

static double run_as_graph(struct fm_clip_gpu *g, struct fm_clip *clip,
                           const struct fm_clip_call *call)
{
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    double seconds = 0;
    if (cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
        return 0;
    int32_t code = fm_clip_forward(clip, call, nullptr);
    if (cudaStreamEndCapture(g->stream, &graph) == cudaSuccess && code == FM_CLIP_OK &&
        cudaGraphInstantiate(&run, graph, 0) == cudaSuccess &&
        cudaGraphUpload(run, g->stream) == cudaSuccess && begin_clock(g) &&
        cudaGraphLaunch(run, g->stream) == cudaSuccess)
        seconds = end_clock(g);
    if (run)
        cudaGraphExecDestroy(run);
    if (graph)
        cudaGraphDestroy(graph);
    return seconds;
}

double fm_clip_gpu_run(struct fm_clip_gpu *g, int32_t path, const struct fm_clip_call *host,
                       int32_t budget)
{
    struct fm_clip *clip = prepare_path(g, path);
    struct fm_clip_call call = *host;
    double seconds = 0;
    if (!clip || !upload(g, &call, budget))
        return 0;
    if (path != FM_CLIP_NAIVE && path != FM_CLIP_BUCKET)
        seconds = run_as_graph(g, clip, &call);
    else if (begin_clock(g) && fm_clip_forward(clip, &call, nullptr) == FM_CLIP_OK)
        seconds = end_clock(g);
    size_t bytes =
        (size_t)host->N * (size_t)host->out_stride * (size_t)fm_clip_type_bytes(g->layer.type);
    return cudaStreamSynchronize(g->stream) == cudaSuccess &&
                   cudaMemcpy(host->out, g->out.p, bytes, cudaMemcpyDeviceToHost) == cudaSuccess
               ? seconds
               : 0;
}

/* --- the device's limits */

/* The median seconds of `work` on the default stream. */
template <typename F> static double median_seconds(F work)
{
    std::vector<double> seconds;
    cudaEvent_t begin = nullptr, end = nullptr;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = -2; i < 9; i++) {
        float ms = 0;
        cudaEventRecord(begin);
        work();
        cudaEventRecord(end);
        if (cudaEventSynchronize(end) == cudaSuccess && i >= 0 &&
            cudaEventElapsedTime(&ms, begin, end) == cudaSuccess)
            seconds.push_back(ms / 1e3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(seconds.begin(), seconds.end());
    return seconds.empty() ? 0 : seconds[seconds.size() / 2];
}

/* Clear the error, so that the next launch does not report it. */
static double not_measured()
{
    cudaGetLastError();
    return 0;
}

double fm_clip_gpu_bandwidth(void)
{
    const size_t bytes = (size_t)2 << 30; /* many times larger than any cache */
    int processors = 0;
    double best = 0;
    struct block memory, sink;
    if (!memory.reserve(bytes) || !sink.reserve(4) ||
        cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0) != cudaSuccess)
        return not_measured();
    fill_bits<<<4096, 256>>>((uint32_t *)memory.p, (int64_t)(bytes / 4));
    for (int blocks : {2, 4, 8, 16}) {
        double seconds = median_seconds([&]() {
            read_all<<<processors * blocks, 512>>>((const uint4 *)memory.p, (int64_t)(bytes / 16),
                                                   (uint32_t *)sink.p);
        });
        best = seconds > 0 ? std::max(best, (double)bytes / seconds) : best;
    }
    return best;
}

double fm_clip_gpu_peak(void)
{
    typedef cublasStatus_t (*gemm_function)(
        cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
        const void *, cudaDataType, int, const void *, cudaDataType, int, const void *, void *,
        cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);
    const int n = 8192;
    const size_t bytes = (size_t)n * n * 2;
    const float one = 1, zero = 0;
    void *library = fm_clip_cuda_cublas();
    cublasHandle_t handle;
    struct block a, b, c;
    if (!library || !a.reserve(bytes) || !b.reserve(bytes) || !c.reserve(bytes))
        return not_measured();
    auto create = (decltype(&cublasCreate_v2))dlsym(library, "cublasCreate_v2");
    auto destroy = (decltype(&cublasDestroy_v2))dlsym(library, "cublasDestroy_v2");
    auto gemm = (gemm_function)dlsym(library, "cublasGemmEx");
    if (!create || !destroy || !gemm || create(&handle) != CUBLAS_STATUS_SUCCESS)
        return 0;
    fill_bits<<<4096, 256>>>((uint32_t *)a.p, (int64_t)(bytes / 4));
    fill_bits<<<4096, 256>>>((uint32_t *)b.p, (int64_t)(bytes / 4));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    double seconds = median_seconds([&]() {
        cublasStatus_t now = gemm(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a.p, CUDA_R_16BF,
                                  n, b.p, CUDA_R_16BF, n, &zero, c.p, CUDA_R_16BF, n,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        status = now != CUBLAS_STATUS_SUCCESS ? now : status;
    });
    destroy(handle);
    return seconds > 0 && status == CUBLAS_STATUS_SUCCESS ? 2.0 * n * n * n / seconds : 0;
}
