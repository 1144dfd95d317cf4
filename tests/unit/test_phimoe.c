/* PhiMoE's config.json in both spellings, the values that are refused, and its rotation. */
#include <math.h>

#include "lib/block/gqa.h"
#include "lib/block/norm.h"
#include "lib/block/sparsemix.h"
#include "lib/family/family.h"
#include "tests/unit/owned.h"
#include "tests/unit/relaxed.h"
#include "tests/unit/test.h"

#define ATTENTION                                                                                  \
    "attention_bias:true,lm_head_bias:true,num_attention_heads:32,num_key_value_heads:8,"
#define SIZES                                                                                      \
    "hidden_size:4096,intermediate_size:6400,num_hidden_layers:32,num_local_experts:16,"           \
    "vocab_size:32064,max_position_embeddings:131072,rms_norm_eps:1e-05,"
#define ROPE "short_factor:[%s],long_factor:[2],long_mscale:1.3"

/* config.json of Phi-3.5-MoE, with 64 factors in place of each %s of `rope`. */
static const char *config_text(const char *experts, const char *rope)
{
    static char text[8192];
    char relaxed[8192], factors[512] = "1.25", filled[2048];
    for (int i = 1; i < 64; i++)
        strcat(factors, i % 2 ? ",1" : ",1.5");
    snprintf(filled, sizeof filled, rope, factors);
    snprintf(relaxed, sizeof relaxed,
             "{model_type:'phimoe'," SIZES ATTENTION "num_experts_per_tok:%s%s}", experts, filled);
    return relaxed_json(text, sizeof text, relaxed);
}

static int parse(struct fm_config *c, const char *experts, const char *rope, struct fm_err *err)
{
    const char *text = config_text(experts, rope);
    return fm_config_parse(c, text, strlen(text), err);
}

static struct fm_config must(const char *experts, const char *rope)
{
    static struct fm_config c;
    struct fm_err err = {0};
    assert_ok(parse(&c, experts, rope, &err));
    return owned_config(&c);
}

static void expect(const char *experts, const char *rope, int code, const char *says)
{
    static struct fm_config c;
    struct fm_err err = {0};
    int rc = parse(&c, experts, rope, &err);
    fm_config_release(&c);
    if (rc != code || !strstr(err.text, says))
        fail_msg("%d '%s', not %d with '%s'", rc, err.text, code, says);
}

TEST(phi_3_5_moe_is_read_in_both_spellings)
{
    const char *rope[] = {
        /* transformers 4, as on the hub */
        ",rope_theta:10000.0,sliding_window:131072,original_max_position_embeddings:4096,"
        "rope_scaling:{type:'longrope',short_mscale:1.243163121016122," ROPE "}",
        /* transformers 5 */
        ",sliding_window:null,rope_parameters:{rope_type:'longrope',rope_theta:10000.0,"
        "short_mscale:1.243163121016122,original_max_position_embeddings:4096," ROPE "}"};
    for (int i = 0; i < 2; i++) {
        struct fm_config c = must("2,router_jitter_noise:0.02", rope[i]);
        assert_string_equal(fm_config_family(&c), "phimoe");
        const struct fm_gqa *g = c.gqa;
        assert_true(g->qkv_bias && g->o_bias && c.head_bias && !c.tied);
        assert_true(c.router == &fm_sparsemix && c.sparsemix->threshold == 0.04f);
        assert_true(c.norm == &fm_layernorm);
        assert_true(c.exact && c.T_max == 4096 && c.T_exact == 4096 && g->window == 0 &&
                    g->rope.theta == 1e4);
        assert_true(g->rope.scale == 1.243163121016122f);
        assert_true(g->rope.factor[0] == 1.25f && g->rope.factor[62] == 1.5f);
        /* 41.9 and 6.6 billion, as its card says */
        assert_true(fm_config_params(&c, NULL) == 41873153344);
        assert_true(fm_config_params_active(&c, NULL) / 100000000 == 66);
    }
    struct fm_config c = must("2", "");
    assert_true(!c.exact && c.T_max == 131072 && c.T_exact == 131072 && c.gqa->rope.scale == 1 &&
                c.sparsemix->threshold == 0.02f);
}

TEST(the_rotation_has_short_factors_and_scale)
{
    struct fm_config c = must("2", ",rope_theta:100,rope_scaling:{rope_type:'longrope',"
                                   "short_mscale:1.5," ROPE "}");
    enum { T = 5 };
    static float cosines[T * 64], sines[T * 64];
    c.attention->fill_angles(cosines, sines, &c, T);
    for (int t = 0; t < T; t++)
        for (int i = 0; i < 64; i++) {
            double factor = i == 0 ? 1.25 : i % 2 ? 1 : 1.5;
            double angle = t / (factor * pow(100, i / 64.0));
            assert_true(fabs(cosines[t * 64 + i] - 1.5 * cos(angle)) < 2e-6);
            assert_true(fabs(sines[t * 64 + i] - 1.5 * sin(angle)) < 2e-6);
        }
}

TEST(unsupported_values_are_refused_by_name)
{
    expect("3", "", FM_ECONFIG, "num_experts_per_tok is 3; sparsemixer chooses 2");
    expect("2", ",rope_scaling:{type:'yarn'}", FM_ECONFIG, "default, longrope");
    expect("2", ",rope_scaling:{type:'longrope'," ROPE "}", FM_EFORMAT, "short_mscale");
    expect("2", ",rope_scaling:{type:'longrope',short_mscale:1}", FM_EFORMAT, "64 numbers");
    expect("2", ",rope_scaling:{type:'longrope',short_mscale:1,short_factor:[1]}", FM_EFORMAT,
           "64 numbers");
    expect("2", ",rope_scaling:{type:'longrope',short_mscale:1,short_factor:[%s,1]}", FM_EFORMAT,
           "64 numbers");
    expect("2", ",rope_scaling:{type:'longrope',short_mscale:1,short_factor:[0,%s]}", FM_EFORMAT,
           "above 0");
}

TEST_MAIN(NULL, NULL)
