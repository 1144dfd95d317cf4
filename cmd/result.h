/*
 * A result, described once for people and for programs.  A row is a line of text,
 * "memory        1.5 GB  at most", and a member of a JSON object, "memory": 1500000000: its
 * description states the label, the key, the value with its unit, and a remark.
 *
 * Rows appear in both outputs in the order of the calls.  A row without a key (NULL) is only in the
 * text.  What is only in the JSON is added with the functions of formats/json/json.h, and a
 * sentence that is only in the text is printed to it.
 */
#ifndef FM_RESULT_H
#define FM_RESULT_H

#include <stdio.h>

#include "formats/json/json.h"
#include "lib/base/err.h"

struct fm_result {
    FILE *text;
    cJSON *json;
};

/* Begin an object with the key "tool", which identifies a report: the tool's name, and a second
 * word if it makes several kinds ("fm-bench kernels").  The caller owns it. */
cJSON *fm_result_begin(const char *tool);

/* The complete text, indented by two spaces, with a newline; free() it.  NULL: FM_ENOMEM. */
char *fm_result_json(const cJSON *report, struct fm_err *err);

/* The remark is printed with printf(3); "" adds nothing to the line. */
void fm_result_bytes(const struct fm_result *r, const char *label, const char *key, uint64_t bytes,
                     const char *remark, ...) FM_PRINTF(5, 6);
void fm_result_count(const struct fm_result *r, const char *label, const char *key, uint64_t n,
                     const char *remark, ...) FM_PRINTF(5, 6);
void fm_result_word(const struct fm_result *r, const char *label, const char *key, const char *word,
                    const char *remark, ...) FM_PRINTF(5, 6);
/* In the text, `digits` significant ones or, if negative, that many after the point. */
void fm_result_real(const struct fm_result *r, const char *label, const char *key, double x,
                    int digits, const char *remark, ...) FM_PRINTF(6, 7);
/* Seconds in the JSON; days, hours, minutes in the text. */
void fm_result_time(const struct fm_result *r, const char *label, const char *key, double seconds,
                    const char *remark, ...) FM_PRINTF(5, 6);

#endif
