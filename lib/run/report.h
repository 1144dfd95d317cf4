/*
 * Reports: what a tool found, as JSON for scripts.  The tree is built with the functions
 * of formats/json/json.h, which this includes for the tools.
 */
#ifndef FM_REPORT_H
#define FM_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/json/json.h"
#include "lib/base/err.h"

/* An object that begins with the key "tool", by which a report is known: the tool's name, and a
 * second word where it makes several kinds ("fm-bench io").  The caller's. */
cJSON *fm_report_begin(const char *tool);

/* The whole text, two-space indented, with a newline; free() it.  NULL: FM_ENOMEM. */
char *fm_report_json(const cJSON *report, struct fm_err *err);

/* The text is one whole report of `tool`, of any kind. */
bool fm_report_is_own(const char *text, size_t size, const char *tool);

/* The text into a file, by fm_guard_text. */
int fm_report_write(const cJSON *report, const char *tool, const char *path, bool force,
                    struct fm_err *err);

#endif
