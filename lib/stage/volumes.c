/*
 * In a bundle all experts of a layer have the same size, so an expert's offset is computed from
 * that of its tensor.  The shapes in the headers are checked once.
 */
#include "lib/stage/volumes.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"

void fm_volumes_member(char name[FM_VOLUMES_NAME_BYTES], int l)
{
    snprintf(name, FM_VOLUMES_NAME_BYTES, FM_MEMBER_WEIGHTS FM_WEIGHTS_LAYER, l);
}

void fm_volumes_tensor(char name[FM_VOLUMES_NAME_BYTES], int l, const struct fm_packed_part *part)
{
    snprintf(name, FM_VOLUMES_NAME_BYTES, "layers.%d.%s", l, part->name);
}

/* Index of a tensor's offset in v->at. */
static size_t place_of(int m, int part)
{
    return (size_t)m * FM_PACKED_PARTS_MAX + (size_t)part;
}

uint64_t fm_volumes_expert(const struct fm_volumes *v, int m, int part, int e)
{
    const struct fm_packed *packed = fm_packed_at(&v->packed, m);
    uint64_t expert = fm_packed_bytes(packed, &packed->part[part], (uint64_t)v->config->I);
    return v->at[place_of(m, part)] + (uint64_t)e * expert;
}

static int check_part(struct fm_volumes *v, const struct fm_safetensors *st, int m, int part,
                      struct fm_err *err)
{
    int l = v->config->moe[m];
    const struct fm_packed *packed = fm_packed_at(&v->packed, m);
    const struct fm_packed_part *want = &packed->part[part];
    char name[FM_VOLUMES_NAME_BYTES];
    fm_volumes_tensor(name, l, want);
    const struct fm_tensor *t = fm_safetensors_find(st, name);
    if (!t || st->count != (size_t)packed->parts)
        return fm_fail(err, FM_EFORMAT,
                       "holds %zu tensors; gate_up%s down of layer %d%s belong here", st->count,
                       v->config->expert->bias ? ", its biases and" : " and", l,
                       packed->scheme.storage ? " and their scales" : "");
    if (fm_packed_check(want, t, err))
        return err->code;
    v->at[place_of(m, part)] = t->offset;
    return FM_OK;
}

static int open_layer(struct fm_volumes *v, const struct fm_bundle *bundle, int m,
                      struct fm_err *err)
{
    char name[FM_VOLUMES_NAME_BYTES];
    fm_volumes_member(name, v->config->moe[m]);
    const struct fm_member *member = fm_bundle_find(bundle, name);
    if (!member)
        return fm_fail(err, FM_EFORMAT, "member %s is missing; only fm-pack's output has weights",
                       name);
    struct fm_safetensors st = {0};
    int rc = fm_safetensors_open(&st, &bundle->file, member->offset, member->size, err);
    for (int part = 0; part < fm_packed_at(&v->packed, m)->parts && !rc; part++)
        rc = check_part(v, &st, m, part, err);
    fm_safetensors_close(&st);
    return !rc ? rc : fm_within(err, "%s", name);
}

/* Index one of the two members with tensors outside the experts: rest or, if `extra`, extra. */
static int open_others(struct fm_safetensors *st, const struct fm_volumes *v, const char *name,
                       bool extra, const struct fm_bundle *bundle, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(bundle, name);
    if (!m)
        return extra ? FM_OK : fm_fail(err, FM_EFORMAT, "member %s is missing", name);
    int rc = fm_safetensors_open(st, &bundle->file, m->offset, m->size, err);
    for (size_t i = 0; i < st->count && !rc; i++)
        if ((fm_extra_layer(v->config, st->tensor[i].name) >= 0) != extra)
            rc = fm_fail(err, FM_EFORMAT, "tensor '%s' does not belong here", st->tensor[i].name);
    return !rc ? rc : fm_within(err, "%s", name);
}

int fm_volumes_open(struct fm_volumes *v, const struct fm_bundle *bundle,
                    const struct fm_config *config, struct fm_err *err)
{
    *v = (struct fm_volumes){.config = config};
    int rc = fm_packed_read(&v->packed, bundle, config, err);
    if (rc)
        return rc;
    v->at =
        fm_alloc((size_t)config->M * FM_PACKED_PARTS_MAX, sizeof *v->at, "the list of layers", err);
    rc = v->at ? FM_OK : err->code;
    for (int m = 0; m < config->M && !rc; m++)
        rc = open_layer(v, bundle, m, err);
    if (!rc)
        rc = open_others(&v->rest, v, FM_VOLUMES_REST, false, bundle, err);
    if (!rc)
        rc = open_others(&v->extra, v, FM_VOLUMES_EXTRA, true, bundle, err);
    if (rc) {
        fm_within(err, "%s", bundle->file.path);
        fm_volumes_close(v);
    }
    return rc;
}

void fm_volumes_close(struct fm_volumes *v)
{
    free(v->at);
    fm_safetensors_close(&v->rest);
    fm_safetensors_close(&v->extra);
    *v = (struct fm_volumes){0};
}
