/*
 * What the parts of one layer's computation share; private to lib/engine/layer.c,
 * lib/engine/attend.c and lib/engine/mlp.c.  Arrays lie on the pass's device
 * (kernels/ops/kernels.h) and are touched by its operations alone; which rows go to which expert
 * the host is told.
 */
#ifndef FM_LAYERING_H
#define FM_LAYERING_H

#include "lib/base/pool.h"
#include "lib/engine/layer.h"

/* N tokens' inner values of a layer, on the device, in scratch or where the pass keeps them.  What
 * the model or the layer does not need is NULL. */
struct fm_inner {
    float *x1;              /* (N, H); of a forward, only where it is kept */
    float *gu;              /* (R, 2 I): gate and up, rows of an expert at their width; NULL: not
                               kept */
    float *mlp_gu;          /* (N, 2 D): the same of the MLP that all tokens go through */
    float *xn, *rstd;       /* (N, H), (N): first norm */
    float *q, *k, *v;       /* (N, Q C), (N, G C) twice: after rope */
    float *q_raw, *k_raw;   /* as q, k: before their norms */
    float *v_raw;           /* as v: before it is clamped */
    float *q_rstd, *k_rstd; /* (N Q), (N G), or (N) */
    float *o;               /* (N, Q C) */
    float *xm, *rstd_m;     /* (N, H), (N): second norm */
    int32_t *ids;           /* (N, K) chosen experts */
    float *weights;         /* (N, K) */
    float *p;               /* (N, E): what the router's backward needs of all experts */
    /* Rows sorted by expert, ascending tokens in each; R = N K of them. */
    int32_t *rows;  /* (R): token of a row */
    float *scale;   /* (R): its router weight */
    int32_t *where; /* (N, K): row of a choice */
    int32_t *first; /* (E P + 1), the host's: expert e has rows [first[e P], first[(e + 1) P]), P
                       micro-batches one after another */
};

/* Scratch on the pass's device, between a mark and its release. */
static inline struct fm_mark fm_pass_mark(const struct fm_pass *pass)
{
    return pass->ops->device->mark();
}

static inline void fm_pass_release(const struct fm_pass *pass, struct fm_mark mark)
{
    pass->ops->device->release(mark);
}

static inline float *fm_floats(const struct fm_pass *pass, size_t n)
{
    return pass->ops->device->scratch(n * sizeof(float));
}

/* x1 (N, H), which holds x, += attention of its norm. */
void fm_attend(const struct fm_pass *pass, struct fm_inner *a, float *x1);
/* dx (N, H) holds the gradient at x1 and receives the one at x. */
void fm_attend_back(const struct fm_pass *pass, const struct fm_inner *a, float *dx,
                    const float *x);

/* y (N, H) += the MLP of a->xm: a dense layer's, or the shared expert's with its share. */
void fm_mlp(const struct fm_pass *pass, const struct fm_inner *a, float *y);
/* Adds into dxm (N, H), the gradient at a->xm; dy (N, H) is the one at y. */
void fm_mlp_back(const struct fm_pass *pass, const struct fm_inner *a, float *dxm, const float *dy);

#endif
