/* Reference implementation of experts whose gate and up are biased and clamped, or only clamped. */
#include "kernels/ops/ops.h"

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

void ref_swiglu_clamped(struct fm_out h, const float *gu, int n, int I, float alpha, float limit)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(h, (size_t)n * I);
    for (size_t i = 0; i < (size_t)n * I; i++) {
        double g = smaller(gu[2 * i], limit);
        double u = -smaller(-smaller(gu[2 * i + 1], limit), limit);
        wide[i] = (float)((u + 1) * g * fm_sigmoid(alpha * g));
    }
    fm_narrow(h, wide, (size_t)n * I);
    fm_scratch_release(mark);
}

/* dg = dh (u + 1) (s + alpha g s (1 - s)), du = dh g s, s = sigmoid(alpha g); 0 where clamped. */
void ref_swiglu_clamped_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float alpha, float limit)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(dgu, (size_t)n * 2 * k);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < k; j++) {
            size_t from = (size_t)r * I + j, to = (size_t)r * k + j;
            float gate = gu[2 * from], up = gu[2 * from + 1];
            double g = smaller(gate, limit), u = -smaller(-smaller(up, limit), limit);
            double s = fm_sigmoid(alpha * g);
            double dg = dh[from] * (u + 1) * (s + alpha * g * s * (1 - s));
            wide[2 * to] = gate > limit ? 0 : (float)dg;
            wide[2 * to + 1] = up > limit || up < -limit ? 0 : (float)(dh[from] * g * s);
        }
    fm_narrow(dgu, wide, (size_t)n * 2 * k);
    fm_scratch_release(mark);
}

void ref_swiglu_limited(struct fm_out h, const float *gu, int n, int I, float limit)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(h, (size_t)n * I);
    for (size_t i = 0; i < (size_t)n * I; i++) {
        double g = gu[2 * i];
        double u = -smaller(-smaller(gu[2 * i + 1], limit), limit);
        wide[i] = (float)(smaller(g * fm_sigmoid(g), limit) * u);
    }
    fm_narrow(h, wide, (size_t)n * I);
    fm_scratch_release(mark);
}

/* dg = dh u (s + g s (1 - s)), du = dh min(g s, limit), s = sigmoid(g); 0 where clamped. */
void ref_swiglu_limited_back(struct fm_out dgu, const float *dh, const float *gu, int n, int I,
                             int k, float limit)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_wide(dgu, (size_t)n * 2 * k);
    for (int r = 0; r < n; r++)
        for (int j = 0; j < k; j++) {
            size_t from = (size_t)r * I + j, to = (size_t)r * k + j;
            float up = gu[2 * from + 1];
            double g = gu[2 * from], u = -smaller(-smaller(up, limit), limit), s = fm_sigmoid(g);
            double dg = dh[from] * u * (s + g * s * (1 - s));
            wide[2 * to] = g * s > limit ? 0 : (float)dg;
            wide[2 * to + 1] =
                up > limit || up < -limit ? 0 : (float)(dh[from] * smaller(g * s, limit));
        }
    fm_narrow(dgu, wide, (size_t)n * 2 * k);
    fm_scratch_release(mark);
}

void ref_add_dots(float *g, struct fm_in a, const float *b, int n, int H)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *x = fm_widen(a, (size_t)n * H);
    for (int r = 0; r < n; r++) {
        double sum = g[r];
        for (int j = 0; j < H; j++)
            sum += (double)x[(size_t)r * H + j] * b[j];
        g[r] = (float)sum;
    }
    fm_scratch_release(mark);
}

void ref_bias_scores(double *s, const float *b, struct fm_in dgu, int n, int I)
{
    struct fm_mark mark = fm_scratch_mark();
    const float *d = fm_widen(dgu, (size_t)n * 2 * I);
    for (int i = 0; i < 2 * I; i++) {
        double grad = 0;
        for (int r = 0; r < n; r++)
            grad += d[(size_t)r * 2 * I + i];
        s[i / 2] += (b[i] * grad) * (b[i] * grad);
    }
    fm_scratch_release(mark);
}
