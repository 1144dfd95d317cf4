/* The Hugging Face layouts: ragged, padded and uniform. */
#include "lib/exporter.h"

#include <stdlib.h>
#include <string.h>

#include "formats/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/checkpoint.h"

/* Two flat tensors per layer. */
static int add_ragged(struct fm_exporter *x, int l, struct fm_err *err)
{
    uint64_t sum = 0;
    int rc = FM_OK;
    for (int e = 0; e < x->config.E; e++)
        sum += x->widths[(size_t)l * (size_t)x->config.E + (size_t)e];
    for (int part = 0; part < FM_SEGMENT_PARTS && rc == FM_OK; part++) {
        bool down = part == FM_SEGMENT_DOWN;
        char name[FM_WEIGHT_NAME_BYTES];
        fm_checkpoint_name(name, &x->config, FM_SOURCE_RAGGED,
                           down ? FM_PART_DOWN_T : FM_PART_GATE_UP, l, 0);
        struct fm_export_tensor t = {.fill = FM_FILL_FLAT, .l = l};
        t.part = (enum fm_segment_part)part;
        t.t = (struct fm_tensor){.name = name, .dtype = x->volumes.dtype, .dims = 2};
        t.t.shape[0] = down ? sum : 2 * sum;
        t.t.shape[1] = (uint64_t)x->config.H;
        rc = fm_exporter_add_tensor(x, &t, err);
    }
    return rc;
}

/* The checkpoint's three matrices of one expert, x->rows channels wide. */
static int add_stock(struct fm_exporter *x, int l, int e, struct fm_err *err)
{
    static const struct {
        enum fm_weight_part part;
        enum fm_fill fill;
    } matrix[] = {
        {FM_PART_GATE, FM_FILL_GATE}, {FM_PART_UP, FM_FILL_UP}, {FM_PART_DOWN, FM_FILL_DOWN}};
    int rc = FM_OK;
    for (int i = 0; i < 3 && rc == FM_OK; i++) {
        char name[FM_WEIGHT_NAME_BYTES];
        fm_checkpoint_name(name, &x->config, FM_SOURCE_STOCK, matrix[i].part, l, e);
        struct fm_export_tensor t = {.fill = matrix[i].fill, .l = l, .e = e};
        bool down = matrix[i].fill == FM_FILL_DOWN;
        t.t = (struct fm_tensor){.name = name, .dtype = x->volumes.dtype, .dims = 2};
        t.t.shape[0] = (uint64_t)(down ? x->config.H : x->rows);
        t.t.shape[1] = (uint64_t)(down ? x->rows : x->config.H);
        rc = fm_exporter_add_tensor(x, &t, err);
    }
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct fm_export_tensor *)a)->t.name,
                  ((const struct fm_export_tensor *)b)->t.name);
}

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

int fm_exporter_hf(struct fm_exporter *x, struct fm_err *err)
{
    int rc = FM_OK;
    bool ragged = x->options->layout == FM_LAYOUT_RAGGED;
    for (int l = 0; l < x->config.L && rc == FM_OK; l++) {
        if (ragged)
            rc = add_ragged(x, l, err);
        for (int e = 0; e < x->config.E && !ragged && rc == FM_OK; e++)
            rc = add_stock(x, l, e, err);
    }
    struct fm_hfwriter w = {0};
    struct fm_tensor *tensor = NULL;
    if (rc == FM_OK) {
        tensor = fm_alloc(x->tensors, sizeof *tensor, "the plan of an export", err);
        rc = tensor ? FM_OK : err->code;
    }
    if (rc == FM_OK) {
        qsort(x->tensor, x->tensors, sizeof *x->tensor, compare_names);
        for (size_t i = 0; i < x->tensors; i++)
            tensor[i] = x->tensor[i].t;
        rc = fm_hfwriter_plan(&w, tensor, x->tensors, FM_HFWRITER_SHARD_BYTES, err);
    }
    if (rc == FM_OK)
        rc = add_files(x, &w, err);
    fm_hfwriter_release(&w);
    free(tensor);
    return rc;
}
