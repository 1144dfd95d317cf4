/*
 * What config.json of newer families can say that is easy to get wrong: keys that programs read
 * differently or not at all, numbers that transformers would make up, names of its own.  Each test
 * is one such trap.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "lib/block/gqa.h"
#include "lib/block/scored.h"
#include "lib/family/family.h"
#include "tests/unit/configs.h"

/* Sizes of the models on the hub; layers as few as the test needs. */
#define SOLAR_KEYS                                                                                 \
    "\"model_type\":\"solar_open\",\"hidden_size\":4096,\"num_hidden_layers\":48,"                 \
    "\"num_attention_heads\":64,\"moe_intermediate_size\":1280,\"n_routed_experts\":128,"          \
    "\"num_experts_per_tok\":8,\"vocab_size\":196608"
#define SOLAR SOLAR_KEYS ",\"num_key_value_heads\":8,\"head_dim\":128"
#define HY3_KEYS                                                                                   \
    "\"model_type\":\"hy_v3\",\"hidden_size\":4096,\"intermediate_size\":13312,"                   \
    "\"num_hidden_layers\":80,\"num_attention_heads\":64,\"num_key_value_heads\":8,"               \
    "\"head_dim\":128,\"moe_intermediate_size\":1536,\"num_experts\":192,"                         \
    "\"num_experts_per_tok\":8,\"vocab_size\":120832"
#define HY3 HY3_KEYS ",\"expert_hidden_dim\":1536"

static bool has(const struct fm_config *c, enum fm_naming naming, const char *name)
{
    int l, e;
    return fm_weights_find(c, naming, name, &l, &e) != NULL;
}

/* ---- Solar-Open ---- */

static void every_layer_of_solar_has_experts(void **state)
{
    (void)state;
    struct fm_config c = must(SOLAR, "\"intermediate_size\":10240,\"first_k_dense_replace\":0");
    assert_true(c.M == 48 && c.moe[0] == 0 && c.dense == 0 && c.shared == 1280);
    assert_int_equal(fm_config_params(&c, NULL) / 1000000000, 102);
    refused(SOLAR, "\"first_k_dense_replace\":1", FM_ECONFIG,
            "first_k_dense_replace 1 is not supported for solar_open: runtimes disagree about it; "
            "supported: 0");
}

static void solar_has_biases_of_q_k_v_and_no_norms(void **state)
{
    (void)state;
    struct fm_config c = must(SOLAR, "\"attention_bias\":true,\"use_qk_norm\":false");
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.v_proj.bias"));
    assert_false(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.o_proj.bias"));
    assert_true(c.gqa->qk_norm == FM_QK_NORM_NONE && c.gqa->rope.theta == 1e6);
    refused(SOLAR, "\"use_qk_norm\":true", FM_ECONFIG,
            "use_qk_norm true is not supported for solar_open; supported: false");
}

/* Its class in transformers stops there. */
static void no_part_of_solars_heads_is_rotated(void **state)
{
    (void)state;
    must(SOLAR, "\"partial_rotary_factor\":1.0");
    refused(SOLAR, "\"partial_rotary_factor\":0.5", FM_ECONFIG, "partial_rotary_factor 0.5");
    refused(SOLAR, "\"rope_parameters\":{\"partial_rotary_factor\":0.5,\"rope_type\":\"default\"}",
            FM_ECONFIG, "partial_rotary_factor 0.5");
}

/* 128 and 8, whatever the other sizes are. */
static void heads_that_transformers_would_make_up_are_missed(void **state)
{
    (void)state;
    refused(SOLAR_KEYS, "\"num_key_value_heads\":8", FM_EFORMAT, "key 'head_dim' is missing");
    refused(SOLAR_KEYS, "\"head_dim\":64", FM_EFORMAT, "key 'num_key_value_heads' is missing");
    refused(SOLAR_KEYS, "\"num_key_value_heads\":8,\"head_dim\":null", FM_EFORMAT,
            "key 'head_dim' is missing");
}

/* ---- Hy3 ---- */

static void two_keys_for_the_width_of_hy3s_experts_agree(void **state)
{
    (void)state;
    assert_int_equal(must(HY3, NULL).I, 1536);
    assert_int_equal(must(HY3_KEYS, NULL).I, 1536);
    refused(HY3_KEYS, "\"expert_hidden_dim\":1024", FM_ECONFIG,
            "expert_hidden_dim 1024 is not moe_intermediate_size 1536, and programs read one or "
            "the other");
    refused(HY3_KEYS, "\"expert_hidden_dim\":0", FM_EFORMAT, "expert_hidden_dim");
    refused(HY3_KEYS, "\"expert_hidden_dim\":\"1536\"", FM_EFORMAT, "expert_hidden_dim");
}

static void hy3_renormalises_with_a_factor_of_its_own_key(void **state)
{
    (void)state;
    struct fm_config c = must(HY3, "\"routed_scaling_factor\":7");
    const struct fm_route_rule *rule = &c.scored->rule;
    assert_true(rule->sigmoid && rule->renormalised && rule->groups == 1 && rule->eps == 1e-20F);
    assert_true(rule->scale == 2.826F);
    c = must(HY3, "\"router_scaling_factor\":1.5,\"route_norm\":true");
    assert_true(c.scored->rule.scale == 1.5F);
    refused(HY3, "\"router_scaling_factor\":0", FM_EFORMAT, "router_scaling_factor is not above 0");
    refused(HY3, "\"route_norm\":false", FM_ECONFIG, "route_norm false is not supported for hy_v3");
    refused(HY3, "\"qk_norm\":false", FM_ECONFIG, "qk_norm false");
    refused(HY3, "\"moe_router_use_sigmoid\":false", FM_ECONFIG, "moe_router_use_sigmoid false");
    refused(HY3, "\"moe_router_enable_expert_bias\":0", FM_ECONFIG, "expert_bias 0 is not");
}

/* transformers reads the list alone, vLLM the number alone. */
static void hy3s_dense_layers_are_those_of_all_programs(void **state)
{
    (void)state;
    struct fm_config c = must(HY3, "\"first_k_dense_replace\":1");
    assert_true(c.M == 79 && c.moe[0] == 1 && c.dense == 13312);
    assert_int_equal(must(HY3, NULL).M, 79);
    refused(HY3, "\"first_k_dense_replace\":3", FM_ECONFIG,
            "first_k_dense_replace 3 without mlp_layer_types is not supported for hy_v3");
    refused(HY3, "\"mlp_layer_types\":[\"dense\"]", FM_EFORMAT, "1 entries for 80 layers");
}

/* transformers would make it as wide as a dense layer. */
static void hy3_without_a_shared_expert_is_refused(void **state)
{
    (void)state;
    assert_int_equal(must(HY3, "\"num_shared_experts\":2").shared, 3072);
    refused(HY3, "\"num_shared_experts\":0", FM_ECONFIG, "num_shared_experts 0 is not supported");
    refused(HY3, "\"num_shared_experts\":-1", FM_EFORMAT, "num_shared_experts");
}

static void hy3s_names_are_its_own_on_disk(void **state)
{
    (void)state;
    struct fm_config c = must(HY3, NULL);
    static const char *const stock[] = {"model.layers.1.mlp.router.gate.weight",
                                        "model.layers.1.mlp.expert_bias",
                                        "model.layers.1.mlp.shared_mlp.up_proj.weight"};
    static const char *const ragged[] = {"model.layers.1.mlp.gate.weight",
                                         "model.layers.1.mlp.e_score_correction_bias",
                                         "model.layers.1.mlp.shared_experts.up_proj.weight"};
    for (int i = 0; i < 3; i++) {
        assert_true(has(&c, FM_NAMING_STOCK, stock[i]) && has(&c, FM_NAMING_RAGGED, ragged[i]));
        assert_false(has(&c, FM_NAMING_STOCK, ragged[i]) || has(&c, FM_NAMING_RAGGED, stock[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_of_solar_has_experts),
        cmocka_unit_test(solar_has_biases_of_q_k_v_and_no_norms),
        cmocka_unit_test(no_part_of_solars_heads_is_rotated),
        cmocka_unit_test(heads_that_transformers_would_make_up_are_missed),
        cmocka_unit_test(two_keys_for_the_width_of_hy3s_experts_agree),
        cmocka_unit_test(hy3_renormalises_with_a_factor_of_its_own_key),
        cmocka_unit_test(hy3s_dense_layers_are_those_of_all_programs),
        cmocka_unit_test(hy3_without_a_shared_expert_is_refused),
        cmocka_unit_test(hy3s_names_are_its_own_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}
