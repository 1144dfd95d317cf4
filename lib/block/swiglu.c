/*
 * SwiGLU and GEGLU experts.  Their rows are interleaved in memory and in bundles (gate 0, up 0,
 * gate 1, ...), so that a narrower expert is a prefix.
 */
#include "lib/block/swiglu.h"

#include "lib/block/pass.h"

static int read(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const struct fm_keys_only only[] = {{"hidden_act", "'silu'"}, {NULL, NULL}};
    (void)c;
    return fm_keys_only(keys, only, err);
}

static int read_gelu(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const struct fm_keys_only only[] = {{"hidden_activation", "'gelu_pytorch_tanh'"},
                                               {NULL, NULL}};
    (void)c;
    return fm_keys_only(keys, only, err);
}

static void activate(const struct fm_pass *p, bool mlp, struct fm_out h, const float *gu, int n,
                     int I)
{
    (void)mlp;
    p->ops->swiglu(h, gu, n, I);
}

static void activate_back(const struct fm_pass *p, bool mlp, struct fm_out dgu, const float *dh,
                          const float *gu, int n, int I, int k)
{
    (void)mlp;
    p->ops->swiglu_back(dgu, dh, gu, n, I, k);
}

static void activate_gelu(const struct fm_pass *p, bool mlp, struct fm_out h, const float *gu,
                          int n, int I)
{
    (void)mlp;
    p->ops->geglu(h, gu, n, I);
}

static void activate_gelu_back(const struct fm_pass *p, bool mlp, struct fm_out dgu,
                               const float *dh, const float *gu, int n, int I, int k)
{
    (void)mlp;
    p->ops->geglu_back(dgu, dh, gu, n, I, k);
}

const struct fm_expert_form fm_swiglu = {
    .rows = 2, .read = read, .activate = activate, .activate_back = activate_back};

const struct fm_expert_form fm_geglu = {
    .rows = 2, .read = read_gelu, .activate = activate_gelu, .activate_back = activate_gelu_back};
