/*
 * Reference implementation of sums over an expert's channels by width, of splitting pairs, and of
 * adding the sums of micro-batches in an order that the caller fixes, so that the result does not
 * depend on the number of threads.
 */
#include "kernels/ops/ops.h"

#include <assert.h>

void ref_width_sums(double *sum, const double *c, const uint32_t *width, int A, bool squares)
{
    double all = 0;
    uint32_t j = 0;
    for (int a = 0; a < A; a++) {
        all = squares ? 0 : all;
        for (; j < width[a]; j++)
            all += squares ? c[j] * c[j] : c[j];
        sum[a] = all;
    }
}

void ref_split_pairs(struct fm_out a, struct fm_out b, struct fm_in x, int n, int I, int k)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t count = (size_t)n * (size_t)k;
    const float *pairs = fm_widen(x, (size_t)n * 2 * (size_t)I);
    float *even = fm_wide(a, count), *odd = fm_wide(b, count);
    for (int t = 0; t < n; t++) {
        const float *pair = pairs + (size_t)t * 2 * (size_t)I;
        size_t to = (size_t)t * (size_t)k;
        for (int j = 0; j < k; j++, to++) {
            even[to] = pair[2 * j];
            odd[to] = pair[2 * j + 1];
        }
    }
    fm_narrow(a, even, count);
    fm_narrow(b, odd, count);
    fm_scratch_release(mark);
}

void ref_accumulate(struct fm_out total, struct fm_out part, double share, int64_t count)
{
    assert(total.dtype == part.dtype && (total.dtype == FM_F32 || total.dtype == FM_F64));
    if (total.dtype == FM_F64) {
        double *to = total.data, *from = part.data;
        for (int64_t i = 0; i < count; i++) {
            to[i] += share * from[i];
            from[i] = 0;
        }
        return;
    }
    float *to = total.data, *from = part.data, factor = (float)share;
    for (int64_t i = 0; i < count; i++) {
        to[i] += factor * from[i];
        from[i] = 0;
    }
}
