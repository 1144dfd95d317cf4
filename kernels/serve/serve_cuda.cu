/*
 * serve_gpu.h on CUDA.  Prompts go piece by piece; a step is captured once, and replayed with the
 * position and the budget written before it on the same stream.
 */
#include "kernels/serve/serve_gpu.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/serve/serve_cuda.cuh"

#define BLAS_WORKSPACE ((size_t)32 << 20)
#define SPLITS 8 /* of the keys in a step: few rows, and as many blocks as a device wants */

struct weights {
    float *input_norm, *post_norm, *router;
    void *qkv, *o, *gate_up, *down, *k, *v;
    int32_t *widths;
    struct fm_clip *clip;
};

struct fm_serve_gpu {
    struct fm_serve_gpu_shape s;
    std::vector<struct weights> layer;
    std::vector<void *> blocks; /* all device memory */
    float *table, *cos, *sin, *x, *qkv, *part, *rstd, *chosen, *last;
    void *xn, *out, *workspace, *blas_workspace;
    int32_t *tokens, *ids, *at, *budget, *cap;
    int64_t *row0;
    uint64_t workspace_bytes;
    cudaStream_t stream;
    cudaGraphExec_t step;
    cublasHandle_t blas;
    decltype(&cublasDestroy_v2) blas_destroy;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
    char name[256];
};

uint64_t fm_serve_gpu_memory(void)
{
    size_t left = 0, all = 0;
    return fm_clip_available(FM_CLIP_CUDA, nullptr) == FM_CLIP_OK &&
                   cudaMemGetInfo(&left, &all) == cudaSuccess
               ? left
               : 0;
}

/* --- memory: a failed reservation leaves NULL, and the caller asks once at the end --- */

static void *reserve(struct fm_serve_gpu *g, size_t bytes)
{
    void *p = nullptr;
    if (cudaMalloc(&p, bytes + !bytes) != cudaSuccess)
        return nullptr;
    g->blocks.push_back(p);
    return p;
}

static void *copy(struct fm_serve_gpu *g, const void *from, size_t bytes)
{
    void *p = reserve(g, bytes);
    return p && cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? p : nullptr;
}

static struct fm_clip_layer layer_shape(const struct fm_serve_gpu *g)
{
    struct fm_clip_layer l = {};
    l.size = sizeof l;
    l.device = FM_CLIP_CUDA;
    l.type = g->s.type;
    l.H = g->s.H;
    l.E = g->s.E;
    l.B = g->s.B;
    l.cap_max = g->s.I;
    l.channels = (int64_t)g->s.E * g->s.I;
    l.row0 = g->row0;
    l.cap = g->cap;
    l.budget = g->budget;
    l.budget_type = FM_CLIP_I32;
    return l;
}

static bool take_memory(struct fm_serve_gpu *g)
{
    const struct fm_serve_gpu_shape *s = &g->s;
    size_t N = (size_t)s->rows, H = (size_t)s->H, QC = (size_t)s->Q * (size_t)s->C, f = 4;
    size_t T = (size_t)(s->prompt + s->decode), turns = (size_t)s->C / 2, E = (size_t)s->E;
    size_t size = (size_t)fm_clip_type_bytes(s->type), K = (size_t)s->K;
    size_t parts = std::max(N, (size_t)s->batch * SPLITS) * (size_t)s->Q * (size_t)(s->C + 2);
    std::vector<int64_t> row0(E);
    std::vector<int32_t> cap(E, s->I);
    for (size_t e = 0; e < E; e++)
        row0[e] = (int64_t)e * s->I;
    g->row0 = (int64_t *)copy(g, row0.data(), E * sizeof row0[0]);
    g->cap = (int32_t *)copy(g, cap.data(), E * sizeof cap[0]);
    g->table = (float *)copy(g, s->table, (size_t)s->V * H * f);
    g->cos = (float *)copy(g, s->cos, T * turns * f);
    g->sin = (float *)copy(g, s->sin, T * turns * f);
    g->tokens = (int32_t *)copy(g, s->tokens, (size_t)s->batch * T * sizeof(int32_t));
    g->x = (float *)reserve(g, N * H * f);
    g->qkv = (float *)reserve(g, N * (size_t)(s->Q + 2 * s->G) * (size_t)s->C * f);
    g->part = (float *)reserve(g, parts * f);
    g->rstd = (float *)reserve(g, N * f);
    g->chosen = (float *)reserve(g, N * K * f);
    g->ids = (int32_t *)reserve(g, N * K * sizeof(int32_t));
    g->last = (float *)reserve(g, (size_t)s->batch * H * f);
    g->xn = reserve(g, N * H * size);
    g->out = reserve(g, N * std::max(H, QC) * size);
    g->at = (int32_t *)reserve(g, sizeof(int32_t));
    g->budget = (int32_t *)reserve(g, sizeof(int32_t));
    struct fm_clip_layer shape = layer_shape(g);
    g->workspace_bytes = fm_clip_workspace_bytes(&shape, s->rows, s->K);
    g->workspace = reserve(g, g->workspace_bytes);
    g->blas_workspace = reserve(g, BLAS_WORKSPACE);
    return g->row0 && g->cap && g->table && g->cos && g->sin && g->tokens && g->x && g->qkv &&
           g->part && g->rstd && g->chosen && g->ids && g->last && g->xn && g->out && g->at &&
           g->budget && g->workspace && g->blas_workspace;
}

static int32_t open_blas(struct fm_serve_gpu *g, struct fm_clip_error *error)
{
    void *library = fm_clip_cuda_cublas();
    if (!library)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: %s", FM_CLIP_NO_CUBLAS);
    auto create = (decltype(&cublasCreate_v2))dlsym(library, "cublasCreate_v2");
    auto set_stream = (decltype(&cublasSetStream_v2))dlsym(library, "cublasSetStream_v2");
    auto set_workspace = (decltype(&cublasSetWorkspace_v2))dlsym(library, "cublasSetWorkspace_v2");
    g->blas_destroy = (decltype(g->blas_destroy))dlsym(library, "cublasDestroy_v2");
    g->gemm = (decltype(g->gemm))dlsym(library, "cublasGemmEx");
    if (!create || !set_stream || !set_workspace || !g->blas_destroy || !g->gemm)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: it is older than 11.2");
    if (create(&g->blas) != CUBLAS_STATUS_SUCCESS ||
        set_stream(g->blas, g->stream) != CUBLAS_STATUS_SUCCESS ||
        set_workspace(g->blas, g->blas_workspace, BLAS_WORKSPACE) != CUBLAS_STATUS_SUCCESS)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: no handle");
    return FM_CLIP_OK;
}

int32_t fm_serve_gpu_open(struct fm_serve_gpu **gpu, const struct fm_serve_gpu_shape *s,
                          struct fm_clip_error *error)
{
    cudaDeviceProp device;
    *gpu = nullptr;
    if (fm_clip_available(FM_CLIP_CUDA, error) != FM_CLIP_OK)
        return FM_CLIP_EDEVICE;
    if (s->Q / s->G > ATTEND_GROUP || s->Q / s->G * s->C > ATTEND_NUMBERS || s->E > ROUTE_EXPERTS)
        return fm_clip_fail(error, FM_CLIP_EUSAGE,
                            "%d query heads of %d to a key head, %d experts: on the GPU at most %d "
                            "heads, %d numbers of them, and %d experts",
                            s->Q / s->G, s->C, s->E, ATTEND_GROUP, ATTEND_NUMBERS, ROUTE_EXPERTS);
    struct fm_serve_gpu *g = new fm_serve_gpu();
    g->s = *s;
    g->layer.resize((size_t)s->L);
    int32_t code = FM_CLIP_OK;
    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess ||
        cudaStreamCreate(&g->stream) != cudaSuccess || !take_memory(g))
        code = fm_clip_cuda_fail(error, cudaGetLastError(), "a serving loop on the device");
    else
        code = open_blas(g, error);
    if (code != FM_CLIP_OK) {
        fm_serve_gpu_close(g);
        return code;
    }
    memcpy(g->name, device.name, sizeof g->name);
    *gpu = g;
    return FM_CLIP_OK;
}

int32_t fm_serve_gpu_layer(struct fm_serve_gpu *g, int l, const struct fm_serve_gpu_weights *from,
                           struct fm_clip_error *error)
{
    const struct fm_serve_gpu_shape *s = &g->s;
    struct weights *w = &g->layer[(size_t)l];
    size_t H = (size_t)s->H, C = (size_t)s->C, size = (size_t)fm_clip_type_bytes(s->type);
    size_t Q = (size_t)s->Q, G = (size_t)s->G, E = (size_t)s->E, channels = E * (size_t)s->I;
    size_t cached = (size_t)s->batch * (size_t)(s->prompt + s->decode) * G * C * size;
    w->input_norm = (float *)copy(g, from->input_norm, H * sizeof(float));
    w->post_norm = (float *)copy(g, from->post_norm, H * sizeof(float));
    w->router = (float *)copy(g, from->router, E * H * sizeof(float));
    w->qkv = copy(g, from->qkv, (Q + 2 * G) * C * H * size);
    w->o = copy(g, from->o, Q * C * H * size);
    w->gate_up = copy(g, from->gate_up, 2 * channels * H * size);
    w->down = copy(g, from->down, channels * H * size);
    w->widths = (int32_t *)copy(g, from->widths, (size_t)s->B * E * sizeof(int32_t));
    w->k = reserve(g, cached);
    w->v = reserve(g, cached);
    if (!w->input_norm || !w->post_norm || !w->router || !w->qkv || !w->o || !w->gate_up ||
        !w->down || !w->widths || !w->k || !w->v)
        return fm_clip_cuda_fail(error, cudaGetLastError(), "a layer on the device");
    struct fm_clip_layer layer = layer_shape(g);
    layer.gate_up = w->gate_up;
    layer.down = w->down;
    layer.widths = w->widths;
    return fm_clip_prepare(&w->clip, &layer, error);
}

void fm_serve_gpu_close(struct fm_serve_gpu *g)
{
    if (!g)
        return;
    if (g->step)
        cudaGraphExecDestroy(g->step);
    for (const struct weights &w : g->layer)
        fm_clip_release(w.clip);
    if (g->blas)
        g->blas_destroy(g->blas);
    for (void *p : g->blocks)
        cudaFree(p);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    delete g;
}

const char *fm_serve_gpu_name(const struct fm_serve_gpu *g)
{
    return g->name;
}

const char *fm_serve_gpu_path(const struct fm_serve_gpu *g)
{
    return fm_clip_name(g->layer[0].clip);
}

/* --- one piece on the stream; launches that fail are seen at its end --- */

static struct fm_serve_piece piece_of(const struct fm_serve_gpu *g, int s0, int S, int n)
{
    const struct fm_serve_gpu_shape *s = &g->s;
    return {s0, S, n, s->prompt + s->decode, s->H, s->Q, s->G, s->C, s->E, s->K, s->eps, g->at};
}

/* y (M, N) = x (M, K) w^T + beta y, the product's own sizes. */
static bool multiply(struct fm_serve_gpu *g, float *y, const void *x, const void *w, int M, int N,
                     int K, float beta)
{
    const float one = 1;
    cudaDataType type = g->s.type == FM_CLIP_F32 ? CUDA_R_32F : CUDA_R_16BF;
    return g->gemm(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, N, M, K, &one, w, type, K, x, type, K, &beta,
                   y, CUDA_R_32F, N, CUBLAS_COMPUTE_32F,
                   CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS;
}

template <typename T>
static bool attend(struct fm_serve_gpu *g, const struct weights *w, const struct fm_serve_piece &p)
{
    unsigned rows = (unsigned)(p.S * p.n), Q = (unsigned)p.Q, G = (unsigned)p.G;
    int splits = p.n == 1 ? SPLITS : 1, heads = (p.Q + 2 * p.G) * p.C;
    norm_rows<T>
        <<<rows, SERVE_THREADS, 0, g->stream>>>(p, (T *)g->xn, g->rstd, g->x, w->input_norm);
    if (!multiply(g, g->qkv, g->xn, w->qkv, (int)rows, heads, p.H, 0))
        return false;
    turn_rows<T>
        <<<rows, SERVE_THREADS, 0, g->stream>>>(p, g->qkv, (T *)w->k, (T *)w->v, g->cos, g->sin);
    attend_rows<T><<<dim3(rows, G, (unsigned)splits), ATTEND_THREADS, 0, g->stream>>>(
        p, g->part, g->qkv, (const T *)w->k, (const T *)w->v, splits);
    merge_rows<T><<<dim3(rows, Q), ATTEND_THREADS, 0, g->stream>>>(p, (T *)g->out, g->part, splits);
    return multiply(g, g->x, g->out, w->o, (int)rows, p.H, p.Q * p.C, 1);
}

template <typename T>
static int32_t mix_experts(struct fm_serve_gpu *g, const struct weights *w,
                           const struct fm_serve_piece &p, struct fm_clip_error *error)
{
    unsigned rows = (unsigned)(p.S * p.n);
    struct fm_clip_call call = {};
    norm_rows<T><<<rows, SERVE_THREADS, 0, g->stream>>>(p, (T *)g->xn, g->rstd, g->x, w->post_norm);
    choose_rows<<<rows, SERVE_THREADS, 0, g->stream>>>(p, g->ids, g->chosen, g->x, g->rstd,
                                                       w->post_norm, w->router);
    call.size = sizeof call;
    call.ids_type = FM_CLIP_I32;
    call.N = rows;
    call.K = p.K;
    call.hidden = g->xn;
    call.out = g->out;
    call.hidden_stride = call.out_stride = p.H;
    call.ids = g->ids;
    call.weights = g->chosen;
    call.workspace = g->workspace;
    call.workspace_bytes = g->workspace_bytes;
    call.stream = g->stream;
    int32_t code = fm_clip_forward(w->clip, &call, error);
    if (code == FM_CLIP_OK)
        add_numbers<T><<<std::min(rows * 4, 4096u), SERVE_THREADS, 0, g->stream>>>(
            g->x, (const T *)g->out, (int64_t)rows * p.H);
    return code;
}

template <typename T>
static int32_t run_layers(struct fm_serve_gpu *g, const struct fm_serve_piece &p,
                          struct fm_clip_error *error)
{
    embed_rows<<<(unsigned)(p.S * p.n), SERVE_THREADS, 0, g->stream>>>(p, g->x, g->table,
                                                                       g->tokens);
    for (const struct weights &w : g->layer) {
        if (!attend<T>(g, &w, p))
            return fm_clip_fail(error, FM_CLIP_EDEVICE, "cuBLAS: a projection failed");
        int32_t code = mix_experts<T>(g, &w, p, error);
        if (code != FM_CLIP_OK)
            return code;
    }
    take_last<<<(unsigned)p.S, SERVE_THREADS, 0, g->stream>>>(p, g->last, g->x);
    cudaError_t code = cudaGetLastError();
    return code == cudaSuccess ? FM_CLIP_OK : fm_clip_cuda_fail(error, code, "a kernel");
}

static int32_t enqueue(struct fm_serve_gpu *g, const struct fm_serve_piece &p,
                       struct fm_clip_error *error)
{
    return g->s.type == FM_CLIP_F32 ? run_layers<float>(g, p, error)
                                    : run_layers<__nv_bfloat16>(g, p, error);
}

static int32_t finish(struct fm_serve_gpu *g, struct fm_clip_error *error)
{
    cudaError_t code = cudaStreamSynchronize(g->stream);
    return code == cudaSuccess ? FM_CLIP_OK : fm_clip_cuda_fail(error, code, "the serving loop");
}

int32_t fm_serve_gpu_prefill(struct fm_serve_gpu *g, int32_t budget, struct fm_clip_error *error)
{
    int together = g->s.rows / g->s.prompt;
    set_numbers<<<1, 1, 0, g->stream>>>(g->at, g->budget, 0, budget);
    for (int s = 0; s < g->s.batch; s += together) {
        int S = std::min(together, g->s.batch - s);
        int32_t code = enqueue(g, piece_of(g, s, S, g->s.prompt), error);
        if (code != FM_CLIP_OK)
            return code;
    }
    return finish(g, error);
}

/* A step runs once as it is, so that libraries load what they need, and is captured then. */
static int32_t capture(struct fm_serve_gpu *g, struct fm_clip_error *error)
{
    struct fm_serve_piece p = piece_of(g, 0, g->s.batch, 1);
    cudaGraph_t graph = nullptr;
    int32_t code = enqueue(g, p, error);
    if (code == FM_CLIP_OK)
        code = finish(g, error);
    if (code != FM_CLIP_OK)
        return code;
    cudaError_t said = cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal);
    if (said == cudaSuccess) {
        code = enqueue(g, p, error);
        said = cudaStreamEndCapture(g->stream, &graph);
    }
    if (code == FM_CLIP_OK && said == cudaSuccess)
        said = cudaGraphInstantiate(&g->step, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    return code != FM_CLIP_OK || said == cudaSuccess
               ? code
               : fm_clip_cuda_fail(error, said, "the graph of a step");
}

int32_t fm_serve_gpu_step(struct fm_serve_gpu *g, int at, int32_t budget,
                          struct fm_clip_error *error)
{
    set_numbers<<<1, 1, 0, g->stream>>>(g->at, g->budget, at, budget);
    int32_t code = g->step ? FM_CLIP_OK : capture(g, error);
    if (code != FM_CLIP_OK)
        return code;
    cudaError_t said = cudaGraphLaunch(g->step, g->stream);
    return said == cudaSuccess ? finish(g, error) : fm_clip_cuda_fail(error, said, "a step");
}

int32_t fm_serve_gpu_last(struct fm_serve_gpu *g, float *last, struct fm_clip_error *error)
{
    size_t bytes = (size_t)g->s.batch * (size_t)g->s.H * sizeof *last;
    cudaError_t code = cudaMemcpy(last, g->last, bytes, cudaMemcpyDeviceToHost);
    return code == cudaSuccess ? FM_CLIP_OK : fm_clip_cuda_fail(error, code, "the results");
}
