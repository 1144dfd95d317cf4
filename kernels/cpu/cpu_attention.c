/* Rotation on blocks of rows; attention by tiles of queries, one head of one sequence a task. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"

#include <math.h>

#include "lib/base/pool.h"

struct rope {
    float *x;
    const float *cos, *sin;
    int T, heads, C, R;
    float sign;
};

FM_CLONES static void rotate_halves(const void *args, int64_t first, int64_t last)
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

FM_CLONES static void rotate_pairs(const void *args, int64_t first, int64_t last)
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
 * Attention goes by tiles of TILE query rows against the keys they can see, [first, last): keys
 * wholly above the diagonal or before the window are not touched, and memory is TILE x T.
 * A NaN in a value that the tile reads and a row does not see shows in that row too.
 */
enum { TILE = 64 };

struct attention {
    float *o, *dq, *dk, *dv;
    const float *d_o, *q, *k, *v;
    int T, Q, G, C, window;
};

struct span {
    int row, rows;   /* queries */
    int first, keys; /* keys that some of them see */
};

static struct span find_span(const struct attention *a, int row)
{
    struct span s = {.row = row, .rows = a->T - row < TILE ? a->T - row : TILE};
    if (a->window > 0 && row >= a->window)
        s.first = row - a->window + 1;
    s.keys = s.row + s.rows - s.first;
    return s;
}

/* Rows of p (rows, keys), scores before, become probabilities; keys a row does not see get 0. */
FM_CLONES static void softmax_rows(float *p, const struct span *s, int window)
{
    for (int r = 0; r < s->rows; r++) {
        int t = s->row + r;
        int seen = window > 0 && t >= window ? t - window + 1 - s->first : 0;
        int end = t + 1 - s->first;
        float *restrict row = p + (int64_t)r * s->keys;
        float max = fm_max(row + seen, end - seen);
        for (int j = 0; j < seen; j++)
            row[j] = 0;
        for (int j = seen; j < end; j++)
            row[j] = fm_expf(row[j] - max);
        float scale = (float)(1 / fm_sum(row + seen, end - seen));
        for (int j = seen; j < end; j++)
            row[j] *= scale;
        for (int j = end; j < s->keys; j++)
            row[j] = 0;
    }
}

/* p (rows, keys) = softmax(q k^T / sqrt(C)); q, k at row 0 of the sequence and head. */
static void find_probabilities(float *p, const struct attention *a, const struct span *s,
                               const float *q, const float *k)
{
    int q_step = a->Q * a->C, kv_step = a->G * a->C;
    fm_dnnl_sgemm(false, true, s->rows, s->keys, a->C, (float)(1 / sqrt(a->C)),
                  q + (int64_t)s->row * q_step, q_step, k + (int64_t)s->first * kv_step, kv_step, 0,
                  p, s->keys);
    softmax_rows(p, s, a->window);
}

/* Task: one query head of one sequence. */
static void attend_head(void *arg, int index)
{
    const struct attention *a = arg;
    int h = index % a->Q, q_step = a->Q * a->C, kv_step = a->G * a->C;
    int64_t row0 = (int64_t)(index / a->Q) * a->T;
    int64_t q0 = row0 * q_step + (int64_t)h * a->C;
    int64_t kv0 = row0 * kv_step + (int64_t)(h / (a->Q / a->G)) * a->C;
    struct fm_mark mark = fm_scratch_mark();
    float *p = fm_scratch((size_t)TILE * a->T * sizeof *p);
    for (int row = 0; row < a->T; row += TILE) {
        struct span s = find_span(a, row);
        find_probabilities(p, a, &s, a->q + q0, a->k + kv0);
        fm_dnnl_sgemm(false, false, s.rows, a->C, s.keys, 1, p, s.keys,
                      a->v + kv0 + (int64_t)s.first * kv_step, kv_step, 0,
                      a->o + q0 + (int64_t)row * q_step, q_step);
    }
    fm_scratch_release(mark);
}

void cpu_attention(float *o, const float *q, const float *k, const float *v, int S, int T, int Q,
                   int G, int C, int window)
{
    struct attention a = {.o = o, .q = q, .k = k, .v = v};
    a.T = T, a.Q = Q, a.G = G, a.C = C, a.window = window;
    fm_pool_for(S * Q, attend_head, &a);
}

/* dp (rows, keys) becomes ds = p (dp - sum_j p dp) / sqrt(C); the sum is d_o . o. */
FM_CLONES static void softmax_back_rows(float *dp, const float *p, const float *d_o, const float *o,
                                        int step, const struct span *s, int C)
{
    float scale = (float)(1 / sqrt(C));
    for (int r = 0; r < s->rows; r++) {
        const float *restrict pr = p + (int64_t)r * s->keys;
        float *restrict row = dp + (int64_t)r * s->keys;
        float mean = (float)fm_dot(d_o + (int64_t)r * step, o + (int64_t)r * step, C);
        for (int j = 0; j < s->keys; j++)
            row[j] = pr[j] * (row[j] - mean) * scale;
    }
}

/* One tile of queries of one head: its dq, and its part of dk and dv added. */
static void back_tile(const struct attention *a, const struct span *s, int64_t q0, int64_t kv0,
                      float *p, float *dp)
{
    int q_step = a->Q * a->C, kv_step = a->G * a->C, C = a->C;
    int64_t at = q0 + (int64_t)s->row * q_step, key = kv0 + (int64_t)s->first * kv_step;
    find_probabilities(p, a, s, a->q + q0, a->k + kv0);
    fm_dnnl_sgemm(false, true, s->rows, s->keys, C, 1, a->d_o + at, q_step, a->v + key, kv_step, 0,
                  dp, s->keys);
    fm_dnnl_sgemm(true, false, s->keys, C, s->rows, 1, p, s->keys, a->d_o + at, q_step, 1,
                  a->dv + key, kv_step);
    softmax_back_rows(dp, p, a->d_o + at, a->o + at, q_step, s, C);
    fm_dnnl_sgemm(false, false, s->rows, C, s->keys, 1, dp, s->keys, a->k + key, kv_step, 0,
                  a->dq + at, q_step);
    fm_dnnl_sgemm(true, false, s->keys, C, s->rows, 1, dp, s->keys, a->q + at, q_step, 1,
                  a->dk + key, kv_step);
}

/* Task: one key head of one sequence, with the query heads that read it, in order. */
static void back_head(void *arg, int index)
{
    const struct attention *a = arg;
    int g = index % a->G, group = a->Q / a->G, q_step = a->Q * a->C, kv_step = a->G * a->C;
    int64_t row0 = (int64_t)(index / a->G) * a->T;
    int64_t kv0 = row0 * kv_step + (int64_t)g * a->C;
    struct fm_mark mark = fm_scratch_mark();
    float *p = fm_scratch((size_t)TILE * a->T * sizeof *p);
    float *dp = fm_scratch((size_t)TILE * a->T * sizeof *dp);
    for (int t = 0; t < a->T; t++) {
        memset(a->dk + kv0 + (int64_t)t * kv_step, 0, (size_t)a->C * sizeof(float));
        memset(a->dv + kv0 + (int64_t)t * kv_step, 0, (size_t)a->C * sizeof(float));
    }
    for (int h = g * group; h < (g + 1) * group; h++) {
        for (int row = 0; row < a->T; row += TILE) {
            struct span s = find_span(a, row);
            back_tile(a, &s, row0 * q_step + (int64_t)h * a->C, kv0, p, dp);
        }
    }
    fm_scratch_release(mark);
}

void cpu_attention_back(float *dq, float *dk, float *dv, const float *d_o, const float *o,
                        const float *q, const float *k, const float *v, int S, int T, int Q, int G,
                        int C, int window)
{
    struct attention a = {(float *)o, dq, dk, dv, d_o, q, k, v, T, Q, G, C, window};
    fm_pool_for(S * G, back_head, &a);
}
