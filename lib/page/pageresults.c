/*
 * Figures from files.  The files are untrusted: every number is checked against its possible range,
 * and a budget must remove a whole number of channels of this family, which the budgets of a model
 * of a different shape almost never do.  Strings are copied unchanged, because pagetext.h escapes
 * every string of the page.
 */
#include "lib/page/pageresults.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "formats/quant/encode.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define SERIES_MAX 64
#define NAME_BYTES_MAX 64
#define POINTS_MAX 256 /* limit of points of a series; longer series are thinned evenly */

/* A file that is being read. */
struct reading {
    const struct fm_pagefacts *facts;
    const cJSON *from; /* the parsed report */
    cJSON *set;        /* the JSON made from it */
    struct fm_err *err;
};

static int count_of(const struct reading *r, const cJSON *o, const char *key, int64_t most,
                    int64_t *value)
{
    return fm_json_get_int(o, key, 0, most, value, r->err);
}

/* A required number. */
static int real_of(const struct reading *r, const cJSON *o, const char *key, double most,
                   double *value)
{
    *value = -1;
    int rc = fm_json_opt_double(o, key, 0, most, value, r->err);
    if (!rc && *value < 0)
        rc = fm_fail(r->err, FM_EFORMAT, "key \"%s\" is missing", key);
    return rc;
}

static const cJSON *array_of(const struct reading *r, const char *key)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(r->from, key);
    if (cJSON_IsArray(array))
        return array;
    fm_fail(r->err, FM_EFORMAT, "key \"%s\" is not an array", key);
    return NULL;
}

/* Channels that a budget removes. */
static int removed_of(const struct reading *r, double budget, uint64_t *removed)
{
    const struct fm_list *list = &r->facts->list;
    double all = (double)list->M * list->experts * list->channels, n = budget * all;
    *removed = (uint64_t)llround(n);
    if (fabs(n - (double)*removed) > 1e-6 + 1e-15 * all)
        return fm_fail(r->err, FM_ECONFIG,
                       "budget %.9g is not a whole number of this family's %.0f channels: the "
                       "figures belong to another family",
                       budget, all);
    return FM_OK;
}

/* ---- series ---- */

/* The "points" of the series with that name, created if missing.  NULL: an error, or out of
 * memory, which page.c reports after it has read all files. */
static cJSON *points_of(const struct reading *r, const char *name, const char *role)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(r->set, "series"), *series;
    cJSON_ArrayForEach(series, list)
    {
        const char *has = fm_json_string_value(series, "name");
        if (has && strcmp(has, name) == 0)
            return cJSON_GetObjectItemCaseSensitive(series, "points");
    }
    if (strlen(name) >= NAME_BYTES_MAX || cJSON_GetArraySize(list) >= SERIES_MAX) {
        fm_fail(r->err, FM_EFORMAT,
                "more than %d series of figures, or a name of more than %d bytes", SERIES_MAX,
                NAME_BYTES_MAX - 1);
        return NULL;
    }
    series = fm_json_add_object(list, NULL);
    fm_json_add_string(series, "name", name);
    fm_json_add_string(series, "role", role);
    return fm_json_add_array(series, "points");
}

/* Half the width of the interval [low, high] with that name, or -1. */
static int half_of(const struct reading *r, const cJSON *o, const char *key, double *half)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, key);
    *half = -1;
    if (!list)
        return FM_OK;
    const cJSON *low = cJSON_GetArrayItem(list, 0), *high = cJSON_GetArrayItem(list, 1);
    if (cJSON_GetArraySize(list) == 2 && cJSON_IsNumber(low) && cJSON_IsNumber(high))
        *half = (high->valuedouble - low->valuedouble) / 2;
    return *half >= 0 && *half <= DBL_MAX
               ? FM_OK
               : fm_fail(r->err, FM_EFORMAT, "key \"%s\" is not an interval", key);
}

/* Append null and half the widths of the intervals of ce and kl (-1: kl has no interval) to the
 * five values of a point.  Append nothing if ce has no interval. */
static int add_halves(const struct reading *r, cJSON *point, const cJSON *quality)
{
    double ce, kl;
    int rc = half_of(r, quality, "ce_interval", &ce);
    if (!rc)
        rc = half_of(r, quality, "kl_interval", &kl);
    if (rc || ce < 0)
        return rc;
    fm_json_add_null(point, NULL);
    fm_json_add_double(point, NULL, ce);
    fm_json_add_double(point, NULL, kl);
    return FM_OK;
}

/* Add one measured quality as a point; its budget is in `beside` or, if that is NULL, in `quality`.
 * Add nothing if `quality` is null, or its loss is null because it is not finite. */
static int add_point(const struct reading *r, const char *name, const char *role,
                     const cJSON *quality, const cJSON *beside)
{
    double budget, kl, agree;
    uint64_t removed;
    if (!cJSON_IsObject(quality) || cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(quality, "ce")))
        return FM_OK;
    double ce;
    if (real_of(r, beside ? beside : quality, "budget", 1, &budget) ||
        removed_of(r, budget, &removed) || real_of(r, quality, "ce", DBL_MAX, &ce) ||
        real_of(r, quality, "kl", DBL_MAX, &kl) || real_of(r, quality, "agree", 1, &agree))
        return r->err->code;
    cJSON *points = points_of(r, name, role);
    if (!points)
        return r->err->code;
    cJSON *point = fm_json_add_array(points, NULL);
    fm_json_add_double(point, NULL, budget);
    fm_json_add_uint(point, NULL, fm_pagefacts_bytes(r->facts, removed));
    fm_json_add_double(point, NULL, ce);
    fm_json_add_double(point, NULL, kl);
    fm_json_add_double(point, NULL, agree);
    return add_halves(r, point, quality);
}

/* Return n such that keeping every n-th row of an array makes a series of at most POINTS_MAX
 * points. */
static int stride_of(const cJSON *rows)
{
    return (cJSON_GetArraySize(rows) + POINTS_MAX - 1) / POINTS_MAX;
}

/* ---- the tools' reports ---- */

static int read_held(const struct reading *r)
{
    int64_t sequences, tokens;
    int rc = count_of(r, r->from, "sequences", INT32_MAX, &sequences);
    if (!rc)
        rc = count_of(r, r->from, "seq_len", INT32_MAX, &tokens);
    if (rc)
        return rc;
    cJSON *held = fm_json_add_array(r->set, "held");
    fm_json_add_uint(held, NULL, (uint64_t)sequences);
    fm_json_add_uint(held, NULL, (uint64_t)tokens);
    if (!fm_json_has(r->from, "tokens"))
        return FM_OK;
    rc = count_of(r, r->from, "tokens", INT64_MAX, &tokens);
    fm_json_add_uint(held, NULL, (uint64_t)tokens);
    return rc;
}

/* Rows of {"mask", "family": {...}, "uniform": {...}, ...}. */
static int read_quality(const struct reading *r)
{
    const cJSON *rows = array_of(r, "rows"), *row, *cell;
    int rc = rows ? read_held(r) : r->err->code, i = 0;
    cJSON_ArrayForEach(row, rows)
    {
        if (i++ % stride_of(rows) != 0)
            continue;
        for (cell = row->child; !rc && cell; cell = cell->next)
            rc = cJSON_IsObject(cell) && cell->string
                     ? add_point(r, cell->string,
                                 strcmp(cell->string, "family") == 0 ? "family" : "control", cell,
                                 NULL)
                     : FM_OK;
    }
    return rc;
}

/* {"baseline", "seconds", "peak_bytes", "cells": [null, {...}]}. */
static int read_baseline(const struct reading *r, const cJSON *row)
{
    char name[NAME_BYTES_MAX + 1];
    const char *baseline;
    double seconds = -1;
    int64_t peak = -1;
    if (fm_json_get_string(row, "baseline", &baseline, r->err) ||
        fm_json_opt_double(row, "seconds", 0, DBL_MAX, &seconds, r->err) ||
        fm_json_opt_int(row, "peak_bytes", 0, INT64_MAX, &peak, r->err))
        return r->err->code;
    snprintf(name, sizeof name, "%.*s", NAME_BYTES_MAX, baseline);
    const cJSON *cells = cJSON_GetObjectItemCaseSensitive(row, "cells"), *cell;
    cJSON_ArrayForEach(cell, cells)
    {
        if (add_point(r, name, "baseline", cell, NULL))
            return r->err->code;
    }
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(r->set, "series");
    cJSON *series = cJSON_GetArrayItem(list, cJSON_GetArraySize(list) - 1);
    const char *last = fm_json_string_value(series, "name");
    if (!last || strcmp(last, name) != 0)
        return FM_OK;
    if (seconds >= 0)
        fm_json_add_double(series, "seconds", seconds);
    if (peak >= 0)
        fm_json_add_uint(series, "peak_bytes", (uint64_t)peak);
    return FM_OK;
}

static int read_baselines(const struct reading *r)
{
    const cJSON *rows = array_of(r, "rows"), *row;
    const cJSON *full = cJSON_GetObjectItemCaseSensitive(r->from, "full");
    double ce;
    if (!rows || read_held(r))
        return r->err->code;
    if (cJSON_IsObject(full)) {
        if (real_of(r, full, "ce", DBL_MAX, &ce))
            return r->err->code;
        fm_json_add_double(r->set, "full", ce);
    }
    cJSON_ArrayForEach(row, rows)
    {
        if (read_baseline(r, row))
            return r->err->code;
    }
    return FM_OK;
}

/* Rows of {"budget", "method", "quality", "recovered"}; the last key only from fm-recover. */
static int read_masks(const struct reading *r, bool recover)
{
    const cJSON *rows = array_of(r, "budgets"), *row;
    int rc = rows ? FM_OK : r->err->code, i = 0;
    cJSON_ArrayForEach(row, rows)
    {
        const char *method = "before";
        if (rc || i++ % stride_of(rows) != 0)
            continue;
        if (!recover)
            rc = fm_json_get_string(row, "method", &method, r->err);
        if (!rc)
            rc = add_point(r, method, recover ? "before" : "family",
                           cJSON_GetObjectItemCaseSensitive(row, "quality"), row);
        if (!rc && recover)
            rc = add_point(r, "after", "after", cJSON_GetObjectItemCaseSensitive(row, "recovered"),
                           row);
    }
    return rc;
}

/* ---- an exported directory ---- */

/* The bytes of a member's tensors in a layout. */
static int bytes_of(const struct reading *r, const char *layout, double budget, uint64_t *bytes)
{
    const struct fm_list *list = &r->facts->list;
    for (int i = 0; i < list->rows; i++)
        for (int k = 0; k < list->kinds && fabs(list->row[i].budget - budget) < 1e-9; k++)
            if (strcmp(list->kind[k].name, layout) == 0) {
                *bytes = list->row[i].form[k].tensors;
                return FM_OK;
            }
    return fm_fail(r->err, FM_ECONFIG,
                   "this family has no member of budget %.9g in a layout of that name: the figures "
                   "belong to another family",
                   budget);
}

static int read_export(const struct reading *r)
{
    char name[NAME_BYTES_MAX + 32];
    const char *layout, *weights = fm_json_string_value(r->from, "weights");
    double budget, ce;
    uint64_t bytes = 0;
    int64_t files = -1;
    /* The sizes in the list do not apply if the experts are rounded to a format. */
    if (fm_json_get_string(r->from, "layout", &layout, r->err) ||
        real_of(r, r->from, "budget", 1, &budget) || bytes_of(r, layout, budget, &bytes) ||
        real_of(r, r->from, "ce", DBL_MAX, &ce) ||
        fm_json_opt_int(r->from, "bytes", 0, INT64_MAX, &files, r->err))
        return r->err->code;
    bool rounded = weights && fm_quantisers_find(weights);
    snprintf(name, sizeof name, "%.*s%s%s", NAME_BYTES_MAX, layout, rounded ? " " : "",
             rounded ? weights : "");
    cJSON *points = points_of(r, name, "family");
    if (!points)
        return r->err->code;
    cJSON *point = fm_json_add_array(points, NULL);
    fm_json_add_double(point, NULL, budget);
    fm_json_add_uint(point, NULL, rounded && files > 0 ? (uint64_t)files : bytes);
    fm_json_add_double(point, NULL, ce);
    fm_json_add_null(point, NULL);
    fm_json_add_null(point, NULL);
    int rc = add_halves(r, point, r->from);
    if (rc || !fm_json_has(r->from, "original_ce") || fm_json_has(r->set, "full"))
        return rc;
    rc = real_of(r, r->from, "original_ce", DBL_MAX, &ce);
    if (!rc)
        fm_json_add_double(r->set, "full", ce);
    return rc;
}

/* The set of directories measured on the same tokens, or NULL. */
static cJSON *set_of(const cJSON *sets, const char *digest)
{
    cJSON *set;
    cJSON_ArrayForEach(set, sets)
    {
        const char *has = fm_json_string_value(set, "digest");
        if (has && strcmp(has, digest) == 0)
            return set;
    }
    return NULL;
}

/* ---- reports of any kind ---- */

static int read_tool(const struct reading *r, const char *tool, bool exported)
{
    if (exported)
        return read_export(r);
    if (strcmp(tool, "fm-bench quality") == 0)
        return read_quality(r);
    if (strcmp(tool, "fm-bench baselines") == 0)
        return read_baselines(r);
    if (strcmp(tool, "fm-train") == 0)
        return read_masks(r, false);
    if (strcmp(tool, "fm-recover") == 0)
        return read_masks(r, true);
    return fm_fail(r->err, FM_ECONFIG,
                   "it is not what fm-bench quality, fm-bench baselines, fm-train or fm-recover "
                   "writes with --json");
}

/* Add the figures to a new set or, for an exported directory, to the set of directories measured on
 * the same tokens.  *named is the file whose name was added last. */
static int read_figures(struct reading *r, cJSON *sets, const char *tool, const char *path,
                        const char **named)
{
    const char *digest = NULL;
    int rc = FM_OK;
    bool exported = strcmp(tool, "fm-bench quality") == 0 && fm_json_has(r->from, "layout");
    if (exported)
        rc = fm_json_get_string(r->from, "digest", &digest, r->err);
    if (rc)
        return rc;
    r->set = exported ? set_of(sets, digest) : NULL;
    if (!r->set) {
        r->set = fm_json_add_object(sets, NULL);
        fm_json_add_array(r->set, "files");
        fm_json_add_string(r->set, "tool", tool);
        fm_json_add_array(r->set, "series");
        if (exported) {
            fm_json_add_bool(r->set, "exports", 1);
            fm_json_add_string(r->set, "digest", digest);
            rc = read_held(r);
        }
    }
    cJSON *files = cJSON_GetObjectItemCaseSensitive(r->set, "files");
    if (path != *named || cJSON_GetArraySize(files) == 0)
        fm_json_add_string(files, NULL, fm_pagefacts_name(path));
    *named = path;
    return rc ? rc : read_tool(r, tool, exported);
}

/* One measurement, or those of several directories. */
static int read_report(struct reading *r, cJSON *sets, const char *path)
{
    const char *tool, *named = NULL;
    const cJSON *several = cJSON_GetObjectItemCaseSensitive(r->from, "exports"), *one;
    int rc = fm_json_get_string(r->from, "tool", &tool, r->err);
    if (rc || !cJSON_IsArray(several))
        return rc ? rc : read_figures(r, sets, tool, path, &named);
    if (!several->child)
        return fm_fail(r->err, FM_EFORMAT, "\"exports\" is empty");
    cJSON_ArrayForEach(one, several)
    {
        r->from = one;
        if (!rc)
            rc = cJSON_IsObject(one) && fm_json_has(one, "layout")
                     ? read_figures(r, sets, "fm-bench quality", path, &named)
                     : fm_fail(r->err, FM_EFORMAT,
                               "\"exports\" has an entry that is not an exported directory");
    }
    return rc;
}

int fm_pageresults_add(cJSON *array, const char *path, const struct fm_pagefacts *facts,
                       struct fm_err *err)
{
    struct fm_file file = {0};
    struct reading r = {.facts = facts, .err = err};
    char *text = NULL;
    size_t size;
    cJSON *tree = NULL;
    int rc = fm_file_open(&file, path, err);
    if (rc)
        return rc;
    rc = fm_file_slurp(&file, FILE_BYTES_MAX, &text, &size, err);
    if (!rc)
        rc = fm_json_tree(&tree, text, size, err);
    if (!rc) {
        r.from = tree;
        rc = read_report(&r, array, path);
    }
    cJSON_Delete(tree);
    free(text);
    fm_file_close(&file);
    return rc ? fm_within(err, "--figures %s", path) : FM_OK;
}
