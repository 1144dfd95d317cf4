/*
 * The wrapper of every operation is generated from the list of operations.  Three operations
 * compute matrix products, whose floating-point operations are counted, too.
 */
#include "tests/measure/meter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lib/base/clock.h"
#include "lib/base/pool.h"

static const char *const stage_name[] = {
#define FM_OP(name, parameters, arguments, writes) #name,
#include "kernels/ops/kernels.def"
#undef FM_OP
};

static const struct fm_ops *base;

/* Time of all threads under each label of the pool; the label of an operation is its stage + 1. */
enum { LABELS = FM_METER_STAGES + 1 - FM_POOL_IDLE };
static _Atomic uint64_t spent[LABELS]; /* nanoseconds, at index label - FM_POOL_IDLE */
static _Atomic uint64_t calls[FM_METER_STAGES];
static _Atomic uint64_t began; /* nothing is counted before this time */
static _Thread_local uint64_t since;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double flops[FM_METER_STAGES];

static uint64_t nanoseconds(void)
{
    return (uint64_t)(1e9 * fm_clock_now());
}

static void note_product(int stage, int M, int N, int K)
{
    if (M < 1 || N < 1 || K < 1)
        return;
    pthread_mutex_lock(&lock);
    flops[stage] += 2.0 * M * N * K;
    pthread_mutex_unlock(&lock);
}

/* Add the time since the thread's label last changed to the time of `label`, its current one. */
static void charge(int label)
{
    uint64_t now = nanoseconds(), first = atomic_load(&began);
    uint64_t from = since > first ? since : first;
    atomic_fetch_add(&spent[label - FM_POOL_IDLE], now > from ? now - from : 0);
    since = now;
}

/* meter_NAME: one call of the base table, under its label. */
#define FM_OP(name, parameters, arguments, writes)                                                 \
    static void meter_##name parameters                                                            \
    {                                                                                              \
        int before = fm_pool_label(FM_METER_##name + 1);                                           \
        base->name arguments;                                                                      \
        fm_pool_label(before);                                                                     \
        atomic_fetch_add(&calls[FM_METER_##name], 1);                                              \
    }
#include "kernels/ops/kernels.def"
#undef FM_OP

static void note_gemm(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                      struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    note_product(FM_METER_gemm, M, N, K);
    meter_gemm(ta, tb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc);
}

static void note_channel_scores(double *s, struct fm_in gate_up, struct fm_in down,
                                struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                                int n, int I, int H)
{
    note_product(FM_METER_channel_scores, 3 * I, H, n);
    meter_channel_scores(s, gate_up, down, dgu, x, h, dy, n, I, H);
}

static void note_channel_scores_each(double *s, struct fm_in gate_up, struct fm_in down,
                                     struct fm_in dgu, struct fm_in x, struct fm_in h,
                                     struct fm_in dy, const int32_t *first, int parts, int I, int H)
{
    note_product(FM_METER_channel_scores_each, 3 * I, H, first[parts] - first[0]);
    meter_channel_scores_each(s, gate_up, down, dgu, x, h, dy, first, parts, I, H);
}

const struct fm_ops *fm_meter_begin(const struct fm_ops *ops)
{
    static struct fm_ops table = {
        .name = "meter",
#define FM_OP(name, parameters, arguments, writes) .name = meter_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    };
    /* If `ops` is its own exact table, exact products are counted too. */
    table.f32 = ops->f32 == ops ? &table : ops->f32;
    table.operand = ops->operand;
    table.gemm = note_gemm;
    table.channel_scores = note_channel_scores;
    table.channel_scores_each = note_channel_scores_each;
    base = ops;
    for (int i = 0; i < FM_METER_STAGES; i++) {
        flops[i] = 0;
        atomic_store(&calls[i], 0);
    }
    for (int i = 0; i < LABELS; i++)
        atomic_store(&spent[i], 0);
    atomic_store(&began, nanoseconds());
    fm_pool_watch(charge);
    return &table;
}

static int longer_first(const void *a, const void *b)
{
    double x = ((const struct fm_meter_stage *)a)->seconds;
    double y = ((const struct fm_meter_stage *)b)->seconds;
    return (x < y) - (x > y);
}

static double seconds_of(int label)
{
    return 1e-9 * (double)atomic_load(&spent[label - FM_POOL_IDLE]);
}

int fm_meter_end(struct fm_meter_stage stage[FM_METER_STAGES], struct fm_meter_rest *rest)
{
    int n = 0;
    double all = 1e-9 * (double)(nanoseconds() - atomic_load(&began)) * fm_pool_threads();
    charge(0);
    fm_pool_watch(NULL);
    *rest = (struct fm_meter_rest){.reading = seconds_of(FM_POOL_READING), .other = seconds_of(0)};
    rest->waiting = all - rest->reading - rest->other;
    for (int i = 0; i < FM_METER_STAGES; i++) {
        double seconds = seconds_of(i + 1);
        uint64_t count = atomic_load(&calls[i]);
        rest->waiting -= seconds;
        if (count)
            stage[n++] = (struct fm_meter_stage){stage_name[i], count, seconds, flops[i]};
    }
    qsort(stage, (size_t)n, sizeof *stage, longer_first);
    return n;
}

double fm_meter_flops(void)
{
    return flops[FM_METER_gemm] + flops[FM_METER_channel_scores] +
           flops[FM_METER_channel_scores_each];
}
