/* Test the choice of an export's member, its number of files, and its widths.  Every form must
 * verify against its bundle. */
#include <math.h>

#include "lib/base/names.h"
#include "tests/unit/exports.h"
#include "tests/unit/test.h"

/* ---- which member ---- */

/* Four decimals, which --list prints, name each member. */
TEST(every_member_is_chosen_by_its_printed_budget)
{
    struct fm_export_report r;
    struct fm_run_options run = run_to(scratch("never"));
    struct fm_export_options o = form_of(&fm_layout_ragged);
    for (int m = 0; m < GIVEN_BUDGETS; m++) {
        o.budget = round(1e4 * budget_of(m)) / 1e4;
        GIVEN_TRY(fm_export_plan(&run, &o, &r, &given_err));
        assert_int_equal(r.index, m);
    }
}

/* --fit counts every byte of the directory: a limit of a member's exact size admits it, and one
 * byte less admits only the next smaller one.  The written directory has the planned size. */
TEST(the_largest_member_that_fits_is_taken)
{
    for (int i = 0; !kind_of(i)->capped; i++) {
        struct fm_export_report all[GIVEN_BUDGETS], r;
        struct fm_export_options o = form(i);
        struct fm_run_options run = run_to(scratch("fit"));
        if (o.layout->cannot[FM_WITH_FIT])
            continue;
        for (int m = 0; m < GIVEN_BUDGETS; m++) {
            o.by = FM_BY_BUDGET;
            o.budget = budget_of(m);
            GIVEN_TRY(fm_export_plan(&run, &o, &all[m], &given_err));
        }
        for (int m = 0; m < GIVEN_BUDGETS; m++) {
            uint64_t size = all[m].bytes_out;
            int largest = 0, next = 0;
            while (all[largest].bytes_out > size)
                largest++;
            while (next < GIVEN_BUDGETS && all[next].bytes_out > size - 1)
                next++;
            o.by = FM_BY_FIT;
            o.fit = size;
            GIVEN_TRY(fm_export_plan(&run, &o, &r, &given_err));
            assert_int_equal(r.index, largest);
            o.fit = size - 1;
            int rc = fm_export_plan(&run, &o, &r, &err);
            assert_int_equal(rc, next < GIVEN_BUDGETS ? FM_OK : FM_EUSAGE);
            assert_true(rc != FM_OK || (r.index == next && r.bytes_out < size));
        }
        o.fit = all[2].bytes_out;
        r = export_as(scratch("fit"), o);
        assert_int_equal(directory_bytes(scratch("fit")), all[r.index].bytes_out);
    }
}

TEST(a_stream_is_counted_as_a_stream)
{
    for (int i = 0; !kind_of(i)->capped; i++) {
        size_t size;
        struct fm_export_report r = stream_as(scratch("export.tar"), form(i));
        free(scratch_read(scratch("export.tar"), &size));
        assert_int_equal(r.bytes_out, size);
        struct fm_export_options o = form(i);
        o.by = FM_BY_FIT;
        o.fit = size;
        struct fm_run_options run = run_to("-");
        if (o.layout->cannot[FM_WITH_FIT])
            continue;
        GIVEN_TRY(fm_export_plan(&run, &o, &r, &given_err));
        assert_true(r.bytes_out <= size);
    }
}

TEST(options_that_do_not_go_together_are_refused)
{
    struct fm_export_report r;
    struct fm_run_options run = run_to(scratch("never"));
    const struct fm_export_options bad[] = {
        {.layout = &fm_layout_elastic, .by = FM_BY_FIT, .fit = 1 << 20},
        {.layout = &fm_layout_native, .shard_bytes = 1 << 20, .budget = 0.4},
        {.layout = &fm_layout_ragged, .load_cap = true, .load_high = 1, .budget = 0.4},
        {.layout = &fm_layout_elastic, .load_cap = true, .load_low = 0.4, .load_high = 0.3},
        {.layout = &fm_layout_elastic, .load_cap = true, .load_low = -0.1, .load_high = 1},
        {.layout = &fm_layout_ragged, .pad_multiple = GIVEN_I + 1, .budget = 0.4},
        {.layout = &fm_layout_ragged, .base_model = "/home/x/model", .budget = 0.4}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fm_export_plan(&run, &bad[i], &r, &err), FM_EUSAGE);
    const struct fm_layout *layout = &fm_layout_ragged;
    assert_int_equal(fm_layouts_vllm(&layout, &err), FM_EUSAGE);
    assert_string_equal(
        err.text, "--for vllm needs layout layer; layout ragged is the same for all programs");
}

/* Properties that the choices of --layout, the list and its users rely on. */
TEST(every_layout_has_a_unique_name_and_a_form_in_the_list)
{
    char choices[256], *name, *rest = choices;
    int n = 0, forms = 0;
    strcpy(choices, FM_NAMES_CHOICES(FM_LAYOUT_ROWS));
    while ((name = strsep(&rest, "|"))) {
        assert_ptr_equal(fm_layouts_find(name), fm_layouts[n]);
        assert_string_equal(kind_of(n)->name, name);
        n++;
    }
    assert_null(fm_layouts[n]);
    assert_null(fm_layouts_find("rugged"));
    while (kind_of(forms))
        forms++;
    assert_int_equal(forms, n + 2);
    assert_string_equal(kind_of(n)->name, "layer-vllm");
    assert_string_equal(kind_of(n + 1)->name, "load-cap");
}

TEST(the_list_has_the_bytes_of_every_layout)
{
    struct fm_list list, stage;
    struct fm_export_report r;
    GIVEN_TRY(fm_list_read(&list, bundle, true, &given_err));
    GIVEN_TRY(fm_list_read(&stage, scratch("stage.fm"), true, &given_err));
    assert_true(list.packed && !stage.packed);
    assert_int_equal(list.params, list.row[0].params); /* row 0 is the full model */
    for (int i = 0; kind_of(i); i++) {
        for (int m = 0; m < GIVEN_BUDGETS; m++) {
            struct fm_export_options o = form(i);
            const struct fm_list_form *f = &list.row[m].form[i];
            o.by = o.load_cap ? FM_BY_DEFAULT : FM_BY_BUDGET;
            o.budget = list.row[m].budget;
            o.load_low = o.load_cap ? list.row[m].budget : 0;
            struct fm_run_options run = run_to(scratch("list"));
            GIVEN_TRY(fm_export_plan(&run, &o, &r, &given_err));
            assert_int_equal(f->files, r.bytes_out);
            assert_int_equal(f->tensors, stage.row[m].form[i].tensors);
        }
        export_as(scratch("list"), form(i));
        assert_int_equal(list.row[5].form[i].tensors, tensor_bytes(scratch("list")));
    }
    cJSON *json = cJSON_CreateObject();
    fm_list_json(json, &list);
    char *text = fm_json_print(json);
    cJSON_Delete(json);
    assert_non_null(strstr(text, "\"layer-vllm\": {"));
    free(text);
    fm_list_release(&list);
    fm_list_release(&stage);
}

/* ---- how many files ---- */

/* Every tensor of the index is in the file that it names, and the sizes add up. */
static void check_index(const char *dir)
{
    cJSON *index = read_json(dir, "model.safetensors.index.json");
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(index, "weight_map"), *entry;
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(index, "metadata");
    double total = cJSON_GetObjectItemCaseSensitive(metadata, "total_size")->valuedouble, sum = 0;
    cJSON_ArrayForEach(entry, map)
    {
        char path[1024];
        struct golden shard;
        snprintf(path, sizeof path, "%s/%s", dir, entry->valuestring);
        golden_open(&shard, path);
        const struct fm_tensor *t = fm_safetensors_find(&shard.st, entry->string);
        assert_non_null(t);
        sum += (double)t->size;
        golden_close(&shard);
    }
    assert_true(sum == total);
    cJSON_Delete(index);
}

TEST(shards_hold_no_more_than_they_may)
{
    for (int i = 0; !kind_of(i)->capped; i++) {
        struct fm_export_options o = form(i);
        char command[1024];
        if (o.layout->cannot[FM_WITH_SHARDS])
            continue;
        o.shard_bytes = 40000;
        struct fm_export_report r = export_as(scratch("shards"), o);
        assert_int_equal(directory_bytes(scratch("shards")), r.bytes_out);
        snprintf(command, sizeof command, "test $(ls %s/model-0*.safetensors | wc -l) -ge 4",
                 scratch("shards"));
        assert_int_equal(system(command), 0);
        check_index(scratch("shards"));
        expect_whole(scratch("shards"));
        stream_as(scratch("export.tar"), o);
        snprintf(command, sizeof command,
                 "cd %s && rm -rf un && mkdir un && tar xf export.tar -C un && diff -r un shards",
                 scratch_root);
        assert_int_equal(system(command), 0);
    }
}

/* ---- how wide ---- */

static void sum_widths(const char *dir, uint64_t *sum, bool *same_in_layers, uint32_t multiple)
{
    cJSON *json = read_json(dir, "fm-export.json");
    const cJSON *row, *k;
    *sum = 0;
    *same_in_layers = true;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(json, "widths"))
    {
        cJSON_ArrayForEach(k, row)
        {
            *sum += (uint64_t)k->valuedouble;
            *same_in_layers &= k->valuedouble == row->child->valuedouble;
            assert_true((uint32_t)k->valuedouble % multiple == 0 || k->valuedouble == GIVEN_I);
        }
    }
    cJSON_Delete(json);
}

TEST(padding_adds_real_channels_and_reports_their_bytes)
{
    for (int i = 0; !kind_of(i)->capped; i++) {
        struct fm_export_options o = form(i);
        uint64_t sum;
        bool same;
        struct fm_export_report plain = export_as(scratch("plain"), o);
        o.pad_multiple = 7;
        struct fm_export_report r = export_as(scratch("padded"), o);
        assert_int_equal(plain.channels_pad, 0);
        expect_whole(scratch("padded"));
        assert_true(r.channels_pad > 0);
        bool whole = o.layout == &fm_layout_padded || o.layout == &fm_layout_elastic;
        assert_int_equal(r.bytes_pad, whole ? 0 : r.channels_pad * 3 * GIVEN_H * 2);
        /* Headers are padded to whole pages, so the difference is that of the tensors. */
        if (!whole)
            assert_int_equal(r.bytes_weights - plain.bytes_weights, r.bytes_pad);
        sum_widths(scratch("padded"), &sum, &same, 7);
        assert_true(same || (!o.layout->level));
    }
}

/* A width inside a segment can only be checked with the bundle's weights. */
TEST(a_padded_width_needs_the_whole_bundle_and_every_byte_counts)
{
    struct fm_export_options o = form_of(&fm_layout_ragged);
    write_head();
    o.pad_multiple = 7;
    export_as(scratch("padded"), o);
    assert_int_equal(verify(scratch("padded"), scratch("head.fm")), FM_EFORMAT);
    assert_non_null(strstr(verify_said.text, "the complete bundle is needed"));
    /* The last channel of the last expert, first in down, then in gate_up. */
    static const char *const names[] = {"model.layers.2.mlp.experts.down",
                                        "model.layers.2.mlp.experts.gate_up"};
    for (int i = 0; i < 2; i++) {
        flip_tensor(scratch("padded/model.safetensors"), names[i], 2);
        assert_int_equal(verify(scratch("padded"), bundle), FM_EDIFF);
        assert_non_null(strstr(found, names[i]));
        assert_non_null(strstr(found, "layer 2, expert 4: channels"));
    }
}

TEST(a_layer_is_as_wide_as_its_widest_expert)
{
    const uint32_t *mask = given_widths() + 5 * GIVEN_L * GIVEN_E;
    struct fm_export_report r = export_as(scratch("layer"), form_of(&fm_layout_layer));
    assert_int_equal(r.index, 5);
    uint64_t kept = 0, sum;
    bool same;
    for (int i = 0; i < GIVEN_L * GIVEN_E; i++)
        kept += mask[i];
    sum_widths(scratch("layer"), &sum, &same, 1);
    assert_true(same);
    assert_int_equal(r.channels_layout, sum - kept);
    assert_int_equal(r.bytes_layout, (sum - kept) * 3 * GIVEN_H * 2);
    assert_true(r.channels_layout > 0);
}

/* ---- elastic ---- */

TEST(an_elastic_export_holds_every_member)
{
    export_as(scratch("elastic"), form_of(&fm_layout_elastic));
    cJSON *config = read_json(scratch("elastic"), "config.json");
    const cJSON *family = cJSON_GetObjectItemCaseSensitive(config, "fm_family");
    const cJSON *budgets = cJSON_GetObjectItemCaseSensitive(config, "fm_budgets");
    const uint32_t *widths = given_widths();
    assert_int_equal(cJSON_GetArraySize(family), GIVEN_BUDGETS);
    assert_int_equal(cJSON_GetArraySize(budgets), GIVEN_BUDGETS);
    const cJSON *member, *row, *k;
    cJSON_ArrayForEach(member, family)
    {
        assert_int_equal(cJSON_GetArraySize(member), GIVEN_L);
        cJSON_ArrayForEach(row, member) cJSON_ArrayForEach(k, row)
            assert_int_equal(k->valuedouble, *widths++);
    }
    /* The initial budget must be equal to one in the list. */
    double start = cJSON_GetObjectItemCaseSensitive(config, "fm_budget")->valuedouble;
    assert_true(start == cJSON_GetArrayItem(budgets, 5)->valuedouble);
    cJSON_Delete(config);
    struct golden made;
    golden_open(&made, scratch("elastic/model.safetensors"));
    for (int l = 0; l < GIVEN_L; l++) {
        char name[64];
        uint16_t value;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.budget", l);
        const struct fm_tensor *t = fm_safetensors_find(&made.st, name);
        assert_non_null(t);
        assert_true(t->dtype == FM_F16 && t->dims == 1 && t->shape[0] == 1);
        GIVEN_TRY(fm_file_read(&made.file, t->offset, &value, 2, &given_err));
        assert_int_equal(value, 0xbc00); /* -1 */
    }
    golden_close(&made);
}

TEST(every_member_of_an_elastic_export_is_padded)
{
    enum { PAD = 7 };
    struct fm_export_options o = form_of(&fm_layout_elastic);
    o.pad_multiple = PAD;
    export_as(scratch("elastic"), o);
    cJSON *config = read_json(scratch("elastic"), "config.json");
    const uint32_t *widths = given_widths();
    const cJSON *member, *row, *k;
    cJSON_ArrayForEach(member, cJSON_GetObjectItemCaseSensitive(config, "fm_family"))
        cJSON_ArrayForEach(row, member) cJSON_ArrayForEach(k, row)
    {
        uint32_t up = (*widths++ + PAD - 1) / PAD * PAD;
        assert_int_equal(k->valuedouble, up < GIVEN_I ? up : GIVEN_I);
    }
    assert_true(widths == given_widths() + GIVEN_BUDGETS * GIVEN_L * GIVEN_E);
    cJSON_Delete(config);
}

/* ---- the model card ---- */

TEST(a_card_names_license_and_base_model_and_no_path)
{
    for (int i = 0; !kind_of(i)->capped; i++) {
        struct fm_export_options o = form(i);
        size_t size;
        o.base_model = "some-org/some-model";
        export_as(scratch("card"), o);
        char *card = scratch_read(scratch("card/README.md"), &size);
        assert_memory_equal(card, "---\n", 4);
        assert_non_null(strstr(card, "\nbase_model: some-org/some-model\n"));
        assert_non_null(strstr(card, "\npipeline_tag: text-generation\n"));
        assert_non_null(strstr(card, "    fm-pack --export DIR --layout "));
        assert_null(strstr(card, scratch_root));
        assert_true((strstr(card, "lm_eval --model hf") != NULL) == !o.layout->tools_only);
        assert_true((strstr(card, "trust-remote-code") != NULL) == o.layout->modeling);
        free(card);
    }
}

TEST_MAIN(make_bundle, NULL)
