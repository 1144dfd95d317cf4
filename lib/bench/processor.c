/*
 * Every thread multiplies the same matrix by itself, or by its transpose, into its own result.  The
 * sizes are large enough that packing an operand is negligible; which size is fastest depends on
 * the processor and the type, so all are tried.
 */
#include "lib/bench/processor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/ops/kernels.h"
#include "lib/base/clock.h"
#include "lib/base/dtype.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"

void fm_processor_name(char *text, size_t size)
{
    snprintf(text, size, "unknown");
#if defined(__x86_64__)
    unsigned word[13] = {0}, most = (unsigned)__get_cpuid_max(0x80000000, NULL);
    for (unsigned i = 0; i < 3 && most >= 0x80000004; i++)
        __get_cpuid(0x80000002 + i, &word[4 * i], &word[4 * i + 1], &word[4 * i + 2],
                    &word[4 * i + 3]);
    const char *name = (const char *)word;
    if (*name)
        snprintf(text, size, "%s", name + strspn(name, " "));
#endif
}

enum { LARGEST = 2048, ROUNDS = 4, SECONDS_ENOUGH = 5 };

struct peak {
    bool bf16, tb, works;
    int size;
    const void *operand;
};

static void run_product(void *arg, int i)
{
    struct peak *p = arg;
    int n = p->size;
    struct fm_mark mark = fm_scratch_mark();
    float *out = fm_scratch((size_t)n * (size_t)n * sizeof *out);
    bool works = fm_ops_dnnl_product(p->bf16, p->tb, n, n, n, p->operand, n, p->operand, n, out);
    if (i == 0)
        p->works = works;
    fm_scratch_release(mark);
}

/* The first round compiles the product. */
static double measure_form(struct peak *p)
{
    int threads = fm_pool_threads();
    double best = 0, n = p->size;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = fm_clock_now();
        fm_pool_for(threads, run_product, p);
        if (round > 0 && p->works)
            best = fmax(best, threads * 2 * n * n * n / (fm_clock_now() - begin));
    }
    return best;
}

/* The next size takes eight times as long: skip it if this one took seconds (an emulator). */
static double measure_type(bool bf16, const void *operand)
{
    double best = 0, took = 0;
    for (int size = LARGEST / 4; size <= LARGEST && took < SECONDS_ENOUGH; size *= 2) {
        double begin = fm_clock_now();
        for (int tb = 0; tb < 2; tb++)
            best = fmax(best, measure_form(&(struct peak){bf16, tb, false, size, operand}));
        took = fm_clock_now() - begin;
    }
    return best;
}

double fm_processor_peak(bool bf16)
{
    size_t count = (size_t)LARGEST * LARGEST;
    struct fm_mark mark = fm_scratch_mark();
    float *x = fm_scratch(count * sizeof *x);
    uint16_t *narrow = fm_scratch(count * sizeof *narrow);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)fm_rng_below(0, FM_STREAM_BENCH, i, 2048) / 1024 - 1;
    fm_dtype_from_f32(narrow, x, FM_BF16, count);
    double best = measure_type(false, x);
    if (bf16)
        best = fmax(best, measure_type(true, narrow));
    fm_scratch_release(mark);
    return best;
}
