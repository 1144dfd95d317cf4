/*
 * One layer of the model in order: attention, second norm, routing, experts and the MLP parallel to
 * them; then the backward.  The backward computes the forward's inner values again with the same
 * functions from the same input, or uses those that were kept; the bytes are the same.  Experts are
 * tasks of the pool, largest first, each on the rows that were routed to it.
 *
 * N tokens, K experts chosen for each, R = N K rows, expert e with n rows of width k:
 *
 *     x (N,H) -norm- xn -attention- (+x) -> x1 (N,H) -norm- xm (N,H) -router- ids, weights (N,K)
 *                                                              |
 *                        rows [first(e), first(e + 1)) of R:   gather        (n,H)
 *                                                              gate_up  gu   (n, r k)
 *                                                              act      h    (n,k)
 *                                                              down     z    (n,H)
 *     y (N,H) = x1 + combine(weights, z) + mlp(xm)
 *
 * A family may normalise the output of attention, and the sum of experts and MLP, before the
 * residual addition; then they are separate arrays, o_a and o_m.  With config->apart, router,
 * experts and MLP have inputs of their own, which are norms of x1: xr, xe and xm; the outputs of
 * experts and MLP, o_e and o_s, are normalised before their sum, and the layer's output may be
 * multiplied by a factor:
 *
 *     y (N,H) = (x1 + norm(norm(combine(weights, z)) + norm(mlp(xm)))) * scalar
 *
 * The backward starts with dy in dx (N,H) and goes from the end to the beginning:
 *
 *     output_back    dy becomes the gradient at the sum, through its norm or scale if it has one
 *     back_experts   dy rows times their weight w: dy' (n,H); dh = dy' down^T (n,full);
 *                    dgu (n, r k); rows of dz (n,H); dweights (R) = <dy', z> / w
 *                    router and combine: dxm (N,H) from dweights and dz
 *     fm_mlp_backward    dxm += from the MLP
 *     norm backward      dx  += through the second norm: now the gradient at x1
 *     attend_back        dx  += through attention and the first norm: now the gradient at x
 *
 * Invariants:
 *   1. first (E P + 1) increases from 0 to R: each row belongs to one expert and one micro-batch.
 *   2. The task of expert e writes rows [first(e), first(e + 1)) of z, gu and dweights and nothing
 *      else that is shared, so tasks need no lock and their order does not matter.
 *   3. k = width <= cap, the channels in memory; the products of the backward have `full` columns,
 *      k or cap.  Channels from k on have a dh (masks learn from it) but no dgu.
 *   4. The spans of an expert cover its micro-batches [0, P) in order, each once.
 *   5. With a cache, inner values are those that the forward stored there; without, the backward
 *      computes them with the same functions from the same x and gets the same bits.
 */
#include "lib/engine/layer.h"

#include <assert.h>
#include <math.h>

#include "lib/base/pool.h"
#include "lib/base/trace.h"
#include "lib/block/experts.h"
#include "lib/block/mlp.h"
#include "lib/block/norm.h"

/* Inner values of a layer for N tokens, in scratch or in the pass's cache.  Pointers that the layer
 * does not need are NULL. */
struct inner {
    float *x1; /* (N, H); in a forward, set only if it is kept */
    float *gu; /* (R, r I): products of gate_up, rows of an expert with stride r times its width;
                  NULL: not kept */
    float *mlp_gu;         /* (N, 2 D): the same for the MLP that all tokens go through */
    float *o_a, *rstd_o_a; /* (N, H), (N): output of attention, if that is normalised */
    float *o_m, *rstd_o_m; /* the same for experts and MLP */
    float *xn, *rstd;      /* (N, H), (N): first norm */
    float *attention;      /* inner values of the attention block */
    float *xm, *rstd_m;    /* (N, H), (N): second norm */
    float *xe, *xr;        /* (N, H): inputs of the experts and the router; xm if not apart */
    float *o_e, *rstd_o_e; /* (N, H), (N): outputs of the experts, and of the MLP, if these are */
    float *o_s, *rstd_o_s; /* normalised before they are added */
    int32_t *ids;          /* (N, K) chosen experts; NULL: a dense layer */
    float *weights;        /* (N, K) */
    float *p;              /* (N, E): values of all experts for the router's backward */
    /* Rows sorted by expert, tokens ascending for each expert; R = N K of them. */
    int32_t *rows;  /* (R): token of a row */
    float *scale;   /* (R): its router weight */
    int32_t *where; /* (N, K): row of a choice */
    int32_t *first; /* (E P + 1): expert e has rows [first[e P], first[(e + 1) P]), P
                       micro-batches one after another */
};

/* Allocate the arrays that only a layer with experts has. */
static void take_choices(struct inner *a, const struct fm_config *c, size_t n, bool gu,
                         struct fm_arena *arena)
{
    size_t e = (size_t)c->E, r = n * (size_t)c->K;
    a->gu = fm_arena_alloc_if(gu, arena, r * (size_t)c->expert->rows * (size_t)c->I);
    a->ids = fm_arena_alloc(arena, r);
    a->weights = fm_arena_alloc(arena, r);
    a->p = fm_arena_alloc_if(c->router->saves, arena, n * e);
    a->rows = fm_arena_alloc(arena, r);
    a->scale = fm_arena_alloc(arena, r);
    a->where = fm_arena_alloc(arena, r);
}

/* Whether experts and MLP of layer l have norms of their own. */
static bool is_apart(const struct fm_config *c, int l)
{
    return c->apart && fm_config_moe(c, l) >= 0;
}

/* Allocate inner values of layer l for N tokens; gu: including products of gate_up, which only
 * cached values have. */
static struct inner take_inner(const struct fm_config *c, int l, int N, bool gu,
                               struct fm_arena *arena)
{
    size_t n = (size_t)N, h = (size_t)c->H, mlp = (size_t)fm_config_mlp(c, l);
    struct inner a = {
        .x1 = fm_arena_alloc(arena, n * h),
        .mlp_gu = fm_arena_alloc_if(gu && mlp > 0, arena, n * 2 * mlp),
        .xn = fm_arena_alloc(arena, n * h),
        .rstd = fm_arena_alloc(arena, n),
        .xm = fm_arena_alloc(arena, n * h),
        .rstd_m = fm_arena_alloc(arena, n),
    };
    unsigned norms = fm_config_output_norms(c, l);
    a.o_a = fm_arena_alloc_if(norms & FM_NORMS_ATTENTION, arena, n * h);
    a.rstd_o_a = fm_arena_alloc_if(norms & FM_NORMS_ATTENTION, arena, n);
    a.o_m = fm_arena_alloc_if(norms & FM_NORMS_MLP, arena, n * h);
    a.rstd_o_m = fm_arena_alloc_if(norms & FM_NORMS_MLP, arena, n);
    bool is_own = is_apart(c, l);
    a.xe = is_own ? fm_arena_alloc(arena, n * h) : a.xm;
    a.xr = is_own ? fm_arena_alloc(arena, n * h) : a.xm;
    a.o_e = fm_arena_alloc_if(is_own, arena, n * h);
    a.rstd_o_e = fm_arena_alloc_if(is_own, arena, n);
    a.o_s = fm_arena_alloc_if(is_own, arena, n * h);
    a.rstd_o_s = fm_arena_alloc_if(is_own, arena, n);
    a.attention = fm_arena_alloc(arena, fm_attention_floats(c, l, N));
    if (fm_config_moe(c, l) >= 0)
        take_choices(&a, c, n, gu, arena);
    return a;
}

size_t fm_layer_cache_bytes(const struct fm_config *c, int N, bool gu)
{
    size_t most = 0;
    for (int l = 0; l < c->L; l++) {
        struct fm_arena arena = {.counting = true};
        take_inner(c, l, N, gu, &arena);
        most = arena.bytes > most ? arena.bytes : most;
    }
    return most;
}

/* The pass's inner values: in its cache, or in scratch. */
static struct inner inner_of(const struct fm_pass *p)
{
    struct fm_arena arena = {.at = p->cached};
    struct inner a = take_inner(p->config, p->l, p->S * p->T, p->cached && p->cached_gu, &arena);
    size_t E = (size_t)p->config->E;
    if (a.ids)
        a.first =
            p->cached ? p->cached_first : fm_scratch((E * (size_t)p->parts + 1) * sizeof *a.first);
    return a;
}

/* Micro-batches [part, end) of those in the pass. */
struct span {
    int part, end;
};

#define SPAN_ROWS 512

/* The first row of expert e that belongs to micro-batch `part`. */
static int part_row(const struct fm_pass *p, const struct inner *a, int e, int part)
{
    return a->first[e * p->parts + part];
}

/* The first row of expert e. */
static int first_row(const struct fm_pass *p, const struct inner *a, int e)
{
    return part_row(p, a, e, 0);
}

/* The number of rows of expert e. */
static int count_rows(const struct fm_pass *p, const struct inner *a, int e)
{
    return first_row(p, a, e + 1) - first_row(p, a, e);
}

/* Experts (E) with the most rows first, so that the threads of the pool finish at about the same
 * time; in scratch.  Insertion sort: ties stay in the order of experts. */
static const int32_t *order_experts(const struct fm_pass *p, const struct inner *a)
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

/* Fill rows, scale, where and first from ids and weights. */
static void sort_rows(const struct fm_pass *p, struct inner *a)
{
    const struct fm_config *c = p->config;
    p->ops->sort_rows(a->first, a->rows, a->scale, a->where, a->ids, a->weights, p->S * p->T, c->E,
                      c->K, p->parts);
    assert(a->first[0] == 0 && a->first[c->E * p->parts] == p->S * p->T * c->K); /* invariant 1 */
    for (int i = 0; FM_DEBUGGING && i < c->E * p->parts; i++)
        assert(a->first[i] <= a->first[i + 1]);
}

/* The weights (H) of the norm of the router's own input: router.norm / sqrt(H), in scratch. */
static const float *router_norm(const struct fm_pass *p)
{
    int H = p->config->H;
    float *w = fm_scratch_floats((size_t)H);
    p->ops->copy(w, p->layer->router.norm, (size_t)H * sizeof *w);
    p->ops->scale(w, (float)(1 / sqrt(H)), H);
    return w;
}

/* Second norm of x1 (N, H), and the routing of a layer with experts.  The norms of x1 differ only
 * in their weights. */
static void enter(const struct fm_pass *p, struct inner *a, const float *x1)
{
    const struct fm_config *c = p->config;
    const struct fm_layer *w = p->layer;
    int N = fm_pass_rows(p);
    fm_norm_forward(p->ops, c, a->xm, a->rstd_m, x1, w->post_norm, w->post_norm_bias, N, c->H);
    if (!a->ids)
        return;
    if (is_apart(c, p->l)) {
        struct fm_mark mark = fm_scratch_mark();
        fm_norm_forward(p->ops, c, a->xe, a->rstd_m, x1, w->experts_norm, NULL, N, c->H);
        fm_norm_forward(p->ops, c, a->xr, a->rstd_m, x1, router_norm(p), NULL, N, c->H);
        fm_scratch_release(mark);
    }
    c->router->forward(p, a->ids, a->weights, a->p, a->xr);
    sort_rows(p, a);
}

/* Memory (N, H), zeroed, for an output that is normalised or scaled before it is added: `kept`, or
 * scratch; NULL if it is added directly. */
static float *output_memory(const struct fm_pass *p, float *kept)
{
    size_t count = (size_t)fm_pass_rows(p) * (size_t)p->config->H;
    float *o = kept || p->config->residual_scale == 1 ? kept : fm_scratch_floats(count);
    if (o)
        p->ops->zero(o, count * sizeof *o);
    return o;
}

/* y (N, H) += the norm of o (N, H) with weights w or, if rstd is NULL, o times the residual scale,
 * by which o is multiplied in place. */
static void add_output(const struct fm_pass *p, float *y, float *o, float *rstd, const float *w)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p);
    struct fm_mark mark = fm_scratch_mark();
    float *result = rstd ? fm_scratch_floats((size_t)N * (size_t)c->H) : o;
    if (rstd)
        fm_norm_forward(p->ops, c, result, rstd, o, w, NULL, N, c->H);
    else
        p->ops->scale(o, c->residual_scale, (int64_t)N * c->H);
    p->ops->add(y, result, (int64_t)N * c->H);
    fm_scratch_release(mark);
}

/* Compute the gradient at an output, in scratch, from dy, the gradient at what was added to the
 * residual stream; return dy itself if the output was added unchanged.  o is the output if it was
 * normalised, else NULL. */
static const float *output_back(const struct fm_pass *p, const float *dy, const float *o,
                                const float *rstd, const float *w)
{
    const struct fm_config *c = p->config;
    int N = fm_pass_rows(p);
    size_t count = (size_t)N * (size_t)c->H;
    if (!o && c->residual_scale == 1)
        return dy;
    float *d_o = fm_scratch_floats(count);
    if (o) {
        p->ops->zero(d_o, count * sizeof *d_o);
        fm_norm_backward(p->ops, c, d_o, dy, o, w, NULL, rstd, N, c->H);
    } else {
        p->ops->copy(d_o, dy, count * sizeof *d_o);
        p->ops->scale(d_o, c->residual_scale, (int64_t)count);
    }
    return d_o;
}

/* x1 (N, H), which initially holds x, += attention of its norm. */
static void attend(const struct fm_pass *p, struct inner *a, float *x1)
{
    const struct fm_config *c = p->config;
    const struct fm_layer *w = p->layer;
    fm_norm_forward(p->ops, c, a->xn, a->rstd, x1, w->input_norm, w->input_norm_bias,
                    fm_pass_rows(p), c->H);
    struct fm_mark mark = fm_scratch_mark();
    float *o = output_memory(p, a->o_a);
    fm_attention_of(c, p->l)->forward(p, a->attention, o ? o : x1, a->xn);
    if (o)
        add_output(p, x1, o, a->rstd_o_a, w->attention_norm);
    fm_scratch_release(mark);
}

/* dx (N, H) holds the gradient at x1 and receives the one at x. */
static void attend_back(const struct fm_pass *p, const struct inner *a, float *dx, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_layer *w = p->layer;
    int N = fm_pass_rows(p);
    struct fm_mark mark = fm_scratch_mark();
    float *dxn = fm_scratch_floats((size_t)N * (size_t)c->H);
    const float *d_o = output_back(p, dx, a->o_a, a->rstd_o_a, w->attention_norm);
    fm_attention_of(c, p->l)->backward(p, a->attention, dxn, d_o);
    fm_norm_backward(p->ops, c, dx, dxn, x, w->input_norm, w->input_norm_bias, a->rstd, N, c->H);
    fm_scratch_release(mark);
}

/* What the tasks of one layer's experts share. */
struct experts {
    const struct fm_pass *pass;
    const struct inner *inner;
    const int32_t *order; /* (E): order in which experts are processed */
    float *z;             /* (R, H): output rows forward, input gradient rows backward */
    const float *dy;
    float *dweights; /* (R): gradient at the router weight of a row */
    const struct fm_visitor *visitor;
    const struct fm_expert_view *where;
    bool wanted; /* the gradient at x is wanted */
};

/* Fill in rows, widths and weights of expert `e`; false if it has no rows. */
static bool rows_of(struct fm_expert_rows *r, const struct experts *x, int e)
{
    const struct fm_pass *p = x->pass;
    size_t H = (size_t)p->config->H, row0 = (size_t)p->layer->row0[e];
    r->e = e;
    r->n = count_rows(p, x->inner, e);
    r->cap = p->layer->cap[e];
    r->width = p->widths ? (int)p->widths[e] : r->cap;
    assert(r->width <= r->cap); /* invariant 3 */
    r->gate_up = fm_element(p->layer->gate_up, (size_t)p->config->expert->rows * row0 * H);
    r->down = fm_element(p->layer->down, row0 * H);
    r->gate_up_bias = r->down_bias = NULL;
    if (p->config->expert->bias) {
        r->gate_up_bias = p->layer->gate_up_bias + (size_t)p->config->expert->rows * row0;
        r->down_bias = p->layer->down_bias + (size_t)e * H;
    }
    r->h = (struct fm_out){0};
    return r->n > 0;
}

/* Products of gate_up (n, r width) of an expert's rows, which start at row `first` of all rows: the
 * cached products, or memory for them in scratch. */
static float *take_gu(const struct experts *x, const struct fm_expert_rows *r, int first, int width)
{
    const struct fm_config *c = x->pass->config;
    size_t rows = (size_t)c->expert->rows;
    assert(width <= c->I); /* the stride of cached products is at least their width */
    if (x->inner->gu)
        return x->inner->gu + (size_t)first * rows * (size_t)c->I;
    return fm_scratch_floats((size_t)r->n * rows * (size_t)width);
}

/* A view of micro-batch `part` of an expert's rows.  `all` has the rows of the micro-batches from
 * `from` on; the rows of the view start at row *n of `all`. */
static struct fm_expert_view view_part(const struct experts *x, const struct fm_expert_view *all,
                                       int from, int part, size_t *n)
{
    const int32_t *first = x->inner->first + (size_t)all->expert * (size_t)x->pass->parts;
    struct fm_expert_view v = *all;
    assert(from <= part && part < x->pass->parts && first[part + 1] - first[from] <= all->n);
    *n = (size_t)(first[part] - first[from]);
    v.layer = x->where[part].layer;
    v.lane = x->where[part].lane;
    v.batch = x->where[part].batch;
    v.slot = x->where[part].slot;
    v.n = first[part + 1] - first[part];
    v.rows += *n;
    v.x = fm_element(v.x, *n * (size_t)x->pass->config->H);
    return v;
}

/* Call the visitor for each micro-batch that has rows of this expert. */
static void show_forward(const struct experts *x, const struct fm_expert_rows *r, struct fm_in rows)
{
    size_t H = (size_t)x->pass->config->H, first = (size_t)first_row(x->pass, x->inner, r->e), n;
    const struct fm_expert_view all = {.expert = r->e,
                                       .rows = x->inner->rows + first,
                                       .n = r->n,
                                       .width = r->width,
                                       .cap = r->cap,
                                       .full = r->width,
                                       .gate_up = r->gate_up,
                                       .down = r->down,
                                       .x = rows};
    for (int i = 0; i < x->pass->parts; i++) {
        struct fm_expert_view v = view_part(x, &all, 0, i, &n);
        v.h = fm_element(fm_written(r->h), n * (size_t)r->width);
        v.y = x->z + (first + n) * H;
        v.weight = x->inner->scale + first + n;
        if (v.n > 0)
            x->visitor->expert(x->visitor->self, &v);
    }
}

static void forward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    const struct fm_pass *p = x->pass;
    struct fm_expert_rows r;
    if (fm_pool_ending() || !rows_of(&r, x, x->order[i]))
        return;
    size_t H = (size_t)p->config->H, first = (size_t)first_row(p, x->inner, r.e);
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out rows = fm_pass_operand(p, (size_t)r.n * H);
    float *gu = take_gu(x, &r, (int)first, r.width);
    if (x->visitor)
        r.h = fm_pass_operand(p, (size_t)r.n * (size_t)r.width);
    if (r.width > 0)
        p->ops->gather(rows, fm_f32(x->inner->xe), x->inner->rows + first, NULL, r.n, p->config->H);
    fm_expert_forward(p, &r, x->z + first * H, gu, fm_written(rows));
    if (x->visitor)
        show_forward(x, &r, fm_written(rows));
    fm_scratch_release(mark);
}

/* y (N, H) += weighted outputs of the chosen experts. */
static void add_experts(const struct fm_pass *p, const struct inner *a, float *y, int64_t *counts,
                        const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T;
    float *z = fm_scratch_floats((size_t)N * (size_t)c->K * (size_t)c->H);
    struct experts e = {.pass = p,
                        .inner = a,
                        .order = order_experts(p, a),
                        .z = z,
                        .visitor = visitor,
                        .where = where};
    fm_pool_for(c->E, forward_expert, &e);
    p->ops->combine(y, z, a->where, a->weights, N, c->K, c->H);
    for (int i = 0; counts && i < c->E; i++)
        counts[i] = count_rows(p, a, i);
}

/* o (N, H) += experts applied to a->xe, and MLP applied to a->xm, through their norms if apart. */
static void feed(const struct fm_pass *p, const struct inner *a, float *o, int64_t *counts,
                 const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    const struct fm_layer *w = p->layer;
    if (a->ids)
        add_experts(p, a, a->o_e ? output_memory(p, a->o_e) : o, counts, visitor, where);
    fm_mlp_forward(p, a->mlp_gu, a->o_s ? output_memory(p, a->o_s) : o, a->xm);
    if (a->o_e) {
        add_output(p, o, a->o_e, a->rstd_o_e, w->experts_output_norm);
        add_output(p, o, a->o_s, a->rstd_o_s, w->shared_output_norm);
    }
}

/* Multiply the layer's output, or the gradient at it, by the layer's factor. */
static void scale_layer(const struct fm_pass *p, float *y)
{
    if (p->layer->scalar)
        p->ops->scale(y, *p->layer->scalar, (int64_t)fm_pass_rows(p) * p->config->H);
}

void fm_layer_forward(const struct fm_pass *p, float *y, const float *x, int64_t *counts,
                      const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    size_t count = (size_t)(p->S * p->T) * (size_t)p->config->H;
    assert(!visitor || where);
    assert(p->parts > 0 && p->S % p->parts == 0); /* micro-batches of one shape */
    struct fm_mark mark = fm_scratch_mark();
    struct inner a = inner_of(p);
    if (y != x)
        p->ops->copy(y, x, count * sizeof *y);
    attend(p, &a, y);
    enter(p, &a, y);
    if (p->cached)
        p->ops->copy(a.x1, y, count * sizeof *y);
    float *o = output_memory(p, a.o_m);
    feed(p, &a, o ? o : y, counts, visitor, where);
    if (o)
        add_output(p, y, o, a.rstd_o_m, p->layer->mlp_norm);
    scale_layer(p, y);
    fm_scratch_release(mark);
}

/* Call the visitor for each micro-batch of the span that has rows of this expert; `all` has the
 * rows of the whole span. */
static void show(const struct experts *x, const struct fm_expert_view *all, struct span s)
{
    const struct fm_pass *p = x->pass;
    size_t r = (size_t)p->config->expert->rows, n;
    size_t H = (size_t)p->config->H, f = (size_t)all->full, k = (size_t)all->width;
    if (x->visitor->spans) {
        struct fm_expert_view v = view_part(x, all, s.part, s.part, &n);
        v.n = all->n;
        v.parts = s.end - s.part;
        v.first = x->inner->first + (size_t)all->expert * (size_t)p->parts + s.part;
        x->visitor->expert(x->visitor->self, &v);
        return;
    }
    for (int i = s.part; i < s.end; i++) {
        struct fm_expert_view v = view_part(x, all, s.part, i, &n);
        v.h = fm_element(v.h, n * f);
        v.dy = fm_element(v.dy, n * H);
        v.dh += n * f;
        v.dgu = fm_element(v.dgu, n * r * k);
        if (v.n > 0)
            x->visitor->expert(x->visitor->self, &v);
    }
}

/*
 * With w the router weight of a row and dy' = w dy: dh = dy' down^T is the gradient at the masked
 * h.  It has `full` channels, because masks learn from it; everything after it uses only channels
 * below the width.  The router's gradient is <dy, expert(x)> = <dy', expert(x)> / w.
 */
static void backward_rows(const struct experts *x, struct fm_expert_rows r, struct span s)
{
    const struct fm_pass *p = x->pass;
    const struct fm_config *c = p->config;
    const struct inner *a = x->inner;
    bool seen = x->visitor && x->visitor->expert;
    bool narrow = !seen || x->visitor->narrow;
    int full = narrow ? r.width : r.cap, first = part_row(p, a, r.e, s.part);
    r.n = part_row(p, a, r.e, s.end) - first;
    assert(first >= first_row(p, a, r.e) &&
           first + r.n <= first_row(p, a, r.e + 1)); /* invariant 2 */
    size_t n = (size_t)r.n, H = (size_t)c->H, f = (size_t)full, k = (size_t)r.width;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out rows = fm_pass_operand(p, n * H), dy = fm_pass_operand(p, n * H);
    struct fm_expert_back b = {.x = fm_written(rows),
                               .dy = fm_written(dy),
                               .full = full,
                               .gu = take_gu(x, &r, first, full),
                               .known = a->gu != NULL,
                               .h = fm_pass_operand(p, n * f),
                               .dh = fm_scratch_floats(n * f),
                               .dgu = fm_pass_operand(p, n * (size_t)c->expert->rows * k),
                               .dx = x->wanted ? x->z + (size_t)first * H : NULL,
                               .dot = x->dweights + first};
    p->ops->gather(rows, fm_f32(a->xe), a->rows + first, NULL, r.n, c->H);
    p->ops->gather(dy, fm_f32(x->dy), a->rows + first, a->scale + first, r.n, c->H);
    fm_expert_backward(p, &r, &b);
    /* A weight that underflowed to 0 has gradient 0: its softmax is flat. */
    if (x->wanted)
        p->ops->divide(b.dot, a->scale + first, r.n);
    if (seen)
        show(x,
             &(struct fm_expert_view){.expert = r.e,
                                      .n = r.n,
                                      .rows = a->rows + first,
                                      .width = r.width,
                                      .cap = r.cap,
                                      .full = full,
                                      .gate_up = r.gate_up,
                                      .down = r.down,
                                      .gate_up_bias = r.gate_up_bias,
                                      .x = b.x,
                                      .h = fm_written(b.h),
                                      .dy = b.dy,
                                      .dh = b.dh,
                                      .dgu = fm_written(b.dgu)},
             s);
    fm_scratch_release(mark);
}

/*
 * In float32 a span has all rows of an expert.  With bfloat16 operands the weights take half the
 * memory, and gate and up of all rows, which are always float32, would take more than the weights.
 * So a span has one micro-batch, or several with at most SPAN_ROWS rows together, which is enough
 * for fast products.
 */
static struct span next_span(const struct experts *x, int e, int part)
{
    const struct fm_pass *p = x->pass;
    struct span s = {part, p->parts};
    if (p->ops->operand == FM_F32)
        return s;
    assert(part >= 0 && part < p->parts);
    int first = part_row(p, x->inner, e, part);
    for (s.end = part + 1; s.end < p->parts; s.end++)
        if (part_row(p, x->inner, e, s.end + 1) - first > SPAN_ROWS)
            break;
    return s;
}

static void backward_expert(void *arg, int i)
{
    const struct experts *x = arg;
    struct fm_expert_rows r;
    if (fm_pool_ending() || !rows_of(&r, x, x->order[i]))
        return;
    for (struct span s = {0}; s.end < x->pass->parts;) {
        int before = s.end;
        s = next_span(x, r.e, before);
        assert(s.part == before && s.end > before && s.end <= x->pass->parts); /* invariant 4 */
        if (part_row(x->pass, x->inner, r.e, s.end) > part_row(x->pass, x->inner, r.e, s.part))
            backward_rows(x, r, s);
    }
}

/* Call the visitor for the router of each micro-batch. */
static void show_router(const struct fm_pass *p, const struct inner *a, const float *dlogits,
                        const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    size_t n = (size_t)(fm_pass_rows(p) / p->parts); /* rows of a micro-batch */
    for (size_t i = 0; i < (size_t)p->parts; i++)
        visitor->router(visitor->self, &(struct fm_router_view){
                                           .slot = where[i].slot,
                                           .n = (int)n,
                                           .x = a->xr + i * n * (size_t)p->config->H,
                                           .dlogits = dlogits + i * n * (size_t)p->config->E});
}

/* dxr and dxe (N, H), which may be one array, receive the gradients at a->xr and a->xe, if they are
 * wanted; dy is the gradient at the output of the experts. */
static void back_experts(const struct fm_pass *p, const struct inner *a, float *dxr, float *dxe,
                         const float *dy, bool wanted, const struct fm_visitor *visitor,
                         const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    size_t R = (size_t)(p->S * p->T) * (size_t)c->K;
    struct fm_mark mark = fm_scratch_mark();
    float *dz = fm_scratch_floats(R * (size_t)c->H), *by_row = fm_scratch_floats(R),
          *dweights = fm_scratch_floats(R),
          *dlogits = fm_scratch_floats((size_t)fm_pass_rows(p) * (size_t)c->E);
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
        c->router->backward(p, dxr, dlogits, dweights, a->ids, a->weights, a->p);
        if (visitor && visitor->router)
            show_router(p, a, dlogits, visitor, where);
        if (dxe != dxr)
            p->ops->zero(dxe, (size_t)fm_pass_rows(p) * (size_t)c->H * sizeof *dxe);
        p->ops->combine(dxe, dz, a->where, NULL, p->S * p->T, c->K, c->H);
    }
    fm_scratch_release(mark);
}

/* Compute o_m and rstd_o_m again for the gradient of the output norm, by another forward of experts
 * and MLP. */
static void remake_norm(const struct fm_pass *p, const struct inner *a)
{
    size_t count = (size_t)fm_pass_rows(p) * (size_t)p->config->H;
    struct fm_mark mark = fm_scratch_mark();
    float *unused = fm_scratch_floats(count);
    feed(p, a, output_memory(p, a->o_m), NULL, NULL, NULL);
    p->ops->zero(unused, count * sizeof *unused);
    add_output(p, unused, a->o_m, a->rstd_o_m, p->layer->mlp_norm);
    fm_scratch_release(mark);
}

void fm_layer_backward(const struct fm_pass *p, float *dx, bool wanted, const float *x,
                       const struct fm_visitor *visitor, const struct fm_expert_view *where)
{
    const struct fm_config *c = p->config;
    int N = p->S * p->T, H = c->H;
    size_t count = (size_t)N * (size_t)H;
    assert(!visitor || (where && (wanted || !visitor->router)));
    struct fm_mark mark = fm_scratch_mark();
    struct inner a = inner_of(p);
    float *dxm = fm_scratch_floats(count), *dxe = dxm, *dxr = dxm;
    if (a.o_e) {
        dxe = fm_scratch_floats(count);
        dxr = fm_scratch_floats(count);
    }
    if (!p->cached) {
        p->ops->copy(a.x1, x, count * sizeof *x);
        attend(p, &a, a.x1);
        enter(p, &a, a.x1);
        if (a.o_m)
            remake_norm(p, &a);
    }
    const struct fm_layer *w = p->layer;
    scale_layer(p, dx);
    const float *dy = output_back(p, dx, a.o_m, a.rstd_o_m, w->mlp_norm), *dy_mlp = dy;
    if (a.o_e) {
        dy_mlp = output_back(p, dy, a.o_s, a.rstd_o_s, w->shared_output_norm);
        dy = output_back(p, dy, a.o_e, a.rstd_o_e, w->experts_output_norm);
    }
    if (a.ids)
        back_experts(p, &a, dxr, dxe, dy, wanted, visitor, where);
    if (!a.ids || a.o_e)
        p->ops->zero(dxm, count * sizeof *dxm);
    if (wanted) {
        fm_mlp_backward(p, a.mlp_gu, dxm, dy_mlp, a.xm);
        if (a.o_e) {
            fm_norm_backward(p->ops, c, dx, dxe, a.x1, w->experts_norm, NULL, a.rstd_m, N, H);
            fm_norm_backward(p->ops, c, dx, dxr, a.x1, router_norm(p), NULL, a.rstd_m, N, H);
        }
        fm_norm_backward(p->ops, c, dx, dxm, a.x1, w->post_norm, w->post_norm_bias, a.rstd_m, N, H);
        attend_back(p, &a, dx, x);
    }
    fm_scratch_release(mark);
}
