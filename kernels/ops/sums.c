/*
 * Sums that what learns takes of an expert's rows, and how the sums of micro-batches are added: in
 * an order that the caller fixes, so that no number of threads shows.  The definitions.
 */
#include "kernels/ops/ops.h"

#include <assert.h>

void ref_width_sums(double *sum, const double *c, const int32_t *width, int A, bool squares)
{
    double all = 0;
    for (int a = 0, j = 0; a < A; a++) {
        all = squares ? 0 : all;
        for (; j < width[a]; j++)
            all += squares ? c[j] * c[j] : c[j];
        sum[a] = all;
    }
}

void ref_split_pairs(float *a, float *b, const float *x, int n, int I, int k)
{
    for (int t = 0; t < n; t++)
        for (int j = 0; j < k; j++) {
            const float *pair = x + ((size_t)t * (size_t)I + (size_t)j) * 2;
            a[(size_t)t * (size_t)k + (size_t)j] = pair[0];
            b[(size_t)t * (size_t)k + (size_t)j] = pair[1];
        }
}

void ref_fold(struct fm_out total, struct fm_out part, double share, int64_t count)
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
