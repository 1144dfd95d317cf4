/*
 * What blocks compute with: one or more micro-batches of one shape on their way through one layer,
 * and where their values lie.
 */
#ifndef FM_PASS_H
#define FM_PASS_H

#include "kernels/ops/kernels.h"
#include "lib/base/pool.h"
#include "lib/block/block.h"

/* So far below every logit that its share of a softmax is 0, and finite, so that differences and
 * quotients of it are. */
#define FM_PASS_CLOSED (-1e30f)

/* Rows of many micro-batches make better products.  Everything is borrowed. */
struct fm_pass {
    const struct fm_ops *ops;
    const struct fm_config *config;
    const struct fm_layer *layer;
    int l;                  /* its number */
    const uint32_t *widths; /* (E), each at most the expert's cap; NULL: the caps */
    const float *closed;    /* (E) added to the router's logits and, where it chooses by score, to
                               the scores it chooses by: 0, or FM_PASS_CLOSED for an expert that is
                               as if it were not there; NULL: all are */
    const float *cos, *sin; /* (T, angles): as the attention block filled them */
    int S, T;               /* sequences of all micro-batches together */
    int parts;              /* micro-batches, S / parts sequences each */
    void *cached;           /* inner values, from the forward to the backward; NULL: not kept */
    int32_t *cached_first;  /* and (E parts + 1): which expert has which rows; NULL: not kept */
    bool cached_gu;         /* products of gate_up are among them: the backward needs no other
                             channels than the widths' */
};

static inline int fm_pass_rows(const struct fm_pass *pass)
{
    return pass->S * pass->T;
}

/* A projection of the attention, from element `first` on. */
static inline struct fm_in fm_pass_projection(const struct fm_pass *pass, const void *w,
                                              size_t first)
{
    enum fm_dtype dtype = pass->layer->narrow ? FM_BF16 : FM_F32;
    return fm_element((struct fm_in){w, dtype, NULL}, first);
}

/* An array that only products read, in scratch. */
static inline struct fm_out fm_pass_operand(const struct fm_pass *pass, size_t n)
{
    enum fm_dtype dtype = pass->ops->operand;
    return (struct fm_out){fm_scratch(n * (size_t)(fm_dtype_bits(dtype) / 8)), dtype};
}

/* Where inner values go: one after another from `at` on, or to scratch where that is NULL; `bytes`
 * counts them.  A counting arena does nothing else. */
struct fm_arena {
    bool counting;
    char *at;
    size_t bytes;
};

/* Memory for n elements of four bytes; and the same where they are wanted, else NULL. */
void *fm_arena_alloc(struct fm_arena *arena, size_t n);
void *fm_arena_alloc_if(bool wanted, struct fm_arena *arena, size_t n);

#endif
