/*
 * Fuzz the readers of every kind of text file, and of a tokenizer command's output.  Documents
 * must not overlap, a text must not be longer than its document, and each counted id must be
 * stored.
 */
#include "tests/fuzz/fuzz.h"

#include "formats/text/documents.h"
#include "formats/text/idlines.h"

/* rows: read the file as if its name ended in .jsonl. */
static void read_documents(const uint8_t *data, size_t size, bool rows)
{
    struct fm_documents d;
    struct fm_err err = {0};
    const char *record = "";
    uint64_t line = 0, before = 0;
    size_t bytes = 0, length = 0, sum = 0;
    int rc = fm_documents_open(&d, fuzz_file(data, size), NULL, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    if (rc != FM_OK)
        return;
    d.rows = rows;
    while (rc == FM_OK && record) {
        rc = fm_documents_next(&d, &record, &bytes, &line, &err);
        must(rc == FM_OK || rc == FM_EFORMAT);
        if (rc != FM_OK || !record)
            break;
        must(line > before && (sum += bytes) <= size);
        before = line;
        char *dst = malloc(bytes + 1);
        must(dst != NULL);
        if (fm_documents_text(&d, record, bytes, dst, &length, &err) == FM_OK)
            must(length <= bytes && !memchr(dst, 0, length));
        free(dst);
    }
    fm_documents_close(&d);
}

static void read_ids(const uint8_t *data, size_t size)
{
    static struct fm_idlines l;
    static int fd = -1;
    struct fm_err err = {0};
    if (fd < 0)
        fd = memfd_create("ids", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, 0) == 0);
    l = (struct fm_idlines){.name = "x", .fd = fd, .enough = size % 3 ? 0 : 5};
    int rc = FM_OK;
    for (size_t at = 0; rc == FM_OK && at < size; at += 7)
        rc = fm_idlines_feed(&l, (const char *)data + at, size - at < 7 ? size - at : 7, &err);
    if (rc == FM_OK)
        rc = fm_idlines_end(&l, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    must(2 * l.ids <= size + 1 && l.lines <= size);
    struct stat st;
    must(rc != FM_OK || (fstat(fd, &st) == 0 && (uint64_t)st.st_size == 4 * l.ids));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_documents(data, size, true);
    read_documents(data, size, false);
    read_ids(data, size);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
