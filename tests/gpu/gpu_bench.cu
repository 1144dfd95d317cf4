/*
 * Measure the clipped FFN on a GPU, and in the same run the machine's limits: the read bandwidth of
 * a kernel that only reads, and cuBLAS's peak on random numbers.  The L2 cache is flushed between
 * runs.  Fused paths run as captured graphs, as in a server; the baselines need the host and run
 * without a graph.
 */
#include "tests/gpu/gpu_check.h"

#include "kernels/clip/clip_gpu.h"
#include "kernels/clip/cuda/clip_cuda.h"

static const struct implementation {
    int path;
    const char *name;
} kernels[] = {{FM_CLIP_NAIVE, "naive"}, {FM_CLIP_BUCKET, "bucket"}, {FM_CLIP_MMA, "mma"}};

struct shape {
    const char *name;
    int H, I, E, K;
};

static const shape shapes[] = {{"mixtral-8x7b", 4096, 14336, 8, 2},
                               {"qwen2-57b-a14b", 3584, 2560, 64, 8},
                               {"qwen3-30b-a3b", 2048, 768, 128, 8},
                               {"phi-3.5-moe", 4096, 6400, 16, 2}};

/* What is measured: everything, or a quick selection. */
struct plan {
    std::vector<shape> shapes;
    std::vector<int> tokens, budgets; /* budgets: rows of `shares` */
    std::vector<int> paths;
    int rounds;
};

static plan plan_of(const std::string &which)
{
    if (which == "quick")
        return {{shapes[0]}, {16, 64, 256, 4096}, {0, 2, 3}, {FM_CLIP_MMA}, 9};
    return {{shapes, shapes + sizeof shapes / sizeof *shapes},
            {1, 16, 64, 256, 1024, 4096},
            {0, 1, 2, 3},
            {FM_CLIP_NAIVE, FM_CLIP_BUCKET, FM_CLIP_MMA},
            15};
}

/* Widths of the budgets 0, 0.2, 0.4, 0.6: shares of eight experts, mixed as learned masks are. */
static const double shares[4][8] = {{1, 1, 1, 1, 1, 1, 1, 1},
                                    {1, 1, 1, 1, 0.7, 0.7, 0.7, 0.3},
                                    {1, 1, 0.7, 0.7, 0.4, 0.4, 0.4, 0.1},
                                    {1, 0.7, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1}};

static cudaStream_t stream;
static uint8_t *flushed;

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Seconds of `work` on the stream, the median of `rounds` runs with a cold cache. */
template <typename F> static double seconds_of(F work, int rounds)
{
    std::vector<double> seconds;
    cudaEvent_t begin, end;
    MUST(cudaEventCreate(&begin));
    MUST(cudaEventCreate(&end));
    for (int i = -2; i < rounds; i++) {
        float ms = 0;
        MUST(fm_clip_cuda_flush(flushed, stream));
        MUST(cudaEventRecord(begin, stream));
        work();
        MUST(cudaEventRecord(end, stream));
        MUST(cudaEventSynchronize(end));
        MUST(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 0)
            seconds.push_back(ms / 1e3);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return median(seconds);
}

struct limits {
    double bandwidth, peak;
};

struct measured {
    const char *model, *kernel;
    int tokens;
    double budget, seconds, flops, bytes, ideal;
};

/* The costs of the routed rows: operations, bytes of weights read once, bytes of activations. */
static measured costs(const test_layer &l, const test_call &c, int32_t b)
{
    measured m = {};
    std::vector<bool> hit((size_t)l.E);
    double channels = 0, removed = 0;
    for (int t = 0; t < c.N; t++)
        for (int s = 0; s < c.K; s++) {
            m.flops += 6.0 * l.H * c.width(l, t, s, b);
            channels += c.width(l, t, s, b);
            hit[(size_t)c.ids[(size_t)(t * c.K + s)]] = true;
        }
    for (int e = 0; e < l.E; e++) {
        int32_t k = l.widths[(size_t)(b * l.E + e)];
        m.bytes += hit[(size_t)e] ? 6.0 * l.H * k : 0;
        removed += l.I - k;
    }
    m.bytes += 2.0 * c.N * c.K * l.H + 4.0 * channels + 2.0 * c.N * l.H;
    m.tokens = c.N;
    m.budget = removed / ((double)l.I * l.E);
    return m;
}

/* Median seconds of one implementation, or 0 and why it did not run. */
static double time_of(const test_layer &l, const test_call &c, int path, int rounds,
                      std::string *why)
{
    struct fm_clip_layer given = l.given(path);
    struct fm_clip *clip = nullptr;
    struct fm_clip_error error = {};
    if (fm_clip_prepare(&clip, &given, &error) != FM_CLIP_OK) {
        *why = error.text;
        return 0;
    }
    uint64_t bytes = fm_clip_workspace_bytes(&given, c.N, c.K);
    device_array<uint8_t> workspace(bytes);
    struct fm_clip_call call = c.given(l, workspace.p, bytes, stream);
    int32_t code = fm_clip_forward(clip, &call, &error);
    MUST(cudaStreamSynchronize(stream));
    double seconds = 0;
    if (code != FM_CLIP_OK) {
        *why = error.text;
    } else if (is_baseline(path)) {
        seconds = seconds_of([&]() { fm_clip_forward(clip, &call, &error); }, rounds);
    } else {
        cudaGraph_t graph;
        cudaGraphExec_t run;
        MUST(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        fm_clip_forward(clip, &call, &error);
        MUST(cudaStreamEndCapture(stream, &graph));
        MUST(cudaGraphInstantiate(&run, graph, 0));
        seconds = seconds_of([&]() { MUST(cudaGraphLaunch(run, stream)); }, rounds);
        cudaGraphExecDestroy(run);
        cudaGraphDestroy(graph);
    }
    fm_clip_release(clip);
    return seconds;
}

static std::vector<measured> measure(const shape &m, const plan &todo, const limits &lim)
{
    std::vector<int32_t> cap((size_t)m.E, m.I), widths;
    std::vector<measured> rows;
    int multiple = m.I >= 1024 ? 128 : 64;
    for (const auto &share : shares)
        for (int e = 0; e < m.E; e++)
            widths.push_back(std::min(m.I, ((int32_t)ceil(share[e * 5 % 8] * m.I) + multiple - 1) /
                                               multiple * multiple));
    test_layer l(FM_CLIP_BF16, m.H, m.I, m.E, cap, widths, 0);
    for (int N : todo.tokens) {
        test_call c(l, N, m.K, 0);
        for (const implementation &kernel : kernels)
            for (int32_t b : todo.budgets) {
                if (!std::count(todo.paths.begin(), todo.paths.end(), kernel.path))
                    continue;
                std::string why;
                l.set_budget(b);
                measured row = costs(l, c, b);
                row.model = m.name;
                row.kernel = kernel.name;
                row.ideal =
                    std::max(row.bytes / lim.bandwidth, lim.peak > 0 ? row.flops / lim.peak : 0);
                row.seconds = time_of(l, c, kernel.path, todo.rounds, &why);
                if (row.seconds > 0) {
                    rows.push_back(row);
                    printf("  %s, %d tokens, budget %.3f, %s: %.1f us\n", m.name, N, row.budget,
                           kernel.name, row.seconds * 1e6);
                } else {
                    printf("  %s does not run: %s\n", kernel.name, why.c_str());
                }
                fflush(stdout); /* in case the next one hangs */
            }
    }
    return rows;
}

static double other(const std::vector<measured> &rows, const measured &r, const char *kernel,
                    bool full)
{
    for (const measured &o : rows)
        if (!strcmp(o.model, r.model) && !strcmp(o.kernel, kernel) && o.tokens == r.tokens &&
            (full ? o.budget == 0 : o.budget == r.budget))
            return o.seconds / r.seconds;
    return 0;
}

static void show(const std::vector<measured> &rows, FILE *json)
{
    printf("%-15s %6s %7s %-7s %10s %7s %8s %9s %8s %9s\n", "model", "tokens", "budget", "kernel",
           "us", "TB/s", "TFLOP/s", "roofline", "x full", "x bucket");
    for (size_t i = 0; i < rows.size(); i++) {
        const measured &r = rows[i];
        double full = other(rows, r, r.kernel, true), bucket = other(rows, r, "bucket", false);
        printf("%-15s %6d %7.3f %-7s %10.1f %7.2f %8.1f %9.2f %8.2f %9.2f\n", r.model, r.tokens,
               r.budget, r.kernel, r.seconds * 1e6, r.bytes / r.seconds / 1e12,
               r.flops / r.seconds / 1e12, r.ideal / r.seconds, full, bucket);
        fprintf(json,
                "    {\"model\": \"%s\", \"tokens\": %d, \"budget\": %.6f, \"kernel\": \"%s\", "
                "\"seconds\": %.9f, \"bytes\": %.0f, \"flops\": %.0f, \"roofline_seconds\": %.9f, "
                "\"speedup\": %.4f, \"over_bucket\": %.4f}%s\n",
                r.model, r.tokens, r.budget, r.kernel, r.seconds, r.bytes, r.flops, r.ideal, full,
                bucket, i + 1 < rows.size() ? "," : "");
    }
}

int run_bench(const char *json_file, const char *which)
{
    FILE *json = fopen(json_file, "w");
    if (!json) {
        perror(json_file);
        return 1;
    }
    MUST(cudaStreamCreate(&stream));
    MUST(cudaMalloc((void **)&flushed, FM_CLIP_FLUSH_BYTES));
    cudaDeviceProp device;
    MUST(cudaGetDeviceProperties(&device, 0));
    limits lim = {fm_clip_gpu_bandwidth(), fm_clip_gpu_peak()};
    printf("%s, %d processors; reads %.2f TB/s, cuBLAS bf16 8192^3 %.0f TFLOP/s\n", device.name,
           device.multiProcessorCount, lim.bandwidth / 1e12, lim.peak / 1e12);
    std::vector<measured> rows;
    plan todo = plan_of(which);
    for (const shape &m : todo.shapes) {
        std::vector<measured> more = measure(m, todo, lim);
        rows.insert(rows.end(), more.begin(), more.end());
    }
    fprintf(json,
            "{\n  \"device\": \"%s\",\n  \"bandwidth\": %.0f,\n  \"peak\": %.0f,\n  \"rows\": [\n",
            device.name, lim.bandwidth, lim.peak);
    show(rows, json);
    fprintf(json, "  ]\n}\n");
    bool bad = ferror(json) != 0;
    bad |= fclose(json) != 0;
    cudaFree(flushed);
    cudaStreamDestroy(stream);
    return bad || rows.empty();
}

int run_profile()
{
    const shape &m = shapes[0];
    test_layer l(FM_CLIP_BF16, m.H, m.I, m.E, std::vector<int32_t>((size_t)m.E, m.I),
                 std::vector<int32_t>((size_t)m.E, m.I), 0);
    prepared p(l, FM_CLIP_BEST);
    for (int N : {64, 4096}) {
        test_call c(l, N, m.K, 0);
        for (int i = 0; i < 3; i++)
            if (p.code != FM_CLIP_OK || !forward(p, l, c, c.N))
                return 1;
    }
    return 0;
}
