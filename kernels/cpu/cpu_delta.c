/*
 * Gated DeltaNet, fast.  The delta rule is computed in chunks of CHUNK tokens, with one head of one
 * sequence as a task, so that almost all of the work is products.  With c[i] the sum of g up to
 * token i of a chunk, Z the state before it, and L[i,j] = exp(c[i] - c[j]):
 *
 *     A[i,j] = L[i,j] k_i.k_j, j < i      P[i,j] = L[i,j] q_i.k_j, j <= i
 *     u = v - exp(c) K Z - A d            d = beta u: row after row
 *     o = exp(c) Q Z + P d                Z' = exp(c_last) Z + (exp(c_last - c) K)^T d
 *
 * and the backward pass differentiates these lines.  Differences of c are computed in double,
 * because after a strong decay c is large and float would lose the differences.  States are
 * computed again as in the reference implementation (kernels/ops/delta.c), by segments of chunks
 * instead of tokens.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/dnnl.h"
#include "kernels/ops/ops.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

enum { CHUNK = 64 };

struct rule {
    float *o, *dx, *dg, *dbeta;
    const float *x, *g, *beta, *d_o;
    int T, G, Q, C, D;
    int x_step, o_step; /* lengths of rows of x and of o */
};

/* State of a task for one chunk of n tokens: rows are packed, q and k normalised, q also divided by
 * sqrt(C). */
struct chunk {
    const struct rule *r;
    int64_t q, k, v, gate, o; /* offsets of the head's values at the chunk's first token */
    int n;
    float *q_rows, *k_rows;  /* (n, C) */
    float *q_root, *k_root;  /* (n): their divisors, without sqrt(C) */
    float *u, *d;            /* (n, D) */
    float *A, *P, *L;        /* (n, n): 0 above the diagonal, A also on it */
    float *grown, *left;     /* (n): exp(c), exp(c_last - c) */
    float *one;              /* (n, max(C, D)): temporary */
    double *c;               /* (n) */
    float *dq, *dk, *x, *z;  /* dq, dk (n, C), x (n, D): gradients at q, k, d; z = beta x */
    float *square, *square2; /* (n, n) */
    double *dc;              /* (n) */
};

static float *rows_of(int width)
{
    return fm_scratch((size_t)CHUNK * width * sizeof(float));
}

static struct chunk take_chunk(const struct rule *r, bool back)
{
    int widest = r->C > r->D ? r->C : r->D;
    struct chunk y = {.r = r};
    y.q_rows = rows_of(r->C), y.k_rows = rows_of(r->C);
    y.q_root = rows_of(1), y.k_root = rows_of(1);
    y.u = rows_of(r->D), y.d = rows_of(r->D);
    y.A = rows_of(CHUNK), y.P = rows_of(CHUNK), y.L = rows_of(CHUNK);
    y.grown = rows_of(1), y.left = rows_of(1);
    y.one = rows_of(widest);
    y.c = fm_scratch(CHUNK * sizeof *y.c);
    if (back) {
        y.dq = rows_of(r->C), y.dk = rows_of(r->C);
        y.x = rows_of(r->D), y.z = rows_of(r->D);
        y.square = rows_of(CHUNK), y.square2 = rows_of(CHUNK);
        y.dc = fm_scratch(CHUNK * sizeof *y.dc);
    }
    return y;
}

/* Set up chunk `index` of head h of sequence s. */
static void find_chunk(struct chunk *y, int s, int h, int index)
{
    const struct rule *r = y->r;
    int64_t row = (int64_t)s * r->T + (int64_t)index * CHUNK, x0 = row * r->x_step;
    int left = r->T - index * CHUNK;
    y->n = left < CHUNK ? left : CHUNK;
    y->q = x0 + (int64_t)(h / (r->Q / r->G)) * r->C;
    y->k = y->q + (int64_t)r->G * r->C;
    y->v = x0 + (int64_t)2 * r->G * r->C + (int64_t)h * r->D;
    y->gate = row * r->Q + h;
    y->o = row * r->o_step + (int64_t)h * r->D;
}

#define NORM_EPS 1e-6

/* y (n, C) = scale x / root, root (n) = sqrt(|x|^2 + eps); rows of x are `step` apart. */
FM_CLONES(void, normalise_rows,
          (float *y, float *root, const float *x, int n, int C, int step, float scale),
          (y, root, x, n, C, step, scale))
{
    for (int t = 0; t < n; t++) {
        const float *restrict row = x + (int64_t)t * step;
        float *restrict to = y + (int64_t)t * C;
        root[t] = (float)sqrt(fm_dot(row, row, C) + NORM_EPS);
        float by = scale / root[t];
        for (int i = 0; i < C; i++)
            to[i] = row[i] * by;
    }
}

/* Compute c, L, and the decay of the state from the chunk's start to each token and from each token
 * to the chunk's end. */
FM_CLONES(void, find_decays, (const struct chunk *y), (y))
{
    const struct rule *r = y->r;
    int n = y->n;
    double sum = 0;
    for (int i = 0; i < n; i++)
        y->c[i] = sum += r->g[y->gate + (int64_t)i * r->Q];
    for (int i = 0; i < n; i++) {
        y->grown[i] = fm_expf((float)y->c[i]);
        y->left[i] = fm_expf((float)(sum - y->c[i]));
        float *restrict row = y->L + (int64_t)i * n;
        for (int j = 0; j < n; j++)
            row[j] = (float)(y->c[i] - y->c[j]);
        for (int j = 0; j < n; j++)
            row[j] = j <= i ? fm_expf(row[j]) : 0;
    }
}

/* m (n, n) *= L; without `diagonal`, the diagonal is set to 0. */
FM_CLONES(void, decay_square, (float *m, const float *L, int n, bool diagonal), (m, L, n, diagonal))
{
    for (int i = 0; i < n * n; i++)
        m[i] *= L[i];
    for (int i = 0; i < n && !diagonal; i++)
        m[(int64_t)i * n + i] = 0;
}

/* y (n, W): y[t] = by[t] x[t]. */
FM_CLONES(void, scale_rows, (float *y, const float *x, const float *by, int n, int W),
          (y, x, by, n, W))
{
    for (int t = 0; t < n; t++)
        for (int i = 0; i < W; i++)
            y[(int64_t)t * W + i] = x[(int64_t)t * W + i] * by[t];
}

/* u holds K Z: compute u = v - grown u - A d, d = beta u, row by row. */
FM_CLONES(void, solve, (const struct chunk *y), (y))
{
    const struct rule *r = y->r;
    int n = y->n, D = r->D;
    for (int t = 0; t < n; t++) {
        float *restrict u = y->u + (int64_t)t * D, *restrict d = y->d + (int64_t)t * D;
        const float *restrict v = r->x + y->v + (int64_t)t * r->x_step;
        float beta = r->beta[y->gate + (int64_t)t * r->Q];
        for (int i = 0; i < D; i++)
            u[i] = v[i] - y->grown[t] * u[i];
        for (int j = 0; j < t; j++) {
            const float *restrict before = y->d + (int64_t)j * D;
            float by = y->A[(int64_t)t * n + j];
            for (int i = 0; i < D; i++)
                u[i] -= by * before[i];
        }
        for (int i = 0; i < D; i++)
            d[i] = beta * u[i];
    }
}

/* Compute the chunk's A, u, d and decays from the state Z (C, D) before it. */
static void enter_chunk(const struct chunk *y, const float *Z)
{
    const struct rule *r = y->r;
    int n = y->n, C = r->C, D = r->D;
    normalise_rows(y->q_rows, y->q_root, r->x + y->q, n, C, r->x_step, (float)(1 / sqrt(C)));
    normalise_rows(y->k_rows, y->k_root, r->x + y->k, n, C, r->x_step, 1);
    find_decays(y);
    fm_dnnl_sgemm(false, true, n, n, C, 1, y->k_rows, C, y->k_rows, C, 0, y->A, n);
    decay_square(y->A, y->L, n, false);
    fm_dnnl_sgemm(false, false, n, D, C, 1, y->k_rows, C, Z, D, 0, y->u, D);
    solve(y);
}

/* Compute P, on which the states do not depend. */
static void find_scores(const struct chunk *y)
{
    int n = y->n, C = y->r->C;
    fm_dnnl_sgemm(false, true, n, n, C, 1, y->q_rows, C, y->k_rows, C, 0, y->P, n);
    decay_square(y->P, y->L, n, true);
}

FM_CLONES(void, scale, (float *x, float by, int64_t n), (x, by, n))
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= by;
}

/* Advance Z to the state after the chunk. */
static void pass_state(const struct chunk *y, float *Z)
{
    int n = y->n, C = y->r->C, D = y->r->D;
    scale(Z, y->grown[n - 1], (int64_t)C * D);
    scale_rows(y->one, y->k_rows, y->left, n, C);
    fm_dnnl_sgemm(true, false, C, D, n, 1, y->one, C, y->d, D, 1, Z, D);
}

static void give_output(const struct chunk *y, const float *Z)
{
    const struct rule *r = y->r;
    int n = y->n, C = r->C, D = r->D;
    find_scores(y);
    scale_rows(y->one, y->q_rows, y->grown, n, C);
    fm_dnnl_sgemm(false, false, n, D, C, 1, y->one, C, Z, D, 0, r->o + y->o, r->o_step);
    fm_dnnl_sgemm(false, false, n, D, n, 1, y->P, n, y->d, D, 1, r->o + y->o, r->o_step);
}

static int count_chunks(const struct rule *r)
{
    return (r->T + CHUNK - 1) / CHUNK;
}

/* Task: forward of one head of one sequence. */
static void run_head(void *arg, int index)
{
    const struct rule *r = arg;
    if (fm_pool_ending())
        return;
    struct fm_mark mark = fm_scratch_mark();
    struct chunk y = take_chunk(r, false);
    size_t bytes = (size_t)r->C * r->D * sizeof(float);
    float *Z = fm_scratch(bytes);
    memset(Z, 0, bytes);
    for (int i = 0; i < count_chunks(r); i++) {
        find_chunk(&y, index / r->Q, index % r->Q, i);
        enter_chunk(&y, Z);
        give_output(&y, Z);
        pass_state(&y, Z);
    }
    fm_scratch_release(mark);
}

static struct rule size_rule(int T, int G, int Q, int C, int D)
{
    return (struct rule){
        .T = T, .G = G, .Q = Q, .C = C, .D = D, .x_step = 2 * G * C + Q * D, .o_step = Q * D};
}

void cpu_delta_rule(float *o, const float *x, const float *g, const float *beta, int S, int T,
                    int G, int Q, int C, int D)
{
    struct rule r = size_rule(T, G, Q, C, D);
    r.o = o, r.x = x, r.g = g, r.beta = beta;
    fm_pool_for(S * Q, run_head, &r);
}

/* ---- its backward ---- */

/* x holds the gradient at d except for the part inside the chunk.  From the last row to the first,
 * subtract A^T z from x, and set z = beta x, the gradient at u and v, and dbeta = u.x. */
FM_CLONES(void, solve_back, (const struct chunk *y), (y))
{
    const struct rule *r = y->r;
    int n = y->n, D = r->D;
    for (int t = n - 1; t >= 0; t--) {
        float *restrict x = y->x + (int64_t)t * D, *restrict z = y->z + (int64_t)t * D;
        float *restrict dv = r->dx + y->v + (int64_t)t * r->x_step;
        int64_t gate = y->gate + (int64_t)t * r->Q;
        for (int i = t + 1; i < n; i++) {
            const float *restrict later = y->z + (int64_t)i * D;
            float by = y->A[(int64_t)i * n + t];
            for (int j = 0; j < D; j++)
                x[j] -= by * later[j];
        }
        r->dbeta[gate] = (float)fm_dot(y->u + (int64_t)t * D, x, D);
        for (int j = 0; j < D; j++)
            dv[j] = z[j] = r->beta[gate] * x[j];
    }
}

/* Set dc to the part of the gradient at c that comes through L in A and P, whose gradients are -dA
 * and dP.  Then turn dA and dP into the gradients at the products k.k and q.k, before L. */
FM_CLONES(void, decays_back, (const struct chunk *y, float *dA, float *dP), (y, dA, dP))
{
    int n = y->n;
    for (int i = 0; i < n; i++)
        y->dc[i] = 0;
    for (int i = 0; i < n; i++) {
        double row = 0;
        for (int j = 0; j <= i; j++) {
            int64_t at = (int64_t)i * n + j;
            double both = (double)dP[at] * y->P[at] - (double)dA[at] * y->A[at];
            row += both;
            y->dc[j] -= both;
        }
        y->dc[i] += row;
    }
    for (int i = 0; i < n * n; i++) {
        dA[i] *= -y->L[i];
        dP[i] *= y->L[i];
    }
    for (int i = 0; i < n; i++)
        dA[(int64_t)i * n + i] = 0;
}

/* For each of n rows t, with s = sign by[t] and p = s with[t].rows[t]: to[t] += s rows[t], and
 * dc[t] += dc_sign p.  Returns the sum of p. */
FM_CLONES(double, add_scaled,
          (float *to, const float *rows, const float *by, float sign, const float *with, double *dc,
           double dc_sign, int n, int W),
          (to, rows, by, sign, with, dc, dc_sign, n, W))
{
    double all = 0;
    for (int t = 0; t < n; t++) {
        float *restrict y = to + (int64_t)t * W;
        const float *restrict x = rows + (int64_t)t * W;
        float s = sign * by[t];
        double sum = s * fm_dot(with + (int64_t)t * W, x, W);
        for (int i = 0; i < W; i++)
            y[i] += s * x[i];
        dc[t] += dc_sign * sum;
        all += sum;
    }
    return all;
}

/* Set dq and dk (n, C), the gradients at the normalised rows, except for dZ's part of dk; Z is the
 * state before the chunk. */
static void products_back(const struct chunk *y, const float *Z)
{
    const struct rule *r = y->r;
    const float *d_o = r->d_o + y->o;
    float *dA = y->square, *dP = y->square2;
    int n = y->n, C = r->C, D = r->D;
    fm_dnnl_sgemm(false, true, n, n, D, 1, y->z, D, y->d, D, 0, dA, n);
    fm_dnnl_sgemm(false, true, n, n, D, 1, d_o, r->o_step, y->d, D, 0, dP, n);
    decays_back(y, dA, dP);
    fm_dnnl_sgemm(false, false, n, C, n, 1, dP, n, y->k_rows, C, 0, y->dq, C);
    fm_dnnl_sgemm(true, false, n, C, n, 1, dP, n, y->q_rows, C, 0, y->dk, C);
    fm_dnnl_sgemm(false, false, n, C, n, 1, dA, n, y->k_rows, C, 1, y->dk, C);
    fm_dnnl_sgemm(true, false, n, C, n, 1, dA, n, y->k_rows, C, 1, y->dk, C);
    fm_dnnl_sgemm(false, true, n, C, D, 1, d_o, r->o_step, Z, D, 0, y->one, C);
    add_scaled(y->dq, y->one, y->grown, 1, y->q_rows, y->dc, 1, n, C);
    fm_dnnl_sgemm(false, true, n, C, D, 1, y->z, D, Z, D, 0, y->one, C);
    add_scaled(y->dk, y->one, y->grown, -1, y->k_rows, y->dc, 1, n, C);
}

/* dx (n, C), rows `step` apart, += the gradient at x from dy, the gradient at y = scale x / root.
 */
FM_CLONES(void, normalise_back_rows,
          (float *dx, const float *dy, const float *y, const float *root, int n, int C, int step,
           float scale),
          (dx, dy, y, root, n, C, step, scale))
{
    for (int t = 0; t < n; t++) {
        const float *restrict d = dy + (int64_t)t * C, *restrict row = y + (int64_t)t * C;
        float *restrict to = dx + (int64_t)t * step;
        float along = (float)fm_dot(d, row, C) / scale;
        for (int i = 0; i < C; i++)
            to[i] += (scale * d[i] - row[i] * along) / root[t];
    }
}

FM_CLONES(double, dot, (const float *a, const float *b, int n), (a, b, n))
{
    return fm_dot(a, b, n);
}

/* Turn dZ from the gradient after the chunk into the one before it; Z is the state before it. */
static void chunk_back(const struct chunk *y, const float *Z, float *dZ)
{
    const struct rule *r = y->r;
    const float *d_o = r->d_o + y->o;
    int n = y->n, C = r->C, D = r->D;
    enter_chunk(y, Z);
    find_scores(y);
    scale_rows(y->one, y->k_rows, y->left, n, C);
    fm_dnnl_sgemm(true, false, n, D, n, 1, y->P, n, d_o, r->o_step, 0, y->x, D);
    fm_dnnl_sgemm(false, false, n, D, C, 1, y->one, C, dZ, D, 1, y->x, D);
    solve_back(y);
    products_back(y, Z);
    fm_dnnl_sgemm(false, true, n, C, D, 1, y->d, D, dZ, D, 0, y->one, C);
    y->dc[n - 1] += add_scaled(y->dk, y->one, y->left, 1, y->k_rows, y->dc, -1, n, C);
    y->dc[n - 1] += y->grown[n - 1] * dot(Z, dZ, C * D);
    double sum = 0; /* of dc from each token to the chunk's last */
    for (int t = n - 1; t >= 0; t--)
        r->dg[y->gate + (int64_t)t * r->Q] = (float)(sum += y->dc[t]);
    normalise_back_rows(r->dx + y->q, y->dq, y->q_rows, y->q_root, n, C, r->x_step,
                        (float)(1 / sqrt(C)));
    normalise_back_rows(r->dx + y->k, y->dk, y->k_rows, y->k_root, n, C, r->x_step, 1);
    scale(dZ, y->grown[n - 1], (int64_t)C * D);
    scale_rows(y->one, y->q_rows, y->grown, n, C);
    fm_dnnl_sgemm(true, false, C, D, n, 1, y->one, C, d_o, r->o_step, 1, dZ, D);
    scale_rows(y->one, y->k_rows, y->grown, n, C);
    fm_dnnl_sgemm(true, false, C, D, n, -1, y->one, C, y->z, D, 1, dZ, D);
}

/* States before each segment of `length` chunks, and before each chunk of one segment. */
struct states {
    float *before, *inside, *dZ;
    int length;
    size_t size; /* of one state */
};

static struct states take_states(const struct rule *r)
{
    int chunks = count_chunks(r), length = (int)ceil(sqrt(chunks));
    size_t size = (size_t)r->C * r->D, segments = (size_t)((chunks + length - 1) / length);
    return (struct states){.before = fm_scratch(segments * size * sizeof(float)),
                           .inside = fm_scratch((size_t)length * size * sizeof(float)),
                           .dZ = fm_scratch(size * sizeof(float)),
                           .length = length,
                           .size = size};
}

/* Advance Z (C, D) to the state after chunk `index`. */
static void walk(struct chunk *y, float *Z, int s, int h, int index)
{
    find_chunk(y, s, h, index);
    enter_chunk(y, Z);
    pass_state(y, Z);
}

static void head_back(struct chunk *y, const struct states *k, int s, int h)
{
    size_t size = k->size, bytes = size * sizeof(float);
    int chunks = count_chunks(y->r), segments = (chunks + k->length - 1) / k->length;
    float *Z = k->dZ; /* dZ is not in use yet */
    memset(Z, 0, bytes);
    for (int i = 0; i < chunks; i++) {
        if (i % k->length == 0)
            memcpy(k->before + (size_t)(i / k->length) * size, Z, bytes);
        if (i < (segments - 1) * k->length)
            walk(y, Z, s, h, i);
    }
    memset(k->dZ, 0, bytes);
    for (int g = segments - 1; g >= 0; g--) {
        int first = g * k->length, n = chunks - first < k->length ? chunks - first : k->length;
        memcpy(k->inside, k->before + (size_t)g * size, bytes);
        for (int i = 0; i + 1 < n; i++) {
            float *next = k->inside + (size_t)(i + 1) * size;
            memcpy(next, k->inside + (size_t)i * size, bytes);
            walk(y, next, s, h, first + i);
        }
        for (int i = n - 1; i >= 0; i--) {
            find_chunk(y, s, h, first + i);
            chunk_back(y, k->inside + (size_t)i * size, k->dZ);
        }
    }
}

/* Task: backward of one key head of one sequence and its value heads, in order. */
static void run_head_back(void *arg, int index)
{
    const struct rule *r = arg;
    if (fm_pool_ending())
        return;
    int s = index / r->G, key = index % r->G, group = r->Q / r->G;
    struct fm_mark mark = fm_scratch_mark();
    struct chunk y = take_chunk(r, true);
    struct states k = take_states(r);
    for (int64_t t = 0; t < r->T; t++) {
        float *row = r->dx + ((int64_t)s * r->T + t) * r->x_step + (int64_t)key * r->C;
        memset(row, 0, (size_t)r->C * sizeof *row);
        memset(row + (int64_t)r->G * r->C, 0, (size_t)r->C * sizeof *row);
    }
    for (int h = key * group; h < (key + 1) * group; h++)
        head_back(&y, &k, s, h);
    fm_scratch_release(mark);
}

void cpu_delta_rule_back(float *dx, float *dg, float *dbeta, const float *d_o, const float *x,
                         const float *g, const float *beta, int S, int T, int G, int Q, int C,
                         int D)
{
    struct rule r = size_rule(T, G, Q, C, D);
    r.dx = dx, r.dg = dg, r.dbeta = dbeta;
    r.d_o = d_o, r.x = x, r.g = g, r.beta = beta;
    fm_pool_for(S * G, run_head_back, &r);
}
