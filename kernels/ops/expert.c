/*
 * Reference implementation of the operations on an expert's rows: gather, activation, scores and
 * combination.
 */
#include "kernels/ops/ops.h"

void ref_gather(struct fm_out y, struct fm_in x, const int32_t *rows, const float *scale, int n,
                int H)
{
    for (int r = 0; r < n; r++) {
        struct fm_mark mark = fm_scratch_mark();
        struct fm_out to = fm_element_out(y, (size_t)r * H);
        const float *from = fm_widen(fm_element(x, (size_t)rows[r] * H), (size_t)H);
        float *wide = fm_wide(to, (size_t)H);
        for (int i = 0; i < H; i++)
            wide[i] = scale ? scale[r] * from[i] : from[i];
        fm_narrow(to, wide, (size_t)H);
        fm_scratch_release(mark);
    }
}

void ref_combine(float *y, const float *z, const int32_t *where, const float *weights, int N, int K,
                 int H)
{
    for (int t = 0; t < N; t++)
        for (int i = 0; i < H; i++) {
            double sum = y[(size_t)t * H + i];
            for (int j = 0; j < K; j++) {
                size_t slot = (size_t)t * K + j;
                sum += (weights ? (double)weights[slot] : 1) * z[(size_t)where[slot] * H + i];
            }
            y[(size_t)t * H + i] = (float)sum;
        }
}

/* silu(g) = g sigmoid(g). */
void ref_swiglu(struct fm_out h, const float *gu, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(h, (size_t)n * I);
    for (size_t i = 0; i < (size_t)n * I; i++) {
        double g = gu[2 * i], u = gu[2 * i + 1];
        wide[i] = (float)(g * fm_sigmoid(g) * u);
    }
    fm_narrow(h, wide, (size_t)n * I);
    fm_scratch_release(mark);
}

/* dg = dh u silu'(g), du = dh silu(g); silu'(g) = s (1 + g (1 - s)), s = sigmoid(g). */
void ref_swiglu_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I, int k)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(dgu, (size_t)n * 2 * k);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < k; j++) {
            size_t from = (size_t)r * I + j, to = (size_t)r * k + j;
            double g = gu[2 * from], u = gu[2 * from + 1], s = fm_sigmoid(g);
            wide[2 * to] = (float)(dh[from] * u * s * (1 + g * (1 - s)));
            wide[2 * to + 1] = (float)(dh[from] * g * s);
        }
    fm_narrow(dgu, wide, (size_t)n * 2 * k);
    fm_scratch_release(mark);
}

#define GELU_RATE 1.5957691216057308 /* sqrt(8 / pi) */
#define GELU_CUBE 0.044715

void ref_geglu(struct fm_out h, const float *gu, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(h, (size_t)n * I);
    for (size_t i = 0; i < (size_t)n * I; i++) {
        double g = gu[2 * i], u = gu[2 * i + 1];
        wide[i] = (float)(g * fm_sigmoid(GELU_RATE * (g + GELU_CUBE * g * g * g)) * u);
    }
    fm_narrow(h, wide, (size_t)n * I);
    fm_scratch_release(mark);
}

/* dg = dh u gelu'(g), du = dh gelu(g); gelu'(g) = s (1 + g (1 - s) p'(g)), s = sigmoid(p(g)). */
void ref_geglu_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I, int k)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(dgu, (size_t)n * 2 * k);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < k; j++) {
            size_t from = (size_t)r * I + j, to = (size_t)r * k + j;
            double g = gu[2 * from], u = gu[2 * from + 1];
            double s = fm_sigmoid(GELU_RATE * (g + GELU_CUBE * g * g * g));
            double slope = GELU_RATE * (1 + 3 * GELU_CUBE * g * g);
            wide[2 * to] = (float)(dh[from] * u * s * (1 + g * (1 - s) * slope));
            wide[2 * to + 1] = (float)(dh[from] * g * s);
        }
    fm_narrow(dgu, wide, (size_t)n * 2 * k);
    fm_scratch_release(mark);
}

void ref_dot_rows(float *g, struct fm_in a, struct fm_in b, int n, int I, int k)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *x = fm_widen(a, (size_t)n * I), *y = fm_widen(b, (size_t)n * I);
    for (int r = 0; r < n; r++) {
        double sum = 0;
        for (int j = 0; j < k; j++)
            sum += (double)x[(size_t)r * I + j] * y[(size_t)r * I + j];
        g[r] = (float)sum;
    }
    fm_scratch_release(mark);
}

void ref_channel_sums(double *c, struct fm_in h, struct fm_in dh, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *x = fm_widen(h, (size_t)n * I), *y = fm_widen(dh, (size_t)n * I);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < I; j++)
            c[j] += (double)x[(size_t)r * I + j] * y[(size_t)r * I + j];
    fm_scratch_release(mark);
}

/* sum over i of (w[i] sum_r a[r] b[r, i])^2, i < H: one row of weights and its gradient. The rows
 * of a are `step` apart. */
static double score_row(const float *w, const float *a, int step, const float *b, int n, int H)
{
    double score = 0;
    for (int i = 0; i < H; i++) {
        double grad = 0;
        for (int r = 0; r < n; r++)
            grad += (double)a[(size_t)r * step] * b[(size_t)r * H + i];
        score += (w[i] * grad) * (w[i] * grad);
    }
    return score;
}

/* s[j] += the sums of (theta dtheta)^2 over gate row j, up row j and down row j. */
void ref_channel_scores(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                        struct fm_in x, struct fm_in h, struct fm_in dy, int n, int I, int H)
{
    struct fm_mark mark = fm_scratch_mark();
    size_t weights = (size_t)I * H, wide = (size_t)n * I, rows = (size_t)n * H;
    const float *w13 = fm_widen(gate_up, 2 * weights), *w2 = fm_widen(down, weights);
    const float *d13 = fm_widen(dgu, 2 * wide), *a = fm_widen(h, wide);
    const float *in = fm_widen(x, rows), *out = fm_widen(dy, rows);
    for (int j = 0; j < I; j++) {
        const float *gate = w13 + 2 * (size_t)j * H;
        s[j] += score_row(gate, d13 + 2 * j, 2 * I, in, n, H);
        s[j] += score_row(gate + H, d13 + 2 * j + 1, 2 * I, in, n, H);
        s[j] += score_row(w2 + (size_t)j * H, a + j, I, out, n, H);
    }
    fm_scratch_release(mark);
}

void fm_scores_each(fm_scores *scores, double *s, struct fm_in gate_up, struct fm_in down,
                    struct fm_in dgu, struct fm_in x, struct fm_in h, struct fm_in dy,
                    const int32_t *first, int parts, int I, int H)
{
    for (int p = 0; p < parts; p++) {
        size_t at = (size_t)(first[p] - first[0]), wide = at * (size_t)I, rows = at * (size_t)H;
        int n = first[p + 1] - first[p];
        if (n > 0)
            scores(s, gate_up, down, fm_element(dgu, 2 * wide), fm_element(x, rows),
                   fm_element(h, wide), fm_element(dy, rows), n, I, H);
    }
}

void ref_channel_scores_each(double *s, struct fm_in gate_up, struct fm_in down, struct fm_in dgu,
                             struct fm_in x, struct fm_in h, struct fm_in dy, const int32_t *first,
                             int parts, int I, int H)
{
    fm_scores_each(ref_channel_scores, s, gate_up, down, dgu, x, h, dy, first, parts, I, H);
}
