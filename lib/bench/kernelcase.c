/*
 * The data of a measurement: weights, hidden states, routing and masks, drawn from the seed by
 * index, so that every run, device and thread count gets the same data.  Experts differ in
 * popularity, as in real models, because equal popularity would favour designs that depend on it.
 */
#include "lib/bench/kernelcase.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/bundle.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/rng.h"
#include "lib/bench/shapes.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"

enum { OTHER_BYTES = 128 << 20, FILL = 1 << 16 };

static int parse_shape(struct fm_kernelcase *c, const char *text, struct fm_err *err)
{
    char end, names[256];
    struct fm_clip_layer *l = &c->layer;
    const struct fm_shape *known = fm_shapes_find(text);
    if (known) {
        l->H = known->H;
        c->I = known->I;
        l->E = known->E;
        c->K = known->K;
        return FM_OK;
    }
    if (sscanf(text, "%d,%d,%d,%d%c", &l->H, &c->I, &l->E, &c->K, &end) != 4 || l->H < 1 ||
        c->I < 1 || l->E < 1 || c->K < 1 || l->H > 1 << 16 || c->I > 1 << 20 || l->E > 4096 ||
        c->K > l->E)
        return fm_fail(err, FM_EUSAGE, "'%s' is not a shape; use H,I,E,K or one of %s", text,
                       fm_shapes_names(names, sizeof names));
    return FM_OK;
}

/* --- masks --- */

static double uniform(const struct fm_kernelcase *c, uint64_t counter)
{
    return fm_rng_uniform(c->seed, FM_STREAM_BENCH, counter);
}

static double removed_share(const struct fm_kernelcase *c, int b)
{
    int64_t kept = 0;
    for (int e = 0; e < c->layer.E; e++)
        kept += c->widths[(int64_t)b * c->layer.E + e];
    return 1 - (double)kept / ((double)c->layer.E * c->I);
}

/* Experts lose a tenth at a time, some far more often than others, until `share` is removed. */
static void draw_mask(struct fm_kernelcase *c, int b, double share)
{
    int E = c->layer.E;
    int32_t *widths = c->widths + (int64_t)b * E;
    for (int e = 0; e < E; e++)
        widths[e] = c->I;
    for (uint64_t i = 0; removed_share(c, b) < share - 1e-9 && i < 1000000; i++) {
        int e = (int)(uniform(c, 1 + 2 * i) * E);
        double patience = 0.15 + 0.85 * uniform(c, ((uint64_t)1 << 40) + (uint64_t)e);
        int tenths = (int)(10 * (double)widths[e] / c->I + 0.01);
        if (uniform(c, 2 + 2 * i) < patience && tenths > 1)
            widths[e] = (int32_t)(((int64_t)(tenths - 1) * c->I + 9) / 10);
    }
    c->share[b] = removed_share(c, b);
}

/* 0, then the others in increasing order; at most FM_KERNELBENCH_BUDGETS_MAX. */
static int take_budgets(double *budget, int *count, const struct fm_decimals *asked,
                        struct fm_err *err)
{
    static const struct fm_decimals usual = {.count = 3, .at = {{2, 10}, {4, 10}, {6, 10}}};
    const struct fm_decimals *list = asked ? asked : &usual;
    *count = 1;
    budget[0] = 0;
    for (int i = 0; i < list->count; i++) {
        double v = fm_decimal_value(&list->at[i]);
        if (v == 0)
            continue;
        if (v >= 0.9 || v <= budget[*count - 1] || *count == FM_KERNELBENCH_BUDGETS_MAX)
            return fm_fail(err, FM_EUSAGE,
                           "--budgets: %g is not in order, or one too many; give at most %d "
                           "shares, from 0 to less than 0.9",
                           v, FM_KERNELBENCH_BUDGETS_MAX);
        budget[(*count)++] = v;
    }
    return list->all ? fm_fail(err, FM_EUSAGE, "--budgets all: give shares, such as 0.2,0.4")
                     : FM_OK;
}

static int alloc_tables(struct fm_kernelcase *c, struct fm_err *err)
{
    size_t E = (size_t)c->layer.E, B = (size_t)c->layer.B;
    c->row0 = fm_alloc(E, sizeof *c->row0, "rows of experts", err);
    c->cap = fm_alloc(E, sizeof *c->cap, "caps of experts", err);
    c->widths = fm_alloc(B * E, sizeof *c->widths, "widths", err);
    if (!c->row0 || !c->cap || !c->widths)
        return err->code;
    for (size_t e = 0; e < E; e++) {
        c->row0[e] = (int64_t)e * c->I;
        c->cap[e] = c->I;
    }
    return FM_OK;
}

/* Copy the mask nearest to a budget, from the family's middle layer of experts. */
static void copy_mask(struct fm_kernelcase *c, const struct fm_masks *f, int b, double budget)
{
    int best = 0;
    for (int m = 1; m < f->count; m++)
        if (fabs(fm_masks_budget(f, m) - budget) < fabs(fm_masks_budget(f, best) - budget))
            best = m;
    const uint32_t *widths = fm_masks_widths(f, best) + (size_t)(f->M / 2) * (size_t)f->E;
    for (int e = 0; e < f->E; e++)
        c->widths[b * f->E + e] = (int32_t)widths[e];
    c->share[b] = removed_share(c, b);
}

/* Set the widths of the family, or random ones if it is NULL. */
static int set_masks(struct fm_kernelcase *c, const struct fm_masks *f,
                     const struct fm_decimals *budgets, struct fm_err *err)
{
    double budget[FM_KERNELBENCH_BUDGETS_MAX];
    int count;
    if (take_budgets(budget, &count, budgets, err))
        return err->code;
    c->layer.B = count;
    if (alloc_tables(c, err))
        return err->code;
    for (int b = 0; b < count; b++)
        if (f)
            copy_mask(c, f, b, budget[b]);
        else
            draw_mask(c, b, budget[b]);
    return FM_OK;
}

static int open_family(struct fm_kernelcase *c, const struct fm_kernelbench_options *o,
                       struct fm_err *err)
{
    struct fm_bundle bundle = {0};
    struct fm_budgets masks = {0};
    struct fm_stage_model model;
    int rc = FM_OK;
    if (fm_stage_open(&bundle, o->family, FM_MEMBER_MASKS, err) ||
        fm_stage_model_read(&model, &bundle, err) || fm_budgets_open(&masks, &bundle, err))
        rc = err->code;
    if (!rc) {
        c->layer.H = model.H;
        c->I = model.I;
        c->layer.E = model.E;
        c->K = model.K;
        rc = set_masks(c, &masks.masks, o->budgets, err);
    }
    fm_budgets_release(&masks);
    fm_bundle_close(&bundle);
    return rc;
}

int fm_kernelcase_shape(struct fm_kernelcase *c, const struct fm_kernelbench_options *o,
                        struct fm_err *err)
{
    struct fm_clip_layer *l = &c->layer;
    *l = (struct fm_clip_layer){.size = sizeof *l, .budget_type = FM_CLIP_I32};
    c->dtype = strcmp(o->dtype, "f32") == 0   ? FM_F32
               : strcmp(o->dtype, "f16") == 0 ? FM_F16
                                              : FM_BF16;
    l->type = c->dtype == FM_F32 ? FM_CLIP_F32 : c->dtype == FM_F16 ? FM_CLIP_F16 : FM_CLIP_BF16;
    c->seed = o->seed;
    c->threads = o->threads ? o->threads : fm_pool_threads();
    l->threads = c->threads;
    int rc = o->family ? open_family(c, o, err)
                       : parse_shape(c, o->shape ? o->shape : "1024,3584,8,2", err);
    if (!rc && !o->family)
        rc = set_masks(c, NULL, o->budgets, err);
    l->cap_max = c->I;
    l->channels = (int64_t)l->E * c->I;
    l->row0 = c->row0;
    l->cap = c->cap;
    l->widths = c->widths;
    l->budget = &c->budget;
    return rc;
}

/* --- numbers --- */

static size_t element_bytes(const struct fm_kernelcase *c)
{
    return (size_t)fm_dtype_bits(c->dtype) / 8;
}

uint64_t fm_kernelcase_bytes(const struct fm_kernelcase *c)
{
    return 3 * (uint64_t)c->layer.channels * (uint64_t)c->layer.H * element_bytes(c);
}

struct fill {
    const struct fm_kernelcase *c;
    char *to;
    size_t count;
    double scale;
    uint64_t counter;
};

static void fill_block(void *arg, int i)
{
    const struct fill *f = arg;
    size_t first = (size_t)i * FILL, n = f->count - first < FILL ? f->count - first : FILL;
    struct fm_mark mark = fm_scratch_mark();
    float *x = fm_scratch(n * sizeof *x);
    uint32_t w[4];
    for (size_t j = 0; j < n; j++) { /* uniform numbers are cheaper to draw than normal ones, and
                                        products take the same time */
        if (j % 4 == 0)
            fm_rng_words(w, f->c->seed, FM_STREAM_BENCH, f->counter + (first + j) / 4);
        x[j] = (float)(f->scale * ((double)w[j % 4] * 0x1p-31 - 1));
    }
    fm_dtype_from_f32(f->to + first * element_bytes(f->c), x, f->c->dtype, n);
    fm_scratch_release(mark);
}

static void fill(const struct fm_kernelcase *c, char *to, size_t count, double scale, int which)
{
    struct fill f = {c, to, count, scale, (uint64_t)which << 50};
    fm_pool_for((int)((count + FILL - 1) / FILL), fill_block, &f);
}

/* Draw K distinct experts for each token; their popularities differ by a log-normal factor. */
static void route(struct fm_kernelcase *c)
{
    int E = c->layer.E, K = c->K;
    for (int t = 0; t < c->tokens_max; t++)
        for (int j = 0; j < K; j++) {
            double best = -INFINITY;
            int chosen = 0;
            for (int e = 0; e < E; e++) {
                double liked = 0.35 * fm_rng_normal(c->seed, FM_STREAM_BENCH,
                                                    ((uint64_t)1 << 41) + (uint64_t)e);
                double v = liked + fm_rng_gumbel(c->seed, FM_STREAM_BENCH,
                                                 ((uint64_t)1 << 42) + (uint64_t)t * (uint64_t)E +
                                                     (uint64_t)e);
                bool taken = false;
                for (int i = 0; i < j; i++)
                    taken = taken || c->ids[t * K + i] == e;
                if (!taken && v > best) {
                    best = v;
                    chosen = e;
                }
            }
            c->ids[t * K + j] = chosen;
            c->weights[t * K + j] = 1.0f / (float)K;
        }
}

static void *alloc_array(size_t count, size_t size, const char *what, struct fm_err *err)
{
    size_t bytes = count * size;
    if (err->code)
        return NULL;
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096 + 4096);
    if (!p)
        fm_fail(err, FM_ENOMEM, "no memory for %s of %zu bytes", what, bytes);
    return p;
}

static int alloc_all(struct fm_kernelcase *c, struct fm_err *err)
{
    size_t H = (size_t)c->layer.H, N = (size_t)c->tokens_max, K = (size_t)c->K;
    size_t channels = (size_t)c->layer.channels, size = element_bytes(c);
    c->gate_up = alloc_array(2 * channels * H, size, "weights", err);
    c->down = alloc_array(channels * H, size, "weights", err);
    if (c->layer.type != FM_CLIP_F16) {
        c->plain_gate_up = alloc_array(2 * channels * H, size, "weights", err);
        c->plain_down = alloc_array(channels * H, size, "weights", err);
    }
    c->hidden = alloc_array(N * H, size, "hidden states", err);
    c->out = alloc_array(N * H, size, "results", err);
    c->ids = alloc_array(N * K, sizeof *c->ids, "ids", err);
    c->weights = alloc_array(N * K, sizeof *c->weights, "weights of ids", err);
    c->other = alloc_array(OTHER_BYTES, 1, "other memory", err);
    c->sums = alloc_array(N * K * (3 * (size_t)c->I + H), sizeof *c->sums, "products", err);
    c->workspace_bytes = fm_clip_workspace_bytes(&c->layer, c->tokens_max, c->K);
    c->workspace = alloc_array(c->workspace_bytes, 1, "the workspace", err);
    return err->code;
}

/* Write expert e's weights as models are published. */
static void write_plain(void *arg, int e)
{
    const struct fm_kernelcase *c = arg;
    size_t H = (size_t)c->layer.H, I = (size_t)c->I, size = element_bytes(c), row = H * size;
    const char *gate_up = c->gate_up + 2 * (size_t)e * I * row;
    const char *down = c->down + (size_t)e * I * row;
    char *to = c->plain_gate_up + 2 * (size_t)e * I * row,
         *across = c->plain_down + (size_t)e * I * row;
    for (size_t i = 0; i < I; i++) {
        memcpy(to + i * row, gate_up + 2 * i * row, row);
        memcpy(to + (I + i) * row, gate_up + (2 * i + 1) * row, row);
        for (size_t h = 0; h < H; h++)
            memcpy(across + (h * I + i) * size, down + (i * H + h) * size, size);
    }
}

int fm_kernelcase_fill(struct fm_kernelcase *c, struct fm_err *err)
{
    struct fm_clip_error error = {0};
    if (alloc_all(c, err))
        return err->code;
    size_t H = (size_t)c->layer.H, channels = (size_t)c->layer.channels;
    fill(c, c->gate_up, 2 * channels * H, 2 / sqrt((double)H), 1);
    fill(c, c->down, channels * H, 2 / sqrt((double)c->I), 2);
    fill(c, c->hidden, (size_t)c->tokens_max * H, 1.7, 3);
    memset(c->workspace, 1, c->workspace_bytes); /* touch the pages before timing starts */
    memset(c->out, 0, (size_t)c->tokens_max * H * element_bytes(c));
    memset(c->sums, 0, (size_t)c->tokens_max * (size_t)c->K * (3 * (size_t)c->I + H) * 4);
    route(c);
    if (c->plain_gate_up)
        fm_pool_for(c->layer.E, write_plain, c);
    c->layer.gate_up = c->gate_up;
    c->layer.down = c->down;
    if (fm_clip_prepare(&c->clip, &c->layer, &error) != FM_CLIP_OK)
        return fm_fail(err, error.code, "%s", error.text);
    if (fm_clip_gpu_open(&c->gpu, &c->layer, &error) != FM_CLIP_OK)
        c->gpu = NULL; /* its rows are left out */
    return FM_OK;
}

double fm_kernelcase_gpu(struct fm_kernelcase *c, int tokens, int32_t path)
{
    struct fm_clip_call call = fm_kernelcase_call(c, tokens);
    return c->gpu ? fm_clip_gpu_run(c->gpu, path, &call, c->budget) : 0;
}

void fm_kernelcase_release(struct fm_kernelcase *c)
{
    void *block[] = {c->row0,          c->cap,        c->widths, c->gate_up,  c->down,
                     c->plain_gate_up, c->plain_down, c->hidden, c->out,      c->ids,
                     c->weights,       c->other,      c->sums,   c->workspace};
    fm_clip_release(c->clip);
    fm_clip_gpu_close(c->gpu);
    for (size_t i = 0; i < sizeof block / sizeof *block; i++)
        free(block[i]);
    *c = (struct fm_kernelcase){0};
}

struct fm_clip_call fm_kernelcase_call(struct fm_kernelcase *c, int tokens)
{
    struct fm_clip_call call = {.size = sizeof call, .ids_type = FM_CLIP_I32};
    call.N = tokens;
    call.K = c->K;
    call.hidden = c->hidden;
    call.hidden_stride = call.out_stride = c->layer.H;
    call.ids = c->ids;
    call.weights = c->weights;
    call.out = c->out;
    call.workspace = c->workspace;
    call.workspace_bytes = c->workspace_bytes;
    return call;
}

int fm_kernelcase_rows(const struct fm_kernelcase *c, int tokens, int *rows)
{
    int experts = 0;
    memset(rows, 0, (size_t)c->layer.E * sizeof *rows);
    for (int i = 0; i < tokens * c->K; i++)
        rows[c->ids[i]]++;
    for (int e = 0; e < c->layer.E; e++)
        experts += rows[e] > 0;
    return experts;
}

void fm_kernelcase_flush(struct fm_kernelcase *c)
{
    static int value;
    memset(c->other, ++value & 0xff, OTHER_BYTES);
}
