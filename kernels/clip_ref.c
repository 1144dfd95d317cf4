/* The definition of a clipped forward: plain loops, sums in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/clip_device.h"
#include "kernels/clip_plan.h"
#include "kernels/clip_tile.h"

static double element(const void *array, int32_t type, int64_t i)
{
    float value;
    if (type == FM_CLIP_F32)
        return ((const float *)array)[i];
    fm_dtype_to_f32(&value, (const uint16_t *)array + i, fm_clip_dtype(type), 1);
    return value;
}

/* Adds weight * expert(x) of one channel into out and size. */
static void add_channel(double *out, double *size, const struct fm_clip_layer *l, int64_t channel,
                        const struct fm_clip_call *c, int64_t token, double weight)
{
    double g = 0, u = 0;
    for (int i = 0; i < l->H; i++) {
        double x = element(c->hidden, l->type, token * c->hidden_stride + i);
        g += x * element(l->gate_up, l->type, 2 * channel * l->H + i);
        u += x * element(l->gate_up, l->type, (2 * channel + 1) * l->H + i);
    }
    double h = g / (1 + exp(-g)) * u;
    for (int i = 0; i < l->H; i++) {
        double term = weight * h * element(l->down, l->type, channel * l->H + i);
        out[i] += term;
        if (size)
            size[i] += fabs(term);
    }
}

static void add_token(double *out, double *size, const struct fm_clip_layer *l,
                      const struct fm_clip_call *c, const struct fm_clip_plan *plan, int64_t t)
{
    for (int32_t j = 0; j < c->K; j++) {
        int64_t slot = t * c->K + j;
        if (plan->position[slot] < 0)
            continue;
        int64_t id = c->ids_type == FM_CLIP_I32 ? ((const int32_t *)c->ids)[slot]
                                                : ((const int64_t *)c->ids)[slot];
        for (int32_t k = 0; k < plan->width[slot]; k++)
            add_channel(out, size, l, l->row0[id - l->e0] + k, c, t, c->weights[slot]);
    }
}

int32_t fm_clip_reference(double *out, double *size, const struct fm_clip_layer *layer,
                          const struct fm_clip_call *call, struct fm_clip_error *error)
{
    size_t slots = (size_t)call->N * (size_t)call->K, row = (size_t)layer->H;
    struct fm_clip_plan plan = {.count = malloc(((size_t)layer->E + 1) * sizeof *plan.count),
                                .width = malloc((slots + 1) * sizeof *plan.width),
                                .position = malloc((slots + 1) * sizeof *plan.position),
                                .slot = malloc((slots + 1) * sizeof *plan.slot),
                                .group = malloc((slots + 1) * sizeof *plan.group)};
    int32_t code = fm_clip_check_rows(layer, layer->row0, layer->cap, error);
    if (!plan.count || !plan.width || !plan.position || !plan.slot || !plan.group)
        code = fm_clip_fail(error, FM_CLIP_ENOMEM, "no memory for %lld tokens", (long long)call->N);
    if (code == FM_CLIP_OK) {
        struct fm_clip_call settled = *call;
        if (!call->budget) {
            settled.budget = layer->budget;
            settled.budget_type = layer->budget_type;
        }
        fm_clip_plan_make(&plan, layer, layer->cap, &settled, 0, (int32_t)call->N);
        memset(out, 0, (size_t)call->N * row * sizeof *out);
        if (size)
            memset(size, 0, (size_t)call->N * row * sizeof *size);
        for (int64_t t = 0; t < call->N; t++)
            add_token(out + (size_t)t * row, size ? size + (size_t)t * row : NULL, layer, call,
                      &plan, t);
    }
    free(plan.count);
    free(plan.width);
    free(plan.position);
    free(plan.slot);
    free(plan.group);
    return code;
}
