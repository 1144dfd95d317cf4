/*
 * Check libfm_clip on a GPU: every implementation is compared with the definition in float64
 * (gpu_define.cu), which in turn is compared with fm_clip_reference on the host.
 *
 *   gpu_check there           only checks whether there is a GPU
 *   gpu_check small           small and odd cases of the library's own path
 *   gpu_check replays N       N replays of a graph, over random ids and widths
 *   gpu_check edges           one token, one slot, one expert, a layer of more than 2^31 numbers
 *   gpu_check baselines       some of these small cases on the benchmark's baselines
 *   gpu_check real            sizes of real models; some tokens are checked
 *
 * Status 0; 1: something is wrong; 2: usage; 77: no GPU.
 */
#include "tests/gpu/gpu_check.h"

#include "kernels/clip/cuda/clip_cuda.h"

static int failures, checks, served[3];

const path_name paths[3] = {
    {FM_CLIP_MMA, "mma"}, {FM_CLIP_NAIVE, "naive"}, {FM_CLIP_BUCKET, "bucket"}};

void report(bool good, const std::string &what, const char *detail)
{
    checks++;
    failures += !good;
    printf("%s %s%s%s\n", good ? "ok  " : "FAIL", what.c_str(), detail[0] ? ": " : "", detail);
    fflush(stdout);
}

static std::vector<int> some_tokens(int N, int most)
{
    std::vector<int> tokens;
    for (int i = 0; i < std::min(N, most); i++)
        tokens.push_back(N <= most ? i : (int)((int64_t)i * (N - 1) / (most - 1)));
    return tokens;
}

/* --- running */

/* Whether a path must be there: if it is refused, its checks would be skipped unnoticed. */
static bool must_serve(int path)
{
    return !is_baseline(path) || fm_clip_cuda_cublas();
}

prepared::prepared(const test_layer &l, int path, const std::string &what)
{
    struct fm_clip_layer given = l.given(path);
    code = fm_clip_prepare(&clip, &given, &error);
    if (code != FM_CLIP_OK && (code != FM_CLIP_EDEVICE || must_serve(path)))
        report(false, what + ", path " + std::to_string(path), error.text);
}

prepared::~prepared()
{
    fm_clip_release(clip);
}

/* Whether all bytes from `from` on are still 0xff. */
static bool untouched(const device_array<uint8_t> &array, size_t from)
{
    std::vector<uint8_t> tail(array.n - from);
    MUST(cudaMemcpy(tail.data(), array.p + from, tail.size(), cudaMemcpyDeviceToHost));
    return std::all_of(tail.begin(), tail.end(), [](uint8_t v) { return v == 0xff; });
}

bool forward(prepared &p, const test_layer &l, test_call &c, int tokens_of_workspace)
{
    struct fm_clip_layer given = l.given(0);
    uint64_t bytes = fm_clip_workspace_bytes(&given, tokens_of_workspace, c.K);
    device_array<uint8_t> workspace(bytes + CANARY);
    MUST(cudaMemset(workspace.p, 0xff, workspace.n));
    MUST(cudaMemset(c.out.p, 0xff, c.out.n));
    struct fm_clip_call call = c.given(l, workspace.p, bytes, nullptr);
    if (fm_clip_forward(p.clip, &call, &p.error) != FM_CLIP_OK) {
        report(false, "forward", p.error.text);
        return false;
    }
    MUST(cudaDeviceSynchronize());
    bool kept = untouched(workspace, bytes) && untouched(c.out, c.out.n - CANARY);
    if (!kept)
        report(false, "forward", "bytes past the workspace or out were written");
    return kept;
}

void check(const char *what, const path_name &path, test_layer &l, test_call &c, int32_t budget,
           int sample)
{
    const char *type = l.type == FM_CLIP_F16 ? " f16, " : " bf16, ";
    std::string name = std::string(path.name) + type + what;
    l.set_budget(budget);
    prepared p(l, path.path, name);
    if (p.code != FM_CLIP_OK)
        return;
    if (!forward(p, l, c, c.N)) {
        report(false, name, "see above");
        return;
    }
    served[&path - paths]++;
    bool good = false;
    std::string detail =
        compare(l, c, define(l, c, some_tokens(c.N, sample), budget), path.path, &good);
    report(good, name, detail.c_str());
    int32_t faults = fm_clip_status(p.clip, &p.error);
    if (faults != 0)
        report(false, name + ": faults", p.error.text);
    if (is_baseline(path.path))
        return; /* their sums are atomic, so bits may differ between runs */
    std::vector<uint8_t> first = c.out.read();
    if (!forward(p, l, c, c.N) || c.out.read() != first)
        report(false, name, "the same call gave different bits");
    if (c.N > 2 && (!forward(p, l, c, (c.N + 2) / 3) || c.out.read() != first))
        report(false, name, "different bits in chunks");
}

/* --- small cases */

test_layer odd_layer(int type, int H)
{
    return test_layer(type, H, 200, 5, {70, 33, 1, 64, 200},
                      {70, 0, 1, 63, 199, 17, 33, 1, 64, 65, 70, 33, 1, 64, 200}, 3);
}

static std::vector<int32_t> used_of(const test_layer &l, const std::vector<int> &budgets)
{
    std::vector<int32_t> used((size_t)l.E);
    for (int b : budgets)
        for (int e = 0; e < l.E; e++)
            used[(size_t)e] = std::max(used[(size_t)e], l.widths[(size_t)(b * l.E + e)]);
    return used;
}

static void odd_sizes(const path_name &path, int type, int H)
{
    test_layer l = odd_layer(type, H);
    bool clean = is_baseline(path.path); /* baselines multiply dropped channels by zero */
    if (!clean)
        l.spoil(used_of(l, {1}));
    for (int N : {1, 9, 40, 150}) {
        test_call c(l, N, 2, 0);
        check(("N " + std::to_string(N)).c_str(), path, l, c, 1, 1000);
    }
    test_layer wide = odd_layer(type, H);
    if (!clean)
        wide.spoil(used_of(wide, {0}));
    test_call crowd(wide, 130, 2, 1); /* all tokens on one expert, another has width 0 */
    check("one expert has every token", path, wide, crowd, 0, 1000);
    if (clean)
        return;
    test_layer both = odd_layer(type, H);
    test_call c(both, 77, 2, 0.5);
    for (int t = 0; t < c.N; t++)
        c.budgets.push_back(t * 5 % 3);
    c.upload();
    check("budgets per token", path, both, c, 0, 1000);
}

static void absent_ids(const path_name &path, int type, int H)
{
    test_layer l = odd_layer(type, H);
    l.e0 = 3;
    test_call c(l, 23, 3, 0);
    for (size_t i = 0; i < c.ids.size(); i += 4)
        c.ids[i] = i % 8 ? -1 : (int32_t)(i % 3); /* no expert, or another rank's */
    c.ids[30] = c.ids[31] = c.ids[32] = 3;        /* duplicates add */
    c.ids[33] = c.ids[34] = c.ids[35] = -1;
    std::vector<int64_t> wide(c.ids.begin(), c.ids.end());
    c.d_ids64 = device_array<int64_t>(wide);
    check("absent ids, a range of experts, duplicates, 64-bit ids", path, l, c, 2, 1000);
}

static void nan_stays_in_its_row()
{
    const int type = FM_CLIP_BF16, H = 136;
    test_layer l = odd_layer(type, H);
    l.set_budget(2);
    test_call c(l, 30, 2, 0.4);
    prepared p(l, own.path);
    if (p.code != FM_CLIP_OK || !forward(p, l, c, c.N))
        return;
    std::vector<uint8_t> clean = c.out.read();
    size_t row = (size_t)H * 2;
    MUST(cudaMemset(c.hidden.p + 11 * row, 0xff, row));
    forward(p, l, c, c.N);
    std::vector<uint8_t> out = c.out.read();
    bool same = !memcmp(out.data(), clean.data(), 11 * row) &&
                !memcmp(out.data() + 12 * row, clean.data() + 12 * row, out.size() - 12 * row);
    bool nan = true;
    for (int j = 0; j < H; j++) {
        double v = number_at(out.data(), type, (int64_t)11 * H + j);
        nan = nan && v != v;
    }
    report(same && nan, std::string(own.name) + ", a NaN row stays in its row",
           same ? nan ? "" : "numbers in the row itself" : "other rows changed");
}

/* If each expert is loaded only up to the width in use, the bits are the same. */
static void freed_tails()
{
    const int type = FM_CLIP_BF16, H = 136;
    test_layer whole = odd_layer(type, H);
    std::vector<int32_t> used = used_of(whole, {1});
    test_layer freed(type, H, 200, 5, used, used, 0);
    size_t row = (size_t)H * 2;
    for (size_t e = 0; e < 5; e++) {
        MUST(cudaMemcpy(freed.gate_up.p + 2 * (size_t)freed.row0[e] * row,
                        whole.gate_up.p + 2 * (size_t)whole.row0[e] * row,
                        2 * (size_t)used[e] * row, cudaMemcpyDeviceToDevice));
        MUST(cudaMemcpy(freed.down.p + (size_t)freed.row0[e] * row,
                        whole.down.p + (size_t)whole.row0[e] * row, (size_t)used[e] * row,
                        cudaMemcpyDeviceToDevice));
    }
    test_call c(whole, 45, 2, 0.3);
    whole.set_budget(1);
    prepared a(whole, own.path), b(freed, own.path);
    if (a.code != FM_CLIP_OK || b.code != FM_CLIP_OK || !forward(a, whole, c, c.N))
        return;
    std::vector<uint8_t> first = c.out.read();
    bool ran = forward(b, freed, c, c.N);
    report(ran && c.out.read() == first, std::string(own.name) + ", freed tails give the same bits",
           "");
}

/* A width and a budget out of range are clamped, and status reports them once. */
static void faults_are_told()
{
    const int type = FM_CLIP_BF16, H = 136;
    test_layer l = odd_layer(type, H);
    l.set_budget(9);
    l.d_widths.write({70, 0, 1, 63, 199, 17, 33, 1, 64, 65, 70, 33, 1, 64, 201});
    test_call c(l, 12, 2, 0);
    prepared p(l, own.path);
    if (p.code != FM_CLIP_OK || !forward(p, l, c, c.N))
        return;
    bool good = false;
    std::string detail = compare(l, c, define(l, c, some_tokens(c.N, 1000), 2), own.path, &good);
    int32_t faults = fm_clip_status(p.clip, &p.error), after = fm_clip_status(p.clip, &p.error);
    report(good && faults == (FM_CLIP_FAULT_WIDTH | FM_CLIP_FAULT_BUDGET) && after == 0,
           std::string(own.name) + ", faults are reported once", detail.c_str());
}

/* Compare the definition on the device with fm_clip_reference on the host. */
static void definitions_agree()
{
    test_layer l = odd_layer(FM_CLIP_BF16, 72);
    test_call c(l, 11, 2, 0);
    definition d = define(l, c, some_tokens(11, 1000), 2);
    std::vector<uint8_t> gate_up = l.gate_up.read(), down = l.down.read(), hidden = c.hidden.read();
    int32_t budget = 2;
    struct fm_clip_layer host = l.given(0);
    host.device = FM_CLIP_CPU;
    host.gate_up = gate_up.data();
    host.down = down.data();
    host.row0 = l.row0.data();
    host.cap = l.cap.data();
    host.widths = l.widths.data();
    host.budget = &budget;
    struct fm_clip_call call = c.given(l, nullptr, 0, nullptr);
    call.hidden = hidden.data();
    call.ids = c.ids.data();
    call.weights = c.weights.data();
    std::vector<double> out(d.out.size()), size(d.out.size());
    struct fm_clip_error error = {};
    int32_t code = fm_clip_reference(out.data(), size.data(), &host, &call, &error);
    double worst = 0;
    for (size_t i = 0; i < out.size(); i++)
        worst = std::max(worst, fabs(out[i] - d.out[i]) / (1e-300 + d.size[i]));
    report(code == FM_CLIP_OK && worst <= 1e-12,
           "the definition on the device and on the host agree", error.text);
}

static void paths_are_there()
{
    test_layer l(FM_CLIP_BF16, 128, 128, 2, {128, 128}, {128, 128}, 0);
    for (const path_name &path : paths) {
        prepared p(l, path.path);
        bool wanted = must_serve(path.path);
        report(p.code == (wanted ? FM_CLIP_OK : FM_CLIP_EDEVICE),
               std::string("path ") + path.name + (wanted ? " is there" : " is refused"),
               p.error.text);
    }
    struct fm_clip_layer f32 = l.given(FM_CLIP_BEST), odd = f32;
    f32.type = FM_CLIP_F32;
    odd.H = 41;
    for (const struct fm_clip_layer &other : {f32, odd}) {
        struct fm_clip_error error = {};
        struct fm_clip *clip = nullptr;
        int32_t code = fm_clip_prepare(&clip, &other, &error);
        report(code == FM_CLIP_EDEVICE, "f32 or an odd H is refused", error.text);
    }
}

/* Widths of one channel and of one less than a step; all other channels are NaN. */
static void tails()
{
    for (int width : {1, 63}) {
        test_layer l(FM_CLIP_BF16, 64, 128, 2, {128, 128}, {width, width}, 0);
        test_call c(l, 3, 1, 0), crowd(l, 90, 1, 1);
        l.spoil({width, width});
        std::string what = "a width of " + std::to_string(width);
        check(what.c_str(), own, l, c, 0, 1000);
        check((what + ", many rows").c_str(), own, l, crowd, 0, 1000);
    }
}

static void small_cases()
{
    paths_are_there();
    definitions_agree();
    for (int type : {FM_CLIP_BF16, FM_CLIP_F16}) {
        odd_sizes(own, type, 136);
        absent_ids(own, type, 136);
    }
    tails();
    nan_stays_in_its_row();
    freed_tails();
    faults_are_told();
}

static void baseline_cases()
{
    for (const path_name &path : paths)
        for (int type : {FM_CLIP_BF16, FM_CLIP_F16})
            if (is_baseline(path.path)) {
                odd_sizes(path, type, 136);
                absent_ids(path, type, 136);
            }
}

/* --- real sizes */

struct real_model {
    const char *name;
    int H, I, E, K;
};

static void real_sizes()
{
    static const real_model models[] = {{"mixtral-8x7b", 4096, 14336, 8, 2},
                                        {"qwen2-57b-a14b", 3584, 2560, 64, 8},
                                        {"qwen3-30b-a3b", 2048, 768, 128, 8}};
    static const double shares[8] = {1, 0.7, 0.4, 0.4, 0.4, 0.1, 0.1, 0.1};
    for (const real_model &m : models) {
        std::vector<int32_t> cap((size_t)m.E, m.I), widths = cap;
        for (int e = 0; e < m.E; e++)
            widths.push_back((int32_t)ceil(shares[e * 5 % 8] * m.I));
        test_layer l(FM_CLIP_BF16, m.H, m.I, m.E, cap, widths, 0);
        for (int N : {1, 16, 64, 256, 1024, 4096})
            for (int32_t b : {0, 1}) {
                test_call c(l, N, m.K, 0);
                std::string what = std::string(m.name) + ", N " + std::to_string(N) +
                                   (b ? ", mixed widths" : ", full width");
                for (const path_name &path : paths)
                    check(what.c_str(), path, l, c, b, 24);
            }
    }
}

static int run_part(const std::string &mode, const char *word)
{
    if (mode == "small")
        small_cases();
    else if (mode == "baselines")
        baseline_cases();
    else if (mode == "replays" && word)
        check_replays(atoi(word));
    else if (mode == "edges")
        check_edges();
    else if (mode == "real")
        real_sizes();
    else {
        fprintf(stderr, "usage: gpu_check there|small|replays N|edges|baselines|real\n");
        return 2;
    }
    printf("%d checks, %d failures; cases per path:", checks, failures);
    for (int i = 0; i < 3; i++)
        printf(" %s %d%s", paths[i].name, served[i], i < 2 ? "," : "\n");
    return failures != 0 || checks == 0;
}

int main(int count, char **words)
{
    std::string mode = count > 1 ? words[1] : "";
    struct fm_clip_error error = {};
    if (fm_clip_available(FM_CLIP_CUDA, &error) != FM_CLIP_OK) {
        printf("gpu_check: no GPU here (%s): nothing was checked on a GPU\n", error.text);
        return 77;
    }
    if (mode == "there")
        return 0;
    return run_part(mode, count > 2 ? words[2] : nullptr);
}
