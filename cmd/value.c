/*
 * A size like 23.4GB is computed in integers, because it must be exact to the byte.  Whole numbers
 * are decimal.  Real numbers are finite and have any form that strtod reads, without a leading
 * space or plus sign.  No tool calls setlocale, so the decimal separator is always a point.
 */
#include "cmd/value.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bench/plot.h"
#include "lib/masks/decimal.h"

/* Columns of option and argument in the long and in the short help. */
#define LEFT 31
#define BRIEF_LEFT 26

static bool parse_count(uint64_t *value, const char *text, const char **end)
{
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return false;
    *value = v;
    *end = p;
    return p > text;
}

static uint64_t unit_of(const char *suffix)
{
    static const char letters[] = "KMGT";
    if (!*suffix || strcmp(suffix, "B") == 0)
        return 1;
    const char *at = strchr(letters, *suffix == 'k' ? 'K' : *suffix);
    bool binary = strcmp(suffix + 1, "iB") == 0 || suffix[1] == '\0';
    if (!at || (!binary && strcmp(suffix + 1, "B") != 0))
        return 0;
    uint64_t unit = 1;
    for (const char *p = letters; p <= at; p++)
        unit *= binary ? 1024 : 1000;
    return unit;
}

/* A fraction of a byte is dropped.  K and KiB are 1024, KB is 1000. */
static bool parse_size(uint64_t *value, const char *text)
{
    const char *p;
    uint64_t whole, fraction = 0, scale = 1;
    if (!parse_count(&whole, text, &p))
        return false;
    if (*p == '.') {
        const char *digits = p + 1;
        if (!parse_count(&fraction, digits, &p) || p - digits > 9)
            return false;
        for (const char *d = digits; d < p; d++)
            scale *= 10;
    }
    uint64_t unit = unit_of(p);
    unsigned __int128 bytes =
        (unsigned __int128)whole * unit + (unsigned __int128)fraction * unit / scale;
    *value = (uint64_t)bytes;
    return unit && bytes <= INT64_MAX;
}

static int index_of(const char *choices, const char *text)
{
    size_t len = strlen(text);
    for (int i = 0;; i++) {
        size_t span = strcspn(choices, "|");
        if (span == len && memcmp(choices, text, len) == 0)
            return i;
        if (!choices[span])
            return -1;
        choices += span + 1;
    }
}

static bool in_limits(const struct fm_cli_option *o, double v)
{
    return (o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max);
}

static bool parse_int(const struct fm_cli_option *o, const char *text)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    bool digits = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1]);
    if (!digits || *end || errno || v < INT32_MIN || v > INT32_MAX || !in_limits(o, (double)v))
        return false;
    *(int *)o->value = (int)v;
    return true;
}

static bool parse_ints(const struct fm_cli_option *o, const char *text)
{
    int *list = o->value, n = 0;
    char *end;
    for (;; text = end + 1) {
        long v = strtol(text, &end, 10);
        if (n == FM_CLI_INTS_MAX || end == text || (*end && *end != ',') ||
            !in_limits(o, (double)v))
            return false;
        list[n++] = (int)v;
        list[n] = 0;
        if (!*end)
            return true;
    }
}

static bool parse_real(const struct fm_cli_option *o, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || strchr("+ \t\n", text[0]) || !isfinite(v) || !in_limits(o, v))
        return false;
    *(double *)o->value = v;
    return true;
}

static bool append(const char **list, const char *text)
{
    int n = 0;
    while (n < FM_INPUTS_MAX && list[n])
        n++;
    if (n == FM_INPUTS_MAX || !*text)
        return false;
    list[n] = text;
    return true;
}

/* Paths of sources without their weights, until the process ends. */
struct path {
    struct path *next;
    char text[];
};

static bool append_source(struct fm_source *list, const char *text)
{
    static struct path *paths;
    struct fm_err unused = {0};
    size_t length;
    int n = 0;
    while (n < FM_INPUTS_MAX && list[n].path)
        n++;
    if (n == FM_INPUTS_MAX || !*text || fm_inputs_parse(text, &length, &list[n].weight, &unused))
        return false;
    struct path *p = calloc(1, sizeof *p + length + 1);
    if (!p)
        return false;
    p->next = paths;
    paths = p;
    list[n].path = memcpy(p->text, text, length);
    return true;
}

bool fm_value_parse(const struct fm_cli_option *o, const char *text)
{
    const char *end;
    struct fm_err unused = {0};
    switch (o->kind) {
    case FM_CLI_FLAG:
        *(bool *)o->value = true;
        return true;
    case FM_CLI_HELP:
        *(const char **)o->value = text ? text : "";
        return !text || strcmp(text, "all") == 0;
    case FM_CLI_TEXT:
    case FM_CLI_READ:
    case FM_CLI_RESULT:
    case FM_CLI_EXPORT:
    case FM_CLI_PLOT:
    case FM_CLI_JOURNAL:
        *(const char **)o->value = text;
        return *text != '\0';
    case FM_CLI_LIST:
    case FM_CLI_READS:
        return append((const char **)o->value, text);
    case FM_CLI_SOURCES:
        return append_source(o->value, text);
    case FM_CLI_INT:
        return parse_int(o, text);
    case FM_CLI_INTS:
        return parse_ints(o, text);
    case FM_CLI_COUNT64:
        return parse_count(o->value, text, &end) && !*end;
    case FM_CLI_SIZE:
        return parse_size(o->value, text);
    case FM_CLI_REAL:
        return parse_real(o, text);
    case FM_CLI_DECIMAL:
        return !fm_decimal_parse(o->value, text, o->name, &unused) &&
               in_limits(o, fm_decimal_value(o->value));
    case FM_CLI_DECIMALS:
        return fm_decimals_parse(o->value, text);
    case FM_CLI_CHOICE:
        *(int *)o->value = index_of(o->arg, text);
        return *(int *)o->value >= 0;
    }
    return false;
}

void fm_value_explain(char *text, size_t size, const struct fm_cli_option *o, const char *given)
{
    bool fraction = o->kind == FM_CLI_DECIMAL || (o->kind == FM_CLI_REAL && o->max == 1);
    double share = fraction ? fm_decimal_percent(given, strlen(given)) : 0;
    if (o->kind == FM_CLI_DECIMAL)
        snprintf(text, size, "use a decimal %s 1 with at most 9 places, such as %.6g",
                 o->min > 0 ? "above 0, up to" : "from 0 to", share > 0 ? share : 0.4);
    else if (o->kind == FM_CLI_DECIMALS)
        snprintf(text, size, "use decimals from 0 to 1 with at most 9 places, such as 0.2,0.4");
    else if (share > 0)
        snprintf(text, size, "use a number from %.15g to 1, here %.6g", o->min, share);
    else if (o->kind == FM_CLI_CHOICE)
        snprintf(text, size, "use %s", o->arg);
    else if (o->kind == FM_CLI_HELP)
        snprintf(text, size, "use --help or --help=all");
    else if (o->kind == FM_CLI_SIZE)
        snprintf(text, size, "use a size such as 4GiB, 23.4GB or 512M");
    else if (o->kind == FM_CLI_SOURCES)
        snprintf(text, size,
                 "use a name, at most %d times; a weight is above 0, at most a "
                 "million, with at most 6 decimals",
                 FM_INPUTS_MAX);
    else if (o->kind == FM_CLI_READS || o->kind == FM_CLI_LIST)
        snprintf(text, size, "use a name, at most %d times", FM_INPUTS_MAX);
    else if (o->kind == FM_CLI_INTS)
        snprintf(text, size, "use at most %d numbers from %.15g to %.15g", FM_CLI_INTS_MAX, o->min,
                 o->max);
    else if (o->min != 0 || o->max != 0)
        snprintf(text, size, "use a number from %.15g to %.15g", o->min, o->max);
    else
        snprintf(text, size, "use a %s",
                 o->kind == FM_CLI_INT || o->kind == FM_CLI_COUNT64 ? "whole number" : "name");
}

void fm_value_files(struct fm_guard *g, const struct fm_cli_option *o, const char *what)
{
    static const enum fm_guard_kind kind[] = {[FM_CLI_RESULT] = FM_GUARD_RESULT,
                                              [FM_CLI_EXPORT] = FM_GUARD_DIRECTORY,
                                              [FM_CLI_PLOT] = FM_GUARD_SIDE,
                                              [FM_CLI_JOURNAL] = FM_GUARD_STATE};
    const char *const *value = o->value;
    switch (o->kind) {
    case FM_CLI_READ:
        fm_guard_reads(g, what, *value);
        break;
    case FM_CLI_READS:
        for (; *value; value++)
            fm_guard_reads(g, what, *value);
        break;
    case FM_CLI_SOURCES:
        for (const struct fm_source *s = o->value; s->path; s++)
            fm_guard_reads(g, what, s->path);
        break;
    case FM_CLI_RESULT:
    case FM_CLI_EXPORT:
    case FM_CLI_PLOT:
    case FM_CLI_JOURNAL:
        fm_guard_writes(g, what, *value, kind[o->kind], fm_plot_is_own);
        break;
    default:
        break;
    }
}

static void print_left(char *left, size_t size, const struct fm_cli_option *o, const char *arg)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, size, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? arg : "");
}

void fm_value_print(const struct fm_cli_option *o)
{
    char left[128];
    print_left(left, sizeof left, o, o->arg);
    if (strlen(left) >= LEFT)
        printf("  %s\n  %-*s%s\n", left, LEFT, "", o->help);
    else
        printf("  %-*s%s\n", LEFT, left, o->help);
}

void fm_value_print_short(const struct fm_cli_option *o)
{
    char left[128], arg[32] = "", help[128];
    size_t columns = 80 - 2 - BRIEF_LEFT;
    if (o->arg)
        snprintf(arg, sizeof arg, "%s", o->arg);
    if (o->arg && 7 + strlen(o->name) + strlen(o->arg) >= BRIEF_LEFT && strchr(arg, '|'))
        snprintf(arg + strcspn(arg, "|"), 5, "|...");
    snprintf(help, sizeof help, "%s", o->help);
    if (strlen(help) > columns) {
        help[strcspn(help, ";")] = '\0';
        assert(strlen(help) + 1 < sizeof help); /* a long help has a first clause that is short */
        if (strchr(help, '(') && !strchr(help, ')'))
            snprintf(help + strlen(help), 2, ")");
    }
    print_left(left, sizeof left, o, arg);
    printf("  %-*s %s\n", BRIEF_LEFT - 1, left, help);
}
