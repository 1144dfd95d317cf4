/*
 * Reports: what a tool found, as JSON for scripts.  The tree is made with cJSON; integers and
 * doubles go through these helpers, because cJSON prints large ones wrongly.
 */
#ifndef FM_REPORT_H
#define FM_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"

/* An object that begins with the key "tool", by which a report is known: the tool's name, and a
 * second word where it makes several kinds ("fm-bench io").  The caller's. */
cJSON *fm_report_begin(const char *tool);

/* Members of an object, printed exactly. */
void fm_report_uint(cJSON *object, const char *key, uint64_t value);
void fm_report_double(cJSON *object, const char *key, double value);

/* The whole text, two-space indented, with a newline; free() it.  NULL: FM_ENOMEM. */
char *fm_report_json(const cJSON *report, struct fm_err *err);

/* The text is one whole report of `tool`, of any kind. */
bool fm_report_is_own(const char *text, size_t size, const char *tool);

/* The text into a file, by fm_guard_text. */
int fm_report_write(const cJSON *report, const char *tool, const char *path, bool force,
                    struct fm_err *err);

#endif
