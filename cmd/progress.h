/*
 * Progress on standard error: one line with rate and time left on a terminal, a plain line
 * every few seconds elsewhere, nothing when quiet.  One per process.
 */
#ifndef FM_PROGRESS_H
#define FM_PROGRESS_H

#include <stdbool.h>

#include "lib/run/run.h"

/* Fill *progress; quiet: with nothing.  `tool` is borrowed. */
void fm_progress_begin(struct fm_progress *progress, const char *tool, bool quiet);
/* A warning, also where progress is quiet: something that was asked for is lost. */
void fm_progress_warn(const char *text);
/* From now on every line begins with the time, and there is no line that is updated. */
void fm_progress_log(void);
/* "2026-11-22T10:22:00Z ", or "" where that is not asked for: what a line on standard error begins
 * with. */
const char *fm_progress_stamp(char text[32]);

/* Take an unfinished line off the terminal. */
void fm_progress_end(void);

#endif
