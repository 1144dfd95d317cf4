/* The text part of a multimodal checkpoint: which config.json is a wrapper's, its conversion,
 * and names without its prefix. */
#include "formats/tensor/hftext.h"

#include <cjson/cJSON.h>

#include "tests/unit/test.h"

static char *text_of(const char *config)
{
    char *text;
    struct fm_err err = {0};
    assert_ok(fm_hftext_config(&text, config, strlen(config), &err));
    return text;
}

TEST(a_wrapper_has_a_text_part)
{
    char *text =
        text_of("{\"architectures\":[\"XyForConditionalGeneration\"],\"model_type\":\"xy\","
                "\"dtype\":\"bfloat16\",\"tie_word_embeddings\":true,\"vision\":1,"
                "\"text_config\":{\"model_type\":\"xy_text\",\"eps\":1e-06,"
                "\"rope_theta\":10000000,\"limit\":7.0,\"say \\\"8.0\":[-1e1,\"9.0\"],"
                "\"dtype\":null,\"tie_word_embeddings\":true}}");
    assert_non_null(text);
    assert_non_null(strstr(text, "\"architectures\": [\"XyForCausalLM\"]"));
    assert_non_null(strstr(text, "\"model_type\": \"xy_text\""));
    assert_non_null(strstr(text, "\"dtype\": \"bfloat16\""));
    assert_non_null(strstr(text, "\"tie_word_embeddings\": true"));
    assert_non_null(strstr(text, "\"rope_theta\": 10000000"));
    assert_non_null(strstr(text, "\"limit\": 7.0"));
    assert_non_null(strstr(text, "[-1e1, \"9.0\"]"));
    assert_string_equal(fm_hftext_wrapped(text, strlen(text)), "model.language_model.");
    char *whole = NULL;
    assert_ok(fm_hftext_wrap(&whole, text, strlen(text), false, &err));
    assert_non_null(strstr(whole, "\"architectures\": [\"XyForConditionalGeneration\"]"));
    assert_non_null(strstr(whole, "\"vision\": 1"));
    assert_non_null(strstr(whole, "\"eps\": 1e-06"));
    assert_non_null(strstr(whole, "\"limit\": 7.0"));
    assert_null(strstr(whole, FM_HFTEXT_WRAPPER));
    free(whole);
    free(text);
}

TEST(values_of_the_wrapper_and_of_its_text_part_agree)
{
    static const char *const value[][2] = {{"tie_word_embeddings", "true"},
                                           {"quantization_config", "{\"a\":[1,\"b\"]}"},
                                           {"compression_config", "{\"a\":1}"}};
    for (size_t i = 0; i < 3; i++) {
        char whole[256], *text = NULL;
        const char *key = value[i][0], *form = "{\"model_type\":\"xy\",\"%s\":%s,\"text_config\":"
                                               "{\"model_type\":\"xy_text\",\"%s\":%s}}";
        snprintf(whole, sizeof whole, form, key, value[i][1], key, value[i][1]);
        text = text_of(whole);
        assert_non_null(text);
        free(text);
        snprintf(whole, sizeof whole, form, key, i ? value[i][1] : "false", key,
                 i ? "{\"a\":2}" : "true");
        assert_int_equal(fm_hftext_config(&text, whole, strlen(whole), &err), FM_ECONFIG);
        assert_null(text);
        assert_non_null(strstr(err.text, key));
    }
}

/* A wrapper's classes in transformers save true, and use a head that the checkpoint has. */
TEST(a_text_part_may_have_its_own_head)
{
    char *text = text_of("{\"model_type\":\"xy\",\"tie_word_embeddings\":true,\"text_config\":"
                         "{\"model_type\":\"ab\",\"tie_word_embeddings\":false}}");
    cJSON *json = cJSON_Parse(text);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(json, "tie_word_embeddings")));
    cJSON_Delete(json);
    free(text);
}

/* Kimi-K2.5 wraps Kimi-K2, whose class and quantisation are those of its text_config. */
TEST(a_wrapper_may_have_any_name)
{
    static const char kimi[] =
        "{\"model_type\":\"kimi\",\"architectures\":[\"KimiForConditionalGeneration\"],"
        "\"text_config\":{\"model_type\":\"deep\",\"architectures\":[\"DeepForCausalLM\"],"
        "\"quantization_config\":{\"ignore\":[\"language_model.lm_head\"]}}}";
    static const char *const names[] = {"language_model.lm_head.weight", "vision_tower.a"};
    char *text = text_of(kimi), *cut = NULL, *whole = NULL;
    assert_non_null(strstr(text, "\"architectures\": [\"DeepForCausalLM\"]"));
    assert_non_null(strstr(text, "\"model_type\": \"deep\""));
    assert_ok(fm_hftext_modules(&cut, text, strlen(text), names, 2, &err));
    assert_non_null(strstr(cut, "[\"lm_head\"]"));
    assert_string_equal(fm_hftext_wrapped(cut, strlen(cut)), "language_model.");
    assert_ok(fm_hftext_wrap(&whole, cut, strlen(cut), false, &err));
    cJSON *have = cJSON_Parse(whole), *want = cJSON_Parse(kimi);
    assert_true(cJSON_Compare(have, want, true));
    cJSON_Delete(have);
    cJSON_Delete(want);
    free(whole);
    free(cut);
    free(text);
}

/* Step-3.7's tensors have the names that its text class uses. */
TEST(a_wrapper_may_have_no_prefix)
{
    static const char *const names[] = {"lm_head.weight", "model.layers.0.a.weight", "vision.b"};
    char name[FM_ST_NAME_BYTES_MAX + 1], *cut = NULL;
    char *text = text_of("{\"model_type\":\"xy\",\"text_config\":{\"model_type\":\"ab\"}}");
    assert_ok(fm_hftext_modules(&cut, text, strlen(text), names, 3, &err));
    assert_string_equal(fm_hftext_wrapped(cut, strlen(cut)), "model.");
    for (int i = 0; i < 3; i++) {
        assert_ok(fm_hftext_name(name, names[i], "model.", &err));
        assert_string_equal(name, names[i]);
    }
    free(cut);
    free(text);
}

/* Keys of ours in a checkpoint's config.json. */
TEST(a_wrapper_does_not_choose_its_prefix)
{
    static const char *const names[] = {"model.language_model.norm.weight"};
    char *text = text_of("{\"model_type\":\"xy\",\"fm_prefix\":\"language_model.\",\"text_config\":"
                         "{\"model_type\":\"ab\",\"fm_wrapper\":{\"fm_prefix\":\"model.llm.\"}}}");
    char *cut = NULL, *whole = NULL;
    assert_ok(fm_hftext_modules(&cut, text, strlen(text), names, 1, &err));
    assert_null(cut);
    assert_string_equal(fm_hftext_wrapped(text, strlen(text)), "model.language_model.");
    free(text);
    text = strdup("{\"fm_wrapper\":{\"text_config\":7},\"quantization_config\":"
                  "{\"ignore\":[\"model.language_model.norm\"]}}");
    assert_ok(fm_hftext_modules(&cut, text, strlen(text), names, 1, &err));
    assert_ok(fm_hftext_wrap(&whole, cut, strlen(cut), false, &err));
    const char *first = strstr(whole, "\"text_config\"");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\"text_config\""));
    free(whole);
    free(cut);
    free(text);
}

/* The published MiniMax-M3 has such a config.json. */
TEST(a_text_part_without_a_model_type_is_the_wrappers)
{
    static const char *const part[] = {"{\"hidden_size\":8}",
                                       "{\"hidden_size\":8,\"Model_Type\":7}"};
    for (size_t i = 0; i < 2; i++) {
        char whole[128], *text = NULL;
        snprintf(whole, sizeof whole, "{\"model_type\":\"xy\",\"text_config\":%s}", part[i]);
        text = text_of(whole);
        assert_non_null(text);
        assert_non_null(strstr(text, "\"model_type\": \"xy_text\""));
        free(text);
    }
}

TEST(a_wrappers_prefix_is_before_all_names_or_inside)
{
    static const char *const want[][3] = {
        {"model.language_model.", "model.language_model.norm.weight", "lm_head.weight"},
        {"model.llm.", "model.llm.norm.weight", "lm_head.weight"},
        {"language_model.", "language_model.model.norm.weight", "language_model.lm_head.weight"}};
    char whole[FM_ST_NAME_BYTES_MAX + 1];
    for (size_t i = 0; i < 3; i++) {
        assert_ok(fm_hftext_name(whole, "model.norm.weight", want[i][0], &err));
        assert_string_equal(whole, want[i][1]);
        assert_ok(fm_hftext_name(whole, "lm_head.weight", want[i][0], &err));
        assert_string_equal(whole, want[i][2]);
    }
}

TEST(a_text_without_its_wrapper_is_not_wrapped)
{
    static const char *const none[] = {"{\"model_type\":\"xy_text\"}",
                                       "{\"fm_wrapper\":7,\"model_type\":\"xy_text\"}", "[1]", ""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char *whole = NULL;
        assert_int_equal(fm_hftext_wrap(&whole, none[i], strlen(none[i]), false, &err), FM_EFORMAT);
        assert_null(whole);
        assert_null(fm_hftext_wrapped(none[i], strlen(none[i])));
    }
}

TEST(other_configs_are_not_converted)
{
    static const char *const none[] = {
        "{\"model_type\":\"xy\"}",
        "{\"text_config\":{\"model_type\":\"llama\"}}",
        "{\"model_type\":\"xy\",\"text_config\":7}",
        "{\"model_type\":\"xy\",\"text_config\":{\"eps\":1e-06}}",
        "{\"model_type\":\"xy\",\"text_config\":{\"model_type\":7}}",
        "{\"model_type\":\"\",\"text_config\":{\"model_type\":\"_text\"}}",
        "[1]",
        "{",
        "",
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_null(text_of(none[i]));
}

TEST(names_lose_their_prefix_and_stay_sorted)
{
    char inner[] = "model.llm.layers.2.a"; /* changed in place */
    struct fm_tensor tensor[] = {{.name = "language_model.lm_headx"},
                                 {.name = "language_model.model.layers.1.a"},
                                 {.name = "lm_head.weight"},
                                 {.name = "model.embed.weight"},
                                 {.name = (char[]){"model.language_model.layers.0.a"}},
                                 {.name = (char[]){"model.language_model.norm.weight"}},
                                 {.name = inner},
                                 {.name = "model.visual.b"},
                                 {.name = "xmodel.language_model.c"}};
    static const char *const want[] = {
        "language_model.lm_headx", "lm_head.weight",   "model.embed.weight",
        "model.layers.0.a",        "model.layers.1.a", "model.layers.2.a",
        "model.norm.weight",       "model.visual.b",   "xmodel.language_model.c"};
    struct fm_safetensors st = {.tensor = tensor, .count = sizeof tensor / sizeof *tensor};
    fm_hftext_cut(&st);
    for (size_t i = 0; i < st.count; i++)
        assert_string_equal(st.tensor[i].name, want[i]);
    assert_non_null(fm_safetensors_find(&st, "model.norm.weight"));
}

static char *renamed(const char *config, const char *const *tensor, size_t n)
{
    char *text = NULL;
    struct fm_err err = {0};
    assert_ok(fm_hftext_modules(&text, config, strlen(config), tensor, n, &err));
    return text;
}

/* The quantization_config of a text, without white space. */
static void expect_quant(const char *text, const char *want)
{
    cJSON *json = cJSON_Parse(text);
    char *got = cJSON_PrintUnformatted(cJSON_GetObjectItem(json, "quantization_config"));
    assert_string_equal(got, want);
    cJSON_free(got);
    cJSON_Delete(json);
}

static const char *const inner_names[] = {"lm_head.weight",
                                          "model.language_model.layers.0.mlp.gate.weight",
                                          "model.language_model.layers.0.self_attn.q_proj.bias",
                                          "model.language_model.layers.0.self_attn.q_proj.weight",
                                          "model.language_model.norm.weight",
                                          "model.visual.blocks.0.mlp.gate.weight"};

/* Each kind of list, with names, a pattern, and expressions that spell the prefix in several ways.
 * Entries that name no part of the prefix stay. */
TEST(lists_of_modules_are_cut_as_tensors_are)
{
    char *text = renamed(
        "{\"quantization_config\":{\"bits\":4.0,"
        "\"modules_to_not_convert\":[\"model.language_model.layers.0.mlp.gate\",\"lm_head\","
        "\"model.visual.blocks.0\",\"mlp.gate\"],"
        "\"ignore\":[\"re:.*mlp.gate$\",\"re:model\\\\.language_model\\\\.layers.*q_proj\","
        "\"re:^model.language_model.layers.0.mlp.gate\",\"model.language_model.layers.*.mlp\"],"
        "\"config_groups\":{\"g\":{\"targets\":[\"Linear\",\"model.language_model.norm\"]}},"
        "\"quantized_layers\":{\"model.language_model.layers.0.self_attn.q_proj\":{\"a\":1}}}}",
        inner_names, 6);
    assert_non_null(text);
    expect_quant(text, "{\"bits\":4,"
                       "\"modules_to_not_convert\":[\"model.layers.0.mlp.gate\",\"lm_head\","
                       "\"model.visual.blocks.0\",\"mlp.gate\"],"
                       "\"ignore\":[\"re:.*mlp.gate$\",\"re:model\\\\.layers.*q_proj\","
                       "\"re:^model.layers.0.mlp.gate\",\"model.layers.*.mlp\"],"
                       "\"config_groups\":{\"g\":{\"targets\":[\"Linear\",\"model.norm\"]}},"
                       "\"quantized_layers\":{\"model.layers.0.self_attn.q_proj\":{\"a\":1}}}");
    assert_non_null(strstr(text, "\"bits\": 4.0"));
    free(text);
}

/* Entries that are not understood by cutting: one that matches the prefix without spelling it, one
 * that would match more modules than before, and the prefix itself. */
TEST(expressions_match_the_modules_that_they_matched)
{
    char *text =
        renamed("{\"quantization_config\":{\"ignore\":[\"re:model\\\\.l.*\\\\.mlp\\\\.gate\","
                "\"*language*q_proj\",\"re:^model.(layers|visual).*\"]}}",
                inner_names, 6);
    assert_non_null(text);
    expect_quant(text, "{\"ignore\":[\"re:model\\\\.l.*\\\\.mlp\\\\.gate\","
                       "\"model.layers.0.self_attn.q_proj\",\"model.visual.blocks.0.mlp.gate\"]}");
    free(text);
    text = renamed("{\"quantization_config\":{\"ignore\":[\"model.language_model\"]}}", inner_names,
                   6);
    assert_non_null(text);
    expect_quant(text,
                 "{\"ignore\":[\"model.layers.0.mlp.gate\",\"model.layers.0.self_attn.q_proj\","
                 "\"model.norm\"]}");
    free(text);
}

TEST(a_prefix_of_all_names_is_cut_in_lists_too)
{
    static const char *const names[] = {"language_model.lm_head.weight",
                                        "language_model.model.layers.0.mlp.gate.weight",
                                        "vision_language_model.model.x.weight"};
    char *text =
        renamed("{\"fm_wrapper\":{},\"quantization_config\":{\"ignore\":["
                "\"language_model.lm_head\",\"re:language_model.lm_head\","
                "\"re:.*language_model\\\\.model\\\\.layers.0.*\",\"language_model.model\","
                "\"vision_language_model.model.x\",\"re:vision_language_model.model.x\"]}}",
                names, 3);
    assert_non_null(text);
    expect_quant(text, "{\"ignore\":[\"lm_head\",\"re:lm_head\",\"re:.*model\\\\.layers.0.*\","
                       "\"model\",\"vision_language_model.model.x\","
                       "\"re:vision_language_model.model.x\"]}");
    /* The list as it was is the wrapper's, and comes back with it. */
    char *whole = NULL;
    assert_ok(fm_hftext_wrap(&whole, text, strlen(text), false, &err));
    assert_non_null(strstr(whole, "\"language_model.lm_head\""));
    assert_null(strstr(whole, "\"lm_head\""));
    free(whole);
    assert_ok(fm_hftext_wrap(&whole, text, strlen(text), true, &err));
    expect_quant(whole, "{\"ignore\":[\"lm_head\",\"re:lm_head\",\"re:.*model\\\\.layers.0.*\","
                        "\"model\",\"vision_language_model.model.x\","
                        "\"re:vision_language_model.model.x\"]}");
    free(whole);
    free(text);
}

TEST(a_list_without_the_prefix_stays)
{
    assert_null(renamed("{\"quantization_config\":{\"ignore\":[\"lm_head\",\"re:.*gate\"]}}",
                        inner_names, 6));
    assert_null(renamed("{\"a\":[\"model.language_model.x\"]}", inner_names, 6));
    assert_null(renamed("[", inner_names, 6));
}

TEST(there_may_be_only_so_many_patterns)
{
    char config[8192] = "{\"quantization_config\":{\"ignore\":[\"\"", *text = NULL;
    for (int i = 0; i <= 256; i++)
        strcat(config, ",\"re:x\"");
    strcat(config, "]}}");
    assert_int_equal(fm_hftext_modules(&text, config, strlen(config), inner_names, 6, &err),
                     FM_ECONFIG);
    assert_null(text);
    assert_non_null(strstr(err.text, "more than 256 patterns"));
}

TEST_MAIN(NULL, NULL)
