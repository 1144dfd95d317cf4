/*
 * A stage copies the members that earlier stages made, replaces its own, and drops those that later
 * stages made; one table gives the stage of each member.  A stream is accepted if its history is in
 * the order of the tools, its stage is that of the last tool, and its config.json is the one that
 * its manifest identifies.
 */
#include "lib/stage/stage.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/masks/decimal.h"

/* Members after the carried files, in stream order, with the stage that makes each. */
static const struct typed {
    const char *name;
    enum fm_stage maker;
    bool aligned;
} typed[] = {{FM_MEMBER_RANKING, FM_STAGE_RANK, true},
             {FM_MEMBER_MASKS, FM_STAGE_TRAIN, false},
             {FM_MEMBER_ADAPTER, FM_STAGE_RECOVER, false},
             {FM_MEMBER_SEGMENTS, FM_STAGE_PACK, false}};
#define TYPED (sizeof typed / sizeof typed[0])

/* The stage of a tool, "fm-rank"; -1 for other names. */
static int stage_of_tool(const char *tool)
{
    return strncmp(tool, "fm-", 3) == 0 ? fm_names_index(fm_bundle_stages, tool + 3) : -1;
}

static int check_history(const struct fm_bundle *b, struct fm_err *err)
{
    const cJSON *history = cJSON_GetObjectItemCaseSensitive(b->manifest, "history"), *entry;
    const char *tool = "", *stage;
    int last = -1;
    if (!cJSON_IsArray(history))
        return fm_fail(err, FM_EFORMAT, "key 'history' is missing or not an array");
    cJSON_ArrayForEach(entry, history)
    {
        if (fm_json_get_string(entry, "tool", &tool, err))
            return fm_within(err, "history");
        int at = stage_of_tool(tool);
        if (at <= last)
            return fm_fail(err, FM_EFORMAT, "history: '%s' is out of order", tool);
        if (!cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(entry, "options")))
            return fm_fail(err, FM_EFORMAT, "history: '%s' has no options", tool);
        last = at;
    }
    if (fm_json_get_string(b->manifest, "stage", &stage, err))
        return err->code;
    if (last < 0 || strcmp(stage, fm_bundle_stages[last]) != 0)
        return fm_fail(err, FM_EFORMAT, "stage is '%s', but the last tool of the history is '%s'",
                       stage, tool);
    return FM_OK;
}

static int check_needs(const struct fm_bundle *b, const char *needs, struct fm_err *err)
{
    if (fm_bundle_find(b, needs))
        return FM_OK;
    const struct typed *t = fm_names_among(typed, TYPED, sizeof *typed, needs);
    assert(t);
    return fm_fail(err, FM_ECONFIG, "%s: has no '%s'; run fm-%s on it first", b->file.path, needs,
                   fm_bundle_stages[t->maker]);
}

int fm_stage_config_read(struct fm_config *config, const struct fm_bundle *b, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(b, FM_MEMBER_CARRIED "config.json");
    void *text = NULL;
    size_t size;
    if (!m)
        return fm_fail(err, FM_EFORMAT, "has no '" FM_MEMBER_CARRIED "config.json'");
    int rc = fm_bundle_read(b, m, &text, &size, err);
    if (!rc)
        rc = fm_config_parse(config, text, size, err);
    free(text);
    if (rc)
        return fm_within(err, "%s", m->name);
    if (fm_stage_model_fits(b, config, err)) {
        fm_config_release(config);
        return fm_within(err, "%s", m->name);
    }
    return FM_OK;
}

/* Check that config.json has the digest in the manifest, and that it fits the manifest's model. */
static int check_config(const struct fm_bundle *b, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(b, FM_MEMBER_CARRIED "config.json");
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(b->manifest, "model");
    const char *config = "";
    char hex[FM_DIGEST_HEX];
    struct fm_config parsed;
    if (!m)
        return fm_fail(err, FM_EFORMAT, "has no '" FM_MEMBER_CARRIED "config.json'");
    fm_digest_hex(hex, &m->digest);
    if (fm_json_get_string(model, "config", &config, err))
        return err->code;
    if (strcmp(hex, config) != 0)
        return fm_fail(err, FM_EFORMAT, "%s: digest is %s, but the manifest's model has %s",
                       m->name, hex, config);
    if (fm_stage_config_read(&parsed, b, err))
        return err->code;
    fm_config_release(&parsed);
    return FM_OK;
}

int fm_stage_config_check(const struct fm_bundle *b, struct fm_err *err)
{
    return check_config(b, err) ? fm_within(err, "%s", b->file.path) : FM_OK;
}

int fm_stage_check(const struct fm_bundle *b, const char *needs, struct fm_err *err)
{
    struct fm_stage_model model;
    int rc = fm_stage_model_read(&model, b, err);
    if (!rc && (rc = check_history(b, err)))
        fm_within(err, "%s: %s", b->file.path, FM_MEMBER_MANIFEST);
    if (!rc && needs)
        rc = fm_stage_config_check(b, err);
    return !rc && needs ? check_needs(b, needs, err) : rc;
}

int fm_stage_open(struct fm_bundle *b, const char *path, const char *needs, struct fm_err *err)
{
    if (fm_bundle_open(b, path, err))
        return err->code;
    int rc = fm_stage_check(b, needs, err);
    if (rc)
        fm_bundle_close(b);
    return rc;
}

/* Copy the history entries that stages before this one wrote. */
static void copy_history(cJSON *to, const cJSON *from, enum fm_stage stage)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, from)
    {
        const char *tool = fm_json_string_value(entry, "tool");
        if (tool && stage_of_tool(tool) < (int)stage)
            fm_json_add(to, NULL, cJSON_Duplicate(entry, true));
    }
}

/* Copy a key of the input's manifest, if it has it. */
static void copy_key(cJSON *to, const cJSON *from, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (item)
        fm_json_add(to, key, cJSON_Duplicate(item, true));
}

cJSON *fm_stage_manifest(enum fm_stage stage, const struct fm_bundle *in, cJSON *model,
                         char dropped[FM_STAGE_DROPPED_BYTES])
{
    const cJSON *from = in ? in->manifest : NULL;
    cJSON *m = cJSON_CreateObject();
    assert(!in || !model);
    fm_json_add_uint(m, "schema", FM_BUNDLE_SCHEMA);
    fm_json_add_string(m, "suite", "fm");
    fm_json_add_string(m, "stage", fm_bundle_stages[stage]);
    if (in)
        copy_key(m, from, "model");
    else
        fm_json_add(m, "model", model);
    copy_history(fm_json_add_array(m, "history"), cJSON_GetObjectItemCaseSensitive(from, "history"),
                 stage);
    if (stage > FM_STAGE_TRAIN) {
        copy_key(m, from, "actions");
        copy_key(m, from, "budgets");
    }
    if (stage > FM_STAGE_RECOVER)
        copy_key(m, from, "adapter");
    dropped[0] = '\0';
    for (size_t i = TYPED; in && i-- > 0;)
        if (typed[i].maker > stage && fm_bundle_find(in, typed[i].name))
            snprintf(dropped, FM_STAGE_DROPPED_BYTES,
                     "%s of the input is dropped: it was made from what fm-%s now replaces",
                     typed[i].name, fm_bundle_stages[stage]);
    return m;
}

uint64_t fm_stage_copied_bytes(enum fm_stage stage, const struct fm_bundle *in)
{
    uint64_t bytes = in->file.size;
    for (size_t i = 0; i < TYPED; i++) {
        const struct fm_member *m =
            typed[i].maker >= stage ? fm_bundle_find(in, typed[i].name) : NULL;
        bytes -= m && m->size < bytes ? m->size : 0;
    }
    return bytes;
}

cJSON *fm_stage_history(cJSON *manifest, const char *tool)
{
    assert(stage_of_tool(tool) >= 0);
    cJSON *history = cJSON_GetObjectItemCaseSensitive(manifest, "history");
    cJSON *entry = fm_json_add_object(history, NULL);
    fm_json_add_string(entry, "tool", tool);
    return entry;
}

const cJSON *fm_stage_history_of(const struct fm_bundle *b, const char *tool)
{
    const cJSON *found = NULL, *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(b->manifest, "history"))
    {
        const char *name = fm_json_string_value(entry, "tool");
        if (name && strcmp(name, tool) == 0)
            found = entry;
    }
    return found;
}

bool fm_stage_original_ce(double *ce, const struct fm_bundle *b, const struct fm_mask *first)
{
    const cJSON *recover = fm_stage_history_of(b, "fm-recover");
    const cJSON *result = cJSON_GetObjectItemCaseSensitive(recover, "result");
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(result, FM_STAGE_ORIGINAL_CE);
    bool own = first->removed == 0 && first->quality.positions > 0 && !first->quality.recovered;
    *ce = own ? first->quality.ce : cJSON_IsNumber(number) ? number->valuedouble : 0;
    return own || (cJSON_IsNumber(number) && isfinite(*ce));
}

double fm_stage_budget_step(const struct fm_bundle *b)
{
    const cJSON *train = fm_stage_history_of(b, "fm-train");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(train, "options");
    const char *step = fm_json_string_value(options, "budget_step");
    struct fm_decimal d;
    struct fm_err unread = {0};
    if (step && !fm_decimal_parse(&d, step, "budget_step", &unread))
        return fm_decimal_value(&d);
    return 0.01;
}

/* Take ownership of `bytes` (malloc), even on failure. */
static int keep(struct fm_stage_parts *p, char *bytes, struct fm_err *err)
{
    if (!bytes)
        return fm_fail(err, FM_ENOMEM, "no memory for a member");
    if (FM_GROW(p->owned, p->owned_room, p->owned_count + 1, "members", err)) {
        free(bytes);
        return err->code;
    }
    p->owned[p->owned_count++] = bytes;
    return FM_OK;
}

int fm_stage_parts_add(struct fm_stage_parts *p, const struct fm_part *part, struct fm_err *err)
{
    if (FM_GROW(p->part, p->capacity, p->parts + 1, "members", err))
        return err->code;
    char *name = fm_strdup(part->name, err);
    if (!name || keep(p, name, err))
        return err->code;
    p->part[p->parts] = *part;
    p->part[p->parts++].name = name;
    return FM_OK;
}

static int add_copy(struct fm_stage_parts *p, const struct fm_bundle *in, const struct fm_member *m,
                    bool aligned, struct fm_err *err)
{
    return fm_stage_parts_add(
        p,
        &(struct fm_part){
            .name = m->name, .size = m->size, .from = in, .member = m, .aligned = aligned},
        err);
}

static int add_build(struct fm_stage_parts *p, struct fm_err *err)
{
    char *text;
    if (fm_stage_build(&text, err) || keep(p, text, err))
        return err->code;
    return fm_stage_parts_add(
        p, &(struct fm_part){.name = FM_MEMBER_BUILD, .data = text, .size = strlen(text)}, err);
}

static int add_carried(struct fm_stage_parts *p, const struct fm_carried *c, struct fm_err *err)
{
    char name[sizeof FM_MEMBER_CARRIED + FM_CARRIED_NAME_MAX];
    int len = snprintf(name, sizeof name, FM_MEMBER_CARRIED "%s", c->name);
    assert(len > 0 && (size_t)len < sizeof name);
    (void)len;
    return fm_stage_parts_add(
        p, &(struct fm_part){.name = name, .data = c->text, .size = (size_t)c->size}, err);
}

static int add_all_carried(struct fm_stage_parts *p, const struct fm_bundle *in,
                           const struct fm_hfdir *dir, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; in && i < in->members && !rc; i++)
        if (strncmp(in->member[i].name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0)
            rc = add_copy(p, in, &in->member[i], false, err);
    for (size_t i = 0; !in && i < dir->carried_count && !rc; i++)
        rc = add_carried(p, &dir->carried[i], err);
    return rc;
}

/* Add a typed member: the caller's bytes, or those of the input if an earlier stage made them. */
static int add_typed(struct fm_stage_parts *p, size_t i, enum fm_stage stage,
                     const struct fm_bundle *in, const struct fm_stage_member *member,
                     size_t members, struct fm_err *err)
{
    for (size_t k = 0; k < members; k++)
        if (strcmp(member[k].name, typed[i].name) == 0)
            return fm_stage_parts_add(p,
                                      &(struct fm_part){.name = member[k].name,
                                                        .data = member[k].data,
                                                        .size = member[k].size,
                                                        .aligned = typed[i].aligned},
                                      err);
    const struct fm_member *old = in ? fm_bundle_find(in, typed[i].name) : NULL;
    if (old && typed[i].maker < stage)
        return add_copy(p, in, old, typed[i].aligned, err);
    return FM_OK;
}

int fm_stage_parts_collect(struct fm_stage_parts *p, enum fm_stage stage,
                           const struct fm_bundle *in, const struct fm_hfdir *dir,
                           const struct fm_stage_member *member, size_t members, struct fm_err *err)
{
    assert(in || dir);
    for (size_t k = 0; k < members; k++) /* any other member would be left out */
        assert(fm_names_among(typed, TYPED, sizeof *typed, member[k].name));
    *p = (struct fm_stage_parts){0};
    int rc = add_build(p, err);
    if (!rc)
        rc = add_all_carried(p, in, dir, err);
    for (size_t i = 0; i < TYPED && !rc; i++)
        rc = add_typed(p, i, stage, in, member, members, err);
    if (rc)
        fm_stage_parts_release(p);
    return rc;
}

void fm_stage_parts_release(struct fm_stage_parts *p)
{
    for (size_t i = 0; i < p->owned_count; i++)
        free(p->owned[i]);
    free(p->owned);
    free(p->part);
    *p = (struct fm_stage_parts){0};
}

int fm_stage_write(const struct fm_run_options *run, enum fm_stage stage, cJSON *manifest,
                   const struct fm_bundle *in, const struct fm_hfdir *dir,
                   const struct fm_stage_member *member, size_t members, struct fm_err *err)
{
    struct fm_stage_parts parts = {0};
    struct fm_bundle_writer *writer = NULL;
    int rc = fm_stage_parts_collect(&parts, stage, in, dir, member, members, err);
    if (rc) {
        cJSON_Delete(manifest);
        return rc;
    }
    rc = fm_bundle_begin(&writer, run->outputs.path, run->outputs.force, manifest, parts.part,
                         parts.parts, err);
    if (!rc)
        rc = fm_bundle_complete(writer, err);
    if (!rc)
        rc = fm_run_announce(run, err);
    if (!rc)
        rc = fm_bundle_finish(writer, err);
    else
        fm_bundle_abandon(writer);
    fm_stage_parts_release(&parts);
    return rc;
}
