/* Reports of the tools as JSON. */
#include "lib/run/report.h"

#include <stdlib.h>

#include "formats/json/json.h"
#include "lib/base/printable.h"

cJSON *fm_report_begin(const char *tool)
{
    cJSON *report = cJSON_CreateObject();
    fm_json_add_string(report, "tool", tool);
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
