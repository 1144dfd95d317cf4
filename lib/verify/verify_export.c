/*
 * Checks an exported directory against its bundle, or against the first members of the bundle.  The
 * export is planned again from the bundle (lib/export/exportplan.h), which gives names, sizes and
 * texts; the bytes of its weights are then compared with the golden segment checksums.
 */
#include "lib/verify/verify_weights.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/export/card.h"
#include "lib/export/filetable.h"

/* ---- reading fm-export.json ---- */

static int read_cap(struct fm_export_options *o, const cJSON *json, struct fm_err *err)
{
    const cJSON *cap = cJSON_GetObjectItemCaseSensitive(json, "load_cap");
    const cJSON *low = cJSON_GetArrayItem(cap, 0), *high = cJSON_GetArrayItem(cap, 1);
    if (!cap)
        return FM_OK;
    if (cJSON_GetArraySize(cap) != 2 || !cJSON_IsNumber(low) || !cJSON_IsNumber(high))
        return fm_fail(err, FM_EFORMAT, "'load_cap' must be two numbers");
    o->load_cap = true;
    o->load_low = low->valuedouble;
    o->load_high = high->valuedouble;
    return FM_OK;
}

static int read_keys(struct fm_export_options *o, const cJSON *json, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "keep_config"), *key;
    int n = 0;
    cJSON_ArrayForEach(key, list)
    {
        if (!cJSON_IsString(key) || n == FM_KEEP_CONFIG_MAX)
            return fm_fail(err, FM_EFORMAT, "'keep_config' is not a list of at most %d names",
                           FM_KEEP_CONFIG_MAX);
        o->keep_config[n++] = key->valuestring;
    }
    return FM_OK;
}

/* Read the options that affected the export. */
static int read_form(struct fm_export_options *o, const cJSON *json, struct fm_err *err)
{
    const char *runtime = fm_json_string_value(json, "for");
    int64_t pad = 1;
    if (fm_json_get_int(json, "pad_multiple", 1, UINT32_MAX, &pad, err) ||
        fm_json_get_uint(json, "shard_size", 0, &o->shard_bytes, err) || read_cap(o, json, err) ||
        read_keys(o, json, err))
        return err->code;
    const char *weights = fm_json_string_value(json, "weights");
    if (weights) {
        if (strcmp(weights, "keep") == 0)
            o->weights = FM_WEIGHTS_KEEP;
        if (strcmp(weights, "bf16") == 0)
            o->weights = FM_WEIGHTS_BF16;
        o->quantise = fm_quantisers_find(weights);
    }
    o->base_model = fm_json_string_value(json, "base_model");
    o->allow_code = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "allow_code"));
    o->keep_extra = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "keep_extra"));
    o->pad_multiple = (uint32_t)pad;
    int server = runtime ? fm_server_find(runtime) : -1;
    if (server >= 0 && fm_exportplan_serve(o, (enum fm_server)server, err))
        return err->code;
    return fm_exportplan_check(o, err);
}

/* Refuse --function for an export with rounded experts, which computes a different function. */
static int refuse_function(const struct fm_verify_job *j, struct fm_err *err)
{
    if (!j->v->options->function || !j->options.quantise)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "--function: experts of '%s' are rounded to %s, so it computes something else; "
                   "measure it with fm-bench quality",
                   j->v->options->target, j->options.quantise->name);
}

/* Read the options of the export. */
static int read_claim(struct fm_verify_job *j, struct fm_err *err)
{
    int rc = fm_verify_claim(&j->claim, j->v, err);
    j->options.layout = j->claim.layout;
    if (!rc && read_form(&j->options, j->claim.json, err))
        rc = fm_within(err, "%s/%s", j->v->options->target, FM_EXPORT_JSON);
    return rc;
}

/* An impossible value is an error in the file, not in the command line. */
static int blame_file(struct fm_err *err)
{
    if (err->code == FM_EUSAGE)
        err->code = FM_EFORMAT;
    return err->code;
}

static int begin_plan(struct fm_verify_job *j, unsigned needs, struct fm_err *err)
{
    int rc = fm_opened_open(&j->opened, j->v->options->against, needs, err);
    return rc ? rc : fm_exportplan_begin(&j->plan, &j->opened, &j->options, err);
}

static int open_bundle(struct fm_verify_job *j, struct fm_err *err)
{
    if (read_claim(j, err) || begin_plan(j, FM_OPENED_CHECKSUMS, err))
        return blame_file(err);
    int64_t index = j->claim.index;
    bool extra = j->options.keep_extra && j->opened.config.scheme.storage;
    if (j->plan.narrowed || (j->plan.coded != FM_CODED_ALL &&
                             (j->opened.packed.storage || j->options.quantise || extra))) {
        /* the bundle's weights are compared, rounded again, or narrowed without segments */
        fm_planned_release(&j->plan);
        fm_opened_release(&j->opened);
        if (begin_plan(j, FM_OPENED_CHECKSUMS | FM_OPENED_WEIGHTS, err))
            return blame_file(err);
    }
    if (refuse_function(j, err))
        return err->code;
    if (index < j->plan.first || index > j->plan.last)
        return fm_fail(err, FM_EFORMAT,
                       "%s/%s: budget %lld: an export of %s can have budgets %d to %d",
                       j->v->options->target, FM_EXPORT_JSON, (long long)index,
                       j->v->options->against, j->plan.first, j->plan.last);
    return fm_exportplan_member(&j->plan, (int)index, err);
}

/* ---- files ---- */

static bool is_file(const void *self, const char *name)
{
    const struct fm_verify_job *j = self;
    for (size_t i = 0; i < j->plan.files; i++)
        if (strcmp(j->plan.file[i].name, name) == 0)
            return true;
    return false;
}

static void meet_other(void *self, const char *name)
{
    struct fm_verify_job *j = self;
    fm_verifier_find(j->v, j->plan.files, FM_EDIFF, name, "is not a file of this export");
}

/* Compare the part of the card that fm-pack generates; the owner may edit the rest. */
static void compare_card(struct fm_verify_job *j, size_t i, const char *have, size_t size,
                         const char *want)
{
    const char *name = j->plan.file[i].name;
    struct fm_digest a, b;
    struct fm_err wrong = {0}, none = {0};
    int own = fm_card_digest(&b, want, strlen(want), &none);
    assert(!own); /* fm_card_plan wrote the marks */
    if (fm_card_digest(&a, have, size, &wrong))
        fm_verifier_find(j->v, i, FM_EDIFF, name, "%s", wrong.text);
    else if (!fm_digest_equal(&a, &b))
        fm_verifier_find(j->v, i, FM_EDIFF, name,
                         "differs, between its marks, from what the bundle gives");
}

/* Compare any other text, byte for byte, with the one generated from the bundle. */
static void compare_bytes(struct fm_verify_job *j, size_t i, const char *text, size_t size,
                          const char *want, size_t bytes)
{
    if (size != bytes || memcmp(text, want, size) != 0)
        fm_verifier_find(j->v, i, FM_EDIFF, j->plan.file[i].name,
                         "differs from what the bundle gives");
}

/* Compare fm-export.json, except for the table of files. */
static int compare_claims(struct fm_verify_job *j, size_t i, char **text, size_t size,
                          const char *want, struct fm_err *err)
{
    const struct fm_jsonedit away = {FM_EXPORT_FILES, NULL};
    size_t bytes = (size_t)j->plan.file[i].bytes;
    char *rest = fm_strdup(want, err);
    int rc = rest ? fm_jsonedit_set(&rest, &bytes, &away, 1, err) : err->code;
    if (!rc && fm_jsonedit_set(text, &size, &away, 1, err)) {
        rc = fm_verifier_note(j->v, i, FM_EFORMAT, j->plan.file[i].name, err);
    } else if (!rc) {
        fm_verifier_skip(j->v, FM_EXPORT_FILES " in " FM_EXPORT_JSON);
        compare_bytes(j, i, *text, size, rest, bytes);
    }
    free(rest);
    return rc;
}

static int compare_text(struct fm_verify_job *j, size_t i, const char *want, struct fm_err *err)
{
    const struct fm_planned_file *f = &j->plan.file[i];
    bool claims = strcmp(f->name, FM_EXPORT_JSON) == 0, card = strcmp(f->name, FM_EXPORT_CARD) == 0;
    size_t size = 0, most = card     ? FM_EXPORT_CARD_MAX
                            : claims ? FM_VERIFY_CLAIM_MAX
                                     : (size_t)f->bytes + 1;
    char *text = NULL;
    if (card)
        fm_verifier_skip(j->v, FM_EXPORT_CARD " outside of its marks");
    int rc = fm_file_slurp_at(j->v->dir, f->name, most, &text, &size, err);
    fm_verifier_count(j->v, 1, size);
    if (rc)
        rc = fm_verifier_note(j->v, i, FM_EDIFF, f->name, err);
    else if (card)
        compare_card(j, i, text, size, want);
    else if (claims)
        rc = compare_claims(j, i, &text, size, want, err);
    else
        compare_bytes(j, i, text, size, want, (size_t)f->bytes);
    free(text);
    return rc;
}

static int check_text(struct fm_verify_job *j, size_t i, struct fm_err *err)
{
    const char *want = NULL;
    char *owned = NULL;
    int rc = fm_planned_header(&j->plan, i, &want, &owned, err);
    if (!rc)
        rc = compare_text(j, i, want, err);
    free(owned);
    return rc;
}

static int open_shard(struct fm_verify_job *j, size_t i, struct fm_err *err)
{
    const struct fm_planned_file *f = &j->plan.file[i];
    struct fm_verify_shard *s = &j->shard[i];
    int rc = fm_file_open_at(&s->file, j->v->dir, f->name, true, err);
    s->open = !rc;
    if (!rc)
        rc = fm_safetensors_open(&s->st, &s->file, 0, s->file.size, err);
    s->parsed = !rc;
    fm_verifier_count(j->v, 1, s->parsed ? s->st.header_bytes : 0);
    return rc ? fm_verifier_note(j->v, i, FM_EDIFF, f->name, err) : FM_OK;
}

/* Check that planned tensor i is in its file with the planned dtype and shape. */
static void check_tensor(struct fm_verify_job *j, size_t i)
{
    const struct fm_planned_tensor *t = &j->plan.tensor[i];
    const struct fm_verify_shard *s = &j->shard[t->file];
    assert(j->plan.file[t->file].weights);
    const struct fm_tensor *have = fm_safetensors_find(&s->st, t->t.name);
    bool same = have && fm_tensor_like(have, &t->t);
    fm_verifier_count(j->v, 1, 0);
    if (!same && s->parsed)
        fm_verifier_find(j->v, t->file, FM_EDIFF, t->t.name,
                         have ? "does not have the type and shape that its budget requires"
                              : "is not in its file %s",
                         j->plan.file[t->file].name);
    j->have[i] = same ? have : NULL;
}

static void check_no_more_tensors(struct fm_verify_job *j, size_t file)
{
    const struct fm_safetensors *st = &j->shard[file].st;
    const struct fm_planned_file *f = &j->plan.file[file];
    for (size_t i = 0; i < st->count && st->count != f->tensors; i++)
        if (!fm_names_among(j->plan.tensor + f->tensor, f->tensors, sizeof *j->plan.tensor,
                            st->tensor[i].name))
            fm_verifier_find(j->v, file, FM_EDIFF, st->tensor[i].name, "does not belong in %s",
                             f->name);
}

static int check_files(struct fm_verify_job *j, struct fm_err *err)
{
    int rc = fm_verify_claim_others(j->v, is_file, meet_other, j, err);
    j->shard = fm_alloc(j->plan.files, sizeof *j->shard, "the list of files", err);
    if (!j->shard)
        return err->code;
    for (size_t i = 0; i < j->plan.files && !rc; i++)
        rc = j->plan.file[i].weights ? open_shard(j, i, err) : check_text(j, i, err);
    for (size_t i = 0; i < j->plan.files && !rc; i++)
        if (j->shard[i].parsed)
            check_no_more_tensors(j, i);
    return rc;
}

static int check_tensors(struct fm_verify_job *j, struct fm_err *err)
{
    j->have =
        fm_alloc(j->plan.tensors, sizeof(const struct fm_tensor *), "the list of tensors", err);
    if (!j->have)
        return err->code;
    for (size_t i = 0; i < j->plan.tensors; i++)
        check_tensor(j, i);
    return fm_verify_weights(j, err);
}

/* Set the widths that the export computes with, for --function. */
static int keep_served(struct fm_verify_job *j, struct fm_err *err)
{
    size_t n = fm_opened_experts(&j->opened);
    uint32_t *served = fm_alloc(n, sizeof *served, "widths", err);
    if (!served)
        return err->code;
    j->v->served = served;
    j->v->all_resident = j->options.layout->all_members;
    j->v->rest_decoded = j->plan.coded == FM_CODED_EXPERTS;
    fm_exportplan_served(&j->plan, j->plan.index, served);
    return FM_OK;
}

static int close_shards(struct fm_verify_job *j, int rc, struct fm_err *err)
{
    for (size_t i = 0; j->shard && i < j->plan.files; i++) {
        if (!rc && j->shard[i].open)
            rc = fm_file_unchanged(&j->shard[i].file, err);
        fm_safetensors_close(&j->shard[i].st);
        if (j->shard[i].open)
            fm_file_close(&j->shard[i].file);
    }
    free(j->shard);
    return rc;
}

/* Collect files that run as code, keys by which a program loads code, and who wrote them. */
static void say_code(const struct fm_verify_job *j)
{
    const struct fm_planned_code *c = &j->plan.code;
    struct fm_verify_report *r = j->v->report;
    for (size_t i = 0; i < c->items; i++) {
        enum fm_code_fate fate = c->item[i].fate;
        if (fate != FM_CODE_OURS && fate != FM_CODE_KEPT)
            continue;
        assert(r->codes < FM_CODES_MAX); /* as in the plan */
        struct fm_verify_code *code = &r->code[r->codes++];
        code->ours = fate == FM_CODE_OURS;
        snprintf(code->name, sizeof code->name, "%s", c->item[i].name);
    }
}

static int check_export(struct fm_verify_job *j, struct fm_err *err)
{
    struct fm_verify_report *r = j->v->report;
    if (open_bundle(j, err))
        return err->code;
    r->kind = j->options.layout->name;
    r->index = j->plan.index;
    r->budget = j->opened.budgets.budget[j->plan.index].budget;
    say_code(j);
    if (check_files(j, err) || check_tensors(j, err))
        return err->code;
    return keep_served(j, err);
}

int fm_verify_export(struct fm_verifier *v, struct fm_err *err)
{
    struct fm_verify_job j = {.v = v};
    v->report->kind = "export";
    int rc = check_export(&j, err);
    rc = close_shards(&j, rc, err);
    free(j.have);
    free(j.unit);
    free(j.piece);
    fm_planned_release(&j.plan);
    fm_verify_claim_release(&j.claim);
    fm_opened_release(&j.opened);
    return rc;
}
