/* Elastic exports with a load cap: resident widths, results, and refusals. */
#include "tests/unit/exports.h"
#include "tests/unit/test.h"

/* Members 3 and 4 of the family: neither is the wider one in all experts. */
enum { FIRST = 3, LAST = 4, EXPERTS = GIVEN_L * GIVEN_E };
#define LOW 0.2
#define HIGH 0.35

static uint32_t resident[EXPERTS];

static int make_resident(void **state)
{
    const uint32_t *a = given_widths() + FIRST * EXPERTS, *b = a + EXPERTS;
    for (int i = 0; i < EXPERTS; i++)
        resident[i] = a[i] > b[i] ? a[i] : b[i];
    return make_bundle(state);
}

/* Check a width table in JSON, row by row. */
static void expect_widths(const cJSON *rows, const uint32_t *want)
{
    const cJSON *row, *k;
    int n = 0;
    cJSON_ArrayForEach(row, rows) cJSON_ArrayForEach(k, row)
    {
        assert_true(n < EXPERTS);
        assert_int_equal(k->valuedouble, want[n++]);
    }
    assert_int_equal(n, EXPERTS);
}

static void expect_cap(const cJSON *cap)
{
    assert_int_equal(cJSON_GetArraySize(cap), 2);
    assert_true(cJSON_GetArrayItem(cap, 0)->valuedouble == LOW);
    assert_true(cJSON_GetArrayItem(cap, 1)->valuedouble == HIGH);
}

TEST(an_export_has_the_widths_of_the_widest_of_its_members)
{
    struct fm_export_report r = export_as(scratch("cap"), capped(LOW, HIGH));
    assert_int_equal(r.index, FIRST);
    assert_int_equal(r.members, 2);
    cJSON *config = read_json(scratch("cap"), "config.json");
    const cJSON *family = cJSON_GetObjectItemCaseSensitive(config, "fm_family");
    const cJSON *budgets = cJSON_GetObjectItemCaseSensitive(config, "fm_budgets");
    expect_widths(cJSON_GetObjectItemCaseSensitive(config, "fm_widths"), resident);
    expect_cap(cJSON_GetObjectItemCaseSensitive(config, "fm_load_cap"));
    assert_int_equal(cJSON_GetArraySize(family), 2);
    assert_int_equal(cJSON_GetArraySize(budgets), 2);
    for (int i = 0; i < 2; i++)
        expect_widths(cJSON_GetArrayItem(family, i), given_widths() + (FIRST + i) * EXPERTS);
    assert_true(cJSON_GetArrayItem(budgets, 0)->valuedouble ==
                cJSON_GetObjectItemCaseSensitive(config, "fm_budget")->valuedouble);
    cJSON_Delete(config);
    cJSON *json = read_json(scratch("cap"), "fm-export.json");
    expect_widths(cJSON_GetObjectItemCaseSensitive(json, "widths"), resident);
    expect_cap(cJSON_GetObjectItemCaseSensitive(json, "load_cap"));
    cJSON_Delete(json);
}

TEST(the_tails_that_are_freed_are_counted_to_the_byte)
{
    struct fm_list list;
    uint64_t channels = EXPERTS * GIVEN_I;
    struct fm_export_report whole = export_as(scratch("whole"), form_of(&fm_layout_elastic));
    struct fm_export_report r = export_as(scratch("cap"), capped(LOW, HIGH));
    for (int i = 0; i < EXPERTS; i++)
        channels -= resident[i];
    assert_true(channels > 0);
    assert_int_equal(r.channels_freed, channels);
    assert_int_equal(r.bytes_freed, channels * 3 * GIVEN_H * 2);
    assert_int_equal(tensor_bytes(scratch("whole")) - tensor_bytes(scratch("cap")), r.bytes_freed);
    assert_int_equal(directory_bytes(scratch("cap")), r.bytes_out);
    assert_true(whole.bytes_freed == 0 && whole.members == GIVEN_BUDGETS);
    /* The list has the sizes for a cap without an upper limit. */
    GIVEN_TRY(fm_list_read(&list, bundle, true, &given_err));
    r = export_as(scratch("cap"), capped(list.row[FIRST].budget, 1));
    assert_int_equal(r.members, GIVEN_BUDGETS - FIRST);
    assert_int_equal(list.row[FIRST].form[list.kinds - 1].tensors, tensor_bytes(scratch("cap")));
    assert_int_equal(list.row[FIRST].form[list.kinds - 1].files, r.bytes_out);
    fm_list_release(&list);
}

static struct fm_verify_report compute(const char *path)
{
    assert_int_equal(verify_as(path, bundle, true, NULL), FM_OK);
    return verify_report;
}

/* The bundle's weights cut by the mask, the export with all members, and the one with a cap:
 * log-probabilities are equal in every bit, because a narrower expert is always a prefix. */
TEST(every_member_computes_what_it_does_at_full_width)
{
    for (int m = FIRST; m <= LAST; m++) {
        struct fm_export_options o = capped(LOW, HIGH), all = form_of(&fm_layout_elastic);
        o.by = all.by = FM_BY_BUDGET;
        o.budget = all.budget = budget_of(m);
        export_as(scratch("cap"), o);
        export_as(scratch("whole"), all);
        struct fm_verify_report cap = compute(scratch("cap")), whole = compute(scratch("whole"));
        assert_int_equal(cap.index, m);
        assert_true(cap.function && cap.logprob_diff_max == 0);
        assert_true(cap.loss == whole.loss && cap.loss > 0);
    }
}

static void expect_flip_found(const char *tensor, uint64_t from_end, const char *where)
{
    flip_tensor(scratch("cap/model.safetensors"), tensor, from_end);
    assert_int_equal(verify(scratch("cap"), bundle), FM_EDIFF);
    assert_non_null(strstr(found, tensor));
    assert_non_null(strstr(found, where));
}

/* The bundle's first members are enough, because the resident widths are boundaries of segments. */
TEST(every_byte_is_verified_by_the_checksums)
{
    write_head();
    export_as(scratch("cap"), capped(LOW, HIGH));
    assert_int_equal(verify(scratch("cap"), scratch("head.fm")), FM_OK);
    expect_flip_found("model.layers.2.mlp.experts.down", 2, "layer 2, expert 4: channels");
    export_as(scratch("cap"), capped(LOW, HIGH));
    uint64_t last = resident[EXPERTS - 1] * 2 * GIVEN_H * 2;
    expect_flip_found("model.layers.2.mlp.experts.gate_up", last + 2,
                      "layer 2, expert 3: channels");
}

/* The texts are checked, too: another cap, other members or another index do not match. */
TEST(a_cap_that_is_changed_in_its_text_is_found)
{
    static const char *const edits[] = {"s/\"load_cap\": .*/\"load_cap\": [0.1, 0.35],/",
                                        "s/\"load_cap\": .*/\"load_cap\": [0.2],/",
                                        "s/\"load_cap\": .*/\"load_cap\": [0.6, 0.7],/",
                                        "/\"load_cap\"/d", "s/\"index\": 3/\"index\": 5/"};
    char command[1024];
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        export_as(scratch("cap"), capped(LOW, HIGH));
        expect_whole(scratch("cap"));
        snprintf(command, sizeof command, "sed -i '%s' %s", edits[i],
                 scratch("cap/fm-export.json"));
        assert_int_equal(system(command), 0);
        int rc = verify(scratch("cap"), bundle);
        assert_true(rc == FM_EDIFF || rc == FM_EFORMAT);
    }
}

TEST(a_stream_and_its_shards_hold_the_same_files)
{
    struct fm_export_options o = capped(LOW, HIGH);
    char command[1024];
    size_t size;
    o.shard_bytes = 30000;
    export_as(scratch("cap"), o);
    expect_whole(scratch("cap"));
    struct fm_export_report r = stream_as(scratch("cap.tar"), o);
    free(scratch_read(scratch("cap.tar"), &size));
    assert_int_equal(r.bytes_out, size);
    snprintf(command, sizeof command,
             "cd %s && rm -rf un && mkdir un && tar xf cap.tar -C un && diff -r un cap && "
             "test $(ls cap/model-0*.safetensors | wc -l) -ge 3",
             scratch_root);
    assert_int_equal(system(command), 0);
}

/* Widths are rounded up before the maximum is taken, and counted as they are in the files. */
TEST(padding_is_counted_on_the_resident_widths)
{
    struct fm_export_options o = capped(LOW, HIGH);
    export_as(scratch("cap"), o);
    uint64_t plain = tensor_bytes(scratch("cap"));
    o.pad_multiple = 4;
    struct fm_export_report r = export_as(scratch("cap"), o);
    expect_whole(scratch("cap"));
    assert_true(r.bytes_pad > 0);
    assert_int_equal(tensor_bytes(scratch("cap")), plain + r.bytes_pad);
}

TEST(choices_outside_of_the_cap_are_refused)
{
    struct fm_export_report r;
    struct fm_run_options run = run_to(scratch("never"));
    struct {
        struct fm_export_options o;
        const char *what;
    } bad[3] = {{capped(LOW, HIGH), "--budget 0.4 is outside of --load-cap 0.2:0.35"},
                {capped(0.25, 0.3), "contains none of the family's 7 budgets"},
                {capped(LOW, HIGH), "--load-cap: layout layer has a single member"}};
    bad[0].o.by = FM_BY_BUDGET;
    bad[0].o.budget = 0.4;
    bad[2].o.layout = &fm_layout_layer;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(fm_export_plan(&run, &bad[i].o, &r, &err), FM_EUSAGE, bad[i].what);
    }
}

TEST_MAIN(make_resident, NULL)
