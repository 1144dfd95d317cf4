/*
 * A line has the label in 9 columns, the value in 12, and the remark.
 */
#include "cmd/result.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/printable.h"
#include "lib/base/units.h"

cJSON *fm_result_begin(const char *tool)
{
    cJSON *report = cJSON_CreateObject();
    fm_json_add_string(report, "tool", tool);
    return report;
}

char *fm_result_json(const cJSON *report, struct fm_err *err)
{
    char *text = fm_json_print(report), *plain = text ? fm_printable_json(text) : NULL;
    if (!plain)
        fm_fail(err, FM_ENOMEM, "no memory for the report");
    free(text);
    return plain;
}

static void print_line(FILE *out, const char *label, const char *value, const char *remark,
                       va_list args)
{
    char text[512];
    assert(strlen(label) <= 9); /* or the columns of this line differ from those of the others */
    vsnprintf(text, sizeof text, remark, args);
    fprintf(out, "%-9s%12s%s%s\n", label, value, *text ? "  " : "", text);
}

/* The end of each function below: print the line, with its variable arguments. */
#define PRINT_LINE(value)                                                                          \
    do {                                                                                           \
        va_list args;                                                                              \
        va_start(args, remark);                                                                    \
        print_line(r->text, label, value, remark, args);                                           \
        va_end(args);                                                                              \
    } while (0)

void fm_result_bytes(const struct fm_result *r, const char *label, const char *key, uint64_t bytes,
                     const char *remark, ...)
{
    char value[32];
    fm_units_bytes(value, bytes);
    if (key)
        fm_json_add_uint(r->json, key, bytes);
    PRINT_LINE(value);
}

void fm_result_count(const struct fm_result *r, const char *label, const char *key, uint64_t n,
                     const char *remark, ...)
{
    char value[32];
    snprintf(value, sizeof value, "%" PRIu64, n);
    if (key)
        fm_json_add_uint(r->json, key, n);
    PRINT_LINE(value);
}

void fm_result_word(const struct fm_result *r, const char *label, const char *key, const char *word,
                    const char *remark, ...)
{
    if (key)
        fm_json_add_string(r->json, key, word);
    PRINT_LINE(word);
}

void fm_result_real(const struct fm_result *r, const char *label, const char *key, double x,
                    int digits, const char *remark, ...)
{
    char value[32];
    if (digits < 0)
        snprintf(value, sizeof value, "%.*f", -digits, x);
    else
        snprintf(value, sizeof value, "%.*g", digits, x);
    if (key)
        fm_json_add_double(r->json, key, x);
    PRINT_LINE(value);
}

void fm_result_time(const struct fm_result *r, const char *label, const char *key, double seconds,
                    const char *remark, ...)
{
    char value[32];
    fm_units_time(value, seconds);
    if (key)
        fm_json_add_double(r->json, key, seconds);
    PRINT_LINE(value);
}
