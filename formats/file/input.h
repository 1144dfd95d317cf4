/* The input of a tool: a named file, or standard input. */
#ifndef FM_INPUT_H
#define FM_INPUT_H

#include "formats/file/file.h"

/* "-": standard input; a regular file at its start is read in place, other input is copied to an
 * unlinked temporary file first.  FM_EUSAGE if it is closed, or a terminal or other device. */
int fm_input_open(struct fm_file *f, const char *path, struct fm_err *err);

#endif
