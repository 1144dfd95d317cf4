/* Documents of text files: where they begin and end, and files that do not fit into memory. */
#include "formats/text/documents.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

/* Check every document of a text against `wanted`, which ends with NULL. */
static void documents_are(const char *name, const char *text, size_t size,
                          const char *const *wanted)
{
    struct fm_documents d;
    struct fm_err err = {0};
    const char *record = "";
    char dst[256];
    int n = 0;
    assert_ok(fm_documents_open(&d, scratch_write(name, text, size), NULL, &err));
    for (size_t length, bytes; record; n++) {
        uint64_t line;
        assert_ok(fm_documents_next(&d, &record, &bytes, &line, &err));
        if (!record)
            break;
        assert_ok(fm_documents_text(&d, record, bytes, dst, &length, &err));
        if (!wanted[n] || strlen(wanted[n]) != length || memcmp(dst, wanted[n], length) != 0)
            fail_msg("%s: document %d is '%.*s'", name, n, (int)length, dst);
    }
    assert_null(wanted[n]);
    fm_documents_close(&d);
}

#define DOCUMENTS(name, text, ...)                                                                 \
    documents_are(name, text, sizeof(text) - 1, (const char *const[]){__VA_ARGS__, NULL})

TEST(text_is_one_document)
{
    DOCUMENTS("a.txt", "one\ntwo\n\nthree\n", "one\ntwo\n\nthree\n");
    DOCUMENTS("a.txt", "\n \t\r\n\none\r\n", "\n \t\r\n\none\r\n");
    DOCUMENTS("a.txt", "\xef\xbb\xbfone", "one");
}

TEST(rows_are_documents)
{
    DOCUMENTS("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}", "one", "two");
    DOCUMENTS("a.ndjson", "\r\n\n{\"text\": \"a\\nb\\u00e9\\ud83d\\ude00\"}\r\n  \n",
              "a\nb\u00e9\U0001f600");
    DOCUMENTS("a.json", "\xef\xbb\xbf{\"x\": [1, {}], \"te\\u0078t\": \"one\"}\n", "one");
    DOCUMENTS("a.jsonl", "{\"text\": \"\"}\n{\"text\": \" \"}\n", "", " ");
}

/* Whether a file is rows, whatever its name is, and what is said about it. */
TEST(rows_are_recognised_by_the_first_line)
{
    enum { PLAIN, DOUBTFUL, RECOGNISED, NAMED };
    static const struct {
        const char *name, *text, *field;
        int kind;
    } files[] = {
        {"a.JSONL", "text", NULL, NAMED},
        {"a.Json", "{\"x\": 1}", NULL, NAMED},
        {"a.jsonl.1", "{\"text\": \"one\"}\n", NULL, RECOGNISED},
        {"part_aa", "{\"id\": {\"a\": [1]}, \"text\": \"one\"}\nnot a row", NULL, RECOGNISED},
        {"part.gz", "\xef\xbb\xbf\n \r\n  {\"text\": \"one\"} \r\n", NULL, RECOGNISED},
        {"a.txt", "{\"text\": null}", NULL, RECOGNISED},
        {"a.txt", "{\"score\": NaN, \"text\": \"one\"}", NULL, RECOGNISED},
        {"a.txt", "{\"text\": \"one\", \"score\": NaN}", NULL, RECOGNISED},
        {"a.txt", "{\"messages\": [{\"role\": \"user\"}]}", NULL, RECOGNISED},
        {"a.txt", "{\"content\": \"one\"}", NULL, RECOGNISED},
        {"a.txt", "{\"page\": \"one\"}", "page", RECOGNISED},
        {"a.txt", "{\"x\": \"one\"}", "page", RECOGNISED},
        {"a.txt", "{\"x\": \"one\"}", NULL, DOUBTFUL},
        {"a.txt", "{\"x\": {\"text\": \"one\"}}", NULL, DOUBTFUL},
        {"a.txt", "{\"text\": \"one\",\n\"x\": 1}", NULL, DOUBTFUL},
        {"a.txt", "[{\"text\": \"one\"}]", NULL, DOUBTFUL},
        {"a.txt", "{\"text\": \"one\"} and more", NULL, DOUBTFUL},
        {"a.c", "{\n    int text = 1;\n}\n", NULL, PLAIN},
        {"a.tex", "{\\bf text}: \"text\"", "page", PLAIN},
        {"a.py", "{'text': 'one'}", NULL, PLAIN},
        {"a.txt", "{}", NULL, PLAIN},
        {"a.txt", "[1, 2]", NULL, PLAIN},
        {"a.txt", "one\n{\"text\": \"two\"}", NULL, PLAIN},
        {"a.txt", "\n \n", NULL, PLAIN},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct fm_documents d;
        const char *path = scratch_write(files[i].name, files[i].text, strlen(files[i].text));
        assert_ok(fm_documents_open(&d, path, files[i].field, &err));
        if (d.rows != (files[i].kind >= RECOGNISED) ||
            d.recognised != (files[i].kind == RECOGNISED) ||
            d.doubtful != (files[i].kind == DOUBTFUL))
            fail_msg("%s: %s", files[i].name, files[i].text);
        fm_documents_close(&d);
    }
}

/* The first row of a file with any name may be longer than the piece that is read first. */
TEST(a_long_first_row_is_recognised)
{
    enum { SIZE = 3 << 20 };
    char *text = malloc(SIZE);
    assert_non_null(text);
    struct fm_documents d;
    memset(text, 'a', SIZE);
    memcpy(text, "\n{\"text\": \"", 11);
    memcpy(text + SIZE - 3, "\"}\n", 3);
    assert_ok(fm_documents_open(&d, scratch_write("part", text, SIZE), NULL, &err));
    assert_true(d.rows);
    const char *record;
    size_t size, length;
    uint64_t line;
    assert_ok(fm_documents_next(&d, &record, &size, &line, &err));
    assert_int_equal(line, 2);
    assert_ok(fm_documents_text(&d, record, size, text, &length, &err));
    assert_int_equal(length, SIZE - 11 - 3);
    fm_documents_close(&d);
    free(text);
}

/* Rows cross the ends of the 1 MiB pieces in which files are read, at different offsets. */
TEST(rows_may_cross_pieces)
{
    enum { ROWS = 300, LONG = 11003 };
    char *text = malloc(ROWS * (LONG + 64)), *dst = malloc(LONG + 64);
    size_t size = 0, length, bytes;
    assert_true(text && dst);
    for (int i = 0; i < ROWS; i++) {
        size += (size_t)sprintf(text + size, "{\"text\": \"%d ", i);
        memset(text + size, 'a' + i % 26, LONG);
        size += LONG;
        size += (size_t)sprintf(text + size, "\"}%s", i % 3 ? "\n" : "\r\n\n");
    }
    struct fm_documents d;
    const char *record;
    uint64_t line;
    assert_int_equal(fm_documents_open(&d, scratch_write("long.jsonl", text, size), NULL, &err), 0);
    for (int i = 0; i < ROWS; i++) {
        assert_ok(fm_documents_next(&d, &record, &bytes, &line, &err));
        assert_non_null(record);
        assert_int_equal(line, 1 + i + (i + 2) / 3);
        assert_ok(fm_documents_text(&d, record, bytes, dst, &length, &err));
        assert_int_equal(strtol(dst, NULL, 10), i);
        assert_int_equal(dst[length - 1], 'a' + i % 26);
    }
    assert_ok(fm_documents_next(&d, &record, &bytes, &line, &err));
    assert_null(record);
    assert_true(d.capacity <= 4 << 20);
    fm_documents_close(&d);
    free(text);
    free(dst);
}

TEST(a_line_of_2_gb_is_refused_early)
{
    static const char *const names[] = {"huge.jsonl", "huge.txt"};
    for (int i = 0; i < 2; i++) {
        struct fm_documents d;
        const char *record;
        size_t size;
        uint64_t line;
        const char *path = scratch_write(names[i], "{\"text\": \"\n{\"text\": \"", 21);
        assert_int_equal(truncate(path, (off_t)2 << 30), 0);
        assert_ok(fm_documents_open(&d, path, NULL, &err));
        int rc = fm_documents_next(&d, &record, &size, &line, &err);
        if (rc == FM_OK)
            rc = fm_documents_next(&d, &record, &size, &line, &err);
        assert_int_equal(rc, FM_EFORMAT);
        assert_non_null(strstr(err.text, i ? "over 33554432 bytes" : "line 2 is over"));
        assert_int_equal(err.advice, i ? FM_ADVISE_ROWS : FM_ADVISE_NONE);
        assert_true(d.capacity <= (size_t)4 * FM_DOCUMENT_BYTES_MAX);
        fm_documents_close(&d);
    }
}

TEST(a_file_that_shrinks_is_an_error)
{
    struct fm_documents d;
    const char *record = "";
    size_t size;
    uint64_t line;
    int rc = FM_OK;
    const char *path = scratch_write("shrinks.txt", "one\n\n", 5);
    assert_int_equal(truncate(path, 5 << 20), 0);
    assert_ok(fm_documents_open(&d, path, NULL, &err));
    assert_int_equal(truncate(path, 3 << 20), 0);
    while (rc == FM_OK && record)
        rc = fm_documents_next(&d, &record, &size, &line, &err);
    assert_int_equal(rc, FM_EIO);
    assert_non_null(strstr(err.text, "became shorter"));
    fm_documents_close(&d);
}

TEST_MAIN(NULL, NULL)
