/* Verification: what we write verifies, and everything that is changed is found and named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "formats/json.h"
#include "formats/maskset.h"
#include "lib/base/pool.h"
#include "lib/export.h"
#include "lib/pack.h"
#include "lib/verify.h"
#include "tests/given.h"

static char bundle[512], stage[512], dir[FM_LAYOUTS][600], edited[512];

/* Findings as text, a line each. */
static char found[65536];
static struct fm_err said;

static void keep_finding(void *self, const char *item, const char *what)
{
    size_t used = strlen(found);
    (void)self;
    snprintf(found + used, sizeof found - used, "%s: %s\n", item, what);
}

static struct fm_verify_report report;

static int verify_as(const char *target, const char *against, bool function, const char *model)
{
    struct fm_run_options run = {.model = model,
                                 .tokens = GIVEN_MODEL "/tokens.npy",
                                 .device = "ref",
                                 .memory = (uint64_t)256 << 20};
    struct fm_verify_options options = {.target = target,
                                        .against = against,
                                        .function = function,
                                        .batches = 2,
                                        .finding = keep_finding};
    said = (struct fm_err){0};
    found[0] = '\0';
    return fm_verify(&run, &options, &report, &said);
}

static int verify(const char *target, const char *against)
{
    return verify_as(target, against, false, NULL);
}

static void export_to(const char *path, enum fm_layout layout)
{
    struct fm_run_options run = {.input = bundle, .output = path, .force = true};
    struct fm_export_options options = {.layout = layout, .budget = 0.24};
    struct fm_export_report made;
    GIVEN_TRY(fm_export(&run, &options, &made, &given_err));
    assert_int_equal(made.index, 3);
}

static int make_all(void **unused)
{
    struct fm_pack_report made;
    (void)unused;
    snprintf(bundle, sizeof bundle, "%s", scratch("family.fm"));
    snprintf(edited, sizeof edited, "%s", scratch("edited.fm"));
    snprintf(stage, sizeof stage, "%s", given_stage("stage.fm", true));
    struct fm_run_options run = {
        .model = GIVEN_MODEL, .input = stage, .output = bundle, .device = "ref"};
    GIVEN_TRY(fm_pack(&run, &made, &given_err));
    for (int i = 0; i < FM_LAYOUTS; i++) {
        snprintf(dir[i], sizeof dir[i], "%s-%s", bundle, fm_layout_name((enum fm_layout)i));
        export_to(dir[i], (enum fm_layout)i);
    }
    return 0;
}

/* ---- changing files ---- */

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    scratch_check(f && fseek(f, at, SEEK_SET) == 0, path);
    int c = fgetc(f);
    scratch_check(c != EOF && fseek(f, at, SEEK_SET) == 0 && fputc(c ^ 0x10, f) != EOF, path);
    scratch_check(fclose(f) == 0, path);
}

static char *read_member(const struct fm_bundle *b, const char *name, size_t *size)
{
    void *data;
    GIVEN_TRY(fm_bundle_read(b, fm_bundle_find(b, name), &data, size, &given_err));
    return data;
}

/* The bundle again with other bytes for some members, every digest made new: an honest tar of
 * dishonest content. */
struct change {
    const char *name;
    const void *data;
    size_t size;
};

static void (*edit_manifest)(cJSON *manifest); /* NULL: it stays */

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
    GIVEN_TRY(fm_bundle_begin(&w, edited, true, manifest, part, parts, &given_err));
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

static void run_command(const char *fmt, ...) FM_PRINTF(1, 2);
static void run_command(const char *fmt, ...)
{
    char command[4096];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    assert_int_equal(system(command), 0);
}

static void copy_file(const char *from, const char *to)
{
    run_command("cp %s %s", from, to);
}

static void copy_dir(const char *from, const char *to)
{
    run_command("rm -rf %s && cp -r %s %s", to, from, to);
}

/* ---- tests ---- */

static void bundles_and_stage_streams_verify(void **unused)
{
    (void)unused;
    assert_int_equal(verify(bundle, NULL), FM_OK);
    assert_string_equal(report.kind, "bundle");
    assert_true(report.items > GIVEN_L * GIVEN_E && report.failed == 0);
    assert_int_equal(verify(stage, NULL), FM_OK);
    assert_string_equal(report.kind, "stage");
    assert_int_equal(verify(given_stage("plain.fm", false), NULL), FM_OK);
}

static void exports_verify_against_the_first_members(void **unused)
{
    (void)unused;
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    const struct fm_member *m = fm_bundle_find(&b, FM_MEMBER_SEGMENTS);
    long end = (long)(m->offset + (m->size + 511) / 512 * 512);
    copy_file(bundle, edited);
    assert_int_equal(truncate(edited, end), 0);
    for (int i = 0; i < FM_LAYOUTS; i++) {
        assert_int_equal(verify(dir[i], bundle), FM_OK);
        assert_string_equal(report.kind, fm_layout_name((enum fm_layout)i));
        assert_int_equal(report.index, 3);
        assert_int_equal(verify(dir[i], edited), FM_OK);
    }
    assert_int_equal(truncate(edited, end - 512), 0);
    assert_int_equal(verify(dir[0], edited), FM_EFORMAT);
    fm_bundle_close(&b);
}

static void a_flipped_byte_anywhere_in_the_weights_is_named(void **unused)
{
    (void)unused;
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    int flips = 0;
    for (size_t i = 0; i < b.members; i++) {
        const struct fm_member *m = &b.member[i];
        if (strncmp(m->name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) != 0)
            continue;
        for (uint64_t at = 3; at < m->size; at += m->size / 9 + 1, flips++) {
            copy_file(bundle, edited);
            flip(edited, (long)(m->offset + at));
            assert_int_equal(verify(edited, NULL), FM_EDIFF);
            assert_non_null(strstr(found, m->name));
        }
    }
    assert_true(flips >= 4 * 9);
    fm_bundle_close(&b);
}

static void a_flipped_byte_in_an_export_is_named(void **unused)
{
    (void)unused;
    for (int i = 0; i < FM_LAYOUTS; i++) {
        const char *to = scratch("copy");
        char file[600];
        struct fm_file f;
        struct fm_safetensors st = {0};
        copy_dir(dir[i], to);
        snprintf(file, sizeof file, "%s/%s", to,
                 i == FM_LAYOUT_NATIVE ? "layers-00001.safetensors" : "model.safetensors");
        GIVEN_TRY(fm_file_open(&f, file, &given_err));
        GIVEN_TRY(fm_safetensors_open(&st, &f, 0, f.size, &given_err));
        fm_file_close(&f);
        for (size_t t = 0; t < st.count; t += st.count / 7 + 1) {
            long at = (long)(st.tensor[t].offset + st.tensor[t].size / 3);
            flip(file, at);
            assert_int_equal(verify(to, bundle), FM_EDIFF);
            /* Gate and up are rebuilt together: the finding names the gate. */
            char name[FM_ST_NAME_BYTES_MAX + 1];
            snprintf(name, sizeof name, "%s", st.tensor[t].name);
            char *up = strstr(name, ".w3.");
            if (up)
                up[2] = '1';
            assert_non_null(strstr(found, name));
            flip(file, at);
        }
        assert_int_equal(verify(to, bundle), FM_OK);
        fm_safetensors_close(&st);
    }
}

static void a_tail_of_a_padded_export_must_be_zero(void **unused)
{
    (void)unused;
    const char *to = scratch("copy");
    char file[600];
    struct fm_file f;
    struct fm_safetensors st = {0};
    copy_dir(dir[FM_LAYOUT_PADDED], to);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    GIVEN_TRY(fm_file_open(&f, file, &given_err));
    GIVEN_TRY(fm_safetensors_open(&st, &f, 0, f.size, &given_err));
    const struct fm_tensor *t =
        fm_safetensors_find(&st, "model.layers.2.block_sparse_moe.experts.3.w1.weight");
    flip(file, (long)(t->offset + t->size - 1));
    fm_safetensors_close(&st);
    fm_file_close(&f);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "experts.3.w1.weight: layer 2, expert 3: channels from 15 on are "
                                  "not all zero"));
}

static void files_that_are_missing_extra_or_edited_are_named(void **unused)
{
    (void)unused;
    const char *to = scratch("copy");
    char file[600];
    copy_dir(dir[FM_LAYOUT_RAGGED], to);
    snprintf(file, sizeof file, "%s/stray.txt", to);
    copy_file(GIVEN_MODEL "/config.json", file);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_string_equal(found, "stray.txt: is no file of this export\n");
    assert_int_equal(remove(file), 0);
    snprintf(file, sizeof file, "%s/tokens.npy", to);
    assert_int_equal(remove(file), 0);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "tokens.npy: "));
    static const char *const text[] = {"config.json", "modeling_fm.py", "fm-export.json"};
    for (int i = 0; i < 3; i++) {
        copy_dir(dir[FM_LAYOUT_RAGGED], to);
        snprintf(file, sizeof file, "%s/%s", to, text[i]);
        FILE *f = fopen(file, "ab");
        scratch_check(f && fputc('\n', f) != EOF && fclose(f) == 0, file);
        assert_int_equal(verify(to, bundle), FM_EDIFF);
        assert_memory_equal(found, text[i], strlen(text[i]));
    }
    /* The model card is its owner's. */
    copy_dir(dir[FM_LAYOUT_RAGGED], to);
    snprintf(file, sizeof file, "%s/README.md", to);
    FILE *f = fopen(file, "ab");
    scratch_check(f && fputs("Mine.\n", f) >= 0 && fclose(f) == 0, file);
    assert_int_equal(verify(to, bundle), FM_OK);
}

static void an_export_of_another_budget_does_not_pass_for_this_one(void **unused)
{
    (void)unused;
    const char *to = scratch("copy");
    for (int i = 0; i < FM_LAYOUTS; i++) {
        copy_dir(dir[i], to);
        run_command("sed -i 's/\"index\": 3/\"index\": 1/' %s/fm-export.json", to);
        assert_int_equal(verify(to, bundle), FM_EDIFF);
        bool shapes = i != FM_LAYOUT_ELASTIC && i != FM_LAYOUT_PADDED;
        const char *all = i == FM_LAYOUT_ELASTIC ? "config.json: differs" : "layer";
        assert_non_null(strstr(found, shapes ? "has another type or shape" : all));
    }
}

static void an_export_that_claims_what_cannot_be_is_malformed(void **unused)
{
    (void)unused;
    static const char *const edit[] = {"s/\"pad_multiple\": 1/\"pad_multiple\": 0/",
                                       "s/\"pad_multiple\": 1/\"pad_multiple\": 38/",
                                       "s/\"pad_multiple\": 1/\"pad_multiple\": 5000000000/",
                                       "s/\"any\"/\"vllm\"/",
                                       "s/\"shard_size\": 4/\"shard_size\": -4/",
                                       "s/\"layout\": \"ragged/\"layout\": \"rugged/"};
    const char *to = scratch("copy");
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        copy_dir(dir[FM_LAYOUT_RAGGED], to);
        run_command("sed -i '%s' %s/fm-export.json", edit[i], to);
        assert_int_equal(verify(to, bundle), FM_EFORMAT);
    }
    /* One byte a shard is only many files, and none of them there. */
    copy_dir(dir[FM_LAYOUT_RAGGED], to);
    run_command("sed -i 's/\"shard_size\": [0-9]*/\"shard_size\": 1/' %s/fm-export.json", to);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "model-00001-of-"));
}

/* Digests hold and the content is wrong: 65. */
static void a_config_of_another_model_is_found(void **unused)
{
    (void)unused;
    struct fm_bundle b = {0};
    size_t size;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    char *text = read_member(&b, "carried/config.json", &size);
    strstr(text, "5000.0")[0] = '6'; /* another rope_theta: the same sizes */
    rewrite(&(struct change){"carried/config.json", text, size}, 1);
    assert_int_equal(verify(edited, NULL), FM_EFORMAT);
    /* A finding, or already the reason why the stream is not opened. */
    assert_true(strstr(found, "carried/config.json: digest is") ||
                strstr(said.text, "carried/config.json: digest is"));
    free(text);
    fm_bundle_close(&b);
}

static void a_ranking_that_is_no_permutation_is_found(void **unused)
{
    (void)unused;
    struct fm_bundle b = {0};
    size_t size;
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    char *data = read_member(&b, FM_MEMBER_RANKING, &size);
    long at = tensor_offset(bundle, FM_MEMBER_RANKING, "layers.1.order");
    memcpy(data + at, data + at + 4, 4); /* rank 0 is rank 1 again */
    rewrite(&(struct change){FM_MEMBER_RANKING, data, size}, 1);
    assert_int_equal(verify(edited, NULL), FM_EFORMAT);
    assert_memory_equal(found, FM_MEMBER_RANKING, strlen(FM_MEMBER_RANKING));
    free(data);
    fm_bundle_close(&b);
}

static void masks_outside_the_actions_or_off_their_budget_are_found(void **unused)
{
    (void)unused;
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
        assert_int_equal(verify(edited, NULL), FM_EFORMAT);
        assert_memory_equal(found, FM_MEMBER_MASKS, strlen(FM_MEMBER_MASKS));
        free(frame);
    }
    fm_bundle_close(&b);
}

static void every_bad_mask_is_found(void **unused)
{
    (void)unused;
    uint32_t widths[GIVEN_BUDGETS * GIVEN_L * GIVEN_E];
    const size_t experts = GIVEN_L * GIVEN_E;
    void *frame;
    size_t size;
    memcpy(widths, given_widths(), sizeof widths);
    widths[1 * experts + 3] = widths[1 * experts + 5] = 25; /* not in the actions, and the sum */
    widths[2 * experts + 7] = 4;                            /* the sum alone */
    GIVEN_TRY(fm_maskset_pack(widths, sizeof widths / 4, &frame, &size, &given_err));
    rewrite(&(struct change){FM_MEMBER_MASKS, frame, size}, 1);
    assert_int_equal(verify(edited, NULL), FM_EFORMAT);
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

static void an_adapter_that_is_not_the_manifest_s_is_found(void **unused)
{
    (void)unused;
    void (*const edit[])(cJSON *) = {set_rank, set_alpha, set_mask, set_strategy, forget_adapter};
    static const char *const says[] = {"rank 3", "alpha 6", "mask 4", "mask 0", "has no 'adapter'"};
    for (int i = 0; i < 5; i++) {
        edit_manifest = edit[i];
        rewrite(NULL, 0);
        assert_int_equal(verify(edited, NULL), FM_EFORMAT);
        assert_memory_equal(found, FM_MEMBER_ADAPTER, strlen(FM_MEMBER_ADAPTER));
        assert_non_null(strstr(found, says[i]));
        struct fm_pack_report made;
        struct fm_run_options run = {.model = GIVEN_MODEL,
                                     .input = edited,
                                     .output = scratch("again.fm"),
                                     .device = "ref",
                                     .force = true};
        assert_int_equal(fm_pack(&run, &made, &said), FM_EFORMAT);
    }
    edit_manifest = NULL;
}

static void a_nan_under_right_checksums_is_found(void **unused)
{
    (void)unused;
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
    assert_int_equal(verify(edited, NULL), FM_EFORMAT);
    assert_string_equal(found, "weights/layers-00002.safetensors: layers.2.down: expert 0 has a "
                               "value that is not finite\n");
    /* Weights of another bundle under this one's segments: the digests of the tar hold. */
    rewrite(changes, 1);
    assert_int_equal(verify(edited, NULL), FM_EDIFF);
    assert_non_null(strstr(found, "channels 0 to 3 differ from their segment checksum"));
    free(data);
    free(segments);
    fm_bundle_close(&b);
}

static void what_the_weights_compute_is_compared(void **unused)
{
    (void)unused;
    assert_int_equal(verify_as(bundle, NULL, true, GIVEN_MODEL), FM_OK);
    assert_true(report.function && report.loss > 0);
    /* The same roundings in the same order. */
    assert_true(report.logprob_diff_max == 0);
    for (int i = 0; i < FM_LAYOUTS; i++) {
        assert_int_equal(verify_as(dir[i], bundle, true, NULL), FM_OK);
        assert_true(report.function);
        printf("%s: %.3g\n", report.kind, report.logprob_diff_max);
    }
}

static void a_bundle_is_not_compared_with_another_checkpoint(void **unused)
{
    (void)unused;
    assert_int_equal(verify_as(bundle, NULL, true, "golden/tiny-mixtral"), FM_ECONFIG);
    assert_non_null(strstr(said.text, "golden/tiny-mixtral"));
    assert_false(report.function);
}

static void findings_are_the_same_on_any_number_of_threads(void **unused)
{
    (void)unused;
    struct fm_err err = {0};
    char one[sizeof found];
    copy_file(bundle, edited);
    flip(edited, tensor_offset(bundle, "weights/layers-00000.safetensors", "layers.0.down") +
                     (long)(1 << 16));
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    for (size_t i = 0; i < b.members; i++)
        if (strncmp(b.member[i].name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) == 0)
            flip(edited, (long)(b.member[i].offset + b.member[i].size - 7));
    fm_bundle_close(&b);
    assert_int_equal(verify(edited, NULL), FM_EDIFF);
    memcpy(one, found, sizeof found);
    assert_int_equal(fm_pool_start(3, &err), FM_OK);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(verify(edited, NULL), FM_EDIFF);
        assert_string_equal(found, one);
    }
    fm_pool_stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bundles_and_stage_streams_verify),
        cmocka_unit_test(exports_verify_against_the_first_members),
        cmocka_unit_test(a_flipped_byte_anywhere_in_the_weights_is_named),
        cmocka_unit_test(a_flipped_byte_in_an_export_is_named),
        cmocka_unit_test(a_tail_of_a_padded_export_must_be_zero),
        cmocka_unit_test(files_that_are_missing_extra_or_edited_are_named),
        cmocka_unit_test(an_export_of_another_budget_does_not_pass_for_this_one),
        cmocka_unit_test(an_export_that_claims_what_cannot_be_is_malformed),
        cmocka_unit_test(a_config_of_another_model_is_found),
        cmocka_unit_test(a_ranking_that_is_no_permutation_is_found),
        cmocka_unit_test(masks_outside_the_actions_or_off_their_budget_are_found),
        cmocka_unit_test(every_bad_mask_is_found),
        cmocka_unit_test(an_adapter_that_is_not_the_manifest_s_is_found),
        cmocka_unit_test(a_nan_under_right_checksums_is_found),
        cmocka_unit_test(what_the_weights_compute_is_compared),
        cmocka_unit_test(a_bundle_is_not_compared_with_another_checkpoint),
        cmocka_unit_test(findings_are_the_same_on_any_number_of_threads),
    };
    return cmocka_run_group_tests(tests, make_all, NULL);
}
