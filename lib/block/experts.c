/*
 * The ways in which experts are stored in tensors, the sizes that result, and the forward and
 * backward of all forms.  A channel always consists of the same numbers: `rows` rows of
 * gate_up, one row of down, and a bias for each row of gate_up if the form has biases.  The biases
 * of gate_up are added directly after the product, so that visitors of an expert's rows see the
 * input of the activation.  Down's bias is added even if an expert has no channels.
 */
#include "lib/block/experts.h"

#include <assert.h>

#include "lib/block/pass.h"

int fm_expert_cuts(struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX], const struct fm_expert_form *form,
                   enum fm_weight_part part)
{
    int r = form->rows;
    switch (part) {
    case FM_PART_GATE:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 0, 1, false};
        return 1;
    case FM_PART_UP:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 1, 1, false};
        return 1;
    case FM_PART_GATE_THEN_UP:
        cut[0] = fm_expert_cut(form, FM_PART_GATE);
        cut[1] = fm_expert_cut(form, FM_PART_UP);
        return 2;
    case FM_PART_GATE_UP_T:
        cut[0] = (struct fm_expert_cut){part, FM_PART_GATE_UP, 0, r, true};
        return 1;
    case FM_PART_DOWN:
        cut[0] = (struct fm_expert_cut){part, FM_PART_DOWN_T, 0, 1, true};
        return 1;
    default:
        assert(part == FM_PART_GATE_UP || part == FM_PART_DOWN_T || part == FM_PART_BIAS);
        cut[0] = (struct fm_expert_cut){part, part, 0, fm_expert_part_rows(form, part), false};
        return 1;
    }
}

struct fm_expert_cut fm_expert_cut(const struct fm_expert_form *form, enum fm_weight_part part)
{
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    int n = fm_expert_cuts(cut, form, part);
    assert(n == 1);
    (void)n;
    return cut[0];
}

uint64_t fm_expert_cut_channel(const struct fm_expert_cut *cut, int H)
{
    return (uint64_t)cut->rows * fm_expert_part_row(cut->of, H);
}

int fm_expert_parts(const struct fm_expert_form *form)
{
    return form->bias ? FM_EXPERT_PARTS_MAX : FM_EXPERT_PARTS_MAX - 1;
}

const char *fm_expert_part_name(enum fm_weight_part part)
{
    static const char *const name[FM_EXPERT_PARTS_MAX] = {"gate_up", "down", "gate_up_bias"};
    return name[part - FM_PART_GATE_UP];
}

int fm_expert_part_rows(const struct fm_expert_form *form, enum fm_weight_part part)
{
    return part == FM_PART_DOWN_T ? 1 : form->rows;
}

uint64_t fm_expert_part_row(enum fm_weight_part part, int H)
{
    return part == FM_PART_BIAS ? 1 : (uint64_t)H;
}

int fm_expert_part_shape(uint64_t shape[3], const struct fm_config *c, enum fm_weight_part part)
{
    shape[0] = (uint64_t)c->E;
    shape[1] = (uint64_t)c->I * (uint64_t)fm_expert_part_rows(c->expert, part);
    shape[2] = (uint64_t)c->H;
    return part == FM_PART_BIAS ? 2 : 3;
}

uint64_t fm_expert_channel_weights(const struct fm_expert_form *form, int H)
{
    return ((uint64_t)form->rows + 1) * (uint64_t)H;
}

uint64_t fm_expert_channel_params(const struct fm_expert_form *form, int H)
{
    return fm_expert_channel_weights(form, H) + (form->bias ? (uint64_t)form->rows : 0);
}

/* ---- forward and backward ---- */

/* gu (n, r k) = x gate_up^T, plus the biases if there are any. */
static void multiply(const struct fm_pass *p, const struct fm_expert_rows *r, float *gu,
                     struct fm_in x, int k)
{
    int H = p->config->H, rows = p->config->expert->rows * k;
    p->ops->gemm(false, true, r->n, rows, H, 1, x, H, r->gate_up, H, 0, gu, rows);
    if (r->gate_up_bias)
        p->ops->add_rows(gu, r->gate_up_bias, r->n, rows);
}

void fm_expert_forward(const struct fm_pass *p, const struct fm_expert_rows *r, float *z, float *gu,
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
        p->config->expert->activate(p, false, h, gu, n, k);
        op->gemm(false, false, n, H, k, 1, fm_written(h), k, r->down, H, 0, z, H);
        fm_scratch_release(mark);
    }
    if (r->down_bias)
        op->add_rows(z, r->down_bias, n, H);
}

/* dx and dot, from dgu, h and dh; <dy, expert(x)> is dot(h, dh) over the channels in use, plus <dy,
 * down's bias> if there is one. */
static void backward_rows(const struct fm_pass *p, const struct fm_expert_rows *r,
                          const struct fm_expert_back *b)
{
    int n = r->n, H = p->config->H, k = r->width;
    if (k == 0) {
        p->ops->zero(b->dx, (size_t)n * (size_t)H * sizeof *b->dx);
        p->ops->zero(b->dot, (size_t)n * sizeof *b->dot);
    } else {
        int rows = p->config->expert->rows * k;
        p->ops->gemm(false, false, n, H, rows, 1, fm_written(b->dgu), rows, r->gate_up, H, 0, b->dx,
                     H);
        p->ops->dot_rows(b->dot, fm_written(b->h), fm_f32(b->dh), n, b->full, k);
    }
    if (r->down_bias)
        p->ops->add_dots(b->dot, b->dy, r->down_bias, n, H);
}

void fm_expert_backward(const struct fm_pass *p, const struct fm_expert_rows *r,
                        const struct fm_expert_back *b)
{
    const struct fm_ops *op = p->ops;
    const struct fm_expert_form *form = p->config->expert;
    int n = r->n, H = p->config->H, full = b->full;
    if (full > 0) {
        if (!b->known)
            multiply(p, r, b->gu, b->x, full);
        form->activate(p, false, b->h, b->gu, n, full);
        op->gemm(false, true, n, full, H, 1, b->dy, H, r->down, H, 0, b->dh, full);
    }
    if (r->width > 0)
        form->activate_back(p, false, b->dgu, b->dh, b->gu, n, full, r->width);
    if (b->dx)
        backward_rows(p, r, b);
}
