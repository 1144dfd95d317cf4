#include "lib/bench/meter.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

enum stage {
    GEMM,
    NORM,
    NORM_BACK,
    ROPE,
    ATTENTION,
    ATTENTION_BACK,
    ROUTE,
    ROUTE_BACK,
    ROUTE_RAW,
    ROUTE_RAW_BACK,
    SPARSEMIXER,
    SPARSEMIXER_BACK,
    ADD_ROWS,
    CLAMP,
    CLAMP_BACK,
    GATE_ROWS,
    GATE_ROWS_BACK,
    GATHER,
    COMBINE,
    SWIGLU,
    SWIGLU_BACK,
    DOT_ROWS,
    CHANNEL_SUMS,
    CHANNEL_SCORES,
    EMBED,
    LOSS,
    ADAMW,
    ADD,
    STAGES
};

static const char *const stage_name[STAGES] = {
    "gemm",           "norm",           "norm_back",    "rope",
    "attention",      "attention_back", "route",        "route_back",
    "route_raw",      "route_raw_back", "sparsemixer",  "sparsemixer_back",
    "add_rows",       "clamp",          "clamp_back",   "gate_rows",
    "gate_rows_back", "gather",         "combine",      "swiglu",
    "swiglu_back",    "dot_rows",       "channel_sums", "channel_scores",
    "embed",          "loss",           "adamw",        "add"};

#define SHAPES_MAX 256

/* Products of one shape; sizes are means over the calls. */
struct shape {
    int key[5]; /* ta, tb, and M, N, K in eighths of an octave */
    double M, N, K, calls;
};

static const struct fm_ops *base;
static struct {
    _Atomic uint64_t nanoseconds, calls;
} count[STAGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct shape shape[SHAPES_MAX];
static int shapes;
static double flops;

static uint64_t nanoseconds(void)
{
    return (uint64_t)(1e9 * fm_clock_now());
}

static int octave8(int n)
{
    return (int)lround(8 * log2((double)n));
}

/* Where all places are taken the last one takes the rest: its means stay right. */
static void note_product(bool ta, bool tb, int M, int N, int K)
{
    if (M < 1 || N < 1 || K < 1)
        return;
    const int key[5] = {ta, tb, octave8(M), octave8(N), octave8(K)};
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < shapes && memcmp(shape[i].key, key, sizeof key) != 0)
        i++;
    if (i == shapes && shapes < SHAPES_MAX)
        memcpy(shape[shapes++].key, key, sizeof key);
    struct shape *s = &shape[i < shapes ? i : shapes - 1];
    s->calls++;
    s->M += (M - s->M) / s->calls;
    s->N += (N - s->N) / s->calls;
    s->K += (K - s->K) / s->calls;
    flops += 2.0 * M * N * K;
    pthread_mutex_unlock(&lock);
}

/* Run one call of the base table on this thread's clock. */
#define TIMED(stage, call)                                                                         \
    do {                                                                                           \
        uint64_t begin = nanoseconds();                                                            \
        base->call;                                                                                \
        atomic_fetch_add(&count[stage].nanoseconds, nanoseconds() - begin);                        \
        atomic_fetch_add(&count[stage].calls, 1);                                                  \
    } while (0)

static void meter_gemm(bool ta, bool tb, int M, int N, int K, float alpha, const float *A, int lda,
                       const float *B, int ldb, float beta, float *C, int ldc)
{
    note_product(ta, tb, M, N, K);
    TIMED(GEMM, gemm(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc));
}

static void meter_norm(float *y, float *rstd, const float *x, const float *w, const float *b, int N,
                       int H, float eps)
{
    TIMED(NORM, norm(y, rstd, x, w, b, N, H, eps));
}

static void meter_norm_back(float *dx, const float *dy, const float *x, const float *w,
                            const float *b, const float *rstd, int N, int H)
{
    TIMED(NORM_BACK, norm_back(dx, dy, x, w, b, rstd, N, H));
}

static void meter_rope(float *x, const float *cos, const float *sin, int N, int T, int heads, int C,
                       float sign)
{
    TIMED(ROPE, rope(x, cos, sin, N, T, heads, C, sign));
}

static void meter_attention(float *o, const float *q, const float *k, const float *v, int S, int T,
                            int Q, int G, int C, int window)
{
    TIMED(ATTENTION, attention(o, q, k, v, S, T, Q, G, C, window));
}

static void meter_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                                 const float *q, const float *k, const float *v, int S, int T,
                                 int Q, int G, int C, int window)
{
    TIMED(ATTENTION_BACK, attention_back(dq, dk, dv, d_o, o, q, k, v, S, T, Q, G, C, window));
}

static void meter_route(int32_t *ids, float *weights, const float *logits, int N, int E, int K)
{
    TIMED(ROUTE, route(ids, weights, logits, N, E, K));
}

static void meter_route_back(float *dlogits, const float *dweights, const int32_t *ids,
                             const float *weights, int N, int E, int K)
{
    TIMED(ROUTE_BACK, route_back(dlogits, dweights, ids, weights, N, E, K));
}

static void meter_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K)
{
    TIMED(ROUTE_RAW, route_raw(ids, weights, p, N, E, K));
}

static void meter_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids,
                                 const float *p, int N, int E, int K)
{
    TIMED(ROUTE_RAW_BACK, route_raw_back(dlogits, dweights, ids, p, N, E, K));
}

static void meter_sparsemixer(int32_t *ids, float *weights, const float *logits, int N, int E,
                              float threshold)
{
    TIMED(SPARSEMIXER, sparsemixer(ids, weights, logits, N, E, threshold));
}

static void meter_sparsemixer_back(float *dlogits, const float *dweights, const int32_t *ids,
                                   const float *weights, const float *logits, int N, int E,
                                   float threshold)
{
    TIMED(SPARSEMIXER_BACK,
          sparsemixer_back(dlogits, dweights, ids, weights, logits, N, E, threshold));
}

static void meter_add_rows(float *x, const float *b, int N, int H)
{
    TIMED(ADD_ROWS, add_rows(x, b, N, H));
}

static void meter_clamp(float *x, float limit, int64_t n)
{
    TIMED(CLAMP, clamp(x, limit, n));
}

static void meter_clamp_back(float *dx, const float *x, float limit, int64_t n)
{
    TIMED(CLAMP_BACK, clamp_back(dx, x, limit, n));
}

static void meter_gate_rows(float *h, float *s, const float *u, int N, int I)
{
    TIMED(GATE_ROWS, gate_rows(h, s, u, N, I));
}

static void meter_gate_rows_back(float *dh, float *du, const float *h, const float *s, int N, int I)
{
    TIMED(GATE_ROWS_BACK, gate_rows_back(dh, du, h, s, N, I));
}

static void meter_gather(float *y, const float *x, const int32_t *rows, const float *scale, int n,
                         int H)
{
    TIMED(GATHER, gather(y, x, rows, scale, n, H));
}

static void meter_combine(float *y, const float *z, const int32_t *where, const float *weights,
                          int N, int K, int H)
{
    TIMED(COMBINE, combine(y, z, where, weights, N, K, H));
}

static void meter_swiglu(float *h, const float *gu, int n, int I)
{
    TIMED(SWIGLU, swiglu(h, gu, n, I));
}

static void meter_swiglu_back(float *dgu, const float *dh, const float *gu, int n, int I, int k)
{
    TIMED(SWIGLU_BACK, swiglu_back(dgu, dh, gu, n, I, k));
}

static void meter_dot_rows(float *g, const float *a, const float *b, int n, int I, int k)
{
    TIMED(DOT_ROWS, dot_rows(g, a, b, n, I, k));
}

static void meter_channel_sums(double *c, const float *h, const float *dh, int n, int I)
{
    TIMED(CHANNEL_SUMS, channel_sums(c, h, dh, n, I));
}

static void meter_channel_scores(double *s, const float *gate_up, const float *down,
                                 const float *dgu, const float *x, const float *h, const float *dy,
                                 int n, int I, int H)
{
    note_product(true, false, 2 * I, H, n);
    note_product(true, false, I, H, n);
    TIMED(CHANNEL_SCORES, channel_scores(s, gate_up, down, dgu, x, h, dy, n, I, H));
}

static void meter_embed(float *x, const int32_t *ids, const float *table, int N, int H)
{
    TIMED(EMBED, embed(x, ids, table, N, H));
}

static void meter_loss(double *ce, double *kl, int32_t *top, float *logits, const float *teacher,
                       const int32_t *target, int n, int V, const struct fm_loss_weights *weights)
{
    TIMED(LOSS, loss(ce, kl, top, logits, teacher, target, n, V, weights));
}

static void meter_adamw(float *p, float *m, float *v, const float *g, int64_t n, float lr,
                        float beta1, float beta2, float eps, float decay, int t)
{
    TIMED(ADAMW, adamw(p, m, v, g, n, lr, beta1, beta2, eps, decay, t));
}

static void meter_add(float *y, const float *x, int64_t n)
{
    TIMED(ADD, add(y, x, n));
}

const struct fm_ops *fm_meter_begin(const struct fm_ops *ops)
{
    static const struct fm_ops table = {
        .name = "meter",
        .gemm = meter_gemm,
        .norm = meter_norm,
        .norm_back = meter_norm_back,
        .rope = meter_rope,
        .attention = meter_attention,
        .attention_back = meter_attention_back,
        .route = meter_route,
        .route_back = meter_route_back,
        .route_raw = meter_route_raw,
        .route_raw_back = meter_route_raw_back,
        .sparsemixer = meter_sparsemixer,
        .sparsemixer_back = meter_sparsemixer_back,
        .add_rows = meter_add_rows,
        .clamp = meter_clamp,
        .clamp_back = meter_clamp_back,
        .gate_rows = meter_gate_rows,
        .gate_rows_back = meter_gate_rows_back,
        .gather = meter_gather,
        .combine = meter_combine,
        .swiglu = meter_swiglu,
        .swiglu_back = meter_swiglu_back,
        .dot_rows = meter_dot_rows,
        .channel_sums = meter_channel_sums,
        .channel_scores = meter_channel_scores,
        .embed = meter_embed,
        .loss = meter_loss,
        .adamw = meter_adamw,
        .add = meter_add,
    };
    base = ops;
    shapes = 0;
    flops = 0;
    for (int i = 0; i < STAGES; i++) {
        atomic_store(&count[i].nanoseconds, 0);
        atomic_store(&count[i].calls, 0);
    }
    return &table;
}

static int longer_first(const void *a, const void *b)
{
    double x = ((const struct fm_meter_stage *)a)->seconds;
    double y = ((const struct fm_meter_stage *)b)->seconds;
    return (x < y) - (x > y);
}

int fm_meter_stages(struct fm_meter_stage stage[FM_METER_STAGES])
{
    int n = 0;
    for (int i = 0; i < STAGES; i++) {
        uint64_t calls = atomic_load(&count[i].calls);
        if (calls)
            stage[n++] = (struct fm_meter_stage){stage_name[i], calls,
                                                 1e-9 * (double)atomic_load(&count[i].nanoseconds)};
    }
    qsort(stage, (size_t)n, sizeof *stage, longer_first);
    return n;
}

double fm_meter_flops(void)
{
    return flops;
}

/* --- the products alone --- */

struct probe {
    int ta, tb, M, N, K;
    float *A, *B; /* read by all threads */
};

static void run_probe(void *arg, int i)
{
    const struct probe *p = arg;
    (void)i;
    struct fm_mark mark = fm_scratch_mark();
    float *C = fm_scratch((size_t)p->M * (size_t)p->N * sizeof *C);
    base->gemm(p->ta, p->tb, p->M, p->N, p->K, 1, p->A, p->ta ? p->M : p->K, p->B,
               p->tb ? p->K : p->N, 0, C, p->N);
    fm_scratch_release(mark);
}

/* Seconds of one product of this shape with all threads at work: the best of a few rounds, of at
 * least a millisecond each. */
static double time_probe(struct probe *p)
{
    int threads = fm_pool_threads(), n = threads;
    double best = INFINITY;
    fm_pool_for(n, run_probe, p);
    for (int round = 0; round < 4; round++) {
        uint64_t begin = nanoseconds();
        fm_pool_for(n, run_probe, p);
        double seconds = 1e-9 * (double)(nanoseconds() - begin);
        best = fmin(best, seconds / n);
        if (seconds < 1e-3 && n < 4096 * threads) {
            n *= 2;
            round = -1;
        }
    }
    return best;
}

int fm_meter_products(double *seconds, struct fm_err *err)
{
    *seconds = 0;
    for (int i = 0; i < shapes; i++) {
        const struct shape *s = &shape[i];
        struct probe p = {.ta = s->key[0], .tb = s->key[1]};
        p.M = (int)lround(s->M);
        p.N = (int)lround(s->N);
        p.K = (int)lround(s->K);
        size_t a = (size_t)p.M * (size_t)p.K, b = (size_t)p.K * (size_t)p.N;
        p.A = fm_alloc(a + b, sizeof(float), "operands of a product", err);
        if (!p.A)
            return err->code;
        p.B = p.A + a;
        *seconds += s->calls * time_probe(&p);
        free(p.A);
    }
    return FM_OK;
}
