/*
 * An export is a checkpoint to the engine, so its loss is that of one lane at the widths that its
 * files have; a directory that holds all members is cut to the one it starts with.  Nothing of the
 * bundle is needed: what was uploaded is what is measured.
 */
#include "lib/bench/exported.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/data/calib.h"
#include "lib/export/exportplan.h"
#include "lib/export/layouts.h"
#include "lib/learn/quality.h"

#define TEXT_BYTES_MAX ((size_t)64 << 20) /* config.json of a family of many experts is large */

struct subject {
    struct fm_model *model, *original;
    struct fm_calib train, held;
    uint32_t *widths; /* (M, E) of the member that it starts with; NULL: as the files are */
};

bool fm_bench_is_export(const char *path)
{
    struct stat st;
    struct fm_err none = {0};
    char *mark = fm_file_join(path, FM_EXPORT_JSON, &none);
    bool is = mark && stat(path, &st) == 0 && S_ISDIR(st.st_mode) && stat(mark, &st) == 0;
    free(mark);
    return is;
}

static int read_json(cJSON **json, const char *directory, const char *name, struct fm_err *err)
{
    char *text = NULL;
    size_t size;
    int rc = fm_file_slurp_in(directory, name, TEXT_BYTES_MAX, &text, &size, err);
    if (!rc && fm_json_tree(json, text, size, err))
        rc = fm_within(err, "%s/%s", directory, name);
    free(text);
    return rc;
}

/* What fm-export.json says it is. */
static int read_claim(struct fm_bench_exported *r, const char *directory, struct fm_err *err)
{
    cJSON *json = NULL;
    const char *name = NULL;
    int rc = read_json(&json, directory, FM_EXPORT_JSON, err);
    if (!rc)
        rc = fm_json_get_string(json, "layout", &name, err);
    const struct fm_layout *layout = !rc ? fm_layouts_find(name) : NULL;
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(json, "budget");
    if (!rc && (!layout || !cJSON_IsNumber(budget) || !(budget->valuedouble >= 0) ||
                !(budget->valuedouble < 1)))
        rc = fm_fail(err, FM_EFORMAT, "%s/" FM_EXPORT_JSON ": no layout and budget of ours",
                     directory);
    if (!rc) {
        snprintf(r->layout, sizeof r->layout, "%s", layout->name);
        r->whole = layout->all_members;
        r->budget = budget->valuedouble;
    }
    cJSON_Delete(json);
    return rc;
}

/* The widths of one member, [] for layers without experts, to widths (M, E). */
static bool take_widths(uint32_t *widths, const cJSON *member, const struct fm_config *c)
{
    const cJSON *layer;
    size_t n = 0, all = (size_t)c->M * (size_t)c->E;
    cJSON_ArrayForEach(layer, member)
    {
        const cJSON *width;
        cJSON_ArrayForEach(width, layer)
        {
            if (n == all || !cJSON_IsNumber(width) || !(width->valuedouble >= 0) ||
                !(width->valuedouble <= c->I))
                return false;
            widths[n++] = (uint32_t)width->valuedouble;
        }
    }
    return n == all;
}

/* Of a directory with all members, the widths at the budget that config.json starts with. */
static int read_start(struct subject *s, struct fm_bench_exported *r, const char *directory,
                      struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(s->model);
    cJSON *json = NULL;
    int rc = read_json(&json, directory, "config.json", err), at = 0;
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(json, "fm_budget"), *budget;
    const cJSON *family = cJSON_GetObjectItemCaseSensitive(json, "fm_family");
    cJSON_ArrayForEach(budget, cJSON_GetObjectItemCaseSensitive(json, "fm_budgets"))
    {
        if (cJSON_IsNumber(budget) && cJSON_IsNumber(start) &&
            !(budget->valuedouble < start->valuedouble))
            break;
        at++;
    }
    s->widths =
        !rc ? fm_alloc((size_t)c->M * (size_t)c->E, sizeof *s->widths, "widths", err) : NULL;
    if (!rc && !s->widths)
        rc = err->code;
    if (!rc && !take_widths(s->widths, cJSON_GetArrayItem(family, at), c))
        rc = fm_fail(err, FM_EFORMAT, "%s/config.json: no widths at the budget it starts with",
                     directory);
    if (!rc)
        r->budget = start->valuedouble;
    cJSON_Delete(json);
    return rc;
}

/* Sequences: with a text, the directory's own tokenizer. */
static int open_held(struct subject *s, const struct fm_run_options *run, struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(s->model);
    struct fm_run_options own = *run;
    own.model = run->input;
    return fm_run_evaluates(run) ? fm_calib_open(&s->held, &own, c, true, err)
                                 : fm_quality_open(&s->train, &s->held, &own, c, err);
}

static int open_subject(struct subject *s, struct fm_bench_exported *r,
                        const struct fm_run_options *run, struct fm_err *err)
{
    uint64_t memory = fm_run_memory(run) / 2;
    int rc = read_claim(r, run->input, err);
    if (!rc)
        rc = fm_model_open(&s->model, run->input, memory, err);
    if (!rc && run->model)
        rc = fm_model_open(&s->original, run->model, memory, err);
    if (!rc && s->original && fm_model_config(s->original)->V != fm_model_config(s->model)->V)
        rc = fm_fail(err, FM_ECONFIG, "'%s' has a vocabulary of %d, '%s' of %d: no original of it",
                     run->model, fm_model_config(s->original)->V, run->input,
                     fm_model_config(s->model)->V);
    if (!rc && r->whole)
        rc = read_start(s, r, run->input, err);
    return rc ? rc : open_held(s, run, err);
}

static int measure(struct fm_quality *q, struct fm_model *model, const struct subject *s,
                   const uint32_t *widths, const struct fm_run_options *run, struct fm_err *err)
{
    const struct fm_ops *ops;
    int rc = fm_run_ops(&ops, run, fm_model_dtype(model), err);
    return rc ? rc : fm_quality_measure_plain(q, model, ops, &s->held, widths, run, err);
}

int fm_bench_exported(const struct fm_run_options *run, bool dry_run,
                      struct fm_bench_exported *result, struct fm_err *err)
{
    struct subject s = {0};
    const struct fm_ops *ops;
    *result = (struct fm_bench_exported){0};
    int rc = open_subject(&s, result, run, err);
    if (!rc)
        rc = fm_run_ops(&ops, run, fm_model_dtype(s.model), err);
    if (!rc) {
        result->sequences = s.held.count;
        result->T = s.held.T;
        result->precision = fm_run_precision(ops);
        fm_digest_hex(result->digest, &s.held.digest);
    }
    if (!rc && !dry_run)
        rc = measure(&result->here, s.model, &s, s.widths, run, err);
    if (!rc && !dry_run && s.original)
        rc = measure(&result->original, s.original, &s, NULL, run, err);
    result->compared = s.original != NULL;
    free(s.widths);
    fm_calib_close(&s.held);
    fm_calib_close(&s.train);
    fm_model_close(s.model);
    fm_model_close(s.original);
    return rc;
}
