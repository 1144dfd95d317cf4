/*
 * Multi-head latent attention: its keys in config.json, YaRN's angles against those of transformers
 * 5.23, and its backward against finite differences along random directions, in all its forms.
 */
#include <math.h>

#include "lib/block/mla.h"
#include "tests/unit/blocks.h"
#include "tests/unit/test.h"

static const struct fm_mla_options options = {.interleave_key = true,
                                              .rope = {.theta = 1e4, .yarn = true}};

static const struct fm_config sizes = {.attention = &fm_mla, .H = H, .T_max = 2560};

#define HEADS                                                                                      \
    "num_attention_heads:3,qk_nope_head_dim:6,qk_rope_head_dim:12,v_head_dim:5,kv_lora_rank:13"
#define PLAIN HEADS ",q_lora_rank:null"

static struct fm_config must(const char *keys)
{
    return block_must(&sizes, &options, keys);
}

static void expect(const char *keys, int code, const char *part)
{
    block_expect(&sizes, &options, keys, code, part);
}

TEST(heads_have_two_parts_and_values_another_width)
{
    struct fm_config c = must(PLAIN);
    const struct fm_mla *m = c.mla;
    assert_true(c.Q == 3 && c.G == 3 && c.C == 18 && m->D == 5 && m->q_rank == 0 && !m->bias);
    assert_true(m->rope.pairs && m->rope.R == 12 && m->rope.m == 1 && m->rope.theta == 1e4);
    assert_int_equal(fm_mla.has(&c, 0), FM_MLA_Q_PLAIN);
    c = must(HEADS ",q_lora_rank:7,attention_bias:true,rope_interleave:false");
    assert_true(c.mla->q_rank == 7 && !c.mla->rope.pairs);
    assert_int_equal(fm_mla.has(&c, 0), FM_MLA_Q_RANK | FM_MLA_BIAS);
}

TEST(unsupported_values_are_refused_by_name)
{
    expect(HEADS, FM_EFORMAT, "'q_lora_rank' is missing");
    expect(PLAIN ",num_key_value_heads:1", FM_ECONFIG, "num_key_value_heads 1");
    expect(PLAIN ",partial_rotary_factor:0.5", FM_ECONFIG, "partial_rotary_factor 0.5");
    expect(PLAIN ",rope_parameters:{partial_rotary_factor:0.5}", FM_ECONFIG, "0.5");
    expect(PLAIN ",rope_scaling:{type:'linear'}", FM_ECONFIG, "default, yarn");
    expect(PLAIN ",rope_scaling:{type:'yarn'}", FM_EFORMAT, "factor");
    expect(PLAIN ",rope_scaling:{type:'yarn',factor:0.5}", FM_EFORMAT, "factor");
    expect(PLAIN ",rope_theta:1,rope_scaling:{type:'yarn',factor:2}", FM_EFORMAT,
           "rope_theta above 1");
    expect(PLAIN ",rope_scaling:{type:'yarn',factor:2},rope_parameters:{rope_type:'default'}",
           FM_ECONFIG, "keep one of them");
    expect("num_attention_heads:3,qk_nope_head_dim:6,qk_rope_head_dim:11,v_head_dim:5,"
           "kv_lora_rank:13,q_lora_rank:null",
           FM_EFORMAT, "qk_rope_head_dim 11 is not even");
}

/* cos at position 37, and m: rope_init_functions["yarn"] of transformers 5.23, in float32. */
TEST(yarn_turns_as_in_transformers)
{
    static const struct {
        const char *keys;
        double cos[6], m;
    } row[] = {
        {"rope_theta:10000,rope_scaling:{type:'yarn',factor:40,"
         "original_max_position_embeddings:64,beta_fast:32,beta_slow:1,mscale:1,"
         "mscale_all_dim:0.707}",
         {0.8310302, -0.6370528, 1.084726, 1.08568, 1.085724, 1.085726},
         1.26080431},
        {"rope_parameters:{rope_type:'yarn',rope_theta:150000,factor:32,"
         "original_max_position_embeddings:96,truncate:false,beta_fast:4}",
         {1.030686, -1.261276, 1.346255, 1.346568, 1.346573, 1.346574},
         1},
        {"rope_parameters:{rope_type:'yarn',rope_theta:5000,factor:4,attention_factor:1.25,"
         "mscale:null}",
         {0.9567676, -1.110369, -0.2327209, 1.183748, 1.248085, 1.249963},
         1},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char keys[1024];
        float cosines[38 * 6], sines[38 * 6];
        snprintf(keys, sizeof keys, PLAIN ",%s", row[i].keys);
        struct fm_config c = must(keys);
        fm_mla.fill_angles(cosines, sines, &c, 38);
        for (int at = 0; at < 6; at++)
            assert_true(fabs(cosines[37 * 6 + at] - row[i].cos[at]) < 4e-6);
        assert_true(fabs(c.mla->rope.m - row[i].m) < 1e-6);
        assert_null(c.exact);
    }
}

/* ---- gradients ---- */

static void open_block(struct block *b, const char *keys)
{
    *b = (struct block){.c = must(keys)};
    const struct fm_mla *m = b->c.mla;
    size_t q = (size_t)(b->c.Q * b->c.C), kv = (size_t)(b->c.Q * (m->A + m->D));
    size_t r = (size_t)m->q_rank, c = (size_t)m->c_rank, k = (size_t)(m->c_rank + m->R);
    size_t v = (size_t)(b->c.Q * m->D);
    b->layer.mla = (struct fm_mla_weights){.q = block_draw(b, q * H, 0.3f),
                                           .q_a = block_draw(b, r * H, 0.3f),
                                           .q_norm = block_draw(b, r, 1),
                                           .q_b = block_draw(b, q * r, 0.3f),
                                           .kv_a = block_draw(b, k * H, 0.3f),
                                           .c_norm = block_draw(b, c, 1),
                                           .kv_b = block_draw(b, kv * c, 0.3f),
                                           .o = block_draw(b, H * v, 0.3f)};
    if (m->bias) {
        b->layer.mla.q_a_bias = block_draw(b, r, 1);
        b->layer.mla.kv_a_bias = block_draw(b, k, 1);
        b->layer.mla.o_bias = block_draw(b, H, 1);
    }
    fm_mla.fill_angles(b->cosines, b->sines, &b->c, T);
}

static const char *const forms[] = {
    PLAIN,
    HEADS ",q_lora_rank:7,attention_bias:true,rope_interleave:false",
    HEADS ",q_lora_rank:9,rope_scaling:{type:'yarn',factor:8,mscale:1,mscale_all_dim:0.8,"
          "original_max_position_embeddings:20}",
};
enum { FORMS = sizeof forms / sizeof *forms };

TEST(the_backward_is_the_derivative)
{
    for (int f = 0; f < FORMS; f++) {
        struct block b;
        open_block(&b, forms[f]);
        block_check_backward(&b, 5e-4f, 2e-3);
        block_release(&b);
    }
}

TEST(the_fast_table_agrees_with_the_definition)
{
    for (int f = 0; f < FORMS; f++) {
        struct block b;
        open_block(&b, forms[f]);
        block_check_cpu(&b, 1e-5);
        block_release(&b);
    }
}

/* The norms of latents use 1e-6, not rms_norm_eps: their factor for a row of zeros is 1000. */
TEST(norms_of_latents_have_a_fixed_eps)
{
    struct block b;
    open_block(&b, HEADS ",q_lora_rank:7");
    const struct fm_mla *m = b.c.mla;
    struct fm_pass pass = block_pass(&b, fm_ops_ref());
    size_t floats = fm_attention_floats(&b.c, 0, N);
    int found = 0;
    b.c.eps = 0.25f;
    memset(b.layer.mla.q_a, 0, (size_t)(m->q_rank * H) * sizeof(float));
    memset(b.layer.mla.kv_a, 0, (size_t)((m->c_rank + m->R) * H) * sizeof(float));
    float *x = draw(FLOATS, 1), y[FLOATS];
    struct fm_mark mark = fm_scratch_mark();
    float *inner = fm_scratch_floats(floats);
    memset(inner, 0, floats * sizeof *inner);
    memcpy(y, x, sizeof y);
    fm_mla.forward(&pass, inner, y, x);
    for (size_t i = 0; i < floats; i++)
        found += fabsf(inner[i] - 1000) < 0.01f;
    assert_int_equal(found, 2 * N); /* of queries, of keys and values */
    fm_scratch_release(mark);
    free(x);
    block_release(&b);
}

TEST_MAIN(start_pool, stop_pool)
