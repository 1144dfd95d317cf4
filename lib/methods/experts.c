/*
 * Recovery `experts`: low-rank adapters of the experts (fm-method(7)).  The gradient of an adapter,
 * from the view of one expert in the backward pass, is two thin products for each of A and B.  The
 * gradient of a whole weight matrix is never formed.
 */
#include "lib/learn/tune.h"

static double bytes(const struct fm_recoverer *r, double kept)
{
    const struct fm_config *c = r->task.config;
    return 3.0 * r->options->rank * ((double)c->E * c->H + kept) * sizeof(float);
}

static int init(struct fm_adapter *a, const struct fm_config *c, const struct fm_recover_options *o,
                const uint32_t *widths, struct fm_err *err)
{
    return fm_adapter_init(a, c->M, c->E, c->H, o->rank, (float)o->alpha, widths, err);
}

/* For y (n, out) = x (W + s B A)^T with x (n, in), A (r, in) and B (out, r): dA += s (dy B)^T x and
 * dB += s dy^T (x A^T).  Rows of x are ldx apart, rows of A and dA lda.  `value` and `grad` are A,
 * B and dA, dB. */
static void add_gradient(const struct fm_ops *ops, float *const *grad, const float *const *value,
                         struct fm_in x, int ldx, int lda, int in, struct fm_in dy, int out, int n,
                         int r, float s)
{
    struct fm_mark mark = fm_scratch_mark();
    float *t = fm_scratch((size_t)n * (size_t)r * sizeof *t);
    ops->gemm(false, true, n, r, in, 1, x, ldx, fm_f32(value[0]), lda, 0, t, r);
    ops->gemm(true, false, out, r, n, s, dy, out, fm_f32(t), r, 1, grad[1], r);
    ops->gemm(false, false, n, r, out, 1, dy, out, fm_f32(value[1]), r, 0, t, r);
    ops->gemm(true, false, r, in, n, s, fm_f32(t), r, x, ldx, 1, grad[0], lda);
    fm_scratch_release(mark);
}

static void add_expert(const struct fm_adapter *a, const struct fm_ops *ops, float *gradient,
                       const struct fm_expert_view *v)
{
    size_t i = (size_t)v->layer * (size_t)a->E + (size_t)v->expert;
    int k = (int)a->widths[i], kk = v->width < k ? v->width : k;
    int r = a->r, H = a->H;
    float s = a->alpha / (float)r;
    if (kk == 0)
        return;
    struct fm_mark mark = fm_scratch_mark();
    size_t bytes = (size_t)v->n * (size_t)kk * (size_t)(fm_dtype_bits(v->dgu.dtype) / 8);
    struct fm_out dgate = {fm_scratch(bytes), v->dgu.dtype};
    struct fm_out dup = {fm_scratch(bytes), v->dgu.dtype};
    ops->split_pairs(dgate, dup, v->dgu, v->n, v->width, kk);
    const float *expert = a->values + a->offset[i];
    const float *value[FM_LORA_PARTS];
    float *grad[FM_LORA_PARTS];
    for (int p = 0; p < FM_LORA_PARTS; p++) {
        value[p] = fm_adapter_part(a, a->values, v->layer, v->expert, (enum fm_lora)p);
        grad[p] = gradient + (value[p] - expert);
    }
    add_gradient(ops, grad + FM_GATE_A, value + FM_GATE_A, v->x, H, H, H, fm_written(dgate), kk,
                 v->n, r, s);
    add_gradient(ops, grad + FM_UP_A, value + FM_UP_A, v->x, H, H, H, fm_written(dup), kk, v->n, r,
                 s);
    /* Of h (n, full), only the channels that the lane and the adapter both have. */
    add_gradient(ops, grad + FM_DOWN_A, value + FM_DOWN_A, v->h, v->full, k, kk, v->dy, H, v->n, r,
                 s);
    fm_scratch_release(mark);
}

const struct fm_recovery fm_recovery_experts = {
    .name = "experts",
    .made = "adapter",
    .trains = true,
    .merges = true,
    .w_task = 1,
    .run = &fm_tuning,
    .bytes = bytes,
    .init = init,
    .expert = add_expert,
};
