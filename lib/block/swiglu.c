/*
 * SwiGLU experts.  Their rows are interleaved in memory and in bundles (gate 0, up 0, gate 1, ...),
 * so that a narrower expert is a prefix.
 */
#include "lib/block/swiglu.h"

#include <string.h>

#include "lib/block/pass.h"

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    const cJSON *act = cJSON_GetObjectItemCaseSensitive(keys->json, "hidden_act");
    const char *name = NULL;
    (void)c;
    if (!act || cJSON_IsNull(act))
        return FM_OK;
    int rc = fm_json_get_string(keys->json, "hidden_act", &name, err);
    if (!rc && strcmp(name, "silu") != 0)
        rc = fm_fail(err, FM_ECONFIG, "hidden_act '%.64s' is not supported; supported: silu", name);
    return rc;
}

static void forward(const struct fm_pass *p, const struct fm_expert_rows *r, float *z, float *gu,
                    struct fm_in x)
{
    const struct fm_ops *op = p->ops;
    int n = r->n, H = p->config->H, k = r->width;
    if (k == 0) {
        op->zero(z, (size_t)n * (size_t)H * sizeof *z);
        return;
    }
    struct fm_mark mark = fm_scratch_mark();
    struct fm_out h = r->h.data ? r->h : fm_pass_operand(p, (size_t)n * (size_t)k);
    op->gemm(false, true, n, 2 * k, H, 1, x, H, r->gate_up, H, 0, gu, 2 * k);
    op->swiglu(h, gu, n, k);
    op->gemm(false, false, n, H, k, 1, fm_written(h), k, r->down, H, 0, z, H);
    fm_scratch_release(mark);
}

/* dx and dot, from dgu, h and dh. */
static void backward_rows(const struct fm_pass *p, const struct fm_expert_rows *r,
                          const struct fm_expert_back *b)
{
    int n = r->n, H = p->config->H, k = r->width;
    if (k == 0) {
        p->ops->zero(b->dx, (size_t)n * (size_t)H * sizeof *b->dx);
        p->ops->zero(b->dot, (size_t)n * sizeof *b->dot);
        return;
    }
    p->ops->gemm(false, false, n, H, 2 * k, 1, fm_written(b->dgu), 2 * k, r->gate_up, H, 0, b->dx,
                 H);
    p->ops->dot_rows(b->dot, fm_written(b->h), fm_f32(b->dh), n, b->full, k);
}

/* <dy, expert(x)> is dot(h, dh) over the channels in use. */
static void backward(const struct fm_pass *p, const struct fm_expert_rows *r,
                     const struct fm_expert_back *b)
{
    const struct fm_ops *op = p->ops;
    int n = r->n, H = p->config->H, full = b->full;
    if (full > 0) {
        if (!b->known)
            op->gemm(false, true, n, 2 * full, H, 1, b->x, H, r->gate_up, H, 0, b->gu, 2 * full);
        op->swiglu(b->h, b->gu, n, full);
        op->gemm(false, true, n, full, H, 1, b->dy, H, r->down, H, 0, b->dh, full);
    }
    if (r->width > 0)
        op->swiglu_back(b->dgu, b->dh, b->gu, n, full, r->width);
    if (b->dx)
        backward_rows(p, r, b);
}

const struct fm_expert_form fm_swiglu = {
    .name = "swiglu", .rows = 2, .read = read, .forward = forward, .backward = backward};
