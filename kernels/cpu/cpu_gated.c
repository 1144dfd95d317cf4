/*
 * Activations of a gate g and an up value u, h = f(g, u), on blocks of rows.  Each is a function
 * NAME of one pair, and NAME_back, which returns the gradients of g and u for the gradient dh of h;
 * GATED makes the loops over rows from them.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

struct gated {
    struct fm_out out;
    const float *dh, *gu;
    int I, k;
    float alpha, limit;
};

struct pair {
    float g, u;
};

#define GATED(name)                                                                                \
    FM_CLONES(void, name##_rows, (const void *args, int64_t first, int64_t last),                  \
              (args, first, last))                                                                 \
    {                                                                                              \
        const struct gated *a = args;                                                              \
        struct fm_mark mark = fm_scratch_mark();                                                   \
        struct fm_out to = fm_element_out(a->out, (size_t)first);                                  \
        const float *restrict gu = a->gu + 2 * first;                                              \
        float *restrict h = fm_wide(to, (size_t)(last - first));                                   \
        float alpha = a->alpha, limit = a->limit;                                                  \
        for (int64_t i = 0; i < last - first; i++)                                                 \
            h[i] = name(gu[2 * i], gu[2 * i + 1], alpha, limit);                                   \
        fm_narrow(to, h, (size_t)(last - first));                                                  \
        fm_scratch_release(mark);                                                                  \
    }                                                                                              \
    FM_CLONES(void, name##_back_rows, (const void *args, int64_t first, int64_t last),             \
              (args, first, last))                                                                 \
    {                                                                                              \
        const struct gated *a = args;                                                              \
        size_t count = (size_t)(last - first) * 2 * (size_t)a->k;                                  \
        struct fm_mark mark = fm_scratch_mark();                                                   \
        struct fm_out to = fm_element_out(a->out, (size_t)first * 2 * (size_t)a->k);               \
        float *wide = fm_wide(to, count);                                                          \
        float alpha = a->alpha, limit = a->limit;                                                  \
        for (int64_t r = first; r < last; r++) {                                                   \
            const float *restrict gu = a->gu + 2 * r * a->I, *restrict dh = a->dh + r * a->I;      \
            float *restrict dgu = wide + 2 * (r - first) * a->k;                                   \
            for (int j = 0; j < a->k; j++) {                                                       \
                struct pair d = name##_back(gu[2 * j], gu[2 * j + 1], dh[j], alpha, limit);        \
                dgu[2 * j] = d.g;                                                                  \
                dgu[2 * j + 1] = d.u;                                                              \
            }                                                                                      \
        }                                                                                          \
        fm_narrow(to, wide, count);                                                                \
        fm_scratch_release(mark);                                                                  \
    }

typedef void loop(const void *args, int64_t first, int64_t last);

/* Elementwise, so all rows are treated as one long row. */
static void forward(loop *rows, struct gated a, int n)
{
    fm_cpu_rows((int64_t)n * a.I, 4, rows, &a);
}

static void backward(loop *rows, struct gated a, int n)
{
    fm_cpu_rows(n, 8 * (int64_t)a.k, rows, &a);
}

/* ---- silu(g) u ---- */

FM_INLINE float swiglu(float g, float u, float alpha, float limit)
{
    (void)alpha, (void)limit;
    return g / (1 + fm_expf(-g)) * u;
}

FM_INLINE struct pair swiglu_back(float g, float u, float dh, float alpha, float limit)
{
    (void)alpha, (void)limit;
    float s = 1 / (1 + fm_expf(-g));
    return (struct pair){dh * u * (s * (1 + g * (1 - s))), dh * (g * s)};
}

GATED(swiglu)

void cpu_swiglu(struct fm_out h, const float *gu, int n, int I)
{
    forward(swiglu_rows, (struct gated){.out = h, .gu = gu, .I = I}, n);
}

void cpu_swiglu_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I, int k)
{
    backward(swiglu_back_rows, (struct gated){dgu, dh, gu, I, k, 0, 0}, n);
}

/* ---- gelu(g) u ---- */

#define GELU_RATE 1.59576912f /* sqrt(8 / pi) */
#define GELU_CUBE 0.044715f

/* The sigmoid by which gelu multiplies g, and the slope of its argument.  Beyond +-10 the sigmoid
 * is 0 or 1 in float32, and the cube of g could overflow. */
FM_INLINE float gelu_gate(float g, float *slope)
{
    g = g > 10 ? 10 : g < -10 ? -10 : g;
    *slope = GELU_RATE * (1 + 3 * GELU_CUBE * g * g);
    return 1 / (1 + fm_expf(-GELU_RATE * (g + GELU_CUBE * g * g * g)));
}

FM_INLINE float geglu(float g, float u, float alpha, float limit)
{
    (void)alpha, (void)limit;
    float slope;
    return g * gelu_gate(g, &slope) * u;
}

FM_INLINE struct pair geglu_back(float g, float u, float dh, float alpha, float limit)
{
    (void)alpha, (void)limit;
    float slope, s = gelu_gate(g, &slope);
    return (struct pair){dh * u * (s * (1 + g * (1 - s) * slope)), dh * (g * s)};
}

GATED(geglu)

void cpu_geglu(struct fm_out h, const float *gu, int n, int I)
{
    forward(geglu_rows, (struct gated){.out = h, .gu = gu, .I = I}, n);
}

void cpu_geglu_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I, int k)
{
    backward(geglu_back_rows, (struct gated){dgu, dh, gu, I, k, 0, 0}, n);
}

/* ---- both clamped, before the activation ---- */

FM_INLINE float below(float x, float limit)
{
    return x > limit ? limit : x;
}

FM_INLINE float within(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

FM_INLINE float clamped(float gate, float up, float alpha, float limit)
{
    float g = below(gate, limit), u = within(up, limit);
    return g / (1 + fm_expf(-alpha * g)) * (u + 1);
}

FM_INLINE struct pair clamped_back(float gate, float up, float dh, float alpha, float limit)
{
    float g = below(gate, limit), u = within(up, limit);
    float s = 1 / (1 + fm_expf(-alpha * g));
    float dg = dh * (u + 1) * (s * (1 + alpha * g * (1 - s)));
    return (struct pair){gate > limit ? 0 : dg, u != up ? 0 : dh * (g * s)};
}

GATED(clamped)

void cpu_swiglu_clamped(struct fm_out h, const float *gu, int n, int I, float alpha, float limit)
{
    forward(clamped_rows,
            (struct gated){.out = h, .gu = gu, .I = I, .alpha = alpha, .limit = limit}, n);
}

void cpu_swiglu_clamped_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float alpha, float limit)
{
    backward(clamped_back_rows, (struct gated){dgu, dh, gu, I, k, alpha, limit}, n);
}

/* ---- both factors clamped ---- */

FM_INLINE float limited(float g, float up, float alpha, float limit)
{
    (void)alpha;
    return below(g / (1 + fm_expf(-g)), limit) * within(up, limit);
}

FM_INLINE struct pair limited_back(float g, float up, float dh, float alpha, float limit)
{
    (void)alpha;
    float u = within(up, limit), s = 1 / (1 + fm_expf(-g)), silu = g * s;
    float dg = dh * u * (s * (1 + g * (1 - s)));
    return (struct pair){silu > limit ? 0 : dg, u != up ? 0 : dh * below(silu, limit)};
}

GATED(limited)

void cpu_swiglu_limited(struct fm_out h, const float *gu, int n, int I, float limit)
{
    forward(limited_rows, (struct gated){.out = h, .gu = gu, .I = I, .limit = limit}, n);
}

void cpu_swiglu_limited_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float limit)
{
    backward(limited_back_rows, (struct gated){dgu, dh, gu, I, k, 0, limit}, n);
}
