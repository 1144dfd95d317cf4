/*
 * Messages give decoder layers by their number in the model, even if some layers are dense and the
 * first layer of experts is not layer 0.
 */
#include "lib/learn/rank.h"
#include "lib/learn/recover.h"
#include "lib/learn/train.h"
#include "lib/stage/pack.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/stage.h"
#include "tests/unit/runs.h"
#include "tests/unit/test.h"

#define MODEL "golden/odd-qwen2" /* layers 1 and 5 have experts */

static struct runs *run_to(const char *input, const char *output)
{
    static struct runs r;
    runs_init(&r, input, output);
    r.run.inputs.model = MODEL;
    r.run.inputs.tokens[0].path = MODEL "/tokens.npy";
    return &r;
}

/* Write ranked, trained and recovered to the scratch directory. */
static int make_stages(void **state)
{
    struct fm_err err = {0};
    struct fm_rank_options rank;
    struct fm_rank_report ranked = {0};
    struct fm_train_options train;
    struct fm_train_report trained = {0};
    struct fm_recover_options recover;
    struct fm_recover_report recovered = {0};
    (void)state;
    fm_rank_defaults(&rank);
    assert_ok(fm_rank(&run_to(NULL, "ranked")->run, &rank, NULL, &ranked, &err));
    fm_rank_report_release(&ranked);
    fm_train_defaults(&train);
    train.method = &fm_method_saliency;
    train.budget_step = (struct fm_decimal){2, 10};
    assert_ok(fm_train(&run_to("ranked", "trained")->run, &train, NULL, &trained, &err));
    fm_train_report_release(&trained);
    fm_recover_defaults(&recover, &fm_recovery_experts);
    recover.steps = 1;
    assert_ok(fm_recover(&run_to("trained", "recovered")->run, &recover, NULL, &recovered, &err));
    fm_recover_report_release(&recovered);
    return 0;
}

/* Write to `to` the stream `from` with an adapter that overflows the weights of one expert in layer
 * m of those with experts. */
static void spoil(const char *to, const char *from, int m)
{
    struct fm_err err = {0};
    char dropped[FM_STAGE_DROPPED_BYTES] = "", path[512];
    static const int16_t moe[] = {1, 5};
    struct fm_bundle in = {0}, trained = {0};
    struct fm_adapter a = {0};
    cJSON *manifest = NULL;
    void *data;
    size_t size;
    assert_ok(fm_stage_open(&in, scratch(from), FM_MEMBER_ADAPTER, &err));
    assert_ok(fm_lorafile_open(&a, &in, &err));
    for (int part = FM_UP_A; part <= FM_UP_B; part++)
        *fm_adapter_part(&a, a.values, m, 2, (enum fm_lora)part) = 3e37f;
    assert_ok(fm_lorafile_pack(&a, moe, &data, &size, &err));
    assert_ok(fm_stage_open(&trained, scratch("trained"), FM_MEMBER_MASKS, &err));
    manifest = fm_stage_manifest(FM_STAGE_RECOVER, &trained, NULL, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-recover"), "options", cJSON_CreateObject());
    const cJSON *note = cJSON_GetObjectItemCaseSensitive(in.manifest, "adapter");
    cJSON_AddItemToObject(manifest, "adapter", cJSON_Duplicate(note, true));
    struct fm_stage_member member = {FM_MEMBER_ADAPTER, data, size};
    assert_ok(fm_stage_write(
        &(struct fm_run_options){.outputs.path = runs_path(path, to), .outputs.force = true},
        FM_STAGE_RECOVER, manifest, &trained, NULL, &member, 1, &err));
    free(data);
    fm_adapter_release(&a);
    fm_bundle_close(&trained);
    fm_bundle_close(&in);
}

TEST(a_merged_weight_that_is_not_finite_is_named)
{
    for (int m = 0; m < 2; m++) {
        struct fm_pack_report report;
        spoil("spoiled", "recovered", m);
        assert_fails(fm_pack(&run_to("spoiled", "spoiled.fm")->run, &(struct fm_pack_options){0},
                             &report, &err),
                     FM_EFORMAT, m ? "layer 5, expert 2: weight" : "layer 1, expert 2: weight");
    }
}

TEST_MAIN(make_stages, NULL)
