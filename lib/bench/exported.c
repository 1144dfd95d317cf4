/*
 * The engine reads an export as a checkpoint, so its quality is the quality of one lane at the
 * widths of its files; a directory with all members has one lane for each chosen member.  Nothing
 * is read from the bundle, so the figures are those of the exported files.  For an export that is
 * only planned, the bundle is read as its files would be (fm_export_read).
 */
#include "lib/bench/exported.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>

#include "formats/file/file.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/bench/bench.h"
#include "lib/export/export.h"
#include "lib/export/filetable.h"
#include "lib/export/exportplan.h"
#include "lib/export/layouts.h"
#include "lib/learn/forecast.h"
#include "lib/learn/quality.h"
#include "lib/masks/decimal.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"

#define TEXT_BYTES_MAX ((size_t)64 << 20) /* config.json of a family with many experts is large */

struct subject {
    struct fm_model *model, *original;
    struct fm_calib train, held;
    struct fm_quality_detail detail;
    struct fm_quality_subject measured; /* of the plan */
    uint32_t *widths; /* (members, M, E) of a layout with all members; NULL: widths of the files */
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

/* Add the bytes of the weight files that fm-export.json lists. */
static int add_files(uint64_t *bytes, const cJSON *json, const char *directory, struct fm_err *err)
{
    static const char end[] = ".safetensors";
    const cJSON *file;
    cJSON_ArrayForEach(file, cJSON_GetObjectItemCaseSensitive(json, FM_EXPORT_FILES))
    {
        struct stat st;
        const char *text = file->string ? file->string : "";
        if (!fm_ends_with(text, end) || strchr(text, '/'))
            continue;
        char *path = fm_file_join(directory, text, err);
        if (!path)
            return err->code;
        int rc = stat(path, &st) == 0 ? FM_OK : fm_fail_errno(err, "cannot examine '%s'", path);
        free(path);
        if (rc)
            return rc;
        *bytes += (uint64_t)st.st_size;
    }
    return FM_OK;
}

/* Read what fm-export.json records about the export. */
static int read_claim(struct fm_bench_export *r, const char *directory, struct fm_err *err)
{
    cJSON *json = NULL;
    int rc = read_json(&json, directory, FM_EXPORT_JSON, err);
    const char *name = fm_json_string_value(json, "layout");
    r->layout = name ? fm_layouts_find(name) : NULL;
    const cJSON *budget = cJSON_GetObjectItemCaseSensitive(json, "budget");
    if (!rc && (!r->layout || !cJSON_IsNumber(budget) || !(budget->valuedouble >= 0) ||
                !(budget->valuedouble < 1)))
        rc = fm_fail(err, FM_EFORMAT,
                     "%s/" FM_EXPORT_JSON ": it has no valid layout and budget; export again",
                     directory);
    if (!rc) {
        r->members = 1;
        r->member[0].budget = budget->valuedouble;
        const char *weights = fm_json_string_value(json, "weights");
        if (weights && (strcmp(weights, "keep") == 0 || strcmp(weights, "bf16") == 0 ||
                        fm_quantisers_find(weights)))
            snprintf(r->weights, sizeof r->weights, "%s", weights);
        rc = add_files(&r->bytes, json, directory, err);
    }
    cJSON_Delete(json);
    return rc;
}

/* Parse the widths of one member, [] for layers without experts, into widths (M, E). */
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

/* Budgets of a directory with all members, and which of them to measure. */
struct family {
    double *budget;
    bool *chosen;
    int count, start;
};

static int read_budgets(struct family *f, const cJSON *json, const char *directory,
                        struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "fm_budgets"), *budget;
    const cJSON *start = cJSON_GetObjectItemCaseSensitive(json, "fm_budget");
    size_t n = (size_t)cJSON_GetArraySize(list);
    f->budget = fm_alloc(n + 1, sizeof *f->budget, "budgets", err);
    f->chosen = fm_alloc(n + 1, sizeof *f->chosen, "budgets", err);
    if (!f->budget || !f->chosen)
        return err->code;
    bool ok = n > 0 && cJSON_IsNumber(start);
    cJSON_ArrayForEach(budget, list)
    {
        ok = ok && cJSON_IsNumber(budget) && budget->valuedouble >= 0 && budget->valuedouble < 1 &&
             (f->count == 0 || f->budget[f->count - 1] < budget->valuedouble);
        f->budget[f->count++] = ok ? budget->valuedouble : 0;
    }
    while (ok && f->start < f->count && f->budget[f->start] < start->valuedouble)
        f->start++;
    if (!ok || f->start == f->count)
        return fm_fail(err, FM_EFORMAT,
                       "%s/config.json: fm_budgets must increase and contain fm_budget", directory);
    f->chosen[f->start] = true;
    return FM_OK;
}

/* The member nearest to a budget; of two equally near, the one with the smaller budget. */
static int nearest(const struct family *f, double budget)
{
    int best = 0;
    for (int i = 1; i < f->count; i++)
        if (fabs(f->budget[i] - budget) < fabs(f->budget[best] - budget) - FM_EXPORTPLAN_SLACK)
            best = i;
    return best;
}

static void choose_budgets(struct family *f, const struct fm_decimals *budgets)
{
    const struct fm_decimals *list = budgets ? budgets : &fm_bench_tenths;
    for (int i = 0; list->all && i < f->count; i++)
        f->chosen[i] = true;
    for (int i = 0; i < list->count; i++)
        f->chosen[nearest(f, fm_decimal_value(&list->at[i]))] = true;
}

/* Write the chosen members to r->member and their widths to s->widths. */
static int take_members(struct subject *s, struct fm_bench_export *r, const struct family *f,
                        const cJSON *json, struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(s->model);
    const cJSON *family = cJSON_GetObjectItemCaseSensitive(json, "fm_family"), *one;
    size_t experts = (size_t)c->M * (size_t)c->E, n = (size_t)f->count;
    int at = 0;
    free(r->member);
    r->members = 0;
    r->member = fm_alloc(n, sizeof *r->member, "figures", err);
    s->widths = fm_alloc(n * experts, sizeof *s->widths, "widths", err);
    if (!r->member || !s->widths)
        return err->code;
    cJSON_ArrayForEach(one, family)
    {
        int i = at++;
        if (i >= f->count || !f->chosen[i])
            continue;
        if (!take_widths(s->widths + (size_t)r->members * experts, one, c))
            return fm_fail(err, FM_EFORMAT, "fm_family has no widths for this model at budget %.4f",
                           f->budget[i]);
        r->start = i == f->start ? r->members : r->start;
        r->member[r->members++].budget = f->budget[i];
    }
    return at == f->count
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "fm_family has %d members, but fm_budgets has %d", at,
                         f->count);
}

/* Choose the members to measure in a directory with all members. */
static int read_members(struct subject *s, struct fm_bench_export *r, const char *directory,
                        const struct fm_decimals *budgets, struct fm_err *err)
{
    struct family f = {0};
    cJSON *json = NULL;
    int rc = read_json(&json, directory, "config.json", err);
    if (!rc)
        rc = read_budgets(&f, json, directory, err);
    if (!rc)
        choose_budgets(&f, budgets);
    if (!rc && take_members(s, r, &f, json, err))
        rc = fm_within(err, "%s/config.json", directory);
    cJSON_Delete(json);
    free(f.chosen);
    free(f.budget);
    return rc;
}

/* Plan an export of the bundle, and let the model be read as that.  If fm-pack would refuse it, set
 * r->why. */
static int read_planned(struct fm_bench_export *r, struct fm_model *model,
                        const struct fm_run_options *run, const struct fm_export_options *planned,
                        struct fm_err *err)
{
    struct fm_export_report report;
    int rc = fm_export_read(model, run, planned, &report, err);
    r->planned = true;
    r->members = 1;
    r->member[0].budget = planned->budget;
    r->bytes = report.bytes_out;
    r->layout = planned->layout;
    snprintf(r->weights, sizeof r->weights, "%s",
             planned->quantise                     ? planned->quantise->name
             : planned->weights == FM_WEIGHTS_KEEP ? "keep"
                                                   : "bf16");
    if (rc != FM_EUSAGE && rc != FM_ECONFIG)
        return rc;
    snprintf(r->why, sizeof r->why, "%s", err->text);
    *err = (struct fm_err){0};
    return FM_OK;
}

static int open_subject(struct subject *s, struct fm_bench_export *r,
                        const struct fm_run_options *run, const struct fm_decimals *budgets,
                        const struct fm_export_options *planned, struct fm_bench_original *original,
                        struct fm_err *err)
{
    struct fm_run_options own = *run;
    const char *source = planned ? run->inputs.stream : run->inputs.model;
    /* To encode text: the directory's or the bundle's own tokenizer. */
    own.inputs.model = planned ? NULL : run->inputs.stream;
    uint64_t memory = fm_machine_memory(&run->machine) / (source ? 4 : 2);
    if (!planned && read_claim(r, run->inputs.stream, err))
        return err->code;
    if (budgets && !planned && !r->layout->all_members)
        return fm_fail(err, FM_EUSAGE,
                       "--budgets has no effect on layout %s, which holds one member; omit it",
                       r->layout->name);
    if (fm_model_open(&s->model, run->inputs.stream, memory, err) ||
        (planned && read_planned(r, s->model, run, planned, err)) ||
        (source && !original->model && fm_model_open(&original->model, source, memory, err)))
        return err->code;
    s->original = original->model;
    if (s->original && fm_model_config(s->original)->V != fm_model_config(s->model)->V)
        return fm_fail(err, FM_ECONFIG,
                       "'%s' has a vocabulary of %d tokens and '%s' of %d, so it is not the "
                       "original; give the original with --model",
                       run->inputs.model, fm_model_config(s->original)->V, run->inputs.stream,
                       fm_model_config(s->model)->V);
    if (r->layout->all_members && read_members(s, r, run->inputs.stream, budgets, err))
        return err->code;
    return fm_bench_held(&s->train, &s->held, &own, fm_model_config(s->model), err);
}

/* Find the tables of operations of both models. */
static int find_ops(const struct fm_ops **ops, const struct subject *s,
                    struct fm_bench_original *original, const struct fm_run_options *run,
                    struct fm_err *err)
{
    /* The same precision for both, so that only the weights differ. */
    enum fm_dtype stored = fm_model_dtype(s->original ? s->original : s->model);
    int rc = fm_machine_ops(ops, &run->machine, stored, err);
    if (!rc)
        fm_model_use(s->model, *ops);
    if (rc || !s->original || original->measured.model)
        return rc;
    const struct fm_ops *its;
    original->measured.model = s->original;
    rc = fm_machine_ops(&its, &run->machine, stored, err);
    if (!rc)
        fm_model_use(s->original, its);
    return rc;
}

static int plan(struct fm_estimate *estimate, const struct fm_bench_export *r, struct subject *s,
                struct fm_bench_original *original, const struct fm_run_options *run,
                struct fm_err *err)
{
    double kept = 0;
    for (int i = 0; i < r->members; i++)
        kept += s->widths ? 1 - r->member[i].budget : 1;
    s->measured = (struct fm_quality_subject){.model = s->model,
                                              .original = s->original ? &original->measured : NULL,
                                              .uncompared = !s->original,
                                              .held = &s->held,
                                              .detail = &s->detail,
                                              .masks = r->members,
                                              .widths = s->widths,
                                              .kept = kept / r->members};
    fm_quality_plan(estimate, &s->measured, run);
    return fm_estimate_fits(estimate, run, err);
}

/* Check that a directory has the tokens of the first one. */
static int check_tokens(struct fm_bench_original *o, const struct fm_bench_export *r,
                        const char *directory, struct fm_err *err)
{
    if (!o->first) {
        o->first = directory;
        o->T = r->T;
        memcpy(o->digest, r->digest, sizeof o->digest);
    }
    return o->T == r->T && strcmp(o->digest, r->digest) == 0
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "'%s' was measured on sequences of %d tokens, '%s' on different sequences "
                         "of %d; give --seq-len, and directories with the same tokenizer",
                         o->first, o->T, directory, r->T);
}

static int measure(struct fm_bench_export *r, struct subject *s,
                   const struct fm_quality_original *original, const struct fm_run_options *run,
                   struct fm_err *err)
{
    struct fm_quality *quality = fm_alloc((size_t)r->members, sizeof *quality, "figures", err);
    struct fm_spread *spread = fm_alloc((size_t)r->members, sizeof *spread, "figures", err);
    int rc = quality && spread ? FM_OK : err->code;
    s->detail.spread = spread;
    s->detail.sums = &r->sums;
    if (!rc)
        rc = fm_quality_measure(quality, &s->measured, run, err);
    for (int i = 0; !rc && i < r->members; i++) {
        r->member[i].quality = quality[i];
        r->member[i].spread = spread[i];
        r->member[i].quality.kl = fmax(quality[i].kl, 0); /* rounding may give less than 0 */
        if (r->compared)
            r->member[i].change = fm_spread_pair(&r->sums, i, &r->sums, r->members);
        if (i > 0)
            r->member[i].step = fm_spread_pair(&r->sums, i, &r->sums, i - 1);
    }
    r->original = original->quality;
    r->original_spread = original->spread;
    free(spread);
    free(quality);
    return rc;
}

int fm_bench_exported(const struct fm_run_options *run, const struct fm_decimals *budgets,
                      const struct fm_export_options *planned, struct fm_bench_original *original,
                      struct fm_estimate *estimate, struct fm_bench_export *result,
                      struct fm_err *err)
{
    struct subject s = {0};
    struct fm_estimate own;
    const struct fm_ops *ops;
    int rc;
    *result = (struct fm_bench_export){.precision = ""};
    result->member = fm_alloc(1, sizeof *result->member, "figures", err);
    if (!result->member || open_subject(&s, result, run, budgets, planned, original, err) ||
        result->why[0] || find_ops(&ops, &s, original, run, err) ||
        plan(estimate ? estimate : &own, result, &s, original, run, err)) {
        rc = err->code;
        goto out;
    }
    result->sequences = s.held.count;
    result->T = s.held.T;
    result->tokens = fm_bench_tokens(&s.held);
    result->values = fm_bench_values(&s.held, result->members);
    fm_quality_kinds(&result->kinds, &s.held);
    result->precision = fm_machine_precision(ops);
    result->compared = s.original != NULL;
    fm_digest_hex(result->digest, &s.held.digest);
    if (estimate)
        estimate->precision = result->precision;
    rc = check_tokens(original, result, run->inputs.stream, err);
    if (!rc)
        rc = estimate ? fm_forecast_make(estimate, &run->machine, ops, err)
                      : measure(result, &s, &original->measured, run, err);
out:
    free(s.widths);
    fm_calib_close(&s.held);
    fm_calib_close(&s.train);
    fm_model_close(s.model);
    return rc;
}

/* Read a name of the list of formats. */
static int read_format(struct fm_export_options *o, const char *text, size_t length,
                       struct fm_err *err)
{
    char name[16], choices[256];
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    o->weights = strcmp(name, "keep") == 0 ? FM_WEIGHTS_KEEP : FM_WEIGHTS_BF16;
    o->quantise = fm_quantisers_find(name);
    if (o->quantise || strcmp(name, "keep") == 0 || strcmp(name, "bf16") == 0)
        return FM_OK;
    fm_quantisers_choices(choices, sizeof choices);
    return fm_fail(err, FM_EUSAGE, "--weights: '%s' is not a format; use keep|bf16%s", name,
                   choices);
}

int fm_bench_plan(struct fm_export_options **plan, int *n, const char *path,
                  const struct fm_decimals *budgets, const char *weights,
                  const struct fm_layout *layout, struct fm_err *err)
{
    struct fm_bundle bundle = {0};
    struct fm_budgets family = {0};
    int *mask = NULL, masks = 0, formats = 1;
    if (layout->all_members)
        return fm_fail(err, FM_EUSAGE,
                       "layout %s holds all members; export it and measure the directory",
                       layout->name);
    for (const char *at = weights; *at; at++)
        formats += *at == ',';
    *plan = NULL;
    *n = 0;
    if (!fm_stage_open(&bundle, path, FM_MEMBER_MASKS, err) &&
        !fm_budgets_open(&family, &bundle, err) &&
        !fm_bench_choose(&mask, &masks, &family.masks, budgets, err))
        *plan = fm_alloc((size_t)formats * (size_t)masks, sizeof **plan, "exports", err);
    for (const char *at = weights; *plan && formats-- > 0 && !err->code;) {
        size_t length = strcspn(at, ",");
        struct fm_export_options o = {.layout = layout, .by = FM_BY_BUDGET};
        if (read_format(&o, at, length, err))
            break;
        for (int i = 0; i < masks; i++) {
            o.budget = fm_masks_budget(&family.masks, mask[i]);
            (*plan)[(*n)++] = o;
        }
        at += length + 1;
    }
    free(mask);
    fm_budgets_release(&family);
    fm_bundle_close(&bundle);
    return err->code;
}

void fm_bench_exported_release(struct fm_bench_export *result)
{
    fm_spread_sums_release(&result->sums);
    free(result->member);
    *result = (struct fm_bench_export){0};
}

void fm_bench_original_release(struct fm_bench_original *o)
{
    fm_quality_original_release(&o->measured);
    fm_model_close(o->model);
    *o = (struct fm_bench_original){0};
}
