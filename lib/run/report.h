/*
 * Reports: the results of a tool as JSON for scripts.  The tree is built with the functions of
 * formats/json/json.h, which this header includes for the tools.
 */
#ifndef FM_REPORT_H
#define FM_REPORT_H

#include "formats/json/json.h"
#include "lib/base/err.h"

/* Begin an object with the key "tool", which identifies a report: the tool's name, and a second
 * word if it makes several kinds ("fm-bench kernels").  The caller owns it. */
cJSON *fm_report_begin(const char *tool);

/* The complete text, indented by two spaces, with a newline; free() it.  NULL: FM_ENOMEM. */
char *fm_report_json(const cJSON *report, struct fm_err *err);

#endif
