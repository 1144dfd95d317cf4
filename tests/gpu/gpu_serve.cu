/* The serving loop on the GPU against plain loops in double: prompts in pieces, steps by graph. */
#include "tests/gpu/gpu_check.h"

#include "kernels/serve/serve_gpu.h"
#include "tests/unit/serve_define.h"

enum { BATCH = 5, PROMPT = 6, DECODE = 5 };

/* Numbers as the device stores them. */
static std::vector<uint8_t> stored(const std::vector<float> &v, bool bf16)
{
    size_t size = bf16 ? 2 : 4;
    std::vector<uint8_t> bytes(v.size() * size);
    for (size_t i = 0; i < v.size(); i++)
        memcpy(&bytes[i * size], (const char *)&v[i] + (4 - size), size);
    return bytes;
}

static struct fm_serve_gpu *open_model(const serve_model &m, struct fm_clip_error *error)
{
    struct fm_serve_gpu_shape s = {};
    struct fm_serve_gpu *gpu = nullptr;
    s.type = m.bf16 ? FM_CLIP_BF16 : FM_CLIP_F32;
    s.L = m.L, s.H = m.H, s.I = m.I, s.E = m.E, s.K = m.K, s.Q = m.Q, s.G = m.G, s.C = m.C;
    s.B = m.B, s.V = m.V, s.batch = m.batch, s.prompt = PROMPT, s.decode = DECODE;
    s.rows = 2 * PROMPT; /* two prompts at a time */
    s.eps = m.eps;
    s.table = m.table.data();
    s.tokens = m.tokens.data();
    s.cos = m.cos.data();
    s.sin = m.sin.data();
    int32_t code = fm_serve_gpu_open(&gpu, &s, error);
    for (int l = 0; l < m.L && code == FM_CLIP_OK; l++) {
        const serve_layer &w = m.layer[(size_t)l];
        std::vector<uint8_t> qkv = stored(w.qkv, m.bf16), o = stored(w.o, m.bf16);
        std::vector<uint8_t> gate_up = stored(w.gate_up, m.bf16), down = stored(w.down, m.bf16);
        struct fm_serve_gpu_weights from = {
            w.input_norm.data(), w.post_norm.data(), qkv.data(),  o.data(),
            w.router.data(),     gate_up.data(),     down.data(), w.widths.data()};
        code = fm_serve_gpu_layer(gpu, l, &from, error);
    }
    return code == FM_CLIP_OK ? gpu : nullptr;
}

static void compare_last(const char *what, const serve_model &m, const std::vector<float> &last,
                         const std::vector<double> &want, int t, int budget)
{
    double worst = 0, size = 0;
    for (int s = 0; s < m.batch; s++)
        for (int i = 0; i < m.H; i++) {
            double v = want[(size_t)((s * m.T + t) * m.H + i)];
            double off = fabs(last[(size_t)(s * m.H + i)] - v);
            worst = off > worst || off != off ? off : worst;
            size = std::max(size, fabs(v));
        }
    char detail[60];
    snprintf(detail, sizeof detail, "%.2g of the largest number", worst / size);
    report(worst <= (m.bf16 ? 2e-2 : 1e-4) * size,
           std::string("serve ") + what + ", budget " + std::to_string(budget) + ", position " +
               std::to_string(t),
           detail);
}

static void check_model(const char *what, const serve_model &m)
{
    struct fm_clip_error error = {};
    struct fm_serve_gpu *gpu = open_model(m, &error);
    std::vector<float> last((size_t)(m.batch * m.H)), first;
    if (!gpu) {
        report(false, std::string("serve ") + what, error.text);
        return;
    }
    for (int round = 0; round < 3; round++) { /* budgets 0, 1 and 0 again */
        int budget = round % 2;
        std::vector<double> want = serve_define(m, budget);
        for (int t = PROMPT - 1; t < m.T; t++) {
            int32_t code = t < PROMPT ? fm_serve_gpu_prefill(gpu, budget, &error)
                                      : fm_serve_gpu_step(gpu, t, budget, &error);
            if (code == FM_CLIP_OK)
                code = fm_serve_gpu_last(gpu, last.data(), &error);
            if (code == FM_CLIP_OK)
                compare_last(what, m, last, want, t, budget);
            else
                report(false, std::string("serve ") + what, error.text);
        }
        first = round == 0 ? last : first;
    }
    report(memcmp(first.data(), last.data(), last.size() * sizeof last[0]) == 0,
           std::string("serve ") + what, "the same bits when the budget comes back");
    fm_serve_gpu_close(gpu);
}

void check_serve()
{
    const int T = PROMPT + DECODE;
    check_model("f32", serve_make(false, BATCH, T, 45, 20, 9, 3, 6, 2, 10));
    check_model("bf16", serve_make(true, BATCH, T, 128, 72, 4, 4, 8, 2, 32));
}
