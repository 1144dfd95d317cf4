/*
 * Multi-head latent attention: keys of config.json, tensors, forward, backward and cost.  Keys and
 * values are expanded from the latent for all heads and then used as in other attention, as in
 * training and in transformers.  (Servers fold W_kvb into the queries and cache only the latent,
 * which computes the same function.)
 */
#include "lib/block/mla.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/block/pass.h"

/* Epsilon of the latents' norms, whatever rms_norm_eps is: transformers uses the default there. */
#define LATENT_EPS 1e-6F

/* q_lora_rank may be null, but must be present, because families have different defaults. */
static int read_ranks(struct fm_mla *m, const cJSON *json, struct fm_err *err)
{
    if (!cJSON_GetObjectItemCaseSensitive(json, "q_lora_rank"))
        return fm_fail(err, FM_EFORMAT,
                       "key 'q_lora_rank' is missing; set it to null if queries have no latent");
    int rc = fm_keys_size_opt(&m->q_rank, json, "q_lora_rank", FM_HIDDEN_MAX, err);
    return rc ? rc : fm_keys_size(&m->c_rank, json, "kv_lora_rank", FM_HIDDEN_MAX, err);
}

static int read_heads(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    struct fm_mla *m = c->mla;
    if (fm_keys_size(&c->Q, json, "num_attention_heads", FM_HEADS_MAX, err))
        return err->code;
    c->G = c->Q;
    if (fm_keys_size_opt(&c->G, json, "num_key_value_heads", FM_HEADS_MAX, err))
        return err->code;
    if (c->G != c->Q)
        return fm_fail(err, FM_ECONFIG,
                       "num_key_value_heads %d differs from num_attention_heads %d, but latent "
                       "attention needs equal numbers",
                       c->G, c->Q);
    if (fm_keys_size(&m->A, json, "qk_nope_head_dim", FM_HEAD_DIM_MAX, err) ||
        fm_keys_size(&m->R, json, "qk_rope_head_dim", FM_HEAD_DIM_MAX, err) ||
        fm_keys_size(&m->D, json, "v_head_dim", FM_HEAD_DIM_MAX, err))
        return err->code;
    if (m->R % 2 != 0)
        return fm_fail(err, FM_EFORMAT, "qk_rope_head_dim %d is not even", m->R);
    c->C = m->A + m->R;
    return FM_OK;
}

/* Set which layers have their own indexer, from one of several keys.  Keys that disagree are
 * refused, because programs differ in which of them they read. */
static int set_indexed(struct fm_mla *m, const bool *full, int L, const char *key,
                       const char **said, struct fm_err *err)
{
    struct fm_layers own = {{0}};
    for (int l = 0; l < L; l++)
        if (full[l])
            fm_layers_add(&own, l);
    if (L > 0 && !full[0])
        return fm_fail(err, FM_EFORMAT, "%s: layer 0 cannot share the indices of an earlier layer",
                       key);
    if (*said && memcmp(&m->indexed, &own, sizeof own) != 0)
        return fm_fail(err, FM_ECONFIG, "%s and %s give indexers to different layers", *said, key);
    m->indexed = own;
    *said = key;
    return FM_OK;
}

/* Read "full" or "shared" for each layer, or a string of F and S. */
static int read_full(bool *full, int L, const cJSON *value, const char *key, struct fm_err *err)
{
    const char *text = cJSON_GetStringValue(value);
    int n = cJSON_IsArray(value) ? cJSON_GetArraySize(value)
            : text               ? (int)strnlen(text, 1 << 20)
                                 : -1;
    if (n < 0)
        return fm_fail(err, FM_EFORMAT, "key '%s' is neither a list nor a string", key);
    if (n != L)
        return fm_fail(err, FM_EFORMAT, "%s has %d entries for %d layers", key, n, L);
    const cJSON *entry = text ? NULL : value->child;
    for (int l = 0; l < L; l++, entry = text ? NULL : entry->next) {
        const char *word = text ? text[l] == 'F'   ? "full"
                                  : text[l] == 'S' ? "shared"
                                                   : "?"
                                : cJSON_GetStringValue(entry);
        full[l] = word && strcmp(word, "full") == 0;
        if (!full[l] && (!word || strcmp(word, "shared") != 0))
            return fm_fail(err, FM_ECONFIG,
                           "%s of layer %d is not supported; supported: full, "
                           "shared",
                           key, l);
    }
    return FM_OK;
}

/* Set `full` for the layers up to `offset` - 1, and for every freq-th layer after that one.  If
 * config.json has no offset, transformers and the model's own code assume different ones. */
static int read_frequency(bool *full, int L, const cJSON *json, struct fm_err *err)
{
    static const char offset_key[] = "index_skip_topk_offset";
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(json, offset_key);
    int64_t freq = 1, offset = 0;
    int rc = fm_json_opt_int(json, "index_topk_freq", 1, FM_LAYERS_MAX, &freq, err);
    if (!rc)
        rc = fm_json_opt_int(json, offset_key, 0, FM_LAYERS_MAX, &offset, err);
    if (!rc && freq > 1 && !(said && cJSON_IsNumber(said)))
        rc = fm_fail(err, FM_ECONFIG,
                     "index_topk_freq %d without %s is interpreted differently by programs; add "
                     "the missing key",
                     (int)freq, offset_key);
    for (int l = 0; !rc && l < L; l++) {
        int64_t i = l - offset + 1;
        full[l] = (i > 0 ? i : 0) % freq == 0;
    }
    return rc;
}

/* Read indexer_types, index_topk_pattern, or index_topk_freq; without any of them, every layer has
 * an indexer. */
static int read_shared(struct fm_mla *m, const struct fm_config *c, const cJSON *json,
                       struct fm_err *err)
{
    const char *const lists[] = {"indexer_types", "index_topk_pattern"}, *said = NULL;
    bool full[FM_LAYERS_MAX] = {false};
    int rc = FM_OK;
    for (int i = 0; i < 2 && !rc; i++) {
        const cJSON *value = fm_json_value(json, lists[i]);
        if (!value)
            continue;
        rc = read_full(full, c->L, value, lists[i], err);
        if (!rc)
            rc = set_indexed(m, full, c->L, lists[i], &said, err);
    }
    if (rc || (said && !fm_json_value(json, "index_topk_freq")))
        return rc;
    rc = read_frequency(full, c->L, json, err);
    return rc ? rc : set_indexed(m, full, c->L, "index_topk_freq", &said, err);
}

/* Read the indexer, and set the length up to which it chooses all keys. */
static int read_indexer(struct fm_config *c, const struct fm_mla_options *o, const cJSON *json,
                        struct fm_err *err)
{
    struct fm_mla *m = c->mla;
    int topk = 0;
    if (fm_keys_size(&topk, json, "index_topk", FM_POSITIONS_MAX, err) ||
        fm_keys_size(&m->index_heads, json, "index_n_heads", FM_HEADS_MAX, err) ||
        fm_keys_size(&m->index_width, json, "index_head_dim", FM_HEAD_DIM_MAX, err))
        return err->code;
    if (m->q_rank == 0)
        return fm_fail(
            err, FM_ECONFIG,
            "q_lora_rank null is not supported with a sparse indexer, whose queries come "
            "from that latent");
    if (topk < c->T_exact) {
        c->T_exact = topk;
        c->exact = "the range in which sparse attention (index_topk) attends to all keys";
    }
    if (o->shares_indices)
        return read_shared(m, c, json, err);
    memset(&m->indexed, 0xff, sizeof m->indexed);
    return FM_OK;
}

/* For families with `scaled`: partial_rotary_factor is R / C, and queries are not scaled up to the
 * length where that begins. */
static int read_scaling(struct fm_config *c, const struct fm_keys *keys, struct fm_err *err)
{
    static const char beta_key[] = "llama_4_scaling_beta";
    const cJSON *rope = cJSON_GetObjectItemCaseSensitive(keys->json, "rope_parameters");
    double partial = (double)c->mla->R / c->C, beta = -1;
    int original = 0;
    if (fm_json_opt_double(keys->json, "partial_rotary_factor", 0, 1, &partial, err) ||
        fm_json_opt_double(rope, "partial_rotary_factor", 0, 1, &partial, err) ||
        fm_json_opt_double(rope, beta_key, 0, FLT_MAX, &beta, err) ||
        fm_keys_size(&original, rope, "original_max_position_embeddings", FM_POSITIONS_MAX, err))
        return err->code;
    if ((int)(c->C * partial) != c->mla->R)
        return fm_fail(err, FM_ECONFIG,
                       "partial_rotary_factor %g rotates %d of %d elements of a head, but "
                       "qk_rope_head_dim is %d",
                       partial, (int)(c->C * partial), c->C, c->mla->R);
    if (beta < 0)
        return fm_fail(err, FM_EFORMAT, "key '%s' of rope_parameters is missing", beta_key);
    if (beta > 0 && original < c->T_exact) {
        c->T_exact = original;
        c->exact = "the range in which queries are not scaled (llama_4_scaling_beta)";
    }
    return FM_OK;
}

static int read(struct fm_config *c, const void *options, const struct fm_keys *keys,
                struct fm_err *err)
{
    const struct fm_mla_options *o = options;
    struct fm_mla *m = c->mla = fm_alloc(1, sizeof *m, "attention settings", err);
    if (!m)
        return err->code;
    if (read_heads(c, keys->json, err) || read_ranks(m, keys->json, err) ||
        fm_json_opt_bool(keys->json, "attention_bias", &m->bias, err) ||
        (o->scaled ? read_scaling(c, keys, err) : fm_rope_whole(keys, err)) ||
        fm_rope_read(&m->rope, c, m->R, &o->rope, keys, err) ||
        (o->indexer && read_indexer(c, o, keys->json, err)))
        return err->code;
    m->rope.pairs = true;
    return o->interleave_key ? fm_json_opt_bool(keys->json, "rope_interleave", &m->rope.pairs, err)
                             : FM_OK;
}

static uint64_t size_of(const struct fm_config *c, char letter)
{
    const struct fm_mla *m = c->mla;
    uint64_t Q = (uint64_t)c->Q;
    switch (letter) {
    case 'q':
        return Q * (uint64_t)c->C;
    case 'r':
        return (uint64_t)m->q_rank;
    case 'k':
        return (uint64_t)(m->c_rank + m->R);
    case 'c':
        return (uint64_t)m->c_rank;
    case 'b':
        return Q * (uint64_t)(m->A + m->D);
    case 'v':
        return Q * (uint64_t)m->D;
    case 'n':
        return (uint64_t)m->index_heads;
    case 'w':
        return (uint64_t)m->index_width;
    case 'i':
        return (uint64_t)m->index_heads * (uint64_t)m->index_width;
    default:
        assert(!"unknown letter in a shape");
        return 0;
    }
}

static uint64_t size_in_layer(const struct fm_config *c, int l, char letter)
{
    (void)l;
    return size_of(c, letter);
}

static unsigned has(const struct fm_config *c, int l)
{
    const struct fm_mla *m = c->mla;
    return (m->q_rank > 0 ? FM_MLA_Q_RANK : FM_MLA_Q_PLAIN) | (m->bias ? FM_MLA_BIAS : 0) |
           (fm_layers_has(&m->indexed, l) ? FM_MLA_INDEXER : 0);
}

/* ---- forward and backward ---- */

static int angles(const struct fm_config *c)
{
    return c->mla->rope.R / 2;
}

static void fill_angles(float *cos, float *sin, const struct fm_config *c, int T)
{
    fm_rope_fill(cos, sin, &c->mla->rope, T);
}

/* The divisor of the scores. */
static double root(const struct fm_config *c)
{
    double m = c->mla->rope.m;
    return sqrt(c->C) / (m * m);
}

/* Inner values of N tokens; NULL if not needed. */
struct inner {
    float *q, *k;        /* (N, Q C): inputs of the attention operation */
    float *v, *o;        /* (N, Q D) */
    float *q_a, *q_rstd; /* (N, q_rank), (N): the queries' latent before its norm */
    float *c, *c_rstd;   /* (N, c_rank), (N): latent of keys and values before its norm */
};

/* Allocate the arrays from an arena; a counting arena only adds up their sizes. */
static struct inner take(const struct fm_config *c, int N, struct fm_arena *arena)
{
    const struct fm_mla *m = c->mla;
    size_t n = (size_t)N, qc = n * (size_t)size_of(c, 'q'), qd = n * (size_t)size_of(c, 'v');
    return (struct inner){
        .q = fm_arena_alloc(arena, qc),
        .k = fm_arena_alloc(arena, qc),
        .v = fm_arena_alloc(arena, qd),
        .o = fm_arena_alloc(arena, qd),
        .q_a = fm_arena_alloc_if(m->q_rank > 0, arena, n * (size_t)m->q_rank),
        .q_rstd = fm_arena_alloc_if(m->q_rank > 0, arena, n),
        .c = fm_arena_alloc(arena, n * (size_t)m->c_rank),
        .c_rstd = fm_arena_alloc(arena, n),
    };
}

static void count_inner(const struct fm_config *c, int l, int N, struct fm_arena *count)
{
    (void)l;
    take(c, N, count);
}

/* Rotate the last R elements of each head of x (N, heads, width): sign 1 forward, -1 backward. */
static void rotate(const struct fm_pass *p, float *x, int heads, int width, float sign)
{
    const struct fm_rope *r = &p->config->mla->rope;
    p->ops->rope(x + width - r->R, p->cos, p->sin, fm_pass_rows(p), p->T, heads, width, r->R,
                 r->pairs, sign);
}

static void find_queries(const struct fm_pass *p, const struct inner *a, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_mla_weights *w = &p->layer->mla;
    int N = fm_pass_rows(p), QC = c->Q * c->C, rank = c->mla->q_rank;
    struct fm_mark mark = fm_scratch_mark();
    if (rank > 0) {
        float *latent = fm_scratch_floats((size_t)N * (size_t)rank);
        fm_pass_project_input(p, a->q_a, x, w->q_a, w->q_a_bias, rank);
        p->ops->norm(fm_to_f32(latent), a->q_rstd, a->q_a, w->q_norm, NULL, N, rank, LATENT_EPS);
        fm_pass_project(p, a->q, latent, w->q_b, QC, rank, false);
    } else {
        fm_pass_project_input(p, a->q, x, w->q, NULL, QC);
    }
    rotate(p, a->q, c->Q, c->C, 1);
    fm_scratch_release(mark);
}

static void find_keys(const struct fm_pass *p, const struct inner *a, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_mla *m = c->mla;
    const struct fm_mla_weights *w = &p->layer->mla;
    int N = fm_pass_rows(p), rank = m->c_rank, width = c->Q * (m->A + m->D);
    size_t n = (size_t)N, below = (size_t)rank * (size_t)c->H;
    struct fm_mark mark = fm_scratch_mark();
    float *latent = fm_scratch_floats(n * (size_t)rank), *r = fm_scratch_floats(n * (size_t)m->R);
    float *kv = fm_scratch_floats(n * (size_t)width);
    fm_pass_project_input(p, a->c, x, w->kv_a, w->kv_a_bias, rank);
    fm_pass_project_input(p, r, x, fm_pass_rest(p, w->kv_a, below),
                          w->kv_a_bias ? w->kv_a_bias + rank : NULL, m->R);
    rotate(p, r, 1, m->R, 1);
    p->ops->norm(fm_to_f32(latent), a->c_rstd, a->c, w->c_norm, NULL, N, rank, LATENT_EPS);
    fm_pass_project(p, kv, latent, w->kv_b, width, rank, false);
    p->ops->join_keys(a->k, a->v, kv, r, N, c->Q, m->A, m->R, m->D);
    fm_scratch_release(mark);
}

static void forward(const struct fm_pass *p, float *inner, float *y, const float *x)
{
    const struct fm_config *c = p->config;
    const struct fm_mla_weights *w = &p->layer->mla;
    const struct inner all = take(c, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    int D = c->mla->D;
    find_queries(p, a, x);
    find_keys(p, a, x);
    p->ops->attention(a->o, a->q, a->k, a->v, NULL, p->S, p->T, c->Q, c->Q, c->C, D, root(c), 0);
    fm_pass_project(p, y, a->o, w->o, c->H, c->Q * D, true);
    if (w->o_bias)
        p->ops->add_rows(y, w->o_bias, fm_pass_rows(p), c->H);
}

/* A latent (N, rank) and its norm, for the gradient that passes through them: down (rank, H)
 * computes the latent from x, and dy (N, width) is the gradient at the normalised latent's product
 * with up (width, rank).
 */
struct latent {
    const void *down, *up; /* projections */
    const float *norm;
    const float *value, *rstd; /* before the norm */
    int rank, width;
};

static void latent_back(const struct fm_pass *p, const struct latent *z, float *dx, const float *dy)
{
    int N = fm_pass_rows(p);
    size_t n = (size_t)N * (size_t)z->rank;
    struct fm_mark mark = fm_scratch_mark();
    float *after = fm_scratch_floats(n), *before = fm_scratch_floats(n);
    fm_pass_project_back(p, after, dy, z->up, z->width, z->rank, false);
    p->ops->zero(before, n * sizeof *before);
    p->ops->norm_back(before, after, z->value, z->norm, NULL, z->rstd, N, z->rank);
    fm_pass_project_back(p, dx, before, z->down, z->rank, p->config->H, true);
    fm_scratch_release(mark);
}

/* dx = the gradient at x through queries, from dq, which is rotated back in place. */
static void queries_back(const struct fm_pass *p, const struct inner *a, float *dx, float *dq)
{
    const struct fm_config *c = p->config;
    const struct fm_mla_weights *w = &p->layer->mla;
    int QC = c->Q * c->C;
    rotate(p, dq, c->Q, c->C, -1);
    if (c->mla->q_rank == 0) {
        fm_pass_project_back(p, dx, dq, w->q, QC, c->H, false);
        return;
    }
    const struct latent z = {.down = w->q_a,
                             .norm = w->q_norm,
                             .up = w->q_b,
                             .value = a->q_a,
                             .rstd = a->q_rstd,
                             .rank = c->mla->q_rank,
                             .width = QC};
    p->ops->zero(dx, (size_t)fm_pass_rows(p) * (size_t)c->H * sizeof *dx);
    latent_back(p, &z, dx, dq);
}

/* dx += the gradient at x through keys and values. */
static void keys_back(const struct fm_pass *p, const struct inner *a, float *dx, const float *dk,
                      const float *dv)
{
    const struct fm_config *c = p->config;
    const struct fm_mla *m = c->mla;
    const struct fm_mla_weights *w = &p->layer->mla;
    int N = fm_pass_rows(p), width = c->Q * (m->A + m->D);
    const struct latent z = {.down = w->kv_a,
                             .norm = w->c_norm,
                             .up = w->kv_b,
                             .value = a->c,
                             .rstd = a->c_rstd,
                             .rank = m->c_rank,
                             .width = width};
    struct fm_mark mark = fm_scratch_mark();
    float *dkv = fm_scratch_floats((size_t)N * (size_t)width);
    float *dr = fm_scratch_floats((size_t)N * (size_t)m->R);
    p->ops->join_keys_back(dkv, dr, dk, dv, N, c->Q, m->A, m->R, m->D);
    rotate(p, dr, 1, m->R, -1);
    latent_back(p, &z, dx, dkv);
    fm_pass_project_back(p, dx, dr, fm_pass_rest(p, w->kv_a, (size_t)m->c_rank * (size_t)c->H),
                         m->R, c->H, true);
    fm_scratch_release(mark);
}

static void backward(const struct fm_pass *p, float *inner, float *dx, const float *dy)
{
    const struct fm_config *c = p->config;
    const struct fm_mla_weights *w = &p->layer->mla;
    const struct inner all = take(c, fm_pass_rows(p), FM_ARENA_IN(inner)), *a = &all;
    int N = fm_pass_rows(p), D = c->mla->D;
    size_t qc = (size_t)N * (size_t)size_of(c, 'q'), qd = (size_t)N * (size_t)size_of(c, 'v');
    struct fm_mark mark = fm_scratch_mark();
    float *d_o = fm_scratch_floats(qd), *dq = fm_scratch_floats(qc);
    float *dk = fm_scratch_floats(qc), *dv = fm_scratch_floats(qd);
    fm_pass_project_back(p, d_o, dy, w->o, c->H, c->Q * D, false);
    p->ops->attention_back(dq, dk, dv, d_o, a->o, a->q, a->k, a->v, NULL, p->S, p->T, c->Q, c->Q,
                           c->C, D, root(c), 0);
    queries_back(p, a, dx, dq);
    keys_back(p, a, dx, dk, dv);
    fm_scratch_release(mark);
}

/* ---- cost ---- */

/* One product with every matrix; a query attends to T / 2 keys on average, and each key takes a
 * product of width C and one of width D. */
static struct fm_flops flops(const struct fm_config *c, int l, int T)
{
    const struct fm_mla *m = c->mla;
    double H = c->H, QC = (double)c->Q * c->C, QD = (double)c->Q * m->D, Q = c->Q;
    double queries = m->q_rank > 0 ? m->q_rank * (H + QC) : H * QC;
    double keys = H * (m->c_rank + m->R) + m->c_rank * Q * (m->A + m->D);
    (void)l;
    return (struct fm_flops){.products = 2 * (queries + keys + QD * H),
                             .others = Q * (c->C + m->D) * T};
}

/* q, k, v, o and their gradients; the expanded keys and values before they are joined with the
 * rotated part, and their gradient; latents before and after their norms, and their gradients. */
static uint64_t scratch(const struct fm_config *c)
{
    uint64_t heads = 2 * (size_of(c, 'q') + size_of(c, 'v')) + size_of(c, 'b');
    return 2 * heads + 4 * (size_of(c, 'r') + size_of(c, 'k'));
}

const struct fm_attention fm_mla = {.read = read,
                                    .size = size_in_layer,
                                    .has = has,
                                    .angles = angles,
                                    .fill_angles = fill_angles,
                                    .inner = count_inner,
                                    .forward = forward,
                                    .backward = backward,
                                    .flops = flops,
                                    .scratch = scratch};
