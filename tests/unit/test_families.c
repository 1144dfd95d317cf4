/* Test every family's config.json and tensors: spellings, models that are refused, and the tensors
 * of each layer. */
#include <math.h>

#include "formats/json/json.h"
#include "formats/tensor/hfdir.h"
#include "formats/tensor/hftext.h"
#include "lib/block/gqa.h"
#include "lib/block/softmax.h"
#include "lib/family/family.h"
#include "tests/unit/configs.h"
#include "tests/unit/models.h"
#include "tests/unit/test.h"

/* The sizes of the models on the hub. */
#define QWEN15_A27B                                                                                \
    "model_type:'qwen2_moe',hidden_size:2048,intermediate_size:5632,moe_intermediate_size:1408,"   \
    "shared_expert_intermediate_size:5632,num_hidden_layers:24,num_attention_heads:16,"            \
    "num_key_value_heads:16,num_experts:60,num_experts_per_tok:4,norm_topk_prob:false,"            \
    "decoder_sparse_step:1,rms_norm_eps:1e-06,rope_theta:1000000.0,use_sliding_window:false,"      \
    "sliding_window:32768,max_window_layers:21,vocab_size:151936,tie_word_embeddings:false,"       \
    "max_position_embeddings:8192"
#define QWEN3_30B                                                                                  \
    "model_type:'qwen3_moe',hidden_size:2048,intermediate_size:6144,moe_intermediate_size:768,"    \
    "num_hidden_layers:48,num_attention_heads:32,num_key_value_heads:4,head_dim:128,"              \
    "num_experts_per_tok:8,norm_topk_prob:true,vocab_size:151936,sliding_window:null,"             \
    "mlp_only_layers:[],decoder_sparse_step:1"
#define OLMOE_1B                                                                                   \
    "model_type:'olmoe',hidden_size:2048,intermediate_size:1024,num_hidden_layers:16,"             \
    "num_attention_heads:16,num_key_value_heads:16,num_experts:64,num_experts_per_tok:8,"          \
    "norm_topk_prob:false,vocab_size:50304"
#define GPT_OSS_SIZES                                                                              \
    "model_type:'gpt_oss',hidden_size:64,intermediate_size:64,num_hidden_layers:4,"                \
    "num_attention_heads:2,num_key_value_heads:1,head_dim:32,num_local_experts:4,"                 \
    "num_experts_per_tok:2,vocab_size:11"
#define GPT_OSS_TURNED GPT_OSS_SIZES ",rope_parameters:{rope_theta:150000,rope_type:'default'}"
#define GPT_OSS GPT_OSS_TURNED ",sliding_window:8"
/* Six layers, of which 1, 3 and 5 may have experts. */
#define SPARSE                                                                                     \
    "model_type:'qwen2_moe',hidden_size:8,intermediate_size:5,moe_intermediate_size:3,"            \
    "shared_expert_intermediate_size:4,num_hidden_layers:6,num_attention_heads:2,num_experts:4,"   \
    "num_experts_per_tok:2,vocab_size:11,decoder_sparse_step:2"

/* Parameters as their cards say: 14.3, 30.5 and 6.9 billion, 2.7, 3.3 and 1.3 of them active. */
TEST(the_hubs_models_have_their_size)
{
    struct fm_config qwen2 = must(QWEN15_A27B, NULL), olmoe = must(OLMOE_1B, NULL);
    struct fm_config qwen3 = must(QWEN3_30B, "num_experts:128");
    assert_true(fm_config_params(&qwen2, NULL) == 14315784192);
    assert_true(fm_config_params_active(&qwen2, NULL) == 2689173504);
    assert_true(fm_config_params(&qwen3, NULL) == 30532122624);
    assert_true(fm_config_params_active(&qwen3, NULL) == 3353032704);
    assert_true(fm_config_params(&olmoe, NULL) == 6919161856);
    assert_true(fm_config_params_active(&olmoe, NULL) == 1282017280);
    assert_int_equal(qwen3.C, 128);
    assert_true(qwen2.router == &fm_softmax_raw && qwen3.router == &fm_softmax);
    const struct fm_gqa *two = qwen2.gqa, *three = qwen3.gqa;
    assert_true(two->qk_norm == FM_QK_NORM_NONE && three->qk_norm == FM_QK_NORM_HEAD);
    assert_true(olmoe.gqa->qk_norm == FM_QK_NORM_FULL && olmoe.gqa->clip == 0);
    assert_true(qwen2.eps == 1e-6f && olmoe.eps == 1e-5f);
    assert_true(two->rope.theta == 1e6 && three->rope.theta == 1e4);
}

TEST(the_number_of_experts_has_two_names)
{
    assert_int_equal(must(QWEN3_30B, "num_experts:128").E, 128);
    assert_int_equal(must(QWEN3_30B, "num_local_experts:128").E, 128);
    assert_int_equal(must(QWEN3_30B, "num_experts:null,num_local_experts:128").E, 128);
    refused(QWEN3_30B, "x:1", FM_EFORMAT, "num_local_experts");
}

TEST(both_spellings_of_a_config_give_the_same)
{
    struct fm_config old = must(OLMOE_1B, "rope_theta:5e5,torch_dtype:'bfloat16',"
                                          "rope_scaling:null");
    struct fm_config new = must(OLMOE_1B, "dtype:'bfloat16',rope_parameters:{rope_theta:5e5,"
                                          "rope_type:'default'}");
    assert_memory_equal(old.gqa, new.gqa, sizeof *old.gqa);
    new.gqa = old.gqa;
    assert_memory_equal(&old, &new, sizeof old);
}

TEST(layers_without_experts_are_found)
{
    struct fm_config c = must(SPARSE, "mlp_only_layers:[3,99]");
    assert_int_equal(c.L, 6);
    assert_int_equal(c.M, 2);
    assert_int_equal(c.moe[0], 1);
    assert_int_equal(c.moe[1], 5);
    const int place[] = {-1, 0, -1, -1, -1, 1};
    for (int l = 0; l < c.L; l++) {
        assert_int_equal(fm_config_moe(&c, l), place[l]);
        assert_int_equal(fm_config_mlp(&c, l), place[l] < 0 ? 5 : 4);
    }
    c = must(SPARSE, "mlp_only_layers:null");
    assert_int_equal(c.M, 3);
    refused(SPARSE, "mlp_only_layers:[1,3,5]", FM_ECONFIG, "no layer is a mixture");
    refused(SPARSE, "mlp_only_layers:[-1]", FM_EFORMAT, "mlp_only_layers");
    refused(SPARSE, "mlp_only_layers:[1.5]", FM_EFORMAT, "mlp_only_layers");
    refused(SPARSE, "mlp_only_layers:'1'", FM_EFORMAT, "mlp_only_layers");
}

TEST(gpt_oss_with_other_values_is_refused)
{
    struct fm_config c = must(GPT_OSS, NULL);
    assert_true(c.alpha == 1.702f && c.limit == 7);
    for (int l = 0; l < 4; l++) /* layers 0 and 2 have windows */
        assert_int_equal(fm_gqa_full(&c, l), l % 2);
    assert_int_equal(c.gqa->window, 8);
    c = must(GPT_OSS, "swiglu_limit:5.5,swiglu_alpha:1,layer_types:['full_attention',"
                      "'full_attention','sliding_attention','full_attention']");
    assert_true(c.alpha == 1 && c.limit == 5.5f);
    for (int l = 0; l < 4; l++)
        assert_int_equal(fm_gqa_full(&c, l), l != 2);
    must(GPT_OSS, "layer_types:null,swiglu_limit:null");
    refused(GPT_OSS, "swiglu_limit:-1", FM_EFORMAT, "key 'swiglu_limit' is -1");
    refused(GPT_OSS, "swiglu_limit:1e39", FM_EFORMAT, "key 'swiglu_limit' is 1e+39");
    refused(GPT_OSS, "swiglu_limit:'7'", FM_EFORMAT, "key 'swiglu_limit' is not a number");
    refused(GPT_OSS, "swiglu_alpha:-1.702", FM_EFORMAT, "key 'swiglu_alpha' is -1.702");
    refused(GPT_OSS, "swiglu_alpha:true", FM_EFORMAT, "key 'swiglu_alpha' is not a number");
    refused(GPT_OSS, "layer_types:['full_attention']", FM_EFORMAT, "1 entries for 4 layers");
    refused(GPT_OSS, "layer_types:['chunked_attention']", FM_ECONFIG,
            "layer_types 'chunked_attention' is not supported; supported: full_attention, "
            "sliding_attention");
    refused(GPT_OSS, "layer_types:[1,2,3,4]", FM_ECONFIG, "layer_types '?'");
    refused(GPT_OSS, "layer_types:'full_attention'", FM_EFORMAT, "not an array");
    refused(GPT_OSS, "hidden_act:'gelu'", FM_ECONFIG, "hidden_act 'gelu'");
    refused(GPT_OSS, "swiglu_limit:0", FM_EFORMAT, "key 'swiglu_limit' is 0");
    refused(GPT_OSS, "swiglu_alpha:0", FM_EFORMAT, "key 'swiglu_alpha' is 0");
}

/* Keys are read as in transformers: a missing key means 128, and no other key disables the window.
 * Without a window in sliding layers, transformers fails, or attends to no key. */
TEST(gpt_oss_has_a_window_wherever_a_layer_slides)
{
    static const char all_full[] = "layer_types:['full_attention','full_attention',"
                                   "'full_attention','full_attention'],";
    struct fm_config c = must(GPT_OSS_TURNED, NULL);
    assert_int_equal(c.gqa->window, 128);
    c = must(GPT_OSS, "use_sliding_window:false");
    assert_int_equal(c.gqa->window, 8);
    c = must(GPT_OSS_TURNED, "sliding_window:8,max_position_embeddings:8");
    assert_int_equal(c.gqa->window, 0);
    for (int i = 0; i < 2; i++) {
        char more[256];
        const char *none = i ? "null" : "0";
        snprintf(more, sizeof more, "sliding_window:%s", none);
        refused(GPT_OSS_TURNED, more, FM_ECONFIG,
                "sliding_window is null or 0 but layer 0 is sliding_attention, which programs "
                "interpret");
        snprintf(more, sizeof more, "%ssliding_window:%s", all_full, none);
        must(GPT_OSS_TURNED, more);
    }
}

TEST(gpt_oss_needs_rope_parameters)
{
    refused(GPT_OSS_SIZES, NULL, FM_ECONFIG, "rope_parameters and rope_scaling are missing");
    refused(GPT_OSS_SIZES, "rope_scaling:{},rope_theta:150000", FM_ECONFIG,
            "rope_parameters and rope_scaling are missing");
    refused(GPT_OSS_SIZES, "rope_parameters:null", FM_ECONFIG, "programs interpret");
    struct fm_config c = must(GPT_OSS_SIZES, "rope_parameters:{}");
    assert_true(c.gqa->rope.theta == 150000 && c.gqa->rope.scale == 1);
}

/* Two layers have experts; in the first, each expert keeps 1 of its 3 channels. */
TEST(only_routed_channels_change_the_count)
{
    struct fm_config c = must(SPARSE, "mlp_only_layers:[3]");
    const uint32_t widths[] = {1, 1, 1, 1, 3, 3, 3, 3};
    uint64_t full = fm_config_params(&c, NULL), cut = fm_config_params(&c, widths);
    assert_int_equal(full - cut, 4 * 2 * 3 * 8);
    assert_int_equal(fm_config_params_active(&c, NULL) - fm_config_params_active(&c, widths),
                     2 * 2 * 3 * 8);
}

TEST(the_tables_follow_the_config)
{
    struct fm_config c = must(SPARSE, "mlp_only_layers:[3]");
    const struct {
        const char *name;
        bool there;
    } names[] = {{"model.layers.0.mlp.gate_proj.weight", true},
                 {"model.layers.1.mlp.gate_proj.weight", false},
                 {"model.layers.1.mlp.gate.weight", true},
                 {"model.layers.0.mlp.gate.weight", false},
                 {"model.layers.1.mlp.experts.3.down_proj.weight", true},
                 {"model.layers.3.mlp.experts.3.down_proj.weight", false},
                 {"model.layers.1.mlp.experts.4.down_proj.weight", false},
                 {"model.layers.5.mlp.shared_expert_gate.weight", true},
                 {"model.layers.4.mlp.shared_expert_gate.weight", false},
                 {"model.layers.2.self_attn.k_proj.bias", true},
                 {"model.layers.2.self_attn.o_proj.bias", false},
                 {"model.layers.2.self_attn.q_norm.weight", false},
                 {"model.layers.2.input_layernorm.bias", false},
                 {"lm_head.bias", false}};
    int l, e;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!fm_weights_find(&c, FM_NAMING_STOCK, names[i].name, &l, &e) == names[i].there)
            fail_msg("'%s' should be %s", names[i].name, names[i].there ? "there" : "absent");
    c = must(SPARSE, "qkv_bias:false");
    assert_null(
        fm_weights_find(&c, FM_NAMING_STOCK, "model.layers.2.self_attn.k_proj.bias", &l, &e));
    c = must(QWEN3_30B, "num_experts:128,attention_bias:true");
    assert_non_null(
        fm_weights_find(&c, FM_NAMING_STOCK, "model.layers.2.self_attn.o_proj.bias", &l, &e));
    assert_non_null(
        fm_weights_find(&c, FM_NAMING_RAGGED, "model.layers.2.mlp.experts.gate_up", &l, &e));
}

TEST(unsupported_values_are_refused_by_name)
{
    refused(SPARSE, "use_sliding_window:true,sliding_window:8", FM_ECONFIG,
            "use_sliding_window true with sliding_window 8 is not supported for qwen2_moe");
    must(SPARSE, "use_sliding_window:true,sliding_window:32768");
    must(SPARSE, "use_sliding_window:true,sliding_window:0");
    must(SPARSE, "sliding_window:8");
    refused(SPARSE, "layer_types:['full_attention','sliding_attention']", FM_ECONFIG,
            "sliding_attention");
    must(SPARSE, "layer_types:['full_attention','full_attention']");
    refused(SPARSE, "clip_qkv:8", FM_ECONFIG, "clip_qkv is not supported for qwen2_moe");
    struct fm_config olmoe = must(OLMOE_1B, "x:8");
    assert_true(olmoe.gqa->clip == 0);
    refused(OLMOE_1B, "rope_scaling:{type:'yarn'}", FM_ECONFIG, "yarn");
    refused(OLMOE_1B, "hidden_act:'gelu'", FM_ECONFIG, "gelu");
    refused(OLMOE_1B, "quantization_config:{quant_method:'fp8',fmt:'e5m2'}", FM_ECONFIG,
            "fp8 with fmt 'e5m2' is not supported");
    refused(OLMOE_1B, "quantization_config:{quant_method:'awq'}", FM_ECONFIG, "awq");
    refused(OLMOE_1B, "quantization_config:{quant_method:'awq',bits:4,group_size:8.5}", FM_ECONFIG,
            "a group_size that is not a multiple of 8");
    refused(OLMOE_1B, "quantization_config:{}", FM_ECONFIG, "quantization_config");
    refused("model_type:'llama'", "x:1", FM_ECONFIG,
            "model_type 'llama' is not supported; supported: mixtral, qwen2_moe");
}

/* transformers reads text_config of any configuration as its text part, and servers do not. */
TEST(a_family_is_no_wrapper)
{
    must(SPARSE, "fm_wrapper:{model_type:'any'}");
    refused(SPARSE, "fm_wrapper:{model_type:'mixtral'}", FM_ECONFIG,
            "model_type 'mixtral' has a text_config");
}

/* ---- keys that exports with our modelling file keep ---- */

/* The names and aliases of all families. */
static char families_text[2048];
static const char *families[128];

static size_t list_families(void)
{
    static size_t n;
    if (n > 0)
        return n;
    fm_families_list(families_text, sizeof families_text);
    assert_true(strlen(families_text) < sizeof families_text - 1);
    for (char *at = strtok(families_text, ", "); at; at = strtok(NULL, ", "))
        families[n++] = at;
    return n;
}

TEST(every_family_has_a_golden_model)
{
    bool has[128] = {false};
    for (size_t i = 0; i < MODELS; i++) {
        struct fm_hfdir dir = {0};
        struct fm_config config;
        char path[64];
        snprintf(path, sizeof path, "golden/%s", odd_models[i]);
        assert_ok(fm_hfdir_open(&dir, path, &err));
        assert_ok(fm_config_parse(&config, dir.config, dir.config_bytes, &err));
        for (size_t f = 0; f < list_families(); f++)
            has[f] |= fm_families_find(families[f]) == config.family;
        fm_config_release(&config);
        fm_hfdir_close(&dir);
    }
    assert_true(list_families() > 20);
    for (size_t f = 0; f < list_families(); f++)
        if (!has[f])
            fail_msg("no model of %s in golden/odd-*", families[f]);
}

TEST(every_key_of_a_golden_config_is_known)
{
    size_t keys = 0;
    for (size_t i = 0; i < MODELS; i++) {
        struct fm_hfdir dir = {0};
        struct fm_config config;
        cJSON *json = NULL;
        char path[64];
        snprintf(path, sizeof path, "golden/%s", odd_models[i]);
        assert_ok(fm_hfdir_open(&dir, path, &err));
        assert_ok(fm_config_parse(&config, dir.config, dir.config_bytes, &err));
        assert_ok(fm_json_tree(&json, dir.config, dir.config_bytes, &err));
        for (const cJSON *v = json->child; v; v = v->next, keys++)
            if (strcmp(v->string, FM_HFTEXT_WRAPPER) != 0 &&
                !fm_families_knows(config.family, v->string))
                fail_msg("%s: %s", path, v->string);
        cJSON_Delete(json);
        fm_config_release(&config);
        fm_hfdir_close(&dir);
    }
    assert_true(keys > 16 * 20);
}

/* The cards of these models say how to add it for long sequences, and some copies have it. */
/* The pair that makes `turns` turns in `original` positions. */
static double pair_of(const struct fm_rope *r, int original, double turns)
{
    return r->R * log(original / (turns * 2 * 3.14159265358979)) / (2 * log(r->theta));
}

TEST(qwens_rotation_may_have_yarn)
{
#define QWEN_YARN                                                                                  \
    "rope_scaling:{rope_type:'yarn',factor:4.0,original_max_position_embeddings:32768}"
    float scale = (float)(0.1 * log(4) + 1);
    assert_true(must(QWEN15_A27B, QWEN_YARN).gqa->rope.scale == scale);
    struct fm_config c = must(QWEN3_30B, "num_experts:128," QWEN_YARN);
    const struct fm_rope *r = &c.gqa->rope;
    assert_true(r->scale == scale && r->factor[r->R / 2 - 1] == 4);
    /* The pairs between 32 turns and one turn in 32,768 positions are interpolated. */
    double low = floor(pair_of(r, 32768, 32)), high = ceil(pair_of(r, 32768, 1));
    int mid = (int)(low + high) / 2;
    double slow = (mid - low) / (high - low);
    assert_true(low > 0 && mid > low && high < r->R / 2);
    assert_float_equal(r->factor[mid], (float)(1 / (slow / 4 + 1 - slow)), 1e-6F);
    refused(QWEN3_30B, "num_experts:128,rope_scaling:{rope_type:'dynamic',factor:4.0}", FM_ECONFIG,
            "rope_type 'dynamic' is not supported for qwen3_moe; supported: default, yarn");
}

/* rope.c reads the last key for every family. */
TEST(every_family_knows_the_keys_that_all_read)
{
    static const char *const read[] = {"rope_theta",
                                       "rope_scaling",
                                       "rope_parameters",
                                       "rms_norm_eps",
                                       "vocab_size",
                                       "hidden_size",
                                       "original_max_position_embeddings"};
    for (size_t f = 0; f < list_families(); f++)
        for (size_t i = 0; i < sizeof read / sizeof *read; i++)
            if (!fm_families_knows(fm_families_find(families[f]), read[i]))
                fail_msg("%s: %s", families[f], read[i]);
}

/* Exports keep the keys that a family lists, without any option. */
TEST(no_family_knows_a_key_that_loads_code)
{
    static const char *const loading[] = {"auto_map",
                                          "custom_pipelines",
                                          "custom_generate",
                                          "_attn_implementation",
                                          "attn_implementation",
                                          "experts_implementation",
                                          "kernel_config",
                                          "transformers_weights",
                                          "_name_or_path",
                                          "base_model_name_or_path",
                                          "speculators_config",
                                          "text_config",
                                          "plugins",
                                          "allow_remote",
                                          "fm_widths",
                                          "mixtral",
                                          "",
                                          "vocab",
                                          "vocab_size hidden_size"};
    for (size_t f = 0; f < list_families(); f++) {
        const struct fm_model_family *family = fm_families_find(families[f]);
        assert_non_null(family);
        assert_true(fm_families_knows(family, "vocab_size"));
        assert_true(fm_families_knows(family, family->width_key));
        for (size_t i = 0; i < sizeof loading / sizeof *loading; i++)
            assert_false(fm_families_knows(family, loading[i]));
    }
    const struct fm_model_family *v3 = fm_families_find("deepseek_v3");
    assert_true(fm_families_knows(v3, "num_nextn_predict_layers"));
    assert_true(fm_families_knows(v3, "n_routed_experts") && fm_families_knows(v3, "topk_method"));
    assert_false(fm_families_knows(fm_families_find("mixtral"), "topk_method"));
    /* Only a family that reads it, and refuses what it does not know in it. */
    for (size_t f = 0; f < list_families(); f++)
        assert_true(fm_families_knows(fm_families_find(families[f]), "per_layer_config") ==
                    (strcmp(families[f], "gemma4_text") == 0));
}

TEST_MAIN(NULL, NULL)
