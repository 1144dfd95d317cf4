/*
 * Test config.json in every spelling of transformers 4 and 5.  Models that cannot be computed must
 * be refused with an error that names the key.
 */
#include <cjson/cJSON.h>
#include <glob.h>

#include "formats/quant/quant.h"
#include "lib/block/gqa.h"
#include "lib/family/family.h"
#include "tests/unit/owned.h"
#include "tests/unit/relaxed.h"
#include "tests/unit/test.h"

/* The members of a config.json.  config_text leaves out those whose key begins with `without`, and
 * appends `more`. */
static const char *const base[] = {
    "model_type:'mixtral'",          "hidden_size:4096",       "intermediate_size:14336",
    "num_hidden_layers:32",          "num_attention_heads:32", "num_key_value_heads:8",
    "num_local_experts:8",           "num_experts_per_tok:2",  "vocab_size:32000",
    "max_position_embeddings:32768",
};

static const char *config_text(const char *without, const char *more)
{
    static char text[5120];
    char relaxed[4096];
    size_t at = (size_t)snprintf(relaxed, sizeof relaxed, "{architectures:['MixtralForCausalLM']");
    for (size_t i = 0; i < sizeof base / sizeof *base; i++)
        if (!without || strncmp(base[i], without, strlen(without)) != 0)
            at += (size_t)snprintf(relaxed + at, sizeof relaxed - at, ",%s", base[i]);
    snprintf(relaxed + at, sizeof relaxed - at, "%s%s}", more ? "," : "", more ? more : "");
    return relaxed_json(text, sizeof text, relaxed);
}

static int parse(struct fm_config *c, const char *without, const char *more, struct fm_err *err)
{
    const char *text = config_text(without, more);
    return fm_config_parse(c, text, strlen(text), err);
}

static void expect(const char *without, const char *more, int code, const char *says)
{
    struct fm_config c;
    struct fm_err err = {0};
    int rc = parse(&c, without, more, &err);
    fm_config_release(&c);
    if (rc != code || (says && !strstr(err.text, says)))
        print_message("%s: %d '%s'\n", more ? more : without, rc, err.text);
    assert_int_equal(rc, code);
    if (says)
        assert_non_null(strstr(err.text, says));
}

static struct fm_config must(const char *without, const char *more)
{
    struct fm_config c;
    struct fm_err err = {0};
    int rc = parse(&c, without, more, &err);
    if (rc)
        print_message("%s\n", err.text);
    assert_int_equal(rc, FM_OK);
    return owned_config(&c);
}

static double theta(const char *without, const char *more)
{
    struct fm_config c = must(without, more);
    return c.gqa->rope.theta;
}

static int window(const char *without, const char *more)
{
    struct fm_config c = must(without, more);
    return c.gqa->window;
}

TEST(mixtral_8x7b_is_read)
{
    struct fm_config c = must(NULL, "rope_theta:1000000.0,torch_dtype:'bfloat16',"
                                    "sliding_window:null,rms_norm_eps:1e-05");
    assert_int_equal(c.L, 32);
    assert_int_equal(c.H, 4096);
    assert_int_equal(c.Q, 32);
    assert_int_equal(c.G, 8);
    assert_int_equal(c.C, 128);
    assert_int_equal(c.E, 8);
    assert_int_equal(c.K, 2);
    assert_int_equal(c.I, 14336);
    assert_int_equal(c.V, 32000);
    assert_int_equal(c.T_max, 32768);
    assert_int_equal(c.gqa->window, 0);
    assert_false(c.tied);
    assert_true(c.eps == 1e-5f && c.gqa->rope.theta == 1e6);
    assert_string_equal(fm_config_family(&c), "mixtral");
    /* 46.7 and 12.9 billion, as its card says. */
    assert_true(fm_config_params(&c, NULL) == 46702792704);
    assert_true(fm_config_params_active(&c, NULL) == 12879925248);
}

TEST(both_spellings_of_rope_are_read)
{
    assert_true(theta(NULL, "rope_theta:5e3") == 5e3);
    assert_true(theta(NULL, NULL) == 1e6);
    assert_true(theta(NULL, "rope_parameters:{rope_type:'default',rope_theta:7e3}") == 7e3);
    assert_true(theta(NULL, "rope_theta:7e3,rope_parameters:{rope_theta:7e3}") == 7e3);
    must(NULL, "rope_scaling:null,dtype:'bfloat16'");
    expect(NULL, "rope_scaling:{type:'linear',factor:2}", FM_ECONFIG, "linear");
    expect(NULL, "rope_parameters:{rope_type:'yarn'}", FM_ECONFIG, "yarn");
    expect(NULL, "rope_parameters:3", FM_EFORMAT, "rope_parameters");
}

/* transformers 5 forgets rope_parameters if there is a rope_scaling, and transformers 4 reads no
 * rope_parameters. */
TEST(two_rotations_are_refused)
{
    const char *two = "rope_scaling and rope_parameters give different rotations";
    expect(NULL, "rope_theta:1,rope_parameters:{rope_theta:7e3}", FM_ECONFIG,
           "rope_theta 1 differs from rope_theta 7000 of rope_parameters");
    expect(NULL, "rope_theta:1,rope_scaling:{rope_theta:7e3}", FM_ECONFIG,
           "rope_theta 1 differs from rope_theta 7000 of rope_scaling");
    expect(NULL, "rope_scaling:{rope_theta:5e3},rope_parameters:{rope_theta:7e3}", FM_ECONFIG, two);
    expect(NULL, "rope_scaling:{type:'default'},rope_parameters:{rope_theta:7e3}", FM_ECONFIG, two);
    expect(NULL, "rope_scaling:{type:'default',rope_type:'yarn'}", FM_ECONFIG, "yarn");
    expect(NULL, "rope_parameters:{full_attention:{rope_theta:7e3}}", FM_ECONFIG,
           "rope_parameters: 'full_attention' is an object, as for types of layers");
    /* As transformers reads them, these are one rotation. */
    assert_true(theta(NULL, "rope_scaling:{type:'default'},rope_parameters:{rope_theta:7e3},"
                            "rope_theta:7e3") == 7e3);
    assert_true(theta(NULL, "rope_scaling:{},rope_parameters:{rope_theta:7e3}") == 7e3);
    assert_true(theta(NULL, "rope_scaling:{rope_theta:7e3},rope_parameters:{}") == 7e3);
}

TEST(two_scaled_rotations_are_refused)
{
#define YARN_BEGIN "{rope_type:'yarn',factor:4.0,original_max_position_embeddings:4096"
#define YARN(name, more) name ":" YARN_BEGIN more "}"
    static const char *const other[] = {",beta_fast:16",   ",beta_slow:2",
                                        ",truncate:false", ",attention_factor:1",
                                        ",rope_theta:5",   ",mscale:0.5,mscale_all_dim:1"};
    const char *two = "rope_scaling and rope_parameters give different rotations";
    const char *type = "model_type:'qwen3_moe',moe_intermediate_size:768";
    char more[512];
    snprintf(more, sizeof more, "%s,%s,%s", type, YARN("rope_scaling", ""),
             YARN("rope_parameters", ",beta_fast:32"));
    struct fm_config c = must("model_type", more);
    assert_true(c.gqa->rope.factor[0] == 1 && c.gqa->rope.factor[63] == 4);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(more, sizeof more, "%s,%s:%s%s},%s:%s%s}", type, "rope_scaling", YARN_BEGIN,
                     k ? other[i] : "", "rope_parameters", YARN_BEGIN, k ? "" : other[i]);
            expect("model_type", more, FM_ECONFIG, two);
        }
    snprintf(more, sizeof more, "%s,original_max_position_embeddings:32,%s", type,
             YARN("rope_scaling", ""));
    expect("model_type", more, FM_ECONFIG, "original_max_position_embeddings 32 differs from");
}

TEST(two_keys_with_one_meaning_agree)
{
    static const char *const keys[] = {"num_experts", "n_routed_experts", "moe_num_experts"};
    char more[64];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(more, sizeof more, "%s:8", keys[i]);
        assert_int_equal(must(NULL, more).E, 8);
        snprintf(more, sizeof more, "%s:null", keys[i]);
        assert_int_equal(must(NULL, more).E, 8);
        snprintf(more, sizeof more, "%s:4", keys[i]);
        expect(NULL, more, FM_ECONFIG, "programs differ in which they read");
    }
    expect(NULL, "moe_k:1", FM_ECONFIG, "num_experts_per_tok 2 differs from moe_k 1");
    expect(NULL, "experts_per_token:1", FM_ECONFIG,
           "experts_per_token 1 differs from num_experts_per_tok 2");
}

TEST(no_window_has_two_spellings)
{
    assert_int_equal(window(NULL, "sliding_window:null"), 0);
    assert_int_equal(window(NULL, "sliding_window:0"), 0);
    assert_int_equal(window(NULL, "use_sliding_window:false,sliding_window:null"), 0);
    expect(NULL, "use_sliding_window:false,sliding_window:4096", FM_ECONFIG, "programs differ");
    assert_int_equal(window(NULL, "sliding_window:4096"), 4096);
    expect(NULL, "sliding_window:-1", FM_EFORMAT, "sliding_window");
}

TEST(the_width_of_heads_may_be_given)
{
    assert_int_equal(must(NULL, "head_dim:null").C, 128);
    assert_int_equal(must(NULL, "head_dim:10").C, 10);
    assert_int_equal(must("num_key", "num_key_value_heads:null").G, 32);
    expect(NULL, "head_dim:9", FM_EFORMAT, "head_dim 9");
    expect("num_key", "num_key_value_heads:5", FM_EFORMAT, "num_key_value_heads 5");
    assert_true(must(NULL, "tie_word_embeddings:true").tied);
}

TEST(unsupported_models_are_refused_by_name)
{
    expect("model_type", "model_type:'llama'", FM_ECONFIG, "supported: mixtral");
    expect(NULL, "hidden_act:'gelu'", FM_ECONFIG, "gelu");
    expect(NULL, "attention_bias:true", FM_ECONFIG, "attention_bias");
    expect(NULL, "quantization_config:{quant_method:'gptq'}", FM_ECONFIG, "quantized");
    must(NULL, "hidden_act:'silu',attention_bias:false,quantization_config:null");
    assert_null(must(NULL, "quantization_config:null").scheme.storage);
}

TEST(sizes_have_limits)
{
    expect("vocab_size", NULL, FM_EFORMAT, "vocab_size");
    expect("vocab_size", "vocab_size:0", FM_EFORMAT, "vocab_size");
    expect("vocab_size", "vocab_size:1e9", FM_ECONFIG, "vocab_size");
    expect("vocab_size", "vocab_size:12.5", FM_EFORMAT, "vocab_size");
    expect("num_hidden", "num_hidden_layers:1025", FM_ECONFIG, "limit 1024");
    expect("hidden_size", "hidden_size:'4096'", FM_EFORMAT, "hidden_size");
    expect("intermediate", "intermediate_size:[1,2]", FM_EFORMAT, "intermediate_size");
    expect("intermediate", "intermediate_size:1048577", FM_ECONFIG, "limit 1048576");
    expect("num_experts", "num_experts_per_tok:9", FM_EFORMAT, "num_experts_per_tok 9");
    expect(NULL, "rms_norm_eps:-1", FM_EFORMAT, "rms_norm_eps");
    expect(NULL, "hidden_size:4096", FM_EFORMAT, "twice");
}

TEST(only_names_of_the_models_tensors_are_found)
{
    struct fm_config c = must(NULL, NULL);
    const struct {
        const char *name;
        int l, e;
    } known[] = {{"model.embed_tokens.weight", -1, -1},
                 {"lm_head.weight", -1, -1},
                 {"model.layers.31.self_attn.q_proj.weight", 31, -1},
                 {"model.layers.0.block_sparse_moe.experts.7.w2.weight", 0, 7}};
    const char *unknown[] = {"model.layers.32.self_attn.q_proj.weight",
                             "model.layers.01.self_attn.q_proj.weight",
                             "model.layers.-1.self_attn.q_proj.weight",
                             "model.layers..self_attn.q_proj.weight",
                             "model.layers.4294967296.self_attn.q_proj.weight",
                             "model.layers.0.block_sparse_moe.experts.8.w2.weight",
                             "model.layers.0.block_sparse_moe.experts.7.w2.weight2",
                             "model.layers.0.block_sparse_moe.experts.7.w2",
                             "model.layers.0.self_attn.rotary_emb.inv_freq",
                             ""};
    int l, e;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct fm_weight *w = fm_weights_find(&c, FM_NAMING_STOCK, known[i].name, &l, &e);
        char name[FM_WEIGHT_NAME_BYTES];
        assert_non_null(w);
        assert_int_equal(l, known[i].l);
        assert_int_equal(e, known[i].e);
        fm_weights_name(name, w->name[FM_NAMING_STOCK], l, e);
        assert_string_equal(name, known[i].name);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        assert_null(fm_weights_find(&c, FM_NAMING_STOCK, unknown[i], &l, &e));
    c.tied = true;
    assert_null(fm_weights_find(&c, FM_NAMING_STOCK, "lm_head.weight", &l, &e));
}

/* The first quantization_config is that of DeepSeek-V3 and MiniMax-M2. */
TEST(a_storage_is_read)
{
    struct fm_config c = must(NULL, "quantization_config:{activation_scheme:'dynamic',fmt:'e4m3',"
                                    "quant_method:'fp8',weight_block_size:[128,128]}");
    assert_ptr_equal(c.scheme.storage, &fm_fp8);
    assert_true(c.scheme.block_rows == 128 && c.scheme.block_columns == 128);
    c = must(NULL, "quantization_config:{quant_method:'fp8',fmt:'float8_e4m3fn',"
                   "scale_fmt:'ue8m0',weight_block_size:[64,32],modules_to_not_convert:['gate',"
                   "'lm_head']}");
    assert_true(c.scheme.block_rows == 64 && c.scheme.block_columns == 32);
    c = must(NULL, "quantization_config:{quant_method:'fp8',activation_scheme:'static',"
                   "dequantize:false,weight_block_size:null}");
    assert_ptr_equal(c.scheme.storage, &fm_fp8);
    assert_true(c.scheme.block_rows == 0 && c.scheme.block_columns == 0);
    expect(NULL, "quantization_config:{quant_method:'fp8',weight_block_size:'x'}", FM_EFORMAT,
           "weight_block_size");
    expect(NULL, "compression_config:{quant_method:'fp8',weight_block_size:[1,1]}", FM_ECONFIG,
           "quantized (compression_config");
}

TEST(both_keys_of_the_size_of_mxfp4s_blocks_are_checked)
{
    static const char *const text[] = {"{}", "{\"block_size\":32,\"group_size\":32}",
                                       "{\"block_size\":16,\"group_size\":32}",
                                       "{\"block_size\":32,\"group_size\":16}"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        struct fm_scheme scheme;
        cJSON *json = cJSON_Parse(text[i]);
        assert_int_equal(fm_method_mxfp4.read(&scheme, NULL, json, &err),
                         i < 2 ? FM_OK : FM_ECONFIG);
        cJSON_Delete(json);
    }
}

/* The text is read, or refused with a sentence, and (under sanitizers) nothing overflows before a
 * limit is checked. */
static void try_number(const cJSON *root, const char *key, const char *model)
{
    struct fm_config c;
    struct fm_err err = {0};
    char *text = cJSON_PrintUnformatted(root);
    assert_non_null(text);
    int rc = fm_config_parse(&c, text, strlen(text), &err);
    if (rc != FM_OK && rc != FM_EFORMAT && rc != FM_ECONFIG)
        fail_msg("%s, %s: status %d, '%s'", model, key, rc, err.text);
    assert_true(rc == FM_OK || err.text[0]);
    fm_config_release(&c);
    free(text);
}

static int try_numbers(const cJSON *root, cJSON *object, const char *model)
{
    static const double extreme[] = {
        0,          1,           -1,          2147483645., 2147483646.,
        2147483647, 2147483648., 4294967295., 4294967300., 9007199254740991.,
        1e18,       1e38,        -1e18,       1e300,       -1e300,
        5e-324};
    int tried = 0;
    cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        if (cJSON_IsObject(item) || cJSON_IsArray(item))
            tried += try_numbers(root, item, model);
        if (!cJSON_IsNumber(item))
            continue;
        double was = item->valuedouble;
        for (size_t i = 0; i < sizeof extreme / sizeof *extreme; i++, tried++) {
            cJSON_SetNumberValue(item, extreme[i]);
            try_number(root, item->string ? item->string : "an element", model);
        }
        cJSON_SetNumberValue(item, was);
    }
    return tried;
}

/* config.json of every odd model in golden/, with each number in turn set to 0, 1, -1 and values
 * near the limits of int, unsigned, float and double. */
TEST(numbers_at_the_ends_of_their_types_are_read_or_refused)
{
    glob_t files;
    assert_int_equal(glob("golden/odd-*/config.json", 0, NULL, &files), 0);
    assert_in_range(files.gl_pathc, 10, 100);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char text[16384] = "";
        FILE *f = fopen(files.gl_pathv[i], "r");
        assert_non_null(f);
        assert_in_range(fread(text, 1, sizeof text - 1, f), 100, sizeof text - 2);
        fclose(f);
        cJSON *root = cJSON_Parse(text);
        assert_non_null(root);
        assert_in_range(try_numbers(root, root, files.gl_pathv[i]), 100, 100000);
        cJSON_Delete(root);
    }
    globfree(&files);
}

TEST_MAIN(NULL, NULL)
