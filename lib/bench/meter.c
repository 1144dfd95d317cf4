/*
 * Every operation's wrapper is generated from the list of operations.  Two are products, and tell
 * their shapes before they run: what the same products take when nothing else runs is measured
 * afterwards, shape by shape.
 */
#include "lib/bench/meter.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"

static const char *const stage_name[] = {
#define FM_OP(name, parameters, arguments) #name,
#include "kernels/ops/kernels.def"
#undef FM_OP
};

#define SHAPES_MAX 256

/* Products of one shape; sizes are means over the calls. */
struct shape {
    int key[5]; /* ta, tb, and M, N, K in eighths of an octave */
    double M, N, K, calls;
};

static const struct fm_ops *base;
static struct {
    _Atomic uint64_t nanoseconds, calls;
} spent[FM_METER_STAGES];
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

/* meter_NAME: one call of the base table on this thread's clock. */
#define FM_OP(name, parameters, arguments)                                                         \
    static void meter_##name parameters                                                            \
    {                                                                                              \
        uint64_t begin = nanoseconds();                                                            \
        base->name arguments;                                                                      \
        atomic_fetch_add(&spent[FM_METER_##name].nanoseconds, nanoseconds() - begin);              \
        atomic_fetch_add(&spent[FM_METER_##name].calls, 1);                                        \
    }
#include "kernels/ops/kernels.def"
#undef FM_OP

static void note_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                      struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    note_product(ta, tb, M, N, K);
    meter_gemm(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

static void note_channel_scores(double *s, struct fm_in gate_up, struct fm_in down,
                                struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                                int n, int I, int H)
{
    note_product(true, false, 2 * I, H, n);
    note_product(true, false, I, H, n);
    meter_channel_scores(s, gate_up, down, dgu, x, h, dy, n, I, H);
}

const struct fm_ops *fm_meter_begin(const struct fm_ops *ops)
{
    static struct fm_ops table = {
        .name = "meter",
#define FM_OP(name, parameters, arguments) .name = meter_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    };
    table.device = ops->device;
    /* Products that must be exact are counted where all products are. */
    table.f32 = ops->f32 == ops ? &table : ops->f32;
    table.operand = ops->operand;
    table.gemm = note_gemm;
    table.channel_scores = note_channel_scores;
    base = ops;
    shapes = 0;
    flops = 0;
    for (int i = 0; i < FM_METER_STAGES; i++) {
        atomic_store(&spent[i].nanoseconds, 0);
        atomic_store(&spent[i].calls, 0);
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
    for (int i = 0; i < FM_METER_STAGES; i++) {
        uint64_t calls = atomic_load(&spent[i].calls);
        if (calls)
            stage[n++] = (struct fm_meter_stage){stage_name[i], calls,
                                                 1e-9 * (double)atomic_load(&spent[i].nanoseconds)};
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
    struct fm_mark mark = base->device->mark();
    float *C = base->device->scratch((size_t)p->M * (size_t)p->N * sizeof *C);
    base->gemm(p->ta, p->tb, p->M, p->N, p->K, 1, fm_f32(p->A), p->ta ? p->M : p->K, fm_f32(p->B),
               p->tb ? p->K : p->N, 0, C, p->N);
    base->device->release(mark);
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
        p.A = base->device->alloc((a + b) * sizeof(float), "operands of a product", err);
        if (!p.A)
            return err->code;
        base->zero(p.A, (a + b) * sizeof(float));
        p.B = p.A + a;
        *seconds += s->calls * time_probe(&p);
        base->device->free(p.A);
    }
    return FM_OK;
}
