/* Operations that only some families of models need, on blocks of rows, or of columns. */
#include "kernels/cpu/cpu.h"
#include "kernels/ops/ops.h"

#include <math.h>
#include <string.h>

#include "lib/base/pool.h"

struct rows {
    float *x, *y; /* written */
    const float *a, *b;
    const int32_t *ids;
    int32_t *chosen;
    float limit;
    bool softplus;
    int E, K, H;
};

FM_CLONES(void, add_to_row, (float *x, const float *b, int H), (x, b, H))
{
    for (int i = 0; i < H; i++)
        x[i] += b[i];
}

static void add_rows(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++)
        add_to_row(r->x + t * r->H, r->a, r->H);
}

void cpu_add_rows(float *x, const float *b, int N, int H)
{
    fm_cpu_rows(N, H, add_rows, &(struct rows){.x = x, .a = b, .H = H});
}

static void clamp(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_clamp(r->x + first, r->limit, last - first);
}

void cpu_clamp(float *x, float limit, int64_t count)
{
    fm_cpu_rows(count, 1, clamp, &(struct rows){.x = x, .limit = limit});
}

static void clamp_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_clamp_back(r->x + first, r->a + first, r->limit, last - first);
}

void cpu_clamp_back(float *dx, const float *x, float limit, int64_t count)
{
    fm_cpu_rows(count, 1, clamp_back, &(struct rows){.x = dx, .a = x, .limit = limit});
}

/* tanh(z) = 1 - 2 / (1 + exp(2 z)). */
FM_CLONES(void, softcap, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct rows *r = args;
    float *x = r->x, cap = r->limit, rate = 2 / cap;
    for (int64_t i = first; i < last; i++)
        x[i] = cap - 2 * cap / (1 + fm_expf(rate * x[i]));
}

void cpu_softcap(float *x, float cap, int64_t count)
{
    fm_cpu_rows(count, 4, softcap, &(struct rows){.x = x, .limit = cap});
}

static void softcap_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_softcap_back(r->x + first, r->a + first, r->limit, last - first);
}

void cpu_softcap_back(float *dx, const float *y, float cap, int64_t count)
{
    fm_cpu_rows(count, 2, softcap_back, &(struct rows){.x = dx, .a = y, .limit = cap});
}

static void route_raw(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_route_raw(r->chosen + first * r->K, r->y + first * r->K, r->x + first * r->E,
                  (int)(last - first), r->E, r->K);
}

void cpu_route_raw(int32_t *ids, float *weights, float *p, int N, int E, int K)
{
    fm_cpu_rows(N, 64 * (int64_t)E, route_raw,
                &(struct rows){.chosen = ids, .y = weights, .x = p, .E = E, .K = K});
}

static void route_raw_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    ref_route_raw_back(r->x + first * r->E, r->a + first * r->K, r->ids + first * r->K,
                       r->b + first * r->E, (int)(last - first), r->E, r->K);
}

void cpu_route_raw_back(float *dlogits, const float *dweights, const int32_t *ids, const float *p,
                        int N, int E, int K)
{
    fm_cpu_rows(N, 16 * (int64_t)E, route_raw_back,
                &(struct rows){.x = dlogits, .a = dweights, .ids = ids, .b = p, .E = E, .K = K});
}

FM_CLONES(void, scale_row, (float *x, float s, int H), (x, s, H))
{
    for (int i = 0; i < H; i++)
        x[i] *= s;
}

static void gate_rows(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++) {
        double u = r->a[t];
        r->y[t] = (float)(r->softplus ? fmax(u, 0) + log1p(exp(-fabs(u))) : 1 / (1 + exp(-u)));
        scale_row(r->x + t * r->H, r->y[t], r->H);
    }
}

void cpu_gate_rows(float *h, float *s, const float *u, bool softplus, int N, int I)
{
    fm_cpu_rows(N, I, gate_rows,
                &(struct rows){.x = h, .y = s, .a = u, .H = I, .softplus = softplus});
}

FM_CLONES(double, dot_row, (const float *a, const float *b, int n), (a, b, n))
{
    return fm_dot(a, b, n);
}

static void gate_rows_back(const void *args, int64_t first, int64_t last)
{
    const struct rows *r = args;
    for (int64_t t = first; t < last; t++) {
        double sum = dot_row(r->a + t * r->H, r->x + t * r->H, r->H), s = r->b[t];
        double slope = !r->softplus ? 1 - s : s > 0 ? -expm1(-s) / s : 0;
        scale_row(r->x + t * r->H, r->b[t], r->H);
        r->y[t] = (float)(slope * sum);
    }
}

void cpu_gate_rows_back(float *dh, float *du, const float *h, const float *s, bool softplus, int N,
                        int I)
{
    fm_cpu_rows(N, 2 * (int64_t)I, gate_rows_back,
                &(struct rows){.x = dh, .y = du, .a = h, .b = s, .H = I, .softplus = softplus});
}

struct gating {
    float *y, *dz;
    const float *x, *z, *dy;
    bool silu;
    float by;
};

FM_CLONES(void, gate, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct gating *g = args;
    float *y = g->y;
    const float *x = g->x, *restrict z = g->z;
    for (int64_t i = first; i < last; i++)
        y[i] = x[i] * (g->silu ? z[i] : 1) / (1 + fm_expf(-z[i]));
}

void cpu_gate(float *y, const float *x, const float *z, bool silu, int64_t count)
{
    fm_cpu_rows(count, 4, gate, &(struct gating){.y = y, .x = x, .z = z, .silu = silu});
}

FM_CLONES(void, gate_back, (const void *args, int64_t first, int64_t last), (args, first, last))
{
    const struct gating *g = args;
    float *dx = g->y, *restrict dz = g->dz;
    const float *restrict x = g->x, *restrict z = g->z, *dy = g->dy;
    for (int64_t i = first; i < last; i++) {
        float s = 1 / (1 + fm_expf(-z[i])), slope = s * (1 - s), d = dy[i];
        dx[i] = d * s * (g->silu ? z[i] : 1);
        dz[i] = d * x[i] * (g->silu ? s + z[i] * slope : slope);
    }
}

void cpu_gate_back(float *dx, float *dz, const float *dy, const float *x, const float *z, bool silu,
                   int64_t count)
{
    fm_cpu_rows(count, 8, gate_back,
                &(struct gating){.y = dx, .dz = dz, .dy = dy, .x = x, .z = z, .silu = silu});
}

static void multiply(const void *args, int64_t first, int64_t last)
{
    const struct gating *g = args;
    ref_multiply(g->y + first, g->x + first, g->z + first, last - first);
}

void cpu_multiply(float *y, const float *x, const float *z, int64_t count)
{
    fm_cpu_rows(count, 1, multiply, &(struct gating){.y = y, .x = x, .z = z});
}

static void shift(const void *args, int64_t first, int64_t last)
{
    const struct gating *g = args;
    ref_shift(g->y + first, g->x + first, g->by, last - first);
}

void cpu_shift(float *y, const float *x, float by, int64_t count)
{
    fm_cpu_rows(count, 1, shift, &(struct gating){.y = y, .x = x, .by = by});
}

/* ---- operations of Gated DeltaNet before its rule: short convolution, gates ---- */

/* Columns of a task; a row of them is several cache lines. */
enum { COLUMNS = 256 };

struct convolution {
    float *y, *dx;
    const float *x, *w, *dy;
    bool silu;
    int T, H, W, blocks; /* of columns */
};

/* a (n) = the sums at token t; w (W, COLUMNS). */
FM_INLINE void convolve_row(float *restrict a, const float *restrict x, const float *restrict w,
                            int t, int n, int H, int W)
{
    for (int h = 0; h < n; h++)
        a[h] = 0;
    for (int i = t < W - 1 ? W - 1 - t : 0; i < W; i++) {
        const float *restrict row = x + (int64_t)(t - W + 1 + i) * H;
        for (int h = 0; h < n; h++)
            a[h] += w[i * COLUMNS + h] * row[h];
    }
}

/* Copy the weights of the task's columns, one tap after another. */
static int take_taps(float *w, int64_t *at, const struct convolution *c, int index)
{
    int first = index % c->blocks * COLUMNS, n = c->H - first;
    n = n < COLUMNS ? n : COLUMNS;
    for (int h = 0; h < n; h++)
        for (int i = 0; i < c->W; i++)
            w[i * COLUMNS + h] = c->w[(int64_t)(first + h) * c->W + i];
    *at = (int64_t)(index / c->blocks) * c->T * c->H + first;
    return n;
}

FM_CLONES(void, convolve_columns, (const struct convolution *c, float *w, int index), (c, w, index))
{
    int64_t at;
    int n = take_taps(w, &at, c, index);
    float a[COLUMNS];
    for (int t = 0; t < c->T; t++) {
        float *restrict y = c->y + at + (int64_t)t * c->H;
        convolve_row(a, c->x + at, w, t, n, c->H, c->W);
        for (int h = 0; h < n; h++)
            y[h] = c->silu ? a[h] / (1 + fm_expf(-a[h])) : a[h];
    }
}

/* The ring buffer holds da of the W tokens from t on; past the end of the sequence da is 0. */
FM_CLONES(void, convolve_back_columns,
          (const struct convolution *c, float *w, float *ring, int index), (c, w, ring, index))
{
    int64_t at;
    int n = take_taps(w, &at, c, index), W = c->W;
    memset(ring, 0, (size_t)W * COLUMNS * sizeof *ring);
    for (int t = c->T - 1; t >= 0; t--) {
        float *restrict a = ring + t % W * COLUMNS, *restrict dx = c->dx + at + (int64_t)t * c->H;
        const float *restrict dy = c->dy + at + (int64_t)t * c->H;
        if (c->silu)
            convolve_row(a, c->x + at, w, t, n, c->H, W);
        else
            memcpy(a, dy, (size_t)n * sizeof *a);
        for (int h = 0; h < n && c->silu; h++) {
            float s = 1 / (1 + fm_expf(-a[h]));
            a[h] = dy[h] * (s + a[h] * s * (1 - s));
        }
        for (int h = 0; h < n; h++)
            dx[h] = 0;
        for (int i = 0; i < W; i++) {
            const float *restrict da = ring + (t + W - 1 - i) % W * COLUMNS;
            for (int h = 0; h < n; h++)
                dx[h] += w[i * COLUMNS + h] * da[h];
        }
    }
}

static void convolve_task(void *arg, int index)
{
    const struct convolution *c = arg;
    struct fm_mark mark = fm_scratch_mark();
    size_t bytes = (size_t)c->W * COLUMNS * sizeof(float);
    float *w = fm_scratch(bytes);
    if (c->y)
        convolve_columns(c, w, index);
    else
        convolve_back_columns(c, w, fm_scratch(bytes), index);
    fm_scratch_release(mark);
}

static void convolve_all(struct convolution c, int S)
{
    c.blocks = (c.H + COLUMNS - 1) / COLUMNS;
    fm_pool_for(S * c.blocks, convolve_task, &c);
}

void cpu_convolve(float *y, const float *x, const float *w, bool silu, int S, int T, int H, int W)
{
    convolve_all((struct convolution){.y = y, .x = x, .w = w, .silu = silu, .T = T, .H = H, .W = W},
                 S);
}

void cpu_convolve_back(float *dx, const float *dy, const float *x, const float *w, bool silu, int S,
                       int T, int H, int W)
{
    convolve_all(
        (struct convolution){
            .dx = dx, .dy = dy, .x = x, .w = w, .silu = silu, .T = T, .H = H, .W = W},
        S);
}

struct gates {
    float *to, *beta_to;
    const float *dg, *dbeta, *a, *b, *rate, *bias;
    int Q;
};

static void delta_gate_rows(const void *args, int64_t first, int64_t last)
{
    const struct gates *s = args;
    int64_t at = first * s->Q;
    ref_delta_gates(s->to + at, s->beta_to + at, s->a + at, s->b + at, s->rate, s->bias,
                    (int)(last - first), s->Q);
}

void cpu_delta_gates(float *g, float *beta, const float *a, const float *b, const float *rate,
                     const float *bias, int N, int Q)
{
    fm_cpu_rows(N, 32 * (int64_t)Q, delta_gate_rows,
                &(struct gates){
                    .to = g, .beta_to = beta, .a = a, .b = b, .rate = rate, .bias = bias, .Q = Q});
}

static void delta_gate_back_rows(const void *args, int64_t first, int64_t last)
{
    const struct gates *s = args;
    int64_t at = first * s->Q;
    ref_delta_gates_back(s->to + at, s->beta_to + at, s->dg + at, s->dbeta + at, s->a + at,
                         s->b + at, s->rate, s->bias, (int)(last - first), s->Q);
}

void cpu_delta_gates_back(float *da, float *db, const float *dg, const float *dbeta, const float *a,
                          const float *beta, const float *rate, const float *bias, int N, int Q)
{
    fm_cpu_rows(N, 32 * (int64_t)Q, delta_gate_back_rows,
                &(struct gates){.to = da,
                                .beta_to = db,
                                .dg = dg,
                                .dbeta = dbeta,
                                .a = a,
                                .b = beta,
                                .rate = rate,
                                .bias = bias,
                                .Q = Q});
}
