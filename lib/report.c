#include "lib/report.h"

#include <stdlib.h>
#include <string.h>

#include "formats/file.h"
#include "formats/json.h"

cJSON *fm_report_begin(const char *tool)
{
    cJSON *report = cJSON_CreateObject();
    cJSON_AddStringToObject(report, "tool", tool);
    return report;
}

void fm_report_uint(cJSON *object, const char *key, uint64_t value)
{
    fm_json_add_uint(object, key, value);
}

void fm_report_double(cJSON *object, const char *key, double value)
{
    fm_json_add_double(object, key, value);
}

char *fm_report_json(const cJSON *report, struct fm_err *err)
{
    char *text = fm_json_print(report);
    if (!text)
        fm_fail(err, FM_ENOMEM, "no memory for the report");
    return text;
}

int fm_report_write(const cJSON *report, const char *path, struct fm_err *err)
{
    char *text = fm_report_json(report, err);
    if (!text)
        return err->code;
    int code = fm_output_text(path, text, err);
    free(text);
    return code;
}
