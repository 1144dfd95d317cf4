/* Packing and exporting give the right contents, and the same bytes however they are run. */
#include <fcntl.h>
#include <math.h>

#include "lib/base/pool.h"
#include "lib/export/export.h"
#include "lib/export/list.h"
#include "lib/stage/pack.h"
#include "tests/unit/given.h"
#include "tests/unit/test.h"

static struct fm_run_options run_for(const char *input, const char *output)
{
    return (struct fm_run_options){.inputs.model = GIVEN_MODEL,
                                   .inputs.stream = input,
                                   .outputs.path = output,
                                   .machine.device = "ref",
                                   .outputs.force = true};
}

static void pack(const char *stage, const char *output)
{
    struct fm_run_options run = run_for(stage, output);
    struct fm_pack_report report;
    struct fm_err err = {0};
    if (fm_pack(&run, &(struct fm_pack_options){0}, &report, &err) != FM_OK)
        golden_die(&err);
}

/* Standard output is a file, but is written without seeking, as if it were a pipe. */
static int run_to_stdout(const struct fm_run_options *run, const char *output, struct fm_err *err)
{
    struct fm_pack_report report;
    fflush(stdout);
    int saved = dup(1);
    FILE *f = fopen(output, "wb");
    scratch_check(f && dup2(fileno(f), 1) == 1, output);
    int rc = fm_pack(run, &(struct fm_pack_options){0}, &report, err);
    scratch_check(dup2(saved, 1) == 1, "dup2");
    close(saved);
    fclose(f);
    return rc;
}

static void pack_to_stdout(const char *stage, const char *output)
{
    struct fm_run_options run = run_for(stage, "-");
    struct fm_err err = {0};
    if (run_to_stdout(&run, output, &err) != FM_OK)
        golden_die(&err);
}

TEST(a_file_and_a_pipe_get_the_same_bytes)
{
    for (int adapter = 0; adapter < 2; adapter++) {
        const char *stage = given_stage("in.fm", adapter);
        pack(stage, scratch("file.fm"));
        pack_to_stdout(stage, scratch("pipe.fm"));
        assert_true(scratch_same(scratch("file.fm"), scratch("pipe.fm")));
    }
}

/* Flip a bit of the last tensor of a shard when the second pass begins, without changing the
 * file's times. */
static void change_shard(void *self, const char *stage, uint64_t done, uint64_t total,
                         const char *unit)
{
    char **shard = self;
    struct stat st;
    (void)done, (void)total, (void)unit;
    if (!*shard || strcmp(stage, "weights") != 0)
        return;
    scratch_check(stat(*shard, &st) == 0, *shard);
    scratch_flip(*shard, -2);
    struct timespec times[2] = {st.st_atim, st.st_mtim};
    scratch_check(utimensat(AT_FDCWD, *shard, times, 0) == 0, *shard);
    *shard = NULL;
}

TEST(a_checkpoint_that_changes_between_two_readings_is_refused)
{
    char model[512], shard[600], command[1200], *once = shard;
    const char *stage = given_stage("in.fm", false);
    snprintf(model, sizeof model, "%s", scratch("model"));
    snprintf(shard, sizeof shard, "%s/model-00002-of-00002.safetensors", model);
    snprintf(command, sizeof command, "cp -r %s %s", GIVEN_MODEL, model);
    assert_int_equal(system(command), 0);
    struct fm_run_options run = run_for(stage, "-");
    run.inputs.model = model;
    assert_ok(run_to_stdout(&run, scratch("whole.fm"), &err));
    run.progress = (struct fm_progress){.report = change_shard, .self = &once};
    assert_int_equal(run_to_stdout(&run, scratch("cut.fm"), &err), FM_EIO);
    assert_null(once);
    assert_non_null(strstr(err.text, "changed between the first reading"));
    struct fm_bundle b = {0};
    assert_int_equal(fm_bundle_open(&b, scratch("cut.fm"), &err), FM_EFORMAT);
    fm_bundle_close(&b);
}

TEST(one_thread_and_three_give_the_same_bytes)
{
    const char *stage = given_stage("in.fm", true);
    pack(stage, scratch("one.fm"));
    assert_ok(fm_pool_start(3, &err));
    pack(stage, scratch("three.fm"));
    pack_to_stdout(stage, scratch("pipe.fm"));
    fm_pool_stop();
    assert_true(scratch_same(scratch("one.fm"), scratch("three.fm")));
    assert_true(scratch_same(scratch("one.fm"), scratch("pipe.fm")));
}

/* ---- bytes that are the same on every machine ---- */

#define CHECKSUMS "golden/CHECKSUMS"

static char sums[65536];

static void add_sum(const char *folder, const char *name, const void *data, size_t size)
{
    char hex[FM_DIGEST_HEX];
    struct fm_digest d = fm_digest_of(data, size);
    size_t used = strlen(sums);
    fm_digest_hex(hex, &d);
    snprintf(sums + used, sizeof sums - used, "%s  %s/%s\n", hex, folder, name);
}

/* Members whose bytes do not depend on library versions. */
static void sum_bundle(const char *path)
{
    struct fm_bundle b = {0};
    struct fm_budgets budgets = {0};
    GIVEN_TRY(fm_bundle_open(&b, path, &given_err));
    GIVEN_TRY(fm_budgets_open(&budgets, &b, &given_err));
    for (size_t i = 0; i < b.members; i++) {
        const char *name = b.member[i].name;
        void *data;
        size_t size;
        if (strcmp(name, FM_MEMBER_MANIFEST) == 0 || strcmp(name, FM_MEMBER_BUILD) == 0 ||
            strcmp(name, FM_MEMBER_CHECKSUMS) == 0 || strncmp(name, FM_MEMBER_PAD, 5) == 0)
            continue;
        if (strcmp(name, FM_MEMBER_MASKS) == 0) {
            add_sum("bundle", "masks", budgets.masks.widths,
                    sizeof(uint32_t) * GIVEN_BUDGETS * GIVEN_L * GIVEN_E);
            continue;
        }
        GIVEN_TRY(fm_bundle_read(&b, &b.member[i], &data, &size, &given_err));
        add_sum("bundle", name, data, size);
        free(data);
    }
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* The text of an fm-export.json without the size and digest of the modelling file, which change
 * with that file. */
static size_t without_modeling(char *text, size_t size)
{
    char *at = memmem(text, size, "\"modeling_fm.py\": {", strlen("\"modeling_fm.py\": {"));
    char *end = at ? memchr(at, '}', size - (size_t)(at - text)) : NULL;
    if (!end)
        return size;
    memmove(at, end, size - (size_t)(end - text));
    return size - (size_t)(end - at);
}

static void sum_directory(const char *folder, const char *path)
{
    struct dirent **entry;
    int n = scandir(path, &entry, NULL, compare_names);
    assert_true(n > 2);
    for (int i = 0; i < n; i++) {
        char file[1024];
        size_t size;
        snprintf(file, sizeof file, "%s/%s", path, entry[i]->d_name);
        /* The modelling file is the one in the tree, so its digest is not listed again. */
        if (strcmp(entry[i]->d_name, "modeling_fm.py") == 0) {
            assert_true(scratch_same(file, "formats/runtime/modeling_fm.py"));
        } else if (entry[i]->d_name[0] != '.') {
            char *data = scratch_read(file, &size);
            if (strcmp(entry[i]->d_name, "fm-export.json") == 0)
                size = without_modeling(data, size);
            add_sum(folder, entry[i]->d_name, data, size);
            free(data);
        }
        free(entry[i]);
    }
    free(entry);
}

static void export_to(const char *bundle, const char *path, const struct fm_layout *layout)
{
    struct fm_run_options run = run_for(bundle, path);
    struct fm_export_options options = {.layout = layout, .budget = 0.4};
    struct fm_export_report report;
    GIVEN_TRY(fm_export(&run, &options, &report, &given_err));
}

/* The solution of equations, by the definition: operations that every machine rounds alike. */
static void sum_solution(void)
{
    enum { N = 37, M = 5 };
    static double a[N * N], x[N * M];
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            a[i * N + j] = (i + 1) * (j + 1) % 11 / 11.0 + (i == j ? N : 0);
    for (int i = 0; i < N * M; i++)
        x[i] = i * 7 % 13 - 6;
    fm_ops_ref()->solve(x, a, N, M);
    add_sum("solved", "x", x, sizeof x);
}

/* With BLESS=1, write golden/CHECKSUMS again. */
TEST(bundle_and_exports_have_the_same_bytes_everywhere)
{
    pack(given_stage("in.fm", true), scratch("given.fm"));
    sums[0] = '\0';
    sum_bundle(scratch("given.fm"));
    struct fm_list_kind kind[FM_LIST_FORMS_MAX];
    int kinds = fm_list_kinds(kind);
    for (int i = 0; i < kinds && !kind[i].capped; i++) {
        export_to(scratch("given.fm"), scratch(kind[i].name), kind[i].layout);
        sum_directory(kind[i].name, scratch(kind[i].name));
    }
    sum_solution();
    if (getenv("BLESS")) {
        FILE *f = fopen(CHECKSUMS, "wb");
        scratch_check(f && fputs(sums, f) >= 0 && fclose(f) == 0, CHECKSUMS);
    }
    size_t size;
    char *want = scratch_read(CHECKSUMS, &size);
    assert_string_equal(sums, want);
    free(want);
}

/* ---- exports ---- */

TEST(a_tar_stream_has_the_files_of_the_directory)
{
    char command[2048];
    pack(given_stage("in.fm", false), scratch("a.fm"));
    assert_ok(fm_pool_start(3, &err));
    for (int i = 0; fm_layouts[i]; i++) {
        export_to(scratch("a.fm"), scratch("dir"), fm_layouts[i]);
        fflush(stdout);
        int saved = dup(1);
        FILE *f = fopen(scratch("export.tar"), "wb");
        scratch_check(f && dup2(fileno(f), 1) == 1, "export.tar");
        export_to(scratch("a.fm"), "-", fm_layouts[i]);
        scratch_check(dup2(saved, 1) == 1, "dup2");
        close(saved);
        fclose(f);
        snprintf(command, sizeof command,
                 "cd %s && rm -rf un && mkdir un && tar xf export.tar -C un && diff -r un dir",
                 scratch_root);
        assert_int_equal(system(command), 0);
    }
    fm_pool_stop();
}

TEST(the_nearest_budget_is_taken_and_none_beyond_the_end)
{
    struct fm_export_report report;
    pack(given_stage("in.fm", false), scratch("a.fm"));
    struct fm_run_options run = run_for(scratch("a.fm"), scratch("never"));
    struct fm_export_options options = {.layout = &fm_layout_padded, .budget = 0.9};
    assert_fails(fm_export(&run, &options, &report, &err), FM_EUSAGE, "the family's end, 0.4757");
    options.budget = 0.2;
    assert_ok(fm_export_plan(&run, &options, &report, &err));
    assert_true(fabs(report.budget - 0.2378) < 0.0001);
    assert_int_not_equal(access(scratch("never"), F_OK), 0);
}

TEST(the_list_agrees_with_the_manifest)
{
    struct fm_list list;
    pack(given_stage("in.fm", true), scratch("a.fm"));
    GIVEN_TRY(fm_list_read(&list, scratch("a.fm"), true, &given_err));
    assert_string_equal(list.stage, "pack");
    assert_string_equal(list.dtype, "F16");
    assert_int_equal(list.rows, GIVEN_BUDGETS);
    assert_int_equal(list.row[3].removed, 132);
    assert_true(list.adapter_budget == list.row[5].budget);
    assert_false(list.row[3].known);
    /* `bytes` is the sum of the tensors of a ragged export. */
    struct golden ragged;
    uint64_t bytes = 0;
    export_to(scratch("a.fm"), scratch("ragged"), &fm_layout_ragged);
    golden_open(&ragged, scratch("ragged/model.safetensors"));
    for (size_t i = 0; i < ragged.st.count; i++)
        bytes += ragged.st.tensor[i].size;
    assert_int_equal(list.row[5].bytes, bytes);
    golden_close(&ragged);
    cJSON *json = cJSON_CreateObject();
    fm_list_json(json, &list);
    char *text = fm_json_print(json);
    cJSON_Delete(json);
    assert_non_null(strstr(text, "\"removed\": 132"));
    free(text);
    fm_list_release(&list);
}

TEST(the_adapter_touches_only_the_channels_under_its_mask)
{
    pack(given_stage("in.fm", false), scratch("plain.fm"));
    pack(given_stage("in2.fm", true), scratch("merged.fm"));
    struct fm_adapter adapter;
    struct fm_bundle a = {0}, b = {0};
    given_adapter(&adapter);
    GIVEN_TRY(fm_bundle_open(&a, scratch("plain.fm"), &given_err));
    GIVEN_TRY(fm_bundle_open(&b, scratch("merged.fm"), &given_err));
    int changed = 0;
    for (int l = 0; l < GIVEN_L; l++) {
        char name[64], tensor[64];
        void *x, *y;
        size_t size;
        struct fm_safetensors st = {0};
        snprintf(name, sizeof name, "weights/layers-%05d.safetensors", l);
        const struct fm_member *m = fm_bundle_find(&a, name);
        GIVEN_TRY(fm_bundle_read(&a, m, &x, &size, &given_err));
        GIVEN_TRY(fm_bundle_read(&b, fm_bundle_find(&b, name), &y, &size, &given_err));
        GIVEN_TRY(fm_safetensors_open(&st, &a.file, m->offset, m->size, &given_err));
        for (int part = 0; part < 2; part++) {
            snprintf(tensor, sizeof tensor, "layers.%d.%s", l, part ? "down" : "gate_up");
            size_t row = (size_t)GIVEN_H * 2 * (part ? 1 : 2);
            size_t at = (size_t)(fm_safetensors_find(&st, tensor)->offset - m->offset);
            for (int e = 0; e < GIVEN_E; e++)
                for (uint32_t j = 0; j < GIVEN_I; j++, at += row) {
                    bool same = memcmp((char *)x + at, (char *)y + at, row) == 0;
                    assert_true(same || j < adapter.widths[l * GIVEN_E + e]);
                    changed += !same;
                }
        }
        fm_safetensors_close(&st);
        free(x);
        free(y);
    }
    assert_true(changed > GIVEN_L * GIVEN_E);
    fm_adapter_release(&adapter);
    fm_bundle_close(&a);
    fm_bundle_close(&b);
}

TEST(a_stream_of_another_checkpoint_is_refused)
{
    struct fm_pack_report report;
    char command[2048];
    const char *stage = given_stage("in.fm", false);
    snprintf(
        command, sizeof command,
        "rm -rf %s/model && cp -r %s %s/model && sed -i 's/5000.0/6000.0/' %s/model/config.json",
        scratch_root, GIVEN_MODEL, scratch_root, scratch_root);
    assert_int_equal(system(command), 0);
    struct fm_run_options run = run_for(stage, scratch("never.fm"));
    run.inputs.model = scratch("model");
    assert_int_equal(fm_pack(&run, &(struct fm_pack_options){0}, &report, &err), FM_ECONFIG);
    assert_int_not_equal(access(scratch("never.fm"), F_OK), 0);
}

TEST_MAIN(NULL, NULL)
