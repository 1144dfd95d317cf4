/*
 * Rotation, and the keys of latent attention, on blocks of rows; attention by tiles of queries,
 * with one head of one sequence as a task.  If the CPU has matrix registers, they compute the
 * bfloat16 table's products of attention, whose operands are rounded first; softmax and its
 * backward are computed in float32.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_amx.h"
#include "kernels/ops/ops.h"

#include <assert.h>
#include <math.h>

#include "lib/base/pool.h"

struct rope {
    float *x;
    const float *cos, *sin;
    int T, heads, C, R;
    float sign;
};

FM_CLONES(void, rotate_halves, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct rope *a = args;
    int half = a->R / 2;
    float sign = a->sign;
    for (int64_t n = first; n < last; n++) {
        const float *restrict c = a->cos + n % a->T * half, *restrict s = a->sin + n % a->T * half;
        for (int h = 0; h < a->heads; h++) {
            float *restrict low = a->x + (n * a->heads + h) * a->C;
            float *restrict high = low + half;
            for (int i = 0; i < half; i++) {
                float x = low[i], y = high[i], sn = sign * s[i];
                low[i] = x * c[i] - y * sn;
                high[i] = y * c[i] + x * sn;
            }
        }
    }
}

FM_CLONES(void, rotate_pairs, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct rope *a = args;
    int half = a->R / 2;
    float sign = a->sign;
    for (int64_t n = first; n < last; n++) {
        const float *restrict c = a->cos + n % a->T * half, *restrict s = a->sin + n % a->T * half;
        for (int h = 0; h < a->heads; h++) {
            float *restrict p = a->x + (n * a->heads + h) * a->C;
            for (int i = 0; i < half; i++) {
                float x = p[2 * i], y = p[2 * i + 1], sn = sign * s[i];
                p[2 * i] = x * c[i] - y * sn;
                p[2 * i + 1] = y * c[i] + x * sn;
            }
        }
    }
}

void cpu_rope(float *x, const float *cos, const float *sin, int N, int T, int heads, int C, int R,
              bool pairs, float sign)
{
    fm_cpu_rows(N, 2 * (int64_t)heads * R, pairs ? rotate_pairs : rotate_halves,
                &(struct rope){x, cos, sin, T, heads, C, R, sign});
}

/*
 * Attention is computed for tiles of TILE query rows and the keys that are visible to some of them.
 * Keys entirely above the diagonal or before the window are not read, and a tile has at most
 * TILE x T scores.  A NaN in a value that the tile reads also appears in rows of the tile to which
 * that value is not visible.
 */
enum { TILE = 64 };

struct attention {
    float *o, *dq, *dk, *dv;
    const float *d_o, *q, *k, *v, *sinks;
    int T, Q, G, C, D, window;
    float scale;         /* of scores: before * after */
    float before, after; /* factors: alpha of the product of q and k, and one applied after it */
    int q_step, o_step, k_step, v_step;
    fm_product *product;
    enum fm_dtype operand; /* type of the products' operands */
};

/* A product with matrix registers. */
static void amx_product(bool ta, bool tb, int M, int N, int K, float alpha, struct fm_in A, int lda,
                        struct fm_in B, int ldb, float beta, float *C, int ldc)
{
    assert(alpha == 1);
    (void)alpha;
    fm_cpu_amx_gemm(ta, tb, M, N, K, A.data, lda, B.data, ldb, beta, C, ldc);
}

static struct attention size_attention(int T, int Q, int G, int C, int D, double root, int window)
{
    return (struct attention){.product = fm_cpu_f32_product,
                              .operand = FM_F32,
                              .before = (float)(1 / root),
                              .after = 1,
                              .T = T,
                              .Q = Q,
                              .G = G,
                              .C = C,
                              .D = D,
                              .window = window,
                              .scale = (float)(1 / root),
                              .q_step = Q * C,
                              .o_step = Q * D,
                              .k_step = G * C,
                              .v_step = G * D};
}

static struct attention narrow(struct attention a)
{
    a.product = amx_product;
    a.operand = FM_BF16;
    a.before = 1;
    a.after = a.scale;
    return a;
}

/* Rows of one head of one sequence, as operands of products. */
struct rows {
    struct fm_in x;
    int ld;
};

enum { LINE = 16, AHEAD = 8 }; /* floats of a cache line; prefetch distance in rows */

/* x (T, width), rows ld floats apart: x itself, or rounded in scratch.  Later rows are prefetched:
 * they are too far apart for the hardware prefetcher. */
static struct rows take_rows(const struct attention *a, const float *x, int ld, int width)
{
    if (a->operand == FM_F32)
        return (struct rows){fm_f32(x), ld};
    size_t size = (size_t)(fm_dtype_bits(a->operand) / 8);
    struct fm_out to = {fm_scratch((size_t)a->T * (size_t)width * size), a->operand};
    for (int t = 0; t < a->T; t++, x += ld) {
        for (int i = 0; i < width; i += LINE)
            __builtin_prefetch(x + (int64_t)AHEAD * ld + i);
        fm_dtype_from_f32(fm_element_out(to, (size_t)t * (size_t)width).data, x, a->operand,
                          (size_t)width);
    }
    return (struct rows){fm_written(to), width};
}

/* The operand that starts at row t. */
static struct fm_in row_of(const struct rows *r, int t)
{
    return fm_element(r->x, (size_t)t * (size_t)r->ld);
}

/* n values of a tile as an operand: p itself, or rounded in `to`. */
static struct fm_in take_tile(const struct attention *a, const float *p, size_t n, void *to)
{
    if (a->operand == FM_F32)
        return fm_f32(p);
    fm_dtype_from_f32(to, p, a->operand, n);
    return (struct fm_in){to, a->operand, NULL};
}

/* Offsets of one query head of one sequence, and of its key head. */
struct head {
    int64_t q, o, k, v;
    const float *sink; /* NULL: none */
};

static struct head find_head(const struct attention *a, int64_t row0, int h)
{
    int g = h / (a->Q / a->G);
    return (struct head){.q = row0 * a->q_step + (int64_t)h * a->C,
                         .o = row0 * a->o_step + (int64_t)h * a->D,
                         .k = row0 * a->k_step + (int64_t)g * a->C,
                         .v = row0 * a->v_step + (int64_t)g * a->D,
                         .sink = a->sinks ? a->sinks + h : NULL};
}

struct span {
    int row, rows;   /* queries */
    int first, keys; /* keys that are visible to some of them */
};

static struct span find_span(const struct attention *a, int row)
{
    struct span s = {.row = row, .rows = a->T - row < TILE ? a->T - row : TILE};
    if (a->window > 0 && row >= a->window)
        s.first = row - a->window + 1;
    s.keys = s.row + s.rows - s.first;
    return s;
}

/* p (rows, keys) holds scores divided by `after` and receives probabilities, 0 for keys that are
 * not visible to a row.  With a sink the probabilities of a row sum to less than 1. */
FM_CLONES(void, softmax_rows,
          (float *p, const struct span *s, int window, float after, const float *sink),
          (p, s, window, after, sink))
{
    for (int r = 0; r < s->rows; r++) {
        int t = s->row + r;
        int seen = window > 0 && t >= window ? t - window + 1 - s->first : 0;
        int end = t + 1 - s->first;
        float *restrict row = p + (int64_t)r * s->keys;
        float max = fm_max(row + seen, end - seen) * after;
        if (sink && *sink > max)
            max = *sink;
        for (int j = 0; j < seen; j++)
            row[j] = 0;
        for (int j = seen; j < end; j++)
            row[j] = fm_expf(row[j] * after - max);
        float scale =
            (float)(1 / (fm_sum(row + seen, end - seen) + (sink ? fm_expf(*sink - max) : 0)));
        for (int j = seen; j < end; j++)
            row[j] *= scale;
        for (int j = end; j < s->keys; j++)
            row[j] = 0;
    }
}

/* p (rows, keys) = softmax(scale q k^T). */
static void find_probabilities(float *p, const struct attention *a, const struct span *s,
                               const struct rows *q, const struct rows *k, const float *sink)
{
    a->product(false, true, s->rows, s->keys, a->C, a->before, row_of(q, s->row), q->ld,
               row_of(k, s->first), k->ld, 0, p, s->keys);
    softmax_rows(p, s, a->window, a->after, sink);
}

/* Task: attention of one query head of one sequence. */
static void attend_head(void *arg, int index)
{
    const struct attention *a = arg;
    if (fm_pool_ending())
        return;
    struct head at = find_head(a, (int64_t)(index / a->Q) * a->T, index % a->Q);
    struct fm_mark mark = fm_scratch_mark();
    struct rows q = take_rows(a, a->q + at.q, a->q_step, a->C);
    struct rows k = take_rows(a, a->k + at.k, a->k_step, a->C);
    struct rows v = take_rows(a, a->v + at.v, a->v_step, a->D);
    size_t tile = (size_t)TILE * (size_t)a->T * sizeof(float);
    float *p = fm_scratch(tile);
    void *rounded = fm_scratch(tile / 2);
    for (int row = 0; row < a->T; row += TILE) {
        struct span s = find_span(a, row);
        find_probabilities(p, a, &s, &q, &k, at.sink);
        struct fm_in weights = take_tile(a, p, (size_t)s.rows * (size_t)s.keys, rounded);
        a->product(false, false, s.rows, a->D, s.keys, 1, weights, s.keys, row_of(&v, s.first),
                   v.ld, 0, a->o + at.o + (int64_t)row * a->o_step, a->o_step);
    }
    fm_scratch_release(mark);
}

static void attend(struct attention a, int S, float *o, const float *q, const float *k,
                   const float *v, const float *sinks)
{
    a.o = o, a.q = q, a.k = k, a.v = v, a.sinks = sinks;
    fm_pool_for(S * a.Q, attend_head, &a);
}

void cpu_attention(float *o, const float *q, const float *k, const float *v, const float *sinks,
                   int S, int T, int Q, int G, int C, int D, double root, int window)
{
    attend(size_attention(T, Q, G, C, D, root, window), S, o, q, k, v, sinks);
}

void cpu_bf16_attention(float *o, const float *q, const float *k, const float *v,
                        const float *sinks, int S, int T, int Q, int G, int C, int D, double root,
                        int window)
{
    attend(narrow(size_attention(T, Q, G, C, D, root, window)), S, o, q, k, v, sinks);
}

/* dp (rows, keys) becomes ds = scale p (dp - sum_j p dp).  The sum equals d_o . o, but with rounded
 * operands it is computed from dp, so that without a sink the sum of ds is 0. */
FM_CLONES(void, softmax_back_rows,
          (float *dp, const float *p, const float *d_o, const float *o, const struct attention *a,
           const struct span *s),
          (dp, p, d_o, o, a, s))
{
    float scale = a->scale;
    for (int r = 0; r < s->rows; r++) {
        const float *restrict pr = p + (int64_t)r * s->keys;
        float *restrict row = dp + (int64_t)r * s->keys;
        int64_t at = (int64_t)r * a->o_step;
        float mean = (float)(a->operand == FM_F32 ? fm_dot(d_o + at, o + at, a->D)
                                                  : fm_dot(pr, row, s->keys));
        for (int j = 0; j < s->keys; j++)
            row[j] = pr[j] * (row[j] - mean) * scale;
    }
}

/* Arrays for the backward of one head's tiles. */
struct back {
    struct head at;
    struct rows q, k, v, d_o;
    float *p, *dp; /* (TILE, T) */
    void *rounded; /* (TILE, T) of the operands' type */
};

/* Backward of one tile of queries of one head: its dq, and its contribution to dk and dv. */
static void back_tile(const struct attention *a, const struct span *s, const struct back *b)
{
    int C = a->C, D = a->D;
    size_t n = (size_t)s->rows * (size_t)s->keys;
    int64_t q = b->at.q + (int64_t)s->row * a->q_step, o = b->at.o + (int64_t)s->row * a->o_step;
    int64_t k = b->at.k + (int64_t)s->first * a->k_step;
    int64_t v = b->at.v + (int64_t)s->first * a->v_step;
    struct fm_in d_o = row_of(&b->d_o, s->row);
    find_probabilities(b->p, a, s, &b->q, &b->k, b->at.sink);
    a->product(false, true, s->rows, s->keys, D, 1, d_o, b->d_o.ld, row_of(&b->v, s->first),
               b->v.ld, 0, b->dp, s->keys);
    struct fm_in p = take_tile(a, b->p, n, b->rounded);
    a->product(true, false, s->keys, D, s->rows, 1, p, s->keys, d_o, b->d_o.ld, 1, a->dv + v,
               a->v_step);
    softmax_back_rows(b->dp, b->p, a->d_o + o, a->o + o, a, s);
    struct fm_in ds = take_tile(a, b->dp, n, b->rounded);
    a->product(false, false, s->rows, C, s->keys, 1, ds, s->keys, row_of(&b->k, s->first), b->k.ld,
               0, a->dq + q, a->q_step);
    a->product(true, false, s->keys, C, s->rows, 1, ds, s->keys, row_of(&b->q, s->row), b->q.ld, 1,
               a->dk + k, a->k_step);
}

/* Task: backward of one key head of one sequence and its query heads, in order. */
static void back_head(void *arg, int index)
{
    const struct attention *a = arg;
    if (fm_pool_ending())
        return;
    int group = a->Q / a->G, first = index % a->G * group;
    int64_t row0 = (int64_t)(index / a->G) * a->T;
    struct head at = find_head(a, row0, first);
    struct fm_mark mark = fm_scratch_mark();
    size_t tile = (size_t)TILE * (size_t)a->T * sizeof(float);
    struct back b = {.k = take_rows(a, a->k + at.k, a->k_step, a->C),
                     .v = take_rows(a, a->v + at.v, a->v_step, a->D),
                     .p = fm_scratch(tile),
                     .dp = fm_scratch(tile),
                     .rounded = fm_scratch(tile / 2)};
    for (int64_t t = 0; t < a->T; t++) {
        memset(a->dk + at.k + t * a->k_step, 0, (size_t)a->C * sizeof(float));
        memset(a->dv + at.v + t * a->v_step, 0, (size_t)a->D * sizeof(float));
    }
    for (int h = first; h < first + group; h++) {
        struct fm_mark mine = fm_scratch_mark();
        b.at = find_head(a, row0, h);
        b.q = take_rows(a, a->q + b.at.q, a->q_step, a->C);
        b.d_o = take_rows(a, a->d_o + b.at.o, a->o_step, a->D);
        for (int row = 0; row < a->T; row += TILE) {
            struct span s = find_span(a, row);
            back_tile(a, &s, &b);
        }
        fm_scratch_release(mine);
    }
    fm_scratch_release(mark);
}

static void attend_back(struct attention a, int S, float *dq, float *dk, float *dv)
{
    a.dq = dq, a.dk = dk, a.dv = dv;
    fm_pool_for(S * a.G, back_head, &a);
}

void cpu_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, const float *sinks, int S,
                        int T, int Q, int G, int C, int D, double root, int window)
{
    struct attention a = size_attention(T, Q, G, C, D, root, window);
    a.o = (float *)o, a.d_o = d_o, a.q = q, a.k = k, a.v = v, a.sinks = sinks;
    attend_back(a, S, dq, dk, dv);
}

void cpu_bf16_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                             const float *q, const float *k, const float *v, const float *sinks,
                             int S, int T, int Q, int G, int C, int D, double root, int window)
{
    struct attention a = narrow(size_attention(T, Q, G, C, D, root, window));
    a.o = (float *)o, a.d_o = d_o, a.q = q, a.k = k, a.v = v, a.sinks = sinks;
    attend_back(a, S, dq, dk, dv);
}

/* Keys of latent attention: inputs and results of joining them, or their gradients. */
struct keys {
    float *kv, *r, *k, *v;
    int Q, A, R, D;
};

static void join_rows(const void *args, int64_t first, int64_t last)
{
    const struct keys *a = args;
    int A = a->A, R = a->R, D = a->D;
    for (int64_t h = first * a->Q; h < last * a->Q; h++) {
        memcpy(a->k + h * (A + R), a->kv + h * (A + D), (size_t)A * sizeof(float));
        memcpy(a->k + h * (A + R) + A, a->r + h / a->Q * R, (size_t)R * sizeof(float));
        memcpy(a->v + h * D, a->kv + h * (A + D) + A, (size_t)D * sizeof(float));
    }
}

void cpu_join_keys(float *k, float *v, const float *kv, const float *r, int N, int Q, int A, int R,
                   int D)
{
    fm_cpu_rows(N, (int64_t)Q * (A + R + D), join_rows,
                &(struct keys){(float *)kv, (float *)r, k, v, Q, A, R, D});
}

FM_CLONES(void, part_rows, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct keys *a = args;
    int A = a->A, R = a->R, D = a->D;
    for (int64_t n = first; n < last; n++) {
        float *restrict r = a->r + n * R;
        memset(r, 0, (size_t)R * sizeof *r);
        for (int64_t h = n * a->Q; h < (n + 1) * a->Q; h++) {
            const float *restrict end = a->k + h * (A + R) + A;
            memcpy(a->kv + h * (A + D), a->k + h * (A + R), (size_t)A * sizeof(float));
            memcpy(a->kv + h * (A + D) + A, a->v + h * D, (size_t)D * sizeof(float));
            for (int i = 0; i < R; i++)
                r[i] += end[i];
        }
    }
}

void cpu_join_keys_back(float *dkv, float *dr, const float *dk, const float *dv, int N, int Q,
                        int A, int R, int D)
{
    fm_cpu_rows(N, (int64_t)Q * (A + R + D), part_rows,
                &(struct keys){dkv, dr, (float *)dk, (float *)dv, Q, A, R, D});
}
