/* The text part of a multimodal checkpoint: which config.json is a wrapper's, its conversion,
 * and names without its prefix. */
#include "formats/tensor/hftext.h"
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
    assert_true(fm_hftext_wrapped(text, strlen(text)));
    char *whole = NULL;
    assert_ok(fm_hftext_wrap(&whole, text, strlen(text), &err));
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
        snprintf(whole, sizeof whole, form, key, value[i][1], key, i ? "{\"a\":2}" : "false");
        assert_int_equal(fm_hftext_config(&text, whole, strlen(whole), &err), FM_ECONFIG);
        assert_null(text);
        assert_non_null(strstr(err.text, key));
    }
}

/* The published MiniMax-M3 has such a config.json. */
TEST(a_text_part_without_a_model_type_is_the_wrappers)
{
    char *text = text_of("{\"model_type\":\"xy\",\"text_config\":{\"hidden_size\":8}}");
    assert_non_null(strstr(text, "\"model_type\": \"xy_text\""));
    free(text);
}

TEST(a_wrappers_prefix_is_before_all_names_or_inside)
{
    char whole[FM_ST_NAME_BYTES_MAX + 1];
    assert_ok(fm_hftext_name(whole, "model.norm.weight", false, &err));
    assert_string_equal(whole, "model.language_model.norm.weight");
    assert_ok(fm_hftext_name(whole, "lm_head.weight", false, &err));
    assert_string_equal(whole, "lm_head.weight");
    assert_ok(fm_hftext_name(whole, "lm_head.weight", true, &err));
    assert_string_equal(whole, "language_model.lm_head.weight");
}

TEST(a_text_without_its_wrapper_is_not_wrapped)
{
    static const char *const none[] = {"{\"model_type\":\"xy_text\"}",
                                       "{\"fm_wrapper\":7,\"model_type\":\"xy_text\"}", "[1]", ""};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        char *whole = NULL;
        assert_int_equal(fm_hftext_wrap(&whole, none[i], strlen(none[i]), &err), FM_EFORMAT);
        assert_null(whole);
    }
}

TEST(other_configs_are_not_converted)
{
    static const char *const none[] = {
        "{\"model_type\":\"xy\"}",
        "{\"model_type\":\"xy\",\"text_config\":{\"model_type\":\"llama\"}}",
        "{\"model_type\":\"xy_text\",\"text_config\":{\"model_type\":\"xy_text\"}}",
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
    struct fm_tensor tensor[] = {{.name = "language_model.lm_headx"},
                                 {.name = "language_model.model.layers.1.a"},
                                 {.name = "lm_head.weight"},
                                 {.name = "model.embed.weight"},
                                 {.name = "model.language_model.layers.0.a"},
                                 {.name = "model.language_model.norm.weight"},
                                 {.name = "model.visual.b"},
                                 {.name = "xmodel.language_model.c"}};
    static const char *const want[] = {"language_model.lm_headx", "lm_head.weight",
                                       "model.embed.weight",      "model.layers.0.a",
                                       "model.layers.1.a",        "model.norm.weight",
                                       "model.visual.b",          "xmodel.language_model.c"};
    struct fm_safetensors st = {.tensor = tensor, .count = sizeof tensor / sizeof *tensor};
    fm_hftext_cut(&st);
    for (size_t i = 0; i < st.count; i++)
        assert_string_equal(st.tensor[i].name, want[i]);
    assert_non_null(fm_safetensors_find(&st, "model.norm.weight"));
}

TEST_MAIN(NULL, NULL)
