/*
 * Progress on standard error: one line with rate and time left on a terminal, a plain line
 * every few seconds elsewhere, nothing when quiet.  One per process.
 */
#ifndef FM_PROGRESS_H
#define FM_PROGRESS_H

#include <stdbool.h>

#include "lib/run/run.h"

/* Fill *progress; with no functions if quiet. `tool` is borrowed. */
void fm_progress_begin(struct fm_progress *progress, const char *tool, bool quiet);
/* Print a warning even if progress is quiet, because something that the user requested is lost. */
void fm_progress_warn(const char *text);
/* Remove an unfinished line from the terminal. */
void fm_progress_end(void);

#endif
