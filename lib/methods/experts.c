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

/* dA (r, H) += s (dy B)^T x and dB (k, r) += s dy^T (x A^T), for y = x (W + s B A)^T with
 * x (n, H) and dy (n, k): gate and up. */
static void add_gradient(const struct fm_ops *ops, float *dA, float *dB, const float *A,
                         const float *B, struct fm_in x, struct fm_in dy, int n, int k, int H,
                         int r, float s)
{
    struct fm_mark mark = fm_scratch_mark();
    float *t = fm_scratch((size_t)n * (size_t)r * sizeof *t);
    ops->gemm(false, true, n, r, H, 1, x, H, fm_f32(A), H, 0, t, r);
    ops->gemm(true, false, k, r, n, s, dy, k, fm_f32(t), r, 1, dB, r);
    ops->gemm(false, false, n, r, k, 1, dy, k, fm_f32(B), r, 0, t, r);
    ops->gemm(true, false, r, H, n, s, fm_f32(t), r, x, H, 1, dA, H);
    fm_scratch_release(mark);
}

/* The gradients for down: y = h (W + s (B A))^T with A (r, k) and B (H, r); only kk channels of h
 * (n, full) are read. */
static void add_gradient_down(const struct fm_ops *ops, float *dA, float *dB, const float *A,
                              const float *B, const struct fm_expert_view *v, int kk, int k, int H,
                              int r, float s)
{
    struct fm_mark mark = fm_scratch_mark();
    float *t = fm_scratch((size_t)v->n * (size_t)r * sizeof *t);
    ops->gemm(false, true, v->n, r, kk, 1, v->h, v->full, fm_f32(A), k, 0, t, r);
    ops->gemm(true, false, H, r, v->n, s, v->dy, H, fm_f32(t), r, 1, dB, r);
    ops->gemm(false, false, v->n, r, H, 1, v->dy, H, fm_f32(B), r, 0, t, r);
    ops->gemm(true, false, r, kk, v->n, s, fm_f32(t), r, v->h, v->full, 1, dA, k);
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
    add_gradient(ops, grad[FM_GATE_A], grad[FM_GATE_B], value[FM_GATE_A], value[FM_GATE_B], v->x,
                 fm_written(dgate), v->n, kk, H, r, s);
    add_gradient(ops, grad[FM_UP_A], grad[FM_UP_B], value[FM_UP_A], value[FM_UP_B], v->x,
                 fm_written(dup), v->n, kk, H, r, s);
    add_gradient_down(ops, grad[FM_DOWN_A], grad[FM_DOWN_B], value[FM_DOWN_A], value[FM_DOWN_B], v,
                      kk, k, H, r, s);
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
