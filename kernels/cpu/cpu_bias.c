/* Biases of experts, on blocks of rows or channels. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include "lib/base/pool.h"

struct dots {
    float *g;
    struct fm_in a;
    const float *b;
    int H;
};

FM_CLONES(void, add_each, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct dots *a = args;
    size_t H = (size_t)a->H;
    struct fm_mark mark = fm_scratch_mark();
    const float *x = fm_widen(fm_element(a->a, (size_t)first * H), (size_t)(last - first) * H);
    for (int64_t r = first; r < last; r++, x += H)
        a->g[r] += (float)fm_dot(x, a->b, a->H);
    fm_scratch_release(mark);
}

void cpu_add_dots(float *g, struct fm_in a, const float *b, int n, int H)
{
    fm_cpu_rows(n, 2 * (int64_t)H, add_each, &(struct dots){g, a, b, H});
}

/* Channels per task, each a pair of columns; rows are added in order. */
enum { CHANNELS = 256 };

struct scores {
    double *s;
    const float *b, *d;
    int n, I;
};

FM_CLONES(void, score_channels, (const struct scores *a, int first, int last), (a, first, last))
{
    double sum[2 * CHANNELS] = {0};
    int width = 2 * (last - first);
    for (int r = 0; r < a->n; r++) {
        const float *restrict d = a->d + 2 * ((int64_t)r * a->I + first);
        for (int i = 0; i < width; i++)
            sum[i] += d[i];
    }
    for (int i = 0; i < width; i++) {
        double each = (double)a->b[2 * first + i] * sum[i];
        a->s[first + i / 2] += each * each;
    }
}

static void score_block(void *args, int i)
{
    const struct scores *a = args;
    int first = i * CHANNELS, last = first + CHANNELS;
    score_channels(a, first, last < a->I ? last : a->I);
}

void cpu_bias_scores(double *s, const float *b, struct fm_in dgu, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    struct scores a = {s, b, fm_widen(dgu, (size_t)n * 2 * (size_t)I), n, I};
    fm_pool_for((I + CHANNELS - 1) / CHANNELS, score_block, &a);
    fm_scratch_release(mark);
}
