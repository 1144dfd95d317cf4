/*
 * Layers and calls with random numbers, for the tests of libfm_clip.  Channels that no budget uses
 * are NaN, so that the result shows if one was used.
 */
#ifndef FM_TESTS_CLIP_H
#define FM_TESTS_CLIP_H

#include "tests/unit/kernels.h"

#include <stdatomic.h>

#include "kernels/clip/clip.h"
#include "lib/base/dtype.h"

/* The paths of the CPU. */
static const int32_t paths[] = {FM_CLIP_PORTABLE, FM_CLIP_AVX2, FM_CLIP_AVX512,
                                FM_CLIP_AVX512_BF16};

struct layer {
    struct fm_clip_layer l;
    int64_t *row0;
    int32_t *cap, *widths, *budget;
};

struct call {
    struct fm_clip_call c;
};

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COUNT_ALLOCATIONS
static atomic_ulong allocations;
extern void *__libc_malloc(size_t size); /* glibc's malloc under another name */
extern void *__libc_memalign(size_t align, size_t size);
void *malloc(size_t size);
void *malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(size);
}
int posix_memalign(void **p, size_t align, size_t size);
int posix_memalign(void **p, size_t align, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    *p = __libc_memalign(align, size);
    return *p ? 0 : 12;
}
#endif

static inline enum fm_dtype dtype_of(int32_t type)
{
    return type == FM_CLIP_F32 ? FM_F32 : type == FM_CLIP_F16 ? FM_F16 : FM_BF16;
}

static inline size_t bytes_of(int32_t type)
{
    return type == FM_CLIP_F32 ? 4 : 2;
}

static inline double number_at(const void *array, int32_t type, int64_t i)
{
    float f;
    fm_dtype_to_f32(&f, (const char *)array + (size_t)i * bytes_of(type), dtype_of(type), 1);
    return f;
}

static inline void write_number(void *at, int32_t type, double value)
{
    if (type == FM_CLIP_I32)
        *(int32_t *)at = (int32_t)value;
    else if (type == FM_CLIP_I64)
        *(int64_t *)at = (int64_t)value;
    else
        fm_dtype_from_f32(at, &(float){(float)value}, dtype_of(type), 1);
}

static inline double rounded(float value, int32_t type)
{
    char bytes[4];
    write_number(bytes, type, value);
    return number_at(bytes, type, 0);
}

/* n normally distributed numbers of that type. */
static inline void *numbers(size_t n, int32_t type, double scale)
{
    float *x = normals(n, scale);
    void *y = array(n, bytes_of(type));
    fm_dtype_from_f32(y, x, dtype_of(type), n);
    return y;
}

/* E experts of I channels, each followed by three channels that belong to no expert.  Budgets: all
 * channels, mixed widths, and widths 0, 1, I in turn. */
static inline struct layer make_layer(int32_t type, int H, int I, int E)
{
    const int gap = 3;
    struct layer s = {.row0 = array((size_t)E, sizeof *s.row0),
                      .cap = array((size_t)E, sizeof *s.cap),
                      .widths = array(3 * (size_t)E, sizeof *s.widths),
                      .budget = array(1, sizeof *s.budget)};
    int64_t channels = (int64_t)E * (I + gap);
    size_t count = (size_t)channels * (size_t)H;
    char *gate_up = numbers(2 * count, type, 1 / sqrt(H)), *down = numbers(count, type, 1);
    for (int64_t c = 0; c < channels; c++)
        for (int64_t i = 0; i < 3 * H && c % (I + gap) >= I; i++)
            write_number(i < H ? down + (size_t)(c * H + i) * bytes_of(type)
                               : gate_up + (size_t)(2 * c * H + i - H) * bytes_of(type),
                         type, NAN);
    for (int e = 0; e < E; e++) {
        s.row0[e] = (int64_t)e * (I + gap);
        s.cap[e] = I;
        s.widths[e] = I;
        s.widths[E + e] = 1 + (e * 53 + 17) % I;
        s.widths[2 * E + e] = e % 3 == 0 ? 0 : e % 3 == 1 ? 1 : I;
    }
    *s.budget = 0;
    s.l = (struct fm_clip_layer){.size = sizeof s.l, .type = type, .H = H, .E = E, .B = 3};
    s.l.cap_max = I;
    s.l.channels = channels;
    s.l.gate_up = gate_up;
    s.l.down = down;
    s.l.row0 = s.row0;
    s.l.cap = s.cap;
    s.l.widths = s.widths;
    s.l.budget = s.budget;
    s.l.budget_type = FM_CLIP_I32;
    s.l.threads = 2;
    return s;
}

static inline void *workspace(uint64_t bytes)
{
    char *p = array((size_t)bytes + FM_CLIP_ALIGN, 1);
    return p + (FM_CLIP_ALIGN - (uintptr_t)p % FM_CLIP_ALIGN) % FM_CLIP_ALIGN;
}

static inline struct call make_call(const struct layer *s, int N, int K)
{
    int32_t *ids = array((size_t)N * (size_t)K, sizeof *ids);
    for (int i = 0; i < N * K; i++)
        ids[i] = (int32_t)(fm_rng_uniform(1, FM_STREAM_BENCH, arrays.drawn++) * s->l.E);
    struct call c = {{.size = sizeof c.c, .ids_type = FM_CLIP_I32, .N = N, .K = K}};
    c.c.hidden = numbers((size_t)(N * s->l.H), s->l.type, 1);
    c.c.hidden_stride = c.c.out_stride = s->l.H;
    c.c.ids = ids;
    c.c.weights = normals((size_t)(N * K), 1);
    c.c.out = array((size_t)(N * s->l.H), bytes_of(s->l.type));
    c.c.workspace_bytes = fm_clip_workspace_bytes(&s->l, N, K);
    c.c.workspace = workspace(c.c.workspace_bytes);
    return c;
}

/* A call with the same inputs, but another output and workspace. */
static inline struct call copy_call(const struct layer *s, const struct call *from)
{
    struct call c = *from;
    c.c.out = array((size_t)(c.c.N * s->l.H), bytes_of(s->l.type));
    c.c.workspace = workspace(c.c.workspace_bytes);
    return c;
}

static inline double out_at(const struct layer *s, const struct call *c, int64_t i)
{
    return number_at(c->c.out, s->l.type, i);
}

static inline void expect_same(const struct layer *s, const struct call *a, const struct call *b)
{
    assert_memory_equal(a->c.out, b->c.out, (size_t)(a->c.N * s->l.H) * bytes_of(s->l.type));
}

static inline void run(struct fm_clip *clip, const struct layer *s, const struct call *c)
{
    struct fm_clip_error error = {0};
    (void)s;
    if (fm_clip_forward(clip, &c->c, &error) != FM_CLIP_OK)
        fail_msg("%s", error.text);
}

/* Prepare, run, release; false if this machine does not have the layer's path. */
static inline bool run_once(const struct layer *s, const struct call *c)
{
    struct fm_clip *clip = NULL;
    struct fm_clip_error error = {0};
    int code = fm_clip_prepare(&clip, &s->l, &error);
    if (code == FM_CLIP_EDEVICE)
        return false;
    if (code != FM_CLIP_OK)
        fail_msg("%s", error.text);
    run(clip, s, c);
    fm_clip_release(clip);
    return true;
}

/*
 * Tolerances are relative to the sum of absolute values of the terms (`size` of fm_clip_reference).
 * Sums in float32 have at most 800 terms in blocks of 256: 3e-6 is enough for the widest.  If the
 * CPU multiplies bfloat16, the inner activations are rounded to 8 bits: 2^-8 of each term.  out
 * itself is rounded once: 2^-11 for float16, 2^-8 for bfloat16.
 */
static inline void expect_definition(const struct layer *s, const struct call *c,
                                     const struct fm_clip *clip)
{
    double *out = array((size_t)c->c.N * (size_t)s->l.H, sizeof *out);
    double *size = array((size_t)c->c.N * (size_t)s->l.H, sizeof *size);
    bool pair = strstr(fm_clip_name(clip), "avx512-bf16") != NULL;
    double sums = pair ? 0x1p-8 : 3e-6;
    double last = s->l.type == FM_CLIP_F16 ? 0x1p-11 : s->l.type == FM_CLIP_BF16 ? 0x1p-8 : 0x1p-24;
    struct fm_clip_layer plain = s->l;
    assert_int_equal(fm_clip_reference(out, size, &plain, &c->c, NULL), FM_CLIP_OK);
    for (int64_t i = 0; i < c->c.N * s->l.H; i++) {
        double got = out_at(s, c, i), limit = sums * size[i] + last * fabs(out[i]) + 1e-7;
        if (!(fabs(got - out[i]) <= limit))
            fail_msg("%s: element %lld is %.9g, expected %.9g within %.3g", fm_clip_name(clip),
                     (long long)i, got, out[i], limit);
    }
}

/* The same numbers in float32. */
static inline struct layer widen_layer(const struct layer *s)
{
    struct layer w = *s;
    size_t count = (size_t)(s->l.channels * s->l.H);
    float *gate_up = floats(2 * count), *down = floats(count);
    fm_dtype_to_f32(gate_up, s->l.gate_up, dtype_of(s->l.type), 2 * count);
    fm_dtype_to_f32(down, s->l.down, dtype_of(s->l.type), count);
    w.l.type = FM_CLIP_F32;
    w.l.gate_up = gate_up;
    w.l.down = down;
    return w;
}

static inline struct call widen_call(const struct layer *s, const struct layer *wide,
                                     const struct call *c)
{
    struct call w = copy_call(wide, c);
    float *x = floats((size_t)(c->c.N * s->l.H));
    fm_dtype_to_f32(x, c->c.hidden, dtype_of(s->l.type), (size_t)(c->c.N * s->l.H));
    w.c.hidden = x;
    return w;
}

/* Only slot j of every token, with weight 1. */
static inline struct call slot_alone(const struct layer *s, const struct call *c, int j)
{
    struct call one = copy_call(s, c);
    int32_t *ids = array((size_t)c->c.N, sizeof *ids);
    float *ones = floats((size_t)c->c.N);
    for (int t = 0; t < c->c.N; t++) {
        ids[t] = ((const int32_t *)c->c.ids)[t * c->c.K + j];
        ones[t] = 1;
    }
    one.c.ids = ids;
    one.c.weights = ones;
    one.c.K = 1;
    return one;
}

static inline struct call token_alone(const struct layer *s, const struct call *c, int t)
{
    struct call one = copy_call(s, c);
    one.c.N = 1;
    one.c.hidden =
        (const char *)c->c.hidden + (size_t)(t * c->c.hidden_stride) * bytes_of(s->l.type);
    one.c.ids = (const int32_t *)c->c.ids + t * c->c.K;
    one.c.weights = c->c.weights + t * c->c.K;
    return one;
}

/* The same call with gaps between the rows of hidden and of out. */
static inline struct call spread_call(const struct layer *s, const struct call *c, int in, int out)
{
    struct call w = *c;
    size_t size = bytes_of(s->l.type), row = (size_t)s->l.H * size;
    char *x = array((size_t)(c->c.N * in), size);
    for (int t = 0; t < c->c.N; t++)
        memcpy(x + (size_t)(t * in) * size, (const char *)c->c.hidden + (size_t)t * row, row);
    w.c.hidden = x;
    w.c.hidden_stride = in;
    w.c.out_stride = out;
    w.c.out = array((size_t)((c->c.N - 1) * out + s->l.H), size);
    return w;
}

/* Allocate a layer in which expert e has width[e] channels; the weights are not copied. */
static inline struct layer regroup(const struct layer *s, const int32_t *width)
{
    struct layer w = *s;
    int E = s->l.E;
    w.row0 = array((size_t)E, sizeof *w.row0);
    w.cap = array((size_t)E, sizeof *w.cap);
    w.l.channels = 0;
    w.l.cap_max = 0;
    for (int e = 0; e < E; e++) {
        w.row0[e] = w.l.channels;
        w.cap[e] = width[e];
        w.l.channels += width[e];
        w.l.cap_max = width[e] > w.l.cap_max ? width[e] : w.l.cap_max;
    }
    size_t row = (size_t)s->l.H * bytes_of(s->l.type);
    w.l.gate_up = array(2 * (size_t)w.l.channels, row);
    w.l.down = array((size_t)w.l.channels, row);
    w.l.row0 = w.row0;
    w.l.cap = w.cap;
    return w;
}

/* Copy to w the part of channels [0, cap[e]) of every expert of s that `rank` holds if they are
 * divided among tp ranks in groups of g. */
static inline void copy_shards(struct layer *w, const struct layer *s, const int32_t *cap, int g,
                               int tp, int rank)
{
    size_t row = (size_t)s->l.H * bytes_of(s->l.type);
    for (int e = 0; e < s->l.E; e++)
        fm_clip_shard_copy((char *)(uintptr_t)w->l.gate_up + 2 * (size_t)w->row0[e] * row,
                           (char *)(uintptr_t)w->l.down + (size_t)w->row0[e] * row,
                           (const char *)s->l.gate_up + 2 * (size_t)s->row0[e] * row,
                           (const char *)s->l.down + (size_t)s->row0[e] * row, cap[e], row, g, tp,
                           rank);
}

static inline struct layer free_tails(const struct layer *s)
{
    int E = s->l.E;
    int32_t *widest = array((size_t)E, sizeof *widest);
    for (int e = 0; e < E; e++) {
        widest[e] = 0;
        for (int b = 0; b < s->l.B; b++)
            if (s->widths[b * E + e] > widest[e])
                widest[e] = s->widths[b * E + e];
    }
    struct layer w = regroup(s, widest);
    copy_shards(&w, s, widest, 1, 1, 0);
    return w;
}

static inline struct layer shard_layer(const struct layer *s, int g, int tp, int rank)
{
    int E = s->l.E;
    int32_t *width = array((size_t)E, sizeof *width);
    for (int e = 0; e < E; e++)
        width[e] = fm_clip_shard_width(s->cap[e], g, tp, rank);
    struct layer w = regroup(s, width);
    copy_shards(&w, s, s->cap, g, tp, rank);
    w.widths = array((size_t)(s->l.B * E), sizeof *w.widths);
    for (int i = 0; i < s->l.B * E; i++)
        w.widths[i] = fm_clip_shard_width(s->widths[i], g, tp, rank);
    w.l.widths = w.widths;
    return w;
}

#endif
