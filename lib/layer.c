#include "lib/layer.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"

/* N tokens' inner values of the layer, in the thread's scratch or where the pass keeps them. */
struct inner {
    float *x1;        /* (N, H); of a forward, only where it is kept */
    float *gu;        /* (R, 2 I): gate and up, rows of an expert at their width; NULL: not kept */
    float *xn, *rstd; /* (N, H), (N): first norm */
    float *q, *k, *v; /* (N, Q C), (N, G C) twice: after rope */
    float *o;         /* (N, Q C) */
    float *xm, *rstd_m; /* (N, H), (N): second norm */
    int32_t *ids;       /* (N, K) chosen experts */
    float *weights;     /* (N, K) */
    /* Rows sorted by expert, ascending tokens in each; R = N K of them. */
    int32_t *first; /* (E + 1): expert e has rows [first[e], first[e + 1]) */
    int32_t *rows;  /* (R): token of a row */
    float *scale;   /* (R): its router weight */
    int32_t *where; /* (N, K): row of a choice */
    int32_t *order; /* (E): experts, most rows first, so that the pool ends evenly */
};

static float *floats(size_t n)
{
    return fm_scratch(n * sizeof(float));
}

static int32_t *ints(size_t n)
{
    return fm_scratch(n * sizeof(int32_t));
}

/* Room for n elements of four bytes: from *at on, which moves behind it, or scratch. */
static void *take(char **at, size_t n)
{
    size_t bytes = (n * sizeof(float) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    if (!*at)
        return fm_scratch(bytes);
    char *p = *at;
    *at += bytes;
    return p;
}

/* Inner values at `at`, which ends behind them; NULL: in scratch, without gu. */
static struct inner take_inner(const struct fm_config *c, int N, char **at, bool gu)
{
    size_t n = (size_t)N, h = (size_t)c->H, e = (size_t)c->E, r = n * (size_t)c->K;
    size_t qc = (size_t)c->Q * (size_t)c->C, gc = (size_t)c->G * (size_t)c->C;
    return (struct inner){
        .x1 = take(at, n * h),
        .gu = *at && gu ? take(at, r * 2 * (size_t)c->I) : NULL,
        .xn = take(at, n * h),
        .rstd = take(at, n),
        .q = take(at, n * qc),
        .k = take(at, n * gc),
        .v = take(at, n * gc),
        .o = take(at, n * qc),
        .xm = take(at, n * h),
        .rstd_m = take(at, n),
        .ids = take(at, r),
        .weights = take(at, r),
        .first = take(at, e + 1),
        .rows = take(at, r),
        .scale = take(at, r),
        .where = take(at, r),
        .order = take(at, e),
    };
}

size_t fm_layer_kept_bytes(const struct fm_config *c, int N, bool gu)
{
    size_t n = (size_t)N, e = (size_t)c->E, r = n * (size_t)c->K;
    size_t heads = 2 * (size_t)(c->Q + c->G) * (size_t)c->C;
    size_t count = n * (3 * (size_t)c->H + heads + 2) + 5 * r + 2 * e + 1;
    if (gu)
        count += r * 2 * (size_t)c->I;
    return count * sizeof(float) + sizeof(struct inner) / sizeof(void *) * FM_ALIGN;
}

void fm_layer_angles(float *cos_table, float *sin_table, const struct fm_config *config, int T)
{
    int half = config->C / 2;
    for (int i = 0; i < half; i++) {
        float power = (float)(2 * i) / (float)config->C;
        float frequency = 1.0f / (float)pow(config->rope_theta, (double)power);
        for (int t = 0; t < T; t++) {
            float angle = (float)t * frequency;
            cos_table[(size_t)t * (size_t)half + (size_t)i] = (float)cos((double)angle);
            sin_table[(size_t)t * (size_t)half + (size_t)i] = (float)sin((double)angle);
        }
    }
}

/* x (N, H) -> a: norm, q, k, v, rope, attention; x1 (N, H), which holds x, += o Wo^T. */
static void attend(const struct fm_pass *p, struct inner *a, float *x1)
{
    const struct fm_config *c = p->config;
    const struct fm_ops *op = p->ops;
    const struct fm_layer *w = p->layer;
    int N = p->S * p->T, H = c->H, QC = c->Q * c->C, GC = c->G * c->C;
    op->norm(a->xn, a->rstd, x1, w->input_norm, NULL, N, H, c->eps);
    op->gemm(false, true, N, QC, H, 1, a->xn, H, w->q, H, 0, a->q, QC);
    op->gemm(false, true, N, GC, H, 1, a->xn, H, w->k, H, 0, a->k, GC);
    op->gemm(false, true, N, GC, H, 1, a->xn, H, w->v, H, 0, a->v, GC);
    op->rope(a->q, p->cos, p->sin, N, p->T, c->Q, c->C, 1);
    op->rope(a->k, p->cos, p->sin, N, p->T, c->G, c->C, 1);
    op->attention(a->o, a->q, a->k, a->v, p->S, p->T, c->Q, c->G, c->C, c->window);
    op->gemm(false, true, N, H, QC, 1, a->o, QC, w->o, QC, 1, x1, H);
}

/* Fill first, rows, scale, where, order from ids and weights: a counting sort. */
static void sort_rows(struct inner *a, int N, int E, int K)
{
    memset(a->first, 0, ((size_t)E + 1) * sizeof *a->first);
    for (int i = 0; i < N * K; i++)
        a->first[a->ids[i] + 1]++;
    for (int e = 0; e < E; e++) {
        int n = a->first[e + 1], i = e;
        for (; i > 0 && n > a->first[a->order[i - 1] + 1]; i--)
            a->order[i] = a->order[i - 1];
        a->order[i] = e;
    }
    for (int e = 0; e < E; e++)
        a->first[e + 1] += a->first[e];
    struct fm_mark mark = fm_scratch_mark();
    int32_t *next = ints((size_t)E);
    memcpy(next, a->first, (size_t)E * sizeof *next);
    for (int i = 0; i < N * K; i++) {
        int r = next[a->ids[i]]++;
        a->rows[r] = i / K;
        a->scale[r] = a->weights[i];
        a->where[i] = r;
    }
    fm_scratch_release(mark);
}

/* x1 (N, H) -> second norm, router, rows by expert. */
static void choose(const struct fm_pass *p, struct inner *a, const float *x1)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    struct fm_mark mark = fm_scratch_mark();
    float *logits = floats((size_t)N * (size_t)c->E);
    p->ops->norm(a->xm, a->rstd_m, x1, p->layer->post_norm, NULL, N, c->H, c->eps);
    p->ops->gemm(false, true, N, c->E, c->H, 1, a->xm, c->H, p->layer->router, c->H, 0, logits,
                 c->E);
    p->ops->route(a->ids, a->weights, logits, N, c->E, c->K);
    fm_scratch_release(mark);
    sort_rows(a, N, c->E, c->K);
}

/* What the tasks of one layer's experts share. */
struct experts {
    const struct fm_pass *pass;
    const struct inner *inner;
    float *z; /* (R, H): output rows forward, input gradient rows backward */
    const float *dy;
    float *dweights; /* (R): gradient at the router weight of a row */
    const struct fm_visitor *visitor;
    const struct fm_expert_view *where;
    bool wanted; /* somebody reads the gradient at x */
};

/* Expert `e` of the pass: rows, widths and weights of a view; false where it got no rows. */
static bool look(struct fm_expert_view *v, const struct experts *x, int e)
{
    const struct fm_pass *p = x->pass;
    size_t H = (size_t)p->config->H, row0 = (size_t)p->layer->row0[e];
    int first = x->inner->first[e];
    v->expert = e;
    v->n = x->inner->first[e + 1] - first;
    v->rows = x->inner->rows + first;
    v->cap = p->layer->cap[e];
    v->width = p->widths ? (int)p->widths[e] : v->cap;
    assert(v->width <= v->cap);
    v->gate_up = p->layer->gate_up + 2 * row0 * H;
    v->down = p->layer->down + row0 * H;
    return v->n > 0;
}

/* Gate and up of an expert's rows, (n, 2 width): kept ones, or room for them in scratch. */
static float *take_gu(const struct experts *x, const struct fm_expert_view *v, int width)
{
    size_t first = (size_t)x->inner->first[v->expert];
    if (x->inner->gu)
        return x->inner->gu + first * 2 * (size_t)x->pass->config->I;
    return floats((size_t)v->n * 2 * (size_t)width);
}

static void forward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    const struct fm_ops *op = x->pass->ops;
    struct fm_expert_view v = {0};
    if (!look(&v, x, x->inner->order[i]))
        return;
    int H = x->pass->config->H, k = v.width;
    size_t n = (size_t)v.n;
    float *z = x->z + (size_t)x->inner->first[v.expert] * (size_t)H;
    if (k == 0) {
        memset(z, 0, n * (size_t)H * sizeof *z);
        return;
    }
    struct fm_mark mark = fm_scratch_mark();
    float *rows = floats(n * (size_t)H), *gu = take_gu(x, &v, k);
    float *h = floats(n * (size_t)k);
    op->gather(rows, x->inner->xm, v.rows, NULL, v.n, H);
    op->gemm(false, true, v.n, 2 * k, H, 1, rows, H, v.gate_up, H, 0, gu, 2 * k);
    op->swiglu(h, gu, v.n, k);
    op->gemm(false, false, v.n, H, k, 1, h, k, v.down, H, 0, z, H);
    fm_scratch_release(mark);
}

void fm_layer_forward(const struct fm_pass *p, float *y, const float *x, int64_t *counts)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    struct fm_mark mark = fm_scratch_mark();
    char *kept = p->kept;
    struct inner a = take_inner(c, N, &kept, p->kept_gu);
    if (y != x)
        memcpy(y, x, (size_t)N * (size_t)c->H * sizeof *y);
    attend(p, &a, y);
    choose(p, &a, y);
    if (p->kept)
        memcpy(a.x1, y, (size_t)N * (size_t)c->H * sizeof *y);
    float *z = floats((size_t)N * (size_t)c->K * (size_t)c->H);
    struct experts e = {.pass = p, .inner = &a, .z = z};
    fm_pool_for(c->E, forward_expert, &e);
    p->ops->combine(y, z, a.where, a.weights, N, c->K, c->H);
    for (int i = 0; counts && i < c->E; i++)
        counts[i] = a.first[i + 1] - a.first[i];
    fm_scratch_release(mark);
}

/* Call the visitor for each micro-batch that has rows of this expert; `all` has the rows of all. */
static void show(const struct experts *x, const struct fm_expert_view *all, int full)
{
    const struct fm_pass *p = x->pass;
    size_t H = (size_t)p->config->H, f = (size_t)full, k = (size_t)all->width;
    int tokens = p->S / p->parts * p->T;
    struct fm_mark mark = fm_scratch_mark();
    int32_t *rows = ints((size_t)all->n);
    for (int i = 0, first = 0; i < p->parts; i++) {
        int end = first;
        for (; end < all->n && all->rows[end] < (i + 1) * tokens; end++)
            rows[end] = all->rows[end] - i * tokens;
        if (end == first)
            continue;
        struct fm_expert_view v = *all;
        size_t r = (size_t)first;
        v.layer = x->where[i].layer;
        v.lane = x->where[i].lane;
        v.batch = x->where[i].batch;
        v.slot = x->where[i].slot;
        v.n = end - first;
        v.rows = rows + r;
        v.x += r * H;
        v.h += r * f;
        v.dy += r * H;
        v.dh += r * f;
        v.dgu += r * 2 * k;
        x->visitor->expert(x->visitor->self, &v);
        first = end;
    }
    fm_scratch_release(mark);
}

/* Gradients of an expert's input rows and of their router weights, from those of its middle. */
static void backward_rows(const struct experts *x, const struct fm_expert_view *v, int full)
{
    const struct fm_ops *op = x->pass->ops;
    const float *scale = x->inner->scale;
    int H = x->pass->config->H, k = v->width, first = x->inner->first[v->expert];
    float *dz = x->z + (size_t)first * (size_t)H;
    if (k > 0) {
        op->gemm(false, false, v->n, H, 2 * k, 1, v->dgu, 2 * k, v->gate_up, H, 0, dz, H);
        op->dot_rows(x->dweights + first, v->h, v->dh, v->n, full, k);
    } else {
        memset(dz, 0, (size_t)v->n * (size_t)H * sizeof *dz);
        memset(x->dweights + first, 0, (size_t)v->n * sizeof *dz);
    }
    /* A weight that underflowed to 0 has no gradient either: its softmax is flat. */
    for (int r = first; r < first + v->n; r++)
        x->dweights[r] = scale[r] > 0 ? x->dweights[r] / scale[r] : 0;
}

/*
 * With w the router weight of a row and dy' = w dy:  dh = dy' down^T is the gradient at the
 * masked h, taken before any mask because masks learn from it; only channels below the width go
 * on.  The router's gradient <dy, expert(x)> is dot(h, dh) / w over those channels.
 */
static void backward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    const struct fm_ops *op = x->pass->ops;
    const struct inner *a = x->inner;
    struct fm_expert_view v = {0};
    if (!look(&v, x, a->order[i]))
        return;
    int H = x->pass->config->H, k = v.width, first = a->first[v.expert];
    bool seen = x->visitor && x->visitor->expert;
    int full = seen ? v.cap : k; /* width of h and dh */
    size_t n = (size_t)v.n;
    struct fm_mark mark = fm_scratch_mark();
    float *rows = floats(n * (size_t)H), *dy = floats(n * (size_t)H);
    float *gu = take_gu(x, &v, full), *h = floats(n * (size_t)full);
    float *dh = floats(n * (size_t)full), *dgu = floats(n * 2 * (size_t)k);
    op->gather(rows, a->xm, v.rows, NULL, v.n, H);
    op->gather(dy, x->dy, v.rows, a->scale + first, v.n, H);
    if (full > 0) {
        if (!a->gu)
            op->gemm(false, true, v.n, 2 * full, H, 1, rows, H, v.gate_up, H, 0, gu, 2 * full);
        op->swiglu(h, gu, v.n, full);
        op->gemm(false, true, v.n, full, H, 1, dy, H, v.down, H, 0, dh, full);
    }
    if (k > 0)
        op->swiglu_back(dgu, dh, gu, v.n, full, k);
    v.x = rows;
    v.h = h;
    v.dy = dy;
    v.dh = dh;
    v.dgu = dgu;
    if (x->wanted)
        backward_rows(x, &v, full);
    if (seen)
        show(x, &v, full);
    fm_scratch_release(mark);
}

/* dx (N, H), the gradient at y, becomes the one at x1: router, second norm. */
static void back_router(const struct fm_pass *p, const struct inner *a, float *dx, const float *dz,
                        const float *dweights)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, K = c->K, H = c->H;
    struct fm_mark mark = fm_scratch_mark();
    float *dlogits = floats((size_t)N * (size_t)c->E), *dxm = floats((size_t)N * (size_t)H);
    p->ops->route_back(dlogits, dweights, a->ids, a->weights, N, c->E, K);
    p->ops->gemm(false, false, N, H, c->E, 1, dlogits, c->E, p->layer->router, H, 0, dxm, H);
    p->ops->combine(dxm, dz, a->where, NULL, N, K, H);
    p->ops->norm_back(dx, dxm, a->x1, p->layer->post_norm, NULL, a->rstd_m, N, H);
    fm_scratch_release(mark);
}

/* dx (N, H) holds dy and receives the gradient at x1, if it is wanted: experts, router, second
 * norm. */
static void back_experts(const struct fm_pass *p, const struct inner *a, float *dx, bool wanted,
                         const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, K = c->K, H = c->H;
    size_t R = (size_t)N * (size_t)K;
    struct fm_mark mark = fm_scratch_mark();
    float *dz = floats(R * (size_t)H), *by_row = floats(R), *dweights = floats(R);
    struct experts e = {.pass = p,
                        .inner = a,
                        .z = dz,
                        .dy = dx,
                        .dweights = by_row,
                        .visitor = visitor,
                        .where = where,
                        .wanted = wanted};
    fm_pool_for(c->E, backward_expert, &e);
    for (size_t i = 0; wanted && i < R; i++)
        dweights[i] = by_row[a->where[i]];
    if (wanted)
        back_router(p, a, dx, dz, dweights);
    fm_scratch_release(mark);
}

/* dx (N, H) holds the gradient at x1 and receives the one at x: attention, first norm. */
static void back_attention(const struct fm_pass *p, const struct inner *a, float *dx,
                           const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_ops *op = p->ops;
    const struct fm_layer *w = p->layer;
    int N = p->S * p->T, H = c->H, QC = c->Q * c->C, GC = c->G * c->C;
    size_t n = (size_t)N;
    struct fm_mark mark = fm_scratch_mark();
    float *d_o = floats(n * (size_t)QC), *dq = floats(n * (size_t)QC);
    float *dk = floats(n * (size_t)GC), *dv = floats(n * (size_t)GC);
    float *dxn = floats(n * (size_t)H);
    op->gemm(false, false, N, QC, H, 1, dx, H, w->o, QC, 0, d_o, QC);
    op->attention_back(dq, dk, dv, d_o, a->o, a->q, a->k, a->v, p->S, p->T, c->Q, c->G, c->C,
                       c->window);
    op->rope(dq, p->cos, p->sin, N, p->T, c->Q, c->C, -1);
    op->rope(dk, p->cos, p->sin, N, p->T, c->G, c->C, -1);
    op->gemm(false, false, N, H, QC, 1, dq, QC, w->q, H, 0, dxn, H);
    op->gemm(false, false, N, H, GC, 1, dk, GC, w->k, H, 1, dxn, H);
    op->gemm(false, false, N, H, GC, 1, dv, GC, w->v, H, 1, dxn, H);
    op->norm_back(dx, dxn, x, w->input_norm, NULL, a->rstd, N, H);
    fm_scratch_release(mark);
}

void fm_layer_backward(const struct fm_pass *p, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    int N = p->S * p->T;
    struct fm_mark mark = fm_scratch_mark();
    char *kept = p->kept;
    struct inner a = take_inner(p->config, N, &kept, p->kept_gu);
    if (!p->kept) {
        memcpy(a.x1, x, (size_t)N * (size_t)p->config->H * sizeof *x);
        attend(p, &a, a.x1);
        choose(p, &a, a.x1);
    }
    back_experts(p, &a, dx, wanted, visitor, where);
    if (wanted)
        back_attention(p, &a, dx, x);
    fm_scratch_release(mark);
}
