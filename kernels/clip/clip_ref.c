/* Reference implementation of a clipped forward: plain loops, sums in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/clip/clip_device.h"
#include "kernels/clip/clip_plan.h"
#include "kernels/clip/clip_tile.h"

/* Buffers for one token: its row of hidden, and rows of weights, as float. */
struct rows {
    const struct fm_clip_layer *l;
    const struct fm_clip_call *c;
    float *x, *gate, *up, *down; /* (H) each */
};

/* Add `by` times a row to out, and the absolute values of these terms to size. */
static void add_row(double *out, double *size, const float *row, double by, int H)
{
    for (int i = 0; i < H; i++) {
        double term = by * (double)row[i];
        out[i] += term;
        if (size)
            size[i] += fabs(term);
    }
}

static double inner(double g, double u, const struct fm_clip_layer *l)
{
    double limit = (double)l->limit;
    if (l->activation == FM_CLIP_SILU)
        return g / (1 + exp(-g)) * u;
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return (u + 1) * g / (1 + exp(-(double)l->alpha * g));
}

/* Add one channel's part of weight * expert(x) to out, and its absolute values to size. */
static void add_channel(double *out, double *size, const struct rows *r, int64_t channel,
                        double weight)
{
    int H = r->l->H;
    double g = 0, u = 0;
    float bias[2] = {0, 0};
    fm_clip_widen(r->gate, r->l->gate_up, 2 * channel * H, H, r->l);
    fm_clip_widen(r->up, r->l->gate_up, (2 * channel + 1) * H, H, r->l);
    fm_clip_widen(r->down, r->l->down, channel * H, H, r->l);
    if (r->l->gate_up_bias)
        fm_clip_widen(bias, r->l->gate_up_bias, 2 * channel, 2, r->l);
    for (int i = 0; i < H; i++) {
        g += (double)r->x[i] * (double)r->gate[i];
        u += (double)r->x[i] * (double)r->up[i];
    }
    double h = inner(g + (double)bias[0], u + (double)bias[1], r->l);
    add_row(out, size, r->down, weight * h, H);
}

/* Add token t with row `b` of the widths. */
static void add_token(double *out, double *size, const struct rows *r, int32_t b, int64_t t)
{
    const struct fm_clip_call *c = r->c;
    int32_t faults = 0;
    fm_clip_widen(r->x, c->hidden, t * c->hidden_stride, r->l->H, r->l);
    for (int32_t j = 0; j < c->K; j++) {
        int64_t slot = t * c->K + j;
        int32_t e = fm_clip_plan_expert(r->l, c, slot);
        if (e < 0)
            continue;
        int32_t width = fm_clip_plan_width(r->l, r->l->cap, b, e, &faults);
        for (int32_t k = 0; k < width; k++)
            add_channel(out, size, r, r->l->row0[e] + k, c->weights[slot]);
        if (r->l->down_bias) {
            fm_clip_widen(r->down, r->l->down_bias, (int64_t)e * r->l->H, r->l->H, r->l);
            add_row(out, size, r->down, c->weights[slot], r->l->H);
        }
    }
}

/* The sums of every token of a call whose budget is set. */
static int32_t add_tokens(double *out, double *size, const struct fm_clip_layer *layer,
                          const struct fm_clip_call *call, struct fm_clip_error *error)
{
    size_t row = (size_t)layer->H;
    float *wide = malloc(4 * row * sizeof *wide);
    struct rows r = {layer, call, wide, wide + row, wide + 2 * row, wide + 3 * row};
    int32_t faults = 0;
    if (!wide)
        return fm_clip_fail(error, FM_CLIP_ENOMEM, "no memory for a token of %d numbers", layer->H);
    memset(out, 0, (size_t)call->N * row * sizeof *out);
    if (size)
        memset(size, 0, (size_t)call->N * row * sizeof *size);
    for (int64_t t = 0; t < call->N; t++)
        add_token(out + (size_t)t * row, size ? size + (size_t)t * row : NULL, &r,
                  fm_clip_plan_budget(layer, call, t, &faults), t);
    free(wide);
    return FM_CLIP_OK;
}

int32_t fm_clip_reference(double *out, double *size, const struct fm_clip_layer *layer,
                          const struct fm_clip_call *call, struct fm_clip_error *error)
{
    struct fm_clip_layer l;
    struct fm_clip_call c;
    int32_t code;
    if ((code = fm_clip_copy_layer(&l, layer, error)) != FM_CLIP_OK ||
        (code = fm_clip_copy_call(&c, call, error)) != FM_CLIP_OK ||
        (code = fm_clip_check_layer(&l, error)) != FM_CLIP_OK ||
        (code = fm_clip_check_rows(&l, l.row0, l.cap, error)) != FM_CLIP_OK ||
        (code = fm_clip_check_inputs(&l, &c, error)) != FM_CLIP_OK || c.N == 0)
        return code;
    if (!out)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "out is NULL");
    if (c.N > INT32_MAX / c.K)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "%lld tokens of %d slots are 2^31 slots or more",
                            (long long)c.N, (int)c.K);
    if (!c.budget) {
        c.budget = l.budget;
        c.budget_type = l.budget_type;
    }
    return add_tokens(out, size, &l, &c, error);
}
