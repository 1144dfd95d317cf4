/* Bundles are read as they were written, and have the same bytes every time; every flipped bit,
 * truncation and false statement is refused. */
#include <unistd.h>

#include "formats/bundle/archive.h"
#include "formats/bundle/bundle.h"
#include "formats/file/carried.h"
#include "formats/json/json.h"
#include "lib/base/pool.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static char folder[] = "/tmp/fm-test-bundle-XXXXXX";
static char path_a[64], path_b[64], path_c[64];

static int make_folder(void **unused)
{
    (void)unused;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path_a, sizeof path_a, "%s/a.fm", folder);
    snprintf(path_b, sizeof path_b, "%s/b.fm", folder);
    snprintf(path_c, sizeof path_c, "%s/c.fm", folder);
    return 0;
}

static int remove_folder(void **unused)
{
    (void)unused;
    unlink(path_a);
    unlink(path_b);
    unlink(path_c);
    return rmdir(folder);
}

static cJSON *new_manifest(const char *stage)
{
    cJSON *m = cJSON_CreateObject();
    assert_non_null(m);
    fm_json_add_uint(m, "schema", 1);
    cJSON_AddStringToObject(m, "suite", "fm");
    cJSON_AddStringToObject(m, "stage", stage);
    cJSON_AddArrayToObject(m, "history");
    return m;
}

static const char build_text[] = "{\"suite\": \"0\"}\n";
static const char config_text[] = "{}";
static unsigned char ranking_bytes[777], weight_bytes[2][5001];

static void fill_bytes(void)
{
    for (size_t i = 0; i < sizeof ranking_bytes; i++)
        ranking_bytes[i] = (unsigned char)(i * 31 + 7);
    for (size_t i = 0; i < sizeof weight_bytes; i++)
        weight_bytes[i / sizeof weight_bytes[0]][i % sizeof weight_bytes[0]] =
            (unsigned char)(i * i >> 3);
}

/* A stage stream with three members. */
static const struct fm_part stage_parts[] = {
    {.name = FM_MEMBER_BUILD, .data = build_text, .size = sizeof build_text - 1},
    {.name = "carried/config.json", .data = config_text, .size = sizeof config_text - 1},
    {.name = FM_MEMBER_RANKING,
     .data = ranking_bytes,
     .size = sizeof ranking_bytes,
     .aligned = true},
};

static void write_stage(const char *path)
{
    struct fm_bundle_writer *w;
    struct fm_err err = {0};
    fill_bytes();
    assert_ok(fm_bundle_begin(&w, path, true, new_manifest("rank"), stage_parts, 3, &err));
    assert_ok(fm_bundle_finish(w, &err));
}

static char *slurp(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *size = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void spew(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* Open and read every member. */
static int read_all(const char *path, struct fm_err *err)
{
    struct fm_bundle b;
    int code = fm_bundle_open(&b, path, err);
    for (size_t i = 0; !code && i < b.members; i++) {
        void *data;
        size_t size;
        code = fm_bundle_read(&b, &b.member[i], &data, &size, err);
        if (!code)
            free(data);
    }
    fm_bundle_close(&b);
    return code;
}

TEST(a_stage_stream_reads_back)
{
    write_stage(path_a);
    struct fm_bundle b;
    assert_ok(fm_bundle_open(&b, path_a, &err));
    assert_int_equal(b.members, 6); /* with manifest, pad, checksums */
    assert_string_equal(b.member[0].name, FM_MEMBER_MANIFEST);
    assert_string_equal(b.member[3].name, ".pad/0000");
    assert_string_equal(b.member[5].name, FM_MEMBER_CHECKSUMS);
    const struct fm_member *m = fm_bundle_find(&b, FM_MEMBER_RANKING);
    assert_non_null(m);
    assert_true(m->listed && m->known);
    assert_int_equal(m->offset % 4096, 0);
    assert_null(fm_bundle_find(&b, FM_MEMBER_MASKS));
    void *data;
    size_t size;
    assert_ok(fm_bundle_read(&b, m, &data, &size, &err));
    assert_int_equal(size, sizeof ranking_bytes);
    assert_memory_equal(data, ranking_bytes, size);
    assert_int_equal(((char *)data)[size], 0);
    free(data);
    fm_bundle_close(&b);
}

TEST(a_bundle_whose_members_overlap_is_not_sane)
{
    write_stage(path_a);
    struct fm_bundle b;
    assert_ok(fm_bundle_open(&b, path_a, &err));
    assert_true(fm_bundle_sane(&b));
    b.member[2].offset--; /* into the padding of the member before */
    assert_false(fm_bundle_sane(&b));
    b.member[2].offset++;
    b.member[4].known = false;
    assert_false(fm_bundle_sane(&b));
    b.member[4].known = true;
    b.member[5].size = b.file.size;
    assert_false(fm_bundle_sane(&b));
    fm_bundle_close(&b);
}

TEST(the_same_parts_give_the_same_bytes_and_the_planned_size)
{
    struct fm_bundle_sizes planned = {0};
    size_t size;
    write_stage(path_a);
    write_stage(path_b);
    assert_true(scratch_same(path_a, path_b));
    cJSON *manifest = new_manifest("rank");
    assert_ok(fm_bundle_size(&planned, 0, manifest, stage_parts, 3, &err));
    cJSON_Delete(manifest);
    free(slurp(path_a, &size));
    assert_int_equal(planned.all, size);
    assert_int_equal(planned.files, 1);
}

/* Output through a real pipe, which cannot seek: cat copies it to a file. */
static int saved_stdout;
static FILE *open_pipe_on_stdout(const char *path)
{
    char command[128];
    snprintf(command, sizeof command, "cat >'%s'", path);
    fflush(stdout);
    saved_stdout = dup(STDOUT_FILENO);
    FILE *p = popen(command, "w");
    assert_non_null(p);
    assert_true(dup2(fileno(p), STDOUT_FILENO) >= 0);
    return p;
}

static void close_pipe_on_stdout(FILE *p)
{
    assert_true(dup2(saved_stdout, STDOUT_FILENO) >= 0);
    close(saved_stdout);
    assert_int_equal(pclose(p), 0);
}

TEST(a_pipe_gets_the_bytes_that_a_file_gets)
{
    write_stage(path_a);
    FILE *p = open_pipe_on_stdout(path_b);
    write_stage("-");
    close_pipe_on_stdout(p);
    assert_true(scratch_same(path_a, path_b));
}

/* Write as fm-pack does: copy members of the input, append weights, and add the segments at the
 * beginning or, if `late`, at the end. */
static const char *const weight_names[] = {"weights/layers-00000.safetensors",
                                           "weights/rest.safetensors"};
struct appending {
    struct fm_bundle_writer *w;
    int codes[2];
};

static void append_weights(void *arg, int i)
{
    struct appending *a = arg;
    struct fm_err err = {0};
    for (size_t at = 0; at < sizeof weight_bytes[0]; at += 1000) {
        size_t part = sizeof weight_bytes[0] - at < 1000 ? sizeof weight_bytes[0] - at : 1000;
        a->codes[i] |= fm_bundle_append(a->w, 3 + (size_t)i, weight_bytes[i] + at, part, &err);
    }
}

static void write_pack(const char *path, const struct fm_bundle *in, bool late, bool threads)
{
    static const char segments[] = "golden segment digests";
    struct fm_part part[5] = {{.name = FM_MEMBER_BUILD}, {.name = FM_MEMBER_RANKING}};
    for (int i = 0; i < 2; i++) {
        part[i].from = in;
        part[i].member = fm_bundle_find(in, part[i].name);
        part[i].size = part[i].member->size;
    }
    part[2] = (struct fm_part){
        .name = FM_MEMBER_SEGMENTS, .size = sizeof segments, .data = late ? NULL : segments};
    for (int i = 0; i < 2; i++)
        part[3 + i] = (struct fm_part){
            .name = weight_names[i], .size = sizeof weight_bytes[0], .aligned = true};
    struct appending a = {0};
    struct fm_err err = {0};
    assert_ok(fm_bundle_begin(&a.w, path, true, new_manifest("pack"), part, 5, &err));
    if (threads) {
        fm_pool_for(2, append_weights, &a);
    } else {
        append_weights(&a, 0);
        append_weights(&a, 1);
    }
    assert_int_equal(a.codes[0] | a.codes[1], FM_OK);
    if (late)
        assert_ok(fm_bundle_append(a.w, 2, segments, sizeof segments, &err));
    assert_ok(fm_bundle_finish(a.w, &err));
}

TEST(late_members_threads_and_pipes_give_the_same_bundle)
{
    struct fm_bundle in, b;
    write_stage(path_c);
    assert_ok(fm_bundle_open(&in, path_c, &err));
    write_pack(path_a, &in, false, false);
    assert_ok(fm_pool_start(3, &err));
    write_pack(path_b, &in, true, true);
    fm_pool_stop();
    assert_true(scratch_same(path_a, path_b));
    FILE *p = open_pipe_on_stdout(path_b);
    write_pack("-", &in, false, false);
    close_pipe_on_stdout(p);
    assert_true(scratch_same(path_a, path_b));
    fm_bundle_close(&in);
    assert_ok(read_all(path_a, &err));
    assert_ok(fm_bundle_open(&b, path_a, &err));
    const struct fm_member *m = fm_bundle_find(&b, weight_names[1]);
    assert_true(m && m->known && !m->listed && m->offset % 4096 == 0);
    fm_bundle_close(&b);
}

TEST(every_flipped_bit_is_found)
{
    write_stage(path_a);
    size_t size;
    char *bytes = slurp(path_a, &size);
    FILE *f = fopen(path_a, "r+b");
    assert_non_null(f);
    for (size_t i = 0; i < size; i++) {
        char flipped = (char)(bytes[i] ^ (1 << i % 8));
        assert_int_equal(fseek(f, (long)i, SEEK_SET), 0);
        assert_int_equal(fputc(flipped, f), (unsigned char)flipped);
        assert_int_equal(fflush(f), 0);
        if (read_all(path_a, &err) != FM_EFORMAT)
            fail_msg("byte %zu of %zu flipped: %d %s", i, size, err.code, err.text);
        assert_int_equal(fseek(f, (long)i, SEEK_SET), 0);
        assert_int_equal(fputc(bytes[i], f), (unsigned char)bytes[i]);
    }
    fclose(f);
    free(bytes);
}

TEST(every_truncation_is_refused_but_the_head_is_read)
{
    write_stage(path_a);
    size_t size;
    free(slurp(path_a, &size));
    uint64_t manifest_end = 0;
    for (size_t cut = size; cut-- > 0;) {
        struct fm_bundle b;
        assert_int_equal(truncate(path_a, (off_t)cut), 0);
        if (fm_bundle_open(&b, path_a, &err) != FM_EFORMAT)
            fail_msg("cut at %zu: %d %s", cut, err.code, err.text);
        int code = fm_bundle_open_prefix(&b, path_a, &err);
        if (code == FM_OK)
            manifest_end = fm_archive_padded(b.member[0].size) + 512;
        if (code != (cut >= manifest_end ? FM_OK : FM_EFORMAT))
            fail_msg("head of %zu: %d %s", cut, err.code, err.text);
        fm_bundle_close(&b);
    }
    assert_true(manifest_end > 512);
}

TEST(a_cut_at_a_member_with_end_blocks_is_refused)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    write_stage(path_a);
    size_t size;
    char *bytes = slurp(path_a, &size);
    struct fm_bundle b;
    assert_ok(fm_bundle_open(&b, path_a, &err));
    size_t end = (size_t)b.member[5].offset - 512;
    fm_bundle_close(&b);
    memcpy(bytes + end, zeros, sizeof zeros);
    spew(path_a, bytes, end + sizeof zeros);
    assert_fails(fm_bundle_open(&b, path_a, &err), FM_EFORMAT, "not with CHECKSUMS");
    free(bytes);
}

/*
 * Expect an error for a good stream in whose manifest `from` is replaced by `to`, which has the
 * same length.  CHECKSUMS is corrected.
 */
static void expect_manifest_refused(const char *from, const char *to, const char *why)
{
    struct fm_bundle b;
    struct fm_err err = {0};
    size_t size;
    char hex[FM_DIGEST_HEX];
    write_stage(path_a);
    char *bytes = slurp(path_a, &size);
    assert_ok(fm_bundle_open(&b, path_a, &err));
    char *at = memmem(bytes + 512, b.member[0].size, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    struct fm_digest d = fm_digest_of(bytes + 512, (size_t)b.member[0].size);
    fm_digest_hex(hex, &d);
    memcpy(bytes + b.member[5].offset, hex, 32);
    fm_bundle_close(&b);
    spew(path_a, bytes, size);
    free(bytes);
    assert_fails(fm_bundle_open(&b, path_a, &err), FM_EFORMAT, why);
}

TEST(false_manifests_are_refused)
{
    expect_manifest_refused("\"schema\": 1", "\"schema\": 0",
                            "schema is 0, and this program reads schema 1 only");
    expect_manifest_refused("\"schema\": 1", "\"schema\": 2",
                            "schema is 2, and this program reads schema 1 only");
    expect_manifest_refused("\"schema\": 1", "\"schemb\": 1", "'schema' is missing");
    expect_manifest_refused("\"fm\"", "\"xy\"", "suite is 'xy'");
    expect_manifest_refused("\"rank\"", "\"bank\"", "stage 'bank'");
    expect_manifest_refused("\"members\"", "\"nembers\"", "'members'");
    expect_manifest_refused("\"size\": 777", "\"size\": 778", "the manifest says 778");
    expect_manifest_refused("\"size\": 777", "\"size\": -77", "'size' is -77");
    expect_manifest_refused("\"size\": 777", "\"size\": 7.7", "not an integer");
    expect_manifest_refused("\"size\": 777", "\"size\": 9e9", "the manifest says 9000000000");
    expect_manifest_refused("\"offset\": 4096", "\"offset\": 4097", "begins at byte 4096");
    expect_manifest_refused("\"offset\": 4096", "\"offset\":  513",
                            "inside member 'manifest.json'");
    expect_manifest_refused("\"offset\": 4096", "\"offset\": 9999", "outside the stream");
    expect_manifest_refused("ranking.safetensors", "rankimg.safetensors", "stream does not have");
    expect_manifest_refused("\"carried/config.json\"", "\"carried/config.jsom\"",
                            "stream does not have");
    expect_manifest_refused("carried/config.json", "build.json\", \"xy\":\"",
                            "not in the manifest");
    expect_manifest_refused("\"CHECKSUMS\"", "\"CHECKSUMZ\"", "no digest");
    expect_manifest_refused("\"name\": \"build.json\"", "\"nama\": \"build.json\"", "'name'");
}

TEST(invalid_digests_are_refused)
{
    struct fm_digest d;
    char hex[FM_DIGEST_HEX], bad[FM_DIGEST_HEX];
    fill_bytes();
    d = fm_digest_of(ranking_bytes, sizeof ranking_bytes);
    fm_digest_hex(hex, &d);
    memcpy(bad, hex, sizeof bad);
    bad[31] = 'G';
    expect_manifest_refused(hex, bad, "not 32 lower-case");
    for (int i = 0; i < 32; i++)
        bad[i] = (char)(hex[i] >= 'a' ? hex[i] - 32 : hex[i]);
    expect_manifest_refused(hex, bad, "not 32 lower-case");
    char longer[40], shorter[40];
    snprintf(longer, sizeof longer, "\"%s\"", hex);
    snprintf(shorter, sizeof shorter, "\"%.31s\" ", hex);
    expect_manifest_refused(longer, shorter, "not 32 lower-case");
    memcpy(bad, hex, sizeof bad);
    bad[31] = hex[31] == '0' ? '1' : '0';
    expect_manifest_refused(hex, bad, "differs from the manifest's");
    char key[60], other[60];
    snprintf(key, sizeof key, "\"digest\": \"%s\"", hex);
    snprintf(other, sizeof other, "\"digesu\": \"%s\"", hex);
    expect_manifest_refused(key, other, "has no digest");
}

/* Write `bytes` to path_a with an empty member before position `at`; the members after it move. */
static void spew_with_member(char *bytes, size_t size, size_t at, const char *name)
{
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t header_bytes;
    struct fm_err err = {0};
    assert_ok(fm_archive_header(header, &header_bytes, name, 0, &err));
    memmove(bytes + at + 512, bytes + at, size - at);
    memcpy(bytes + at, header, 512);
    spew(path_a, bytes, size + 512);
}

/* The manifest is the second member, and a stream is cut after the header of another member. */
TEST(streams_in_the_wrong_order_are_refused)
{
    size_t size;
    struct fm_bundle b;
    write_stage(path_a);
    char *bytes = slurp(path_a, &size);
    spew_with_member(bytes, size, 0, FM_MEMBER_BUILD "x");
    assert_fails(fm_bundle_open(&b, path_a, &err), FM_EFORMAT, "manifest.json is member 2");
    spew(path_a, bytes, 512);
    assert_fails(fm_bundle_open_prefix(&b, path_a, &err), FM_EFORMAT, "not manifest.json");
    free(bytes);
}

TEST(a_member_that_is_not_listed_is_refused)
{
    size_t size;
    struct fm_bundle b;
    write_stage(path_a);
    char *bytes = slurp(path_a, &size);
    assert_ok(fm_bundle_open(&b, path_a, &err));
    size_t at = (size_t)b.member[5].offset - 512;
    fm_bundle_close(&b);
    spew_with_member(bytes, size, at, ".pad/0001");
    assert_fails(fm_bundle_open(&b, path_a, &err), FM_EFORMAT,
                 "'.pad/0001' is not in the manifest");
    free(bytes);
}

TEST(a_name_that_tar_cannot_hold_is_an_error)
{
    char name[130] = FM_MEMBER_CARRIED;
    memset(name + strlen(name), 'n', 100);
    struct fm_part part = {.name = name, .data = "x", .size = 1};
    struct fm_bundle_writer *w;
    unlink(path_a);
    assert_int_equal(fm_bundle_begin(&w, path_a, false, new_manifest("rank"), &part, 1, &err),
                     FM_ECONFIG);
    assert_null(w);
    assert_int_not_equal(access(path_a, F_OK), 0);
}

/* A name that would not be carried from a checkpoint is refused in a bundle. */
TEST(a_name_that_is_not_carried_is_an_error)
{
    static const char *const names[] = {"carried/a/b", "carried/.netrc", "carried/x.safetensors",
                                        "carried/pytorch_model.bin",
                                        "carried/model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fm_bundle_writer *w;
        struct fm_part part = {.name = names[i], .data = "x", .size = 1};
        assert_fails(fm_bundle_begin(&w, path_a, true, new_manifest("rank"), &part, 1, &err),
                     FM_ECONFIG, "cannot be copied");
    }
    struct fm_carried_sum sum = {0};
    assert_ok(fm_carried_add(&sum, "a", FM_CARRIED_BYTES_MAX, &err));
    assert_int_equal(fm_carried_add(&sum, "b", 1, &err), FM_ECONFIG);
    for (sum = (struct fm_carried_sum){0}; sum.files < FM_CARRIED_MAX;)
        assert_ok(fm_carried_add(&sum, "a", 0, &err));
    assert_int_equal(fm_carried_add(&sum, "b", 0, &err), FM_ECONFIG);
    assert_int_equal(fm_carried_add(&sum, "b", UINT64_MAX, &err), FM_ECONFIG);
}

TEST(a_corrupt_input_is_found_while_copied)
{
    struct fm_bundle in;
    struct fm_bundle_writer *w;
    write_stage(path_c);
    assert_ok(fm_bundle_open(&in, path_c, &err));
    const struct fm_member *m = fm_bundle_find(&in, FM_MEMBER_RANKING);
    scratch_flip(path_c, (long)m->offset + 99);
    struct fm_part part = {.name = m->name, .size = m->size, .from = &in, .member = m};
    unlink(path_a);
    assert_fails(fm_bundle_begin(&w, path_a, false, new_manifest("rank"), &part, 1, &err),
                 FM_EFORMAT, "do not match their digest");
    assert_int_not_equal(access(path_a, F_OK), 0);
    fm_bundle_close(&in);
}

TEST(manifests_of_any_size_are_laid_out)
{
    /* Manifests of many sizes, because the size has to agree with offsets that depend on it. */
    char text[3000];
    memset(text, 'x', sizeof text);
    for (size_t n = 0; n < sizeof text - 1; n += 7) {
        struct fm_bundle_writer *w;
        cJSON *manifest = new_manifest("rank");
        text[n] = 0;
        cJSON_AddStringToObject(manifest, "note", text);
        text[n] = 'x';
        assert_ok(fm_bundle_begin(&w, path_a, true, manifest, stage_parts, 3, &err));
        if (n % 70 == 0) {
            if (fm_bundle_finish(w, &err) || read_all(path_a, &err))
                fail_msg("%zu: %s", n, err.text);
        } else {
            fm_bundle_abandon(w);
        }
    }
}

TEST(other_programs_read_it)
{
    char command[512];
    if (system("command -v xxhsum >/dev/null && command -v tar >/dev/null") != 0)
        skip();
    write_stage(path_a);
    snprintf(command, sizeof command,
             "cd %s && mkdir x && cd x && tar xf ../a.fm 2>../b.fm && ! [ -s ../b.fm ] && "
             "xxhsum -c CHECKSUMS >/dev/null 2>&1; s=$?; cd .. && rm -rf x; exit $s",
             folder);
    assert_int_equal(system(command), 0);
}

TEST_MAIN(make_folder, remove_folder)
