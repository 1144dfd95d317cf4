/* Stage streams: which members they carry and drop, and the checkpoint that they belong to. */
#include "formats/json/json.h"
#include "tests/unit/stages.h"
#include "tests/unit/test.h"

/* No list (all three layers have experts), layers 0 and 2, and values that are not lists of
 * increasing layer numbers. */
TEST(layers_with_experts_are_read_from_the_manifest)
{
    const char *bad[] = {"[]", "[2,0]", "[0,0]", "[0,3]", "[-1]", "[0.5]", "[\"0\"]", "{}", "7"};
    struct fm_ranking r = stages_ranking();
    struct fm_bundle b = stages_open(stages_write_rank("rank", &r, "score"));
    struct fm_stage_model m;
    cJSON *model = cJSON_GetObjectItemCaseSensitive(b.manifest, "model");
    assert_ok(fm_stage_model_read(&m, &b, &err));
    assert_int_equal(m.M, stages_config.L);
    assert_null(cJSON_GetObjectItemCaseSensitive(model, "moe_layers"));
    cJSON_AddItemToObject(model, "moe_layers", cJSON_Parse("[0,2]"));
    assert_ok(fm_stage_model_read(&m, &b, &err));
    assert_int_equal(m.L, 3);
    assert_int_equal(m.M, 2);
    assert_int_equal(m.moe[0], 0);
    assert_int_equal(m.moe[1], 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cJSON_ReplaceItemInObjectCaseSensitive(model, "moe_layers", cJSON_Parse(bad[i]));
        assert_fails(fm_stage_model_read(&m, &b, &err), FM_EFORMAT, "moe_layers");
    }
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

TEST(a_stream_carries_the_checkpoints_small_files)
{
    struct fm_ranking r = stages_ranking();
    struct fm_bundle b = stages_open(stages_write_rank("rank", &r, "score"));
    const struct fm_member *m = fm_bundle_find(&b, "carried/config.json");
    void *text;
    size_t size;
    assert_non_null(m);
    assert_ok(fm_bundle_read(&b, m, &text, &size, &err));
    assert_int_equal(size, stages_dir.config_bytes);
    assert_memory_equal(text, stages_dir.config, size);
    free(text);
    m = fm_bundle_find(&b, FM_MEMBER_BUILD);
    assert_non_null(m);
    assert_ok(fm_bundle_read(&b, m, &text, &size, &err));
    assert_non_null(strstr(text, "\"zstd\""));
    free(text);
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

TEST(training_again_drops_the_adapter_and_says_so)
{
    char dropped[FM_STAGE_DROPPED_BYTES], again[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = stages_open_rank(), unread;
    struct fm_bundle train = stages_open(stages_write_train("train", &in, NULL, dropped));
    struct fm_adapter a = stages_adapter();
    struct fm_bundle recover = stages_open(stages_write_recover("recover", &train, &a, NULL));
    struct fm_bundle b = stages_open(stages_write_train("again", &recover, NULL, again));
    assert_string_equal(dropped, "");
    assert_non_null(strstr(again, FM_MEMBER_ADAPTER));
    assert_null(fm_bundle_find(&b, FM_MEMBER_ADAPTER));
    assert_null(cJSON_GetObjectItemCaseSensitive(b.manifest, "adapter"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(b.manifest, "history")),
                     2);
    assert_non_null(fm_stage_history_of(&b, "fm-train"));
    assert_null(fm_stage_history_of(&b, "fm-recover"));
    /* No trace of it is left: the bytes are those of training on the ranking. */
    assert_int_equal(b.file.size, train.file.size);
    assert_true(fm_digest_equal(&b.member[0].digest, &train.member[0].digest));
    stages_expect(fm_stage_open(&unread, b.file.path, FM_MEMBER_ADAPTER, &err), &err, FM_ECONFIG,
                  "run fm-recover on it first");
    fm_adapter_release(&a);
    fm_bundle_close(&b);
    fm_bundle_close(&recover);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
}

TEST(another_checkpoint_is_refused_by_its_digests)
{
    struct fm_bundle b = stages_open_rank();
    assert_ok(fm_stage_model_check(&b, &stages_dir, &err));
    char was = stages_dir.config[stages_dir.config_bytes - 2];
    stages_dir.config[stages_dir.config_bytes - 2] = ' ';
    int code = fm_stage_model_check(&b, &stages_dir, &err);
    stages_dir.config[stages_dir.config_bytes - 2] = was;
    stages_expect(code, &err, FM_ECONFIG, "config.json has digest");
    stages_dir.shard[1].st.header_digest[1] ^= 1;
    code = fm_stage_model_check(&b, &stages_dir, &err);
    stages_dir.shard[1].st.header_digest[1] ^= 1;
    stages_expect(code, &err, FM_ECONFIG, "header digest");
    stages_dir.shards--;
    code = fm_stage_model_check(&b, &stages_dir, &err);
    stages_dir.shards++;
    stages_expect(code, &err, FM_ECONFIG, "1 shards");
    fm_bundle_close(&b);
}

TEST(a_config_of_another_model_is_refused)
{
    struct fm_ranking r = stages_ranking();
    struct fm_bundle b;
    struct fm_hfdir was = stages_dir;
    /* The identity is that of an edited text, but the carried file is the one on disk. */
    char *edited = malloc(stages_dir.config_bytes + 1);
    assert_non_null(edited);
    memcpy(edited, was.config, was.config_bytes);
    edited[was.config_bytes - 1] = ' ';
    stages_dir.config = edited;
    const char *path = stages_write_rank("spliced", &r, "score");
    stages_dir = was;
    stages_expect(fm_stage_open(&b, path, FM_MEMBER_RANKING, &err), &err, FM_EFORMAT,
                  "carried/config.json: digest is");
    fm_ranking_release(&r);
    free(edited);
}

TEST(invalid_histories_are_refused)
{
    static const char *const stages[] = {"train", "rank"};
    static const char *const histories[] = {
        "[{\"tool\": \"fm-rank\", \"options\": {}}]",
        "[{\"tool\": \"fm-rank\", \"options\": {}}, {\"tool\": \"fm-rank\", \"options\": {}}]"};
    static const char *const why[] = {"stage is 'train'", "is out of order"};
    for (int i = 0; i < 2; i++) {
        cJSON *m = cJSON_CreateObject();
        struct fm_bundle_writer *w;
        struct fm_bundle b;
        fm_json_add_uint(m, "schema", 1);
        cJSON_AddStringToObject(m, "suite", "fm");
        cJSON_AddStringToObject(m, "stage", stages[i]);
        cJSON_AddItemToObject(m, "model", stages_identity());
        cJSON_AddItemToObject(m, "history", cJSON_Parse(histories[i]));
        const char *path = scratch("bad");
        assert_ok(fm_bundle_begin(&w, path, true, m, NULL, 0, &err));
        assert_ok(fm_bundle_finish(w, &err));
        stages_expect(fm_stage_open(&b, path, NULL, &err), &err, FM_EFORMAT, why[i]);
    }
}

TEST(a_model_without_sums_of_its_weights_is_refused)
{
    struct fm_bundle_writer *w;
    struct fm_bundle b;
    cJSON *model = stages_identity(), *m = cJSON_CreateObject();
    cJSON_DeleteItemFromObject(model, "weights");
    fm_json_add_uint(m, "schema", 1);
    cJSON_AddStringToObject(m, "suite", "fm");
    cJSON_AddStringToObject(m, "stage", "rank");
    cJSON_AddItemToObject(m, "model", model);
    cJSON_AddItemToObject(m, "history", cJSON_Parse("[{\"tool\": \"fm-rank\", \"options\": {}}]"));
    const char *path = scratch("unsummed");
    assert_ok(fm_bundle_begin(&w, path, true, m, NULL, 0, &err));
    assert_ok(fm_bundle_finish(w, &err));
    stages_expect(fm_stage_open(&b, path, NULL, &err), &err, FM_EFORMAT,
                  "weights: 'layers' is not a list of 3 digests");
}

TEST_MAIN(stages_open_model, stages_close_model)
