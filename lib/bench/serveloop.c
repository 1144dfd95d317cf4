/* The loop of lib/bench/servecase.h: prompts and single steps through all layers. */
#include "lib/bench/servecase.h"

#include <math.h>
#include <string.h>

#include "lib/base/clock.h"

enum { EXPERTS_MAX = 4096 }; /* of kernelcase's shapes */

/* S sequences from s0 on, n positions of each from t0 on: prompts, or one more position. */
struct piece {
    int s0, S, t0, n;
};

/* q, k, v of the piece's rows, turned; keys and values into the cache. */
static void project(struct fm_servecase *c, const struct fm_serve_layer *w, const struct piece *p)
{
    const struct fm_config *g = &c->config;
    int N = p->S * p->n, H = g->H, QC = g->Q * g->C, GC = g->G * g->C;
    size_t size = c->dtype == FM_F32 ? 4 : 2, k = (size_t)QC * (size_t)H * size;
    size_t v = k + (size_t)GC * (size_t)H * size, angle = (size_t)p->t0 * (size_t)g->C / 2;
    c->ops->norm(fm_to_f32(c->xn), c->rstd, c->x, w->input_norm, NULL, N, H, g->eps);
    fm_serve_product(c->ops, c->q, c->xn, w->qkv, c->dtype, N, QC, H, 0);
    fm_serve_product(c->ops, c->k, c->xn, w->qkv + k, c->dtype, N, GC, H, 0);
    fm_serve_product(c->ops, c->v, c->xn, w->qkv + v, c->dtype, N, GC, H, 0);
    c->ops->rope(c->q, c->cos + angle, c->sin + angle, N, p->n, g->Q, g->C, g->C, false, 1);
    c->ops->rope(c->k, c->cos + angle, c->sin + angle, N, p->n, g->G, g->C, g->C, false, 1);
    fm_serve_store(&w->cache, c->k, c->v, p->s0, p->S, p->t0, p->n);
}

static void attend(struct fm_servecase *c, const struct fm_serve_layer *w, const struct piece *p)
{
    const struct fm_config *g = &c->config;
    int N = p->S * p->n, QC = g->Q * g->C;
    project(c, w, p);
    if (p->t0 == 0)
        c->ops->attention(c->out, c->q, c->k, c->v, NULL, p->S, p->n, g->Q, g->G, g->C, g->C,
                          sqrt(g->C), 0);
    else
        fm_serve_attend(c->out, c->q, &w->cache, p->S, g->Q, p->t0 + 1);
    fm_serve_product(c->ops, c->x, c->out, w->o, c->dtype, N, g->H, QC, 1);
}

/* What the widths in force make of the rows just routed. */
static void count_work(struct fm_servecase *c, const struct fm_serve_layer *w, int N)
{
    const int32_t *widths = w->widths + (size_t)c->budget * (size_t)c->config.E;
    const int32_t *end = c->ids + (size_t)N * (size_t)c->config.K;
    bool met[EXPERTS_MAX] = {false};
    for (const int32_t *id = c->ids; id < end; id++) {
        c->work.channels += widths[*id];
        c->work.touched += met[*id] ? 0 : widths[*id];
        met[*id] = true;
    }
}

static int run_experts(struct fm_servecase *c, const struct fm_serve_layer *w, int N,
                       struct fm_err *err)
{
    int H = c->config.H;
    size_t count = (size_t)N * (size_t)H;
    bool wide = c->dtype == FM_F32;
    struct fm_clip_error error = {0};
    struct fm_clip_call call = {.size = sizeof call, .ids_type = FM_CLIP_I32, .N = N};
    call.K = c->config.K;
    call.hidden = wide ? (char *)c->xn : c->narrow;
    call.out = wide ? (char *)c->out : c->narrow + 2 * count;
    call.hidden_stride = call.out_stride = H;
    call.ids = c->ids;
    call.weights = c->weights;
    call.workspace = c->workspace;
    call.workspace_bytes = c->workspace_bytes;
    if (!wide)
        fm_dtype_from_f32(c->narrow, c->xn, c->dtype, count);
    double begin = fm_clock_now();
    if (fm_clip_forward(w->clip, &call, &error) != FM_CLIP_OK)
        return fm_fail(err, error.code, "%s", error.text);
    c->work.seconds += fm_clock_now() - begin;
    if (!wide)
        fm_dtype_to_f32(c->out, call.out, c->dtype, count);
    return FM_OK;
}

static int mix_experts(struct fm_servecase *c, const struct fm_serve_layer *w, int N,
                       struct fm_err *err)
{
    const struct fm_config *g = &c->config;
    c->ops->norm(fm_to_f32(c->xn), c->rstd, c->x, w->post_norm, NULL, N, g->H, g->eps);
    c->ops->gemm(false, true, N, g->E, g->H, 1, fm_f32(c->xn), g->H, fm_f32(w->router), g->H, 0,
                 c->logits, g->E);
    c->ops->route(c->ids, c->weights, c->logits, N, g->E, g->K);
    count_work(c, w, N);
    if (run_experts(c, w, N, err))
        return err->code;
    c->ops->add(c->x, c->out, (int64_t)N * g->H);
    return FM_OK;
}

/* The piece's tokens in, its last positions out. */
static int run_piece(struct fm_servecase *c, const struct piece *p, struct fm_err *err)
{
    size_t H = (size_t)c->config.H, T = (size_t)(c->prompt + c->decode);
    int N = p->S * p->n;
    for (int i = 0; i < N; i++)
        c->now[i] = c->tokens[(size_t)(p->s0 + i / p->n) * T + (size_t)(p->t0 + i % p->n)];
    c->ops->embed(c->x, c->now, fm_f32(c->table), N, c->config.H);
    for (int l = 0; l < c->config.L; l++) {
        attend(c, &c->layer[l], p);
        if (mix_experts(c, &c->layer[l], N, err))
            return err->code;
    }
    for (int s = 0; s < p->S; s++)
        memcpy(c->last + (size_t)(p->s0 + s) * H, c->x + ((size_t)(s + 1) * (size_t)p->n - 1) * H,
               H * sizeof *c->last);
    return FM_OK;
}

static int report(int32_t code, const struct fm_clip_error *error, struct fm_err *err)
{
    return code == FM_CLIP_OK ? FM_OK : fm_fail(err, code, "%s", error->text);
}

int fm_servecase_prefill(struct fm_servecase *c, struct fm_err *err)
{
    struct fm_clip_error error = {0};
    if (c->gpu)
        return report(fm_serve_gpu_prefill(c->gpu, c->budget, &error), &error, err);
    int together = c->rows / c->prompt;
    for (int s = 0; s < c->batch; s += together) {
        struct piece p = {s, c->batch - s < together ? c->batch - s : together, 0, c->prompt};
        if (run_piece(c, &p, err))
            return err->code;
    }
    return FM_OK;
}

int fm_servecase_step(struct fm_servecase *c, int at, struct fm_err *err)
{
    struct fm_clip_error error = {0};
    if (c->gpu)
        return report(fm_serve_gpu_step(c->gpu, at, c->budget, &error), &error, err);
    return run_piece(c, &(struct piece){0, c->batch, at, 1}, err);
}
