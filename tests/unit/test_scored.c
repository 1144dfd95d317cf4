/* Families whose routers choose by score: config.json in its spellings, sizes, and models that are
 * refused. */
#include "lib/block/gqa.h"
#include "lib/block/scored.h"
#include "lib/family/family.h"
#include "tests/unit/configs.h"
#include "tests/unit/test.h"

/* The sizes of the models on the hub. */
#define GLM_AIR                                                                                    \
    "model_type:'glm4_moe',hidden_size:4096,intermediate_size:10944,moe_intermediate_size:1408,"   \
    "num_hidden_layers:46,num_attention_heads:96,num_key_value_heads:8,head_dim:128,"              \
    "n_routed_experts:128,num_experts_per_tok:8,vocab_size:151552,attention_bias:true"
#define MINIMAX_SIZES                                                                              \
    ",hidden_size:3072,intermediate_size:1536,num_hidden_layers:62,num_attention_heads:48,"        \
    "num_key_value_heads:8,head_dim:128,num_local_experts:256,num_experts_per_tok:8,"              \
    "vocab_size:200064"
#define MINIMAX "model_type:'minimax_m2'" MINIMAX_SIZES
#define ERNIE                                                                                      \
    "model_type:'ernie4_5_moe',hidden_size:2560,intermediate_size:12288,"                          \
    "moe_intermediate_size:1536,num_hidden_layers:28,num_attention_heads:20,"                      \
    "num_key_value_heads:4,vocab_size:103424"
#define ERNIE_EXPERTS ERNIE ",moe_num_experts:64,moe_k:6"

static const struct fm_scored *scored(const struct fm_config *c)
{
    assert_true(c->router == &fm_scored);
    return c->scored;
}

/* As transformers counts them, including the selection biases. */
TEST(the_hubs_models_have_their_size)
{
    struct fm_config glm = must(GLM_AIR, "x:1"), minimax = must(MINIMAX, "rotary_dim:64");
    struct fm_config ernie = must(ERNIE_EXPERTS, "x:1");
    assert_true(fm_config_params(&glm, NULL) == 106852251264);
    assert_true(fm_config_params(&minimax, NULL) == 228689764864);
    assert_true(fm_config_params(&ernie, NULL) == 21825437888);
    assert_true(glm.M == 45 && glm.moe[0] == 1 && glm.dense == 10944 && glm.shared == 1408);
    assert_true(minimax.M == 62 && minimax.shared == 0 && minimax.T_max == 196608);
    assert_true(ernie.M == 27 && ernie.shared == 2 * 1536 && ernie.tied && ernie.C == 128);
    assert_false(glm.tied || minimax.tied || must(ERNIE_EXPERTS, "tie_word_embeddings:false").tied);
    assert_false(glm.shared_mix || ernie.shared_mix);
}

TEST(routers_follow_the_rule_of_their_family)
{
    struct fm_config c =
        must(GLM_AIR, "n_group:8,topk_group:4,routed_scaling_factor:2.5,topk_method:'noaux_tc',"
                      "scoring_func:'sigmoid'");
    const struct fm_scored *s = scored(&c);
    assert_true(s->rule.sigmoid && s->rule.groups == 8 && s->rule.topk_group == 4 &&
                s->rule.group_sum == 2);
    assert_true(s->rule.renormalised && s->rule.eps == 1e-20f && s->rule.least == 0 &&
                s->rule.scale == 2.5f);
    c = must(GLM_AIR, "norm_topk_prob:false");
    s = scored(&c);
    assert_true(!s->rule.renormalised && s->rule.groups == 1 && s->rule.scale == 1);
    c = must(MINIMAX, "norm_topk_prob:false,routed_scaling_factor:3,n_group:2");
    s = scored(&c);
    assert_true(s->rule.sigmoid && s->rule.groups == 1 && s->rule.renormalised &&
                s->rule.eps == 0 && s->rule.scale == 1);
    c = must(ERNIE_EXPERTS, "norm_topk_prob:false,moe_norm_min:0.25");
    s = scored(&c);
    assert_true(!s->rule.sigmoid && s->rule.groups == 1 && s->rule.renormalised &&
                s->rule.least == 0.25f);
    c = must(ERNIE_EXPERTS, "x:1");
    s = scored(&c);
    assert_true(s->rule.least == 1e-12f);
}

TEST(a_part_of_each_head_is_rotated)
{
    struct fm_config c = must(GLM_AIR, "rope_theta:1e6,partial_rotary_factor:0.25");
    assert_true(c.gqa->rope.R == 32 && c.gqa->rope.theta == 1e6 && !c.gqa->rope.pairs);
    float cosines[16], sines[16]; /* of position 0, whose angles are 0 */
    struct fm_rope plain;
    fm_rope_plain(&plain, 1e4, 32);
    fm_rope_fill(cosines, sines, &plain, 1);
    assert_true(cosines[15] == 1 && sines[15] == 0);
    c = must(GLM_AIR, "rope_parameters:{rope_type:'default',rope_theta:1e5,"
                      "partial_rotary_factor:0.75}");
    assert_true(c.gqa->rope.R == 96 && c.gqa->rope.theta == 1e5);
    c = must(GLM_AIR, "rope_scaling:null");
    assert_true(c.gqa->rope.R == 64 && c.gqa->rope.theta == 1e4);
    c = must(MINIMAX, "rotary_dim:64");
    assert_true(c.gqa->rope.R == 64 && c.gqa->rope.theta == 5e6);
    refused(GLM_AIR, "partial_rotary_factor:0.25,rope_parameters:{partial_rotary_factor:0.75}",
            FM_ECONFIG,
            "partial_rotary_factor 0.25 differs from partial_rotary_factor 0.75 of rope_par");
    refused(GLM_AIR, "rope_scaling:{rope_theta:1e4},rope_parameters:{partial_rotary_factor:0.75}",
            FM_ECONFIG, "rope_scaling and rope_parameters give different rotations");
    refused(MINIMAX, "rotary_dim:64,partial_rotary_factor:1.0", FM_ECONFIG,
            "rotary_dim is 64, and partial_rotary_factor rotates 128 of 128 elements");
    c = must(MINIMAX, "x:1");
    assert_true(c.gqa->rope.R == 128);
    c = must(ERNIE_EXPERTS, "partial_rotary_factor:0.5");
    assert_true(c.gqa->rope.R == 128 && c.gqa->rope.pairs && c.gqa->rope.theta == 5e5);
    refused(GLM_AIR, "partial_rotary_factor:0.008", FM_ECONFIG, "rotates 1 of 128 elements");
    refused(GLM_AIR, "partial_rotary_factor:0.26", FM_ECONFIG, "rotates 33 of 128 elements");
    refused(GLM_AIR, "partial_rotary_factor:1.5", FM_EFORMAT, "partial_rotary_factor");
    refused(MINIMAX, "rotary_dim:129", FM_ECONFIG, "rotary_dim");
}

TEST(norms_and_biases_are_switched_on)
{
    struct fm_config c = must(GLM_AIR, "use_qk_norm:true");
    assert_true(c.gqa->qk_norm == FM_QK_NORM_HEAD && c.gqa->qkv_bias && !c.gqa->o_bias);
    c = must(GLM_AIR, "use_qk_norm:false");
    assert_true(c.gqa->qk_norm == FM_QK_NORM_NONE);
    c = must(MINIMAX, "use_qk_norm:true,use_routing_bias:true,qk_norm_type:'per_layer'");
    assert_true(c.gqa->qk_norm == FM_QK_NORM_FULL && !c.gqa->qkv_bias);
}

TEST(dense_layers_are_the_first_or_outside_a_range)
{
    struct fm_config c = must(GLM_AIR, "first_k_dense_replace:3,n_shared_experts:2");
    assert_true(c.M == 43 && c.moe[0] == 3 && c.shared == 2816);
    c = must(GLM_AIR, "first_k_dense_replace:0,n_shared_experts:0");
    assert_true(c.M == 46 && c.dense == 0 && c.shared == 0);
    c = must(ERNIE_EXPERTS, "moe_layer_start_index:3,moe_layer_end_index:9,moe_layer_interval:3,"
                            "moe_num_shared_experts:0");
    assert_true(c.M == 2 && c.moe[0] == 5 && c.moe[1] == 8 && c.shared == 0);
    c = must(ERNIE_EXPERTS, "moe_layer_end_index:-1");
    assert_int_equal(c.moe[c.M - 1], 27);
    refused(GLM_AIR, "first_k_dense_replace:46", FM_ECONFIG, "no layer is a mixture");
    refused(GLM_AIR, "first_k_dense_replace:-1", FM_EFORMAT, "first_k_dense_replace");
    refused(GLM_AIR, "n_shared_experts:1000", FM_ECONFIG, "more than 1048576 channels");
    refused(GLM_AIR, "moe_layer_freq:2", FM_ECONFIG, "moe_layer_freq 2 is not supported");
    refused(ERNIE_EXPERTS, "moe_layer_start_index:28", FM_ECONFIG, "no layer is a mixture");
    refused(ERNIE_EXPERTS, "moe_num_shared_experts:1000", FM_ECONFIG, "1048576 channels");
}

TEST(experts_have_the_familys_keys_or_the_usual_ones)
{
    struct fm_config c = must(ERNIE, "num_experts:32,num_experts_per_tok:4");
    assert_true(c.E == 32 && c.K == 4);
    c = must(ERNIE_EXPERTS, "num_experts:64,num_experts_per_tok:6");
    assert_true(c.E == 64 && c.K == 6);
    refused(ERNIE_EXPERTS, "num_experts_per_tok:4", FM_ECONFIG,
            "num_experts_per_tok 4 differs from moe_k 6");
    refused(
        ERNIE_EXPERTS, "num_experts:32", FM_ECONFIG,
        "num_experts 32 differs from moe_num_experts 64, and programs differ in which they read");
    refused(ERNIE, "moe_num_experts:4,moe_k:6", FM_EFORMAT,
            "moe_k 6 is more than moe_num_experts 4");
    refused(ERNIE, "moe_k:6", FM_EFORMAT, "moe_num_experts");
}

/* The first MiniMax-M2 has the model_type of a model with another attention. */
TEST(a_familys_other_name_needs_its_class)
{
    const char *other = "model_type:'minimax'" MINIMAX_SIZES;
    must(other, "architectures:['MiniMaxM2ForCausalLM']");
    refused(other, "architectures:['MiniMaxForCausalLM']", FM_ECONFIG, "MiniMaxM2ForCausalLM");
}

TEST(unsupported_values_are_refused_by_name)
{
    refused(GLM_AIR, "scoring_func:'softmax'", FM_ECONFIG,
            "scoring_func 'softmax' is not supported for glm4_moe; supported: sigmoid");
    refused(GLM_AIR, "topk_method:'greedy'", FM_ECONFIG, "supported: noaux_tc");
    refused(GLM_AIR, "n_group:3", FM_EFORMAT, "128 experts cannot be divided into n_group 3");
    refused(GLM_AIR, "n_group:4,topk_group:5", FM_EFORMAT, "topk_group 5");
    refused(GLM_AIR, "n_group:128,topk_group:64", FM_EFORMAT, "leaves 1 experts in a group");
    refused(GLM_AIR, "n_group:32,topk_group:1", FM_EFORMAT, "too few to choose 8");
    refused(GLM_AIR, "routed_scaling_factor:0", FM_EFORMAT, "routed_scaling_factor");
    refused(GLM_AIR, "rope_scaling:{rope_type:'yarn',factor:4}", FM_ECONFIG, "yarn");
    refused(MINIMAX, "use_qk_norm:false", FM_ECONFIG, "use_qk_norm false is not supported");
    refused(MINIMAX, "use_routing_bias:false", FM_ECONFIG, "use_routing_bias false");
    refused(MINIMAX, "qk_norm_type:'per_head'", FM_ECONFIG, "qk_norm_type 'per_head'");
    refused(MINIMAX, "attn_type_list:[1,0]", FM_ECONFIG, "attn_type_list");
    refused(MINIMAX, "attn_type_list:0", FM_EFORMAT, "'attn_type_list' is not an array");
    refused(MINIMAX, "qk_norm_type:1", FM_ECONFIG, "qk_norm_type 1 is not supported");
    refused(MINIMAX, "qk_norm_type:[1]", FM_ECONFIG, "qk_norm_type [...] is not supported");
    must(MINIMAX, "qk_norm_type:'per_layer',use_qk_norm:null");
    refused(MINIMAX, "shared_intermediate_size:8", FM_ECONFIG, "shared_intermediate_size 8");
    refused(MINIMAX, "attention_bias:true", FM_ECONFIG, "attention_bias true");
    refused(ERNIE_EXPERTS, "use_bias:true", FM_ECONFIG, "use_bias true is not supported");
    refused(ERNIE, "moe_num_experts:[64,64],moe_k:6", FM_EFORMAT, "moe_num_experts");
    refused(ERNIE_EXPERTS, "moe_layer_start_index:[1,1]", FM_ECONFIG, "as a list");
}

TEST_MAIN(NULL, NULL)
