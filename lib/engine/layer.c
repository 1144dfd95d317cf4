/*
 * One layer of the model in order: attention, second norm, routing, experts, the MLP beside them;
 * and the same way back.  What the forward computed inside, the backward computes again with the
 * same functions from the same input, or finds where it was kept: same bytes either way.  Experts
 * are tasks of the pool, the largest first, each on the rows that chose it.
 */
#include "lib/engine/layering.h"

#include <assert.h>

#include "lib/base/mem.h"

/* Where inner values go: behind each other from `at` on, or to scratch where that is NULL; `bytes`
 * counts them, and counting alone, without a device, takes none. */
struct room {
    const struct fm_device *device;
    char *at;
    size_t bytes;
};

/* Room for n elements of four bytes. */
static void *take(struct room *r, size_t n)
{
    size_t bytes = (n * sizeof(float) + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    char *p = !r->device ? NULL : r->at ? r->at + r->bytes : r->device->scratch(bytes);
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
    a->rows = take(room, r);
    a->scale = take(room, r);
    a->where = take(room, r);
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
        struct room room = {0};
        take_inner(c, l, N, gu, &room);
        most = room.bytes > most ? room.bytes : most;
    }
    return most;
}

/* The pass's inner values: where it keeps them, or in scratch, the host's in the host's. */
static struct fm_inner inner_of(const struct fm_pass *p)
{
    struct room room = {.device = p->ops->device, .at = p->kept};
    struct fm_inner a = take_inner(p->config, p->l, p->S * p->T, p->kept && p->kept_gu, &room);
    size_t E = (size_t)p->config->E;
    if (a.ids)
        a.first =
            p->kept ? p->kept_first : fm_scratch((E * (size_t)p->parts + 1) * sizeof *a.first);
    return a;
}

/* Rows of expert e: where they begin, how many there are. */
static int first_row(const struct fm_pass *p, const struct fm_inner *a, int e)
{
    return a->first[e * p->parts];
}

static int count_rows(const struct fm_pass *p, const struct fm_inner *a, int e)
{
    return first_row(p, a, e + 1) - first_row(p, a, e);
}

/* Experts with the most rows first (E), so that the pool ends evenly; in the host's scratch.
 * Insertion: ties stay in the order of experts. */
static const int32_t *order_experts(const struct fm_pass *p, const struct fm_inner *a)
{
    int32_t *order = fm_scratch((size_t)p->config->E * sizeof *order);
    for (int e = 0; e < p->config->E; e++) {
        int n = count_rows(p, a, e), i = e;
        for (; i > 0 && n > count_rows(p, a, order[i - 1]); i--)
            order[i] = order[i - 1];
        order[i] = e;
    }
    return order;
}

/* Fill rows, scale, where and the host's first from ids and weights. */
static void sort_rows(const struct fm_pass *p, struct fm_inner *a)
{
    const struct fm_config *c = p->config;
    size_t bytes = ((size_t)c->E * (size_t)p->parts + 1) * sizeof(int32_t);
    struct fm_mark mark = fm_pass_mark(p);
    int32_t *first = p->ops->device->scratch(bytes);
    p->ops->sort_rows(first, a->rows, a->scale, a->where, a->ids, a->weights, p->S * p->T, c->E,
                      c->K, p->parts);
    p->ops->device->copy_out(a->first, first, bytes);
    fm_pass_release(p, mark);
}

/* a->xm (N, H) -> experts of every token and their weights, rows by expert. */
static void choose(const struct fm_pass *p, struct fm_inner *a)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    struct fm_mark mark = fm_pass_mark(p);
    float *logits = a->p ? a->p : fm_floats(p, (size_t)N * (size_t)c->E);
    p->ops->gemm(false, true, N, c->E, c->H, 1, fm_f32(a->xm), c->H, fm_f32(p->layer->router), c->H,
                 0, logits, c->E);
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
    fm_pass_release(p, mark);
    sort_rows(p, a);
}

/* x1 (N, H) -> second norm, and the choices of a layer of experts. */
static void enter(const struct fm_pass *p, struct fm_inner *a, const float *x1)
{
    const struct fm_layer *w = p->layer;
    p->ops->norm(fm_to_f32(a->xm), a->rstd_m, x1, w->post_norm, w->post_norm_bias, p->S * p->T,
                 p->config->H, p->config->eps);
    if (a->ids)
        choose(p, a);
}

/* What the tasks of one layer's experts share. */
struct experts {
    const struct fm_pass *pass;
    const struct fm_inner *inner;
    const int32_t *order; /* (E): whose turn it is */
    float *z;             /* (R, H): output rows forward, input gradient rows backward */
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
    v->expert = e;
    v->n = count_rows(p, x->inner, e);
    v->rows = x->inner->rows + first_row(p, x->inner, e);
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
    size_t first = (size_t)first_row(x->pass, x->inner, v->expert);
    if (x->inner->gu)
        return x->inner->gu + first * 2 * (size_t)x->pass->config->I;
    return fm_floats(x->pass, (size_t)v->n * 2 * (size_t)width);
}

static void forward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    const struct fm_pass *p = x->pass;
    const struct fm_ops *op = p->ops;
    struct fm_expert_view v = {0};
    if (!look(&v, x, x->order[i]))
        return;
    int H = p->config->H, k = v.width;
    size_t n = (size_t)v.n;
    float *z = x->z + (size_t)first_row(p, x->inner, v.expert) * (size_t)H;
    if (k == 0) {
        op->zero(z, n * (size_t)H * sizeof *z);
        return;
    }
    struct fm_mark mark = fm_pass_mark(p);
    float *rows = fm_floats(p, n * (size_t)H), *gu = take_gu(x, &v, k);
    float *h = fm_floats(p, n * (size_t)k);
    op->gather(fm_to_f32(rows), fm_f32(x->inner->xm), v.rows, NULL, v.n, H);
    op->gemm(false, true, v.n, 2 * k, H, 1, fm_f32(rows), H, fm_f32(v.gate_up), H, 0, gu, 2 * k);
    op->swiglu(fm_to_f32(h), gu, v.n, k);
    op->gemm(false, false, v.n, H, k, 1, fm_f32(h), k, fm_f32(v.down), H, 0, z, H);
    fm_pass_release(p, mark);
}

/* y (N, H) += the chosen experts' outputs, weighted. */
static void add_experts(const struct fm_pass *p, const struct fm_inner *a, float *y,
                        int64_t *counts)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    float *z = fm_floats(p, (size_t)N * (size_t)c->K * (size_t)c->H);
    struct experts e = {.pass = p, .inner = a, .order = order_experts(p, a), .z = z};
    fm_pool_for(c->E, forward_expert, &e);
    p->ops->combine(y, z, a->where, a->weights, N, c->K, c->H);
    for (int i = 0; counts && i < c->E; i++)
        counts[i] = count_rows(p, a, i);
}

void fm_layer_forward(const struct fm_pass *p, float *y, const float *x, int64_t *counts)
{
    size_t count = (size_t)(p->S * p->T) * (size_t)p->config->H;
    struct fm_mark host = fm_scratch_mark(), mark = fm_pass_mark(p);
    struct fm_inner a = inner_of(p);
    if (y != x)
        p->ops->copy(y, x, count * sizeof *y);
    fm_attend(p, &a, y);
    enter(p, &a, y);
    if (p->kept)
        p->ops->copy(a.x1, y, count * sizeof *y);
    if (a.ids)
        add_experts(p, &a, y, counts);
    fm_mlp(p, &a, y);
    fm_pass_release(p, mark);
    fm_scratch_release(host);
}

/* Call the visitor for each micro-batch that has rows of this expert; `all` has the rows of all. */
static void show(const struct experts *x, const struct fm_expert_view *all, int full)
{
    const struct fm_pass *p = x->pass;
    const int32_t *part = x->inner->first + (size_t)all->expert * (size_t)p->parts;
    size_t H = (size_t)p->config->H, f = (size_t)full, k = (size_t)all->width;
    for (int i = 0; i < p->parts; i++) {
        struct fm_expert_view v = *all;
        size_t r = (size_t)(part[i] - part[0]);
        v.layer = x->where[i].layer;
        v.lane = x->where[i].lane;
        v.batch = x->where[i].batch;
        v.slot = x->where[i].slot;
        v.n = part[i + 1] - part[i];
        v.rows += r;
        v.x += r * H;
        v.h += r * f;
        v.dy += r * H;
        v.dh += r * f;
        v.dgu += r * 2 * k;
        if (v.n > 0)
            x->visitor->expert(x->visitor->self, &v);
    }
}

/* Gradients of an expert's input rows and of their router weights, from those of its middle. */
static void backward_rows(const struct experts *x, const struct fm_expert_view *v, int full)
{
    const struct fm_ops *op = x->pass->ops;
    int H = x->pass->config->H, k = v->width, first = first_row(x->pass, x->inner, v->expert);
    float *dz = x->z + (size_t)first * (size_t)H, *dweights = x->dweights + first;
    if (k == 0) {
        op->zero(dz, (size_t)v->n * (size_t)H * sizeof *dz);
        op->zero(dweights, (size_t)v->n * sizeof *dweights);
        return;
    }
    op->gemm(false, false, v->n, H, 2 * k, 1, fm_f32(v->dgu), 2 * k, fm_f32(v->gate_up), H, 0, dz,
             H);
    op->dot_rows(dweights, fm_f32(v->h), fm_f32(v->dh), v->n, full, k);
    /* A weight that underflowed to 0 has no gradient either: its softmax is flat. */
    op->divide(dweights, x->inner->scale + first, v->n);
}

/*
 * With w the router weight of a row and dy' = w dy:  dh = dy' down^T is the gradient at the
 * masked h, taken before any mask because masks learn from it; only channels below the width go
 * on.  The router's gradient <dy, expert(x)> is dot(h, dh) / w over those channels.
 */
static void backward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    const struct fm_pass *p = x->pass;
    const struct fm_ops *op = p->ops;
    const struct fm_inner *a = x->inner;
    struct fm_expert_view v = {0};
    if (!look(&v, x, x->order[i]))
        return;
    int H = p->config->H, k = v.width, first = first_row(p, a, v.expert);
    bool seen = x->visitor && x->visitor->expert;
    int full = seen ? v.cap : k; /* width of h and dh */
    size_t n = (size_t)v.n;
    struct fm_mark mark = fm_pass_mark(p);
    float *rows = fm_floats(p, n * (size_t)H), *dy = fm_floats(p, n * (size_t)H);
    float *gu = take_gu(x, &v, full), *h = fm_floats(p, n * (size_t)full);
    float *dh = fm_floats(p, n * (size_t)full), *dgu = fm_floats(p, n * 2 * (size_t)k);
    op->gather(fm_to_f32(rows), fm_f32(a->xm), v.rows, NULL, v.n, H);
    op->gather(fm_to_f32(dy), fm_f32(x->dy), v.rows, a->scale + first, v.n, H);
    if (full > 0) {
        if (!a->gu)
            op->gemm(false, true, v.n, 2 * full, H, 1, fm_f32(rows), H, fm_f32(v.gate_up), H, 0, gu,
                     2 * full);
        op->swiglu(fm_to_f32(h), gu, v.n, full);
        op->gemm(false, true, v.n, full, H, 1, fm_f32(dy), H, fm_f32(v.down), H, 0, dh, full);
    }
    if (k > 0)
        op->swiglu_back(fm_to_f32(dgu), dh, gu, v.n, full, k);
    v.x = rows;
    v.h = h;
    v.dy = dy;
    v.dh = dh;
    v.dgu = dgu;
    if (x->wanted)
        backward_rows(x, &v, full);
    if (seen)
        show(x, &v, full);
    fm_pass_release(p, mark);
}

/* dxm (N, H), the gradient at a->xm: of the router and of the experts' input rows dz. */
static void back_router(const struct fm_pass *p, const struct fm_inner *a, float *dxm,
                        const float *dz, const float *dweights)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, K = c->K, H = c->H;
    struct fm_mark mark = fm_pass_mark(p);
    float *dlogits = fm_floats(p, (size_t)N * (size_t)c->E);
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
    p->ops->gemm(false, false, N, H, c->E, 1, fm_f32(dlogits), c->E, fm_f32(p->layer->router), H, 0,
                 dxm, H);
    p->ops->combine(dxm, dz, a->where, NULL, N, K, H);
    fm_pass_release(p, mark);
}

/* dxm (N, H) receives the gradient at a->xm that comes through the experts, if it is wanted; dy is
 * the one at y. */
static void back_experts(const struct fm_pass *p, const struct fm_inner *a, float *dxm,
                         const float *dy, bool wanted, const struct fm_visitor *visitor,
                         const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    size_t R = (size_t)(p->S * p->T) * (size_t)c->K;
    struct fm_mark mark = fm_pass_mark(p);
    float *dz = fm_floats(p, R * (size_t)c->H), *by_row = fm_floats(p, R),
          *dweights = fm_floats(p, R);
    struct experts e = {.pass = p,
                        .inner = a,
                        .order = order_experts(p, a),
                        .z = dz,
                        .dy = dy,
                        .dweights = by_row,
                        .visitor = visitor,
                        .where = where,
                        .wanted = wanted};
    fm_pool_for(c->E, backward_expert, &e);
    if (wanted) {
        p->ops->gather(fm_to_f32(dweights), fm_f32(by_row), a->where, NULL, (int)R, 1);
        back_router(p, a, dxm, dz, dweights);
    }
    fm_pass_release(p, mark);
}

void fm_layer_backward(const struct fm_pass *p, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    int N = p->S * p->T, H = p->config->H;
    size_t count = (size_t)N * (size_t)H;
    struct fm_mark host = fm_scratch_mark(), mark = fm_pass_mark(p);
    struct fm_inner a = inner_of(p);
    float *dxm = fm_floats(p, count);
    if (!p->kept) {
        p->ops->copy(a.x1, x, count * sizeof *x);
        fm_attend(p, &a, a.x1);
        enter(p, &a, a.x1);
    }
    if (a.ids)
        back_experts(p, &a, dxm, dx, wanted, visitor, where);
    else
        p->ops->zero(dxm, count * sizeof *dxm);
    if (wanted) {
        const struct fm_layer *w = p->layer;
        fm_mlp_back(p, &a, dxm, dx);
        p->ops->norm_back(dx, dxm, a.x1, w->post_norm, w->post_norm_bias, a.rstd_m, N, H);
        fm_attend_back(p, &a, dx, x);
    }
    fm_pass_release(p, mark);
    fm_scratch_release(host);
}
