/* CHECKSUMS, the last member of a stream, is checked even if the manifest is well formed. */
#include "formats/bundle/archive.h"
#include "formats/bundle/bundle.h"
#include "formats/json/json.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static char path[512], bytes[65536];
static size_t size, sums, sums_bytes, manifest_bytes; /* sums: the offset of CHECKSUMS */
static char *const manifest = bytes + FM_ARCHIVE_BLOCK;

/* A stream with one member between manifest and CHECKSUMS. */
static int make_stream(void **unused)
{
    static const char text[] = "{\"suite\": \"0\"}\n";
    const struct fm_part part = {.name = FM_MEMBER_BUILD, .data = text, .size = sizeof text - 1};
    struct fm_bundle_writer *w;
    struct fm_bundle b;
    struct fm_err err = {0};
    cJSON *m = cJSON_CreateObject();
    (void)unused;
    fm_json_add_uint(m, "schema", 1);
    cJSON_AddStringToObject(m, "suite", "fm");
    cJSON_AddStringToObject(m, "stage", "rank");
    cJSON_AddArrayToObject(m, "history");
    snprintf(path, sizeof path, "%s", scratch("stream.fm"));
    assert_ok(fm_bundle_begin(&w, path, true, m, &part, 1, &err));
    assert_ok(fm_bundle_finish(w, &err));
    assert_ok(fm_bundle_open(&b, path, &err));
    manifest_bytes = (size_t)b.member[0].size;
    sums = (size_t)b.member[b.members - 1].offset;
    sums_bytes = (size_t)b.member[b.members - 1].size;
    fm_bundle_close(&b);
    FILE *f = fopen(path, "rb");
    scratch_check(f != NULL, path);
    size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    return 0;
}

/* Replace a text in the manifest by one of the same length. */
static void replace(const char *from, const char *to)
{
    char *at = memmem(manifest, manifest_bytes, from, strlen(from));
    assert_true(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
}

static void expect_refused(const char *why)
{
    struct fm_bundle b;
    struct fm_err err = {0};
    scratch_write("edited.fm", bytes, size);
    assert_fails(fm_bundle_open(&b, scratch("edited.fm"), &err), FM_EFORMAT, why);
}

/* Another spelling of the same manifest: only its digest differs. */
TEST_AROUND(a_manifest_without_its_digest_is_refused, make_stream, NULL)
{
    replace("\"schema\": 1", "\"schema\" :1");
    expect_refused("does not match its digest in CHECKSUMS");
}

/* All sizes and digests are correct; only the number of lines is wrong. */
TEST_AROUND(a_surplus_line_is_refused, make_stream, NULL)
{
    static const char more[] = "more\n";
    char from[40], to[40], hex[FM_DIGEST_HEX], header[FM_ARCHIVE_HEADER_MAX];
    size_t n = sums_bytes + strlen(more), header_bytes;
    snprintf(from, sizeof from, "\"size\": %zu", sums_bytes);
    snprintf(to, sizeof to, "\"size\": %zu", n);
    replace(from, to);
    struct fm_digest digest = fm_digest_of(manifest, manifest_bytes);
    fm_digest_hex(hex, &digest);
    memcpy(bytes + sums, hex, FM_DIGEST_HEX - 1);
    assert_true(fm_archive_padded(n) == fm_archive_padded(sums_bytes));
    memcpy(bytes + sums + sums_bytes, more, strlen(more));
    assert_ok(fm_archive_header(header, &header_bytes, FM_MEMBER_CHECKSUMS, n, &err));
    memcpy(bytes + sums - header_bytes, header, header_bytes);
    expect_refused("has more lines than the stream has members");
}

TEST_MAIN(NULL, NULL)
