/*
 * The decoder that fm-bench serves with: how large its parts are, whether they fit into memory,
 * and their random contents.  How many layers fit is computed before anything is allocated, and
 * the result says how many there were: nothing is extrapolated to a full model.
 */
#include "lib/bench/servecase.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"
#include "lib/bench/servemask.h"
#include "lib/bench/shapes.h"
#include "lib/block/rope.h"

enum { VOCABULARY = 1024, ROWS = 4096, FILL = 1 << 16, TOKENS_MAX = 1 << 28 };
enum { GPU_BYTES = 512 << 20 }; /* for kernels and cuBLAS */

static int describe(struct fm_servecase *c, const char *shape, struct fm_err *err)
{
    struct fm_config *g = &c->config;
    g->V = VOCABULARY;
    g->eps = 1e-5f;
    g->T_max = c->prompt + c->decode;
    const struct fm_shape *known = shape ? fm_shapes_find(shape) : NULL;
    if (known && known->G == 0)
        return fm_fail(err, FM_EUSAGE,
                       "--shape %s: its latent attention is not among what serve computes; use "
                       "fm-bench kernels, or its experts as %d,%d,%d,%d",
                       shape, known->H, known->I, known->E, known->K);
    if (known) {
        c->model_layers = known->L;
        g->Q = known->Q;
        g->G = known->G;
        g->C = known->C;
    } else if (!fm_shapes_heads(g->H, 128, &g->Q, &g->G, &g->C)) {
        return fm_fail(err, FM_EUSAGE, "hidden width %d is odd; heads need an even one", g->H);
    }
    return FM_OK;
}

/* --- bytes --- */

static size_t element_bytes(const struct fm_servecase *c)
{
    return c->dtype == FM_F32 ? 4 : 2;
}

uint64_t fm_servecase_expert_bytes(const struct fm_servecase *c)
{
    const struct fm_config *g = &c->config;
    return 3 * (uint64_t)g->E * (uint64_t)g->I * (uint64_t)g->H * element_bytes(c);
}

uint64_t fm_servecase_layer_bytes(const struct fm_servecase *c)
{
    const struct fm_config *g = &c->config;
    uint64_t H = (uint64_t)g->H, heads = 2 * (uint64_t)(g->Q + g->G) * (uint64_t)g->C;
    return fm_servecase_expert_bytes(c) + heads * H * element_bytes(c) +
           ((uint64_t)g->E + 2) * H * sizeof(float);
}

uint64_t fm_servecase_cache_bytes(const struct fm_servecase *c)
{
    return 2 * (uint64_t)c->config.G * (uint64_t)c->config.C * element_bytes(c);
}

/* Layer shape without its arrays: what the workspace's size follows from. */
static struct fm_clip_layer layer_shape(const struct fm_servecase *c)
{
    const struct fm_config *g = &c->config;
    struct fm_clip_layer s = {.size = sizeof s, .budget_type = FM_CLIP_I32};
    s.type = c->dtype == FM_F32 ? FM_CLIP_F32 : FM_CLIP_BF16;
    s.H = g->H;
    s.E = g->E;
    s.B = c->B;
    s.cap_max = g->I;
    s.channels = (int64_t)g->E * g->I;
    s.threads = c->on_gpu ? 0 : c->threads;
    s.device = c->on_gpu ? FM_CLIP_CUDA : FM_CLIP_CPU;
    return s;
}

/* All but layers: rows on their way, and what libfm_clip needs. */
static uint64_t fixed_bytes(const struct fm_servecase *c)
{
    const struct fm_config *g = &c->config;
    struct fm_clip_layer shape = layer_shape(c);
    uint64_t row = 6 * (uint64_t)g->H + 2 * (uint64_t)(g->Q + g->G) * (uint64_t)g->C +
                   (uint64_t)g->E + 4 * (uint64_t)g->K;
    uint64_t scratch = 512 * (uint64_t)g->H + 64 * (uint64_t)c->prompt; /* a thread's */
    uint64_t gpu = 4 * (uint64_t)(c->rows + 8 * c->batch) * (uint64_t)g->Q * (uint64_t)(g->C + 2);
    return fm_clip_workspace_bytes(&shape, c->rows, g->K) + 4 * (uint64_t)c->rows * row +
           4 * (uint64_t)g->H * VOCABULARY +
           (c->on_gpu ? gpu + GPU_BYTES : 4 * (uint64_t)c->threads * scratch);
}

/* How many layers: those asked for, or those of the model that memory takes. */
static int count_layers(struct fm_servecase *c, int asked, const struct fm_run_options *run,
                        int family_layers, struct fm_err *err)
{
    uint64_t memory = c->on_gpu ? fm_serve_gpu_memory() : fm_run_memory(run);
    uint64_t fixed = fixed_bytes(c), tokens;
    int most = family_layers ? family_layers : c->model_layers ? c->model_layers : 32;
    tokens = (uint64_t)c->batch * (uint64_t)(c->prompt + c->decode);
    uint64_t one = fm_servecase_layer_bytes(c) + tokens * fm_servecase_cache_bytes(c);
    uint64_t fitting = memory > fixed ? (memory - fixed) / one : 0;
    if (asked > most && (family_layers || c->model_layers))
        return fm_fail(err, FM_EUSAGE, "--layers %d: the model has %d", asked, most);
    if ((uint64_t)(asked ? asked : 1) > fitting)
        return fm_fail(err, FM_ENOMEM,
                       "--layers %d: each takes %.2f GB, and %.2f GB go beside them: that is more "
                       "than %s of %.2f GB",
                       asked ? asked : 1, 1e-9 * (double)one, 1e-9 * (double)fixed,
                       c->on_gpu ? "the GPU's free memory" : "--memory", 1e-9 * (double)memory);
    c->config.L = asked ? asked : fitting < (uint64_t)most ? (int)fitting : most;
    return FM_OK;
}

static int alloc_layers(struct fm_servecase *c, struct fm_err *err)
{
    size_t E = (size_t)c->config.E, count = (size_t)c->B * E;
    c->layer = fm_alloc((size_t)c->config.L, sizeof *c->layer, "layers", err);
    c->cap = fm_alloc(E, sizeof *c->cap, "caps of experts", err);
    c->row0 = fm_alloc(E, sizeof *c->row0, "rows of experts", err);
    if (!c->layer || !c->cap || !c->row0)
        return err->code;
    for (size_t e = 0; e < E; e++) {
        c->cap[e] = c->config.I;
        c->row0[e] = (int64_t)e * c->config.I;
    }
    for (int l = 0; l < c->config.L; l++) {
        c->config.moe[l] = (int16_t)l;
        c->layer[l].widths = fm_alloc(count, sizeof *c->layer[l].widths, "widths", err);
        if (!c->layer[l].widths)
            return err->code;
    }
    c->config.M = c->config.L;
    return FM_OK;
}

/* The table of operations, or a GPU. */
static int choose_device(struct fm_servecase *c, const struct fm_run_options *run,
                         struct fm_err *err)
{
    struct fm_clip_error error = {0};
    c->on_gpu = run->device && strcmp(run->device, "cuda") == 0;
    if (!c->on_gpu) {
        int rc = fm_run_ops(&c->ops, run, c->dtype, err);
        assert(rc || c->ops->device == &fm_device_host); /* kernels/serve/serve.h */
        return rc;
    }
    if (fm_clip_available(FM_CLIP_CUDA, &error) != FM_CLIP_OK)
        return fm_fail(err, error.code, "--device cuda: %s", error.text);
    return FM_OK;
}

int fm_servecase_shape(struct fm_servecase *c, const struct fm_servebench_options *o,
                       const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_servemask masks = {0};
    if ((int64_t)o->batch * (o->prompt + o->decode) > TOKENS_MAX)
        return fm_fail(err, FM_EUSAGE, "%d sequences of %d tokens: at most %d tokens together",
                       o->batch, o->prompt + o->decode, TOKENS_MAX);
    c->batch = o->batch;
    c->prompt = o->prompt;
    c->decode = o->decode;
    c->dtype = strcmp(o->dtype, "f32") == 0 ? FM_F32 : FM_BF16;
    c->seed = run->seed;
    c->threads = run->threads ? run->threads : fm_pool_threads();
    int together = ROWS / c->prompt < 1 ? 1 : ROWS / c->prompt; /* prompts */
    together = together < c->batch ? together : c->batch;
    c->rows = together * c->prompt > c->batch ? together * c->prompt : c->batch;
    int rc = choose_device(c, run, err);
    if (!rc)
        rc = fm_servemask_open(&masks, o, c->seed, &c->config, err);
    c->B = masks.B;
    if (!rc)
        rc = describe(c, o->family ? NULL : o->shape, err);
    if (!rc)
        rc = count_layers(c, o->layers, run, masks.layers, err);
    if (!rc)
        rc = alloc_layers(c, err);
    for (int l = 0; !rc && l < c->config.L; l++)
        rc = fm_servemask_draw(&masks, l, c->layer[l].widths, err);
    for (int b = 0; !rc && b < c->B; b++) {
        double kept = 0, all = (double)c->config.L * c->config.E * c->config.I;
        for (int l = 0; l < c->config.L; l++)
            for (int e = 0; e < c->config.E; e++)
                kept += c->layer[l].widths[b * c->config.E + e];
        c->share[b] = 1 - kept / all;
    }
    if (!rc && masks.layers)
        c->model_layers = masks.model_layers;
    fm_servemask_close(&masks);
    return rc;
}

/* --- numbers --- */

struct fill {
    char *to;
    enum fm_dtype dtype;
    size_t count;
    double scale;
    uint64_t seed, counter;
};

static void fill_block(void *arg, int i)
{
    const struct fill *f = arg;
    size_t first = (size_t)i * FILL, n = f->count - first < FILL ? f->count - first : FILL;
    struct fm_mark mark = fm_scratch_mark();
    float *x = fm_scratch(n * sizeof *x);
    uint32_t w[4];
    for (size_t j = 0; j < n; j++) {
        if (j % 4 == 0)
            fm_rng_words(w, f->seed, FM_STREAM_BENCH, f->counter + (first + j) / 4);
        x[j] = (float)(f->scale * ((double)w[j % 4] * 0x1p-31 - 1));
    }
    fm_dtype_from_f32(f->to + first * (size_t)(fm_dtype_bits(f->dtype) / 8), x, f->dtype, n);
    fm_scratch_release(mark);
}

/* Uniform numbers within +-scale; `which` keeps draws apart. */
static void fill(const struct fm_servecase *c, void *to, enum fm_dtype dtype, size_t count,
                 double scale, int which)
{
    struct fill f = {to, dtype, count, scale, c->seed, (uint64_t)which << 44};
    fm_pool_for((int)((count + FILL - 1) / FILL), fill_block, &f);
}

static void *alloc_array(size_t count, size_t size, const char *what, struct fm_err *err)
{
    return !err->code ? fm_alloc(count, size, what, err) : NULL;
}

/* What goes in: it is the same for every device. */
static int alloc_tokens(struct fm_servecase *c, struct fm_err *err)
{
    size_t T = (size_t)(c->prompt + c->decode), H = (size_t)c->config.H, f = sizeof(float);
    c->table = alloc_array(VOCABULARY * H, f, "embeddings", err);
    c->tokens = alloc_array((size_t)c->batch * T, sizeof *c->tokens, "tokens", err);
    c->cos = alloc_array(T * (size_t)c->config.C / 2, f, "angles", err);
    c->sin = alloc_array(T * (size_t)c->config.C / 2, f, "angles", err);
    return err->code;
}

static int alloc_rows(struct fm_servecase *c, struct fm_err *err)
{
    const struct fm_config *g = &c->config;
    size_t N = (size_t)c->rows, H = (size_t)g->H, QC = (size_t)g->Q * (size_t)g->C;
    size_t GC = (size_t)g->G * (size_t)g->C, f = sizeof(float);
    struct fm_clip_layer shape = layer_shape(c);
    c->x = alloc_array(N * H, f, "hidden states", err);
    c->xn = alloc_array(N * H, f, "hidden states", err);
    c->q = alloc_array(N * QC, f, "queries", err);
    c->out = alloc_array(N * (QC > H ? QC : H), f, "results", err);
    c->k = alloc_array(N * GC, f, "keys", err);
    c->v = alloc_array(N * GC, f, "values", err);
    c->logits = alloc_array(N * (size_t)g->E, f, "router logits", err);
    c->rstd = alloc_array(N, f, "norms", err);
    c->weights = alloc_array(N * (size_t)g->K, f, "router weights", err);
    c->ids = alloc_array(N * (size_t)g->K, sizeof *c->ids, "chosen experts", err);
    c->now = alloc_array(N, sizeof *c->now, "tokens", err);
    c->narrow = alloc_array(c->dtype == FM_F32 ? 0 : 2 * N * H, 2, "hidden states", err);
    c->last = alloc_array((size_t)c->batch * H, f, "hidden states", err);
    c->workspace_bytes = fm_clip_workspace_bytes(&shape, c->rows, g->K);
    void *space = NULL;
    if (!err->code && posix_memalign(&space, 4096, c->workspace_bytes) != 0)
        fm_fail(err, FM_ENOMEM, "no memory for a workspace of %llu bytes",
                (unsigned long long)c->workspace_bytes);
    if ((c->workspace = space))
        memset(space, 1, c->workspace_bytes); /* pages are there before the clock runs */
    return err->code;
}

static int alloc_layer(struct fm_servecase *c, struct fm_serve_layer *w, struct fm_err *err)
{
    const struct fm_config *g = &c->config;
    size_t H = (size_t)g->H, heads = (size_t)(g->Q + 2 * g->G) * (size_t)g->C,
           size = element_bytes(c);
    size_t channels = (size_t)g->E * (size_t)g->I;
    w->input_norm = alloc_array(H, sizeof(float), "norms", err);
    w->post_norm = alloc_array(H, sizeof(float), "norms", err);
    w->router = alloc_array((size_t)g->E * H, sizeof(float), "a router", err);
    w->qkv = alloc_array(heads * H, size, "projections", err);
    w->o = alloc_array((size_t)g->Q * (size_t)g->C * H, size, "projections", err);
    w->gate_up = alloc_array(2 * channels * H, size, "experts", err);
    w->down = alloc_array(channels * H, size, "experts", err);
    return err->code;
}

static int alloc_cache(struct fm_servecase *c, struct fm_serve_layer *w, struct fm_err *err)
{
    const struct fm_config *g = &c->config;
    size_t T = (size_t)(c->prompt + c->decode), size = element_bytes(c);
    size_t cached = (size_t)c->batch * T * (size_t)g->G * (size_t)g->C;
    w->cache = (struct fm_serve_cache){c->dtype, (int)T, g->G, g->C, NULL, NULL};
    w->cache.k = alloc_array(cached, size, "the cache of keys", err);
    w->cache.v = alloc_array(cached, size, "the cache of values", err);
    if (!err->code) { /* pages are there before the clock runs */
        memset(w->cache.k, 0, cached * size);
        memset(w->cache.v, 0, cached * size);
    }
    return err->code;
}

/* Numbers of layer l. */
static void fill_layer(const struct fm_servecase *c, struct fm_serve_layer *w, int l)
{
    const struct fm_config *g = &c->config;
    size_t H = (size_t)g->H, QC = (size_t)g->Q * (size_t)g->C, GC = (size_t)g->G * (size_t)g->C;
    size_t channels = (size_t)g->E * (size_t)g->I;
    double in = 2 / sqrt((double)H);
    int which = 8 * (l + 1);
    for (size_t i = 0; i < H; i++)
        w->input_norm[i] = w->post_norm[i] = 1;
    fill(c, w->qkv, c->dtype, (QC + 2 * GC) * H, in, which);
    fill(c, w->o, c->dtype, QC * H, 2 / sqrt((double)QC), which + 1);
    fill(c, w->router, FM_F32, (size_t)g->E * H, in, which + 2);
    fill(c, w->gate_up, c->dtype, 2 * channels * H, in, which + 3);
    fill(c, w->down, c->dtype, channels * H, 2 / sqrt((double)g->I), which + 4);
}

static int prepare_layer(struct fm_servecase *c, struct fm_serve_layer *w, struct fm_err *err)
{
    struct fm_clip_error error = {0};
    w->shape = layer_shape(c);
    w->shape.gate_up = w->gate_up;
    w->shape.down = w->down;
    w->shape.row0 = c->row0;
    w->shape.cap = c->cap;
    w->shape.widths = w->widths;
    w->shape.budget = &c->budget;
    if (fm_clip_prepare(&w->clip, &w->shape, &error) != FM_CLIP_OK)
        return fm_fail(err, error.code, "%s", error.text);
    return FM_OK;
}

static int make_layers(struct fm_servecase *c, struct fm_err *err)
{
    for (int l = 0; l < c->config.L; l++) {
        struct fm_serve_layer *w = &c->layer[l];
        if (alloc_layer(c, w, err) || alloc_cache(c, w, err) || prepare_layer(c, w, err))
            return err->code;
        fill_layer(c, w, l);
    }
    return FM_OK;
}

static void drop_weights(struct fm_serve_layer *w)
{
    void *own[] = {w->input_norm, w->post_norm, w->qkv, w->o, w->router, w->gate_up, w->down};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        free(own[i]);
}

static int open_gpu(struct fm_servecase *c, struct fm_clip_error *error)
{
    const struct fm_config *g = &c->config;
    struct fm_serve_gpu_shape s = {.type = c->dtype == FM_F32 ? FM_CLIP_F32 : FM_CLIP_BF16};
    s.L = g->L, s.H = g->H, s.I = g->I, s.E = g->E, s.K = g->K;
    s.Q = g->Q, s.G = g->G, s.C = g->C, s.B = c->B, s.V = g->V;
    s.batch = c->batch;
    s.prompt = c->prompt;
    s.decode = c->decode;
    s.rows = c->rows;
    s.eps = g->eps;
    s.table = c->table;
    s.tokens = c->tokens;
    s.cos = c->cos;
    s.sin = c->sin;
    return fm_serve_gpu_open(&c->gpu, &s, error);
}

/* Layer by layer through one layer's memory. */
static int move_layers(struct fm_servecase *c, struct fm_err *err)
{
    struct fm_serve_layer w = {0};
    struct fm_clip_error error = {0};
    int32_t code = open_gpu(c, &error);
    if (code == FM_CLIP_OK && alloc_layer(c, &w, err))
        code = err->code;
    for (int l = 0; l < c->config.L && code == FM_CLIP_OK; l++) {
        fill_layer(c, &w, l);
        struct fm_serve_gpu_weights from = {w.input_norm, w.post_norm, w.qkv,  w.o,
                                            w.router,     w.gate_up,   w.down, c->layer[l].widths};
        code = fm_serve_gpu_layer(c->gpu, l, &from, &error);
    }
    drop_weights(&w);
    return code == FM_CLIP_OK || err->code ? err->code : fm_fail(err, error.code, "%s", error.text);
}

int fm_servecase_fill(struct fm_servecase *c, struct fm_err *err)
{
    int T = c->prompt + c->decode;
    struct fm_rope rope;
    if (alloc_tokens(c, err) || (!c->on_gpu && alloc_rows(c, err)))
        return err->code;
    fill(c, c->table, FM_F32, (size_t)VOCABULARY * (size_t)c->config.H, 1.7, 0);
    for (int i = 0; i < c->batch * T; i++)
        c->tokens[i] = (int32_t)fm_rng_below(c->seed, FM_STREAM_BENCH,
                                             ((uint64_t)1 << 43) + (uint64_t)i, VOCABULARY);
    fm_rope_plain(&rope, 1e6, c->config.C);
    fm_rope_fill(c->cos, c->sin, &rope, T);
    return c->on_gpu ? move_layers(c, err) : make_layers(c, err);
}

void fm_servecase_release(struct fm_servecase *c)
{
    void *block[] = {c->cap,  c->row0, c->layer, c->table,  c->tokens, c->cos,     c->sin,
                     c->x,    c->xn,   c->q,     c->k,      c->v,      c->out,     c->logits,
                     c->rstd, c->ids,  c->now,   c->narrow, c->last,   c->weights, c->workspace};
    fm_serve_gpu_close(c->gpu);
    for (int l = 0; c->layer && l < c->config.L; l++) {
        struct fm_serve_layer *w = &c->layer[l];
        fm_clip_release(w->clip);
        drop_weights(w);
        free(w->widths);
        free(w->cache.k);
        free(w->cache.v);
    }
    for (size_t i = 0; i < sizeof block / sizeof *block; i++)
        free(block[i]);
    *c = (struct fm_servecase){0};
}
