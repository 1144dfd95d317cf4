/*
 * Experts with biases and a clamped activation.  Products and their order are those of plain
 * SwiGLU.  Biases are added directly after the products, so that visitors of an expert's rows see
 * the input of the activation, and rows of experts without channels get down's bias.
 */
#include "lib/block/clamped.h"

#include <float.h>
#include <string.h>

#include "lib/block/pass.h"

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    double alpha = 1.702, limit = 7;
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(keys->json, "hidden_act");
    const char *name = "silu";
    int rc = act && !cJSON_IsNull(act) ? fm_json_get_string(keys->json, "hidden_act", &name, err)
                                       : FM_OK;
    if (!rc && strcmp(name, "silu") != 0)
        rc = fm_fail(err, FM_ECONFIG, "hidden_act '%.64s' is not supported; supported: silu", name);
    if (!rc)
        rc = fm_json_opt_double(keys->json, "swiglu_alpha", FLT_MIN, FLT_MAX, &alpha, err);
    if (!rc)
        rc = fm_json_opt_double(keys->json, "swiglu_limit", FLT_MIN, FLT_MAX, &limit, err);
    c->alpha = (float)alpha;
    c->limit = (float)limit;
    return rc;
}

/* gu (n, 2 k) = x gate_up^T + bias. */
static void multiply(const struct fm_pass *p, const struct fm_expert_rows *r, float *gu,
                     struct fm_in x, int k)
{
    int H = p->config->H;
    p->ops->gemm(false, true, r->n, 2 * k, H, 1, x, H, r->gate_up, H, 0, gu, 2 * k);
    p->ops->add_rows(gu, r->gate_up_bias, r->n, 2 * k);
}

static void forward(const struct fm_pass *p, const struct fm_expert_rows *r, float *z, float *gu,
                    struct fm_in x)
{
    const struct fm_ops *op = p->ops;
    int n = r->n, H = p->config->H, k = r->width;
    if (k == 0) {
        op->zero(z, (size_t)n * (size_t)H * sizeof *z);
    } else {
        struct fm_mark mark = fm_scratch_mark();
        struct fm_out h = r->h.data ? r->h : fm_pass_operand(p, (size_t)n * (size_t)k);
        multiply(p, r, gu, x, k);
        op->swiglu_clamped(h, gu, n, k, p->config->alpha, p->config->limit);
        op->gemm(false, false, n, H, k, 1, fm_written(h), k, r->down, H, 0, z, H);
        fm_scratch_release(mark);
    }
    op->add_rows(z, r->down_bias, n, H);
}

/* dx and dot, from dgu, h and dh; <dy, expert(x)> is dot(h, dh) over the channels in use, plus <dy,
 * down's bias>. */
static void backward_rows(const struct fm_pass *p, const struct fm_expert_rows *r,
                          const struct fm_expert_back *b)
{
    int n = r->n, H = p->config->H, k = r->width;
    if (k == 0) {
        p->ops->zero(b->dx, (size_t)n * (size_t)H * sizeof *b->dx);
        p->ops->zero(b->dot, (size_t)n * sizeof *b->dot);
    } else {
        p->ops->gemm(false, false, n, H, 2 * k, 1, fm_written(b->dgu), 2 * k, r->gate_up, H, 0,
                     b->dx, H);
        p->ops->dot_rows(b->dot, fm_written(b->h), fm_f32(b->dh), n, b->full, k);
    }
    p->ops->add_dots(b->dot, b->dy, r->down_bias, n, H);
}

static void backward(const struct fm_pass *p, const struct fm_expert_rows *r,
                     const struct fm_expert_back *b)
{
    const struct fm_ops *op = p->ops;
    int n = r->n, H = p->config->H, full = b->full;
    if (full > 0) {
        if (!b->known)
            multiply(p, r, b->gu, b->x, full);
        op->swiglu_clamped(b->h, b->gu, n, full, p->config->alpha, p->config->limit);
        op->gemm(false, true, n, full, H, 1, b->dy, H, r->down, H, 0, b->dh, full);
    }
    if (r->width > 0)
        op->swiglu_clamped_back(b->dgu, b->dh, b->gu, n, full, r->width, p->config->alpha,
                                p->config->limit);
    if (b->dx)
        backward_rows(p, r, b);
}

const struct fm_expert_form fm_swiglu_clamped = {.name = "swiglu-clamped",
                                                 .rows = 2,
                                                 .bias = true,
                                                 .read = read,
                                                 .forward = forward,
                                                 .backward = backward};
