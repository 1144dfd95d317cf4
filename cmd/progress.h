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
/* From now on every line begins with the time, and no line is updated in place. */
void fm_progress_log(void);
/* The beginning of a line on standard error: "2026-11-22T10:22:00Z ", or "" without --log-time. */
const char *fm_progress_stamp(char text[32]);

/* Remove an unfinished line from the terminal. */
void fm_progress_end(void);

#endif
