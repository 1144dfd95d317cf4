/*
 * Attention block "mla": multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1).  Keys
 * and values of all heads come from one latent vector c per token, of width kv_lora_rank; queries
 * may come from another latent.  A head's query and its key each have A elements without positional
 * encoding and R rotated elements; the key's R elements are the same for all heads.  With C = A +
 * R, and D the width of values:
 *
 *     q (Q, C) = W_q x, or W_qb rms(W_qa x)       the last R of each head rotated
 *     [c | r]  = W_kva x                          r (R) rotated
 *     [k | v]  = W_kvb rms(c), per head A and D;  key of a head: [k | r]
 *     y       += W_o softmax(q . key m^2 / sqrt(C)) v
 *
 * m is YaRN's (lib/block/rope.h).  Tensors are named as in transformers.
 */
#ifndef FM_MLA_H
#define FM_MLA_H

#include "lib/block/block.h"
#include "lib/block/rope.h"

/* Options of a family. */
struct fm_mla_options {
    bool interleave_key; /* rope_interleave of config.json determines whether adjacent elements are
                            rotated as pairs; without this option, they always are */
    bool indexer; /* a sparse indexer chooses index_topk keys for each query, or all if there are
                     fewer.  It has no gradient, so its tensors are only copied */
    bool shares_indices; /* layers may share indices, as set by indexer_types and similar keys */
    bool scaled;         /* rope_parameters has the factor of a head's width that is rotated, and
                            llama_4_scaling_beta: the query at position t is multiplied by 1 + beta ln(1 +
                            floor(t / original_max_position_embeddings)), of which only the range where it
                            is 1 is supported */
    struct fm_rope_options rope;
};

/* Keys of models with this block, for .keys of struct fm_model_family. */
#define FM_MLA_KEYS                                                                                \
    "kv_lora_rank mlp_bias q_lora_rank qk_head_dim qk_nope_head_dim qk_rope_head_dim "             \
    "rope_interleave v_head_dim"

#define FM_MLA_INDEXER_KEYS                                                                        \
    "index_head_dim index_n_heads index_topk index_topk_freq index_topk_pattern "                  \
    "index_skip_topk_offset indexer_rope_interleave indexer_types moe_router_dtype"

/* Values read from config.json. */
struct fm_mla {
    int A, R, D;        /* qk_nope_head_dim, qk_rope_head_dim, v_head_dim */
    int q_rank, c_rank; /* q_lora_rank (0: queries have no latent), kv_lora_rank */
    bool bias;          /* q_a, kv_a and o have biases */
    struct fm_rope rope;
    int index_heads, index_width; /* index_n_heads, index_head_dim; 0: no indexer */
    struct fm_layers indexed;     /* the layers with their own indexer */
};

extern const struct fm_attention fm_mla;

enum {
    FM_MLA_Q_PLAIN = FM_OWN,
    FM_MLA_Q_RANK = FM_OWN << 1,
    FM_MLA_BIAS = FM_OWN << 2,
    FM_MLA_INDEXER = FM_OWN << 3
};

/* Letters: q = Q C, r = q_rank, k = c_rank + R, c = c_rank, b = Q (A + D), v = Q D; for the indexer
 * n = heads, w = their width, i = n w. */
/* clang-format off */
#define FM_MLA_WEIGHT(n, f, shape, when)                                                           \
    FM_LAYER_WEIGHT(n, FM_PART_ATTENTION, mla.f, shape, when)
#define FM_MLA_MATRIX(n, f, shape, when)                                                           \
    FM_LAYER_WEIGHT(n, FM_PART_PROJECTION, mla.f, shape, when)
#define FM_MLA_WEIGHTS(prefix)                                                                     \
    FM_MLA_MATRIX(prefix "q_proj.weight", q, "qH", FM_MLA_Q_PLAIN),                                \
    FM_MLA_MATRIX(prefix "q_a_proj.weight", q_a, "rH", FM_MLA_Q_RANK),                             \
    FM_MLA_WEIGHT(prefix "q_a_proj.bias", q_a_bias, "r", FM_MLA_Q_RANK | FM_MLA_BIAS),             \
    FM_MLA_WEIGHT(prefix "q_a_layernorm.weight", q_norm, "r", FM_MLA_Q_RANK),                      \
    FM_MLA_MATRIX(prefix "q_b_proj.weight", q_b, "qr", FM_MLA_Q_RANK),                             \
    FM_MLA_MATRIX(prefix "kv_a_proj_with_mqa.weight", kv_a, "kH", FM_ALWAYS),                      \
    FM_MLA_WEIGHT(prefix "kv_a_proj_with_mqa.bias", kv_a_bias, "k", FM_MLA_BIAS),                  \
    FM_MLA_WEIGHT(prefix "kv_a_layernorm.weight", c_norm, "c", FM_ALWAYS),                         \
    FM_MLA_MATRIX(prefix "kv_b_proj.weight", kv_b, "bc", FM_ALWAYS),                               \
    FM_MLA_MATRIX(prefix "o_proj.weight", o, "Hv", FM_ALWAYS),                                     \
    FM_MLA_WEIGHT(prefix "o_proj.bias", o_bias, "H", FM_MLA_BIAS)
#define FM_MLA_CARRIED(n, shape)                                                                   \
    {FM_SAME(n), FM_PART_CARRIED, 0, shape, FM_MLA_INDEXER}
#define FM_MLA_INDEXER_WEIGHTS(prefix)                                                             \
    FM_MLA_CARRIED(prefix "wq_b.weight", "ir"),                                                    \
    FM_MLA_CARRIED(prefix "wk.weight", "wH"),                                                      \
    FM_MLA_CARRIED(prefix "k_norm.weight", "w"),                                                   \
    FM_MLA_CARRIED(prefix "k_norm.bias", "w"),                                                     \
    FM_MLA_CARRIED(prefix "weights_proj.weight", "nH")
/* clang-format on */

#endif
