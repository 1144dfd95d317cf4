/*
 * The kernels of the serving loop, run thread by thread on the host (tests/unit/cuda_emulator.h) in
 * the order in which serve_cuda.cu puts them on a stream; projections and experts, which are not
 * theirs, by plain loops.  Prompts, then steps on the cache, against whole sequences in double.
 */
#include "tests/unit/cuda_emulator_ptx.h"

#include "kernels/serve/serve_cuda.cuh"
#include "tests/unit/serve_define.h"

enum { BATCH = 3, PROMPT = 5 };

static int failures;

/* What the device holds. */
template <typename T> struct device {
    const serve_model *m;
    int32_t at, budget;
    std::vector<float> x, qkv, part, rstd, chosen, last;
    std::vector<T> xn, out;
    std::vector<std::vector<T>> k, v;
    std::vector<int32_t> ids;
};

template <typename T>
static void multiply(float *y, const T *x, const std::vector<float> &w, int rows, int M, int n,
                     float beta)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < M; c++) {
            double sum = beta != 0 ? y[r * M + c] : 0;
            for (int i = 0; i < n; i++)
                sum += (double)to_float(x[r * n + i]) * w[(size_t)(c * n + i)];
            y[r * M + c] = (float)sum;
        }
}

template <typename T>
static void attend(device<T> &d, const serve_layer &w, const fm_serve_piece &p, size_t l,
                   int splits)
{
    unsigned rows = (unsigned)(p.S * p.n), G = (unsigned)p.G;
    int heads = (p.Q + 2 * p.G) * p.C;
    emu_launch({rows, 1, 1}, SERVE_THREADS, 0, [&]() {
        norm_rows<T>(p, d.xn.data(), d.rstd.data(), d.x.data(), w.input_norm.data());
    });
    multiply(d.qkv.data(), d.xn.data(), w.qkv, (int)rows, heads, p.H, 0);
    emu_launch({rows, 1, 1}, SERVE_THREADS, 0, [&]() {
        turn_rows<T>(p, d.qkv.data(), d.k[l].data(), d.v[l].data(), d.m->cos.data(),
                     d.m->sin.data());
    });
    emu_launch({rows, G, (unsigned)splits}, ATTEND_THREADS, 0, [&]() {
        attend_rows<T>(p, d.part.data(), d.qkv.data(), d.k[l].data(), d.v[l].data(), splits);
    });
    emu_launch({rows, (unsigned)p.Q, 1}, ATTEND_THREADS, 0,
               [&]() { merge_rows<T>(p, d.out.data(), d.part.data(), splits); });
    multiply(d.x.data(), d.out.data(), w.o, (int)rows, p.H, p.Q * p.C, 1);
}

template <typename T>
static void mix_experts(device<T> &d, const serve_layer &w, const fm_serve_piece &p)
{
    unsigned rows = (unsigned)(p.S * p.n);
    size_t H = (size_t)p.H, K = (size_t)p.K;
    emu_launch({rows, 1, 1}, SERVE_THREADS, 0, [&]() {
        norm_rows<T>(p, d.xn.data(), d.rstd.data(), d.x.data(), w.post_norm.data());
    });
    emu_launch({rows, 1, 1}, SERVE_THREADS, 0, [&]() {
        choose_rows(p, d.ids.data(), d.chosen.data(), d.x.data(), d.rstd.data(), w.post_norm.data(),
                    w.router.data());
    });
    for (size_t r = 0; r < rows; r++) {
        std::vector<double> xn(H);
        for (size_t i = 0; i < H; i++)
            xn[i] = to_float(d.xn[r * H + i]);
        std::vector<int> ids(&d.ids[r * K], &d.ids[r * K] + K);
        std::vector<double> weights(&d.chosen[r * K], &d.chosen[r * K] + K);
        std::vector<double> y = serve_experts(*d.m, w, d.budget, xn, ids, weights);
        for (size_t i = 0; i < H; i++)
            d.out[r * H + i] = from_float<T>((float)y[i]);
    }
    emu_launch({2, 1, 1}, SERVE_THREADS, 0,
               [&]() { add_numbers<T>(d.x.data(), d.out.data(), (int64_t)(rows * H)); });
}

/* S sequences from s0 on, n positions from `at` on. */
template <typename T> static void run(device<T> &d, int s0, int S, int at, int n, int splits)
{
    const serve_model &m = *d.m;
    fm_serve_piece p = {s0, S, n, m.T, m.H, m.Q, m.G, m.C, m.E, m.K, m.eps, &d.at};
    unsigned rows = (unsigned)(S * n);
    emu_launch({1, 1, 1}, 1, 0, [&]() { set_numbers(&d.at, &d.budget, at, d.budget); });
    emu_launch({rows, 1, 1}, SERVE_THREADS, 0,
               [&]() { embed_rows(p, d.x.data(), m.table.data(), m.tokens.data()); });
    for (size_t l = 0; l < m.layer.size(); l++) {
        attend(d, m.layer[l], p, l, splits);
        mix_experts(d, m.layer[l], p);
    }
    emu_launch({(unsigned)S, 1, 1}, SERVE_THREADS, 0,
               [&]() { take_last(p, d.last.data(), d.x.data()); });
}

template <typename T>
static void compare(const char *what, const device<T> &d, const std::vector<double> &want, int t)
{
    const serve_model &m = *d.m;
    double worst = 0, size = 0;
    for (int s = 0; s < BATCH; s++)
        for (int i = 0; i < m.H; i++) {
            double v = want[(size_t)((s * m.T + t) * m.H + i)];
            double off = fabs(d.last[(size_t)(s * m.H + i)] - v);
            worst = off > worst || off != off ? off : worst;
            size = std::max(size, fabs(v));
        }
    /* float32 sums through two layers; bfloat16 numbers that round the other way */
    bool good = worst <= (m.bf16 ? 5e-3 : 1e-5) * size;
    failures += !good;
    printf("%s %s, position %d: %.2g of the largest number\n", good ? "ok  " : "FAIL", what, t,
           worst / size);
}

template <typename T> static void check(const char *what, const serve_model &m, int budget)
{
    device<T> d;
    size_t rows = BATCH * PROMPT, heads = (size_t)(m.Q + 2 * m.G) * (size_t)m.C;
    size_t most = (size_t)std::max(m.H, m.Q * m.C);
    emu.chance = 0x9e3779b97f4a7c15u;
    d.m = &m;
    d.budget = budget;
    d.x.resize(rows * (size_t)m.H);
    d.qkv.resize(rows * heads);
    d.part.assign(rows * 9 * (size_t)m.Q * (size_t)(m.C + 2), NAN);
    d.rstd.resize(rows);
    d.chosen.resize(rows * (size_t)m.K);
    d.ids.resize(rows * (size_t)m.K);
    d.xn.resize(rows * (size_t)m.H);
    d.out.resize(rows * most);
    d.last.resize((size_t)(BATCH * m.H));
    T none = from_float<T>(NAN); /* what is not yet in the cache must not be read */
    std::vector<T> cache((size_t)(BATCH * m.T * m.G * m.C), none);
    d.k.assign(m.layer.size(), cache);
    d.v.assign(m.layer.size(), cache);
    std::vector<double> want = serve_define(m, budget);
    run(d, 0, 2, 0, PROMPT, 1);
    run(d, 2, 1, 0, PROMPT, 1);
    compare(what, d, want, PROMPT - 1);
    for (int t = PROMPT; t < m.T; t++) {
        run(d, 0, BATCH, t, 1, 1 + t % 9);
        compare(what, d, want, t);
    }
}

int main(void)
{
    check<float>("f32, three heads to a key head",
                 serve_make(false, BATCH, 9, 45, 20, 9, 3, 6, 2, 10), 1);
    check<float>("f32, more keys than a tile", serve_make(false, BATCH, 70, 20, 4, 5, 2, 2, 1, 6),
                 0);
    check<__nv_bfloat16>("bf16, all experts", serve_make(true, BATCH, 8, 40, 20, 3, 3, 4, 2, 16),
                         1);
    printf("%d failures\n", failures);
    return failures != 0;
}
