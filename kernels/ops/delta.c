/*
 * Reference implementation of Gated DeltaNet: short convolution, gates, the delta rule.
 *
 * The rule is a recurrence, and its backward needs the states in reverse order.  They cannot be
 * computed from the last state without dividing by decay factors that may be almost zero.  So the
 * forward is run again: first to store the state before every segment of about sqrt(T) tokens,
 * then, from the last segment to the first, to store the state before each of its tokens.
 */
#include "kernels/ops/ops.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

/* ---- convolution ---- */

/* The convolution at token t of column h; x and w point to that column. */
static double convolved(const float *x, const float *w, int t, int H, int W)
{
    double sum = 0;
    for (int i = t < W - 1 ? W - 1 - t : 0; i < W; i++)
        sum += (double)w[i] * x[(int64_t)(t - W + 1 + i) * H];
    return sum;
}

void ref_convolve(float *y, const float *x, const float *w, bool silu, int S, int T, int H, int W)
{
    for (int s = 0; s < S; s++) {
        int64_t row0 = (int64_t)s * T * H;
        for (int t = 0; t < T; t++)
            for (int h = 0; h < H; h++) {
                double a = convolved(x + row0 + h, w + (int64_t)h * W, t, H, W);
                y[row0 + (int64_t)t * H + h] = (float)(silu ? a * fm_sigmoid(a) : a);
            }
    }
}

/* da = dy silu'(a), or dy;  dx[t] = sum over i of w[i] da[t + W - 1 - i]. */
void ref_convolve_back(float *dx, const float *dy, const float *x, const float *w, bool silu, int S,
                       int T, int H, int W)
{
    struct fm_mark mark = fm_scratch_mark();
    double *da = fm_scratch((size_t)T * sizeof *da);
    for (int s = 0; s < S; s++)
        for (int h = 0; h < H; h++) {
            int64_t at = (int64_t)s * T * H + h;
            const float *wh = w + (int64_t)h * W;
            for (int t = 0; t < T; t++) {
                double a = silu ? convolved(x + at, wh, t, H, W) : 0, f = fm_sigmoid(a);
                da[t] = dy[at + (int64_t)t * H] * (silu ? f + a * f * (1 - f) : 1);
            }
            for (int t = 0; t < T; t++) {
                double sum = 0;
                for (int i = 0; i < W; i++)
                    sum += t + W - 1 - i < T ? wh[i] * da[t + W - 1 - i] : 0;
                dx[at + (int64_t)t * H] = (float)sum;
            }
        }
    fm_scratch_release(mark);
}

/* ---- gates ---- */

void ref_delta_gates(float *g, float *beta, const float *a, const float *b, const float *rate,
                     const float *bias, int N, int Q)
{
    for (size_t i = 0; i < (size_t)N * Q; i++) {
        size_t h = i % (size_t)Q;
        g[i] = (float)(-exp(rate[h]) * fm_softplus((double)a[i] + bias[h]));
        beta[i] = (float)fm_sigmoid(b[i]);
    }
}

void ref_delta_gates_back(float *da, float *db, const float *dg, const float *dbeta, const float *a,
                          const float *beta, const float *rate, const float *bias, int N, int Q)
{
    for (size_t i = 0; i < (size_t)N * Q; i++) {
        size_t h = i % (size_t)Q;
        da[i] = (float)(dg[i] * -exp(rate[h]) * fm_sigmoid((double)a[i] + bias[h]));
        db[i] = (float)(dbeta[i] * (double)beta[i] * (1 - (double)beta[i]));
    }
}

/* ---- the rule ---- */

#define NORM_EPS 1e-6

struct rule {
    const float *x, *g, *beta, *d_o;
    float *dx, *dg, *dbeta;
    int T, G, Q, C, D, width; /* of a row of x */
};

/* One head of one sequence: offsets of its values at token 0, and intermediate values of a token.
 */
struct head {
    const struct rule *r;
    int64_t q, k, v; /* in x */
    int64_t gate, o; /* in g and beta, in o */
    double *qn, *kn; /* (C): normalised */
    double *d;       /* (D) */
    double q_root, k_root;
};

static void find_head(struct head *a, const struct rule *r, int s, int h)
{
    int64_t row0 = (int64_t)s * r->T, x0 = row0 * r->width;
    int key = h / (r->Q / r->G);
    a->r = r;
    a->q = x0 + (int64_t)key * r->C;
    a->k = a->q + (int64_t)r->G * r->C;
    a->v = x0 + (int64_t)2 * r->G * r->C + (int64_t)h * r->D;
    a->gate = row0 * r->Q + h;
    a->o = row0 * r->Q * r->D + (int64_t)h * r->D;
}

/* y (C) = x / sqrt(|x|^2 + eps); returns that root. */
static double normalise(double *y, const float *x, int C)
{
    double sum = 0;
    for (int i = 0; i < C; i++)
        sum += (double)x[i] * x[i];
    double root = sqrt(sum + NORM_EPS);
    for (int i = 0; i < C; i++)
        y[i] = x[i] / root;
    return root;
}

/* Update z (C, D) from the state before token t to the one after it; sets qn, kn, and d not yet
 * multiplied by beta. */
static void step(struct head *a, double *z, int t)
{
    const struct rule *r = a->r;
    int C = r->C, D = r->D;
    const float *x = r->x + (int64_t)t * r->width;
    int64_t gate = a->gate + (int64_t)t * r->Q;
    double keep = exp(r->g[gate]), beta = r->beta[gate];
    a->q_root = normalise(a->qn, x + a->q, C);
    a->k_root = normalise(a->kn, x + a->k, C);
    for (int i = 0; i < D; i++)
        a->d[i] = x[a->v + i];
    for (int c = 0; c < C; c++)
        for (int i = 0; i < D; i++) {
            z[c * D + i] *= keep;
            a->d[i] -= z[c * D + i] * a->kn[c];
        }
    for (int c = 0; c < C; c++)
        for (int i = 0; i < D; i++)
            z[c * D + i] += a->kn[c] * beta * a->d[i];
}

static struct rule size_rule(int T, int G, int Q, int C, int D)
{
    return (struct rule){.T = T, .G = G, .Q = Q, .C = C, .D = D, .width = 2 * G * C + Q * D};
}

static struct head take_head(const struct rule *r)
{
    return (struct head){.qn = fm_scratch((size_t)r->C * sizeof(double)),
                         .kn = fm_scratch((size_t)r->C * sizeof(double)),
                         .d = fm_scratch((size_t)r->D * sizeof(double))};
}

void ref_delta_rule(float *o, const float *x, const float *g, const float *beta, int S, int T,
                    int G, int Q, int C, int D)
{
    struct rule r = size_rule(T, G, Q, C, D);
    r.x = x, r.g = g, r.beta = beta;
    struct fm_mark mark = fm_scratch_mark();
    struct head a = take_head(&r);
    size_t bytes = (size_t)C * D * sizeof(double);
    double *z = fm_scratch(bytes), root = sqrt(C);
    for (int s = 0; s < S; s++)
        for (int h = 0; h < Q; h++) {
            find_head(&a, &r, s, h);
            memset(z, 0, bytes);
            for (int t = 0; t < T; t++) {
                step(&a, z, t);
                for (int i = 0; i < D; i++) {
                    double sum = 0;
                    for (int c = 0; c < C; c++)
                        sum += z[c * D + i] * a.qn[c];
                    o[a.o + (int64_t)t * Q * D + i] = (float)(sum / root);
                }
            }
        }
    fm_scratch_release(mark);
}

/* Add to dx (C) the gradient at x from dy, the gradient at y = x / root. */
static void normalise_back(float *dx, const double *dy, const double *y, double root, int C)
{
    double along = 0;
    for (int i = 0; i < C; i++)
        along += y[i] * dy[i];
    for (int i = 0; i < C; i++)
        dx[i] = (float)(dx[i] + (dy[i] - y[i] * along) / root);
}

/* The backward through one token.  z is the state after it, z0 the one before; dz is the gradient
 * after it, and receives the one before.  With r = (e^g z0)^T k, u = v - r, d = beta u, and y
 * the gradient d_o divided by sqrt(C):
 *     dq = z y, dz += q y^T;  dd = dz^T k, dv = beta dd, dbeta = u.dd, dr = -dv
 *     dk = dz d + e^g z0 dr;  dz += k dr^T;  dg = <e^g z0, dz>;  dz *= e^g */
static void step_back(struct head *a, const double *z, const double *z0, double *dz,
                      double *scratch, int t)
{
    const struct rule *r = a->r;
    int C = r->C, D = r->D;
    int64_t gate = a->gate + (int64_t)t * r->Q, row = (int64_t)t * r->width;
    const float *d_o = r->d_o + a->o + (int64_t)t * r->Q * D;
    double keep = exp(r->g[gate]), beta = r->beta[gate], dbeta = 0, dg = 0, root = sqrt(C);
    double *dq = scratch, *dk = scratch + C, *dv = scratch + 2 * C;
    memset(dv, 0, (size_t)D * sizeof *dv);
    for (int c = 0; c < C; c++) {
        dq[c] = 0;
        for (int i = 0; i < D; i++) {
            dq[c] += z[c * D + i] * d_o[i] / root;
            dz[c * D + i] += a->qn[c] * d_o[i] / root;
            dv[i] += dz[c * D + i] * a->kn[c];
        }
    }
    for (int i = 0; i < D; i++) {
        dbeta += a->d[i] * dv[i];
        dv[i] *= beta;
        r->dx[row + a->v + i] = (float)dv[i];
    }
    for (int c = 0; c < C; c++) {
        dk[c] = 0;
        for (int i = 0; i < D; i++) {
            double kept = keep * z0[c * D + i], *at = &dz[c * D + i];
            dk[c] += *at * beta * a->d[i] - kept * dv[i];
            *at -= a->kn[c] * dv[i];
            dg += kept * *at;
            *at *= keep;
        }
    }
    r->dg[gate] = (float)dg;
    r->dbeta[gate] = (float)dbeta;
    normalise_back(r->dx + row + a->q, dq, a->qn, a->q_root, C);
    normalise_back(r->dx + row + a->k, dk, a->kn, a->k_root, C);
}

/* Stored states: before each segment of `length` tokens; before each token of one segment, and
 * after its last. */
struct states {
    double *before, *inside, *dz, *scratch;
    int length;
    size_t size; /* of one */
};

static struct states take_states(const struct rule *r)
{
    int length = (int)ceil(sqrt(r->T)), segments = (r->T + length - 1) / length;
    size_t size = (size_t)r->C * r->D;
    return (struct states){.before = fm_scratch((size_t)segments * size * sizeof(double)),
                           .inside = fm_scratch(((size_t)length + 1) * size * sizeof(double)),
                           .dz = fm_scratch(size * sizeof(double)),
                           .scratch = fm_scratch((2 * (size_t)r->C + r->D) * sizeof(double)),
                           .length = length,
                           .size = size};
}

static void head_back(struct head *a, const struct states *y)
{
    size_t size = y->size, bytes = size * sizeof(double);
    int T = a->r->T, segments = (T + y->length - 1) / y->length;
    double *z = y->inside;
    memset(z, 0, bytes);
    for (int t = 0; t < T; t++) {
        if (t % y->length == 0)
            memcpy(y->before + t / y->length * size, z, bytes);
        step(a, z, t);
    }
    memset(y->dz, 0, bytes);
    for (int g = segments - 1; g >= 0; g--) {
        int first = g * y->length, n = T - first < y->length ? T - first : y->length;
        memcpy(z, y->before + (size_t)g * size, bytes);
        for (int i = 0; i < n; i++) {
            memcpy(z + (i + 1) * size, z + i * size, bytes);
            step(a, z + (i + 1) * size, first + i);
        }
        for (int i = n - 1; i >= 0; i--) {
            double *after = z + (i + 1) * size;
            memcpy(after, z + i * size, bytes);
            step(a, after, first + i);
            step_back(a, after, z + i * size, y->dz, y->scratch, first + i);
        }
    }
}

void ref_delta_rule_back(float *dx, float *dg, float *dbeta, const float *d_o, const float *x,
                         const float *g, const float *beta, int S, int T, int G, int Q, int C,
                         int D)
{
    struct rule r = size_rule(T, G, Q, C, D);
    r.x = x, r.g = g, r.beta = beta, r.d_o = d_o;
    r.dx = dx, r.dg = dg, r.dbeta = dbeta;
    struct fm_mark mark = fm_scratch_mark();
    struct head a = take_head(&r);
    struct states y = take_states(&r);
    memset(dx, 0, (size_t)S * T * r.width * sizeof *dx);
    for (int s = 0; s < S; s++)
        for (int h = 0; h < Q; h++) {
            find_head(&a, &r, s, h);
            head_back(&a, &y);
        }
    fm_scratch_release(mark);
}
