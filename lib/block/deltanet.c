/*
 * Gated DeltaNet, in models that also have gated attention layers: keys of config.json, tensors,
 * forward, backward and cost.
 *
 *     [q k v] = silu(conv(W_qkv x)), z = W_z x, beta = sigmoid(W_b x)
 *     g = -exp(A_log) softplus(W_a x + dt_bias)
 *     y = W_out (norm(delta_rule(q, k, v, g, beta)) * silu(z))
 *
 * A layer has either Gated DeltaNet or full attention; the latter is computed by gqa, with the gate
 * and the norms of the family's options.  Packed files store the rows head by head.  In memory they
 * are stored part by part, so that the product with each part gives a contiguous array.
 */
#include "lib/block/deltanet.h"

#include <assert.h>

#include "lib/base/mem.h"
#include "lib/block/pass.h"

#define FILTER_MAX 64

/* ---- config.json ---- */

/* Without a list, every interval-th layer has full attention. */
static int read_interval(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    int interval = 4;
    int rc = fm_keys_size_opt(&interval, json, "full_attention_interval", FM_LAYERS_MAX, err);
    for (int l = 0; l < c->L && !rc; l++)
        if ((l + 1) % interval != 0)
            fm_layers_add(&c->deltanet->linear, l);
    return rc;
}

static int read_types(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    return fm_json_value(json, "layer_types")
               ? fm_keys_layers(&c->deltanet->linear, c->L, json, "layer_types", "linear_attention",
                                "full_attention", err)
               : read_interval(c, json, err);
}

static int read_heads(struct fm_deltanet *m, const cJSON *json, struct fm_err *err)
{
    const struct {
        const char *key;
        int *value, usual, limit;
    } size[] = {{"linear_num_key_heads", &m->G, 16, FM_HEADS_MAX},
                {"linear_num_value_heads", &m->Q, 32, FM_HEADS_MAX},
                {"linear_key_head_dim", &m->C, 128, FM_HEAD_DIM_MAX},
                {"linear_value_head_dim", &m->D, 128, FM_HEAD_DIM_MAX},
                {"linear_conv_kernel_dim", &m->W, 4, FILTER_MAX}};
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        *size[i].value = size[i].usual;
        int rc = fm_keys_size_opt(size[i].value, json, size[i].key, size[i].limit, err);
        if (rc)
            return rc;
    }
    if (m->Q % m->G != 0)
        return fm_fail(err, FM_EFORMAT,
                       "linear_num_value_heads %d is not a multiple of linear_num_key_heads %d",
                       m->Q, m->G);
    return FM_OK;
}

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_deltanet_options *o = options;
    int width = 0; /* head_dim must be present, because transformers' default is not gqa's */
    c->deltanet = fm_alloc(1, sizeof *c->deltanet, "attention settings", err);
    if (!c->deltanet)
        return err->code;
    c->deltanet->packed = o->packed;
    if (fm_keys_size(&width, keys->json, "head_dim", FM_HEAD_DIM_MAX, err) ||
        fm_gqa.read(c, &o->full, keys, err) || read_types(c, keys->json, err))
        return err->code;
    return read_heads(c->deltanet, keys->json, err);
}

/* ---- tensors ---- */

static int conv_width(const struct fm_deltanet *m)
{
    return 2 * m->G * m->C + m->Q * m->D;
}

static int value_width(const struct fm_deltanet *m)
{
    return m->Q * m->D;
}

static uint64_t size_of(const struct fm_config *c, int l, char letter)
{
    const struct fm_deltanet *m = c->deltanet;
    switch (letter) {
    case 'p':
        return 2 * (uint64_t)c->Q * (uint64_t)c->C;
    case 'x':
        return (uint64_t)(conv_width(m) + value_width(m));
    case 'c':
        return (uint64_t)conv_width(m);
    case 'v':
        return (uint64_t)value_width(m);
    case 'y':
        return 2 * (uint64_t)m->Q;
    case 'h':
        return (uint64_t)m->Q;
    case 'd':
        return (uint64_t)m->D;
    case 'w':
        return (uint64_t)m->W;
    default:
        return fm_gqa.size(c, l, letter);
    }
}

static unsigned has(const struct fm_config *c, int l)
{
    unsigned layout = c->deltanet->packed ? FM_DELTANET_PACKED : FM_DELTANET_APART;
    return fm_deltanet_layer(c, l) ? FM_DELTANET_LINEAR | layout
                                   : FM_DELTANET_FULL | fm_gqa.has(c, l);
}

static void order_rows(int32_t *order, const struct fm_config *c, int l, const struct fm_weight *w)
{
    (void)l;
    const struct fm_deltanet *m = c->deltanet;
    int each = m->Q / m->G;
    switch (w->shape[0]) {
    case 'p':
        fm_gqa_take_apart(order, c->Q, (const int[]){c->C, c->C}, 2);
        return;
    case 'x':
        fm_gqa_take_apart(order, m->G, (const int[]){m->C, m->C, each * m->D, each * m->D}, 4);
        return;
    default:
        assert(w->shape[0] == 'y');
        fm_gqa_take_apart(order, m->G, (const int[]){each, each}, 2);
    }
}

/* ---- forward and backward ---- */

/* Inner values of N tokens of a DeltaNet layer. */
struct inner {
    float *m, *x;        /* (N, 2 G C + Q D): before and after the convolution */
    float *a, *g, *beta; /* (N, Q) */
    float *z, *o;        /* (N, Q D) */
    float *rstd;         /* (N Q) */
};

/* Allocate the arrays from an arena; a counting arena only adds up their sizes. */
static struct inner take(const struct fm_config *c, int N, struct fm_arena *arena)
{
    const struct fm_deltanet *m = c->deltanet;
    size_t n = (size_t)N, heads = n * (size_t)m->Q, wide = n * (size_t)conv_width(m);
    return (struct inner){
        .m = fm_arena_alloc(arena, wide),
        .x = fm_arena_alloc(arena, wide),
        .a = fm_arena_alloc(arena, heads),
        .g = fm_arena_alloc(arena, heads),
        .beta = fm_arena_alloc(arena, heads),
        .z = fm_arena_alloc(arena, heads * (size_t)m->D),
        .o = fm_arena_alloc(arena, heads * (size_t)m->D),
        .rstd = fm_arena_alloc(arena, heads),
    };
}

static void count_inner(const struct fm_config *c, int l, int N, struct fm_arena *count)
{
    (void)l;
    take(c, N, count);
}

/* The weights of z and a.  If files are packed, they follow those of qkv and b in memory. */
static const void *weights_z(const struct fm_pass *p)
{
    const struct fm_deltanet_weights *w = &p->layer->deltanet;
    const struct fm_deltanet *m = p->config->deltanet;
    size_t first = (size_t)conv_width(m) * (size_t)p->config->H;
    return m->packed ? fm_pass_rest(p, w->qkv, first) : w->z;
}

static const void *weights_a(const struct fm_pass *p)
{
    const struct fm_deltanet_weights *w = &p->layer->deltanet;
    const struct fm_deltanet *m = p->config->deltanet;
    size_t first = (size_t)m->Q * (size_t)p->config->H;
    return m->packed ? fm_pass_rest(p, w->b, first) : w->a;
}

/* n (N, Q D): o with every head normalised. */
static void normalise(const struct fm_pass *p, const struct inner *a, float *n)
{
    const struct fm_deltanet *m = p->config->deltanet;
    p->ops->norm(fm_to_f32(n), a->rstd, a->o, p->layer->deltanet.norm, NULL, fm_pass_rows(p) * m->Q,
                 m->D, p->config->eps);
}

static void forward(const struct fm_pass *p, float *inner, float *y, const float *x)
{
    const struct inner all = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    const struct fm_deltanet *m = p->config->deltanet;
    const struct fm_deltanet_weights *w = &p->layer->deltanet;
    const struct fm_ops *op = p->ops;
    int N = fm_pass_rows(p), H = p->config->H, V = value_width(m), wide = conv_width(m);
    struct fm_mark mark = fm_scratch_mark();
    float *b = fm_scratch_floats((size_t)N * (size_t)m->Q);
    float *n = fm_scratch_floats((size_t)N * (size_t)V);
    fm_pass_project(p, a->m, x, w->qkv, wide, H, false);
    fm_pass_project(p, a->z, x, weights_z(p), V, H, false);
    fm_pass_project(p, a->a, x, weights_a(p), m->Q, H, false);
    fm_pass_project(p, b, x, w->b, m->Q, H, false);
    op->convolve(a->x, a->m, w->conv, true, p->S, p->T, wide, m->W);
    op->delta_gates(a->g, a->beta, a->a, b, w->rate, w->bias, N, m->Q);
    op->delta_rule(a->o, a->x, a->g, a->beta, p->S, p->T, m->G, m->Q, m->C, m->D);
    normalise(p, a, n);
    op->gate(n, n, a->z, true, (int64_t)N * V);
    fm_pass_project(p, y, n, w->out, H, V, true);
    fm_scratch_release(mark);
}

/* d_o and dz (N, Q D) from dy (N, H). */
static void output_back(const struct fm_pass *p, const struct inner *a, float *d_o, float *dz,
                        const float *dy)
{
    const struct fm_deltanet *m = p->config->deltanet;
    const struct fm_deltanet_weights *w = &p->layer->deltanet;
    int N = fm_pass_rows(p), V = value_width(m);
    size_t count = (size_t)N * (size_t)V;
    struct fm_mark mark = fm_scratch_mark();
    float *n = fm_scratch_floats(count), *dn = fm_scratch_floats(count);
    normalise(p, a, n);
    fm_pass_project_back(p, dn, dy, w->out, p->config->H, V, false);
    p->ops->gate_back(dn, dz, dn, n, a->z, true, (int64_t)count);
    p->ops->zero(d_o, count * sizeof *d_o);
    p->ops->norm_back(d_o, dn, a->o, w->norm, NULL, a->rstd, N * m->Q, m->D);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *inner, float *dx, const float *dy)
{
    const struct inner all = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    const struct fm_deltanet *m = p->config->deltanet;
    const struct fm_deltanet_weights *w = &p->layer->deltanet;
    const struct fm_ops *op = p->ops;
    int N = fm_pass_rows(p), H = p->config->H, V = value_width(m), wide = conv_width(m);
    size_t heads = (size_t)N * (size_t)m->Q, values = (size_t)N * (size_t)V;
    size_t columns = (size_t)N * (size_t)wide;
    struct fm_mark mark = fm_scratch_mark();
    float *d_o = fm_scratch_floats(values), *dz = fm_scratch_floats(values);
    float *dm = fm_scratch_floats(columns), *after = fm_scratch_floats(columns);
    float *dg = fm_scratch_floats(heads), *dbeta = fm_scratch_floats(heads);
    float *da = fm_scratch_floats(heads), *db = fm_scratch_floats(heads);
    output_back(p, a, d_o, dz, dy);
    op->delta_rule_back(after, dg, dbeta, d_o, a->x, a->g, a->beta, p->S, p->T, m->G, m->Q, m->C,
                        m->D);
    op->delta_gates_back(da, db, dg, dbeta, a->a, a->beta, w->rate, w->bias, N, m->Q);
    op->convolve_back(dm, after, a->m, w->conv, true, p->S, p->T, wide, m->W);
    fm_pass_project_back(p, dx, dm, w->qkv, wide, H, false);
    fm_pass_project_back(p, dx, dz, weights_z(p), V, H, true);
    fm_pass_project_back(p, dx, da, weights_a(p), m->Q, H, true);
    fm_pass_project_back(p, dx, db, w->b, m->Q, H, true);
    fm_scratch_release(mark);
}

/* ---- cost ---- */

/* One product with every matrix; the convolution; four passes of each head over its state: read it
 * for k, decay it, add to it, read it for q. */
static struct fm_flops flops(const struct fm_config *c, int l, int T)
{
    const struct fm_deltanet *m = c->deltanet;
    double H = c->H, V = value_width(m), wide = conv_width(m);
    (void)l, (void)T;
    return (struct fm_flops){.products = 2 * H * (wide + 2 * V + 2 * m->Q),
                             .others = 2 * wide * m->W + 8.0 * m->Q * m->C * m->D};
}

/* Inner values and their gradients, and n and dn. */
static uint64_t scratch(const struct fm_config *c)
{
    const struct fm_deltanet *m = c->deltanet;
    uint64_t full = fm_gqa.scratch(c);
    uint64_t linear =
        4 * (uint64_t)conv_width(m) + 6 * (uint64_t)value_width(m) + 8 * (uint64_t)m->Q;
    return full > linear ? full : linear;
}

const struct fm_attention fm_deltanet = {.read = read,
                                         .is_own = fm_deltanet_layer,
                                         .full = &fm_gqa,
                                         .size = size_of,
                                         .has = has,
                                         .order = order_rows,
                                         .inner = count_inner,
                                         .forward = forward,
                                         .backward = backward,
                                         .flops = flops,
                                         .scratch = scratch};
