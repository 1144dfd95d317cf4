/*
 * Check extreme arguments of a call, and repeated calls: graph replays over random ids and widths,
 * while another stream runs calls with another workspace, are compared bit by bit.
 */
#include "tests/gpu/gpu_check.h"

static bool has_memory(size_t wanted, const char *what)
{
    size_t left = 0, all = 0;
    MUST(cudaMemGetInfo(&left, &all));
    if (left < wanted)
        printf("left out: %s needs %.1f GB of device memory, %.1f are free\n", what, wanted / 1e9,
               left / 1e9);
    return left >= wanted;
}

/* More than 2^31 numbers in gate_up, and rows that only 64-bit offsets reach. */
static void huge_layer()
{
    const int H = 4096, gap = 135000;
    if (!has_memory((size_t)3 * H * 2 * 3 * gap + ((size_t)1 << 30), "a huge layer"))
        return;
    test_layer l(FM_CLIP_BF16, H, 256, 2, {256, 250}, {256, 200}, gap);
    for (int N : {9, 150}) {
        test_call c(l, N, 1, 0);
        check("a layer of more than 2^31 numbers", own, l, c, 0, 24);
    }
}

static void fewest()
{
    test_layer l = odd_layer(FM_CLIP_BF16, 136);
    test_call one(l, 1, 1, 1), slot(l, 70, 1, 0), token(l, 1, 5, 0);
    check("one token, one slot", own, l, one, 2, 1000);
    check("one slot a token", own, l, slot, 2, 1000);
    check("one token on every expert", own, l, token, 2, 1000);
    test_layer lone(FM_CLIP_BF16, 64, 128, 1, {128}, {77}, 0);
    test_call all(lone, 5, 1, 1);
    check("one expert", own, lone, all, 0, 1000);
}

void check_edges()
{
    fewest();
    huge_layer();
}

/* --- replays */

static void shuffle_inputs(test_layer &l, test_call &c, int32_t *budget)
{
    for (int32_t &id : c.ids)
        id = (int32_t)(random_bits() % (unsigned)(l.E + 1)) - (random_bits() % 8 == 0);
    for (size_t i = 0; i < l.widths.size(); i++) {
        int32_t cap = l.cap[i % (size_t)l.E];
        l.widths[i] = random_bits() % 4 ? (int32_t)(random_bits() % (unsigned)(cap + 1)) : cap;
    }
    *budget = (int32_t)(random_bits() % (unsigned)l.B);
    c.d_ids.write(c.ids);
    l.d_widths.write(l.widths);
    l.set_budget(*budget);
}

/* A captured call, and at the same time another one on a separate stream. */
struct replayed {
    cudaStream_t stream[2];
    cudaGraphExec_t run;
    device_array<uint8_t> workspace[2], out;
    struct fm_clip_call call[2];
};

static bool begin_replays(replayed *r, prepared &p, const test_layer &l, const test_call &c)
{
    struct fm_clip_layer given = l.given(0);
    uint64_t bytes = fm_clip_workspace_bytes(&given, c.N, c.K);
    cudaGraph_t graph = nullptr;
    r->out = device_array<uint8_t>(c.out.n);
    for (int i = 0; i < 2; i++) {
        MUST(cudaStreamCreate(&r->stream[i]));
        r->workspace[i] = device_array<uint8_t>(bytes);
        r->call[i] = c.given(l, r->workspace[i].p, bytes, r->stream[i]);
    }
    r->call[1].out = r->out.p;
    MUST(cudaStreamBeginCapture(r->stream[0], cudaStreamCaptureModeThreadLocal));
    int32_t code = fm_clip_forward(p.clip, &r->call[0], &p.error);
    MUST(cudaStreamEndCapture(r->stream[0], &graph));
    MUST(cudaGraphInstantiate(&r->run, graph, 0));
    MUST(cudaGraphDestroy(graph));
    return code == FM_CLIP_OK;
}

static void end_replays(replayed *r)
{
    MUST(cudaGraphExecDestroy(r->run));
    for (cudaStream_t stream : r->stream)
        MUST(cudaStreamDestroy(stream));
}

/* The number of replays whose bits differ from the direct call's, or whose errors exceed the bounds
 * (checked for every hundredth). */
static int wrong_replays(replayed *r, prepared &p, test_layer &l, test_call &c, int replays)
{
    int wrong = 0;
    for (int i = 0; i < replays; i++) {
        int32_t budget;
        bool good = true;
        shuffle_inputs(l, c, &budget);
        MUST(cudaMemset(c.out.p, 0xff, c.out.n));
        MUST(cudaMemset(r->out.p, 0xff, r->out.n));
        MUST(cudaDeviceSynchronize());
        MUST(cudaGraphLaunch(r->run, r->stream[0]));
        if (fm_clip_forward(p.clip, &r->call[1], &p.error) != FM_CLIP_OK)
            good = false;
        MUST(cudaDeviceSynchronize());
        good = good && c.out.read() == r->out.read();
        if (good && i % 100 == 0) {
            std::vector<int> tokens;
            for (int t = 0; t < c.N; t++)
                tokens.push_back(t);
            compare(l, c, define(l, c, tokens, budget), own.path, &good);
        }
        wrong += !good;
    }
    return wrong;
}

void check_replays(int replays)
{
    test_layer l = odd_layer(FM_CLIP_BF16, 136);
    test_call c(l, 75, 2, 0.5); /* experts with few rows and with many */
    prepared p(l, own.path, "replays");
    replayed r;
    if (p.code != FM_CLIP_OK)
        return;
    std::string what = std::to_string(replays) + " replays during calls on another stream";
    if (begin_replays(&r, p, l, c)) {
        int wrong = wrong_replays(&r, p, l, c, replays);
        report(wrong == 0, what,
               wrong ? (std::to_string(wrong) + " with different bits").c_str() : "");
    } else {
        report(false, what, p.error.text);
    }
    end_replays(&r);
}
