/*
 * Standard input that is not a file, as one: bytes that are wanted again are kept in an unlinked
 * temporary file at their own offsets, bytes that are wanted once pass and leave a hole there.
 * So a stream far larger than the disk can be checked on its way, and its structure looked at
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
    struct fm_file file; /* size: bytes that came so far */
    bool ended;          /* there are no more */
};

/* True where path is "-" and standard input must be spooled: a pipe, or a file not at its start. */
bool fm_spool_needed(const char *path);

int fm_spool_begin(struct fm_spool *s, struct fm_err *err);
/* Keep what comes up to offset `until`, or to the end of the stream. */
int fm_spool_keep(struct fm_spool *s, uint64_t until, struct fm_err *err);
/* Bytes [offset, offset + size): what came before from the file, the rest from the stream, to dst
 * alone.  offset is at most what came.  FM_EFORMAT where the stream ends before. */
int fm_spool_read(struct fm_spool *s, uint64_t offset, void *dst, size_t size, struct fm_err *err);
void fm_spool_end(struct fm_spool *s); /* zeroed struct is fine */

#endif
