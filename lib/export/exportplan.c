/*
 * The plan of an export: lists that grow while it is made, and what follows from them.
 */
#include "lib/export/exportplan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/json/jsonedit.h"
#include "formats/tensor/hftext.h"
#include "lib/base/mem.h"
#include "lib/model/checkpoint.h"

/* ---- making it ---- */

/* Most parts that layouts have of all experts: what is not used of so much memory is not touched.
 */
static size_t most_parts(const struct fm_exportplan *p)
{
    return FM_EXPERT_TENSORS_MAX * fm_opened_experts(p->from);
}

int fm_exportplan_add_tensor(struct fm_exportplan *p, const struct fm_planned_tensor *like,
                             struct fm_err *err)
{
    size_t first = p->from->rests + most_parts(p);
    int rc = FM_GROW(p->tensor, p->tensor_room, p->tensors ? p->tensors + 1 : first,
                     "the tensors of an export", err);
    char whole[FM_ST_NAME_BYTES_MAX + 1];
    bool wrap = p->wrapped && !(like->from && like->from->extra);
    if (!rc && wrap)
        rc = fm_hftext_name(whole, like->t.name, err);
    char *name = !rc ? fm_strdup(wrap ? whole : like->t.name, err) : NULL;
    if (!name)
        return err->code;
    struct fm_planned_tensor *t = &p->tensor[p->tensors++];
    *t = *like;
    t->t.name = name;
    t->block = p->blocks;
    t->blocks = 0;
    return FM_OK;
}

int fm_exportplan_add_block(struct fm_exportplan *p, int m, int e, enum fm_weight_part part,
                            struct fm_err *err)
{
    struct fm_planned_tensor *t = &p->tensor[p->tensors - 1];
    int rc = FM_GROW(p->block, p->block_room, p->blocks ? p->blocks + 1 : most_parts(p),
                     "the experts of an export", err);
    if (rc)
        return rc;
    struct fm_planned_block *b = &p->block[p->blocks++];
    *b = (struct fm_planned_block){.m = m, .e = e, .part = part};
    if (t->blocks++)
        b->at = b[-1].at + fm_exportplan_block_bytes(p, b - 1);
    return FM_OK;
}

int fm_exportplan_add_file(struct fm_exportplan *p, const char *name, char *header,
                           uint64_t header_bytes, uint64_t bytes, bool weights, struct fm_err *err)
{
    int rc = FM_GROW(p->file, p->file_room, p->files + 1, "the files of an export", err);
    if (!rc && strlen(name) >= sizeof p->file->name)
        rc = fm_fail(err, FM_ECONFIG, "file name '%s' is too long", name);
    if (rc) {
        free(header);
        return rc;
    }
    struct fm_planned_file *f = &p->file[p->files++];
    *f = (struct fm_planned_file){
        .header = header, .header_bytes = header_bytes, .bytes = bytes, .weights = weights};
    memcpy(f->name, name, strlen(name) + 1);
    return FM_OK;
}

static int compare_names(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct fm_planned_tensor *)tensor)->t.name);
}

void fm_exportplan_place(struct fm_exportplan *p, const struct fm_tensor *placed, size_t file)
{
    struct fm_planned_tensor *found =
        bsearch(placed->name, p->tensor, p->tensors, sizeof *p->tensor, compare_names);
    assert(found);
    found->t.offset = placed->offset;
    found->t.size = placed->size;
    found->file = file;
}

void fm_exportplan_forget(struct fm_exportplan *p, size_t files)
{
    for (size_t i = files; i < p->files; i++)
        free(p->file[i].header);
    p->files = p->files < files ? p->files : files;
    if (files > 0)
        return;
    for (size_t i = 0; i < p->tensors; i++)
        free((char *)(uintptr_t)p->tensor[i].t.name);
    p->tensors = p->blocks = p->weight_files = 0;
}

void fm_exportplan_release(struct fm_exportplan *p)
{
    fm_exportplan_forget(p, 0);
    free(p->tensor);
    free(p->block);
    free(p->file);
    free(p->widths.kept);
    free(p->widths.stored);
    free(p->planned_for);
    free(p->family);
    free(p->code.item);
    *p = (struct fm_exportplan){0};
}

/* ---- bytes ---- */

uint64_t fm_exportplan_weight_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->files; i++)
        bytes += p->file[i].weights ? p->file[i].bytes : 0;
    return bytes;
}

uint64_t fm_exportplan_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->files; i++)
        bytes += p->file[i].bytes;
    return bytes;
}

uint64_t fm_exportplan_stream_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = FM_ARCHIVE_END_BYTES;
    for (size_t i = 0; i < p->files; i++)
        bytes += fm_archive_header_bytes(p->file[i].bytes) + fm_archive_padded(p->file[i].bytes);
    return bytes;
}

uint64_t fm_exportplan_block_bytes(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return fm_exportplan_stored(p, b) * fm_opened_channel_bytes(p->from, b->part);
}

int fm_exportplan_header(const struct fm_exportplan *p, size_t i, const char **header, char **owned,
                         struct fm_err *err)
{
    const struct fm_planned_file *f = &p->file[i];
    void *data = NULL;
    size_t size = 0;
    int rc = f->header ? FM_OK : fm_bundle_read(&p->from->bundle, f->carried, &data, &size, err);
    *owned = data;
    *header = f->header ? f->header : data;
    return rc;
}

/* ---- channels ---- */

static size_t expert_of(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return (size_t)b->m * (size_t)p->from->config.E + (size_t)b->e;
}

uint32_t fm_exportplan_kept(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return p->widths.kept[expert_of(p, b)];
}

uint32_t fm_exportplan_stored(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return p->widths.stored[expert_of(p, b)];
}

uint64_t fm_exportplan_channels(const struct fm_exportplan *p, int m)
{
    uint64_t sum = 0;
    for (int e = 0; e < p->from->config.E; e++)
        sum += p->widths.stored[(size_t)m * (size_t)p->from->config.E + (size_t)e];
    return sum;
}

uint64_t fm_exportplan_channels_all(const struct fm_exportplan *p)
{
    uint64_t sum = 0;
    for (int m = 0; m < p->from->config.M; m++)
        sum += fm_exportplan_channels(p, m);
    return sum;
}

uint64_t fm_exportplan_freed(const struct fm_exportplan *p)
{
    uint64_t freed = fm_masks_channels(&p->from->budgets.masks);
    for (size_t i = 0; i < fm_opened_experts(p->from); i++)
        freed -= p->widths.kept[i];
    return freed;
}

bool fm_exportplan_full(const struct fm_exportplan *p)
{
    const struct fm_layout *layout = p->options.layout;
    return layout->full || (layout->all_members && !p->options.load_cap);
}

uint32_t fm_exportplan_round(const struct fm_exportplan *p, uint32_t width)
{
    uint32_t pad = p->options.pad_multiple, training = p->from->budgets.actions.multiple;
    uint32_t needed = fm_actions_both(training, p->options.layout->multiple);
    return pad <= 1 ? width
                    : fm_actions_round(width, fm_actions_both(pad, needed), p->from->config.I);
}

int fm_exportplan_unmeasured(char **text, size_t *size, struct fm_err *err)
{
    const struct fm_jsonedit away = {FM_EXPORT_MEASURED, NULL};
    return fm_jsonedit_set(text, size, &away, 1, err);
}

const char *fm_exportplan_base_model(const struct fm_exportplan *p)
{
    return p->options.base_model ? p->options.base_model : p->from->name;
}
