/* Opens a checkpoint as if it were the bundle of a family: see foresee.h. */
#include "lib/export/foresee.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/masks/methods.h"
#include "lib/stage/stage.h"

enum { BUDGETS = 100 };

bool fm_foresee_is_checkpoint(const char *path)
{
    struct stat st;
    return path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The full mask, and uniform ones of budgets 0.01 to 1, with widths rounded down. */
static int make_masks(struct fm_opened *o, struct fm_err *err)
{
    const struct fm_config *c = &o->config;
    size_t n = fm_opened_experts(o);
    struct fm_masks *f = &o->budgets.masks;
    uint32_t *width = fm_alloc(n, sizeof *width, "widths", err);
    fm_masks_init(f, c->M, c->E, c->I);
    int rc = width ? fm_actions_parse(&o->budgets.actions, FM_ACTIONS_TWENTY, c->I,
                                      (uint32_t)o->packed.group, err)
                   : err->code;
    if (!rc)
        rc = fm_masks_full(f, &fm_method_uniform, err);
    for (int b = 1; b <= BUDGETS && !rc; b++) {
        uint32_t k = (uint32_t)((uint64_t)c->I * (uint64_t)(BUDGETS - b) / BUDGETS);
        for (size_t i = 0; i < n; i++)
            width[i] = k - k % (uint32_t)o->packed.group;
        rc = fm_masks_append_grown(f, width, &fm_method_uniform, 0, 1, false, err);
    }
    free(width);
    if (rc)
        return rc;
    o->budgets.budget = fm_alloc((size_t)f->count, sizeof *o->budgets.budget, "budgets", err);
    for (int b = 0; o->budgets.budget && b < f->count; b++)
        o->budgets.budget[b].budget = fm_masks_budget(f, b);
    return o->budgets.budget ? FM_OK : err->code;
}

static int list_rest(struct fm_opened *o, const struct fm_checkpoint *cp, struct fm_err *err)
{
    size_t most = cp->rests + cp->asides + cp->extras + 1;
    o->rest = fm_alloc(most, sizeof *o->rest, "the list of tensors", err);
    if (!o->rest)
        return err->code;
    for (size_t i = 0; i < cp->rests; i++) {
        char unused[FM_ST_NAME_BYTES_MAX + 1];
        struct fm_opened_tensor *to = &o->rest[o->rests++];
        to->t = *cp->rest[i].tensor;
        if (cp->rest[i].scale && !o->packed.storage)
            fm_stored_values(&to->t, unused, &cp->rest[i]);
        to->t.name = cp->rest[i].tensor->name;
    }
    for (size_t i = 0; i < cp->asides && o->packed.storage; i++)
        if (!fm_checkpoint_is_plane(cp, &o->packed, &cp->aside[i]))
            o->rest[o->rests++].t = *cp->aside[i].tensor;
    for (size_t i = 0; i < cp->extras; i++)
        o->rest[o->rests++] = (struct fm_opened_tensor){.t = *cp->extra[i].tensor, .extra = true};
    o->extra = cp->sum;
    fm_opened_resolve(o);
    for (size_t i = 0; i < o->rests && !o->packed.storage; i++)
        o->rest[i].at.role = FM_STORED_VALUES; /* some of them under names of codes */
    return FM_OK;
}

int fm_foresee_open(struct fm_opened *o, struct fm_checkpoint *cp, const char *path,
                    enum fm_weights_as weights, struct fm_err *err)
{
    char why[FM_PACKED_WHY], unused[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *model = NULL;
    *o = (struct fm_opened){.foreseen = true};
    *cp = (struct fm_checkpoint){0};
    if (fm_checkpoint_open(cp, path, err) ||
        fm_stage_model_identity(&model, &cp->dir, &cp->config, cp->dtype, NULL, err))
        return err->code;
    cJSON *manifest = fm_stage_manifest(FM_STAGE_RANK, NULL, model, unused);
    char *text = fm_json_print(manifest); /* and read again, as from a file */
    int rc = text ? fm_json_tree(&o->bundle.manifest, text, strlen(text), err)
                  : fm_fail(err, FM_ENOMEM, "no memory for a manifest");
    cJSON_Delete(manifest);
    free(text);
    o->bundle.file.fd = -1;
    o->bundle.file.path = fm_strdup(path, err);
    o->config_text = fm_strdup(cp->dir.config, err);
    if (rc || !o->bundle.file.path || !o->config_text)
        return err->code;
    o->config_bytes = cp->dir.config_bytes;
    if (fm_config_parse(&o->config, o->config_text, o->config_bytes, err))
        return err->code;
    o->dtype = cp->dtype;
    if (!o->config.scheme.storage || weights == FM_WEIGHTS_BF16 ||
        !fm_model_forms(&o->packed, cp->model, why))
        fm_packed_plain(&o->packed, &o->config, o->dtype);
    if (o->packed.storage)
        fm_storage_names(o->stored, &o->config.scheme, o->config.schemes);
    return make_masks(o, err) ? err->code : list_rest(o, cp, err);
}
