/* Reports of the tools as JSON: recognising and writing them. */
#include "lib/run/report.h"

#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/printable.h"
#include "lib/run/guard.h"

#define KEY "tool"

cJSON *fm_report_begin(const char *tool)
{
    cJSON *report = cJSON_CreateObject();
    fm_json_add_string(report, KEY, tool);
    return report;
}

char *fm_report_json(const cJSON *report, struct fm_err *err)
{
    char *text = fm_json_print(report), *plain = text ? fm_printable_json(text) : NULL;
    if (!plain)
        fm_fail(err, FM_ENOMEM, "no memory for the report");
    free(text);
    return plain;
}

/* True for a text that consists of {"tool": "fm-bench io", ...}; a log that only begins with a
 * report does not count. */
bool fm_report_is_own(const char *text, size_t size, const char *tool)
{
    struct fm_json j;
    struct fm_err unused = {0};
    char key[sizeof KEY], value[64];
    fm_json_init(&j, text, size);
    if (fm_json_expect(&j, '{', &unused) || fm_json_string(&j, key, sizeof key, &unused) ||
        strcmp(key, KEY) != 0 || fm_json_expect(&j, ':', &unused) ||
        fm_json_string(&j, value, sizeof value, &unused))
        return false;
    value[strcspn(value, " ")] = '\0';
    return strcmp(value, tool) == 0 && !fm_json_check(text, size, &unused);
}

int fm_report_write(const cJSON *report, const char *tool, const char *path, bool force,
                    struct fm_err *err)
{
    char *text = fm_report_json(report, err);
    if (!text)
        return err->code;
    int rc = fm_guard_text(path, text, fm_report_is_own, tool, force, err);
    free(text);
    return rc;
}
