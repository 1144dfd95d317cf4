/*
 * Which tensors hold the experts of a layer, and which files hold the tensors: what several layouts
 * have in common.  Names are those of the family's table, in the column that the layout says.
 */
#include "lib/export/tensorplan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tensor/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/model/checkpoint.h"

/* A tensor of a layer's experts together, under the name that the family's table gives it. */
static int add_part(struct fm_exporter *x, int m, enum fm_weight_part part, enum fm_fill fill,
                    const char *suffix, const uint64_t *shape, int dims, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES], whole[FM_WEIGHT_NAME_BYTES + 8];
    fm_checkpoint_name(name, &x->config, x->options->layout->names, part, x->config.moe[m], 0);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    struct fm_export_tensor t = {.fill = fill, .l = m, .part = part};
    t.t = (struct fm_tensor){.name = whole, .dtype = x->volumes.dtype, .dims = dims};
    memcpy(t.t.shape, shape, (size_t)dims * sizeof *shape);
    return fm_exporter_add_tensor(x, &t, err);
}

int fm_tensorplan_flat(struct fm_exporter *x, int m, struct fm_err *err)
{
    uint64_t sum = fm_exporter_channels(x, m), H = (uint64_t)x->config.H;
    const uint64_t gate_up[2] = {2 * sum, H}, down[2] = {sum, H};
    int rc = add_part(x, m, FM_PART_GATE_UP, FM_FILL_FLAT, "", gate_up, 2, err);
    return rc == FM_OK ? add_part(x, m, FM_PART_DOWN_T, FM_FILL_FLAT, "", down, 2, err) : rc;
}

int fm_tensorplan_fused(struct fm_exporter *x, int m, struct fm_err *err)
{
    uint64_t E = (uint64_t)x->config.E, H = (uint64_t)x->config.H;
    uint64_t k = x->stored[(size_t)m * (size_t)E];
    const uint64_t gate_up[3] = {E, 2 * k, H}, down[3] = {E, H, k};
    int rc = add_part(x, m, FM_PART_GATE_UP, FM_FILL_FUSED_UP, "_proj", gate_up, 3, err);
    return rc == FM_OK ? add_part(x, m, FM_PART_DOWN_T, FM_FILL_FUSED_DOWN, "_proj", down, 3, err)
                       : rc;
}

/* The checkpoint's three matrices of one expert, as wide as files have room for. */
static int add_matrices(struct fm_exporter *x, int m, int e, struct fm_err *err)
{
    static const struct {
        enum fm_weight_part part;
        enum fm_fill fill;
    } matrix[] = {
        {FM_PART_GATE, FM_FILL_GATE}, {FM_PART_UP, FM_FILL_UP}, {FM_PART_DOWN, FM_FILL_DOWN}};
    uint64_t rows = x->stored[(size_t)m * (size_t)x->config.E + (size_t)e];
    uint64_t H = (uint64_t)x->config.H;
    int rc = FM_OK;
    for (int i = 0; i < 3 && rc == FM_OK; i++) {
        char name[FM_WEIGHT_NAME_BYTES];
        fm_checkpoint_name(name, &x->config, x->options->layout->names, matrix[i].part,
                           x->config.moe[m], e);
        struct fm_export_tensor t = {.fill = matrix[i].fill, .l = m, .e = e};
        bool down = matrix[i].part == FM_PART_DOWN;
        t.t = (struct fm_tensor){.name = name, .dtype = x->volumes.dtype, .dims = 2};
        t.t.shape[0] = down ? H : rows;
        t.t.shape[1] = down ? rows : H;
        rc = fm_exporter_add_tensor(x, &t, err);
    }
    return rc;
}

int fm_tensorplan_stock(struct fm_exporter *x, int m, struct fm_err *err)
{
    int rc = FM_OK;
    for (int e = 0; e < x->config.E && rc == FM_OK; e++)
        rc = add_matrices(x, m, e, err);
    return rc;
}

/* ---- files ---- */

static int add_files(struct fm_exporter *x, struct fm_hfwriter *w, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < w->files && rc == FM_OK; i++) {
        struct fm_hfwriter_file *f = &w->file[i];
        for (size_t n = 0; n < f->count; n++)
            fm_exporter_place(x, &w->tensor[f->first + n], x->files);
        char *header = f->header;
        f->header = NULL;
        rc = fm_exporter_add_file(x, f->name, header, f->header_bytes, f->file_bytes, true, err);
    }
    if (rc == FM_OK && w->index) {
        char *index = w->index;
        w->index = NULL;
        rc = fm_exporter_add_file(x, FM_HFWRITER_INDEX, index, w->index_bytes, w->index_bytes,
                                  false, err);
    }
    return rc;
}

int fm_tensorplan_shards(struct fm_exporter *x, struct fm_err *err)
{
    uint64_t shard_bytes = x->options->shard_bytes;
    struct fm_hfwriter w = {0};
    struct fm_tensor *tensor = fm_alloc(x->tensors, sizeof *tensor, "the plan of an export", err);
    if (!tensor)
        return err->code;
    for (size_t i = 0; i < x->tensors; i++)
        tensor[i] = x->tensor[i].t;
    int rc = fm_hfwriter_plan(&w, tensor, x->tensors,
                              shard_bytes ? shard_bytes : FM_EXPORT_SHARD_BYTES, err);
    if (rc == FM_OK)
        rc = add_files(x, &w, err);
    fm_hfwriter_release(&w);
    free(tensor);
    return rc;
}
