/*
 * Opens a family.  Everything that does not depend on the member or the layout is read and checked
 * here once: exports, lists and fm-verify plan from it.  Tensors outside the experts have one list,
 * filled from the weights or from the checksums, so that an export can be planned from the
 * beginning of a bundle; or from a checkpoint, before there is a bundle.
 */
#include "lib/export/opened.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/export/frontmatter.h"
#include "lib/masks/methods.h"
#include "lib/stage/stage.h"

/* ---- origin of the model ---- */

/* Read the license of the checkpoint's card, as lines of front matter. */
static int read_license(struct fm_opened *o, struct fm_err *err)
{
    static const char *const keys[] = {"license", "license_name", "license_link"};
    const struct fm_member *m = fm_bundle_find(&o->bundle, FM_MEMBER_CARRIED "README.md");
    void *card = NULL;
    size_t size;
    int rc = m ? fm_bundle_read(&o->bundle, m, &card, &size, err) : FM_OK;
    for (int i = 0; card && i < 3; i++)
        fm_frontmatter_repeat(o->license, sizeof o->license, card, keys[i]);
    free(card);
    return rc;
}

static int read_origin(struct fm_opened *o, struct fm_err *err)
{
    cJSON *config = NULL;
    int rc = read_license(o, err);
    if (!rc)
        rc = fm_json_tree(&config, o->config_text, o->config_bytes, err);
    const char *name = fm_json_string_value(config, "_name_or_path");
    if (name && fm_hfcache_is_name(name) && strlen(name) < sizeof o->name)
        snprintf(o->name, sizeof o->name, "%s", name);
    cJSON_Delete(config);
    return rc;
}

/* ---- contents ---- */

static int read_config(struct fm_opened *o, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(&o->bundle, FM_MEMBER_CARRIED "config.json");
    void *text = NULL;
    assert(m); /* fm_stage_config_check */
    int rc = fm_bundle_read(&o->bundle, m, &text, &o->config_bytes, err);
    o->config_text = text;
    return rc ? rc : fm_config_parse(&o->config, o->config_text, o->config_bytes, err);
}

static void list_tensor(struct fm_opened *o, const struct fm_tensor *t,
                        const struct fm_digest *digest)
{
    bool extra = fm_extra_add(&o->extra, &o->config, t);
    o->rest[o->rests++] = (struct fm_opened_tensor){.t = *t, .digest = digest, .extra = extra};
}

/* List tensors from the weights' own index, with their digests if checksums were read: a damaged
 * name, type or shape matches no digest. */
static int list_weights(struct fm_opened *o, const struct fm_safetensors *st, bool checked,
                        struct fm_err *err)
{
    for (size_t i = 0; i < st->count; i++) {
        const struct fm_tensor *t = &st->tensor[i];
        const struct fm_segment_tensor *s = checked ? fm_segments_match(&o->seg, t) : NULL;
        if (checked && !s)
            return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' is not in %s with that type and shape",
                           o->bundle.file.path, t->name, FM_MEMBER_SEGMENTS);
        list_tensor(o, t, s ? &s->digest : NULL);
    }
    return FM_OK;
}

/* Check that every tensor of the checksums exists; o->rest is sorted. */
static int check_complete(const struct fm_opened *o, struct fm_err *err)
{
    for (size_t i = 0; i < o->seg.tensors; i++)
        if (!fm_opened_find(o, o->seg.tensor[i].t.name))
            return fm_fail(err, FM_EFORMAT, "%s: tensor '%s' of %s is missing", o->bundle.file.path,
                           o->seg.tensor[i].t.name, FM_MEMBER_SEGMENTS);
    return FM_OK;
}

const struct fm_opened_tensor *fm_opened_find(const struct fm_opened *o, const char *name)
{
    return fm_names_find(o->rest, o->rests, sizeof *o->rest, name);
}

const struct fm_stored *fm_opened_stored(const void *in, const char *name)
{
    const struct fm_opened_tensor *t = fm_opened_find(in, name);
    return t ? &t->at : NULL;
}

/* Sort the list of tensors by name and determine what they are. */
static void resolve(struct fm_opened *o)
{
    fm_names_sort(o->rest, o->rests, sizeof *o->rest);
    for (size_t i = 0; i < o->rests; i++) {
        o->rest[i].at = (struct fm_stored){.tensor = &o->rest[i].t, .file = &o->bundle.file};
        fm_stored_see(&o->rest[i].at, &o->config, FM_NAMING_STOCK);
    }
    for (size_t i = 0; i < o->rests; i++)
        fm_stored_link(&o->rest[i].at, fm_opened_stored, o);
}

static int read_tensors(struct fm_opened *o, unsigned needs, struct fm_err *err)
{
    int rc = FM_OK;
    if (needs & FM_OPENED_WEIGHTS)
        rc = fm_volumes_open(&o->volumes, &o->bundle, &o->config, err);
    if (!rc && needs & FM_OPENED_CHECKSUMS)
        rc = fm_segments_read(&o->seg, &o->bundle, &o->config, err);
    size_t n = o->volumes.rest.count + o->volumes.extra.count;
    n = n > o->seg.tensors ? n : o->seg.tensors;
    if (rc || n == 0)
        return rc;
    o->rest = fm_alloc(n, sizeof *o->rest, "the list of tensors", err);
    if (!o->rest)
        return err->code;
    if (needs & FM_OPENED_WEIGHTS) {
        bool checked = needs & FM_OPENED_CHECKSUMS;
        rc = list_weights(o, &o->volumes.rest, checked, err);
        if (!rc)
            rc = list_weights(o, &o->volumes.extra, checked, err);
    } else {
        for (size_t i = 0; i < o->seg.tensors && !rc; i++) /* without offsets */
            list_tensor(o, &o->seg.tensor[i].t, &o->seg.tensor[i].digest);
    }
    resolve(o);
    return rc ? rc : check_complete(o, err);
}

/* Channels of codes can only be removed in whole groups. */
static int check_groups(const struct fm_opened *o, struct fm_err *err)
{
    const struct fm_actions *a = &o->budgets.actions;
    uint32_t group = (uint32_t)o->packed.group;
    for (int i = 0; i < a->count; i++)
        if (a->width[i] % group != 0 || a->multiple % group != 0)
            return fm_fail(err, FM_EFORMAT,
                           "%s: experts of %u channels, in multiples of %u, do not fit its %s "
                           "codes, which have groups of %u channels",
                           o->bundle.file.path, a->width[i], a->multiple, o->packed.storage->name,
                           group);
    return FM_OK;
}

int fm_opened_read(struct fm_opened *o, unsigned needs, struct fm_err *err)
{
    struct fm_stage_model model;
    if (fm_stage_model_read(&model, &o->bundle, err) || read_config(o, err) ||
        fm_budgets_open(&o->budgets, &o->bundle, err) ||
        fm_packed_read(&o->packed, &o->bundle, &o->config, err))
        return err->code;
    o->dtype = model.dtype;
    if (o->packed.forms > 1)
        fm_storage_names(o->stored, &o->config.scheme, o->config.schemes);
    else if (o->packed.storage)
        snprintf(o->stored, sizeof o->stored, "%s", o->packed.storage->name);
    if (read_tensors(o, needs, err))
        return err->code;
    if (o->budgets.masks.M != o->config.M || o->budgets.masks.E != o->config.E ||
        o->budgets.masks.I != o->config.I)
        return fm_fail(err, FM_EFORMAT, "%s: the shape of its masks is not that of its config.json",
                       o->bundle.file.path);
    int rc = check_groups(o, err);
    return rc ? rc : read_origin(o, err);
}

int fm_opened_open(struct fm_opened *o, const char *path, unsigned needs, struct fm_err *err)
{
    *o = (struct fm_opened){0};
    int rc = needs & FM_OPENED_WEIGHTS ? fm_stage_open(&o->bundle, path, FM_MEMBER_SEGMENTS, err)
                                       : fm_bundle_open_prefix(&o->bundle, path, err);
    if (!rc && !(needs & FM_OPENED_WEIGHTS))
        rc = fm_stage_config_check(&o->bundle, err);
    return rc ? rc : fm_opened_read(o, needs, err);
}

/* ---- a checkpoint instead of a family ---- */

enum { BUDGETS = 100 };

/* The full mask, and uniform ones of budgets 0.01 to 1, with widths rounded down. */
static int make_masks(struct fm_opened *o, struct fm_err *err)
{
    const struct fm_config *c = &o->config;
    size_t n = fm_opened_experts(o);
    struct fm_masks *f = &o->budgets.masks;
    uint32_t *width = fm_alloc(n, sizeof *width, "widths", err);
    fm_masks_init(f, c->M, c->E, c->I);
    const struct fm_decimal step = {5, 100}, one = {1, 1};
    int rc = width ? fm_actions_steps(&o->budgets.actions, &step, &one, c->I,
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

static int list_rest(struct fm_opened *o, struct fm_checkpoint *cp, struct fm_err *err)
{
    if (o->packed.storage)
        fm_checkpoint_keep(cp, &o->packed);
    o->rest = fm_alloc(cp->rests + cp->extras + 1, sizeof *o->rest, "the list of tensors", err);
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
    for (size_t i = 0; i < cp->extras; i++)
        o->rest[o->rests++] = (struct fm_opened_tensor){.t = *cp->extra[i].tensor, .extra = true};
    o->extra = cp->sum;
    resolve(o);
    for (size_t i = 0; i < o->rests && !o->packed.storage; i++)
        if (!o->rest[i].extra)
            o->rest[i].at.role = FM_STORED_VALUES; /* even if some are named like codes */
    return FM_OK;
}

int fm_opened_foresee(struct fm_opened *o, struct fm_checkpoint *cp, const char *path,
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

void fm_opened_release(struct fm_opened *o)
{
    free(o->rest);
    free(o->config_text);
    fm_config_release(&o->config);
    fm_segments_release(&o->seg);
    fm_volumes_close(&o->volumes);
    fm_budgets_release(&o->budgets);
    fm_bundle_close(&o->bundle);
    *o = (struct fm_opened){0};
}

size_t fm_opened_experts(const struct fm_opened *o)
{
    return (size_t)o->config.M * (size_t)o->config.E;
}

uint64_t fm_opened_channel_weights(const struct fm_opened *o)
{
    uint64_t params = fm_expert_channel_params(o->config.expert, o->config.H);
    return params * (uint64_t)fm_dtype_bits(o->dtype) / 8;
}
