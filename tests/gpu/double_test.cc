/*
 * Test the library's host side on the strict fakes of CUDA (double.h).  First, the fakes must
 * themselves be strict; then, calls must be refused with the right messages.  Last, each call of
 * the runtime, the driver and cuBLAS fails in turn: an error must be returned, nothing may leak,
 * and the next call must work.
 */
#include "tests/gpu/double.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "kernels/clip/clip_gpu.h"
#include "kernels/clip/cuda/clip_cuda.h"

static int failures;

static void report(bool good, const std::string &what, const char *detail = "")
{
    failures += !good;
    printf("%s %s%s%s\n", good ? "ok  " : "FAIL", what.c_str(), detail[0] ? ": " : "", detail);
}

/* --- the fakes */

/* Check in a child process that `wrong` ends the program by double_die. */
template <typename F> static void dies(const char *what, F wrong)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        wrong();
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    report(WIFEXITED(status) && WEXITSTATUS(status) == 70, what);
}

static void *device(size_t bytes)
{
    void *p = nullptr;
    if (cudaMalloc(&p, bytes) != cudaSuccess)
        abort();
    return p;
}

static void memory_is_strict()
{
    char *p = (char *)device(1000);
    dies("the host reads device memory", [=]() { printf("%d", *(volatile char *)p); });
    dies("a copy past the end", [=]() {
        std::vector<char> host(1100);
        cudaMemcpy(p, host.data(), 1100, cudaMemcpyHostToDevice);
    });
    dies("memory is freed twice", [=]() { cudaFree(p), cudaFree(p); });
    dies("work on freed memory", [=]() {
        char *copy = (char *)device(1000);
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t run;
        cudaStreamCreate(&stream);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        cudaMemsetAsync(copy, 1, 1000, stream);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&run, graph, 0);
        cudaFree(copy);
        cudaGraphLaunch(run, stream);
        cudaDeviceSynchronize();
    });
    dies("a stream is used after it is destroyed", [=]() {
        cudaStream_t stream;
        cudaStreamCreate(&stream);
        cudaStreamDestroy(stream);
        cudaStreamSynchronize(stream);
    });
    char byte = 0;
    report(cudaMemcpy(&byte, p, 1, cudaMemcpyHostToDevice) == cudaErrorInvalidValue,
           "a copy in the wrong direction is refused");
    cudaFree(p);
}

static void captures_are_strict()
{
    cudaStream_t stream;
    cudaGraph_t graph;
    void *p = nullptr;
    cudaStreamCreate(&stream);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    bool refused = cudaMalloc(&p, 10) == cudaErrorStreamCaptureUnsupported;
    bool broken = cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated;
    report(refused && broken && !graph, "an allocation breaks a capture");
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    refused = cudaStreamSynchronize(stream) == cudaErrorStreamCaptureUnsupported;
    broken = cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated;
    report(refused && broken, "a wait breaks a capture");
    report(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal) ==
               cudaErrorStreamCaptureUnsupported,
           "the default stream is not captured");
    cudaStreamDestroy(stream);
    cudaGetLastError();
}

/* --- a layer and a call */

enum { H = 136, E = 3, N = 70, K = 2, CAP = 70 };

struct inputs {
    std::vector<void *> blocks;
    struct fm_clip_layer layer = {};
    struct fm_clip_call call = {};
    template <typename T> T *put(const std::vector<T> &v)
    {
        T *p = (T *)device(v.size() * sizeof(T));
        cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
        blocks.push_back(p);
        return p;
    }
    explicit inputs(int shift = 0)
    {
        std::vector<int32_t> ids;
        for (int i = 0; i < N * K; i++)
            ids.push_back(i * 7 % E);
        layer.size = sizeof layer;
        layer.device = FM_CLIP_CUDA;
        layer.type = FM_CLIP_BF16;
        layer.H = H;
        layer.E = E;
        layer.B = 1;
        layer.cap_max = CAP;
        layer.channels = E * CAP;
        layer.gate_up = put(std::vector<uint16_t>(2 * E * CAP * H + 8, 0x3c00)) + shift;
        layer.down = put(std::vector<uint16_t>(E * CAP * H, 0x3c00));
        layer.row0 = put(std::vector<int64_t>{0, CAP, 2 * CAP});
        layer.cap = put(std::vector<int32_t>(E, CAP));
        layer.widths = put(std::vector<int32_t>{CAP, 33, 1});
        layer.budget = put(std::vector<int32_t>{0});
        layer.budget_type = FM_CLIP_I32;
        call.size = sizeof call;
        call.N = N;
        call.K = K;
        call.ids_type = FM_CLIP_I32;
        call.hidden = put(std::vector<uint16_t>(N * H, 0x3f00));
        call.hidden_stride = call.out_stride = H;
        call.ids = put(ids);
        call.weights = put(std::vector<float>(N * K, 0.5f));
        call.out = put(std::vector<uint16_t>(N * H));
        call.workspace_bytes = fm_clip_workspace_bytes(&layer, N, K);
        call.workspace = put(std::vector<uint8_t>(call.workspace_bytes));
    }
    ~inputs()
    {
        for (void *p : blocks)
            cudaFree(p);
    }
};

static const struct {
    int path;
    const char *name;
} paths[] = {{FM_CLIP_PORTABLE, "plain"},
             {FM_CLIP_MMA, "mma"},
             {FM_CLIP_HOPPER, "hopper"},
             {FM_CLIP_NAIVE, "naive"},
             {FM_CLIP_BUCKET, "bucket"}};

/* --- what is refused, and which path is used instead */

static void maps_want_alignment()
{
    inputs in;
    CUtensorMap maps[2];
    bool lawful = fm_clip_cuda_map(&maps[0], FM_CLIP_BF16, in.layer.down, E * CAP, H, 64);
    bool shifted = fm_clip_cuda_map((CUtensorMap *)((char *)maps + 16), FM_CLIP_BF16, in.layer.down,
                                    E * CAP, H, 64);
    report(lawful && !shifted, "a map aligned to only 16 bytes is refused");
    std::vector<void *> between;
    std::vector<struct fm_clip *> held; /* not freed, so that addresses differ */
    bool good = true;
    for (size_t i = 0; i < 24; i++) {
        struct fm_clip *clip = nullptr;
        between.push_back(malloc(24 + 16 * (i % 9)));
        in.layer.path = FM_CLIP_HOPPER;
        good = good && fm_clip_prepare(&clip, &in.layer, nullptr) == FM_CLIP_OK;
        held.push_back(clip);
    }
    for (struct fm_clip *clip : held)
        fm_clip_release(clip);
    for (void *p : between)
        free(p);
    report(good, "layers are prepared wherever the heap puts them");
}

/* The result for a layer with a given FM_DOUBLE: fm_clip_name of the best path, or the refusal.
 * Each is computed in a separate process, since the library examines the driver only once. */
struct chosen {
    char name[200];
};

static chosen best(const char *words, int shift)
{
    chosen c = {"no answer"};
    int ends[2];
    fflush(stdout);
    if (pipe(ends))
        return c;
    if (fork() == 0) {
        setenv("FM_DOUBLE", words, 1);
        inputs in(shift);
        struct fm_clip *clip = nullptr;
        struct fm_clip_error error = {};
        int32_t code = fm_clip_prepare(&clip, &in.layer, &error);
        if (code == FM_CLIP_OK)
            code = fm_clip_forward(clip, &in.call, &error);
        snprintf(c.name, sizeof c.name, "%.150s",
                 code == FM_CLIP_OK ? fm_clip_name(clip) : error.text);
        _exit(write(ends[1], &c, sizeof c) != sizeof c);
    }
    close(ends[1]);
    chosen got;
    if (read(ends[0], &got, sizeof got) == sizeof got)
        c = got;
    close(ends[0]);
    wait(nullptr);
    return c;
}

static void the_best_path_that_serves_is_taken()
{
    static const struct {
        const char *words, *name;
        int shift;
    } rows[] = {{"", "cuda hopper bf16", 0},
                {"notensormap", "cuda mma bf16", 0},
                {"cc=8.0", "cuda mma bf16", 0},
                {"cc=10.0", "cuda mma bf16", 0},
                {"", "cuda plain bf16", 1}};
    for (const auto &row : rows) {
        chosen c = best(row.words, row.shift);
        report(!strcmp(c.name, row.name),
               std::string("best with \"") + row.words + "\"" + (row.shift ? ", shifted" : ""),
               c.name);
    }
    chosen old = best("cc=7.5", 0);
    report(strstr(old.name, "7.5"), "an old device is refused", old.name);
    setenv("FM_DOUBLE", "none", 1);
    struct fm_clip_error error = {};
    report(fm_clip_available(FM_CLIP_CUDA, &error) == FM_CLIP_EDEVICE, "an old driver is refused",
           error.text);
    unsetenv("FM_DOUBLE");
}

/* The baselines wait and allocate, so in a capture they are refused with a message, and the capture
 * stays valid. */
static void baselines_are_not_captured()
{
    inputs in;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    for (int path : {FM_CLIP_NAIVE, FM_CLIP_BUCKET}) {
        struct fm_clip *clip = nullptr;
        struct fm_clip_error error = {};
        cudaGraph_t graph = nullptr;
        in.layer.path = path;
        in.call.stream = stream;
        fm_clip_prepare(&clip, &in.layer, &error);
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        int32_t code = fm_clip_forward(clip, &in.call, &error);
        bool whole = cudaStreamEndCapture(stream, &graph) == cudaSuccess;
        report(code == FM_CLIP_EUSAGE && whole, "a baseline in a capture", error.text);
        if (graph)
            cudaGraphDestroy(graph);
        fm_clip_release(clip);
    }
    cudaStreamDestroy(stream);
}

/* Work that prepare and status enqueue on the default stream must be complete when they return: the
 * call's stream, like PyTorch's streams, does not wait for the default one. */
static void nothing_is_left_on_the_default_stream()
{
    inputs in;
    std::vector<uint16_t> out[2];
    struct fm_clip *clip = nullptr;
    cudaStream_t apart;
    cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking);
    in.layer.path = FM_CLIP_MMA;
    for (cudaStream_t stream : {apart, (cudaStream_t) nullptr}) {
        std::vector<uint16_t> &numbers = out[stream == apart];
        fm_clip_release(clip);
        cudaDeviceSynchronize();
        bool good = fm_clip_prepare(&clip, &in.layer, nullptr) == FM_CLIP_OK;
        in.call.stream = stream;
        good = good && fm_clip_forward(clip, &in.call, nullptr) == FM_CLIP_OK;
        cudaStreamSynchronize(stream);
        numbers.resize(N * H);
        cudaMemcpy(numbers.data(), in.call.out, N * H * 2, cudaMemcpyDeviceToHost);
        if (!good)
            numbers.clear();
    }
    report(!out[0].empty() && out[0] == out[1],
           "a call right after prepare, on a non-blocking stream");
    int32_t before = fm_clip_status(clip, nullptr), budget = 7;
    cudaMemcpyAsync((void *)in.layer.budget, &budget, sizeof budget, cudaMemcpyHostToDevice, apart);
    in.call.stream = apart;
    fm_clip_forward(clip, &in.call, nullptr);
    cudaStreamSynchronize(apart);
    report(before == 0 && fm_clip_status(clip, nullptr) == FM_CLIP_FAULT_BUDGET,
           "a fault right after status, on a non-blocking stream");
    fm_clip_release(clip);
    cudaStreamDestroy(apart);
}

/* --- failures in turn */

/* Run `work`, which returns whether it succeeded, with its n-th call failing, for every n. */
template <typename F> static void fails_well(const std::string &what, F work)
{
    int before = double_calls(), held = double_live_allocations() + double_live_handles();
    bool good = work();
    int calls = double_calls() - before, leaks = 0, unseen = 0;
    for (int n = 1; n <= calls; n++) {
        double_fail_after(n);
        unseen += work();
        double_fail_after(0);
        cudaDeviceSynchronize();
        leaks += double_live_allocations() + double_live_handles() != held;
        cudaGetLastError();
    }
    good = good && work();
    char detail[120];
    snprintf(detail, sizeof detail, "%d calls, %d failures not seen, %d leaks", calls, unseen,
             leaks);
    report(good && !unseen && !leaks, what, detail);
}

static bool run_clip(const inputs &in, int path)
{
    struct fm_clip_layer layer = in.layer;
    struct fm_clip *clip = nullptr;
    layer.path = path;
    if (fm_clip_prepare(&clip, &layer, nullptr) != FM_CLIP_OK)
        return false;
    bool good = fm_clip_forward(clip, &in.call, nullptr) == FM_CLIP_OK &&
                fm_clip_status(clip, nullptr) == 0;
    fm_clip_release(clip);
    return good;
}

static bool run_measured(int path)
{
    std::vector<uint16_t> matrix(2 * E * CAP * H, 0x3c00), rows(N * H, 0x3c00);
    std::vector<int64_t> row0 = {0, CAP, 2 * CAP};
    std::vector<int32_t> cap(E, CAP), widths = {CAP, 33, 1}, ids(N * K, 1);
    std::vector<float> weights(N * K, 1);
    struct fm_clip_layer layer = {};
    struct fm_clip_call call = {};
    struct fm_clip_gpu *gpu = nullptr;
    layer.size = sizeof layer;
    layer.type = FM_CLIP_BF16;
    layer.H = H, layer.E = E, layer.B = 1, layer.cap_max = CAP, layer.channels = E * CAP;
    layer.gate_up = matrix.data(), layer.down = matrix.data();
    layer.row0 = row0.data(), layer.cap = cap.data(), layer.widths = widths.data();
    call.size = sizeof call;
    call.N = N, call.K = K, call.hidden_stride = call.out_stride = H;
    call.ids_type = FM_CLIP_I32;
    call.hidden = rows.data(), call.out = rows.data();
    call.ids = ids.data(), call.weights = weights.data();
    if (fm_clip_gpu_open(&gpu, &layer, nullptr) != FM_CLIP_OK)
        return false;
    double seconds = fm_clip_gpu_run(gpu, path, &call, 0);
    fm_clip_gpu_close(gpu);
    return seconds > 0;
}

static void failures_are_seen()
{
    {
        inputs in;
        for (const auto &path : paths)
            fails_well(std::string("a call by ") + path.name,
                       [&]() { return run_clip(in, path.path); });
    }
    for (int path : {FM_CLIP_MMA, FM_CLIP_BUCKET})
        fails_well(std::string("a measured run of path ") + std::to_string(path),
                   [=]() { return run_measured(path); });
    report(double_dirty_at_clock() == 0,
           "no measurement starts with other work's dirty lines in the cache",
           (std::to_string(double_dirty_at_clock()) + " bytes").c_str());
}

int main(void)
{
    memory_is_strict();
    captures_are_strict();
    the_best_path_that_serves_is_taken();
    maps_want_alignment();
    baselines_are_not_captured();
    nothing_is_left_on_the_default_stream();
    failures_are_seen();
    printf("%d failures\n", failures);
    return failures != 0;
}
