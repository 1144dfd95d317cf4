/*
 * The lists of a plan, and what can be computed from them.
 */
#include "lib/export/planned.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tensor/hftext.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

/* ---- lists that grow ---- */

/* Initial capacity for the tensors or blocks of all experts, enough unless they are codes;
 * untouched pages take no memory. */
static size_t most_parts(const struct fm_exportplan *p)
{
    return FM_EXPERT_TENSORS_MAX * fm_opened_experts(p->from);
}

/* Whether a tensor has the fields of its kind. */
static bool is_kind_sane(const struct fm_planned_tensor *t)
{
    switch (t->kind) {
    case FM_PLANNED_NUMBERS:
        return !t->from && !t->decoded && fm_tensor_count(&t->t) <= 2;
    case FM_PLANNED_EXPERTS:
        return !t->from && !t->decoded && t->m >= 0;
    case FM_PLANNED_COPY:
        return t->from && !t->decoded;
    case FM_PLANNED_DECODED:
        return t->from && t->decoded;
    case FM_PLANNED_WIDENED:
        return t->from && t->widen.by > 0 && t->widen.dimension < t->t.dims;
    case FM_PLANNED_NARROWED:
        return t->from && t->narrow.matrices > 0 && t->narrow.dimension < t->t.dims;
    }
    return false;
}

int fm_planned_add_tensor(struct fm_exportplan *p, const struct fm_planned_tensor *like,
                          struct fm_err *err)
{
    assert(is_kind_sane(like));
    size_t first = p->from->rests + most_parts(p);
    int rc = FM_GROW(p->tensor, p->tensor_room, p->tensors ? p->tensors + 1 : first,
                     "the tensors of an export", err);
    char whole[FM_ST_NAME_BYTES_MAX + 1];
    bool wrap = p->wrapped && !(like->from && like->from->extra);
    if (!rc && wrap)
        rc = fm_hftext_name(whole, like->t.name, p->wrapped, err);
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

bool fm_planned_has_channels(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    enum fm_weight_part of = fm_expert_cut(p->from->config.expert, b->part).of;
    return b->plane < 0 || fm_packed_find(fm_packed_at(&p->packed, b->m), of, b->plane);
}

int fm_planned_add_experts(struct fm_exportplan *p, int m, const struct fm_tensor *t, int first,
                           int n, enum fm_weight_part part, int plane, struct fm_err *err)
{
    const struct fm_planned_tensor like = {.t = *t, .m = m, .kind = FM_PLANNED_EXPERTS};
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    int cuts = fm_expert_cuts(cut, p->from->config.expert, part), blocks = n * cuts;
    uint64_t all = fm_tensor_count(t) * (uint64_t)fm_dtype_bits(t->dtype) / 8;
    int rc = fm_planned_add_tensor(p, &like, err);
    assert(first >= 0 && n > 0 && first + n <= p->from->config.E);
    for (int i = 0; i < blocks && !rc; i++) {
        rc = FM_GROW(p->block, p->block_room, p->blocks ? p->blocks + 1 : most_parts(p),
                     "the experts of an export", err);
        if (rc)
            break;
        struct fm_planned_block *b = &p->block[p->blocks++];
        *b = (struct fm_planned_block){.m = m,
                                       .e = first + i / cuts,
                                       .part = cut[i % cuts].part,
                                       .plane = plane,
                                       .bytes = all / (uint64_t)blocks};
        if (fm_planned_has_channels(p, b))
            b->bytes = fm_planned_unit_bytes(p, b, fm_planned_stored(p, b));
        if (p->tensor[p->tensors - 1].blocks++)
            b->at = b[-1].at + b[-1].bytes;
    }
    return rc;
}

int fm_planned_add_file(struct fm_exportplan *p, const char *name, char *header,
                        uint64_t header_bytes, uint64_t bytes, bool weights, struct fm_err *err)
{
    int rc = FM_GROW(p->file, p->file_room, p->files + 1, "the files of an export", err);
    if (!rc && strlen(name) >= sizeof p->file->name)
        rc = fm_fail(err, FM_ECONFIG, "file name '%s' is too long", name);
    if (rc) {
        free(header);
        return rc;
    }
    assert(header_bytes <= bytes && (weights || header_bytes == bytes));
    struct fm_planned_file *f = &p->file[p->files++];
    *f = (struct fm_planned_file){
        .header = header, .header_bytes = header_bytes, .bytes = bytes, .weights = weights};
    memcpy(f->name, name, strlen(name) + 1);
    return FM_OK;
}

int fm_planned_add_text(struct fm_exportplan *p, const char *name, struct fm_text *t,
                        struct fm_err *err)
{
    size_t size = t->size;
    char *data = t->data;
    bool failed = t->failed;
    *t = (struct fm_text){0};
    if (!failed)
        return fm_planned_add_file(p, name, data, size, size, false, err);
    free(data);
    return fm_fail(err, FM_ENOMEM, "no memory for %s", name);
}

void fm_planned_place(struct fm_exportplan *p, const struct fm_tensor *placed, size_t file)
{
    struct fm_planned_tensor *found =
        fm_names_find(p->tensor, p->tensors, sizeof *p->tensor, placed->name);
    assert(found && file == p->files); /* invariant 4; the file that is added next */
    found->t.offset = placed->offset;
    found->t.size = placed->size;
    found->file = file;
}

void fm_planned_forget(struct fm_exportplan *p, size_t files)
{
    assert(files == 0 || files == p->weight_files);
    for (size_t i = files; i < p->files; i++)
        free(p->file[i].header);
    p->files = p->files < files ? p->files : files;
    if (files > 0)
        return;
    for (size_t i = 0; i < p->tensors; i++)
        free((char *)(uintptr_t)p->tensor[i].t.name);
    p->tensors = p->blocks = p->weight_files = 0;
}

void fm_planned_release(struct fm_exportplan *p)
{
    fm_planned_forget(p, 0);
    free(p->tensor);
    free(p->block);
    free(p->file);
    free(p->widths.kept);
    free(p->widths.stored);
    free(p->planned_for);
    free(p->ahead);
    free(p->family);
    free(p->code.item);
    *p = (struct fm_exportplan){0};
}

/* ---- sanity ---- */

static bool is_tensor_sane(const struct fm_exportplan *p, size_t i)
{
    const struct fm_planned_tensor *t = &p->tensor[i];
    uint64_t bytes = 0;
    if (t->block > p->blocks || t->blocks > p->blocks - t->block)
        return false;
    for (size_t b = t->block; b < t->block + t->blocks; b++) {
        if (p->block[b].tensor != i || p->block[b].at != bytes)
            return false;
        bytes += p->block[b].bytes;
    }
    return is_kind_sane(t) && (t->kind == FM_PLANNED_EXPERTS ? bytes == t->t.size : !t->blocks);
}

static bool is_file_sane(const struct fm_exportplan *p, size_t i)
{
    const struct fm_planned_file *f = &p->file[i];
    uint64_t at = f->header_bytes;
    for (size_t k = f->tensor; k < f->tensor + f->tensors; k++) {
        const struct fm_planned_tensor *t = &p->tensor[k];
        bool placed = t->t.offset == at || t->t.size == 0; /* an empty tensor may be anywhere */
        if (k >= p->tensors || t->file != i || !placed || !is_tensor_sane(p, k))
            return false;
        at += t->t.size;
    }
    return at == f->bytes && (f->header || f->carried) && (f->weights || f->tensors == 0);
}

bool fm_planned_sane(const struct fm_exportplan *p)
{
    size_t tensors = 0;
    for (size_t i = 0; i < fm_opened_experts(p->from); i++)
        if (p->widths.kept[i] > p->widths.stored[i] ||
            p->widths.stored[i] > (uint32_t)p->from->config.I)
            return false;
    for (size_t i = 0; i < p->files; i++) {
        if (!is_file_sane(p, i))
            return false;
        tensors += p->file[i].tensors;
    }
    return tensors == p->tensors && p->weight_files <= p->files && p->first <= p->last;
}

/* ---- bytes ---- */

uint64_t fm_planned_weight_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->files; i++)
        bytes += p->file[i].weights ? p->file[i].bytes : 0;
    return bytes;
}

uint64_t fm_planned_bytes(const struct fm_exportplan *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->files; i++)
        bytes += p->file[i].bytes;
    return bytes;
}

uint64_t fm_planned_unit_bytes(const struct fm_exportplan *p, const struct fm_planned_block *b,
                               uint64_t channels)
{
    return fm_planned_forms(p, b, channels, channels).file_bytes;
}

struct fm_packed_forms fm_planned_forms(const struct fm_exportplan *p,
                                        const struct fm_planned_block *b, uint64_t channels,
                                        uint64_t stored)
{
    const struct fm_config *c = &p->from->config;
    const struct fm_expert_cut cut = fm_expert_cut(c->expert, b->part);
    return fm_packed_forms(c, fm_packed_at(&p->packed, b->m), b->plane, p->from->dtype, &cut,
                           channels, stored);
}

uint64_t fm_planned_channel_bytes(const struct fm_exportplan *p, uint64_t channels)
{
    uint64_t group = 0; /* bytes of p->packed.group channels, summed over the layers */
    for (int m = 0; m < p->packed.M; m++) {
        const struct fm_packed *packed = fm_packed_at(&p->packed, m);
        group += (uint64_t)(p->packed.group / packed->group) * fm_packed_all_bytes(packed);
    }
    return channels * group / (uint64_t)p->packed.M / (uint64_t)p->packed.group;
}

int fm_planned_header(const struct fm_exportplan *p, size_t i, const char **header, char **owned,
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
    assert(b->m >= 0 && b->m < p->from->config.M && b->e >= 0 && b->e < p->from->config.E);
    return (size_t)b->m * (size_t)p->from->config.E + (size_t)b->e;
}

uint32_t fm_planned_kept(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return b->plane == 1 ? fm_planned_stored(p, b) : p->widths.kept[expert_of(p, b)];
}

uint32_t fm_planned_stored(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return p->widths.stored[expert_of(p, b)];
}

int fm_planned_blank(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    const struct fm_packed *packed = fm_packed_at(&p->packed, b->m);
    return b->plane == 0 ? fm_code_zero(packed->scheme.storage->code) : 0;
}

uint64_t fm_planned_layer_channels(const struct fm_exportplan *p, int m)
{
    uint64_t sum = 0;
    for (int e = 0; e < p->from->config.E; e++)
        sum += p->widths.stored[(size_t)m * (size_t)p->from->config.E + (size_t)e];
    return sum;
}

uint64_t fm_planned_channels_all(const struct fm_exportplan *p)
{
    uint64_t sum = 0;
    for (int m = 0; m < p->from->config.M; m++)
        sum += fm_planned_layer_channels(p, m);
    return sum;
}

uint64_t fm_planned_freed(const struct fm_exportplan *p)
{
    uint64_t freed = fm_masks_channels(&p->from->budgets.masks); /* I of each expert: invariant 1 */
    for (size_t i = 0; i < fm_opened_experts(p->from); i++)
        freed -= p->widths.kept[i];
    return freed;
}

bool fm_planned_as_measured(const struct fm_exportplan *p)
{
    const uint32_t *mask = fm_masks_widths(&p->from->budgets.masks, p->index);
    size_t bytes = fm_opened_experts(p->from) * sizeof *mask;
    return !p->options.quantise &&
           (p->options.layout->all_members || memcmp(p->widths.kept, mask, bytes) == 0);
}

bool fm_planned_larger(const struct fm_exportplan *p, uint64_t source)
{
    return fm_planned_weight_bytes(p) > source + source / 50;
}

double fm_planned_break_even(const struct fm_exportplan *p, uint64_t source)
{
    uint64_t all = fm_masks_channels(&p->from->budgets.masks);
    double experts = (double)fm_planned_channel_bytes(p, all);
    double stored = (double)fm_planned_channel_bytes(p, fm_planned_channels_all(p));
    double rest = (double)fm_planned_weight_bytes(p) - stored;
    if (p->widths.full)
        return rest + stored < (double)source ? 0 : 2;
    return 1 - ((double)source - rest) / experts;
}

const char *fm_planned_format(const struct fm_exportplan *p, const char **list)
{
    const struct fm_quantiser *q = p->options.quantise;
    assert(q);
    bool fused = fm_families_fused(p->from->config.family);
    *list = fused ? q->fused_list : q->list;
    return p->from->config.fused ? NULL : fused ? q->fused : q->config;
}
