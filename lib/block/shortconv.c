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

#include <string.h>

#include "lib/base/mem.h"
#include "lib/block/pass.h"

#define FILTER_MAX 64

/* ---- config.json ---- */

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_shortconv_options *o = options;
    struct fm_shortconv *s = c->shortconv = fm_alloc(1, sizeof *s, "attention settings", err);
    if (!s)
        return err->code;
    s->W = 3;
    if (fm_gqa.read(c, &o->full, keys, err) ||
        fm_keys_layers(s->conv, c->L, keys->json, "layer_types", "conv", "full_attention", err))
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
static struct fm_in part_of(const struct fm_pass *p, int part)
{
    size_t H = (size_t)p->config->H;
    return fm_pass_projection(p, p->layer->shortconv.in, (size_t)part * H * H);
}

/* y (N, H) = a part of W_in times x. */
static void project(const struct fm_pass *p, float *y, const float *x, int part)
{
    int N = fm_pass_rows(p), H = p->config->H;
    p->ops->gemm(false, true, N, H, H, 1, fm_f32(x), H, part_of(p, part), H, 0, y, H);
}

/* dx (N, H) = dy times a part of W_in; with `add`, this is added to dx. */
static void project_back(const struct fm_pass *p, float *dx, const float *dy, int part, bool add)
{
    int N = fm_pass_rows(p), H = p->config->H;
    p->ops->gemm(false, false, N, H, H, 1, fm_f32(dy), H, part_of(p, part), H, add, dx, H);
}

static void forward(const struct fm_pass *p, float *inner, float *y, const float *x)
{
    const struct inner a = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner));
    int N = fm_pass_rows(p), H = p->config->H;
    int64_t count = (int64_t)N * H;
    struct fm_mark mark = fm_scratch_mark();
    float *g = fm_scratch_floats((size_t)count);
    project(p, a.b, x, 0);
    project(p, a.c, x, 1);
    project(p, a.u, x, 2);
    p->ops->multiply(g, a.b, a.u, count);
    p->ops->convolve(a.a, g, p->layer->shortconv.conv, false, p->S, p->T, H,
                     p->config->shortconv->W);
    p->ops->multiply(g, a.c, a.a, count);
    p->ops->gemm(false, true, N, H, H, 1, fm_f32(g), H,
                 fm_pass_projection(p, p->layer->shortconv.out, 0), H, 1, y, H);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *inner, float *dx, const float *dy)
{
    const struct inner a = take(p->config, fm_pass_rows(p), FM_ARENA_IN(inner));
    int N = fm_pass_rows(p), H = p->config->H;
    int64_t count = (int64_t)N * H;
    struct fm_mark mark = fm_scratch_mark();
    float *dg = fm_scratch_floats((size_t)count), *d = fm_scratch_floats((size_t)count);
    float *dm = fm_scratch_floats((size_t)count);
    p->ops->gemm(false, false, N, H, H, 1, fm_f32(dy), H,
                 fm_pass_projection(p, p->layer->shortconv.out, 0), H, 0, dg, H);
    p->ops->multiply(d, dg, a.a, count);
    project_back(p, dx, d, 1, false);
    p->ops->multiply(dg, dg, a.c, count);
    p->ops->convolve_back(dm, dg, NULL, p->layer->shortconv.conv, false, p->S, p->T, H,
                          p->config->shortconv->W);
    p->ops->multiply(d, dm, a.u, count);
    project_back(p, dx, d, 0, true);
    p->ops->multiply(d, dm, a.b, count);
    project_back(p, dx, d, 2, true);
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

const struct fm_attention fm_shortconv = {.name = "shortconv",
                                          .read = read,
                                          .is_own = fm_shortconv_layer,
                                          .full = &fm_gqa,
                                          .size = size_of,
                                          .has = has,
                                          .inner = count_inner,
                                          .forward = forward,
                                          .backward = backward,
                                          .flops = flops,
                                          .scratch = scratch};
