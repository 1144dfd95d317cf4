/*
 * Errors that are easy to make with config.json of newer families: keys that programs read
 * differently or not at all, defaults of transformers, other names.  Each test is one such trap.
 */
#include <math.h>

#include "lib/block/gqa.h"
#include "lib/block/limited.h"
#include "lib/block/mla.h"
#include "lib/block/scored.h"
#include "lib/block/shortconv.h"
#include "lib/block/softmax.h"
#include "lib/family/family.h"
#include "tests/unit/configs.h"
#include "tests/unit/test.h"

/* Sizes of models on the hub, or small ones. */
#define SOLAR_KEYS                                                                                 \
    "model_type:'solar_open',hidden_size:4096,num_hidden_layers:48,num_attention_heads:64,"        \
    "moe_intermediate_size:1280,n_routed_experts:128,num_experts_per_tok:8,vocab_size:196608"
#define SOLAR SOLAR_KEYS ",num_key_value_heads:8,head_dim:128"
#define HY3_KEYS                                                                                   \
    "model_type:'hy_v3',hidden_size:4096,intermediate_size:13312,num_hidden_layers:80,"            \
    "num_attention_heads:64,num_key_value_heads:8,head_dim:128,moe_intermediate_size:1536,"        \
    "num_experts:192,num_experts_per_tok:8,vocab_size:120832"
#define HY3 HY3_KEYS ",expert_hidden_dim:1536"

#define LATENT                                                                                     \
    "vocab_size:154880,kv_lora_rank:512,qk_rope_head_dim:64,moe_intermediate_size:2048,"           \
    "n_shared_experts:1,num_experts_per_tok:8,first_k_dense_replace:3"
#define INDEXER ",index_topk:2048,index_head_dim:128,index_n_heads:"
#define GLM5_KEYS                                                                                  \
    "model_type:'glm_moe_dsa',hidden_size:6144,intermediate_size:12288,num_hidden_layers:78,"      \
    "num_attention_heads:64,q_lora_rank:2048,qk_nope_head_dim:192,v_head_dim:256," LATENT
#define GLM5 GLM5_KEYS ",n_routed_experts:256" INDEXER "32"
#define V32                                                                                        \
    "model_type:'deepseek_v32',hidden_size:7168,intermediate_size:18432,num_hidden_layers:61,"     \
    "num_attention_heads:128,q_lora_rank:1536,qk_nope_head_dim:128,v_head_dim:128,"                \
    "n_routed_experts:256," LATENT INDEXER "64"
#define GROUPS ",n_group:8,topk_group:4"
#define GROUPED                                                                                    \
    ",num_attention_heads:4,head_dim:8,moe_intermediate_size:6,num_experts:8,"                     \
    "num_experts_per_tok:2,vocab_size:11,hidden_size:16,intermediate_size:20,"                     \
    "num_hidden_layers:4"
#define EXAONE "model_type:'exaone_moe',num_key_value_heads:2,max_position_embeddings:64" GROUPED
#define AFMOE "model_type:'afmoe',max_position_embeddings:64" GROUPED

#define LAGUNA_KEYS                                                                                \
    "model_type:'laguna',max_position_embeddings:64,num_key_value_heads:2,"                        \
    "shared_expert_intermediate_size:10" GROUPED
#define LAGUNA                                                                                     \
    LAGUNA_KEYS ",layer_types:['full_attention','sliding_attention','sliding_attention','full_"    \
                "attention'],"                                                                     \
                "sliding_window:8"

#define MIMO_KEYS                                                                                  \
    "model_type:'mimo_v2_flash',max_position_embeddings:64,num_key_value_heads:2,"                 \
    "num_attention_heads:4,moe_intermediate_size:6,n_routed_experts:8,num_experts_per_tok:2,"      \
    "vocab_size:11,hidden_size:16,intermediate_size:20,num_hidden_layers:7,head_dim:12"
#define MIMO MIMO_KEYS ",v_head_dim:5"

/* MiMo-V2.5 and V2.6-Flash; every eighth layer has no window here. */
#define MIMO_V2_SEVEN "1,1,1,1,1,1,1"
#define MIMO_V2_KEYS                                                                               \
    "model_type:'mimo_v2',hidden_size:4096,intermediate_size:16384,moe_intermediate_size:2048,"    \
    "num_attention_heads:64,num_key_value_heads:4,head_dim:192,swa_num_attention_heads:64,"        \
    "swa_v_head_dim:128,n_routed_experts:256,num_experts_per_tok:8,n_group:1,topk_group:1,"        \
    "vocab_size:152576,max_position_embeddings:1048576,layernorm_epsilon:1e-5,"                    \
    "add_swa_attention_sink_bias:true"
#define MIMO_V2_LISTS                                                                              \
    ",num_hidden_layers:48,hybrid_layer_pattern:[0," MIMO_V2_SEVEN ",0," MIMO_V2_SEVEN             \
    ",0," MIMO_V2_SEVEN ",0," MIMO_V2_SEVEN ",0," MIMO_V2_SEVEN ",0," MIMO_V2_SEVEN                \
    "],moe_layer_freq:[0," MIMO_V2_SEVEN "," MIMO_V2_SEVEN "," MIMO_V2_SEVEN "," MIMO_V2_SEVEN     \
    "," MIMO_V2_SEVEN "," MIMO_V2_SEVEN ",1,1,1,1,1]"
#define MIMO_V2_ONES ",swa_head_dim:192,v_head_dim:128,rope_theta:1e7"
#define MIMO_V2_SIZES MIMO_V2_KEYS MIMO_V2_LISTS MIMO_V2_ONES
#define MIMO_V2 MIMO_V2_SIZES ",swa_num_key_value_heads:8,sliding_window:128"
#define MIMO_V2_TWO                                                                                \
    MIMO_V2_KEYS MIMO_V2_ONES ",swa_num_key_value_heads:8,sliding_window:128,num_hidden_layers:2"

/* A list of the published text_config: 0 for the first three layers, which are dense and have no
 * indexer, and 1 for the others. */
#define M3_LIST "[0,0,0" M3_ONES M3_ONES M3_ONES "]"
#define M3_ONES ",1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"
#define M3_SPARSE(list)                                                                            \
    "sparse_attention_config:{use_sparse_attention:true,sparse_index_dim:128,"                     \
    "sparse_num_index_heads:4,sparse_topk_blocks:16,sparse_block_size:128,"                        \
    "sparse_disable_index_value:" list ",sparse_score_type:'max',sparse_init_block:0,sparse_"      \
    "local_block:1,sparse_attention_freq:" M3_LIST "}"
#define M3_WHOLE                                                                                   \
    "fm_wrapper:{model_type:'minimax_m3_vl'},model_type:'minimax_m3_vl_text',hidden_size:6144,"    \
    "intermediate_size:3072,dense_intermediate_size:12288,shared_intermediate_size:3072,"          \
    "num_hidden_layers:60,num_attention_heads:64,num_key_value_heads:4,head_dim:128,"              \
    "vocab_size:200064,num_local_experts:128,num_experts_per_tok:4,n_shared_experts:1,"            \
    "moe_layer_freq:" M3_LIST                                                                      \
    ",hidden_act:'swigluoai',swiglu_beta:1.0,use_gemma_norm:true,use_qk_norm:true,"                \
    "qk_norm_type:'per_head',use_routing_bias:true,scoring_func:'sigmoid',"                        \
    "attention_output_gate:false,rope_theta:5000000,max_position_embeddings:1048576"
#define M3_HUB M3_WHOLE ",rotary_dim:64,partial_rotary_factor:0.5," M3_SPARSE(M3_LIST)
/* The keys that the text class saves, with small sizes. */
#define M3_KEYS                                                                                    \
    "model_type:'minimax_m3_vl_text',hidden_size:16,intermediate_size:6,"                          \
    "shared_intermediate_size:10,num_hidden_layers:4,num_attention_heads:4,"                       \
    "num_key_value_heads:2,head_dim:8,vocab_size:11,num_local_experts:8,num_experts_per_tok:2"
#define M3_INDEX(block, blocks)                                                                    \
    "index_n_heads:2,index_head_dim:5,index_block_size:" block ",index_topk_blocks:" blocks
#define M3_TYPES                                                                                   \
    ",layer_types:['full_attention','minimax_m3_sparse','full_attention','minimax_m3_sparse']"
#define M3 M3_KEYS M3_TYPES "," M3_INDEX("4", "5")

/* The sizes of granite-3.1-1b-a400m. */
#define GRANITE_SIZES                                                                              \
    "hidden_size:1024,intermediate_size:512,num_hidden_layers:24,num_attention_heads:16,"          \
    "num_key_value_heads:8,num_local_experts:32,num_experts_per_tok:8,vocab_size:49155,"           \
    "tie_word_embeddings:true"
#define GRANITE "model_type:'granitemoe'," GRANITE_SIZES
#define GRANITE_SHARED "model_type:'granitemoeshared'," GRANITE_SIZES

/* Step-3.7-Flash, with the lists of its first layers and of one for multi-token prediction. */
#define STEP_SIZES                                                                                 \
    "model_type:'step3p5',hidden_size:4096,intermediate_size:11264,vocab_size:128896,"             \
    "head_dim:128,num_attention_heads:64,num_attention_groups:8,moe_num_experts:288,moe_top_k:8,"  \
    "moe_intermediate_size:1280,share_expert_dim:1280,moe_router_scaling_factor:3.0,"              \
    "sliding_window:512,max_position_embeddings:262144,attention_other_setting:{"                  \
    "attention_type:'sliding_attention',num_attention_heads:96,num_attention_groups:8,"            \
    "head_dim:128},yarn_only_types:['full_attention'],rope_scaling:{rope_type:'llama3',factor:2,"  \
    "original_max_position_embeddings:131072,low_freq_factor:1,high_freq_factor:32}"
#define STEP_TYPES                                                                                 \
    "layer_types:['full_attention','sliding_attention','sliding_attention','full_attention',"      \
    "'sliding_attention']"
#define STEP_KEYS STEP_SIZES ",num_hidden_layers:4,num_nextn_predict_layers:1," STEP_TYPES
#define STEP_ROPE ",rope_theta:[5e6,1e4,1e4,5e6,1e4],partial_rotary_factors:[0.5,1,1,0.5,1]"
#define STEP STEP_KEYS STEP_ROPE ",moe_layers_enum:'1,2,3,4'"
/* The same as transformers saves it. */
#define STEP_SAVED                                                                                 \
    "model_type:'step3p5',hidden_size:4096,intermediate_size:11264,vocab_size:128896,"             \
    "head_dim:128,num_attention_heads:64,num_key_value_heads:8,n_routed_experts:288,"              \
    "num_experts_per_tok:8,moe_intermediate_size:1280,share_expert_dim:1280,sliding_window:512,"   \
    "num_hidden_layers:2,layer_types:['full_attention','sliding_attention'],"                      \
    "mlp_layer_types:['dense','sparse'],num_sliding_attention_heads:96,query_pre_attn_scalar:128," \
    "rope_parameters:{full_attention:{rope_type:'default',rope_theta:5e6},"                        \
    "sliding_attention:{rope_type:'default',rope_theta:1e4}}"

#define LFM2_KEYS                                                                                  \
    "model_type:'lfm2_moe',hidden_size:16,intermediate_size:20,moe_intermediate_size:6,"           \
    "num_hidden_layers:4,num_attention_heads:4,num_experts:8,num_experts_per_tok:2,"               \
    "vocab_size:11"
#define LFM2_TYPES ",layer_types:['conv','conv','full_attention','conv']"
#define LFM2 LFM2_KEYS LFM2_TYPES ",num_key_value_heads:2"

static bool has(const struct fm_config *c, enum fm_naming naming, const char *name)
{
    int l, e;
    return fm_weights_find(c, naming, name, &l, &e) != NULL;
}

/* ---- Solar-Open ---- */

TEST(every_layer_of_solar_has_experts)
{
    struct fm_config c = must(SOLAR, "intermediate_size:10240,first_k_dense_replace:0");
    assert_true(c.M == 48 && c.moe[0] == 0 && c.dense == 0 && c.shared == 1280);
    assert_int_equal(fm_config_params(&c, NULL) / 1000000000, 102);
    refused(SOLAR, "first_k_dense_replace:1", FM_ECONFIG,
            "first_k_dense_replace 1 is not supported for solar_open: runtimes disagree about it; "
            "supported: 0");
}

TEST(solar_has_biases_of_q_k_v_and_no_norms)
{
    struct fm_config c = must(SOLAR, "attention_bias:true,use_qk_norm:false");
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.v_proj.bias"));
    assert_false(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.o_proj.bias"));
    assert_true(c.gqa->qk_norm == FM_QK_NORM_NONE && c.gqa->rope.theta == 1e6);
    refused(SOLAR, "use_qk_norm:true", FM_ECONFIG,
            "use_qk_norm true is not supported for solar_open; supported: false");
}

/* transformers' class raises an error in this case. */
TEST(no_part_of_solars_heads_is_rotated)
{
    must(SOLAR, "partial_rotary_factor:1.0");
    refused(SOLAR, "partial_rotary_factor:0.5", FM_ECONFIG, "partial_rotary_factor 0.5");
    refused(SOLAR, "rope_parameters:{partial_rotary_factor:0.5,rope_type:'default'}", FM_ECONFIG,
            "partial_rotary_factor 0.5");
}

/* transformers would use 128 and 8, whatever the other sizes are. */
TEST(missing_keys_of_solars_heads_are_refused)
{
    refused(SOLAR_KEYS, "num_key_value_heads:8", FM_EFORMAT, "key 'head_dim' is missing");
    refused(SOLAR_KEYS, "head_dim:64", FM_EFORMAT, "key 'num_key_value_heads' is missing");
    refused(SOLAR_KEYS, "num_key_value_heads:8,head_dim:null", FM_EFORMAT,
            "key 'head_dim' is missing");
}

/* ---- Hy3 ---- */

TEST(two_keys_for_the_width_of_hy3s_experts_agree)
{
    assert_int_equal(must(HY3, NULL).I, 1536);
    assert_int_equal(must(HY3_KEYS, NULL).I, 1536);
    refused(HY3_KEYS, "expert_hidden_dim:1024", FM_ECONFIG,
            "expert_hidden_dim 1024 differs from moe_intermediate_size 1536, and programs differ "
            "in which they read");
    refused(HY3_KEYS, "expert_hidden_dim:0", FM_ECONFIG, "expert_hidden_dim 0 differs");
    refused(HY3_KEYS, "expert_hidden_dim:'1536'", FM_ECONFIG, "expert_hidden_dim '1536' differs");
}

TEST(hy3s_scaling_factor_has_another_key)
{
    struct fm_config c = must(HY3, "routed_scaling_factor:7");
    const struct fm_route_rule *rule = &c.scored->rule;
    assert_true(rule->sigmoid && rule->renormalised && rule->groups == 1 && rule->eps == 1e-20F);
    assert_true(rule->scale == 2.826F);
    c = must(HY3, "router_scaling_factor:1.5,route_norm:true");
    assert_true(c.scored->rule.scale == 1.5F);
    refused(HY3, "router_scaling_factor:0", FM_EFORMAT, "router_scaling_factor is not above 0");
    refused(HY3, "route_norm:false", FM_ECONFIG, "route_norm false is not supported for hy_v3");
    refused(HY3, "qk_norm:false", FM_ECONFIG, "qk_norm false");
    refused(HY3, "moe_router_use_sigmoid:false", FM_ECONFIG, "moe_router_use_sigmoid false");
    refused(HY3, "moe_router_enable_expert_bias:0", FM_ECONFIG, "expert_bias 0 is not");
}

/* transformers reads only the list, vLLM only the number. */
TEST(hy3s_dense_layers_are_those_of_all_programs)
{
    struct fm_config c = must(HY3, "first_k_dense_replace:1");
    assert_true(c.M == 79 && c.moe[0] == 1 && c.dense == 13312);
    assert_int_equal(must(HY3, NULL).M, 79);
    refused(HY3, "first_k_dense_replace:3", FM_ECONFIG,
            "first_k_dense_replace 3 without mlp_layer_types is not supported for hy_v3");
    refused(HY3, "mlp_layer_types:['dense']", FM_EFORMAT, "1 entries for 80 layers");
}

/* transformers would create one as wide as a dense layer. */
TEST(hy3_without_a_shared_expert_is_refused)
{
    assert_int_equal(must(HY3, "num_shared_experts:2").shared, 3072);
    refused(HY3, "num_shared_experts:0", FM_ECONFIG, "num_shared_experts 0 is not supported");
    refused(HY3, "num_shared_experts:-1", FM_EFORMAT, "num_shared_experts");
}

TEST(hy3s_names_differ_on_disk)
{
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

/* ---- GLM-5 and DeepSeek-V3.2 ---- */

/* Beyond index_topk positions the indexer chooses keys, which is not supported here. */
TEST(sequences_end_where_an_indexer_would_choose)
{
    struct fm_config c = must(V32 GROUPS, "max_position_embeddings:163840");
    assert_true(c.T_max == 163840 && c.T_exact == 2048);
    assert_string_equal(c.exact,
                        "the range in which sparse attention (index_topk) attends to all keys");
    c = must(V32 GROUPS, "max_position_embeddings:1024");
    assert_true(c.T_exact == 1024 && !c.exact);
    refused(GLM5_KEYS, "n_routed_experts:256", FM_EFORMAT, "key 'index_topk' is missing");
    refused(GLM5_KEYS, "n_routed_experts:256,index_topk:0", FM_EFORMAT, "index_topk");
}

/* GLM-5 has 743 billion parameters without multi-token prediction; the card counts it and says 754
 * (40 active). */
TEST(an_indexers_tensors_are_of_the_layers_that_have_one)
{
    struct fm_config c = must(V32 GROUPS, NULL), glm = must(GLM5, NULL);
    assert_int_equal(fm_config_params(&glm, NULL) / 1000000000, 743);
    for (int i = 0; i < 5; i++) {
        static const char *const end[] = {"wq_b.weight", "wk.weight", "k_norm.weight",
                                          "k_norm.bias", "weights_proj.weight"};
        char name[80];
        snprintf(name, sizeof name, "model.layers.60.self_attn.indexer.%s", end[i]);
        assert_true(has(&c, FM_NAMING_STOCK, name) && has(&c, FM_NAMING_RAGGED, name));
    }
    c = must(GLM5, "index_topk_freq:4,index_skip_topk_offset:3");
    for (int l = 0; l < 78; l++) { /* 0, 1, 2, 6, 10, ... */
        assert_int_equal(fm_layers_has(&c.mla->indexed, l), l < 2 || l % 4 == 2);
        assert_true(fm_layers_has(&glm.mla->indexed, l));
    }
    int l;
    assert_true(fm_weights_is_off(&c, "model.layers.3.self_attn.indexer.wk.weight", &l));
}

TEST(keys_that_say_which_layers_share_indices_must_agree)
{
    const char *glm =
        "model_type:'glm_moe_dsa',hidden_size:8,intermediate_size:5,num_hidden_layers:4,"
        "num_attention_heads:2,q_lora_rank:4,qk_nope_head_dim:4,v_head_dim:4,n_routed_experts:"
        "16," LATENT INDEXER "1";
    struct fm_config c = must(glm, "index_topk_pattern:'FFSS'");
    assert_int_equal(c.mla->indexed.bits[0], 3);
    c = must(glm, "indexer_types:['full','full','shared','shared'],index_topk_freq:4,"
                  "index_skip_topk_offset:2");
    assert_int_equal(c.mla->indexed.bits[0], 3);
    refused(glm, "index_topk_pattern:'FFSS',index_topk_freq:2,index_skip_topk_offset:2", FM_ECONFIG,
            "index_topk_pattern and index_topk_freq give indexers to different layers");
    refused(glm, "index_topk_freq:4", FM_ECONFIG,
            "index_topk_freq 4 without index_skip_topk_offset is interpreted");
    refused(glm, "index_topk_pattern:'SFSS'", FM_EFORMAT, "layer 0 cannot share the indices");
    refused(glm, "index_topk_pattern:'FFS'", FM_EFORMAT, "has 3 entries for 4 layers");
    refused(glm, "index_topk_pattern:'FXSS'", FM_ECONFIG, "of layer 1 is not supported");
    refused(glm, "indexer_types:7", FM_EFORMAT, "neither a list nor a string");
    refused(glm, "indexer_types:['full',1,2,3]", FM_ECONFIG, "of layer 1 is not supported");
    refused(glm, "index_topk_freq:0", FM_EFORMAT, "index_topk_freq");
}

/* transformers would read one, servers the other. */
TEST(two_numbers_of_experts_are_refused)
{
    assert_int_equal(must(GLM5_KEYS INDEXER "32", "num_experts:64").E, 64);
    refused(GLM5, "num_experts:64", FM_ECONFIG, "num_experts 64 differs from n_routed_experts 256");
    refused(GLM5, "num_local_experts:64", FM_ECONFIG, "num_local_experts 64 differs from");
}

TEST(keys_of_indexed_families_that_transformers_does_not_read)
{
    struct fm_config c = must(GLM5, "head_dim:192,indexer_rope_interleave:true,"
                                    "moe_router_dtype:'float32',moe_layer_freq:1");
    assert_true(c.mla->rope.R == 64 && c.mla->rope.pairs && c.C == 256);
    refused(GLM5, "rope_interleave:false", FM_ECONFIG, "rope_interleave false is not supported");
    refused(GLM5, "indexer_rope_interleave:false", FM_ECONFIG, "indexer_rope_interleave false");
    refused(V32 GROUPS, "indexer_rope_interleave:true", FM_ECONFIG, "supported: false");
    refused(GLM5, "moe_router_dtype:'bfloat16'", FM_ECONFIG, "supported: 'float32'");
    refused(GLM5, "scoring_func:'softmax'", FM_ECONFIG, "supported: sigmoid");
    refused(V32, NULL, FM_EFORMAT, "key 'n_group' is missing");
}

TEST(an_indexer_needs_the_latent_of_queries)
{
    refused(
        "model_type:'deepseek_v32',hidden_size:8,intermediate_size:5,num_hidden_layers:4,"
        "num_attention_heads:2,qk_nope_head_dim:4,v_head_dim:4,n_routed_experts:16," LATENT INDEXER
        "1",
        "n_group:1,topk_group:1,q_lora_rank:null", FM_ECONFIG,
        "q_lora_rank null is not supported with a sparse indexer");
}

/* ---- K-EXAONE ---- */

TEST(exaones_layers_without_a_window_have_no_positions)
{
    struct fm_config c = must(EXAONE, "sliding_window:8");
    assert_true(c.gqa->options->unrotated);
    for (int l = 0; l < 4; l++)
        assert_int_equal(fm_gqa_window(&c, l), l == 3 ? 0 : 8);
    c = must(EXAONE, "sliding_window:8,sliding_window_pattern:2");
    assert_true(fm_gqa_window(&c, 1) == 0 && fm_gqa_window(&c, 2) == 8);
    refused(EXAONE, "sliding_window:null", FM_EFORMAT, "key 'sliding_window' is missing");
    refused(EXAONE, "sliding_window:0", FM_ECONFIG, "sliding_window is null or 0 but layer 0");
}

TEST(exaones_rotation_has_the_default_theta_of_transformers)
{
    assert_true(must(EXAONE, "sliding_window:8").gqa->rope.theta == 1e4);
    assert_true(must(EXAONE, "sliding_window:8,rope_theta:1e6").gqa->rope.theta == 1e6);
}

TEST(exaones_pattern_of_letters_needs_layer_types)
{
    refused(EXAONE, "sliding_window:8,sliding_window_pattern:'LLLG'", FM_ECONFIG,
            "sliding_window_pattern 'LLLG' without layer_types is not supported");
    must(EXAONE, "sliding_window:8,sliding_window_pattern:'LLLG',"
                 "layer_types:['sliding_attention','sliding_attention','sliding_attention',"
                 "'full_attention']");
    refused(EXAONE, "sliding_window:8,sliding_window_pattern:0", FM_EFORMAT,
            "sliding_window_pattern");
}

TEST(the_makers_list_of_exaones_layers_says_the_same)
{
    struct fm_config c = must(EXAONE, "sliding_window:8,is_moe_layer:[false,true,true,true]");
    assert_true(c.M == 3 && c.dense == 20 && c.shared == 6);
    refused(EXAONE, "sliding_window:8,is_moe_layer:[true,true,true,true]", FM_ECONFIG,
            "is_moe_layer of layer 0 is not false");
    refused(EXAONE, "sliding_window:8,is_moe_layer:[false]", FM_EFORMAT, "1 entries for 4");
    refused(EXAONE, "sliding_window:8,first_last_k_dense_replace:2", FM_ECONFIG,
            "first_last_k_dense_replace is 2, but layer 1 is the first with experts");
    refused(EXAONE, "sliding_window:8,is_moe_layer:1", FM_EFORMAT, "is not an array");
    refused(EXAONE, "sliding_window:8,is_moe_layer:[0,1,1,1]", FM_ECONFIG, "layer 0");
}

TEST(later_models_of_exaones_name_are_refused)
{
    refused(EXAONE, "sliding_window:8,swiglu_limits:[7]", FM_ECONFIG,
            "swiglu_limits is not supported for exaone_moe");
    refused(EXAONE, "sliding_window:8,sliding_windows:[8]", FM_ECONFIG, "sliding_windows");
}

TEST(exaones_bias_is_beside_the_router_on_disk)
{
    struct fm_config c = must(EXAONE, "sliding_window:8");
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.1.mlp.e_score_correction_bias"));
    assert_true(has(&c, FM_NAMING_RAGGED, "model.layers.1.mlp.gate.e_score_correction_bias"));
}

/* ---- A.X-K1 ---- */

/* Published checkpoints have this norm in dense layers, too; transformers writes it only in the
 * others. */
TEST(axk1s_norm_after_the_experts_is_spare_in_dense_layers)
{
    const char *axk1 = "model_type:'axk1',hidden_size:8,intermediate_size:5,num_hidden_layers:4,"
                       "num_attention_heads:2,q_lora_rank:4,qk_nope_head_dim:4,v_head_dim:4,"
                       "n_routed_experts:16," LATENT;
    struct fm_config c = must(axk1, "n_group:2,topk_group:1");
    int l, e;
    for (int i = 0; i < 4; i++) {
        char name[80];
        snprintf(name, sizeof name, "model.layers.%d.post_mlp_layernorm.weight", i);
        const struct fm_weight *w = fm_weights_find(&c, FM_NAMING_STOCK, name, &l, &e);
        assert_int_equal(w->part, i < 3 ? FM_PART_SPARE : FM_PART_NORM);
        assert_int_equal(fm_config_output_norms(&c, i), i < 3 ? 0 : FM_NORMS_MLP);
    }
    refused(axk1, NULL, FM_EFORMAT, "key 'n_group' is missing");
    refused(axk1, "n_group:2,topk_group:1,moe_layer_freq:2", FM_ECONFIG, "moe_layer_freq 2");
}

/* ---- Trinity ---- */

TEST(trinitys_post_attention_norm_is_of_what_attention_gives)
{
    struct fm_config c = must(AFMOE, NULL);
    int l, e;
    const struct fm_weight *after = fm_weights_find(
        &c, FM_NAMING_STOCK, "model.layers.0.post_attention_layernorm.weight", &l, &e);
    const struct fm_weight *before =
        fm_weights_find(&c, FM_NAMING_STOCK, "model.layers.0.pre_mlp_layernorm.weight", &l, &e);
    assert_int_equal(after->field, FM_LAYER_FIELD(attention_norm));
    assert_int_equal(before->field, FM_LAYER_FIELD(post_norm));
    assert_int_equal(fm_config_output_norms(&c, 0), FM_NORMS_ATTENTION | FM_NORMS_MLP);
}

TEST(trinitys_embeddings_are_scaled_where_mup_is_on)
{
    assert_true(must(AFMOE, NULL).embed_scale == 1);
    assert_true(must(AFMOE, "mup_enabled:true").embed_scale == 4);
    refused(AFMOE, "mup_enabled:1", FM_EFORMAT, "mup_enabled");
}

TEST(trinitys_router_is_what_vllm_reads)
{
    struct fm_config c = must(AFMOE, "route_scale:2.826,score_func:'sigmoid'");
    assert_true(c.scored->rule.scale == 2.826F && c.scored->rule.renormalised);
    assert_true(c.shared == 12 && c.M == 3 && c.G == 4);
    refused(AFMOE, "score_func:'softmax'", FM_ECONFIG, "supported: 'sigmoid'");
    refused(AFMOE, "route_norm:false", FM_ECONFIG, "route_norm false");
    refused(AFMOE, "n_group:2", FM_ECONFIG, "n_group 2 is not supported for afmoe");
    refused(AFMOE, "route_scale:0", FM_EFORMAT, "route_scale is not above 0");
    refused(AFMOE, "num_dense_layers:4", FM_ECONFIG, "(num_dense_layers 4 of 4)");
}

TEST(trinity_turns_heads_in_layers_with_a_window_only)
{
    struct fm_config c = must(AFMOE, "sliding_window:8,global_attn_every_n_layers:2");
    assert_true(c.gqa->options->unrotated && c.gqa->options->gate_apart);
    for (int l = 0; l < 4; l++)
        assert_int_equal(fm_gqa_window(&c, l), l % 2 ? 0 : 8);
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.gate_proj.weight"));
}

/* ---- Step ---- */

TEST(steps_lists_have_an_entry_for_each_layer)
{
    struct fm_config c = must(STEP, "swiglu_limits:[0,0,7,null,0],swiglu_limits_shared:[0,0,0,16]");
    assert_true(c.M == 3 && c.moe[0] == 1 && c.dense == 11264 && c.shared == 1280 && c.K == 8);
    assert_true(fm_gqa_heads(&c, 0) == 64 && fm_gqa_heads(&c, 1) == 96 && c.Q == 96 && c.G == 8);
    assert_true(fm_gqa_window(&c, 0) == 0 && fm_gqa_window(&c, 2) == 512);
    assert_true(c.gqa->options->gate_heads && !c.gqa->options->gate_softplus &&
                c.scored->rule.scale == 3);
    assert_true(c.gqa->rope.theta == 5e6 && c.gqa->rope.R == 64 && c.gqa->rope.factor[31] == 2);
    assert_true(c.gqa->window_rope.theta == 1e4 && c.gqa->window_rope.factor[31] == 1);
    assert_true(c.limits->expert[2] == 7 && c.limits->expert[3] == 0 && c.limits->mlp[3] == 16);
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.1.moe.gate_proj.weight"));
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.1.share_expert.up_proj.weight"));
    assert_true(has(&c, FM_NAMING_RAGGED, "model.layers.1.mlp.shared_experts.up_proj.weight"));
    must(STEP, "mlp_layer_types:['dense','sparse','sparse','sparse'],use_rope_layers:[]");
    must(STEP_KEYS STEP_ROPE, "moe_layers_enum:[1,2,3,4]");
}

TEST(steps_lists_are_checked)
{
    static const struct {
        const char *keys, *more;
        int code;
        const char *part;
    } row[] = {
        {STEP, "swiglu_limits:[0,0,7]", FM_EFORMAT, "swiglu_limits has 3 entries for 4 layers"},
        {STEP, "swiglu_limits:[0,0,-7,0]", FM_EFORMAT, "swiglu_limits of layer 2 is not a number"},
        {STEP, "swiglu_limits_shared:7", FM_EFORMAT, "key 'swiglu_limits_shared' is not an array"},
        {STEP, "use_rope_layers:[true,false]", FM_ECONFIG, "use_rope_layers that are not all true"},
        {STEP, "mlp_layer_types:['sparse','sparse','sparse','sparse']", FM_ECONFIG,
         "mlp_layer_types and moe_layers_enum name different layers"},
        {STEP, "num_sliding_attention_heads:64", FM_ECONFIG, "num_sliding_attention_heads 64"},
        {STEP, "num_key_value_heads:4", FM_ECONFIG, "num_attention_groups of attention_other"},
        {STEP, "use_head_wise_attn_gate:false", FM_ECONFIG, "use_head_wise_attn_gate false"},
        {STEP, "moe_router_activation:'softmax'", FM_ECONFIG, "moe_router_activation 'softmax'"},
        {STEP, "num_experts_per_tok:4", FM_ECONFIG, "moe_top_k 8"},
        {STEP, "rope_parameters:{full_attention:{}}", FM_ECONFIG,
         "rope_theta is outside rope_parameters"},
        {STEP_KEYS STEP_ROPE, "x:1", FM_EFORMAT, "key 'mlp_layer_types' is missing"},
        {STEP_KEYS STEP_ROPE, "moe_layers_enum:'1;2'", FM_EFORMAT, "moe_layers_enum is neither"},
        {STEP_KEYS STEP_ROPE, "moe_layers_enum:7", FM_EFORMAT, "moe_layers_enum is neither"},
        {STEP_KEYS STEP_ROPE, "moe_layers_enum:''", FM_ECONFIG, "no layer is a mixture"},
        {STEP_KEYS ",moe_layers_enum:'1'", "rope_theta:[5e6,1e4,2e4,5e6,1e4]", FM_ECONFIG,
         "rope_theta of layer 2 is 20000, and 10000 in an earlier layer of its type"},
        {STEP_KEYS ",moe_layers_enum:'1'", "rope_theta:[5e6,1e4,1e4]", FM_EFORMAT,
         "rope_theta is not a list of numbers for 4 layers"},
        {STEP_KEYS ",moe_layers_enum:'1'", "rope_theta:[5e6,'x',1e4,5e6]", FM_EFORMAT,
         "rope_theta of layer 1 is not a number"},
        {STEP_SIZES ",moe_layers_enum:'1'" STEP_ROPE, "num_hidden_layers:5", FM_EFORMAT,
         "key 'layer_types' is missing"},
        {STEP_SAVED, "rope_scaling:{rope_type:'llama3'}", FM_ECONFIG,
         "rope_scaling is outside rope_parameters"},
        {STEP_SAVED, "per_layer_config:{'1':{num_attention_heads:64}}", FM_ECONFIG,
         "per_layer_config of layer 1 is not the num_attention_heads 96"},
        {STEP_SAVED, "per_layer_config:{'1':{num_attention_heads:96,head_dim:64}}", FM_ECONFIG,
         "per_layer_config of layer 1"},
        {STEP_SAVED, "attention_other_setting:{attention_type:'full_attention'}", FM_ECONFIG,
         "attention_type of attention_other_setting"},
        {STEP_SAVED, "attention_other_setting:{head_dim:64}", FM_ECONFIG,
         "head_dim of attention_other_setting differs"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        refused(row[i].keys, row[i].more, row[i].code, row[i].part);
    refused("model_type:'step3p5',num_hidden_layers:2,num_attention_heads:2,rope_theta:9,"
            "rope_scaling:{rope_type:'llama3'}",
            "layer_types:['full_attention','full_attention']", FM_ECONFIG,
            "yarn_only_types is not ['full_attention']");
}

TEST(step_as_transformers_saves_it)
{
    struct fm_config c =
        must(STEP_SAVED, "per_layer_config:{'1':{num_attention_heads:96}},mlp_bias:false");
    assert_true(fm_gqa_heads(&c, 0) == 64 && fm_gqa_heads(&c, 1) == 96 && c.M == 1);
    assert_true(c.gqa->rope.R == 128 && c.gqa->rope.factor[63] == 1 && c.scored->rule.scale == 1);
    refused(STEP, "query_pre_attn_scalar:64", FM_ECONFIG, "query_pre_attn_scalar");
    refused(STEP_SAVED, "per_layer_config:{}", FM_ECONFIG, "per_layer_config of layer 1");
}

/* ---- Laguna ---- */

TEST(every_layer_of_laguna_has_its_number_of_heads)
{
    struct fm_config c = must(LAGUNA, "num_attention_heads_per_layer:[4,6,8,2]");
    static const int heads[] = {4, 6, 8, 2};
    for (int l = 0; l < 4; l++)
        assert_true(fm_gqa_heads(&c, l) == heads[l] && fm_gqa_groups(&c, l) == 2);
    c = must(LAGUNA, NULL);
    assert_int_equal(fm_gqa_heads(&c, 1), 4);
    refused(LAGUNA, "num_attention_heads_per_layer:[4,6,8]", FM_EFORMAT,
            "num_attention_heads_per_layer has 3 entries for 4 layers");
    refused(LAGUNA, "num_attention_heads_per_layer:[4,6,7,2]", FM_EFORMAT,
            "num_attention_heads 7 is not a multiple of num_key_value_heads 2");
}

/* Without rope_parameters half of a head is rotated in layers without a window; with them, all
 * of it unless they specify a factor. */
TEST(each_type_of_lagunas_layers_has_a_rotation)
{
    struct fm_config c = must(LAGUNA, NULL);
    assert_true(c.gqa->rope.theta == 5e5 && c.gqa->rope.R == 4);
    assert_true(c.gqa->window_rope.theta == 1e4 && c.gqa->window_rope.R == 8);
#define ROPES(full)                                                                                \
    "rope_parameters:{full_attention:{rope_theta:9" full "},sliding_attention:{rope_theta:8}}"
    c = must(LAGUNA, ROPES(""));
    assert_true(c.gqa->rope.theta == 9 && c.gqa->rope.R == 8 && c.gqa->window_rope.theta == 8);
    c = must(LAGUNA, ROPES(",partial_rotary_factor:0.5,rope_type:'yarn',factor:4"));
    assert_true(c.gqa->rope.R == 4 && c.gqa->rope.factor[1] != 1 && c.gqa->window_rope.R == 8);
#define OWN ",partial_rotary_factor:0.5"
    c = must(LAGUNA, "rope_parameters:{full_attention:{rope_theta:9" OWN
                     "},sliding_attention:{rope_theta:8" OWN "}},partial_rotary_factor:0.25");
    assert_true(c.gqa->rope.R == 4 && c.gqa->window_rope.R == 4);
    refused(
        LAGUNA, ROPES("") OWN, FM_ECONFIG,
        "partial_rotary_factor is outside rope_parameters, which lacks it for 'full_attention'");
    refused(LAGUNA, ROPES(OWN) OWN, FM_ECONFIG, "which lacks it for 'sliding_attention'");
#define YARN ",rope_type:'yarn',factor:4,original_max_position_embeddings:16"
    c = must(LAGUNA, ROPES(YARN));
    struct fm_config other = must(LAGUNA, ROPES(YARN) ",original_max_position_embeddings:1024");
    assert_memory_equal(&c.gqa->rope, &other.gqa->rope, sizeof c.gqa->rope);
    refused(LAGUNA, "rope_parameters:{rope_theta:9,rope_type:'default'}", FM_ECONFIG,
            "rope_parameters has no object 'full_attention'; for laguna, programs read");
    refused(LAGUNA, "swa_rope_parameters:{rope_theta:9}", FM_ECONFIG,
            "swa_rope_parameters is not supported for laguna; use sliding_attention");
}

TEST(lagunas_gate_is_a_softplus_for_each_head)
{
    struct fm_config c = must(LAGUNA, "gating:true,gating_types:['per-head',null]");
    assert_true(c.gqa->options->gated && c.gqa->options->gate_apart && c.gqa->options->gate_heads &&
                c.gqa->options->gate_softplus);
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.g_proj.weight"));
    refused(LAGUNA, "gating:'per-element'", FM_ECONFIG,
            "gating 'per-element' is not supported for laguna; supported: per-head");
    refused(LAGUNA, "gating:false", FM_ECONFIG, "gating '?' is not supported");
    refused(LAGUNA, "gating_types:['per-head','none']", FM_ECONFIG, "gating_types 'none'");
    refused(LAGUNA, "gating_types:'none'", FM_EFORMAT, "'gating_types' is not an array");
}

TEST(without_layer_types_no_layer_of_laguna_has_a_window)
{
    struct fm_config c = must(LAGUNA_KEYS, "sliding_window:8"), some = must(LAGUNA, NULL);
    for (int l = 0; l < 4; l++) {
        assert_int_equal(fm_gqa_window(&c, l), 0);
        assert_int_equal(fm_gqa_window(&some, l), l == 1 || l == 2 ? 8 : 0);
    }
}

TEST(keys_of_laguna_that_transformers_does_not_read)
{
    refused(LAGUNA, "moe_router_logit_softcapping:30", FM_ECONFIG,
            "moe_router_logit_softcapping 30 is not supported for laguna; supported: 0");
    refused(LAGUNA, "moe_apply_router_weight_on_input:true", FM_ECONFIG, "on_input true");
    refused(LAGUNA, "moe_router_score_func:'sqrtsoftplus'", FM_ECONFIG, "'sqrtsoftplus'");
    refused(LAGUNA, "norm_topk_prob:false", FM_ECONFIG, "norm_topk_prob false");
    refused(LAGUNA, "qkv_bias:true", FM_ECONFIG, "qkv_bias true");
    must(LAGUNA, "mlp_only_layers:[0],decoder_sparse_step:1");
    refused(LAGUNA, "mlp_only_layers:[]", FM_ECONFIG, "mlp_only_layers are not the dense");
    refused(LAGUNA, "mlp_only_layers:[1]", FM_ECONFIG, "mlp_only_layers are not the dense");
    refused(LAGUNA, "mlp_only_layers:7", FM_ECONFIG, "mlp_only_layers are not the dense");
    refused(LAGUNA, "decoder_sparse_step:2", FM_ECONFIG, "decoder_sparse_step 2");
}

/* No eps in the sum of weights, and a width of the shared expert that does not depend on the
 * experts'. */
TEST(the_width_of_lagunas_shared_expert_has_a_separate_key)
{
    struct fm_config c = must(LAGUNA, "moe_routed_scaling_factor:2.5");
    const struct fm_route_rule *rule = &c.scored->rule;
    assert_true(c.shared == 10 && c.I == 6 && c.dense == 20 && c.M == 3);
    assert_true(rule->sigmoid && rule->renormalised && rule->eps == 0 && rule->scale == 2.5F);
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.1.mlp.experts.e_score_correction_bias"));
    assert_true(has(&c, FM_NAMING_RAGGED, "model.layers.1.mlp.gate.e_score_correction_bias"));
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.1.mlp.shared_expert.up_proj.weight"));
    refused(LAGUNA, "moe_routed_scaling_factor:0", FM_EFORMAT, "factor is not above 0");
    refused("model_type:'laguna',num_key_value_heads:2" GROUPED, "x:1", FM_EFORMAT,
            "key 'shared_expert_intermediate_size' is missing");
}

/* ---- MiMo-V2-Flash ---- */

TEST(mimos_layers_with_a_window_have_twice_the_key_heads_and_sinks)
{
    struct fm_config c = must(MIMO, "swa_num_key_value_heads:4,sliding_window:8");
    int found;
    for (int l = 0; l < 7; l++) {
        char name[80];
        bool full = l == 0 || l == 5;
        assert_true(fm_gqa_groups(&c, l) == (full ? 2 : 4) && fm_gqa_heads(&c, l) == 4);
        assert_int_equal(fm_gqa_window(&c, l) == 0, full);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.attention_sink_bias", l);
        assert_int_equal(fm_weights_is_off(&c, name, &found), full);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.sinks", l);
        assert_int_equal(has(&c, FM_NAMING_RAGGED, name), !full);
    }
    refused(MIMO, "swa_num_key_value_heads:2", FM_ECONFIG,
            "swa_num_key_value_heads 2 is not 4, 2 times num_key_value_heads, and programs differ");
    refused(MIMO, "swa_head_dim:10", FM_ECONFIG, "swa_head_dim 10 is not 12, 1 times head_dim");
    refused(MIMO, "swa_v_head_dim:10", FM_ECONFIG, "swa_v_head_dim 10 is not 5");
    refused(MIMO, "swa_num_attention_heads:8", FM_ECONFIG, "swa_num_attention_heads 8 is not");
    refused(MIMO, "add_swa_attention_sink_bias:false", FM_ECONFIG, "sink_bias false");
    refused(MIMO, "add_full_attention_sink_bias:true", FM_ECONFIG, "sink_bias true");
}

TEST(mimos_values_are_narrow_and_scaled)
{
    struct fm_config c = must(MIMO, NULL);
    assert_true(c.C == 12 && fm_gqa_value(&c, 0) == 5 && c.gqa->scale == 0.707f);
    assert_true(must(MIMO, "attention_value_scale:null").gqa->scale == 1);
    refused(MIMO_KEYS, "x:1", FM_EFORMAT, "key 'v_head_dim' is missing");
}

/* The window is one more than the model's own key, sliding_window_size, which does not count the
 * query itself. */
TEST(mimos_window_counts_the_query_itself)
{
    struct fm_config c = must(MIMO, "sliding_window_size:8,sliding_window:8");
    assert_int_equal(fm_gqa_window(&c, 1), 9);
    c = must(MIMO, "sliding_window:8");
    assert_int_equal(fm_gqa_window(&c, 1), 8);
    refused(MIMO, "sliding_window_size:8,sliding_window:11", FM_ECONFIG,
            "sliding_window 11 is neither sliding_window_size 8 nor one more");
    c = must(MIMO, "sliding_window_size:null,sliding_window:8");
    assert_int_equal(fm_gqa_window(&c, 1), 8);
    refused(MIMO, "sliding_window_size:0,sliding_window:8", FM_EFORMAT, "sliding_window_size");
}

/* transformers ignores the values of these keys and uses its own defaults. */
TEST(the_makers_keys_of_mimo_say_what_transformers_computes)
{
    struct fm_config c = must(MIMO, "rope_theta:5000000,swa_rope_theta:10000,"
                                    "partial_rotary_factor:0.334,layernorm_epsilon:1e-5,"
                                    "hybrid_layer_pattern:[0,1,1,1,1,0,1],moe_layer_freq:[0,1,1,"
                                    "1,1,1,1],routed_scaling_factor:null");
    assert_true(c.gqa->rope.theta == 5e6 && c.gqa->rope.R == 4 && c.gqa->window_rope.theta == 1e4);
    assert_true(c.M == 6 && c.dense == 20 && c.shared == 0 && c.scored->rule.scale == 1);
    refused(MIMO, "rope_theta:1000000", FM_ECONFIG, "rope_theta 1e+06 differs from the rope_theta");
    refused(MIMO, "swa_rope_theta:1000", FM_ECONFIG, "swa_rope_theta 1000 differs from the rope");
    refused(MIMO, "partial_rotary_factor:0.5", FM_ECONFIG, "0.5 does not rotate 4 elements");
    refused(MIMO, "layernorm_epsilon:1e-6", FM_ECONFIG, "layernorm_epsilon 1e-06 differs from");
    refused(MIMO, "hybrid_layer_pattern:[0,1,1,1,1,1,1]", FM_ECONFIG, "of layer 5 is not 0");
    refused(MIMO, "moe_layer_freq:[0,0,1,1,1,1,1]", FM_ECONFIG,
            "moe_layer_freq of layer 1 is not 1");
    refused(MIMO, "moe_layer_freq:[0,1]", FM_EFORMAT, "has 2 entries for 7 layers");
    refused(MIMO, "moe_layer_freq:2", FM_ECONFIG, "moe_layer_freq 2 is not supported");
    refused(MIMO, "routed_scaling_factor:2.5", FM_ECONFIG, "routed_scaling_factor 2.5");
    refused(MIMO, "n_shared_experts:1", FM_ECONFIG, "n_shared_experts 1");
}

/* ---- MiMo-V2.5 ---- */

/* The card says 310 billion parameters with other parts. */
TEST(mimo_v2_reads_its_layers_from_its_own_keys)
{
    struct fm_config c = must(MIMO_V2, "swa_rope_theta:10000,partial_rotary_factor:0.334,"
                                       "attention_value_scale:0.707,sliding_window_size:128,"
                                       "routed_scaling_factor:null,n_shared_experts:null");
    assert_int_equal(fm_config_params(&c, NULL) / 1000000000, 308);
    assert_true(c.M == 47 && c.dense == 16384 && c.shared == 0 && c.eps == 1e-5f);
    for (int l = 0; l < 48; l++) {
        bool full = l % 8 == 0;
        assert_true(fm_gqa_groups(&c, l) == (full ? 4 : 8) && fm_gqa_heads(&c, l) == 64);
        assert_int_equal(fm_gqa_window(&c, l), full ? 0 : 128);
        assert_true(fm_gqa_width(&c, l) == 192 && fm_gqa_value(&c, l) == 128);
    }
    assert_true(c.gqa->rope.theta == 1e7 && c.gqa->rope.R == 64);
    assert_true(c.gqa->window_rope.theta == 1e4 && c.gqa->window_rope.R == 64);
    assert_true(c.gqa->scale == 0.707f && must(MIMO_V2, NULL).gqa->scale == 1);
    assert_true(must(MIMO_V2, NULL).gqa->window_rope.theta == 1e7);
    assert_true(must(MIMO_V2, "rms_norm_eps:0.5").eps == 1e-5f); /* of the part for images */
    c = must(MIMO_V2_SIZES, "swa_num_key_value_heads:4,sliding_window_size:16");
    assert_true(fm_gqa_groups(&c, 1) == 4 && fm_gqa_window(&c, 1) == 16);
}

TEST(mimo_v2_is_refused_where_programs_differ_and_where_lists_are_wrong)
{
    refused(MIMO_V2, "sliding_window_size:127", FM_ECONFIG,
            "sliding_window_size 127 differs from sliding_window 128, and programs differ");
    refused(MIMO_V2, "routed_scaling_factor:2.5", FM_ECONFIG, "routed_scaling_factor 2.5");
    refused(MIMO_V2, "n_shared_experts:1", FM_ECONFIG, "n_shared_experts 1");
    refused(MIMO_V2, "add_full_attention_sink_bias:true", FM_ECONFIG, "sink_bias true");
    refused(MIMO_V2, "rope_scaling:{type:'yarn',factor:4}", FM_ECONFIG,
            "'type' of rope_scaling is not supported for mimo_v2");
    refused(MIMO_V2, "rope_parameters:{full_attention:{rope_theta:1e7}}", FM_ECONFIG,
            "'full_attention' of rope_parameters is not supported for mimo_v2");
    refused(MIMO_V2, "rope_parameters:{rope_type:'default',rope_theta:1e6}", FM_ECONFIG,
            "'rope_theta' of rope_parameters is not supported for mimo_v2 unless it says");
    must(MIMO_V2, "rope_parameters:{rope_type:'default',rope_theta:1e7},rope_scaling:null");
    refused(MIMO_V2_TWO, "hybrid_layer_pattern:[0,1],moe_layer_freq:1", FM_EFORMAT,
            "key 'moe_layer_freq' is not a list with 0 or 1 for each layer");
    refused(MIMO_V2_TWO, "hybrid_layer_pattern:[0,1,1],moe_layer_freq:[0,1]", FM_EFORMAT,
            "hybrid_layer_pattern has 3 entries for 2 layers");
    refused(MIMO_V2_TWO, "hybrid_layer_pattern:[0,2],moe_layer_freq:[0,1]", FM_ECONFIG,
            "hybrid_layer_pattern of layer 1 is not 0");
    refused(MIMO_V2_TWO,
            "hybrid_layer_pattern:[0,1],moe_layer_freq:[0,1],mlp_layer_types:['sparse','sparse']",
            FM_ECONFIG, "moe_layer_freq of layer 0 is not 1");
    refused(MIMO_V2_TWO,
            "hybrid_layer_pattern:[0,1],moe_layer_freq:[0,1],layer_types:['full_attention',"
            "'full_attention']",
            FM_ECONFIG, "hybrid_layer_pattern of layer 1 is not 0");
    refused(MIMO_V2_SIZES, "sliding_window:128", FM_EFORMAT,
            "key 'swa_num_key_value_heads' is missing");
    refused(MIMO_V2_SIZES, "swa_num_key_value_heads:7,sliding_window:128", FM_EFORMAT,
            "num_attention_heads 64 is not a multiple of num_key_value_heads 7");
    refused(MIMO_V2_KEYS MIMO_V2_LISTS, "swa_num_key_value_heads:8,swa_head_dim:192,v_head_dim:128",
            FM_EFORMAT, "key 'rope_theta' is missing");
    refused(MIMO_V2_KEYS MIMO_V2_LISTS,
            "swa_num_key_value_heads:8,swa_head_dim:128,v_head_dim:128,rope_theta:1e7,"
            "sliding_window:128",
            FM_ECONFIG, "swa_head_dim that is not head_dim is not supported for mimo_v2");
    refused(MIMO_V2_KEYS MIMO_V2_LISTS, "swa_head_dim:192,rope_theta:1e7", FM_EFORMAT,
            "key 'v_head_dim' is missing");
}

#define MIMO_V2_FP8                                                                                \
    "quantization_config:{quant_method:'fp8',weight_block_size:[128,128],store_dtype:"

/* V2.6: only routed experts of decoder layers are MXFP4. */
TEST(mimo_v2s_experts_may_be_mxfp4_in_fp8)
{
    struct fm_config c = must(MIMO_V2, MIMO_V2_FP8 "'mxfp4',mxfp4_block_size:32}");
    struct fm_scheme s = fm_config_scheme(&c, "model.layers.1.mlp.experts.7.up_proj.weight_scale");
    assert_true(strcmp(s.storage->name, "mxfp4") == 0 && s.block_rows == 1);
    assert_int_equal(s.block_columns, 32);
    assert_true(fm_scheme_equal(&s, &c.scheme) && !c.mixed);
    s = fm_config_scheme(&c, "model.layers.0.mlp.up_proj.weight");
    assert_true(strcmp(s.storage->name, "fp8") == 0 && s.block_columns == 128);
    assert_false(must(MIMO_V2, MIMO_V2_FP8 "null}").schemes);
    refused(MIMO_V2, MIMO_V2_FP8 "'nvfp4'}", FM_ECONFIG,
            "fp8 with store_dtype 'nvfp4' is not supported (only 'mxfp4')");
    refused(MIMO_V2, MIMO_V2_FP8 "'mxfp4',mxfp4_block_size:16}", FM_ECONFIG,
            "mxfp4_block_size 16 is not supported (only 32)");
}

static const struct fm_weight *fused_row(const struct fm_config *c, int layer)
{
    char name[80];
    int l, e;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.qkv_proj.weight", layer);
    return fm_weights_find(c, FM_NAMING_STOCK, name, &l, &e);
}

/* Four chunks, in all layers: 3392 rows in the full layers, where each has 16 heads of q and one of
 * k and v, and 3712 in the others, with two of k and v. */
TEST(mimo_v2s_rows_of_q_k_and_v_are_in_as_many_chunks_as_full_layers_have_key_heads)
{
    struct fm_config c = must(MIMO_V2, "attention_projection_layout:'fused_qkv'");
    static int32_t order[16384];
    uint64_t shape[FM_ST_DIMS_MAX];
    assert_false(has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.q_proj.weight") ||
                 has(&c, FM_NAMING_STOCK, "model.layers.0.self_attn.v_proj.weight"));
    assert_int_equal(fm_weights_shape(shape, &c, fused_row(&c, 0), 0, 0), 2);
    assert_int_equal(shape[0], 13568);
    fm_gqa.order(order, &c, 0, fused_row(&c, 0));
    assert_true(order[3071] == 3071 && order[3072] == 3392 && order[12287] == 3 * 3392 + 3071);
    assert_true(order[12288] == 3072 && order[12288 + 192] == 3392 + 3072);
    assert_true(order[13056] == 3264 && order[13567] == 13567);
    fm_weights_shape(shape, &c, fused_row(&c, 1), 1, 0);
    assert_int_equal(shape[0], 14848);
    fm_gqa.order(order, &c, 1, fused_row(&c, 1));
    assert_true(order[3072] == 3712 && order[12288] == 3072 && order[12288 + 384] == 3712 + 3072);
    assert_true(order[13824] == 3456 && order[14847] == 14847);
    c = must(MIMO_V2, "attention_projection_layout:'split'");
    assert_false(fused_row(&c, 0));
    refused(
        MIMO_V2, "attention_projection_layout:'x'", FM_ECONFIG,
        "attention_projection_layout 'x' is not supported for mimo_v2; supported: split, fused");
    refused(MIMO_V2, "attention_projection_layout:'fused_qkv',attention_bias:true", FM_ECONFIG,
            "biases with attention_projection_layout fused_qkv");
    refused(MIMO_V2_SIZES,
            "swa_num_key_value_heads:2,sliding_window:128,attention_projection_layout:'fused_qkv'",
            FM_EFORMAT, "layer 1 has 64 heads and 2 key heads, which are not multiples of");
}

/* ---- MiniMax-M3 ---- */

/* The card says 428 billion parameters, which include the parts for images. */
TEST(m3_is_read_as_its_makers_write_it)
{
    struct fm_config c = must(M3_HUB, NULL);
    const struct fm_route_rule *rule = &c.scored->rule;
    assert_int_equal(fm_config_params(&c, NULL) / 1000000000, 426);
    assert_true(c.M == 57 && c.moe[0] == 3 && c.dense == 12288 && c.shared == 3072 && c.I == 3072);
    assert_true(c.gqa->rope.R == 64 && c.gqa->rope.theta == 5e6 && c.alpha == 1.702F &&
                c.limit == 7);
    assert_true(rule->sigmoid && rule->renormalised && rule->eps == 0 && rule->scale == 2);
    assert_false(c.expert->bias);
}

TEST(m3s_sequences_end_where_blocks_of_keys_would_be_chosen)
{
    struct fm_config c = must(M3_HUB, NULL);
    assert_true(c.T_max == 1048576 && c.T_exact == 2048);
    assert_string_equal(
        c.exact, "the range in which sparse attention (index_topk_blocks) attends to all keys");
    c = must(M3, NULL);
    assert_true(c.T_max == 524288 && c.T_exact == 20);
    c = must(M3_KEYS M3_TYPES, M3_INDEX("268435456", "268435456"));
    assert_true(c.T_exact == 524288 && !c.exact);
    c = must(M3_KEYS, NULL); /* without a list no layer has an indexer */
    assert_true(c.T_exact == 524288 && !c.exact && !fm_layers_has(&c.gqa->indexed, 1));
    refused(M3_KEYS M3_TYPES, NULL, FM_EFORMAT, "key 'index_n_heads' is missing");
    refused(M3_KEYS M3_TYPES, M3_INDEX("0", "5"), FM_EFORMAT, "index_block_size");
    refused(M3_KEYS M3_TYPES, M3_INDEX("4", "-1"), FM_EFORMAT, "index_topk_blocks");
    refused(M3_KEYS M3_TYPES,
            "index_n_heads:3,index_head_dim:5,index_block_size:4,index_topk_blocks:5", FM_EFORMAT,
            "num_attention_heads 4 is not a multiple of index_n_heads 3");
}

TEST(m3s_index_tensors_are_of_the_layers_that_have_them)
{
    static const char *const end[] = {"q_proj", "k_proj", "q_norm", "k_norm"};
    struct fm_config hub = must(M3_HUB, NULL), text = must(M3, NULL);
    for (int i = 0; i < 4; i++) {
        char whole[80], own[80], none[80];
        snprintf(whole, sizeof whole, "model.layers.3.self_attn.index_%s.weight", end[i]);
        snprintf(own, sizeof own, "model.layers.3.self_attn.indexer.%s.weight", end[i]);
        snprintf(none, sizeof none, "model.layers.2.self_attn.indexer.%s.weight", end[i]);
        assert_true(has(&hub, FM_NAMING_STOCK, whole) && has(&hub, FM_NAMING_RAGGED, own));
        assert_true(has(&text, FM_NAMING_STOCK, own) && has(&text, FM_NAMING_RAGGED, own));
        assert_false(has(&text, FM_NAMING_STOCK, whole) || has(&hub, FM_NAMING_STOCK, own));
        assert_false(has(&text, FM_NAMING_STOCK, none) || has(&hub, FM_NAMING_RAGGED, none));
    }
}

/* If all tensors have another checkpoint's names, loading would leave random weights. */
TEST(m3_has_other_names_with_images_than_the_text_class)
{
    static const char *const whole[] = {"model.layers.3.block_sparse_moe.gate.weight",
                                        "model.layers.3.block_sparse_moe.e_score_correction_bias",
                                        "model.layers.3.block_sparse_moe.experts.7.w3.weight",
                                        ("model.layers.3.block_sparse_moe.shared_experts.up_proj."
                                         "weight")};
    static const char *const own[] = {"model.layers.3.mlp.gate.weight",
                                      "model.layers.3.mlp.gate.e_score_correction_bias",
                                      "model.layers.3.mlp.experts.gate_up_proj",
                                      "model.layers.3.mlp.shared_experts.gate_up_proj.weight"};
    struct fm_config hub = must(M3_HUB, NULL), text = must(M3, NULL);
    for (int i = 0; i < 4; i++) {
        assert_true(has(&hub, FM_NAMING_STOCK, whole[i]) && has(&text, FM_NAMING_STOCK, own[i]));
        assert_false(has(&text, FM_NAMING_STOCK, whole[i]) || has(&hub, FM_NAMING_STOCK, own[i]));
    }
    assert_true(has(&hub, FM_NAMING_STOCK, "model.layers.0.mlp.up_proj.weight"));
}

TEST(rotary_dim_of_m3_is_not_the_rotated_part)
{
    struct fm_config c = must(M3, NULL);
    assert_int_equal(c.gqa->rope.R, 8);
    c = must(M3, "rotary_dim:4,rope_parameters:{partial_rotary_factor:0.5,rope_theta:9,"
                 "rope_type:'default'}");
    assert_true(c.gqa->rope.R == 4 && c.gqa->rope.theta == 9);
    refused(M3, "rotary_dim:4", FM_ECONFIG,
            "rotary_dim is 4, and partial_rotary_factor rotates 8 of 8 elements; programs differ");
}

TEST(two_spellings_of_m3s_layers_agree)
{
#define DENSE_0 "dense_intermediate_size:20,mlp_layer_types:['dense','sparse',"
    struct fm_config c = must(M3, NULL);
    assert_true(c.M == 4 && c.dense == 0);
    c = must(M3, DENSE_0 "'sparse','sparse'],moe_layer_freq:[0,1,1,1]");
    assert_true(c.M == 3 && c.dense == 20 && c.shared == 10);
    refused(M3, DENSE_0 "'sparse','sparse'],moe_layer_freq:[1,1,1,1]", FM_ECONFIG,
            "mlp_layer_types and moe_layer_freq differ in layer 0");
    refused(M3, DENSE_0 "'sparse']", FM_EFORMAT, "mlp_layer_types has 3 entries for 4 layers");
    refused(M3, DENSE_0 "'both','sparse']", FM_ECONFIG,
            "mlp_layer_types of layer 2 is 'both', which is not supported; supported: sparse");
    refused(M3, "moe_layer_freq:[0,1,1,1]", FM_EFORMAT, "dense_intermediate_size");
    refused(M3, "moe_layer_freq:[0,0,0,0]", FM_ECONFIG, "no layer is a mixture of experts");
    refused(M3, "moe_layer_freq:[1,2,1,1]", FM_ECONFIG, "moe_layer_freq of layer 1");
    refused(M3, "moe_layer_freq:1", FM_EFORMAT, "key 'moe_layer_freq' is not an array");
    refused(M3, "sparse_attention_config:{sparse_attention_freq:[0,1,0,0]}", FM_ECONFIG,
            "layer_types and sparse_attention_freq differ in layer 3");
    refused(
        M3, "sparse_attention_config:{sparse_topk_blocks:6}", FM_ECONFIG,
        "index_topk_blocks 5 is not sparse_topk_blocks 6, and programs differ in which they read");
    refused(M3, "sparse_attention_config:[]", FM_EFORMAT, "is not an object");
    refused(M3_KEYS, "layer_types:['sliding_attention']", FM_ECONFIG, "layer_types of layer 0");
}

/* transformers ignores the values of these keys. */
TEST(keys_of_m3_that_transformers_does_not_read)
{
    refused(M3, "use_gemma_norm:false", FM_ECONFIG, "use_gemma_norm false");
    refused(M3, "use_qk_norm:false", FM_ECONFIG, "use_qk_norm false");
    refused(M3, "qk_norm_type:'per_layer'", FM_ECONFIG, "qk_norm_type 'per_layer'");
    refused(M3, "use_routing_bias:false", FM_ECONFIG, "use_routing_bias false");
    refused(M3, "attention_output_gate:true", FM_ECONFIG, "attention_output_gate true");
    refused(M3, "n_shared_experts:2", FM_ECONFIG, "n_shared_experts 2");
    refused(M3, "swiglu_beta:0", FM_ECONFIG, "swiglu_beta 0 is not supported");
    refused(M3, "hidden_act:'gelu'", FM_ECONFIG, "vl_text; supported: silu, swigluoai");
    refused(M3, "scoring_func:'softmax'", FM_ECONFIG, "scoring_func 'softmax'");
    refused(M3, "sparse_attention_config:{use_sparse_attention:false}", FM_ECONFIG,
            "use_sparse_attention false");
    refused(M3, "sparse_attention_config:{sparse_disable_index_value:[0,1,0,0]}", FM_ECONFIG,
            "sparse_disable_index_value of layer 3 is 0");
}

/* transformers would use 128 and 4. */
TEST(missing_keys_of_m3s_heads_are_refused)
{
    const char *none = "model_type:'minimax_m3_vl_text'";
    refused(none, "num_key_value_heads:4", FM_EFORMAT, "key 'head_dim' is missing");
    refused(none, "head_dim:8", FM_EFORMAT, "key 'num_key_value_heads' is missing");
}

/* ---- Granite ---- */

TEST(granites_factors_are_read_and_1_where_they_are_missing)
{
    struct fm_config c = must(GRANITE, "embedding_multiplier:12.0,residual_multiplier:0.22,"
                                       "logits_scaling:6.0");
    assert_true(c.embed_scale == 12 && c.residual_scale == 0.22f && c.logit_scale == 1 / 6.0f);
    c = must(GRANITE, NULL);
    assert_true(c.embed_scale == 1 && c.residual_scale == 1 && c.logit_scale == 1);
    assert_int_equal(fm_config_params(&c, NULL) / 1000000, 1334);
}

/* The key replaces the factor 1 / sqrt(head width): without it, scores are not scaled. */
TEST(granites_attention_multiplier_replaces_the_root_of_the_head_width)
{
    assert_true(must(GRANITE, "attention_multiplier:0.015625").gqa->divisor == 64);
    assert_true(must(GRANITE, NULL).gqa->divisor == 1);
    assert_true(must(AFMOE, NULL).gqa->divisor == 0);
}

TEST(factors_of_granite_that_are_not_above_0_are_refused)
{
    refused(GRANITE, "logits_scaling:0", FM_EFORMAT, "logits_scaling' is 0, which is not above");
    refused(GRANITE, "residual_multiplier:0", FM_EFORMAT, "residual_multiplier' is 0");
    refused(GRANITE, "attention_multiplier:0.0", FM_EFORMAT, "attention_multiplier' is 0");
    refused(GRANITE, "embedding_multiplier:-12", FM_EFORMAT, "embedding_multiplier' is -12");
    refused(GRANITE, "logits_scaling:1e-300", FM_EFORMAT, "logits_scaling' is 1e-300");
    refused(GRANITE, "embedding_multiplier:1e39", FM_EFORMAT, "embedding_multiplier' is 1e+39");
    refused(GRANITE, "residual_multiplier:'0.22'", FM_EFORMAT, "is not a number");
}

TEST(granites_experts_are_fused_outside_mlp)
{
    struct fm_config c = must(GRANITE, NULL);
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.block_sparse_moe.input_linear.weight"));
    assert_true(has(&c, FM_NAMING_STOCK, "model.layers.0.block_sparse_moe.router.layer.weight"));
    assert_true(has(&c, FM_NAMING_RAGGED, "model.layers.0.block_sparse_moe.router.weight"));
    assert_true(has(&c, FM_NAMING_RAGGED, "model.layers.0.block_sparse_moe.experts.gate_up"));
    assert_false(has(&c, FM_NAMING_RAGGED, "model.layers.0.mlp.experts.gate_up"));
    assert_false(has(&c, FM_NAMING_STOCK, "lm_head.weight"));
    refused(GRANITE, "hidden_act:'gelu'", FM_ECONFIG, "hidden_act 'gelu'");
}

/* 0 is transformers' default, and means none; an expert's width is another key. */
TEST(granites_shared_expert_exists_if_its_width_is_given)
{
    static const char shared[] = "model.layers.0.shared_mlp.input_linear.weight";
    struct fm_config c = must(GRANITE_SHARED, "shared_intermediate_size:1024");
    assert_true(c.shared == 1024 && has(&c, FM_NAMING_STOCK, shared));
    c = must(GRANITE_SHARED, "shared_intermediate_size:0");
    assert_true(c.shared == 0 && !has(&c, FM_NAMING_STOCK, shared));
    assert_int_equal(must(GRANITE_SHARED, NULL).shared, 0);
    assert_int_equal(must(GRANITE, "shared_intermediate_size:1024").shared, 0);
    refused(GRANITE_SHARED, "shared_intermediate_size:-1", FM_EFORMAT, "size' is -1");
    refused(GRANITE_SHARED, "shared_intermediate_size:2000000", FM_EFORMAT, "is 2000000");
}

/* ---- LFM2 ---- */

TEST(lfm2s_layers_are_convolutions_or_attention)
{
    struct fm_config c = must(LFM2, NULL);
    for (int l = 0; l < 4; l++) {
        char name[80];
        assert_int_equal(fm_shortconv_layer(&c, l), l != 2);
        snprintf(name, sizeof name, "model.layers.%d.conv.conv.weight", l);
        assert_int_equal(has(&c, FM_NAMING_STOCK, name), l != 2);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.q_layernorm.weight", l);
        assert_int_equal(has(&c, FM_NAMING_STOCK, name), l == 2);
    }
    assert_int_equal(c.shortconv->W, 3);
    assert_int_equal(must(LFM2, "conv_L_cache:4").shortconv->W, 4);
    refused(LFM2_KEYS ",num_key_value_heads:2", NULL, FM_EFORMAT, "'layer_types' is missing");
    refused(LFM2_KEYS ",num_key_value_heads:2", "layer_types:['conv']", FM_EFORMAT,
            "layer_types has 1 entries for 4 layers");
    refused(LFM2_KEYS ",num_key_value_heads:2", "layer_types:'conv'", FM_EFORMAT,
            "layer_types has 0 entries for 4 layers");
    refused(LFM2_KEYS ",num_key_value_heads:2", "layer_types:['linear_attention']", FM_ECONFIG,
            "layer_types 'linear_attention' is not supported; supported: conv, full");
    refused(LFM2, "conv_L_cache:0", FM_EFORMAT, "conv_L_cache");
    refused(LFM2, "conv_L_cache:65", FM_ECONFIG, "conv_L_cache' is 65 (limit 64)");
}

/* transformers' class would use 8. */
TEST(a_missing_number_of_lfm2s_key_heads_is_refused)
{
    refused(LFM2_KEYS LFM2_TYPES, NULL, FM_EFORMAT, "key 'num_key_value_heads' is missing");
}

TEST(lfm2_names_usual_keys_differently)
{
    struct fm_config c = must(LFM2, "norm_eps:0.001,rms_norm_eps:0.1");
    assert_true(c.eps == 0.001f && c.tied && c.gqa->rope.theta == 1e6);
    assert_true(must(LFM2, NULL).eps == 1e-5f);
    assert_true(!must(LFM2, "tie_word_embeddings:false").tied);
    assert_true(must(LFM2, "tie_word_embeddings:false,tie_embedding:true").tied);
    assert_true(!must(LFM2, "tie_word_embeddings:true,tie_embedding:false").tied);
}

TEST(two_layers_of_lfm2_are_dense_by_default)
{
    struct fm_config c = must(LFM2, NULL);
    assert_true(c.M == 2 && c.moe[0] == 2 && c.dense == 20 && c.shared == 0);
    assert_int_equal(must(LFM2, "num_dense_layers:0").M, 4);
    refused(LFM2, "num_dense_layers:4", FM_ECONFIG, "no layer is a mixture of experts");
}

TEST(switches_of_lfm2_are_refused_or_used)
{
    struct fm_config c = must(LFM2, "norm_topk_prob:false,routed_scaling_factor:2.5");
    assert_true(!c.scored->rule.renormalised && c.scored->rule.scale == 2.5f);
    assert_true(must(LFM2, NULL).scored->rule.eps == 1e-6f);
    refused(LFM2, "conv_bias:true", FM_ECONFIG, "conv_bias true is not supported");
    refused(LFM2, "use_expert_bias:false", FM_ECONFIG, "use_expert_bias false");
}

/* ---- Gemma 4 ---- */

#define GEMMA_ROPE                                                                                 \
    "rope_parameters:{full_attention:{partial_rotary_factor:0.25,rope_theta:1e6,rope_type:"        \
    "'proportional'},sliding_attention:{rope_theta:10000,rope_type:'default'}}"
#define GEMMA_SIZES                                                                                \
    "model_type:'gemma4_text',hidden_size:2816,num_attention_heads:16,num_key_value_heads:8,"      \
    "head_dim:256,intermediate_size:2112,num_experts:128,top_k_experts:8,vocab_size:262144,"       \
    "moe_intermediate_size:704,sliding_window:1024"
#define GEMMA_MOE ",enable_moe_block:true"
#define GEMMA_NO_INPUTS ",hidden_size_per_layer_input:0"
#define GEMMA_KEYS GEMMA_SIZES "," GEMMA_ROPE GEMMA_MOE GEMMA_NO_INPUTS
/* 26B-A4B as published, and two layers as transformers saves them. */
#define GEMMA                                                                                      \
    GEMMA_KEYS ",num_hidden_layers:30,global_head_dim:512,num_global_key_value_heads:2,"           \
               "attention_k_eq_v:true,final_logit_softcapping:30,hidden_activation:"               \
               "'gelu_pytorch_tanh',use_bidirectional_attention:'vision'"
#define GEMMA_TWO                                                                                  \
    GEMMA_KEYS ",num_hidden_layers:2,layer_types:['sliding_attention','full_attention']"
#define GEMMA_SHARED GEMMA_TWO ",attention_k_eq_v:true"
#define GEMMA_FULL "{head_dim:512,num_key_value_heads:2}"

TEST(gemma_4_has_its_size)
{
    struct fm_config c = must(GEMMA, NULL);
    assert_int_equal(fm_config_params(&c, NULL) / 100000000, 252);
    assert_int_equal(fm_config_params_active(&c, NULL) / 100000000, 38);
    assert_true(c.M == 30 && c.K == 8 && c.shared == 2112 && c.dense == 0 && c.tied && c.fused);
    assert_true(c.apart && c.softcap == 30 && c.gqa->divisor == 1 && c.gqa->options->value_norm);
    assert_true(c.embed_scale == (float)sqrt(2816) && c.router == &fm_softmax_scaled);
    for (int l = 0; l < 30; l++) {
        bool full = l % 6 == 5;
        char name[80];
        assert_true(fm_gqa_width(&c, l) == (full ? 512 : 256));
        assert_true(fm_gqa_groups(&c, l) == (full ? 2 : 8));
        assert_int_equal(fm_gqa_window(&c, l), full ? 0 : 1024);
        snprintf(name, sizeof name, "model.layers.%d.self_attn.v_proj.weight", l);
        assert_int_equal(has(&c, FM_NAMING_STOCK, name), !full);
    }
    assert_true(c.gqa->rope.R == 512 && c.gqa->rope.factor[63] == 1 &&
                isinf(c.gqa->rope.factor[64]));
    assert_true(c.gqa->window_rope.R == 256 && c.gqa->window_rope.theta == 1e4);
}

/* transformers saves per_layer_config in place of the two keys of the published file. */
TEST(gemmas_sizes_of_full_layers_are_read_in_both_forms)
{
    struct fm_config c = must(GEMMA_TWO, "per_layer_config:{'1':" GEMMA_FULL "}");
    assert_true(fm_gqa_width(&c, 1) == 512 && fm_gqa_groups(&c, 1) == 2);
    assert_true(fm_gqa_width(&c, 0) == 256 && fm_gqa_groups(&c, 0) == 8);
    must(GEMMA_TWO, "per_layer_config:{'1':" GEMMA_FULL ",'0':{head_dim:256}}");
    must(GEMMA_TWO, "per_layer_config:{'1':" GEMMA_FULL "},global_head_dim:512");
    c = must(GEMMA_TWO, "per_layer_config:null"); /* transformers' defaults */
    assert_true(fm_gqa_width(&c, 1) == 512 && fm_gqa_groups(&c, 1) == 8);
    c = must(GEMMA_TWO, "per_layer_config:{}");
    assert_true(fm_gqa_width(&c, 1) == 256 && fm_gqa_groups(&c, 1) == 8);
    c = must(GEMMA_TWO, "attention_k_eq_v:false,num_global_key_value_heads:2");
    assert_true(fm_gqa_groups(&c, 1) == 8);
    refused(GEMMA_TWO, "per_layer_config:{'1':" GEMMA_FULL "},global_head_dim:256", FM_ECONFIG,
            "global_head_dim 256 or num_global_key_value_heads 2 contradicts per_layer_config");
    refused(GEMMA_TWO, "per_layer_config:{'0':" GEMMA_FULL "}", FM_ECONFIG,
            "per_layer_config gives layer 0 head_dim 512 and num_key_value_heads 2, unlike other");
    refused(GEMMA_TWO, "per_layer_config:{'1':{sliding_window:4}}", FM_ECONFIG,
            "per_layer_config of layer 1 has 'sliding_window'; supported: head_dim");
    static const char *const broken[] = {"{'2':{}}", "{'-1':{}}", "{'01':{}}", "{'x':{}}",
                                         "{'1':4}"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char keys[64];
        snprintf(keys, sizeof keys, "per_layer_config:%s", broken[i]);
        refused(GEMMA_TWO, keys, FM_EFORMAT, "is not an object for one of layers 0 to 1");
    }
    refused(GEMMA_TWO, "per_layer_config:[]", FM_EFORMAT,
            "key 'per_layer_config' is not an object");
    refused(GEMMA_TWO, "per_layer_config:{'1':{head_dim:0}}", FM_EFORMAT,
            "per_layer_config of layer");
    refused(GEMMA_TWO, "global_head_dim:513", FM_EFORMAT, "global_head_dim 513 is not even");
    refused(GEMMA_TWO, "global_head_dim:2048", FM_ECONFIG,
            "'global_head_dim' is 2048 (limit 1024)");
    refused(GEMMA_SHARED, "num_global_key_value_heads:3", FM_EFORMAT,
            "num_attention_heads 16 is not a multiple of num_key_value_heads 3");
}

TEST(what_other_gemmas_have_is_refused)
{
#define TWO_LAYERS ",num_hidden_layers:2,layer_types:['sliding_attention','full_attention']"
    refused(GEMMA_SIZES TWO_LAYERS "," GEMMA_ROPE GEMMA_MOE, NULL, FM_EFORMAT,
            "key 'hidden_size_per_layer_input' is missing");
    refused(GEMMA_SIZES TWO_LAYERS "," GEMMA_ROPE GEMMA_NO_INPUTS, NULL, FM_EFORMAT,
            "key 'enable_moe_block' is missing");
    refused(GEMMA_SIZES TWO_LAYERS GEMMA_MOE GEMMA_NO_INPUTS, NULL, FM_EFORMAT,
            "key 'rope_parameters' is missing");
    refused(GEMMA_SIZES TWO_LAYERS "," GEMMA_ROPE GEMMA_NO_INPUTS, "enable_moe_block:false",
            FM_ECONFIG, "enable_moe_block false is not supported for gemma4_text; supported: true");
    refused(GEMMA_SIZES TWO_LAYERS "," GEMMA_ROPE GEMMA_MOE, "hidden_size_per_layer_input:256",
            FM_ECONFIG, "hidden_size_per_layer_input 256 is not supported");
    refused(GEMMA_TWO, "num_kv_shared_layers:1", FM_ECONFIG, "num_kv_shared_layers 1 is not");
    refused(GEMMA_TWO, "use_double_wide_mlp:true", FM_ECONFIG, "use_double_wide_mlp true is not");
    refused(GEMMA_TWO, "use_bidirectional_attention:'all'", FM_ECONFIG,
            "'all' is not supported for gemma4_text; supported: 'vision'");
    refused(GEMMA_TWO, "use_bidirectional_attention:true", FM_ECONFIG, "true is not supported");
    refused(GEMMA_TWO, "hidden_activation:'silu'", FM_ECONFIG,
            "hidden_activation 'silu' is not supported for gemma4_text");
    refused(GEMMA_TWO, "attention_bias:true", FM_ECONFIG, "attention_bias true is not supported");
    refused(GEMMA_TWO, "final_logit_softcapping:0", FM_EFORMAT, "final_logit_softcapping");
    refused(GEMMA_KEYS, "num_hidden_layers:2", FM_ECONFIG, "the last layer is sliding_attention");
    refused(GEMMA_SIZES TWO_LAYERS GEMMA_MOE GEMMA_NO_INPUTS,
            "rope_parameters:{full_attention:{rope_theta:9,rope_type:'proportional'},"
            "sliding_attention:{rope_theta:8,rope_type:'default',partial_rotary_factor:0.5}}",
            FM_ECONFIG, "partial_rotary_factor of sliding_attention is not 1");
    assert_true(must(GEMMA_TWO, NULL).softcap == 0);
}

TEST_MAIN(NULL, NULL)
