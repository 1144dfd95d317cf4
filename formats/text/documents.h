/*
 * Documents in a text file: the rows of JSONL, or a plain text as a whole.  A row is a JSON object
 * on a line of its own; one of its fields is the document.  The file is read in pieces and may be
 * larger than memory; a document has at most FM_DOCUMENT_BYTES_MAX bytes.
 */
#ifndef FM_DOCUMENTS_H
#define FM_DOCUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

#define FM_DOCUMENT_BYTES_MAX (32 << 20)

struct fm_documents {
    struct fm_file file;
    const char *field; /* of a row: the text */
    bool rows;
    bool recognised; /* rows, although the name does not say so */
    bool doubtful;   /* plain text that begins like JSON */
    uint64_t at;     /* bytes read from the file so far */
    uint64_t line;   /* lines before the next record */
    char *buffer;
    size_t capacity, have, used;
};

/*
 * Records are rows if the name ends in .jsonl, .ndjson or .json in any case, or if the first line
 * that is not blank is a JSON object with `field` (borrowed; NULL: "text") or another usual field
 * of texts, or with any fields if `field` is not NULL; standard input is "-".  A byte-order mark at
 * the beginning is skipped.  FM_EFORMAT names input that is not text: compressed files, Parquet,
 * UTF-16.
 */
int fm_documents_open(struct fm_documents *d, const char *path, const char *field,
                      struct fm_err *err);
void fm_documents_close(struct fm_documents *d);

/* The next record, borrowed until the next call, and the line it begins on; *record NULL: the end.
 * Empty records are skipped.  FM_EFORMAT if one is over the limit. */
int fm_documents_next(struct fm_documents *d, const char **record, size_t *size, uint64_t *line,
                      struct fm_err *err);

/* Copy the text of a record into dst (size + 1 bytes): for a row, the string of its field.
 * Thread-safe. FM_EFORMAT if there is no such string, or it has a NUL. */
int fm_documents_text(const struct fm_documents *d, const char *record, size_t size, char *dst,
                      size_t *length, struct fm_err *err);

#endif
