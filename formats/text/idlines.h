/*
 * Lines of JSON arrays of token ids, [1, 2, 3], which arrive in pieces of any size and are written
 * to a temporary file as little-endian int32.  Blank lines are skipped; the last line may lack its
 * line feed.
 */
#ifndef FM_IDLINES_H
#define FM_IDLINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_IDLINES_CHUNK 4096
#define FM_IDLINES_MAX (64 << 20) /* limit of the ids of one line */

struct fm_idlines {
    const char *name; /* for messages */
    int fd;           /* the temporary file */
    uint64_t enough;  /* number of ids to read, 0: all.  The line that reaches it is the last */
    uint64_t lines;   /* number of complete lines */
    uint64_t ids;     /* ids of these lines, and of the one that is being read */
    bool done;        /* limit reached: the rest is ignored */
    /* The state inside a line, the number that is being read, and ids not yet in the file. */
    enum {
        FM_IDLINES_LINE,
        FM_IDLINES_FIRST,
        FM_IDLINES_NEXT,
        FM_IDLINES_DIGITS,
        FM_IDLINES_COMMA,
        FM_IDLINES_END
    } place;
    uint64_t id, before; /* before: ids of earlier lines */
    size_t held;
    int32_t chunk[FM_IDLINES_CHUNK];
};

/* FM_EFORMAT names line and byte. */
int fm_idlines_feed(struct fm_idlines *l, const char *bytes, size_t n, struct fm_err *err);
/* Write the remaining ids at the end of the input.  FM_EFORMAT in the middle of a line. */
int fm_idlines_end(struct fm_idlines *l, struct fm_err *err);

#endif
