/*
 * Serving reads all weights for a few tokens, so they stay in bfloat16 and are widened a cache's
 * worth at a time, each block used by a product at once.  Attention takes the query heads of one
 * key head together, so that a row of the cache is read, and widened, once for all of them.
 */
#include "kernels/serve/serve.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "lib/base/pool.h"

/* Rows of weights widened at a time: they stay in the second-level cache where few tokens come,
 * and are worth an operand's packing where many do. */
enum { ROWS_FEW = 64, ROWS_MANY = 512, MANY = 256 };

struct product {
    const struct fm_ops *ops;
    float *y;
    const float *x;
    const uint16_t *w;
    int M, N, K, rows;
    float beta;
};

static void multiply_rows(void *arg, int i)
{
    const struct product *p = arg;
    int first = i * p->rows, n = p->N - first < p->rows ? p->N - first : p->rows;
    size_t count = (size_t)n * (size_t)p->K;
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch(count * sizeof *wide);
    fm_dtype_to_f32(wide, p->w + (size_t)first * (size_t)p->K, FM_BF16, count);
    p->ops->gemm(false, true, p->M, n, p->K, 1, fm_f32(p->x), p->K, fm_f32(wide), p->K, p->beta,
                 p->y + first, p->N);
    fm_scratch_release(mark);
}

void fm_serve_product(const struct fm_ops *ops, float *y, const float *x, const void *w,
                      enum fm_dtype dtype, int M, int N, int K, float beta)
{
    struct product p = {ops, y, x, w, M, N, K, M < MANY ? ROWS_FEW : ROWS_MANY, beta};
    if (dtype == FM_F32)
        ops->gemm(false, true, M, N, K, 1, fm_f32(x), K, fm_f32(w), K, beta, y, N);
    else
        fm_pool_for((N + p.rows - 1) / p.rows, multiply_rows, &p);
}

static size_t bytes_of(const struct fm_serve_cache *c)
{
    return c->dtype == FM_F32 ? 4 : 2;
}

/* n rows of one sequence, from position t on. */
static void store_rows(const struct fm_serve_cache *c, void *to, float *from, int s, int t, int n)
{
    size_t width = (size_t)c->G * (size_t)c->C, count = (size_t)n * width;
    char *at = (char *)to + ((size_t)s * (size_t)c->T + (size_t)t) * width * bytes_of(c);
    fm_dtype_from_f32(at, from, c->dtype, count);
    if (c->dtype != FM_F32)
        fm_dtype_to_f32(from, at, c->dtype, count);
}

void fm_serve_store(const struct fm_serve_cache *c, float *k, float *v, int s0, int S, int t0,
                    int n)
{
    for (int s = 0; s < S; s++) {
        size_t at = (size_t)s * (size_t)n * (size_t)c->G * (size_t)c->C;
        store_rows(c, c->k, k + at, s0 + s, t0, n);
        store_rows(c, c->v, v + at, s0 + s, t0, n);
    }
}

struct attention {
    float *o;
    const float *q;
    const struct fm_serve_cache *cache;
    int Q, group, length; /* group: query heads of a key head */
};

/* Row t of a key head: as it lies there, or widened into `row`. */
FM_INLINE const float *load(float *row, const struct fm_serve_cache *c, const char *head, int t)
{
    const char *at = head + (size_t)t * (size_t)c->G * (size_t)c->C * bytes_of(c);
    if (c->dtype == FM_F32)
        return (const float *)(const void *)at;
    fm_dtype_to_f32(row, at, c->dtype, (size_t)c->C);
    return row;
}

/* p (group, length): probabilities. */
FM_CLONES(void, weigh_keys,
          (float *p, float *row, const struct attention *a, const float *q, const char *head),
          (p, row, a, q, head))
{
    int C = a->cache->C;
    float scale = (float)(1 / sqrt(C));
    for (int t = 0; t < a->length; t++) {
        const float *key = load(row, a->cache, head, t);
        for (int h = 0; h < a->group; h++)
            p[(size_t)h * (size_t)a->length + (size_t)t] =
                scale * (float)fm_dot(q + (size_t)h * (size_t)C, key, C);
    }
    for (int h = 0; h < a->group; h++) {
        float *restrict line = p + (size_t)h * (size_t)a->length;
        float max = fm_max(line, a->length);
        for (int t = 0; t < a->length; t++)
            line[t] = fm_expf(line[t] - max);
        float share = (float)(1 / fm_sum(line, a->length));
        for (int t = 0; t < a->length; t++)
            line[t] *= share;
    }
}

FM_CLONES(void, mix_values,
          (float *o, float *row, const struct attention *a, const float *p, const char *head),
          (o, row, a, p, head))
{
    int C = a->cache->C;
    memset(o, 0, (size_t)a->group * (size_t)C * sizeof *o);
    for (int t = 0; t < a->length; t++) {
        const float *restrict value = load(row, a->cache, head, t);
        for (int h = 0; h < a->group; h++) {
            float weight = p[(size_t)h * (size_t)a->length + (size_t)t];
            float *restrict to = o + (size_t)h * (size_t)C;
            for (int i = 0; i < C; i++)
                to[i] += weight * value[i];
        }
    }
}

/* Task: the query heads of one key head of one sequence. */
static void attend_group(void *arg, int index)
{
    const struct attention *a = arg;
    const struct fm_serve_cache *c = a->cache;
    size_t s = (size_t)(index / c->G), g = (size_t)(index % c->G), C = (size_t)c->C;
    size_t head = (s * (size_t)c->T * (size_t)c->G + g) * C * bytes_of(c);
    size_t at = (s * (size_t)a->Q + g * (size_t)a->group) * C;
    struct fm_mark mark = fm_scratch_mark();
    float *p = fm_scratch((size_t)a->group * (size_t)a->length * sizeof *p);
    float *row = fm_scratch(C * sizeof *row);
    weigh_keys(p, row, a, a->q + at, (const char *)c->k + head);
    mix_values(a->o + at, row, a, p, (const char *)c->v + head);
    fm_scratch_release(mark);
}

void fm_serve_attend(float *o, const float *q, const struct fm_serve_cache *cache, int S, int Q,
                     int length)
{
    struct attention a = {o, q, cache, Q, Q / cache->G, length};
    fm_pool_for(S * cache->G, attend_group, &a);
}
