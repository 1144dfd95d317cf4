#include "cmd/offer.h"

#include <stdlib.h>

#include "lib/list.h"
#include "lib/report.h"

static void format_count(char text[32], uint64_t n)
{
    fm_cli_bytes(text, n);
    for (char *p = text; *p; p++)
        if (*p == 'B')
            *p = '\0';
        else if (*p == 'k')
            *p = 'K';
}

static void row_text(FILE *out, const struct fm_list_row *r)
{
    char bytes[32], params[32], active[32];
    fm_cli_bytes(bytes, r->bytes);
    format_count(params, r->params);
    format_count(active, r->params_active);
    fprintf(out, "%6.4f  %-14s %5u %8.1f %5u %9s %9s %9s", r->budget, r->method, r->width_min,
            r->width_mean, r->width_max, bytes, params, active);
    if (r->measured)
        fprintf(out, " %9.4f %8.4f %6.1f%s", r->ce, r->kl, 100 * r->agree,
                r->recovered ? "  recovered" : "");
    fputc('\n', out);
}

static void table(FILE *out, const struct fm_list *list)
{
    fprintf(out, "%s, stage %s: %d layers, %d experts (%d per token), hidden %d, channels %d, %s\n",
            list->family, list->stage, list->layers, list->experts, list->experts_per_token,
            list->hidden, list->channels, list->dtype);
    if (list->adapter_budget >= 0)
        fprintf(out, "adapter trained at budget %.4f\n", list->adapter_budget);
    if (list->rows == 0) {
        fputs("no budgets yet: fm-train makes them\n", out);
        return;
    }
    fprintf(out, "%6s  %-14s %5s %8s %5s %9s %9s %9s %9s %8s %6s\n", "budget", "method", "min",
            "mean", "max", "bytes", "params", "active", "CE", "KL", "agree%");
    for (int i = 0; i < list->rows; i++)
        row_text(out, &list->row[i]);
}

static cJSON *list_json(const struct fm_list *list, struct fm_err *err)
{
    char *text = fm_list_json(list);
    cJSON *tree = text ? cJSON_Parse(text) : NULL;
    if (!tree)
        fm_fail(err, FM_ENOMEM, "no memory for the list");
    free(text);
    return tree;
}

int fm_offer(const struct fm_cli *cli, struct fm_err *err)
{
    struct fm_list list;
    struct fm_cli_text text;
    int code = fm_list_read(&list, cli->run.input, err);
    if (code == FM_OK)
        code = fm_cli_text_open(&text, err);
    if (code == FM_OK) {
        table(text.out, &list);
        code = fm_cli_result(cli, &text, list_json(&list, err), err);
    }
    fm_list_release(&list);
    return code;
}
