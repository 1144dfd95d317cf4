/* Extra tensors, which the decoder does not use: names that are theirs and names that are not, and
 * the number of their layers. */
#include "lib/family/extra.h"
#include "lib/family/family.h"
#include "tests/unit/test.h"

enum { L = 46 };

static const char *const counted[] = {"layers_ahead", "modules", NULL};
static const char *const apart[] = {"model.mtp_block.{x}.", "model.mtp_norm.{x}.", NULL};
static const struct fm_extra_form apart_form = {
    .name = apart, .mark = "model.mtp_norm.{x}.weight", .count = counted, .flag = "ahead"};

static const struct fm_model_family after = {.name = "after", .extra = &fm_extra_nextn},
                                    beside = {.name = "beside", .extra = &apart_form},
                                    without = {.name = "without"};

static struct fm_config config_of(const struct fm_model_family *family)
{
    return (struct fm_config){.family = family, .L = L};
}

TEST(names_decide_what_is_extra)
{
    struct fm_config c = config_of(&after);
    assert_int_equal(fm_extra_layer(&c, "model.layers.46.eh_proj.weight"), 0);
    assert_int_equal(fm_extra_layer(&c, "model.layers.46.mlp.experts.7.up_proj.weight"), 0);
    assert_int_equal(fm_extra_layer(&c, "model.layers.61.enorm.weight"), 15);
    static const char *const none[] = {
        "model.layers.45.eh_proj.weight",
        "model.layers.62.enorm.weight",
        "model.layers.046.enorm.weight",
        "model.layers.+46.enorm.weight",
        "model.layers.46",
        "model.layers.46.",
        "model.layers.-1.enorm.weight",
        "model.layers.4294967342.enorm.weight",
        "model.layers..enorm.weight",
        "lm_head.weight",
        "xmodel.layers.46.enorm.weight",
        "",
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (fm_extra_layer(&c, none[i]) >= 0)
            fail_msg("'%s' is accepted", none[i]);
    c = config_of(&without);
    assert_int_equal(fm_extra_layer(&c, "model.layers.46.eh_proj.weight"), -1);
    c = config_of(&beside);
    assert_int_equal(fm_extra_layer(&c, "model.mtp_block.0.mlp.experts.1.w"), 0);
    assert_int_equal(fm_extra_layer(&c, "model.mtp_norm.1.weight"), 1);
    assert_int_equal(fm_extra_layer(&c, "model.layers.46.eh_proj.weight"), -1);
}

static bool add(struct fm_extra *x, const struct fm_config *c, const char *name, uint64_t size)
{
    return fm_extra_add(x, c, &(struct fm_tensor){.name = name, .size = size});
}

TEST(extra_tensors_are_counted)
{
    struct fm_config c = config_of(&after);
    struct fm_extra x = {0};
    char text[FM_EXTRA_TEXT];
    assert_true(add(&x, &c, "model.layers.46.eh_proj.weight", 10));
    assert_true(add(&x, &c, "model.layers.48.shared_head.norm.weight", 3));
    assert_false(add(&x, &c, "model.layers.3.mlp.gate.weight", 5));
    assert_int_equal(x.tensors, 2);
    assert_int_equal(x.bytes, 13);
    fm_extra_print(text, &x);
    assert_string_equal(text, "46, 48");
    assert_int_equal(fm_extra_layers(&x), 2);
    /* Without its eh_proj, layer 48 may be a decoder layer that num_hidden_layers cuts off. */
    assert_fails(fm_extra_check(&x, &c, &err), FM_EFORMAT, "layer 48");
    assert_non_null(strstr(err.text, "'model.layers.48.eh_proj.weight' is missing"));
    assert_true(add(&x, &c, "model.layers.48.eh_proj.weight", 1));
    assert_ok(fm_extra_check(&x, &c, &err));
    cJSON *json = cJSON_CreateObject();
    fm_extra_json(json, &(struct fm_extra){0});
    assert_null(json->child);
    fm_extra_json(json, &x);
    char *printed = cJSON_PrintUnformatted(json);
    assert_string_equal(printed, "{\"extra\":{\"layers\":[46,48],\"tensors\":3,\"bytes\":14}}");
    free(printed);
    cJSON_Delete(json);
}

/* In a wrapper's text part, all tensors outside the modules of the table belong to other parts. */
TEST(a_wrapper_has_other_parts)
{
    static const struct fm_weight table[] = {
        {{"model.layers.{l}.a.weight", "layers.{l}.a", NULL}, 0, 0, "H", 0},
        {{"model.norm.weight", NULL, NULL}, 0, 0, "H", 0},
        {{"lm_head.weight", NULL, NULL}, 0, 0, "H", 0},
        {{NULL}, 0, 0, "", 0}};
    static const struct fm_model_family family = {
        .name = "wrapped", .extra = &fm_extra_nextn, .weight = table};
    static const char *const text[] = {"model.layers.3.b", "model.norm.bias", "lm_head.x",
                                       "layers.0.b"};
    static const char *const other[] = {"vision_tower.a", "model.visual.a", "model.normal.a",
                                        "lm_headx.a",     "layersx",        "model.layers"};
    struct fm_config c = config_of(&family);
    struct fm_extra x = {0};
    char names[FM_EXTRA_TEXT];
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_int_equal(fm_extra_layer(&c, other[i]), -1);
    c.part = true;
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        if (fm_extra_layer(&c, text[i]) >= 0)
            fail_msg("'%s' is accepted", text[i]);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_true(add(&x, &c, other[i], 1));
    fm_extra_print(names, &x);
    assert_true(fm_extra_parts(&x) && fm_extra_named(&x) && fm_extra_layers(&x) == 0);
    assert_string_equal(names, "");
    assert_true(add(&x, &c, "model.layers.46.eh_proj.weight", 1));
    assert_ok(fm_extra_check(&x, &c, &err));
    fm_extra_print(names, &x);
    assert_true(fm_extra_parts(&x) && !fm_extra_named(&x));
    assert_string_equal(names, "46");
    cJSON *json = cJSON_CreateObject();
    fm_extra_json(json, &x);
    char *printed = cJSON_PrintUnformatted(json);
    assert_string_equal(printed,
                        "{\"extra\":{\"layers\":[46],\"parts\":true,\"tensors\":7,\"bytes\":7}}");
    free(printed);
    cJSON_Delete(json);
}

/* The largest number of layers: the list of their numbers fits. */
TEST(all_layers_are_printed)
{
    struct fm_config c = config_of(&after);
    c.L = FM_LAYERS_MAX;
    struct fm_extra x = {0};
    char text[FM_EXTRA_TEXT], name[64];
    for (int i = 0; i < FM_EXTRA_LAYERS_MAX; i++) {
        snprintf(name, sizeof name, "model.layers.%d.enorm.weight", FM_LAYERS_MAX + i);
        assert_true(add(&x, &c, name, 1));
    }
    fm_extra_print(text, &x);
    assert_true(strlen(text) < sizeof text - 1);
    assert_non_null(strstr(text, "1038, 1039"));
}

static int read_keys(struct fm_config *c, const char *text, struct fm_err *err)
{
    cJSON *json = cJSON_Parse(text);
    int rc = fm_extra_read(c, &(struct fm_keys){.json = json}, err);
    cJSON_Delete(json);
    return rc;
}

TEST(config_json_gives_the_number_of_extra_layers)
{
    static const struct {
        const char *text;
        int layers;
    } cases[] = {{"{}", 0},
                 {"{\"layers_ahead\": 2}", 2},
                 {"{\"layers_ahead\": 0, \"modules\": 3}", 3},
                 {"{\"modules\": 3, \"ahead\": true}", 3},
                 {"{\"modules\": 3, \"ahead\": false}", 0},
                 {"{\"modules\": null}", 0}};
    struct fm_config c = config_of(&beside);
    char note[FM_EXTRA_NOTE];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(read_keys(&c, cases[i].text, &err));
        assert_int_equal(c.extra_layers, cases[i].layers);
    }
    assert_int_equal(read_keys(&c, "{\"modules\": 17}", &err), FM_ECONFIG);
    assert_string_equal(err.text, "modules is 17 (limit 16)");
    assert_true(read_keys(&c, "{\"modules\": -1}", &err) != FM_OK);
    assert_true(read_keys(&c, "{\"modules\": 1.5}", &err) != FM_OK);
    assert_true(read_keys(&c, "{\"ahead\": 1}", &err) != FM_OK);
    c.extra_layers = 1;
    fm_extra_note(note, &(struct fm_extra){.seen = 1}, &c);
    assert_string_equal(note, "");
    fm_extra_note(note, &(struct fm_extra){0}, &c);
    assert_string_equal(note, "config.json lists 1 layer for multi-token prediction, but the "
                              "checkpoint has 0");
    c = config_of(&without);
    assert_ok(read_keys(&c, "{\"modules\": 17}", &err));
}

TEST(indexers_are_refused)
{
    struct fm_config c = {.family = fm_families_find("deepseek_v3")};
    assert_ok(fm_extra_refuse(&c, "model.layers.0.self_attn.q_proj.weight", &err));
    assert_fails(fm_extra_refuse(&c, "model.layers.0.self_attn.indexer.wk.weight", &err),
                 FM_ECONFIG, "'model.layers.0.self_attn.indexer.wk.weight'");
}

TEST_MAIN(NULL, NULL)
