/*
 * Gated short convolutions, in models that also have attention layers: keys of config.json,
 * tensors, forward, backward and cost.
 *
 *     [b c u] = W_in x,  y = W_out (c * conv(b * u))
 *
 * A layer has either a convolution or attention; attention is computed by gqa, with the family's
 * options.
 */
#include "lib/block/shortconv.h"

#include "lib/base/mem.h"
#include "lib/block/pass.h"

#define FILTER_MAX 64

/* ---- config.json ---- */

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    struct fm_shortconv *s = c->shortconv = fm_alloc(1, sizeof *s, "attention settings", err);
    if (!s)
        return err->code;
    s->W = 3;
    if (fm_gqa.read(c, options, keys, err) ||
        fm_keys_layers(&s->conv, c->L, keys->json, "layer_types", "conv", "full_attention", err))
        return err->code;
    return fm_keys_size_opt(&s->W, keys->json, "conv_L_cache", FILTER_MAX, err);
}

/* ---- tensors ---- */

static uint64_t size_of(const struct fm_config *c, int l, char letter)
{
    switch (letter) {
    case 'n':
        return 3 * (uint64_t)c->H;
    case 'w':
        return (uint64_t)c->shortconv->W;
    default:
        return fm_gqa.size(c, l, letter);
    }
}

static unsigned has(const struct fm_config *c, int l)
{
    return fm_shortconv_layer(c, l) ? FM_SHORTCONV_CONV : FM_SHORTCONV_FULL | fm_gqa.has(c, l);
}

/* ---- forward and backward ---- */

/* Inner values (N, H) of N tokens of a convolution. */
struct inner {
    float *b, *c, *u;
    float *a; /* conv(b * u) */
};

static struct inner take(const struct fm_config *config, int N, struct fm_arena *arena)
{
    size_t count = (size_t)N * (size_t)config->H;
    return (struct inner){.b = fm_arena_alloc(arena, count),
                          .c = fm_arena_alloc(arena, count),
                          .u = fm_arena_alloc(arena, count),
                          .a = fm_arena_alloc(arena, count)};
}

static void count_inner(const struct fm_config *c, int l, int N, struct fm_arena *count)
{
    (void)l;
    take(c, N, count);
}

/* Rows [part H, (part + 1) H) of W_in. */
static const void *part_of(const struct fm_pass *p, int part)
{
    size_t H = (size_t)p->config->H;
    return fm_pass_rest(p, p->layer->shortconv.in, (size_t)part * H * H);
}

static void forward(const struct fm_pass *p, float *inner, float *y, const float *x)
{
    const struct inner a = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner));
    int H = p->config->H;
    int64_t count = (int64_t)fm_pass_rows(p) * H;
    struct fm_mark mark = fm_scratch_mark();
    float *g = fm_scratch_floats((size_t)count);
    fm_pass_project(p, a.b, x, part_of(p, 0), H, H, false);
    fm_pass_project(p, a.c, x, part_of(p, 1), H, H, false);
    fm_pass_project(p, a.u, x, part_of(p, 2), H, H, false);
    p->ops->multiply(g, a.b, a.u, count);
    p->ops->convolve(a.a, g, p->layer->shortconv.conv, false, p->S, p->T, H,
                     p->config->shortconv->W);
    p->ops->multiply(g, a.c, a.a, count);
    fm_pass_project(p, y, g, p->layer->shortconv.out, H, H, true);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *inner, float *dx, const float *dy)
{
    const struct inner a = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner));
    int H = p->config->H;
    int64_t count = (int64_t)fm_pass_rows(p) * H;
    struct fm_mark mark = fm_scratch_mark();
    float *dg = fm_scratch_floats((size_t)count), *d = fm_scratch_floats((size_t)count);
    float *dm = fm_scratch_floats((size_t)count);
    fm_pass_project_back(p, dg, dy, p->layer->shortconv.out, H, H, false);
    p->ops->multiply(d, dg, a.a, count);
    fm_pass_project_back(p, dx, d, part_of(p, 1), H, H, false);
    p->ops->multiply(dg, dg, a.c, count);
    p->ops->convolve_back(dm, dg, NULL, p->layer->shortconv.conv, false, p->S, p->T, H,
                          p->config->shortconv->W);
    p->ops->multiply(d, dm, a.u, count);
    fm_pass_project_back(p, dx, d, part_of(p, 0), H, H, true);
    p->ops->multiply(d, dm, a.b, count);
    fm_pass_project_back(p, dx, d, part_of(p, 2), H, H, true);
    fm_scratch_release(mark);
}

/* ---- cost ---- */

static struct fm_flops flops(const struct fm_config *c, int l, int T)
{
    double H = c->H;
    (void)l, (void)T;
    return (struct fm_flops){.products = 2 * H * 4 * H, .others = 2 * H * c->shortconv->W};
}

/* Inner values and three gradients. */
static uint64_t scratch(const struct fm_config *c)
{
    uint64_t full = fm_gqa.scratch(c), conv = 7 * (uint64_t)c->H;
    return full > conv ? full : conv;
}

const struct fm_attention fm_shortconv = {.read = read,
                                          .is_own = fm_shortconv_layer,
                                          .full = &fm_gqa,
                                          .size = size_of,
                                          .has = has,
                                          .inner = count_inner,
                                          .forward = forward,
                                          .backward = backward,
                                          .flops = flops,
                                          .scratch = scratch};
