/* Families of masks in a stage stream can be read as they were written; invalid ones are refused.
 */
#include "tests/unit/stages.h"
#include "tests/unit/test.h"

TEST(a_family_reads_back)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_bundle b = stages_open(stages_write_train("train", &in, NULL, dropped));
    struct fm_actions actions = stages_actions();
    struct fm_masks f = stages_family(&actions, 4);
    struct fm_budgets back;
    assert_ok(fm_budgets_open(&back, &b, &err));
    assert_int_equal(back.masks.count, 4);
    assert_int_equal(back.actions.count, actions.count);
    assert_memory_equal(back.actions.width, actions.width, 4 * sizeof *actions.width);
    assert_memory_equal(back.masks.widths, f.widths,
                        (size_t)(4 * stages_config.M * stages_config.E) * sizeof *f.widths);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(back.masks.mask[i].removed, f.mask[i].removed);
        assert_int_equal(back.masks.mask[i].method, f.mask[i].method);
        assert_true(back.masks.mask[i].quality.ce == f.mask[i].quality.ce);
        assert_true(back.masks.mask[i].quality.agree == f.mask[i].quality.agree);
        assert_int_equal(back.masks.mask[i].quality.recovered, f.mask[i].quality.recovered);
        assert_true(back.budget[i].params ==
                    fm_config_params(&stages_config, fm_masks_widths(&f, i)));
    }
    assert_int_equal(back.budget[0].bytes, fm_stage_tensor_bytes(&stages_dir, &stages_config));
    assert_non_null(fm_bundle_find(&b, FM_MEMBER_RANKING));
    fm_budgets_release(&back);
    fm_masks_release(&f);
    fm_bundle_close(&b);
    fm_bundle_close(&in);
}

static cJSON *budget_of(cJSON *manifest, int b)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(manifest, "budgets"), b);
}

static void set_number(cJSON *object, const char *key, double value)
{
    assert_true(cJSON_ReplaceItemInObjectCaseSensitive(object, key, cJSON_CreateNumber(value)));
}

static void edit_removed(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 2), "removed", 3);
}
static void edit_width(cJSON *m, uint32_t *w)
{
    (void)m;
    w[2 * stages_config.M * stages_config.E + 7] -= 1;
}
static void edit_order(cJSON *m, uint32_t *w)
{
    int experts = stages_config.M * stages_config.E;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "budgets");
    cJSON *one = cJSON_DetachItemFromArray(a, 1), *three = cJSON_DetachItemFromArray(a, 2);
    cJSON_AddItemToArray(a, one);
    cJSON_AddItemToArray(a, three);
    set_number(budget_of(m, 1), "index", 1);
    set_number(one, "index", 2);
    for (int i = 0; i < experts; i++) {
        uint32_t t = w[experts + i];
        w[experts + i] = w[2 * experts + i];
        w[2 * experts + i] = t;
    }
}
static void edit_same(cJSON *m, uint32_t *w)
{
    size_t experts = (size_t)stages_config.M * (size_t)stages_config.E;
    cJSON *again = cJSON_Duplicate(budget_of(m, 1), true);
    set_number(again, "index", 2);
    assert_true(cJSON_ReplaceItemInArray(cJSON_GetObjectItemCaseSensitive(m, "budgets"), 2, again));
    memcpy(w + 2 * experts, w + experts, experts * sizeof *w);
}
static void edit_budget(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "budget", 0.5);
}
static void edit_params(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "params", 1);
}
static void edit_active(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "params_active", 7);
}
static void edit_bytes(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "bytes", 4096);
}
static void edit_all_bytes(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 0), "bytes", 4096);
}
static void edit_step(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "step", 20001);
}
static void edit_summary(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(cJSON_GetObjectItemCaseSensitive(budget_of(m, 1), "widths"), "min", 36);
}
static void edit_method(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_ReplaceItemInObjectCaseSensitive(budget_of(m, 1), "method", cJSON_CreateString("magic"));
}
static void edit_index(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "index", 2);
}
static void edit_count(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_DeleteItemFromArray(cJSON_GetObjectItemCaseSensitive(m, "budgets"), 3);
}
static void edit_action(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "actions");
    cJSON_ReplaceItemInArray(cJSON_GetObjectItemCaseSensitive(a, "widths"), 0,
                             cJSON_CreateNumber(5));
}
static void edit_ratio(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "actions");
    cJSON_ReplaceItemInArray(cJSON_GetObjectItemCaseSensitive(a, "ratios"), 0,
                             cJSON_CreateString("1e-1"));
}
static void edit_agree(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(cJSON_GetObjectItemCaseSensitive(budget_of(m, 1), "quality"), "agree", 1.5);
}
static void edit_gone(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_DeleteItemFromObjectCaseSensitive(m, "budgets");
}

TEST(invalid_families_are_refused)
{
    static const struct {
        void (*edit)(cJSON *manifest, uint32_t *widths);
        const char *why;
    } cases[] = {
        {edit_removed, "budget 2: the widths remove"},
        {edit_width, "budget 2: layer 1, expert 2: width 36 is not in the action set"},
        {edit_order, "budget 2: removes"},
        {edit_same, "budget 2: removes"},
        {edit_budget, "budget 1: budget is 0.5"},
        {edit_params, "budget 1: params is 1"},
        {edit_active, "budget 1: params_active is 7"},
        {edit_bytes, "budget 1: bytes is 4096"},
        {edit_all_bytes, "budget 0: bytes is 4096"},
        {edit_step, "budget 1: step is 20001"},
        {edit_summary, "budget 1: the summary"},
        {edit_method, "'magic'"},
        {edit_index, "budget 1: index is 2"},
        {edit_count, "the manifest implies"},
        {edit_action, "width 0 is not 4"},
        {edit_ratio, "not a decimal"},
        {edit_agree, "'agree' is 1.5"},
        {edit_gone, "'budgets' is missing"},
    };
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fm_budgets back;
        struct fm_bundle b = stages_open(stages_write_train("bad", &in, cases[i].edit, dropped));
        int code = fm_budgets_open(&back, &b, &err);
        fm_bundle_close(&b);
        stages_expect(code, &err, FM_EFORMAT, cases[i].why);
    }
    fm_bundle_close(&in);
}

/* Ratios whose widths are rounded to the same number are merged; here 1 is merged into a smaller
 * one. */
TEST(merged_actions_read_back)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank();
    struct fm_actions actions;
    cJSON *manifest;
    void *frame;
    size_t size;
    assert_ok(fm_actions_parse(&actions, "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", stages_config.I,
                               16, &err));
    assert_int_equal(actions.count, 3);
    struct fm_masks f = stages_family(&actions, 2);
    manifest = fm_stage_manifest(FM_STAGE_TRAIN, &in, NULL, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-train"), "options", cJSON_CreateObject());
    assert_ok(fm_budgets_pack(&f, &actions, &stages_config,
                              fm_stage_tensor_bytes(&stages_dir, &stages_config), FM_F16, manifest,
                              &frame, &size, &err));
    struct fm_bundle b = stages_open(
        stages_write("merged", FM_STAGE_TRAIN, &in, manifest, FM_MEMBER_MASKS, frame, size));
    struct fm_budgets back;
    assert_ok(fm_budgets_open(&back, &b, &err));
    assert_int_equal(back.actions.count, 3);
    assert_int_equal(back.actions.width[2], stages_config.I);
    fm_budgets_release(&back);
    fm_masks_release(&f);
    fm_bundle_close(&b);
    fm_bundle_close(&in);
    free(frame);
}

TEST_MAIN(stages_open_model, stages_close_model)
