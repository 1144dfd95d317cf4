/* Bundles that the tools write pass verification, and every change is found and named. */
#include "formats/bundle/maskset.h"
#include "lib/base/pool.h"
#include "tests/unit/test.h"
#include "tests/unit/verify.h"

static char *read_member(const struct fm_bundle *b, const char *name, size_t *size)
{
    void *data;
    GIVEN_TRY(fm_bundle_read(b, fm_bundle_find(b, name), &data, size, &given_err));
    return data;
}

struct change {
    const char *name;
    const void *data;
    size_t size;
};

static void (*edit_manifest)(cJSON *manifest); /* NULL: it is unchanged */

/* Write the bundle again with other bytes for some members and new digests: a valid tar with false
 * content. */
static void rewrite(const struct change *change, size_t changes)
{
    struct fm_bundle b = {0};
    struct fm_bundle_writer *w;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    struct fm_part *part = calloc(b.members, sizeof *part);
    size_t parts = 0;
    for (size_t i = 1; i < b.members; i++) {
        const struct fm_member *m = &b.member[i];
        if (strncmp(m->name, FM_MEMBER_PAD, strlen(FM_MEMBER_PAD)) == 0 ||
            strcmp(m->name, FM_MEMBER_CHECKSUMS) == 0)
            continue;
        struct fm_part p = {.name = m->name, .size = m->size, .from = &b, .member = m};
        p.aligned = m->offset % FM_BUNDLE_ALIGN == 0;
        for (size_t c = 0; c < changes; c++)
            if (strcmp(change[c].name, m->name) == 0)
                p = (struct fm_part){.name = m->name,
                                     .size = change[c].size,
                                     .data = change[c].data,
                                     .aligned = p.aligned};
        part[parts++] = p;
    }
    cJSON *manifest = cJSON_Duplicate(b.manifest, true);
    cJSON_DeleteItemFromObjectCaseSensitive(manifest, "members");
    if (edit_manifest)
        edit_manifest(manifest);
    GIVEN_TRY(fm_bundle_begin(&w, verify_edited, true, manifest, part, parts, &given_err));
    GIVEN_TRY(fm_bundle_finish(w, &given_err));
    free(part);
    fm_bundle_close(&b);
}

static long tensor_offset(const char *name, const char *member, const char *tensor)
{
    struct fm_bundle b = {0};
    struct fm_safetensors st = {0};
    GIVEN_TRY(fm_bundle_open(&b, name, &given_err));
    const struct fm_member *m = fm_bundle_find(&b, member);
    GIVEN_TRY(fm_safetensors_open(&st, &b.file, m->offset, m->size, &given_err));
    long at = (long)(fm_safetensors_find(&st, tensor)->offset - m->offset);
    fm_safetensors_close(&st);
    fm_bundle_close(&b);
    return at;
}

TEST(bundles_and_stage_streams_verify)
{
    assert_int_equal(verify(bundle, NULL), FM_OK);
    assert_string_equal(verify_report.kind, "bundle");
    assert_true(verify_report.items > GIVEN_L * GIVEN_E && verify_report.failed == 0);
    assert_int_equal(verify(scratch("stage.fm"), NULL), FM_OK);
    assert_string_equal(verify_report.kind, "stage");
    assert_int_equal(verify(given_stage("plain.fm", false), NULL), FM_OK);
}

TEST(a_flipped_byte_anywhere_in_the_weights_is_named)
{
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    int flips = 0;
    for (size_t i = 0; i < b.members; i++) {
        const struct fm_member *m = &b.member[i];
        if (strncmp(m->name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) != 0)
            continue;
        for (uint64_t at = 3; at < m->size; at += m->size / 9 + 1, flips++) {
            verify_copy_file(bundle, verify_edited);
            scratch_flip(verify_edited, (long)(m->offset + at));
            assert_int_equal(verify(verify_edited, NULL), FM_EDIFF);
            assert_non_null(strstr(found, m->name));
        }
    }
    assert_true(flips >= 4 * 9);
    fm_bundle_close(&b);
}

/* If digests match and the content is wrong, the status is 65. */
TEST(a_config_of_another_model_is_found)
{
    struct fm_bundle b = {0};
    size_t size;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    char *text = read_member(&b, "carried/config.json", &size);
    strstr(text, "5000.0")[0] = '6'; /* another rope_theta: the same sizes */
    rewrite(&(struct change){"carried/config.json", text, size}, 1);
    assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
    /* A finding, or the reason why the stream cannot be opened. */
    assert_true(strstr(found, "carried/config.json: digest is") ||
                strstr(verify_said.text, "carried/config.json: digest is"));
    free(text);
    fm_bundle_close(&b);
}

TEST(a_ranking_that_is_no_permutation_is_found)
{
    struct fm_bundle b = {0};
    size_t size;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    char *data = read_member(&b, FM_MEMBER_RANKING, &size);
    long at = tensor_offset(bundle, FM_MEMBER_RANKING, "layers.1.order");
    memcpy(data + at, data + at + 4, 4); /* the channel of rank 1 also takes rank 0 */
    rewrite(&(struct change){FM_MEMBER_RANKING, data, size}, 1);
    assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
    assert_memory_equal(found, FM_MEMBER_RANKING, strlen(FM_MEMBER_RANKING));
    free(data);
    fm_bundle_close(&b);
}

TEST(masks_outside_the_actions_or_off_their_budget_are_found)
{
    uint32_t widths[GIVEN_BUDGETS * GIVEN_L * GIVEN_E];
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    static const uint32_t wrong[] = {25, 4, 0, 38, UINT32_MAX};
    for (int i = 0; i < 5; i++) {
        void *frame;
        size_t size;
        memcpy(widths, given_widths(), sizeof widths);
        assert_int_not_equal(widths[2 * GIVEN_L * GIVEN_E + 7], wrong[i]);
        widths[2 * GIVEN_L * GIVEN_E + 7] = wrong[i];
        GIVEN_TRY(fm_maskset_pack(widths, sizeof widths / 4, &frame, &size, &given_err));
        rewrite(&(struct change){FM_MEMBER_MASKS, frame, size}, 1);
        assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
        assert_memory_equal(found, FM_MEMBER_MASKS, strlen(FM_MEMBER_MASKS));
        free(frame);
    }
    fm_bundle_close(&b);
}

TEST(every_bad_mask_is_found)
{
    uint32_t widths[GIVEN_BUDGETS * GIVEN_L * GIVEN_E];
    const size_t experts = GIVEN_L * GIVEN_E;
    void *frame;
    size_t size;
    memcpy(widths, given_widths(), sizeof widths);
    widths[1 * experts + 3] = widths[1 * experts + 5] = 25; /* no such action, and a wrong sum */
    widths[2 * experts + 7] = 4;                            /* only a wrong sum */
    GIVEN_TRY(fm_maskset_pack(widths, sizeof widths / 4, &frame, &size, &given_err));
    rewrite(&(struct change){FM_MEMBER_MASKS, frame, size}, 1);
    assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
    assert_non_null(strstr(found, "masks.zst: budget 1: 2 experts, the first: layer 0, expert 3"));
    assert_non_null(strstr(found, "masks.zst: budget 1: the widths remove"));
    assert_non_null(strstr(found, "masks.zst: budget 2: the widths remove"));
    free(frame);
}

static void set_rank(cJSON *manifest)
{
    cJSON *adapter = cJSON_GetObjectItemCaseSensitive(manifest, "adapter");
    cJSON_ReplaceItemInObjectCaseSensitive(adapter, "rank", cJSON_CreateNumber(4));
}

static void set_alpha(cJSON *manifest)
{
    cJSON *adapter = cJSON_GetObjectItemCaseSensitive(manifest, "adapter");
    cJSON_ReplaceItemInObjectCaseSensitive(adapter, "alpha", cJSON_CreateNumber(6.5));
}

static void set_mask(cJSON *manifest)
{
    cJSON *adapter = cJSON_GetObjectItemCaseSensitive(manifest, "adapter");
    cJSON_ReplaceItemInObjectCaseSensitive(adapter, "budget_index", cJSON_CreateNumber(4));
}

static void set_strategy(cJSON *manifest)
{
    cJSON *adapter = cJSON_GetObjectItemCaseSensitive(manifest, "adapter");
    cJSON_ReplaceItemInObjectCaseSensitive(adapter, "strategy", cJSON_CreateString("cross"));
}

static void forget_adapter(cJSON *manifest)
{
    cJSON_DeleteItemFromObjectCaseSensitive(manifest, "adapter");
}

TEST(an_adapter_that_differs_from_the_manifest_is_found)
{
    void (*const edit[])(cJSON *) = {set_rank, set_alpha, set_mask, set_strategy, forget_adapter};
    static const char *const says[] = {"rank 3", "alpha 6", "mask 4", "mask 0", "has no 'adapter'"};
    for (int i = 0; i < 5; i++) {
        edit_manifest = edit[i];
        rewrite(NULL, 0);
        assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
        const char *finding = strstr(found, FM_MEMBER_ADAPTER ": ");
        assert_true(finding && strstr(finding, says[i]));
        struct fm_pack_report made;
        struct fm_run_options run = {.inputs.model = GIVEN_MODEL,
                                     .inputs.stream = verify_edited,
                                     .outputs.path = scratch("again.fm"),
                                     .machine.device = "ref",
                                     .outputs.force = true};
        assert_int_equal(fm_pack(&run, &(struct fm_pack_options){0}, &made, &verify_said),
                         FM_EFORMAT);
    }
    edit_manifest = NULL;
}

TEST(a_nan_with_correct_checksums_is_found)
{
    struct fm_bundle b = {0};
    size_t size, segments_size;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    char *data = read_member(&b, "weights/layers-00002.safetensors", &size);
    char *segments = read_member(&b, FM_MEMBER_SEGMENTS, &segments_size);
    long at = tensor_offset(bundle, "weights/layers-00002.safetensors", "layers.2.down");
    long to = tensor_offset(bundle, FM_MEMBER_SEGMENTS, "layers.2.down");
    static const unsigned char nan[2] = {0x01, 0x7e};
    memcpy(data + at + 2 * 5, nan, 2);
    struct fm_digest digest = fm_digest_of(data + at, (size_t)4 * GIVEN_H * 2);
    memcpy(segments + to, &digest, sizeof digest);
    const struct change changes[] = {{"weights/layers-00002.safetensors", data, size},
                                     {FM_MEMBER_SEGMENTS, segments, segments_size}};
    rewrite(changes, 2);
    assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
    assert_string_equal(found, "weights/layers-00002.safetensors: layers.2.down: expert 0 has a "
                               "value that is not finite\n");
    /* Only the weights change: their digest in the tar matches, but their segment checksum does
     * not. */
    rewrite(changes, 1);
    assert_int_equal(verify(verify_edited, NULL), FM_EDIFF);
    assert_non_null(strstr(found, "channels 0 to 3 differ from their segment checksum"));
    free(data);
    free(segments);
    fm_bundle_close(&b);
}

/* A member without tensors, but with correct checksums. */
TEST(missing_weights_are_found)
{
    static char empty[] = "\2\0\0\0\0\0\0\0{}";
    static const char *const names[] = {"weights/rest.safetensors",
                                        "weights/layers-00001.safetensors"};
    for (int i = 0; i < 2; i++) {
        const struct change change = {names[i], empty, sizeof empty - 1};
        rewrite(&change, 1);
        assert_int_equal(verify(verify_edited, NULL), FM_EFORMAT);
        assert_non_null(strstr(found, names[i]));
        assert_non_null(strstr(found, "holds 0 tensors, but the model has "));
    }
}

TEST(what_the_weights_compute_is_compared)
{
    assert_int_equal(verify_as(bundle, NULL, true, GIVEN_MODEL), FM_OK);
    assert_true(verify_report.function && verify_report.loss > 0);
    /* The same roundings in the same order. */
    assert_true(verify_report.logprob_diff_max == 0);
    for (int i = 0; fm_layouts[i]; i++) {
        if (fm_layouts[i]->unread)
            continue;
        assert_int_equal(verify_as(verify_dir[i], bundle, true, NULL), FM_OK);
        assert_true(verify_report.function);
        printf("%s: %.3g\n", verify_report.kind, verify_report.logprob_diff_max);
    }
}

TEST(a_bundle_is_not_compared_with_another_checkpoint)
{
    assert_int_equal(verify_as(bundle, NULL, true, "golden/tiny-mixtral"), FM_ECONFIG);
    assert_non_null(strstr(verify_said.text, "golden/tiny-mixtral"));
    assert_false(verify_report.function);
}

TEST(findings_are_the_same_on_any_number_of_threads)
{
    char one[sizeof found];
    verify_copy_file(bundle, verify_edited);
    scratch_flip(verify_edited,
                 tensor_offset(bundle, "weights/layers-00000.safetensors", "layers.0.down") +
                     (long)(1 << 16));
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    for (size_t i = 0; i < b.members; i++)
        if (strncmp(b.member[i].name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) == 0)
            scratch_flip(verify_edited, (long)(b.member[i].offset + b.member[i].size - 7));
    fm_bundle_close(&b);
    assert_int_equal(verify(verify_edited, NULL), FM_EDIFF);
    memcpy(one, found, sizeof found);
    assert_ok(fm_pool_start(3, &err));
    for (int i = 0; i < 5; i++) {
        assert_int_equal(verify(verify_edited, NULL), FM_EDIFF);
        assert_string_equal(found, one);
    }
    fm_pool_stop();
}

TEST_MAIN(verify_make_all, NULL)
