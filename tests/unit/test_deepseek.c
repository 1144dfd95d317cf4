/* DeepSeek-V2 and -V3, Moonlight, Kimi-K2 and GLM-4.7-Flash: their config.json, sizes, layers, and
 * what is refused. */
#include "lib/block/mla.h"
#include "lib/block/scored.h"
#include "lib/family/family.h"
#include "tests/unit/configs.h"
#include "tests/unit/test.h"

/* The sizes of the models on the hub. */
#define HEADS(n, nope, v)                                                                          \
    "num_attention_heads:" n ",num_key_value_heads:" n ",qk_nope_head_dim:" nope                   \
    ",qk_rope_head_dim:64,v_head_dim:" v ",kv_lora_rank:512,"
#define EXPERTS(e, k, shared, width)                                                               \
    "n_routed_experts:" e ",num_experts_per_tok:" k ",n_shared_experts:" shared                    \
    ",moe_intermediate_size:" width ","
#define V2_LITE                                                                                    \
    "model_type:'deepseek_v2',hidden_size:2048,intermediate_size:10944,num_hidden_layers:27,"      \
    "first_k_dense_replace:1,q_lora_rank:null,vocab_size:102400," HEADS("16", "128", "128")        \
        EXPERTS("64", "6", "2", "1408") "routed_scaling_factor:1.0,n_group:1,topk_group:1,"        \
                                        "scoring_func:'softmax',moe_layer_freq:1,"                 \
                                        "max_position_embeddings:163840,rope_theta:10000"
#define YARN                                                                                       \
    "rope_scaling:{type:'yarn',factor:40,beta_fast:32,beta_slow:1,mscale:0.707,"                   \
    "mscale_all_dim:0.707,original_max_position_embeddings:4096}"
#define V3_LIKE "topk_method:'noaux_tc',scoring_func:'sigmoid',norm_topk_prob:true,"
#define MOONLIGHT                                                                                  \
    "model_type:'deepseek_v3',hidden_size:2048,intermediate_size:11264,num_hidden_layers:27,"      \
    "first_k_dense_replace:1,q_lora_rank:null,vocab_size:163840," V3_LIKE HEADS("16", "128",       \
                                                                                "128")             \
        EXPERTS("64", "6", "2",                                                                    \
                "1408") "rms_norm_eps:1e-5,rope_theta:50000,routed_scaling_factor:2.446"
#define ONE_GROUP "n_group:1,topk_group:1"
#define V3                                                                                         \
    "hidden_size:7168,intermediate_size:18432,num_hidden_layers:61,q_lora_rank:1536," V3_LIKE      \
        HEADS("128", "128", "128")                                                                 \
            EXPERTS("256", "8", "1", "2048") "first_k_dense_replace:3,vocab_size:129280,num_"      \
                                             "nextn_predict_layers:1,n_group:8,"                   \
                                             "topk_group:4"
#define FLASH                                                                                      \
    "model_type:'glm4_moe_lite',hidden_size:2048,intermediate_size:10240,num_hidden_layers:47,"    \
    "q_lora_rank:768,vocab_size:154880,n_group:1,topk_group:1," V3_LIKE HEADS("20", "192", "256")  \
        EXPERTS("64", "4", "1",                                                                    \
                "1536") "partial_rotary_factor:1.0,rope_theta:1000000,routed_scaling_factor:1.8"

static uint64_t millions(uint64_t n)
{
    return n / 1000000;
}

/* As their cards say: 15.7, 16, 671 (37 active) and 30 billion. */
TEST(the_hubs_models_have_their_size)
{
    struct fm_config lite = must(V2_LITE, "topk_method:'greedy'," YARN);
    struct fm_config moonlight = must(MOONLIGHT, ONE_GROUP);
    struct fm_config v3 = must("model_type:'deepseek_v3'", V3), flash = must(FLASH, NULL);
    assert_int_equal(fm_config_params(&lite, NULL), 15706484224);
    assert_int_equal(millions(fm_config_params(&moonlight, NULL)), 15960);
    assert_int_equal(millions(fm_config_params(&v3, NULL)), 671026);
    assert_int_equal(millions(fm_config_params(&flash, NULL)), 29943);
    assert_int_equal(millions(fm_config_params_active(&v3, NULL)), 37552);
    assert_true(lite.M == 26 && lite.moe[0] == 1 && v3.M == 58 && v3.moe[0] == 3 && flash.M == 46);
    assert_true(lite.shared == 2816 && v3.shared == 2048 && flash.dense == 10240);
    assert_true(flash.mla->D == 256 && flash.C == 256 && v3.C == 192);
    assert_true(lite.mla->rope.scale == 1 && lite.mla->rope.m > 1.2608);
    assert_true(v3.extra_layers == 1 && lite.extra_layers == 0);
}

/* Mistral-Small-4, which has the rotated part of a head as a factor. */
#define SMALL4                                                                                     \
    "model_type:'mistral4',hidden_size:4096,num_hidden_layers:36,q_lora_rank:1024,"                \
    "num_attention_heads:32,num_key_value_heads:32,qk_nope_head_dim:64,qk_rope_head_dim:64,"       \
    "v_head_dim:128,kv_lora_rank:256,vocab_size:131072,max_position_embeddings:1048576,"           \
    "norm_topk_prob:true," ONE_GROUP "," EXPERTS("128", "4", "1", "2048")
#define SMALL4_ROPE                                                                                \
    "rope_type:'yarn',rope_theta:10000,factor:128,mscale:1,mscale_all_dim:1,beta_fast:32,"         \
    "beta_slow:1,original_max_position_embeddings:8192"

TEST(mistral_small_4_is_exact_where_queries_are_not_scaled)
{
    struct fm_config c =
        must(SMALL4
             "rope_parameters:{" SMALL4_ROPE
             ",llama_4_scaling_beta:0.1,partial_rotary_factor:0.5,max_position_embeddings:1048576}",
             NULL);
    assert_int_equal(fm_config_params(&c, NULL) / 1000000000, 118);
    assert_true(c.M == 36 && c.shared == 2048 && c.fused && c.T_exact == 8192);
    assert_non_null(strstr(c.exact, "llama_4_scaling_beta"));
    const struct fm_route_rule *r = &c.scored->rule;
    assert_true(!r->sigmoid && r->renormalised && r->scale == 1 && r->groups == 1);
    assert_true(c.mla->rope.pairs && c.mla->rope.scale == 1 && c.mla->rope.m > 1.485);
    assert_int_equal(
        must(SMALL4 "rope_parameters:{" SMALL4_ROPE ",llama_4_scaling_beta:0}", NULL).T_exact,
        1048576);
}

TEST(mistral_small_4_with_other_values_is_refused)
{
    static const char *const value[][2] = {
        {SMALL4_ROPE, "key 'llama_4_scaling_beta' of rope_parameters is missing"},
        {SMALL4_ROPE ",llama_4_scaling_beta:-1", "llama_4_scaling_beta"},
        {SMALL4_ROPE ",llama_4_scaling_beta:'x'", "llama_4_scaling_beta"},
        {"llama_4_scaling_beta:0.1", "original_max_position_embeddings"},
        {SMALL4_ROPE ",llama_4_scaling_beta:0.1,partial_rotary_factor:0.25",
         "partial_rotary_factor 0.25 rotates 32 of 128 elements of a head, but qk_rope_head_dim "
         "is 64"}};
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        char more[512];
        snprintf(more, sizeof more, "rope_parameters:{%s}", value[i][0]);
        refused(SMALL4 "x:1", more, i < 4 ? FM_EFORMAT : FM_ECONFIG, value[i][1]);
    }
    refused(SMALL4 "x:1", NULL, FM_EFORMAT, "key 'rope_parameters' is missing");
    refused(SMALL4 "scoring_func:'sigmoid'",
            "rope_parameters:{" SMALL4_ROPE ",llama_4_scaling_beta:0.1}", FM_ECONFIG, "sigmoid");
}

TEST(routers_follow_their_rules)
{
    struct fm_config lite = must(V2_LITE, NULL), v3 = must("model_type:'deepseek_v3'", V3);
    const struct fm_route_rule *two = &lite.scored->rule, *three = &v3.scored->rule;
    assert_true(!two->sigmoid && two->groups == 1 && !two->renormalised && two->scale == 1);
    assert_true(three->sigmoid && three->groups == 8 && three->topk_group == 4 &&
                three->renormalised);
    assert_true(three->group_sum == 2 && three->scale == 2.5F);
}

TEST(kimi_is_v3_by_its_architecture)
{
    const char *kimi = "model_type:'kimi_k2',architectures:['DeepseekV3ForCausalLM']";
    struct fm_config c = must(kimi, V3);
    assert_string_equal(fm_config_family(&c), "kimi_k2");
    assert_string_equal(c.family->name, "deepseek_v3");
    refused("model_type:'kimi_k2',architectures:['KimiForCausalLM']", V3, FM_ECONFIG,
            "'kimi_k2' with architectures 'KimiForCausalLM' is not supported; supported: "
            "DeepseekV3ForCausalLM");
    refused("model_type:'kimi_k2'", V3, FM_ECONFIG, "with architectures ''");
}

TEST(a_list_says_which_layers_are_dense)
{
    const char *lite = "model_type:'glm4_moe_lite',hidden_size:8,intermediate_size:5,"
                       "num_hidden_layers:3,q_lora_rank:null,vocab_size:11," //
        HEADS("2", "4", "4") EXPERTS("4", "2", "1", "3") ONE_GROUP;
    struct fm_config c = must(lite, "mlp_layer_types:['sparse','dense','sparse']");
    assert_true(c.M == 2 && c.moe[0] == 0 && c.moe[1] == 2 && c.dense == 5);
    c = must(lite, "mlp_layer_types:['sparse','sparse','sparse']");
    assert_true(c.M == 3 && c.dense == 0);
    c = must(lite, "first_k_dense_replace:1");
    assert_true(c.M == 2 && c.moe[0] == 1);
    must(lite, "first_k_dense_replace:1,mlp_layer_types:['dense','sparse','sparse']");
    refused(lite, "first_k_dense_replace:2", FM_ECONFIG, "first_k_dense_replace 2 without");
    refused(lite, "first_k_dense_replace:1,mlp_layer_types:['sparse','dense','sparse']", FM_ECONFIG,
            "name different layers");
    refused(lite, "mlp_layer_types:['dense','sparse']", FM_EFORMAT, "2 entries for 3");
    refused(lite, "mlp_layer_types:['dense','dense','dense']", FM_ECONFIG, "no layer is");
    refused(lite, "mlp_layer_types:['dense','moe','moe']", FM_ECONFIG, "'moe'");
    refused(lite, "mlp_layer_types:3", FM_EFORMAT, "not an array");
}

TEST(a_list_decides_where_the_default_makes_all_layers_dense)
{
    const char *one = "model_type:'glm4_moe_lite',hidden_size:8,intermediate_size:5,"
                      "num_hidden_layers:1,q_lora_rank:null,vocab_size:11," //
        HEADS("2", "4", "4") EXPERTS("4", "2", "1", "3") ONE_GROUP;
    struct fm_config c = must(one, "mlp_layer_types:['sparse']");
    assert_true(c.M == 1 && c.moe[0] == 0 && c.dense == 0);
    refused(one, NULL, FM_ECONFIG, "no layer is a mixture of experts (first_k_dense_replace 1");
    refused(one, "mlp_layer_types:['sparse'],first_k_dense_replace:1", FM_ECONFIG,
            "mlp_layer_types and first_k_dense_replace 1 name different layers; programs differ in "
            "which they read; correct one of them");
}

/* transformers rotates head_dim elements in these families, and ignores head_dim in others. */
TEST(head_dim_is_the_width_of_the_rotated_part)
{
    must(MOONLIGHT, ONE_GROUP ",head_dim:64");
    must(FLASH, "head_dim:64");
    must(V2_LITE, "head_dim:128");
    refused(MOONLIGHT, ONE_GROUP ",head_dim:128", FM_ECONFIG,
            "head_dim 128 differs from qk_rope_head_dim 64");
    refused(FLASH, "head_dim:256", FM_ECONFIG, "head_dim 256 differs from qk_rope_head_dim 64");
}

TEST(unsupported_values_are_refused_by_name)
{
    refused(MOONLIGHT, NULL, FM_EFORMAT, "'n_group' is missing");
    refused(MOONLIGHT, ONE_GROUP ",index_topk:64", FM_ECONFIG, "index_topk");
    refused(MOONLIGHT, ONE_GROUP ",moe_layer_freq:2", FM_ECONFIG, "moe_layer_freq 2");
    refused(MOONLIGHT, ONE_GROUP ",num_key_value_heads:1", FM_EFORMAT, "twice");
    refused(V2_LITE, "mlp_bias:true", FM_ECONFIG, "mlp_bias true is not supported");
    refused(V2_LITE, "norm_topk_prob:true", FM_ECONFIG, "norm_topk_prob true");
    refused(V2_LITE, "topk_method:'noaux_tc'", FM_ECONFIG, "noaux_tc");
    refused(V2_LITE, "rope_scaling:{type:'longrope'}", FM_ECONFIG, "default, yarn");
    refused("model_type:'deepseek_v32'", V3, FM_EFORMAT, "'index_topk' is missing");
}

TEST_MAIN(NULL, NULL)
