/*
 * Which tensors hold the experts of a layer, and which files hold the tensors: what several layouts
 * have in common.  Names are those of the family's table, in the column that the layout says.
 */
#include "lib/export/tensorplan.h"

#include <stdio.h>
#include <stdlib.h>

#include "formats/tensor/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/model/checkpoint.h"

/* A tensor of some of the m-th layer's experts, under the name that the family's table gives its
 * part, e where that has an expert's number. */
static int add_tensor(struct fm_exportplan *p, int m, int e, enum fm_weight_part part,
                      const char *suffix, const struct fm_tensor *shape, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES], whole[FM_WEIGHT_NAME_BYTES + 8];
    const struct fm_config *c = &p->from->config;
    fm_checkpoint_name(name, c, p->options.layout->names, part, c->moe[m], e);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    struct fm_planned_tensor t = {.t = *shape, .fill = FM_FILL_EXPERTS, .m = m};
    t.t.name = whole;
    t.t.dtype = p->from->dtype;
    return fm_exportplan_add_tensor(p, &t, err);
}

/* One part of every expert, one after another. */
static int add_flat(struct fm_exportplan *p, int m, enum fm_weight_part part, struct fm_err *err)
{
    int per = fm_expert_part_rows(p->from->config.expert, part);
    uint64_t rows = fm_exportplan_channels(p, m) * (uint64_t)per;
    const struct fm_tensor shape = {.dims = part == FM_PART_BIAS ? 1 : 2,
                                    .shape = {rows, (uint64_t)p->from->config.H}};
    int rc = add_tensor(p, m, 0, part, "", &shape, err);
    for (int e = 0; e < p->from->config.E && !rc; e++)
        rc = fm_exportplan_add_block(p, m, e, part, err);
    return rc;
}

int fm_tensorplan_flat(struct fm_exportplan *p, int m, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; i < fm_expert_parts(p->from->config.expert) && !rc; i++)
        rc = add_flat(p, m, fm_segments_part(i), err);
    return rc;
}

int fm_tensorplan_fused(struct fm_exportplan *p, int m, struct fm_err *err)
{
    uint64_t E = (uint64_t)p->from->config.E, H = (uint64_t)p->from->config.H;
    uint64_t k = p->widths.stored[(size_t)m * (size_t)E];
    if (p->from->config.expert->bias)
        return fm_fail(err, FM_ECONFIG,
                       "--for vllm: vLLM's fused kernels have no biases of experts of several "
                       "widths, and %s has them; use --layout ragged, or layer without --for",
                       p->from->config.family->name);
    const struct fm_tensor gate_up = {.dims = 3, .shape = {E, 2 * k, H}};
    const struct fm_tensor down = {.dims = 3, .shape = {E, H, k}};
    int rc = add_tensor(p, m, 0, FM_PART_GATE_UP, "_proj", &gate_up, err);
    for (int e = 0; e < p->from->config.E && !rc; e++) {
        rc = fm_exportplan_add_block(p, m, e, FM_PART_GATE, err);
        if (!rc)
            rc = fm_exportplan_add_block(p, m, e, FM_PART_UP, err);
    }
    if (!rc)
        rc = add_tensor(p, m, 0, FM_PART_DOWN_T, "_proj", &down, err);
    for (int e = 0; e < p->from->config.E && !rc; e++)
        rc = fm_exportplan_add_block(p, m, e, FM_PART_DOWN, err);
    return rc;
}

/* The shape of a row's tensor, experts k wide. */
static struct fm_tensor stock_shape(const struct fm_config *c, const struct fm_weight *w,
                                    uint64_t k)
{
    struct fm_tensor t = {0};
    t.dims = fm_weights_shape(t.shape, c, w, -1, 0);
    for (int d = 0; d < t.dims; d++) {
        char letter = w->shape[d];
        t.shape[d] = letter == 'I' ? k : letter == 'J' ? k * (uint64_t)c->expert->rows : t.shape[d];
    }
    return t;
}

/* The cuts of experts [first, first + n) in one tensor, as wide as files can hold. */
static int add_stock(struct fm_exportplan *p, int m, const struct fm_weight *w, int first, int n,
                     struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    int cuts = fm_expert_cuts(cut, c->expert, w->part);
    uint64_t k = p->widths.stored[(size_t)m * (size_t)c->E + (size_t)first];
    const struct fm_tensor shape = stock_shape(c, w, k);
    int rc = add_tensor(p, m, first, w->part, "", &shape, err);
    for (int i = 0; i < n * cuts && !rc; i++)
        rc = fm_exportplan_add_block(p, m, first + i / cuts, cut[i % cuts].part, err);
    return rc;
}

int fm_tensorplan_stock(struct fm_exportplan *p, int m, struct fm_err *err)
{
    const struct fm_config *c = &p->from->config;
    int rc = FM_OK;
    for (int e = 0; e < c->E; e++)
        for (const struct fm_weight *w = c->family->weight; fm_weights_more(w) && !rc; w++) {
            if (!w->name[FM_NAMING_STOCK] || !fm_weights_is_expert(w) ||
                !fm_weights_exists(c, w, c->moe[m]))
                continue;
            if (fm_weights_per_expert(w, FM_NAMING_STOCK))
                rc = add_stock(p, m, w, e, 1, err);
            else if (e == 0)
                rc = add_stock(p, m, w, 0, c->E, err);
        }
    return rc;
}

/* ---- files ---- */

static int add_files(struct fm_exportplan *p, struct fm_hfwriter *w, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < w->files && !rc; i++) {
        struct fm_hfwriter_file *f = &w->file[i];
        for (size_t n = 0; n < f->count; n++)
            fm_exportplan_place(p, &w->tensor[f->first + n], p->files);
        char *header = f->header;
        f->header = NULL;
        rc = fm_exportplan_add_file(p, f->name, header, f->header_bytes, f->file_bytes, true, err);
    }
    if (!rc && w->index) {
        char *index = w->index;
        w->index = NULL;
        rc = fm_exportplan_add_file(p, FM_HFWRITER_INDEX, index, w->index_bytes, w->index_bytes,
                                    false, err);
    }
    return rc;
}

int fm_tensorplan_shards(struct fm_exportplan *p, struct fm_err *err)
{
    uint64_t shard_bytes = p->options.shard_bytes;
    struct fm_hfwriter w = {0};
    struct fm_tensor *tensor = fm_alloc(p->tensors, sizeof *tensor, "the plan of an export", err);
    if (!tensor)
        return err->code;
    for (size_t i = 0; i < p->tensors; i++)
        tensor[i] = p->tensor[i].t;
    int rc = fm_hfwriter_plan(&w, tensor, p->tensors,
                              shard_bytes ? shard_bytes : FM_EXPORT_SHARD_BYTES, err);
    if (!rc)
        rc = add_files(p, &w, err);
    fm_hfwriter_release(&w);
    free(tensor);
    return rc;
}
