/*
 * A tokenizer that is a program of the user's: JSON strings in, JSON arrays of ids out, one per
 * line.  It reads and writes files, so it may read all before it writes anything.
 */
#ifndef FM_COMMAND_H
#define FM_COMMAND_H

#include <stdint.h>

#include "lib/base/err.h"

/*
 * Run `command` by the shell on the lines in *fd (*size bytes, `lines` of them), close it, and make
 * *fd a new temporary file with all ids as little-endian int32, *size bytes.  FM_EFORMAT where
 * the command fails, or a line of its output is no array of ids, or there are too few or many.
 */
int fm_command_tokens(const char *command, int *fd, uint64_t *size, uint64_t lines,
                      struct fm_err *err);

#endif
