/*
 * Divides the tensors of a checkpoint into those of experts and the rest, by the family's table.
 * fm-pack copies them as bytes, so no values are read here.  A tensor that is missing, duplicated
 * or of the wrong shape is reported before the first byte is copied.
 */
#include "lib/model/checkpoint.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static struct fm_share *share_of(const struct fm_checkpoint *cp, int m, int e)
{
    size_t expert = (size_t)m * (size_t)cp->config.E + (size_t)e;
    return &cp->expert[expert * (size_t)cp->tensors];
}

const struct fm_share *fm_checkpoint_expert(const struct fm_checkpoint *cp, int m, int e)
{
    return share_of(cp, m, e);
}

uint64_t fm_checkpoint_share_bytes(const struct fm_checkpoint *cp, const struct fm_share *share,
                                   const struct fm_tensor *t)
{
    return share->fused ? t->size / (uint64_t)cp->config.E : t->size;
}

static bool is_row_of_experts(const struct fm_checkpoint *cp, const struct fm_weight *w)
{
    return fm_weights_exists(&cp->config, w, cp->config.moe[0]) && w->name[FM_NAMING_STOCK] &&
           fm_weights_is_expert(w);
}

/* The index of row w among the table's rows for experts. */
static int place_of(const struct fm_checkpoint *cp, const struct fm_weight *w)
{
    int place = 0;
    for (const struct fm_weight *x = cp->config.family->weight; x != w; x++)
        place += is_row_of_experts(cp, x);
    return place;
}

/* Store a tensor that matches one of the table's rows for experts. */
static int take_expert(struct fm_checkpoint *cp, const struct fm_stored *at, struct fm_err *err)
{
    const struct fm_tensor *t = at->tensor;
    const struct fm_weight *w = at->weight;
    enum fm_weight_part part;
    int rc = fm_stored_check_weight(&part, at, &cp->config, w, at->l, (uint64_t)cp->config.I, err);
    if (rc)
        return rc;
    enum fm_dtype dtype = fm_stored_dtype(at);
    bool each = fm_weights_per_expert(w, FM_NAMING_STOCK);
    if (cp->experts == 0)
        cp->dtype = dtype;
    if (dtype != cp->dtype)
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s, but other experts are %s", t->name,
                       fm_dtype_name(t->dtype), fm_dtype_name(cp->dtype));
    int m = fm_config_moe(&cp->config, at->l), first = each ? at->e : 0,
        n = each ? 1 : cp->config.E;
    for (int i = first; i < first + n; i++, cp->experts++)
        share_of(cp, m, i)[place_of(cp, w)] =
            (struct fm_share){.at = *at, .part = part, .fused = !each};
    return FM_OK;
}

/* Add a tensor to the extra tensors, to those that belong to codes or, with its scales, to its
 * expert or to the rest. */
static int sort_tensor(struct fm_checkpoint *cp, const struct fm_stored *at, struct fm_err *err)
{
    const char *name = at->tensor->name;
    if (!at->weight && fm_extra_refuse(&cp->config, name, err))
        return err->code;
    if (!at->weight && fm_extra_add(&cp->sum, &cp->config, at->tensor)) {
        /* A copy, whatever it belongs to: its codes and scales are not interpreted. */
        cp->extra[cp->extras++] = (struct fm_stored){
            .tensor = at->tensor, .file = at->file, .l = -1, .e = -1, .extra = true};
        return FM_OK;
    }
    if (fm_stored_check_pair(at, fm_source_find, &cp->source, err) || fm_stored_check(at, err))
        return err->code;
    if (fm_stored_belongs(at)) {
        cp->aside[cp->asides++] = *at;
        return FM_OK;
    }
    if (fm_stored_is_expert(at))
        return take_expert(cp, at, err);
    if (!at->weight && strstr(name, ".experts."))
        return fm_fail(err, FM_EFORMAT, "tensor '%s' belongs to no expert of config.json", name);
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
    size_t experts = (size_t)cp->config.M * (size_t)cp->config.E, all = cp->source.entries;
    for (const struct fm_weight *w = cp->config.family->weight; fm_weights_more(w); w++)
        cp->tensors += is_row_of_experts(cp, w);
    assert(cp->tensors <= FM_EXPERT_TENSORS_MAX);
    size_t tensors = (size_t)cp->tensors;
    cp->expert = fm_alloc(experts * tensors, sizeof *cp->expert, "the list of experts", err);
    cp->rest = fm_alloc(all, sizeof *cp->rest, "the list of tensors", err);
    cp->extra = fm_alloc(all, sizeof *cp->extra, "the list of tensors", err);
    cp->aside = fm_alloc(all, sizeof *cp->aside, "the list of tensors", err);
    int rc = cp->expert && cp->rest && cp->extra && cp->aside ? FM_OK : err->code;
    for (size_t i = 0; i < all && !rc; i++)
        rc = sort_tensor(cp, &cp->source.entry[i], err);
    for (size_t i = 0; i < experts * tensors && !rc; i++)
        if (!cp->expert[i].at.tensor)
            rc = fm_fail(err, FM_EFORMAT, "the tensors of expert %zu of layer %d are incomplete",
                         i / tensors % (size_t)cp->config.E,
                         cp->config.moe[i / tensors / (size_t)cp->config.E]);
    if (rc)
        return rc;
    qsort(cp->rest, cp->rests, sizeof *cp->rest, compare_wheres);
    qsort(cp->extra, cp->extras, sizeof *cp->extra, compare_wheres);
    return fm_extra_check(&cp->sum, &cp->config, err);
}

int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err)
{
    *cp = (struct fm_checkpoint){0};
    int rc = fm_hfdir_open(&cp->dir, path, err);
    if (rc)
        return rc;
    rc = fm_config_parse(&cp->config, cp->dir.config, cp->dir.config_bytes, err);
    if (!rc)
        rc = fm_source_borrow(&cp->source, &cp->dir, err);
    char fused[FM_WEIGHT_NAME_BYTES];
    if (!rc && fm_weights_fused_name(fused, &cp->config))
        cp->config.fused = fm_source_find(&cp->source, fused) != NULL;
    if (!rc)
        rc = fm_source_resolve(&cp->source, &cp->config, err);
    if (!rc)
        rc = sort_tensors(cp, err);
    if (rc) {
        fm_within(err, "%s", path);
        fm_checkpoint_close(cp);
    }
    return rc;
}

void fm_checkpoint_close(struct fm_checkpoint *cp)
{
    free(cp->expert);
    free(cp->rest);
    free(cp->extra);
    free(cp->aside);
    fm_source_close(&cp->source);
    fm_hfdir_close(&cp->dir);
    fm_config_release(&cp->config);
    *cp = (struct fm_checkpoint){0};
}

void fm_checkpoint_name(char name[FM_WEIGHT_NAME_BYTES], const struct fm_config *config,
                        enum fm_naming naming, enum fm_weight_part part, int l, int e)
{
    const struct fm_weight *w = config->family->weight;
    while (fm_weights_more(w) &&
           !(w->part == part && w->name[naming] && fm_weights_exists(config, w, l)))
        w++;
    assert(fm_weights_more(w));
    fm_weights_name(name, w->name[naming], l, e);
}

void fm_checkpoint_rename(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_config *config,
                          enum fm_naming naming, const char *stock)
{
    int l, e;
    const struct fm_weight *w = fm_weights_find(config, FM_NAMING_STOCK, stock, &l, &e);
    if (w && w->name[naming])
        fm_weights_name(name, w->name[naming], l, e);
    else
        snprintf(name, FM_ST_NAME_BYTES_MAX + 1, "%s", stock);
}

bool fm_checkpoint_forms(struct fm_packed_layers *layers, const struct fm_checkpoint *cp,
                         char why[FM_PACKED_WHY])
{
    size_t shares = (size_t)cp->config.E * (size_t)cp->tensors;
    fm_packed_begin(layers);
    for (size_t i = 0; i < cp->experts; i++) {
        const struct fm_share *share = &cp->expert[i];
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        fm_expert_cuts(cut, cp->config.expert, share->part);
        if (cut[0].of != FM_PART_BIAS &&
            !fm_packed_see(layers, &cp->config, cp->dtype, (int)(i / shares), &share->at, why))
            return false;
    }
    return fm_packed_any(layers, &cp->config, why);
}

bool fm_checkpoint_is_plane(const struct fm_checkpoint *cp, const struct fm_packed_layers *layers,
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
