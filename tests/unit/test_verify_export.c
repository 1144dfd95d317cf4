/* Exports that the tools write pass verification, and every change is found and named. */
#include "lib/export/exportplan.h"
#include "tests/unit/test.h"
#include "tests/unit/verify.h"

/* Whether segments of checksums end at all widths of the export. */
static bool ends_at_boundaries(const struct fm_layout *layout)
{
    struct fm_opened from = {0};
    struct fm_exportplan p = {0};
    const struct fm_export_options o = {.layout = layout};
    bool all = true;
    GIVEN_TRY(fm_opened_open(&from, bundle, FM_OPENED_CHECKSUMS, &given_err));
    GIVEN_TRY(fm_exportplan_begin(&p, &from, &o, &given_err));
    fm_exportplan_widths(&p, 3);
    for (size_t i = 0; i < fm_opened_experts(&from); i++)
        all = all && fm_segments_at(&from.seg, p.widths.kept[i]) >= 0;
    fm_planned_release(&p);
    fm_opened_release(&from);
    return all;
}

TEST(exports_verify_against_the_first_members)
{
    struct fm_bundle b = {0};
    GIVEN_TRY(fm_bundle_open(&b, bundle, &given_err));
    const struct fm_member *m = fm_bundle_find(&b, FM_MEMBER_SEGMENTS);
    long end = (long)(m->offset + (m->size + 511) / 512 * 512);
    verify_copy_file(bundle, verify_edited);
    assert_int_equal(truncate(verify_edited, end), 0);
    for (int i = 0; fm_layouts[i]; i++) {
        assert_int_equal(verify(verify_dir[i], bundle), FM_OK);
        assert_string_equal(verify_report.kind, fm_layouts[i]->name);
        assert_int_equal(verify_report.index, 3);
        int rc = verify(verify_dir[i], verify_edited);
        bool whole = !ends_at_boundaries(fm_layouts[i]);
        assert_int_equal(rc, whole ? FM_EFORMAT : FM_OK);
        assert_true(!whole || strstr(verify_said.text, "the complete bundle is needed"));
    }
    assert_int_equal(truncate(verify_edited, end - 512), 0);
    assert_int_equal(verify(verify_dir[0], verify_edited), FM_EFORMAT);
    fm_bundle_close(&b);
}

TEST(a_flipped_byte_in_an_export_is_named)
{
    for (int i = 0; fm_layouts[i]; i++) {
        const char *to = scratch("copy");
        char file[600];
        struct golden made;
        verify_copy_dir(verify_dir[i], to);
        snprintf(file, sizeof file, "%s/%s", to,
                 fm_layouts[i]->files ? "layers-00001.safetensors" : "model.safetensors");
        golden_open(&made, file);
        for (size_t t = 0; t < made.st.count; t += made.st.count / 7 + 1) {
            long at = (long)(made.st.tensor[t].offset + made.st.tensor[t].size / 3);
            scratch_flip(file, at);
            assert_int_equal(verify(to, bundle), FM_EDIFF);
            /* Gate and up are rebuilt together: the finding names the gate. */
            char name[FM_ST_NAME_BYTES_MAX + 1];
            snprintf(name, sizeof name, "%s", made.st.tensor[t].name);
            char *up = strstr(name, ".w3.");
            if (up)
                up[2] = '1';
            assert_non_null(strstr(found, name));
            scratch_flip(file, at);
        }
        assert_int_equal(verify(to, bundle), FM_OK);
        golden_close(&made);
    }
}

/* A finding gives an expert's layer and number; of any other tensor it gives only the name. */
TEST(a_value_that_is_not_finite_is_named)
{
    static const char *const name[] = {"model.layers.2.mlp.experts.gate_up", "model.norm.weight"};
    static const char *const what[] = {"layer 2, expert 0: a value is not finite",
                                       "has a value that is not finite"};
    const char *to = scratch("copy");
    char file[600], line[256];
    for (int i = 0; i < 2; i++) {
        struct golden made;
        verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
        snprintf(file, sizeof file, "%s/model.safetensors", to);
        golden_open(&made, file);
        FILE *w = fopen(file, "r+b");
        long at = (long)fm_safetensors_find(&made.st, name[i])->offset;
        scratch_check(w && fseek(w, at, SEEK_SET) == 0 && fputs("\377\177", w) >= 0, file);
        scratch_check(fclose(w) == 0, file);
        golden_close(&made);
        assert_int_equal(verify(to, bundle), FM_EDIFF);
        snprintf(line, sizeof line, "%s: %s\n", name[i], what[i]);
        assert_non_null(strstr(found, line));
    }
}

TEST(a_tail_of_a_padded_export_must_be_zero)
{
    const char *to = scratch("copy");
    char file[600];
    verify_copy_dir(verify_dir_of(&fm_layout_padded), to);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    flip_tensor(file, "model.layers.2.block_sparse_moe.experts.3.w1.weight", 1);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "experts.3.w1.weight: layer 2, expert 3: channels from 15 on are "
                                  "not all zero"));
}

TEST(files_that_are_missing_extra_or_edited_are_named)
{
    const char *to = scratch("copy");
    char file[600];
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    snprintf(file, sizeof file, "%s/stray.txt", to);
    verify_copy_file(GIVEN_MODEL "/config.json", file);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_string_equal(found, "stray.txt: is not a file of this export\n");
    assert_int_equal(remove(file), 0);
    snprintf(file, sizeof file, "%s/modeling_fm.py", to);
    assert_int_equal(remove(file), 0);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "modeling_fm.py: "));
    static const char *const text[] = {"config.json", "modeling_fm.py", "fm-export.json"};
    for (int i = 0; i < 3; i++) {
        verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
        snprintf(file, sizeof file, "%s/%s", to, text[i]);
        FILE *f = fopen(file, "ab");
        scratch_check(f && fputc('\n', f) != EOF && fclose(f) == 0, file);
        assert_int_equal(verify(to, bundle), FM_EDIFF);
        assert_memory_equal(found, text[i], strlen(text[i]));
    }
    /* The owner may edit the model card. */
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    snprintf(file, sizeof file, "%s/README.md", to);
    FILE *f = fopen(file, "ab");
    scratch_check(f && fputs("Mine.\n", f) >= 0 && fclose(f) == 0, file);
    assert_int_equal(verify(to, bundle), FM_OK);
}

/* The spaces that pad the header have room for the extra tensor's entry. */
TEST(a_tensor_too_many_is_named)
{
    const char *to = scratch("copy");
    char file[600], more[128], header[65536] = "";
    unsigned char length[8];
    size_t n = 0;
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    FILE *f = fopen(file, "r+b");
    scratch_check(f && fread(length, 1, 8, f) == 8, file);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | length[i];
    scratch_check(n < sizeof header && fread(header, 1, n, f) == n, file);
    scratch_check(fseek(f, 0, SEEK_END) == 0, file);
    long data = ftell(f) - 8 - (long)n;
    const char *end = strrchr(header, '}');
    int size = snprintf(more, sizeof more,
                        ",\"more\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[%ld,%ld]}}",
                        data, data + 8);
    assert_true(end && end + size <= header + n);
    scratch_check(fwrite("\0\0\0\0\0\0\0", 1, 8, f) == 8, file);
    scratch_check(fseek(f, 8 + (end - header), SEEK_SET) == 0, file);
    scratch_check(fputs(more, f) >= 0 && fclose(f) == 0, file);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_string_equal(found, "more: does not belong in model.safetensors\n");
}

TEST(an_export_of_another_budget_does_not_pass_for_this_one)
{
    const char *to = scratch("copy");
    for (int i = 0; fm_layouts[i]; i++) {
        verify_copy_dir(verify_dir[i], to);
        verify_run("sed -i 's/\"index\": 3/\"index\": 1/' %s/fm-export.json", to);
        assert_int_equal(verify(to, bundle), FM_EDIFF);
        bool family = fm_layouts[i]->all_members,
             shapes = !family && fm_layouts[i] != &fm_layout_padded;
        const char *all = family ? "config.json: differs" : "layer";
        assert_non_null(strstr(found, shapes ? "does not have the type and shape" : all));
    }
}

TEST(impossible_values_in_fm_export_json_are_refused)
{
    static const char *const edit[] = {"s/\"pad_multiple\": 1/\"pad_multiple\": 0/",
                                       "s/\"pad_multiple\": 1/\"pad_multiple\": 38/",
                                       "s/\"pad_multiple\": 1/\"pad_multiple\": 5000000000/",
                                       "s/\"any\"/\"vllm\"/",
                                       "s/\"shard_size\": 4/\"shard_size\": -4/",
                                       "s/\"layout\": \"ragged/\"layout\": \"rugged/"};
    const char *to = scratch("copy");
    for (size_t i = 0; i < sizeof edit / sizeof *edit; i++) {
        verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
        verify_run("sed -i '%s' %s/fm-export.json", edit[i], to);
        assert_int_equal(verify(to, bundle), FM_EFORMAT);
    }
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    verify_run("sed -i 's/\"schema\": 1/\"schema\": 2/' %s/fm-export.json", to);
    assert_int_equal(verify(to, bundle), FM_EFORMAT);
    assert_non_null(strstr(verify_said.text, "schema is 2, and this program reads schema 1 only"));
    /* A shard size of one byte means many files, none of which exists. */
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    verify_run("sed -i 's/\"shard_size\": [0-9]*/\"shard_size\": 1/' %s/fm-export.json", to);
    assert_int_equal(verify(to, bundle), FM_EDIFF);
    assert_non_null(strstr(found, "model-00001-of-"));
}

/* Replace the export as fm-pack --export --force would, while the weights are read. */
static void replace_once(void *self, const char *stage, uint64_t done, uint64_t total,
                         const char *unit)
{
    bool *replaced = self;
    (void)stage, (void)done, (void)total, (void)unit;
    if (!*replaced)
        verify_run("mv %1$s %1$s-old && mv %1$s-new %1$s && rm -r %1$s-old", scratch("copy"));
    *replaced = true;
}

TEST(an_export_that_is_replaced_meanwhile_is_not_judged)
{
    bool replaced = false;
    const char *to = scratch("copy");
    verify_copy_dir(verify_dir_of(&fm_layout_ragged), to);
    verify_copy_dir(verify_dir_of(&fm_layout_padded), scratch("copy-new"));
    verify_progress = (struct fm_progress){.report = replace_once, .self = &replaced};
    assert_int_equal(verify(to, bundle), FM_EIO);
    verify_progress = (struct fm_progress){0};
    assert_true(replaced);
    assert_non_null(strstr(verify_said.text, "copy' was replaced while it was read"));
    assert_string_equal(found, "");
    assert_int_equal(verify_report.failed, 0);
    assert_int_equal(verify(to, bundle), FM_OK);
    assert_string_equal(verify_report.kind, "padded");
}

TEST_MAIN(verify_make_all, NULL)
