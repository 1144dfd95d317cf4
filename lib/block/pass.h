/*
 * The arguments of blocks: one or more micro-batches of one shape in one layer, and the memory for
 * their values.
 */
#ifndef FM_PASS_H
#define FM_PASS_H

#include "kernels/ops/kernels.h"
#include "lib/base/pool.h"
#include "lib/block/block.h"

/* A logit so far below all others that its share of a softmax is 0; finite, so that sums and
 * quotients with it are finite. */
#define FM_PASS_CLOSED (-1e30f)

/* Micro-batches are computed together because products with more rows run faster.  Everything is
 * borrowed. */
struct fm_pass {
    const struct fm_ops *ops;
    const struct fm_config *config;
    const struct fm_layer *layer;
    int l;                  /* number of the layer */
    const uint32_t *widths; /* (E), each at most the expert's cap; NULL: the caps */
    const float *closed;    /* (E) added to the router's logits, and to the scores if it chooses by
                               score: 0, or FM_PASS_CLOSED to remove an expert; NULL: all are open */
    const float *cos, *sin; /* (positions, angles), filled by the attention block */
    int positions;          /* number of positions in cos and sin, at least T */
    int S, T;               /* sequences of all micro-batches together, and their length */
    int parts;              /* micro-batches, S / parts sequences each */
    void *cached; /* inner values, kept from the forward for the backward; NULL: not kept */
    int32_t *cached_first; /* (E parts + 1): first row of each expert and micro-batch, kept with
                              them; NULL: not kept */
    bool cached_gu; /* products of gate_up are among them: the backward needs only the channels
                       within `widths` */
};

static inline int fm_pass_rows(const struct fm_pass *pass)
{
    return pass->S * pass->T;
}

/* A projection of the attention; fm_pass_rest is what it has from element `first` on. */
static inline struct fm_in fm_pass_projection(const struct fm_pass *pass, const void *w)
{
    return (struct fm_in){w, pass->layer->narrow ? FM_BF16 : FM_F32, NULL};
}

static inline const void *fm_pass_rest(const struct fm_pass *pass, const void *w, size_t first)
{
    return fm_element(fm_pass_projection(pass, w), first).data;
}

/* y (N, width) = x (N, terms) W^T, W a projection (width, terms); with `add`, y += x W^T. */
static inline void fm_pass_project(const struct fm_pass *pass, float *y, const float *x,
                                   const void *w, int width, int terms, bool add)
{
    pass->ops->gemm(false, true, fm_pass_rows(pass), width, terms, 1, fm_f32(x), terms,
                    fm_pass_projection(pass, w), terms, add, y, width);
}

/* y (N, width) = x (N, H) W^T + bias, which may be NULL. */
static inline void fm_pass_project_input(const struct fm_pass *pass, float *y, const float *x,
                                         const void *w, const float *bias, int width)
{
    fm_pass_project(pass, y, x, w, width, pass->config->H, false);
    if (bias)
        pass->ops->add_rows(y, bias, fm_pass_rows(pass), width);
}

/* dx (N, terms) = dy (N, width) W; with `add`, dx += dy W. */
static inline void fm_pass_project_back(const struct fm_pass *pass, float *dx, const float *dy,
                                        const void *w, int width, int terms, bool add)
{
    pass->ops->gemm(false, false, fm_pass_rows(pass), terms, width, 1, fm_f32(dy), width,
                    fm_pass_projection(pass, w), terms, add, dx, terms);
}

/* An array that only products read, in scratch. */
static inline struct fm_out fm_pass_operand(const struct fm_pass *pass, size_t n)
{
    enum fm_dtype dtype = pass->ops->operand;
    return (struct fm_out){fm_scratch(n * (size_t)(fm_dtype_bits(dtype) / 8)), dtype};
}

/* Allocator of inner values: one after another from `at` on, or in scratch if `at` is NULL; `bytes`
 * counts them.  A counting arena only counts. */
struct fm_arena {
    bool counting;
    char *at;
    size_t bytes;
};

/* Memory for n elements of four bytes; fm_arena_alloc_if returns NULL if it is not wanted. */
void *fm_arena_alloc(struct fm_arena *arena, size_t n);
void *fm_arena_alloc_if(bool wanted, struct fm_arena *arena, size_t n);

/* An arena in memory that the caller provides. */
#define FM_ARENA_IN(memory) (&(struct fm_arena){.at = (char *)(memory)})

/* Number of floats that the attention block needs for the inner values of N tokens of layer l. */
size_t fm_attention_floats(const struct fm_config *config, int l, int N);

#endif
