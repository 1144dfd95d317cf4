/*
 * A safe checkpoint became one that runs its author's code: nothing of it ran without trust, our
 * modelling file asked for trust, and with it theirs ran too.
 */
#include "lib/export/trust.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/json/jsonedit.h"

static bool ends_with(const char *name, const char *tail)
{
    size_t n = strlen(name), t = strlen(tail);
    return n >= t && strcmp(name + n - t, tail) == 0;
}

bool fm_trust_is_code(const char *name)
{
    return ends_with(name, ".py");
}

/* Does an object inside of `json` have an auto_map? */
static bool has_map_inside(const cJSON *json)
{
    const cJSON *v;
    cJSON_ArrayForEach(v, json)
    {
        if (cJSON_GetObjectItemCaseSensitive(v, "auto_map") || has_map_inside(v))
            return true;
    }
    return false;
}

/* Note a name for fm_trust_tell. */
static void note(struct fm_exportplan *p, const char *name)
{
    size_t n = strlen(p->code.names);
    snprintf(p->code.names + n, sizeof p->code.names - n, "%s%s", n ? ", " : "", name);
    p->code.count++;
}

static int add_as_it_is(struct fm_exportplan *p, const char *name, const struct fm_member *m,
                        struct fm_err *err)
{
    int rc = fm_exportplan_add_file(p, name, NULL, m->size, m->size, false, err);
    if (!rc)
        p->file[p->files - 1].carried = m;
    return rc;
}

/* A config without its auto_map; one that we cannot read, or that has others deeper, stays behind.
 */
static int add_config(struct fm_exportplan *p, const char *name, const struct fm_member *m,
                      struct fm_err *err)
{
    void *data = NULL;
    size_t size = 0;
    cJSON *json = NULL;
    struct fm_err unread = {0};
    const struct fm_jsonedit none = {"auto_map", "{}"};
    int rc = fm_bundle_read(&p->from->bundle, m, &data, &size, err);
    if (rc)
        return rc;
    char *text = data;
    bool readable = !fm_json_tree(&json, text, size, &unread) && cJSON_IsObject(json);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "auto_map");
    bool left = !readable || has_map_inside(json);
    if (left || map)
        note(p, name);
    if (map && cJSON_GetObjectItemCaseSensitive(map, "AutoTokenizer"))
        p->code.tokenizer = true;
    if (!left && !map)
        rc = add_as_it_is(p, name, m, err);
    else if (!left && !(rc = fm_jsonedit_set(&text, &size, &none, 1, err))) {
        rc = fm_exportplan_add_file(p, name, text, size, size, false, err);
        text = NULL;
    }
    cJSON_Delete(json);
    free(text);
    return rc;
}

static bool is_theirs(const char *name)
{
    return fm_trust_is_code(name) || strcmp(name, "adapter_config.json") == 0;
}

void fm_trust_begin(struct fm_exportplan *p)
{
    const struct fm_bundle *b = &p->from->bundle;
    p->code = (struct fm_planned_code){0};
    for (size_t i = 0; p->options.allow_code && i < b->members; i++)
        if (strncmp(b->member[i].name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0 &&
            is_theirs(b->member[i].name + strlen(FM_MEMBER_CARRIED)))
            note(p, b->member[i].name + strlen(FM_MEMBER_CARRIED));
}

int fm_trust_carried(struct fm_exportplan *p, const struct fm_member *m, struct fm_err *err)
{
    const char *name = m->name + strlen(FM_MEMBER_CARRIED);
    bool code = is_theirs(name);
    if (!p->options.layout->code || p->options.allow_code)
        return add_as_it_is(p, name, m, err);
    if (ends_with(name, "config.json") && !code)
        return add_config(p, name, m, err);
    if (!code)
        return add_as_it_is(p, name, m, err);
    note(p, name);
    if (strncmp(name, "tokenization_", 13) == 0)
        p->code.tokenizer = true;
    return FM_OK;
}

void fm_trust_tell(const struct fm_exportplan *p, const struct fm_run_options *run)
{
    if (p->code.count == 0)
        return;
    if (p->options.allow_code)
        fm_run_warn(run,
                    "code of the checkpoint's author is in the export and runs where "
                    "trust_remote_code is given: %s",
                    p->code.names);
    else
        fm_run_warn(run, "code of the checkpoint's author is left out, with what names it: %s%s",
                    p->code.names,
                    p->code.tokenizer
                        ? "; AutoTokenizer may fail without it (--allow-code keeps it)"
                        : "; --allow-code keeps it");
}
