/*
 * The CUDA device of clip.h: preparing a layer, choosing its path, and enqueueing a call.  Kernels
 * are launched in clip_cuda_route.cu, clip_cuda_mma.cu and clip_cuda_blas.cu.
 *
 * The runtime is linked statically and the driver is found at run time, so the library can be
 * loaded on a machine that has neither, and returns FM_CLIP_EDEVICE there.
 */
#include "kernels/clip/cuda/clip_cuda.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static const char *const type_names[] = {"f32", "f16", "bf16"};

int32_t fm_clip_cuda_fail(struct fm_clip_error *error, cudaError_t code, const char *what)
{
    cudaGetLastError(); /* clear the error, so that the next launch does not report it */
    return fm_clip_fail(error, code == cudaErrorMemoryAllocation ? FM_CLIP_ENOMEM : FM_CLIP_EDEVICE,
                        "%s: %s", what, cudaGetErrorString(code));
}

/* Makes the layer's device current in a scope, and restores the caller's device at its end. */
class on_device
{
    int before = -1;

  public:
    cudaError_t code;
    explicit on_device(int ordinal)
    {
        code = cudaGetDevice(&before);
        if (code == cudaSuccess && before != ordinal)
            code = cudaSetDevice(ordinal);
        else
            before = -1;
    }
    ~on_device()
    {
        if (before >= 0)
            cudaSetDevice(before);
    }
};

static int32_t cuda_available(struct fm_clip_error *error)
{
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "no CUDA device");
    for (int i = 0; i < count; i++) {
        int major = 0;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) == cudaSuccess &&
            major >= 8)
            return FM_CLIP_OK;
    }
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "no CUDA device of compute capability 8.0 or more");
}

static uint64_t cuda_workspace_bytes(const struct fm_clip_layer *layer, int64_t N_max, int32_t K)
{
    struct fm_cuda_job job = {};
    int64_t most = FM_CUDA_ROWS_MAX / K; /* the largest chunk */
    job.E = layer->E;
    job.H = layer->H;
    job.channels_padded = fm_cuda_padded(layer->cap_max);
    return fm_cuda_job_carve(&job, nullptr, (N_max < most ? N_max : most) * K, layer->cap_max);
}

/* Copy row0 and cap to the host and to device memory of our own, and allocate the faults. */
static int32_t copy_rows(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error)
{
    const struct fm_clip_layer *given = &layer->given;
    size_t E = (size_t)given->E;
    layer->host_row0 = (int64_t *)malloc(E * sizeof(int64_t));
    layer->host_cap = (int32_t *)malloc(E * sizeof(int32_t));
    if (!layer->host_row0 || !layer->host_cap)
        return fm_clip_fail(error, FM_CLIP_ENOMEM, "no memory for %d experts", given->E);
    cudaError_t code =
        cudaMemcpy(layer->host_row0, given->row0, E * sizeof(int64_t), cudaMemcpyDefault);
    if (code == cudaSuccess)
        code = cudaMemcpy(layer->host_cap, given->cap, E * sizeof(int32_t), cudaMemcpyDefault);
    if (code == cudaSuccess)
        code = cudaMalloc((void **)&layer->row0, E * sizeof(int64_t));
    if (code == cudaSuccess)
        code = cudaMalloc((void **)&layer->cap, E * sizeof(int32_t));
    if (code == cudaSuccess)
        code = cudaMalloc((void **)&layer->faults, sizeof(int32_t));
    if (code == cudaSuccess)
        code =
            cudaMemcpy(layer->row0, layer->host_row0, E * sizeof(int64_t), cudaMemcpyHostToDevice);
    if (code == cudaSuccess)
        code = cudaMemcpy(layer->cap, layer->host_cap, E * sizeof(int32_t), cudaMemcpyHostToDevice);
    if (code == cudaSuccess)
        code = cudaMemset(layer->faults, 0, sizeof(int32_t));
    if (code == cudaSuccess) /* later calls would not wait for the copies */
        code = cudaStreamSynchronize(nullptr);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "row0, cap or faults");
    return fm_clip_check_rows(given, layer->host_row0, layer->host_cap, error);
}

/* Set the path for the layer; an error if it is not supported. */
static int32_t choose_path(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error)
{
    const struct fm_clip_layer *g = &layer->given;
    layer->path = g->path == FM_CLIP_BEST ? FM_CLIP_MMA : g->path;
    if (layer->path != FM_CLIP_MMA && layer->path != FM_CLIP_NAIVE && layer->path != FM_CLIP_BUCKET)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "path %d is not supported on CUDA", g->path);
    if (g->type == FM_CLIP_F32 || g->H % 8)
        return fm_clip_fail(error, FM_CLIP_EDEVICE,
                            "on CUDA the type must be f16 or bf16 and H a multiple of 8, but the "
                            "type is %s and H is %d",
                            type_names[g->type], g->H);
    if ((uintptr_t)g->gate_up % 16 || (uintptr_t)g->down % 16)
        return fm_clip_fail(error, FM_CLIP_EDEVICE,
                            "on CUDA gate_up and down must be aligned to 16 bytes");
    return FM_CLIP_OK;
}

/* True for the baselines, which read sizes back from the device and so wait for it. */
static bool waits(const struct fm_clip_cuda_layer *layer)
{
    return layer->path == FM_CLIP_NAIVE || layer->path == FM_CLIP_BUCKET;
}

static bool is_capturing(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return stream && cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

static int32_t load_kernels(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error)
{
    int type = layer->given.type;
    cudaError_t code = fm_clip_cuda_route_prepare(type);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "the routing kernels");
    if (waits(layer))
        return fm_clip_cuda_blas_prepare(layer, error);
    code = fm_clip_cuda_mma_prepare(type, layer->processors, &layer->ctas);
    return code == cudaSuccess ? FM_CLIP_OK
                               : fm_clip_cuda_fail(error, code, "the kernels of the products");
}

static const char *path_name(int32_t path)
{
    return path == FM_CLIP_NAIVE ? "naive" : path == FM_CLIP_BUCKET ? "bucket" : "mma";
}

static void cuda_release(struct fm_clip *clip)
{
    struct fm_clip_cuda_layer *layer = (struct fm_clip_cuda_layer *)clip;
    {
        on_device device(layer->given.ordinal);
        fm_clip_cuda_blas_release(layer->blas);
        cudaFree(layer->row0);
        cudaFree(layer->cap);
        cudaFree(layer->faults);
    }
    free(layer->host_row0);
    free(layer->host_cap);
    free(layer);
}

static int32_t cuda_prepare(struct fm_clip **clip, const struct fm_clip_layer *given,
                            struct fm_clip_error *error)
{
    on_device device(given->ordinal);
    if (device.code != cudaSuccess)
        return fm_clip_cuda_fail(error, device.code, "CUDA device of the layer");
    struct fm_clip_cuda_layer *layer =
        (struct fm_clip_cuda_layer *)calloc(1, sizeof(struct fm_clip_cuda_layer));
    if (!layer)
        return fm_clip_fail(error, FM_CLIP_ENOMEM, "no memory for a layer");
    layer->given = *given;
    int major = 0, minor = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, given->ordinal);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, given->ordinal);
    cudaDeviceGetAttribute(&layer->processors, cudaDevAttrMultiProcessorCount, given->ordinal);
    int32_t code = major >= 8 ? choose_path(layer, error)
                              : fm_clip_fail(error, FM_CLIP_EDEVICE,
                                             "compute capability %d.%d is under 8.0", major, minor);
    if (code == FM_CLIP_OK)
        code = copy_rows(layer, error);
    if (code == FM_CLIP_OK)
        code = load_kernels(layer, error);
    if (code != FM_CLIP_OK) {
        cuda_release(&layer->clip);
        return code;
    }
    snprintf(layer->clip.name, sizeof layer->clip.name, "cuda %s %s", path_name(layer->path),
             type_names[given->type]);
    *clip = &layer->clip;
    return FM_CLIP_OK;
}

/* Fill the fields of a job that are the same for all chunks. */
static struct fm_cuda_job job_of(const struct fm_clip_cuda_layer *layer,
                                 const struct fm_clip_call *call, int64_t chunk)
{
    const struct fm_clip_layer *given = &layer->given;
    struct fm_cuda_job job = {};
    job.gate_up = given->gate_up;
    job.down = given->down;
    job.row0 = layer->row0;
    job.cap = layer->cap;
    job.faults = layer->faults;
    job.widths = given->widths;
    job.budget = call->budget;
    job.budget_type = call->budget_type;
    job.E = given->E;
    job.e0 = given->e0;
    job.B = given->B;
    job.H = given->H;
    job.type = given->type;
    job.channels_padded = fm_cuda_padded(given->cap_max);
    job.ctas = layer->ctas;
    job.hidden_stride = call->hidden_stride;
    job.out_stride = call->out_stride;
    job.ids_type = call->ids_type;
    job.K = call->K;
    fm_cuda_job_carve(&job, call->workspace, chunk * call->K, given->cap_max);
    return job;
}

/* Point the job at tokens [first, first + n). */
static void move_to(struct fm_cuda_job *job, const struct fm_clip_call *call, int64_t first,
                    int64_t n)
{
    int64_t bytes = fm_clip_type_bytes(job->type), slot = first * call->K;
    job->hidden = (const char *)call->hidden + first * call->hidden_stride * bytes;
    job->out = (char *)call->out + first * call->out_stride * bytes;
    job->ids = (const char *)call->ids + slot * fm_clip_type_bytes(call->ids_type);
    job->weights = call->weights + slot;
    job->budgets = call->budgets ? call->budgets + first : nullptr;
    job->n = (int32_t)n;
    job->slots = (int32_t)(n * call->K);
}

static int32_t run_chunk(struct fm_clip_cuda_layer *layer, const struct fm_cuda_job *job,
                         bool whole, cudaStream_t stream, struct fm_clip_error *error)
{
    cudaError_t code = fm_clip_cuda_route(job, whole, stream);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "launch of the routing");
    if (waits(layer))
        return fm_clip_cuda_blas(layer, job, stream, error);
    code = fm_clip_cuda_gather(job, stream);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "launch of the gather");
    code = fm_clip_cuda_mma(job, stream);
    if (code != cudaSuccess)
        return fm_clip_cuda_fail(error, code, "launch of a product");
    code = fm_clip_cuda_combine(job, stream);
    return code == cudaSuccess ? FM_CLIP_OK
                               : fm_clip_cuda_fail(error, code, "launch of the combine");
}

static int32_t cuda_forward(struct fm_clip *clip, const struct fm_clip_call *call,
                            struct fm_clip_error *error)
{
    struct fm_clip_cuda_layer *layer = (struct fm_clip_cuda_layer *)clip;
    cudaStream_t stream = (cudaStream_t)call->stream;
    on_device device(layer->given.ordinal);
    if (device.code != cudaSuccess)
        return fm_clip_cuda_fail(error, device.code, "CUDA device of the layer");
    if (waits(layer) && is_capturing(stream))
        return fm_clip_fail(error, FM_CLIP_EUSAGE,
                            "path %s waits for the device, so no graph can capture it",
                            path_name(layer->path));
    int64_t chunk = fm_clip_chunk(&layer->given, call->N, call->K, call->workspace_bytes);
    if (chunk > FM_CUDA_ROWS_MAX / call->K)
        chunk = FM_CUDA_ROWS_MAX / call->K;
    struct fm_cuda_job job = job_of(layer, call, chunk);
    bool whole = chunk >= call->N;
    if (!whole) { /* the form of an expert depends on its rows in the whole call */
        move_to(&job, call, 0, call->N);
        cudaError_t code = fm_clip_cuda_count_call(&job, call->N * call->K, stream);
        if (code != cudaSuccess)
            return fm_clip_cuda_fail(error, code, "launch of the count");
    }
    for (int64_t first = 0; first < call->N; first += chunk) {
        move_to(&job, call, first, call->N - first < chunk ? call->N - first : chunk);
        int32_t code = run_chunk(layer, &job, whole, stream, error);
        if (code != FM_CLIP_OK)
            return code;
    }
    return FM_CLIP_OK;
}

static int32_t cuda_status(struct fm_clip *clip, struct fm_clip_error *error)
{
    struct fm_clip_cuda_layer *layer = (struct fm_clip_cuda_layer *)clip;
    on_device device(layer->given.ordinal);
    int32_t faults = 0;
    cudaError_t code = device.code;
    if (code == cudaSuccess)
        code = cudaDeviceSynchronize();
    if (code == cudaSuccess)
        code = cudaMemcpy(&faults, layer->faults, sizeof faults, cudaMemcpyDeviceToHost);
    if (code == cudaSuccess)
        code = cudaMemset(layer->faults, 0, sizeof faults);
    if (code == cudaSuccess) /* the next call's stream may not wait for the memset */
        code = cudaStreamSynchronize(nullptr);
    if (code == cudaSuccess)
        return faults;
    fm_clip_cuda_fail(error, code, "the device");
    return -1;
}

extern "C" const struct fm_clip_driver fm_clip_cuda = {
    cuda_available, cuda_prepare, cuda_release, cuda_workspace_bytes, cuda_forward, cuda_status,
};
