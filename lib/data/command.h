/*
 * Runs the user's own tokenizer program: JSON strings in, JSON arrays of ids out, one per line.
 * Its input is written while its output is read, so it may answer each line at once or read all
 * lines first, and neither input nor output has to fit into memory.
 */
#ifndef FM_COMMAND_H
#define FM_COMMAND_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_COMMAND_SILENCE 600 /* seconds; leaves time to load a large tokenizer */

/* The next `count` whole lines for the command, borrowed until the next call; *lines is NULL at the
 * end. */
typedef int fm_command_feed(void *self, const char **lines, size_t *size, uint64_t *count,
                            struct fm_err *err);

struct fm_command {
    const char *command;    /* for /bin/sh -c */
    fm_command_feed *feed;  /* the lines */
    void *self;             /* argument of feed */
    uint64_t enough;        /* stop after the line that reaches this many ids; 0: read all lines */
    int silence;            /* give up after this many seconds without a byte in or out */
    const atomic_int *stop; /* run->stop, or NULL */
};

/*
 * Run the command; its ids go to the temporary file fd as little-endian int32, *size bytes, from
 * *lines lines.  The result does not depend on timing: a failure of the command or the feed counts
 * only if it comes before `enough` ids.
 *
 * FM_ENOENT if the shell cannot run the command; FM_EFORMAT if it fails, a line is not an array of
 * ids, or there are too few or too many lines; FM_EIO if it is killed or silent; FM_ESAVED if *stop
 * is set.  If it does not end by itself it gets SIGTERM, and a second later SIGKILL.  Background
 * processes that it leaves behind get SIGKILL and are not waited for.  The caller must ignore
 * SIGPIPE.
 */
int fm_command_tokens(const struct fm_command *command, int fd, uint64_t *size, uint64_t *lines,
                      struct fm_err *err);

#endif
