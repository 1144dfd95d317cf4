/* Queries about the data of a run, names of kinds, and parsing of FILE:WEIGHT. */
#include "lib/run/inputs.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "formats/tensor/hfcache.h"

#define DECIMALS 6 /* limit of a weight's decimals */

const char *fm_inputs_first(const struct fm_inputs *inputs)
{
    return inputs->tokens[0].path ? inputs->tokens[0].path : inputs->texts[0].path;
}

int fm_inputs_find_model(struct fm_inputs *inputs, struct fm_err *err)
{
    static char path[PATH_MAX];
    if (!inputs->model || access(inputs->model, F_OK) == 0 || !fm_hfcache_is_name(inputs->model))
        return FM_OK;
    int rc = fm_hfcache_find(path, sizeof path, inputs->model, err);
    if (!rc)
        inputs->model = path;
    return rc;
}

bool fm_inputs_evaluate(const struct fm_inputs *inputs)
{
    return inputs->eval_tokens[0] || inputs->eval_texts[0];
}

/* True for digits with at most one point, and nothing else. */
static bool looks_like_a_number(const char *text)
{
    size_t digits = strspn(text, "0123456789"), more = 0;
    const char *end = text + digits;
    if (*end == '.') {
        more = strspn(end + 1, "0123456789");
        end += 1 + more;
    }
    return *end == '\0' && digits + more > 0;
}

static bool take_weight(uint64_t *weight, const char *text)
{
    uint64_t v = 0;
    size_t whole = strcspn(text, "."), decimals = text[whole] ? strlen(text) - whole - 1 : 0;
    if (whole > 7 || decimals > DECIMALS)
        return false;
    for (const char *p = text; *p; p++)
        v = *p == '.' ? v : v * 10 + (uint64_t)(*p - '0');
    for (size_t i = decimals; i < DECIMALS; i++)
        v *= 10;
    *weight = v;
    return v > 0 && v <= (uint64_t)1000000 * FM_WEIGHT_ONE;
}

int fm_inputs_parse(const char *spec, size_t *length, uint64_t *weight, struct fm_err *err)
{
    const char *colon = strrchr(spec, ':');
    *length = strlen(spec);
    *weight = FM_WEIGHT_ONE;
    if (!colon || !looks_like_a_number(colon + 1))
        return FM_OK;
    *length = (size_t)(colon - spec);
    if (*length == 0 || !take_weight(weight, colon + 1))
        return fm_fail(err, FM_EUSAGE,
                       "'%s': a weight is above 0, at most a million, with at most %d decimals",
                       spec, DECIMALS);
    return FM_OK;
}

void fm_inputs_kind(char name[FM_KIND_BYTES], const char *path)
{
    const char *base = basename(path), *point = strrchr(base, '.');
    int length = point && point > base ? (int)(point - base) : (int)strlen(base);
    snprintf(name, FM_KIND_BYTES, "%.*s", length, strcmp(path, "-") == 0 ? "stdin" : base);
    for (char *p = name; *p; p++)
        if (!strchr("-._0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", *p))
            *p = '_';
}
