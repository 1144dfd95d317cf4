/*
 * Divides the tensors of a checkpoint, which fm_model_open_dir found and checked, into those of
 * experts and the rest.  fm-pack copies them as bytes, so no values are read here.
 */
#include "lib/model/checkpoint.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/model/loading.h"

struct fm_share fm_checkpoint_share(const struct fm_checkpoint *cp, int m, int e, int i)
{
    const struct fm_weight *w = cp->row[i];
    bool fused = !fm_weights_per_expert(w, FM_NAMING_STOCK);
    const struct fm_stored *at =
        fm_source_stored(&cp->model->tensors, w, cp->config.moe[m], fused ? -1 : e);
    assert(at); /* found when the model was opened */
    return (struct fm_share){.at = at,
                             .part =
                                 at->scale ? fm_stored_part(at->scheme.storage, w->part) : w->part,
                             .fused = fused};
}

/* Add a tensor that is not an expert's to the extra tensors, to those that belong to codes or to
 * the rest. */
static int sort_tensor(struct fm_checkpoint *cp, const struct fm_stored *at, struct fm_err *err)
{
    if (!at->weight && at->extra) /* a copy: its codes and scales are not interpreted */
        cp->extra[cp->extras++] = (struct fm_stored){
            .tensor = at->tensor, .file = at->file, .l = -1, .e = -1, .extra = true};
    else if (fm_stored_belongs(at))
        cp->aside[cp->asides++] = *at;
    else if (!at->weight && strstr(at->tensor->name, ".experts."))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' belongs to no expert of config.json",
                       at->tensor->name);
    else if (!fm_stored_is_expert(at))
        cp->rest[cp->rests++] = *at;
    return FM_OK;
}

static int compare_wheres(const void *a, const void *b)
{
    return strcmp(((const struct fm_stored *)a)->tensor->name,
                  ((const struct fm_stored *)b)->tensor->name);
}

static int sort_tensors(struct fm_checkpoint *cp, struct fm_err *err)
{
    const struct fm_tensors *source = &cp->model->tensors;
    size_t all = source->entries;
    for (const struct fm_weight *w = cp->config.family->weight; fm_weights_more(w); w++)
        if (fm_weights_exists(&cp->config, w, cp->config.moe[0]) && w->name[FM_NAMING_STOCK] &&
            fm_weights_is_expert(w)) {
            assert(cp->tensors < FM_EXPERT_TENSORS_MAX);
            cp->row[cp->tensors++] = w;
        }
    cp->rest = fm_alloc(all, sizeof *cp->rest, "the list of tensors", err);
    cp->extra = fm_alloc(all, sizeof *cp->extra, "the list of tensors", err);
    cp->aside = fm_alloc(all, sizeof *cp->aside, "the list of tensors", err);
    int rc = cp->rest && cp->extra && cp->aside ? FM_OK : err->code;
    for (size_t i = 0; i < all && !rc; i++)
        rc = sort_tensor(cp, &source->entry[i], err);
    if (rc)
        return rc;
    qsort(cp->rest, cp->rests, sizeof *cp->rest, compare_wheres);
    qsort(cp->extra, cp->extras, sizeof *cp->extra, compare_wheres);
    return FM_OK;
}

/* Whether the tensor holds scales of experts' channels, so that it is a layer's tensor. */
static bool is_plane(const struct fm_checkpoint *cp, const struct fm_packed_layers *layers,
                     const struct fm_stored *s)
{
    const struct fm_config *c = &cp->config;
    if (s->role != FM_STORED_SCALE || !fm_stored_is_expert(s))
        return false;
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    int m = fm_config_moe(c, s->l);
    fm_expert_cuts(cut, c->expert, fm_stored_part(s->scheme.storage, s->weight->part));
    return m >= 0 && fm_packed_find(fm_packed_at(layers, m), cut[0].of, 1);
}

void fm_checkpoint_keep(struct fm_checkpoint *cp, const struct fm_packed_layers *layers)
{
    size_t asides = 0;
    for (size_t i = 0; i < cp->asides; i++)
        if (is_plane(cp, layers, &cp->aside[i]))
            cp->aside[asides++] = cp->aside[i];
        else
            cp->rest[cp->rests++] = cp->aside[i];
    cp->asides = asides;
    qsort(cp->rest, cp->rests, sizeof *cp->rest, compare_wheres);
}

int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err)
{
    *cp = (struct fm_checkpoint){0};
    if (fm_hfdir_open(&cp->dir, path, err) || fm_model_open_dir(&cp->model, &cp->dir, 0, err))
        goto fail;
    cp->config = *fm_model_config(cp->model);
    cp->dtype = fm_model_dtype(cp->model);
    cp->sum = *fm_model_extra(cp->model);
    if (cp->model->tensors.naming != FM_NAMING_STOCK)
        fm_fail(err, FM_ECONFIG, "%s is an export; give its checkpoint", path);
    else if (sort_tensors(cp, err))
        fm_within(err, "%s", path);
    else
        return FM_OK;
fail:
    fm_checkpoint_close(cp);
    return err->code;
}

void fm_checkpoint_close(struct fm_checkpoint *cp)
{
    free(cp->rest);
    free(cp->extra);
    free(cp->aside);
    fm_model_close(cp->model);
    fm_hfdir_close(&cp->dir);
    *cp = (struct fm_checkpoint){0};
}
