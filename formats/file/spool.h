/*
 * A pipe on standard input, readable as a file: bytes that are needed again are kept in an unlinked
 * temporary file at their own offsets; bytes that are needed once pass through and leave a hole.
 * So a stream much larger than the disk can be checked as it passes, and its structure examined
 * afterwards.
 */
#ifndef FM_SPOOL_H
#define FM_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

struct fm_spool {
    struct fm_file file; /* size: bytes received so far */
    bool ended;          /* the stream has ended */
};

/* True if path is "-" and standard input must be spooled: a pipe, a socket, or a file not at its
 * start. */
bool fm_spool_needed(const char *path);

int fm_spool_begin(struct fm_spool *s, struct fm_err *err);
/* Receive and keep the bytes up to offset `until`, or to the end of the stream. */
int fm_spool_keep(struct fm_spool *s, uint64_t until, struct fm_err *err);
/* Copy bytes [offset, offset + size) to dst: received ones from the file, the rest from the stream
 * without keeping them.  offset is at most the bytes received, unless the stream has ended.
 * FM_EFORMAT if it ends earlier. */
int fm_spool_read(struct fm_spool *s, uint64_t offset, void *dst, size_t size, struct fm_err *err);
void fm_spool_end(struct fm_spool *s); /* zeroed struct is fine */

/* Open the input of a tool: a named file or, for "-", standard input.  A regular file at its start
 * is read in place; other input is copied to an unlinked temporary file first.  FM_EUSAGE if
 * standard input is closed, or a terminal or other device. */
int fm_spool_open(struct fm_file *f, const char *path, struct fm_err *err);

#endif
