/*
 * Test the reader on files at its limits, and on files with one fault each: overlaps, gaps, huge
 * numbers, very long names.  Memory and time are bounded, because most hostile headers are long.
 */
#include <inttypes.h>
#include <time.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "formats/tensor/safetensors.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static int open_path(struct fm_safetensors *st, const char *path, struct fm_err *err)
{
    struct fm_file f;
    int rc = fm_file_open(&f, path, err);
    if (rc != FM_OK)
        return rc;
    rc = fm_safetensors_open(st, &f, 0, f.size, err);
    fm_file_close(&f);
    return rc;
}

static int open_text(struct fm_safetensors *st, const char *json, uint64_t data, struct fm_err *err)
{
    return open_path(st, scratch_safetensors("t.safetensors", json, strlen(json), data), err);
}

static void is_accepted(const char *json, uint64_t data, size_t count)
{
    struct fm_safetensors st;
    struct fm_err err = {0};
    int rc = open_text(&st, json, data, &err);
    if (rc != FM_OK)
        fail_msg("%s: %s", json, err.text);
    assert_int_equal(st.count, count);
    fm_safetensors_close(&st);
}

static void is_refused(const char *json, uint64_t data, const char *text)
{
    struct fm_safetensors st;
    struct fm_err err = {0};
    assert_fails(open_text(&st, json, data, &err), FM_EFORMAT, text);
    assert_null(st.tensor);
}

TEST(finds_each_tensor_and_its_offset)
{
    struct fm_safetensors st;
    const char *json = "{\"__metadata__\":{\"format\":\"pt\",\"a\":\"x\\ny\"},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[0,12]},"
                       "\"a\":{\"data_offsets\":[12,18],\"dtype\":\"BF16\",\"shape\":[3]}}";
    assert_ok(open_text(&st, json, 18, &err));
    assert_int_equal(st.count, 2);
    assert_int_equal(st.header_bytes, 8 + strlen(json));
    const struct fm_tensor *a = fm_safetensors_find(&st, "a"), *b = fm_safetensors_find(&st, "b");
    assert_non_null(a);
    assert_non_null(b);
    assert_null(fm_safetensors_find(&st, "c"));
    assert_null(fm_safetensors_find(&st, "__metadata__"));
    assert_int_equal(a->dtype, FM_BF16);
    assert_int_equal(a->offset, st.header_bytes + 12);
    assert_int_equal(a->size, 6);
    assert_int_equal(b->dims, 2);
    assert_int_equal(b->shape[0], 3);
    assert_int_equal(fm_tensor_count(b), 3);
    assert_string_equal(fm_safetensors_metadata(&st, "format"), "pt");
    assert_string_equal(fm_safetensors_metadata(&st, "a"), "x\ny");
    assert_null(fm_safetensors_metadata(&st, "b"));
    fm_safetensors_close(&st);
    fm_safetensors_close(&st); /* a second call is allowed */
}

TEST(digest_is_of_length_and_header)
{
    struct fm_safetensors st;
    unsigned char all[8 + 5] = {5, 0, 0, 0, 0, 0, 0, 0, '{', '}', ' ', '\n', ' '};
    struct fm_digest d = fm_digest_of(all, sizeof all);
    assert_ok(open_text(&st, "{} \n ", 0, &err));
    for (int i = 0; i < 16; i++)
        assert_int_equal(st.header_digest[i / 8] >> (56 - 8 * (i % 8)) & 0xff, d.byte[i]);
    fm_safetensors_close(&st);
}

TEST(reads_a_member_inside_another_file)
{
    struct fm_safetensors st;
    struct fm_file f;
    char bytes[512 + 8 + 56 + 4] = {0};
    const char *json = "{\"w\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}";
    size_t n = strlen(json);
    bytes[512] = (char)n;
    memcpy(bytes + 520, json, n);
    const char *path = scratch_write("member", bytes, 520 + n + 3 + 1);
    assert_ok(fm_file_open(&f, path, &err));
    assert_ok(fm_safetensors_open(&st, &f, 512, 8 + n + 3, &err));
    assert_int_equal(st.tensor[0].offset, 520 + n);
    fm_safetensors_close(&st);
    assert_int_equal(fm_safetensors_open(&st, &f, 512, 8 + n + 4, &err), FM_EFORMAT);
    assert_fails(fm_safetensors_open(&st, &f, 512, 8 + n + 5, &err), FM_EFORMAT, "past the end");
    assert_int_equal(fm_safetensors_open(&st, &f, UINT64_MAX, 8, &err), FM_EFORMAT);
    fm_file_close(&f);
}

TEST(accepts_what_the_format_allows)
{
    is_accepted("{}", 0, 0);
    is_accepted("{} \r\n\t ", 0, 0);
    is_accepted(
        "{ \"a\" : { \"dtype\" : \"F64\" , \"shape\" : [ ] , \"data_offsets\" : [ 0 , 8 ] } }", 8,
        1);
    is_accepted("{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, 1);
    is_accepted("{\"a\":{\"dtype\":\"F8_E8M0\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 1);
    is_accepted("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[0,0]},"
                "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                "\"c\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[1,1]}}",
                1, 3);
    is_accepted("{\"A\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                2, 2);
    is_accepted(
        "{\"a..b/c..\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
        1);
    is_accepted("{\"__metadata__\":{}}", 0, 0);
}

TEST(limits_are_exact)
{
    is_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
               "tensor 'a': shape has more than 8 numbers");
    char json[1024], name[600];
    memset(name, 'n', sizeof name);
    name[512] = 0;
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
             name);
    is_accepted(json, 1, 1);
    name[512] = 'n';
    name[513] = 0;
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}",
             name);
    is_refused(json, 1, "too long (limit 512 bytes)");
}

/* An entry begins at every position around the end of the reader's window. */
TEST(header_longer_than_the_window_reads_the_same)
{
    const char *entry = "\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}";
    size_t window = 1 << 20, n = strlen(entry);
    char *json = malloc(3 * window);
    for (int shift = -70; shift <= 3; shift += 1) {
        struct fm_safetensors st;
        size_t pad = (size_t)((int)window + shift);
        memset(json, ' ', 3 * window);
        json[0] = '{';
        memcpy(json + pad, entry, n);
        json[2 * window - 1] = '}';
        int rc = open_path(&st, scratch_safetensors("w.safetensors", json, 3 * window, 1), &err);
        if (rc != FM_OK)
            fail_msg("shift %d: %s", shift, err.text);
        assert_int_equal(st.count, 1);
        fm_safetensors_close(&st);
    }
    free(json);
}

TEST(an_endless_entry_is_named)
{
    size_t size = 4 << 20;
    char *json = malloc(size);
    struct fm_safetensors st;
    memset(json, ' ', size);
    memcpy(json, "{\"w\":", 5);
    memcpy(json + size - 1, "}", 1);
    assert_int_equal(open_path(&st, scratch_safetensors("w.safetensors", json, size, 0), &err),
                     FM_EFORMAT);
    assert_non_null(
        strstr(err.text, "tensor 'w': an entry of the header has more than 262144 bytes"));
    free(json);
}

static char *many_entries(size_t count, uint64_t bytes, size_t *size)
{
    char *json = malloc(count * 128 + 16), *at = json;
    at += sprintf(at, "{");
    for (size_t i = 0; i < count; i++)
        at += sprintf(at,
                      "%s\"model.layers.%zu.mlp.experts.%zu.w%zu.weight\":{\"dtype\":\"U8\","
                      "\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                      i ? "," : "", i % 61, i / 61, i, bytes, bytes * i, bytes * (i + 1));
    at += sprintf(at, "}");
    *size = (size_t)(at - json);
    return json;
}

TEST(hundred_thousand_tensors_open_quickly)
{
    size_t size = 0;
    char *json = many_entries(100000, 3, &size);
    struct fm_safetensors st;
    const char *path = scratch_safetensors("many.safetensors", json, size, 300000);
    free(json);
    clock_t begin = clock();
    assert_ok(open_path(&st, path, &err));
    double opened = (double)(clock() - begin) / CLOCKS_PER_SEC;
    assert_int_equal(st.count, 100000);
    const struct fm_tensor *t = fm_safetensors_find(&st, "model.layers.0.mlp.experts.1.w61.weight");
    assert_non_null(t);
    assert_int_equal(t->offset, st.header_bytes + 3 * 61);
    for (size_t i = 1; i < st.count; i++)
        assert_true(strcmp(st.tensor[i - 1].name, st.tensor[i].name) < 0);
    fm_safetensors_close(&st);
    print_message("100000 tensors, header of %zu bytes: %.3f s of CPU time\n", size, opened);
    assert_true(opened < 5.0); /* usually 0.1 s; sanitizers and emulators take longer */
}

TEST(a_million_tensors_are_refused_in_bounded_memory)
{
    size_t size = 0;
    char *json = many_entries(1000000, 0, &size);
    struct fm_safetensors st;
    const char *path = scratch_safetensors("many.safetensors", json, size, 0);
    free(json);
    assert_fails(open_path(&st, path, &err), FM_EFORMAT, "more than 262144 tensors");
}

TEST(memory_for_a_million_tensors_is_bounded)
{
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* the sanitizer's own memory */
#endif
    long before = scratch_peak_mib();
    FILE *f = fopen("/proc/self/clear_refs", "w"); /* 5: reset the peak */
    if (!f || fputs("5", f) < 0 || fclose(f) != 0)
        skip();
    long base = scratch_peak_mib();
    struct fm_safetensors st;
    assert_int_equal(open_path(&st, scratch("many.safetensors"), &err), FM_EFORMAT);
    long peak = scratch_peak_mib();
    print_message("peak %ld MiB above %ld (earlier %ld)\n", peak - base, base, before);
    assert_true(peak - base <= 64);
}

TEST(ninety_megabytes_of_zeros_in_brackets_are_refused)
{
    size_t size = 90000000;
    char *json = malloc(size);
    struct fm_safetensors st;
    for (size_t i = 0; i < size; i++)
        json[i] = i % 2 ? '0' : ',';
    memcpy(json, "{\"a\":[", 6);
    assert_fails(open_path(&st, scratch_safetensors("zeros", json, size, 0), &err), FM_EFORMAT,
                 "'[' where '{' was expected");
    memcpy(json, "{\"a\":{\"shape\":[0", 16);
    assert_fails(open_path(&st, scratch_safetensors("zeros", json, size, 0), &err), FM_EFORMAT,
                 "shape has more than 8 numbers");
    free(json);
}

TEST(ten_megabyte_name_is_refused)
{
    size_t size = 10 << 20;
    char *json = malloc(size);
    struct fm_safetensors st;
    memset(json, 'n', size);
    memcpy(json, "{\"", 2);
    assert_fails(open_path(&st, scratch_safetensors("name", json, size, 0), &err), FM_EFORMAT,
                 "too long (limit 512 bytes)");
    free(json);
}

TEST(header_of_the_limit_and_one_more)
{
    unsigned char length[8] = {0x00, 0xe1, 0xf5, 0x05}; /* 100,000,000 */
    struct fm_safetensors st;
    const char *path = scratch_write("limit", length, 8);
    assert_fails(open_path(&st, path, &err), FM_EFORMAT,
                 "a header of 100000000 bytes in a file of 8");
    scratch_check(truncate(path, 8 + 100000000) == 0, path);
    assert_fails(open_path(&st, path, &err), FM_EFORMAT, "does not begin with '{'");
    FILE *f = fopen(path, "r+b");
    fseek(f, 8, SEEK_SET);
    fputs("{}", f);
    char *spaces = malloc(1 << 20);
    memset(spaces, ' ', 1 << 20);
    for (size_t left = 100000000 - 2; left > 0;) {
        size_t n = left < 1 << 20 ? left : 1 << 20;
        fwrite(spaces, 1, n, f);
        left -= n;
    }
    fclose(f);
    free(spaces);
    assert_ok(open_path(&st, path, &err));
    assert_int_equal(st.header_bytes, 100000008);
    fm_safetensors_close(&st);
    length[0] = 1;
    path = scratch_write("limit", length, 8);
    scratch_check(truncate(path, 8 + 100000001) == 0, path);
    assert_fails(open_path(&st, path, &err), FM_EFORMAT,
                 "a header of 100000001 bytes (limit 100000000)");
}

TEST(a_sparse_tensor_of_8_tib_is_accepted)
{
    struct fm_safetensors st;
    const char *json =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8796093022208],\"data_offsets\":[0,8796093022208]}}";
    const char *path = scratch_safetensors("hole", json, strlen(json), 0);
    if (truncate(path, (off_t)(8 + strlen(json) + 8796093022208)) != 0) {
        print_message("this filesystem holds no file of 8 TiB\n");
        skip();
    }
    assert_ok(open_path(&st, path, &err));
    assert_int_equal(st.tensor[0].size, 8796093022208);
    fm_safetensors_close(&st);
}

TEST(plan_is_read_back)
{
    struct fm_tensor t[4] = {
        {.name = "z.f32", .dtype = FM_F32, .dims = 2, .shape = {3, 5}},
        {.name = "b.bf16", .dtype = FM_BF16, .dims = 1, .shape = {7}},
        {.name = "quote\"\\\xc3\xa9", .dtype = FM_F32, .dims = 0},
        {.name = "a.u8", .dtype = FM_U8, .dims = 3, .shape = {1, 0, 9}},
    };
    const char *meta[] = {"fm.kind", "ranking\n", NULL};
    char *header = NULL;
    uint64_t header_bytes = 0, file_bytes = 0;
    assert_ok(fm_safetensors_plan(t, 4, meta, &header, &header_bytes, &file_bytes, &err));
    assert_int_equal(header_bytes % FM_ST_ALIGN, 0);
    assert_int_equal(file_bytes, header_bytes + 4 + 60 + 14);
    const char *order[4] = {"quote\"\\\xc3\xa9", "z.f32", "b.bf16", "a.u8"};
    const char *path = scratch_write("plan.safetensors", header, header_bytes);
    scratch_check(truncate(path, (off_t)file_bytes) == 0, path);
    struct fm_safetensors st;
    assert_ok(open_path(&st, path, &err));
    assert_int_equal(st.count, 4);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(t[i].name, order[i]);
        const struct fm_tensor *r = fm_safetensors_find(&st, t[i].name);
        assert_non_null(r);
        assert_int_equal(r->offset, t[i].offset);
        assert_int_equal(r->size, t[i].size);
        assert_int_equal(r->dtype, t[i].dtype);
        assert_int_equal(r->dims, t[i].dims);
        assert_memory_equal(r->shape, t[i].shape, sizeof(uint64_t) * (size_t)t[i].dims);
    }
    assert_string_equal(fm_safetensors_metadata(&st, "format"), "pt");
    assert_string_equal(fm_safetensors_metadata(&st, "fm.kind"), "ranking\n");
    fm_safetensors_close(&st);
    free(header);
}

TEST(plan_of_nothing_is_a_file_too)
{
    char *header = NULL;
    uint64_t header_bytes = 0, file_bytes = 0;
    const char *meta[] = {"format", "np", NULL};
    assert_ok(fm_safetensors_plan(NULL, 0, meta, &header, &header_bytes, &file_bytes, &err));
    assert_int_equal(file_bytes, 4096);
    struct fm_safetensors st;
    assert_ok(open_path(&st, scratch_write("none", header, file_bytes), &err));
    assert_int_equal(st.count, 0);
    assert_string_equal(fm_safetensors_metadata(&st, "format"), "np");
    fm_safetensors_close(&st);
    free(header);
}

TEST(plan_refuses_duplicates_and_overflow)
{
    struct fm_tensor twins[2] = {{.name = "a", .dtype = FM_F32}, {.name = "a", .dtype = FM_U8}};
    struct fm_tensor giant = {
        .name = "g", .dtype = FM_F32, .dims = 2, .shape = {UINT64_MAX / 32, 2}};
    struct fm_tensor odd = {.name = "o", .dtype = FM_F4, .dims = 1, .shape = {3}};
    char *header = NULL;
    uint64_t h = 0, f = 0;
    assert_int_equal(fm_safetensors_plan(twins, 2, NULL, &header, &h, &f, &err), FM_ECONFIG);
    assert_string_equal(err.text, "tensor 'a' would appear twice in the output");
    assert_int_equal(fm_safetensors_plan(&giant, 1, NULL, &header, &h, &f, &err), FM_ECONFIG);
    assert_int_equal(fm_safetensors_plan(&odd, 1, NULL, &header, &h, &f, &err), FM_ECONFIG);
    assert_null(header);
}

TEST_MAIN(NULL, NULL)
