/* Experts whose gate and up are biased and clamped, or only clamped, on blocks of rows. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include "lib/base/pool.h"

struct clamped {
    struct fm_out out;
    const float *dh, *gu;
    int I, k;
    float alpha, limit;
};

FM_CLONES(void, clamped_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct clamped *a = args;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out to = fm_element_out(a->out, (size_t)first);
    const float *restrict gu = a->gu + 2 * first;
    float *restrict h = fm_wide(to, (size_t)(last - first));
    float alpha = a->alpha, limit = a->limit;
    for (int64_t i = 0; i < last - first; i++) {
        float g = gu[2 * i], u = gu[2 * i + 1];
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        h[i] = g / (1 + fm_expf(-alpha * g)) * (u + 1);
    }
    fm_narrow(to, h, (size_t)(last - first));
    fm_scratch_release(mark);
}

void cpu_swiglu_clamped(struct fm_out h, const float *gu, int n, int I, float alpha, float limit)
{
    fm_cpu_rows((int64_t)n * I, 4, clamped_rows,
                &(struct clamped){.out = h, .gu = gu, .alpha = alpha, .limit = limit});
}

FM_CLONES(void, clamped_back_rows, (const void *args, int64_t first, int64_t last),
          (args, first, last))
{
    const struct clamped *a = args;
    size_t count = (size_t)(last - first) * 2 * (size_t)a->k;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out to = fm_element_out(a->out, (size_t)first * 2 * (size_t)a->k);
    float *wide = fm_wide(to, count);
    float alpha = a->alpha, limit = a->limit;
    for (int64_t r = first; r < last; r++) {
        const float *restrict gu = a->gu + 2 * r * a->I, *restrict dh = a->dh + r * a->I;
        float *restrict dgu = wide + 2 * (r - first) * a->k;
        for (int j = 0; j < a->k; j++) {
            float gate = gu[2 * j], up = gu[2 * j + 1];
            float g = gate > limit ? limit : gate;
            float u = up > limit ? limit : up < -limit ? -limit : up;
            float s = 1 / (1 + fm_expf(-alpha * g));
            float dg = dh[j] * (u + 1) * (s * (1 + alpha * g * (1 - s)));
            dgu[2 * j] = gate > limit ? 0 : dg;
            dgu[2 * j + 1] = u != up ? 0 : dh[j] * (g * s);
        }
    }
    fm_narrow(to, wide, count);
    fm_scratch_release(mark);
}

void cpu_swiglu_clamped_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float alpha, float limit)
{
    fm_cpu_rows(n, 8 * (int64_t)k, clamped_back_rows,
                &(struct clamped){dgu, dh, gu, I, k, alpha, limit});
}

FM_CLONES(void, limited_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct clamped *a = args;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out to = fm_element_out(a->out, (size_t)first);
    const float *restrict gu = a->gu + 2 * first;
    float *restrict h = fm_wide(to, (size_t)(last - first));
    float limit = a->limit;
    for (int64_t i = 0; i < last - first; i++) {
        float g = gu[2 * i], u = gu[2 * i + 1];
        g = g / (1 + fm_expf(-g));
        g = g > limit ? limit : g;
        u = u > limit ? limit : u < -limit ? -limit : u;
        h[i] = g * u;
    }
    fm_narrow(to, h, (size_t)(last - first));
    fm_scratch_release(mark);
}

void cpu_swiglu_limited(struct fm_out h, const float *gu, int n, int I, float limit)
{
    fm_cpu_rows((int64_t)n * I, 4, limited_rows,
                &(struct clamped){.out = h, .gu = gu, .limit = limit});
}

FM_CLONES(void, limited_back_rows, (const void *args, int64_t first, int64_t last),
          (args, first, last))
{
    const struct clamped *a = args;
    size_t count = (size_t)(last - first) * 2 * (size_t)a->k;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out to = fm_element_out(a->out, (size_t)first * 2 * (size_t)a->k);
    float *wide = fm_wide(to, count);
    float limit = a->limit;
    for (int64_t r = first; r < last; r++) {
        const float *restrict gu = a->gu + 2 * r * a->I, *restrict dh = a->dh + r * a->I;
        float *restrict dgu = wide + 2 * (r - first) * a->k;
        for (int j = 0; j < a->k; j++) {
            float g = gu[2 * j], up = gu[2 * j + 1];
            float u = up > limit ? limit : up < -limit ? -limit : up;
            float s = 1 / (1 + fm_expf(-g)), silu = g * s;
            float dg = dh[j] * u * (s * (1 + g * (1 - s)));
            dgu[2 * j] = silu > limit ? 0 : dg;
            dgu[2 * j + 1] = u != up ? 0 : dh[j] * (silu > limit ? limit : silu);
        }
    }
    fm_narrow(to, wide, count);
    fm_scratch_release(mark);
}

void cpu_swiglu_limited_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float limit)
{
    fm_cpu_rows(n, 8 * (int64_t)k, limited_back_rows,
                &(struct clamped){.out = dgu, .dh = dh, .gu = gu, .I = I, .k = k, .limit = limit});
}

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
