/* Test every format of token files, and files that resemble one. */
#include "formats/text/tokens.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

/* Write a .npy file of version 1 with this dict, padded as by numpy; returns its path. */
static const char *npy(const char *dict, const void *data, size_t size)
{
    char bytes[8192];
    size_t n = strlen(dict), header = (10 + n + 1 + 63) / 64 * 64 - 10;
    memcpy(bytes, "\x93NUMPY\x01\x00", 8);
    bytes[8] = (char)(header & 0xff);
    bytes[9] = (char)(header >> 8);
    memset(bytes + 10, ' ', header);
    memcpy(bytes + 10, dict, n);
    bytes[10 + header - 1] = '\n';
    memcpy(bytes + 10 + header, data, size);
    return scratch_write("tokens.npy", bytes, 10 + header + size);
}

static void is_refused(const char *path, int code, const char *text)
{
    struct fm_tokens t;
    struct fm_err err = {0};
    assert_fails(fm_tokens_open(&t, path, &err), code, text);
    assert_true(t.file.path == NULL && t.count == 0);
}

static enum fm_advice advice_on(const char *path)
{
    struct fm_tokens t;
    struct fm_err err = {0};
    assert_int_not_equal(fm_tokens_open(&t, path, &err), FM_OK);
    return err.advice;
}

TEST(reads_every_npy_type)
{
    uint16_t u2[6] = {0, 1, 2, 300, 65535, 7};
    int32_t i4[6] = {0, 1, 2, 300, 65535, 7};
    int64_t i8[6] = {0, 1, 2, 300, 65535, 7};
    const struct {
        const char *dict;
        const void *data;
        size_t size;
        uint64_t rows, cols;
    } c[] = {
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6,), }", u2, sizeof u2, 0, 0},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (2, 3), }", u2, sizeof u2, 2, 3},
        {"{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }", i4, sizeof i4, 3, 2},
        {"{'descr': '<u4', 'fortran_order': False, 'shape': (1, 6)}", i4, sizeof i4, 1, 6},
        {"{'shape':(6,),'fortran_order':False,'descr':'<i8'}", i8, sizeof i8, 0, 0},
    };
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        struct fm_tokens t;
        int32_t ids[6] = {0};
        if (fm_tokens_open(&t, npy(c[k].dict, c[k].data, c[k].size), &err) != FM_OK)
            fail_msg("%s: %s", c[k].dict, err.text);
        assert_int_equal(t.count, 6);
        assert_int_equal(t.rows, c[k].rows);
        assert_int_equal(t.cols, c[k].cols);
        assert_ok(fm_tokens_read(&t, 0, ids, 6, 65536, &err));
        assert_memory_equal(ids, i4, sizeof ids);
        assert_ok(fm_tokens_read(&t, 3, ids, 2, 65536, &err));
        assert_int_equal(ids[1], 65535);
        assert_ok(fm_tokens_read(&t, 6, ids, 0, 1, &err));
        assert_fails(fm_tokens_read(&t, 1, ids, 4, 65535, &err), FM_EFORMAT,
                     "token 4 is 65535 (vocabulary 65535)");
        fm_tokens_close(&t);
        fm_tokens_close(&t);
    }
}

TEST(negative_and_huge_ids_are_named)
{
    struct fm_tokens t;
    int32_t i4[2] = {5, -1}, ids[2];
    int64_t i8[2] = {5, (int64_t)1 << 40};
    const char *path = npy("{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", i4, 8);
    assert_ok(fm_tokens_open(&t, path, &err));
    assert_fails(fm_tokens_read(&t, 0, ids, 2, 100, &err), FM_EFORMAT,
                 "token 1 is -1 (vocabulary 100)");
    fm_tokens_close(&t);
    path = npy("{'descr': '<u4', 'fortran_order': False, 'shape': (2,), }", i4, 8);
    assert_ok(fm_tokens_open(&t, path, &err));
    assert_fails(fm_tokens_read(&t, 0, ids, 2, 100, &err), FM_EFORMAT, "token 1 is 4294967295");
    fm_tokens_close(&t);
    path = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", i8, 16);
    assert_ok(fm_tokens_open(&t, path, &err));
    assert_fails(fm_tokens_read(&t, 0, ids, 2, INT32_MAX, &err), FM_EFORMAT,
                 "token 1 is 1099511627776");
    fm_tokens_close(&t);
}

TEST(refuses_other_npy_files)
{
    static const uint16_t data[6] = {0};
    const struct {
        const char *dict, *text;
    } c[] = {
        {"{'descr': '|O', 'fortran_order': False, 'shape': (6,), }",
         "'<u2', '<u4', '<i4' or '<i8'"},
        {"{'descr': '>u2', 'fortran_order': False, 'shape': (6,), }",
         "'<u2', '<u4', '<i4' or '<i8'"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", "'<f4'"},
        {"{'descr': '<u2', 'fortran_order': True, 'shape': (2, 3), }", "Fortran order"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (), }",
         "where a dimension was expected"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6), }", "where ',' was expected"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (1, 2, 3), }", "one or two dimensions"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (-6,), }", "where a dimension"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }",
         "5 tokens of 2 bytes are announced, but there are 12"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }",
         "7 tokens of 2 bytes are announced, but there are 12"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (0,), }", "no tokens"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
         "too many"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (9223372036854775811,), }",
         "are announced"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (18446744073709551616,), }",
         "too large"},
        {"{'descr': '<u2', 'fortran_order': False, }", "each of descr"},
        {"{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (6,), }",
         "each of descr"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6,), 'x': 1}", "each of descr"},
        {"{'descr': '<u2', 'fortran_order': False, 'shape': (6,)} x",
         "where the end of the dictionary"},
        {"", "where '{' was expected"},
    };
    for (size_t k = 0; k < sizeof c / sizeof *c; k++)
        is_refused(npy(c[k].dict, data, sizeof data), FM_EFORMAT, c[k].text);
    is_refused(scratch_write("t", "\x93NUMPY\x03\0\x10\0\0\0", 12), FM_EFORMAT, "version 3.0");
    is_refused(scratch_write("t", "\x93NUMPY\x02\0\xff\xff\xff\xff", 12), FM_EFORMAT,
               "header of 4294967295 bytes");
    is_refused(scratch_write("t", "\x93NUMPY\x01\0\x10\0\0\0", 12), FM_EFORMAT,
               "header of 16 bytes in a file of 12");
    is_refused(scratch_write("t", "\x93NUMPY\x01", 7), FM_EFORMAT, "too few");
}

TEST(the_name_of_a_raw_file_states_its_type)
{
    unsigned char b[8] = {1, 0, 2, 0, 3, 0, 4, 0};
    struct fm_tokens t;
    int32_t ids[4];
    const char *path = scratch_write("raw", b, sizeof b);
    is_refused(path, FM_EUSAGE, "it is not a .npy file");
    assert_int_equal(advice_on(path), FM_ADVISE_TOKEN_TYPE);
    assert_ok(fm_tokens_open(&t, scratch_write("ids.u16", b, sizeof b), &err));
    assert_ok(fm_tokens_read(&t, 0, ids, 4, 5, &err));
    assert_int_equal(ids[3], 4);
    fm_tokens_close(&t);
    assert_ok(fm_tokens_open(&t, scratch_write("ids.u32", b, sizeof b), &err));
    assert_int_equal(t.count, 2);
    assert_ok(fm_tokens_read(&t, 0, ids, 2, 0x40004, &err));
    assert_int_equal(ids[1], 0x40003);
    fm_tokens_close(&t);
    is_refused(scratch_write("ids.u16", b, 7), FM_EFORMAT, "7 bytes are not whole tokens");
    is_refused(scratch_write("ids.u16", b, 0), FM_EFORMAT, "is empty");
    is_refused(scratch("absent.u16"), FM_ENOENT, "cannot open");
}

TEST(long_reads_cross_chunks)
{
    enum { N = 10007 };
    uint16_t *b = malloc(N * sizeof *b);
    int32_t *ids = malloc(N * sizeof *ids);
    struct fm_tokens t;
    for (int i = 0; i < N; i++)
        b[i] = (uint16_t)(i * 7 % 9973);
    assert_ok(fm_tokens_open(&t, scratch_write("raw.u16", b, N * sizeof *b), &err));
    assert_ok(fm_tokens_read(&t, 3, ids, N - 3, 9973, &err));
    for (int i = 3; i < N; i++)
        assert_int_equal(ids[i - 3], i * 7 % 9973);
    fm_tokens_close(&t);
    free(b);
    free(ids);
}

TEST(reads_the_golden_tokens)
{
    struct fm_tokens t;
    int32_t ids[8];
    assert_ok(fm_tokens_open(&t, "golden/odd-mixtral/tokens.npy", &err));
    assert_true(t.count >= 8);
    assert_ok(fm_tokens_read(&t, 0, ids, 8, INT32_MAX, &err));
    fm_tokens_close(&t);
}

TEST_MAIN(NULL, NULL)
