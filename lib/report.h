/*
 * Reports: what a tool found, as JSON for scripts.  The tree is made with cJSON; integers and
 * doubles go through these helpers, because cJSON prints large ones wrongly.
 */
#ifndef FM_REPORT_H
#define FM_REPORT_H

#include <stdint.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"

/* An object that begins with the tool's name; the caller's. */
cJSON *fm_report_begin(const char *tool);

/* Members of an object, printed exactly. */
void fm_report_uint(cJSON *object, const char *key, uint64_t value);
void fm_report_double(cJSON *object, const char *key, double value);

/* The whole text, two-space indented, with a newline; free() it.  NULL: FM_ENOMEM. */
char *fm_report_json(const cJSON *report, struct fm_err *err);

/* The same into a file, whole or not at all; an older report is replaced. */
int fm_report_write(const cJSON *report, const char *path, struct fm_err *err);

#endif
