#include "lib/engine/layering.h"

#include <assert.h>
#include <string.h>

#include "lib/base/mem.h"

static int32_t *ints(size_t n)
{
    return fm_scratch(n * sizeof(int32_t));
}

/* Where inner values go: behind each other from `at` on, or to scratch where that is NULL; `bytes`
 * counts them, and counting alone takes none. */
struct room {
    char *at;
    size_t bytes;
    bool counting;
};

/* Room for n elements of four bytes. */
static void *take(struct room *r, size_t n)
{
    size_t bytes = (n * sizeof(float) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    char *p = r->counting ? NULL : r->at ? r->at + r->bytes : fm_scratch(bytes);
    r->bytes += bytes;
    return p;
}

static void *take_if(bool wanted, struct room *r, size_t n)
{
    return wanted ? take(r, n) : NULL;
}

/* What only a layer of experts has. */
static void take_choices(struct fm_inner *a, const struct fm_config *c, size_t n, bool gu,
                         struct room *room)
{
    size_t e = (size_t)c->E, r = n * (size_t)c->K;
    a->gu = take_if(gu, room, r * 2 * (size_t)c->I);
    a->ids = take(room, r);
    a->weights = take(room, r);
    a->p = take_if(c->router != FM_ROUTER_SOFTMAX, room, n * e);
    a->first = take(room, e + 1);
    a->rows = take(room, r);
    a->scale = take(room, r);
    a->where = take(room, r);
    a->order = take(room, e);
}

/* Inner values of layer l for N tokens; gu: with gate and up, which is for those that are kept. */
static struct fm_inner take_inner(const struct fm_config *c, int l, int N, bool gu,
                                  struct room *room)
{
    size_t n = (size_t)N, h = (size_t)c->H, mlp = (size_t)fm_config_mlp(c, l);
    size_t qc = (size_t)c->Q * (size_t)c->C, gc = (size_t)c->G * (size_t)c->C;
    bool norm = c->qk_norm != FM_QK_NORM_NONE, head = c->qk_norm == FM_QK_NORM_HEAD;
    struct fm_inner a = {
        .x1 = take(room, n * h),
        .mlp_gu = take_if(gu && mlp > 0, room, n * 2 * mlp),
        .xn = take(room, n * h),
        .rstd = take(room, n),
        .q = take(room, n * qc),
        .k = take(room, n * gc),
        .v = take(room, n * gc),
        .q_raw = take_if(norm, room, n * qc),
        .k_raw = take_if(norm, room, n * gc),
        .v_raw = take_if(c->clip > 0, room, n * gc),
        .q_rstd = take_if(norm, room, head ? n * (size_t)c->Q : n),
        .k_rstd = take_if(norm, room, head ? n * (size_t)c->G : n),
        .o = take(room, n * qc),
        .xm = take(room, n * h),
        .rstd_m = take(room, n),
    };
    if (fm_config_moe(c, l) >= 0)
        take_choices(&a, c, n, gu, room);
    return a;
}

size_t fm_layer_kept_bytes(const struct fm_config *c, int N, bool gu)
{
    size_t most = 0;
    for (int l = 0; l < c->L; l++) {
        struct room room = {.counting = true};
        take_inner(c, l, N, gu, &room);
        most = room.bytes > most ? room.bytes : most;
    }
    return most;
}

/* The pass's inner values: where it keeps them, or in scratch. */
static struct fm_inner inner_of(const struct fm_pass *p)
{
    struct room room = {.at = p->kept};
    return take_inner(p->config, p->l, p->S * p->T, p->kept && p->kept_gu, &room);
}

/* Fill first, rows, scale, where, order from ids and weights: a counting sort. */
static void sort_rows(struct fm_inner *a, int N, int E, int K)
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

/* a->xm (N, H) -> experts of every token and their weights, rows by expert. */
static void choose(const struct fm_pass *p, struct fm_inner *a)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    struct fm_mark mark = fm_scratch_mark();
    float *logits = a->p ? a->p : fm_floats((size_t)N * (size_t)c->E);
    p->ops->gemm(false, true, N, c->E, c->H, 1, a->xm, c->H, p->layer->router, c->H, 0, logits,
                 c->E);
    switch (c->router) {
    case FM_ROUTER_SOFTMAX:
        p->ops->route(a->ids, a->weights, logits, N, c->E, c->K);
        break;
    case FM_ROUTER_SOFTMAX_RAW:
        p->ops->route_raw(a->ids, a->weights, logits, N, c->E, c->K);
        break;
    case FM_ROUTER_SPARSEMIXER:
        p->ops->sparsemixer(a->ids, a->weights, logits, N, c->E, c->router_eps);
        break;
    }
    fm_scratch_release(mark);
    sort_rows(a, N, c->E, c->K);
}

/* x1 (N, H) -> second norm, and the choices of a layer of experts. */
static void enter(const struct fm_pass *p, struct fm_inner *a, const float *x1)
{
    const struct fm_layer *w = p->layer;
    p->ops->norm(a->xm, a->rstd_m, x1, w->post_norm, w->post_norm_bias, p->S * p->T, p->config->H,
                 p->config->eps);
    if (a->ids)
        choose(p, a);
}

/* What the tasks of one layer's experts share. */
struct experts {
    const struct fm_pass *pass;
    const struct fm_inner *inner;
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
    return fm_floats((size_t)v->n * 2 * (size_t)width);
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
    float *rows = fm_floats(n * (size_t)H), *gu = take_gu(x, &v, k);
    float *h = fm_floats(n * (size_t)k);
    op->gather(rows, x->inner->xm, v.rows, NULL, v.n, H);
    op->gemm(false, true, v.n, 2 * k, H, 1, rows, H, v.gate_up, H, 0, gu, 2 * k);
    op->swiglu(h, gu, v.n, k);
    op->gemm(false, false, v.n, H, k, 1, h, k, v.down, H, 0, z, H);
    fm_scratch_release(mark);
}

/* y (N, H) += the chosen experts' outputs, weighted. */
static void add_experts(const struct fm_pass *p, const struct fm_inner *a, float *y,
                        int64_t *counts)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    float *z = fm_floats((size_t)N * (size_t)c->K * (size_t)c->H);
    struct experts e = {.pass = p, .inner = a, .z = z};
    fm_pool_for(c->E, forward_expert, &e);
    p->ops->combine(y, z, a->where, a->weights, N, c->K, c->H);
    for (int i = 0; counts && i < c->E; i++)
        counts[i] = a->first[i + 1] - a->first[i];
}

void fm_layer_forward(const struct fm_pass *p, float *y, const float *x, int64_t *counts)
{
    size_t count = (size_t)(p->S * p->T) * (size_t)p->config->H;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_inner a = inner_of(p);
    if (y != x)
        memcpy(y, x, count * sizeof *y);
    fm_attend(p, &a, y);
    enter(p, &a, y);
    if (p->kept)
        memcpy(a.x1, y, count * sizeof *y);
    if (a.ids)
        add_experts(p, &a, y, counts);
    fm_mlp(p, &a, y);
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
    const struct fm_inner *a = x->inner;
    struct fm_expert_view v = {0};
    if (!look(&v, x, a->order[i]))
        return;
    int H = x->pass->config->H, k = v.width, first = a->first[v.expert];
    bool seen = x->visitor && x->visitor->expert;
    int full = seen ? v.cap : k; /* width of h and dh */
    size_t n = (size_t)v.n;
    struct fm_mark mark = fm_scratch_mark();
    float *rows = fm_floats(n * (size_t)H), *dy = fm_floats(n * (size_t)H);
    float *gu = take_gu(x, &v, full), *h = fm_floats(n * (size_t)full);
    float *dh = fm_floats(n * (size_t)full), *dgu = fm_floats(n * 2 * (size_t)k);
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

/* dxm (N, H), the gradient at a->xm: of the router and of the experts' input rows dz. */
static void back_router(const struct fm_pass *p, const struct fm_inner *a, float *dxm,
                        const float *dz, const float *dweights)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, K = c->K, H = c->H;
    struct fm_mark mark = fm_scratch_mark();
    float *dlogits = fm_floats((size_t)N * (size_t)c->E);
    switch (c->router) {
    case FM_ROUTER_SOFTMAX:
        p->ops->route_back(dlogits, dweights, a->ids, a->weights, N, c->E, K);
        break;
    case FM_ROUTER_SOFTMAX_RAW:
        p->ops->route_raw_back(dlogits, dweights, a->ids, a->p, N, c->E, K);
        break;
    case FM_ROUTER_SPARSEMIXER:
        p->ops->sparsemixer_back(dlogits, dweights, a->ids, a->weights, a->p, N, c->E,
                                 c->router_eps);
        break;
    }
    p->ops->gemm(false, false, N, H, c->E, 1, dlogits, c->E, p->layer->router, H, 0, dxm, H);
    p->ops->combine(dxm, dz, a->where, NULL, N, K, H);
    fm_scratch_release(mark);
}

/* dxm (N, H) receives the gradient at a->xm that comes through the experts, if it is wanted; dy is
 * the one at y. */
static void back_experts(const struct fm_pass *p, const struct fm_inner *a, float *dxm,
                         const float *dy, bool wanted, const struct fm_visitor *visitor,
                         const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    size_t R = (size_t)(p->S * p->T) * (size_t)c->K;
    struct fm_mark mark = fm_scratch_mark();
    float *dz = fm_floats(R * (size_t)c->H), *by_row = fm_floats(R), *dweights = fm_floats(R);
    struct experts e = {.pass = p,
                        .inner = a,
                        .z = dz,
                        .dy = dy,
                        .dweights = by_row,
                        .visitor = visitor,
                        .where = where,
                        .wanted = wanted};
    fm_pool_for(c->E, backward_expert, &e);
    for (size_t i = 0; wanted && i < R; i++)
        dweights[i] = by_row[a->where[i]];
    if (wanted)
        back_router(p, a, dxm, dz, dweights);
    fm_scratch_release(mark);
}

void fm_layer_backward(const struct fm_pass *p, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    int N = p->S * p->T, H = p->config->H;
    size_t count = (size_t)N * (size_t)H;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_inner a = inner_of(p);
    float *dxm = fm_floats(count);
    if (!p->kept) {
        memcpy(a.x1, x, count * sizeof *x);
        fm_attend(p, &a, a.x1);
        enter(p, &a, a.x1);
    }
    if (a.ids)
        back_experts(p, &a, dxm, dx, wanted, visitor, where);
    else
        memset(dxm, 0, count * sizeof *dxm);
    if (wanted) {
        const struct fm_layer *w = p->layer;
        fm_mlp_back(p, &a, dxm, dx);
        p->ops->norm_back(dx, dxm, a.x1, w->post_norm, w->post_norm_bias, a.rstd_m, N, H);
        fm_attend_back(p, &a, dx, x);
    }
    fm_scratch_release(mark);
}
