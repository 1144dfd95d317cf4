/*
 * Operations on the rows of an expert, on blocks of rows; sums over rows on blocks of columns, so
 * that each sum adds its rows in order.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"
#include "lib/base/pool.h"

struct gather {
    struct fm_out y;
    struct fm_in x;
    const int32_t *rows;
    const float *scale;
    int H;
};

FM_CLONES(void, gather_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct gather *a = args;
    int H = a->H;
    size_t bytes = (size_t)H * (size_t)(fm_dtype_bits(a->y.dtype) / 8);
    for (int64_t r = first; r < last; r++) {
        struct fm_in from = fm_element(a->x, (size_t)a->rows[r] * (size_t)H);
        struct fm_out to = fm_element_out(a->y, (size_t)(r * H));
        if (!a->scale && from.dtype == to.dtype) {
            memcpy(to.data, from.data, bytes);
            continue;
        }
        struct fm_mark mark = fm_scratch_mark();
        const float *restrict x = fm_widen(from, (size_t)H);
        float *restrict y = fm_wide(to, (size_t)H);
        float scale = a->scale ? a->scale[r] : 1;
        for (int i = 0; i < H; i++)
            y[i] = scale * x[i];
        fm_narrow(to, y, (size_t)H);
        fm_scratch_release(mark);
    }
}

void cpu_gather(struct fm_out y, struct fm_in x, const int32_t *rows, const float *scale, int n,
                int H)
{
    fm_cpu_rows(n, H, gather_rows, &(struct gather){y, x, rows, scale, H});
}

struct combine {
    float *y;
    const float *z;
    const int32_t *where;
    const float *weights;
    int K, H;
};

FM_CLONES(void, combine_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct combine *a = args;
    int H = a->H;
    for (int64_t t = first; t < last; t++) {
        float *restrict y = a->y + t * H;
        for (int64_t slot = t * a->K; slot < (t + 1) * a->K; slot++) {
            const float *restrict z = a->z + (int64_t)a->where[slot] * H;
            float w = a->weights ? a->weights[slot] : 1;
            for (int i = 0; i < H; i++)
                y[i] += w * z[i];
        }
    }
}

void cpu_combine(float *y, const float *z, const int32_t *where, const float *weights, int N, int K,
                 int H)
{
    fm_cpu_rows(N, (K + 1) * (int64_t)H, combine_rows,
                &(struct combine){y, z, where, weights, K, H});
}

struct dot_rows {
    float *g;
    struct fm_in a, b;
    int I, k;
};

FM_CLONES(void, dot_each, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct dot_rows *a = args;
    size_t I = (size_t)a->I, from = (size_t)first * I, count = (size_t)(last - first) * I;
    struct fm_mark mark = fm_scratch_mark();
    const float *x = fm_widen(fm_element(a->a, from), count);
    const float *y = fm_widen(fm_element(a->b, from), count);
    for (int64_t r = first; r < last; r++, x += I, y += I)
        a->g[r] = (float)fm_dot(x, y, a->k);
    fm_scratch_release(mark);
}

void cpu_dot_rows(float *g, struct fm_in a, struct fm_in b, int n, int I, int k)
{
    fm_cpu_rows(n, 2 * (int64_t)k, dot_each, &(struct dot_rows){g, a, b, I, k});
}

/* Tasks are blocks of SUMS_COLS columns; rows are added in order. */
enum { SUMS_COLS = 512 };

struct sums {
    double *c;
    const float *h, *dh;
    int n, I;
};

FM_CLONES(void, sum_columns, (const struct sums *a, int first, int last), (a, first, last))
{
    double *restrict c = a->c;
    for (int r = 0; r < a->n; r++) {
        const float *restrict h = a->h + (int64_t)r * a->I, *restrict dh =
                                                                a->dh + (int64_t)r * a->I;
        for (int j = first; j < last; j++)
            c[j] += (double)h[j] * (double)dh[j];
    }
}

static void sum_block(void *arg, int index)
{
    const struct sums *a = arg;
    int first = index * SUMS_COLS, last = first + SUMS_COLS;
    sum_columns(a, first, last < a->I ? last : a->I);
}

void cpu_channel_sums(double *c, struct fm_in h, struct fm_in dh, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t count = (size_t)n * (size_t)I;
    struct sums sums = {c, fm_widen(h, count), fm_widen(dh, count), n, I};
    fm_pool_for((I + SUMS_COLS - 1) / SUMS_COLS, sum_block, &sums);
    fm_scratch_release(mark);
}
