/*
 * A directory says itself what it is.  Only what both checks of it require is read here; the other
 * keys of fm-export.json are options of fm-pack, which verify_export.c reads.
 */
#include "lib/verify/verifier.h"

#include <stdlib.h>

#include "formats/json/json.h"
#include "formats/sign/oms.h"
#include "lib/base/names.h"

int fm_verify_claim(struct fm_verify_claim *c, const struct fm_verifier *v, struct fm_err *err)
{
    const char *layout = NULL;
    int rc = fm_file_slurp_at(v->dir, FM_EXPORT_JSON, FM_VERIFY_CLAIM_MAX, &c->text, &c->size, err);
    if (rc)
        return fm_within(err, "'%s' is not an export of fm-pack", v->options->target);
    if (fm_json_tree(&c->json, c->text, c->size, err) || fm_bundle_check_schema(c->json, err) ||
        fm_json_get_string(c->json, "layout", &layout, err))
        goto within;
    c->layout = fm_layouts_find(layout);
    if (!c->layout)
        fm_fail(err, FM_EFORMAT, "layout '%s' is not known", layout);
    if (!c->layout || fm_json_get_int(c->json, "index", 0, FM_BUDGETS_MAX, &c->index, err) ||
        fm_json_opt_double(c->json, "budget", 0, 1, &c->budget, err))
        goto within;
    return FM_OK;
within:
    return fm_within(err, "%s/%s", v->options->target, FM_EXPORT_JSON);
}

void fm_verify_claim_release(struct fm_verify_claim *c)
{
    cJSON_Delete(c->json);
    free(c->text);
    *c = (struct fm_verify_claim){0};
}

/* Files that are not compared: those that the hub and its client put beside a repository's files,
 * and a signature. */
static const char *const hubs[] = {".cache", ".git", ".gitattributes", FM_OMS_NAME, NULL};

int fm_verify_claim_others(struct fm_verifier *v, bool (*known)(const void *self, const char *name),
                           void (*other)(void *self, const char *name), void *self,
                           struct fm_err *err)
{
    struct fm_file_list list;
    if (fm_file_list(&list, v->dir, v->options->target, err))
        return err->code;
    for (size_t i = 0; i < list.count; i++) {
        int hub = fm_names_index(hubs, list.name[i]);
        if (hub >= 0)
            fm_verifier_skip(v, hubs[hub]);
        else if (!known(self, list.name[i]))
            other(self, list.name[i]);
    }
    fm_file_list_release(&list);
    return FM_OK;
}
