/* The Hugging Face layouts: all but native. */
#include "lib/export/exporter.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/tensor/hfwriter.h"
#include "lib/base/mem.h"
#include "lib/model/checkpoint.h"

/* A tensor of a layer's experts together, under the name that the family's table gives it. */
static int add_part(struct fm_exporter *x, int l, enum fm_weight_part part, enum fm_fill fill,
                    const char *suffix, const uint64_t *shape, int dims, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES], whole[FM_WEIGHT_NAME_BYTES + 8];
    fm_checkpoint_name(name, &x->config, FM_SOURCE_RAGGED,
                       part == FM_PART_DOWN_T ? FM_PART_DOWN_T : FM_PART_GATE_UP, x->config.moe[l],
                       0);
    snprintf(whole, sizeof whole, "%s%s", name, suffix);
    struct fm_export_tensor t = {.fill = fill, .l = l, .part = part};
    t.t = (struct fm_tensor){.name = whole, .dtype = x->volumes.dtype, .dims = dims};
    memcpy(t.t.shape, shape, (size_t)dims * sizeof *shape);
    return fm_exporter_add_tensor(x, &t, err);
}

/* Two flat tensors per layer. */
static int add_flat(struct fm_exporter *x, int l, struct fm_err *err)
{
    uint64_t sum = fm_exporter_channels(x, l), H = (uint64_t)x->config.H;
    const uint64_t gate_up[2] = {2 * sum, H}, down[2] = {sum, H};
    int rc = add_part(x, l, FM_PART_GATE_UP, FM_FILL_FLAT, "", gate_up, 2, err);
    return rc == FM_OK ? add_part(x, l, FM_PART_DOWN_T, FM_FILL_FLAT, "", down, 2, err) : rc;
}

/* Two tensors per layer with a dimension for the experts, as fused kernels have them. */
static int add_fused(struct fm_exporter *x, int l, struct fm_err *err)
{
    uint64_t E = (uint64_t)x->config.E, H = (uint64_t)x->config.H;
    uint64_t k = x->widths[(size_t)l * (size_t)E];
    const uint64_t gate_up[3] = {E, 2 * k, H}, down[3] = {E, H, k};
    int rc = add_part(x, l, FM_PART_GATE_UP, FM_FILL_FUSED_UP, "_proj", gate_up, 3, err);
    return rc == FM_OK ? add_part(x, l, FM_PART_DOWN_T, FM_FILL_FUSED_DOWN, "_proj", down, 3, err)
                       : rc;
}

/* Integers from 0 on that the dtype holds exactly: the index of a budget is one. */
static int exact_integers(enum fm_dtype dtype)
{
    return dtype == FM_BF16 ? 257 : dtype == FM_F16 ? 2049 : 1 << 24;
}

static int check_index(const struct fm_exporter *x, struct fm_err *err)
{
    int most = exact_integers(x->volumes.dtype), budgets = x->last - x->first + 1;
    if (budgets > most)
        return fm_fail(err, FM_ECONFIG,
                       "layout elastic: %d budgets, and an index in %s counts %d; a larger "
                       "--budget-step of fm-train gives fewer, --load-cap keeps fewer",
                       budgets, fm_dtype_name(x->volumes.dtype), most);
    return FM_OK;
}

/* "model.layers.0.mlp.experts.down" names its neighbour "model.layers.0.mlp.experts.budget". */
static int add_index(struct fm_exporter *x, int l, struct fm_err *err)
{
    char name[FM_WEIGHT_NAME_BYTES + 8];
    fm_checkpoint_name(name, &x->config, FM_SOURCE_RAGGED, FM_PART_DOWN_T, x->config.moe[l], 0);
    char *last = strrchr(name, '.');
    assert(last);
    snprintf(last, sizeof name - (size_t)(last - name), ".budget");
    struct fm_export_tensor t = {.fill = FM_FILL_INDEX, .l = l};
    t.t = (struct fm_tensor){.name = name, .dtype = x->volumes.dtype, .dims = 1, .shape = {1}};
    return fm_exporter_add_tensor(x, &t, err);
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
        fm_checkpoint_name(name, &x->config, FM_SOURCE_STOCK, matrix[i].part, x->config.moe[l], e);
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

static int add_experts(struct fm_exporter *x, int l, struct fm_err *err)
{
    int rc = FM_OK;
    if (!fm_exporter_models(x)) {
        for (int e = 0; e < x->config.E && rc == FM_OK; e++)
            rc = add_stock(x, l, e, err);
        return rc;
    }
    rc = x->options->vllm ? add_fused(x, l, err) : add_flat(x, l, err);
    if (rc == FM_OK && x->options->layout == FM_LAYOUT_ELASTIC)
        rc = add_index(x, l, err);
    return rc;
}

int fm_exporter_hf(struct fm_exporter *x, struct fm_err *err)
{
    uint64_t shard_bytes = x->options->shard_bytes;
    int rc = x->options->layout == FM_LAYOUT_ELASTIC ? check_index(x, err) : FM_OK;
    for (int l = 0; l < x->config.M && rc == FM_OK; l++)
        rc = add_experts(x, l, err);
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
        rc = fm_hfwriter_plan(&w, tensor, x->tensors,
                              shard_bytes ? shard_bytes : FM_EXPORT_SHARD_BYTES, err);
    }
    if (rc == FM_OK)
        rc = add_files(x, &w, err);
    fm_hfwriter_release(&w);
    free(tensor);
    return rc;
}
