/*
 * A tokenizer that is a program of the user's: JSON strings in, JSON arrays of ids out, one per
 * line.  It is fed and listened to at the same time, so it may answer each line at once or read
 * all of them first, and neither side's words have to fit into memory.
 */
#ifndef FM_COMMAND_H
#define FM_COMMAND_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_COMMAND_SILENCE 600 /* seconds; loading a large tokenizer takes some of them */

/* The next whole lines for the command, `count` of them, borrowed until the next call; *lines NULL:
 * that was all. */
typedef int fm_command_feed(void *self, const char **lines, size_t *size, uint64_t *count,
                            struct fm_err *err);

struct fm_command {
    const char *command;    /* for /bin/sh -c */
    fm_command_feed *feed;  /* the lines */
    void *self;             /* of feed */
    uint64_t enough;        /* ids; the line that reaches it is the last that is read.  0: all */
    int silence;            /* seconds without a byte in or out until the command is given up */
    const atomic_int *stop; /* run->stop, or NULL */
};

/*
 * Run the command; its ids go to the temporary file fd as little-endian int32, *size bytes, from
 * *lines lines.  What it gives does not depend on when it gives it: a failure of the command or
 * the feed counts only where `enough` ids did not come before it.
 *
 * FM_ENOENT where the shell does not find the command, FM_EFORMAT where it fails, a line is not
 * array of ids, or there are too few or many lines; FM_EIO where it is killed or silent, FM_ESAVED
 * by *stop.  It gets SIGTERM, and a second later SIGKILL, where it does not end by itself; once it
 * has ended, what it left in the background gets SIGKILL, and is not waited for.  The caller
 * ignores SIGPIPE.
 */
int fm_command_tokens(const struct fm_command *command, int fd, uint64_t *size, uint64_t *lines,
                      struct fm_err *err);

#endif
