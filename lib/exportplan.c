#include "lib/exporter.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/checkpoint.h"
#include "lib/layout.h"
#include "lib/stage.h"

int fm_exporter_add_tensor(struct fm_exporter *x, const struct fm_export_tensor *like,
                           struct fm_err *err)
{
    if (x->tensors == x->tensors_capacity) {
        size_t more = x->tensors_capacity ? 2 * x->tensors_capacity : 256;
        int rc =
            fm_grow((void **)&x->tensor, more, sizeof *x->tensor, "the tensors of an export", err);
        if (rc != FM_OK)
            return rc;
        x->tensors_capacity = more;
    }
    char *name = fm_strdup(like->t.name, err);
    if (!name)
        return err->code;
    x->tensor[x->tensors] = *like;
    x->tensor[x->tensors++].t.name = name;
    return FM_OK;
}

int fm_exporter_add_file(struct fm_exporter *x, const char *name, char *head, uint64_t head_bytes,
                         uint64_t bytes, bool weights, struct fm_err *err)
{
    int rc = FM_OK;
    if (x->files == x->files_capacity) {
        size_t more = x->files_capacity ? 2 * x->files_capacity : 32;
        rc = fm_grow((void **)&x->file, more, sizeof *x->file, "the files of an export", err);
        if (rc == FM_OK)
            x->files_capacity = more;
    }
    if (rc == FM_OK && strlen(name) >= sizeof x->file->name)
        rc = fm_fail(err, FM_ECONFIG, "file name '%s' is too long", name);
    if (rc != FM_OK) {
        free(head);
        return rc;
    }
    struct fm_export_file *f = &x->file[x->files++];
    *f = (struct fm_export_file){
        .head = head, .head_bytes = head_bytes, .bytes = bytes, .weights = weights};
    memcpy(f->name, name, strlen(name) + 1);
    return FM_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct fm_export_tensor *)a)->t.name,
                  ((const struct fm_export_tensor *)b)->t.name);
}

static int compare_places(const void *a, const void *b)
{
    const struct fm_export_tensor *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->t.offset != y->t.offset)
        return x->t.offset < y->t.offset ? -1 : 1;
    return strcmp(x->t.name, y->t.name);
}

void fm_exporter_place(struct fm_exporter *x, const struct fm_tensor *planned, size_t file)
{
    struct fm_export_tensor key = {.t = {.name = planned->name}};
    struct fm_export_tensor *found =
        bsearch(&key, x->tensor, x->tensors, sizeof key, compare_names);
    assert(found);
    found->t.offset = planned->offset;
    found->t.size = planned->size;
    found->file = file;
}

uint64_t fm_exporter_weight_bytes(const struct fm_exporter *x)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->files; i++)
        bytes += x->file[i].weights ? x->file[i].bytes : 0;
    return bytes;
}

static void forget_plan(struct fm_exporter *x)
{
    for (size_t i = 0; i < x->tensors; i++)
        free((char *)(uintptr_t)x->tensor[i].t.name);
    for (size_t i = 0; i < x->files; i++)
        free(x->file[i].head);
    x->tensors = x->files = 0;
}

/* Widths of the mask, or the one width that the budget allows all experts. */
static void set_widths(struct fm_exporter *x)
{
    const struct fm_config *c = &x->config;
    size_t n = (size_t)c->L * (size_t)c->E;
    const uint32_t *mask = fm_family_widths(&x->budgets.family, x->index);
    x->rows = c->I;
    memcpy(x->widths, mask, n * sizeof *mask);
    if (x->options->layout == FM_LAYOUT_UNIFORM) {
        uint32_t k = fm_actions_uniform_export(x->budgets.family.mask[x->index].removed, c->L, c->E,
                                               c->I, x->budgets.actions.multiple);
        for (size_t i = 0; i < n; i++)
            x->widths[i] = k;
        x->rows = (int)k;
    }
}

/* Tensors that are no expert's, under the names of the layout. */
static int add_rest(struct fm_exporter *x, struct fm_err *err)
{
    enum fm_source source =
        x->options->layout == FM_LAYOUT_RAGGED ? FM_SOURCE_RAGGED : FM_SOURCE_STOCK;
    int rc = FM_OK;
    for (size_t i = 0; i < x->volumes.rest.count && rc == FM_OK; i++) {
        const struct fm_tensor *t = &x->volumes.rest.tensor[i];
        char name[FM_ST_NAME_BYTES_MAX + 1];
        fm_checkpoint_rename(name, &x->config, source, t->name);
        struct fm_export_tensor like = {.t = *t, .fill = FM_FILL_COPY, .from = t->offset};
        like.t.name = name;
        rc = fm_exporter_add_tensor(x, &like, err);
    }
    return rc;
}

int fm_exporter_plan(struct fm_exporter *x, int index, struct fm_err *err)
{
    forget_plan(x);
    x->index = index;
    set_widths(x);
    int rc = add_rest(x, err);
    if (rc == FM_OK)
        rc = x->options->layout == FM_LAYOUT_NATIVE ? fm_exporter_native(x, err)
                                                    : fm_exporter_hf(x, err);
    if (rc == FM_OK)
        qsort(x->tensor, x->tensors, sizeof *x->tensor, compare_places);
    return rc;
}

/* ---- bytes ---- */

static uint64_t row_bytes(const struct fm_exporter *x)
{
    return fm_volumes_channel_bytes(&x->volumes, FM_SEGMENT_DOWN);
}

static uint32_t width_of(const struct fm_exporter *x, const struct fm_export_tensor *t)
{
    return x->widths[(size_t)t->l * (size_t)x->config.E + (size_t)t->e];
}

uint64_t fm_exporter_piece(const struct fm_exporter *x, const struct fm_export_tensor *t,
                           uint64_t limit)
{
    uint64_t row = row_bytes(x);
    switch (t->fill) {
    case FM_FILL_DOWN:
        return t->t.size;
    case FM_FILL_GATE:
    case FM_FILL_UP:
        return limit > row ? limit / row * row : row;
    default:
        return limit;
    }
}

/* Prefix ranges of the layer's experts, as far as they overlap [from, from + size). */
static int fill_flat(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t channel = fm_volumes_channel_bytes(&x->volumes, t->part), begin = 0;
    const uint32_t *widths = x->widths + (size_t)t->l * (size_t)x->config.E;
    int rc = FM_OK;
    for (int e = 0; e < x->config.E && rc == FM_OK; e++) {
        uint64_t end = begin + widths[e] * channel;
        uint64_t lo = from > begin ? from : begin, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fm_file_read(&x->bundle.file,
                              fm_volumes_expert(&x->volumes, t->l, t->part, e) + (lo - begin),
                              dst + (lo - from), (size_t)(hi - lo), err);
        begin = end;
    }
    return rc;
}

static int fill_rows(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(x), first = from / row, end = first + size / row;
    uint64_t k = width_of(x, t), kept = k > first ? (end < k ? end : k) - first : 0;
    assert(from % row == 0 && size % row == 0);
    struct fm_mark mark = fm_scratch_mark();
    char *both = fm_scratch((size_t)(2 * kept * row) + 1);
    uint64_t at = fm_volumes_expert(&x->volumes, t->l, FM_SEGMENT_GATE_UP, t->e);
    int rc =
        fm_file_read(&x->bundle.file, at + 2 * first * row, both, (size_t)(2 * kept * row), err);
    if (rc == FM_OK) {
        fm_layout_deinterleave(dst, both, t->fill == FM_FILL_UP, (int)kept, x->config.H,
                               fm_dtype_bits(x->volumes.dtype) / 8);
        memset(dst + kept * row, 0, (size_t)(size - kept * row));
    }
    fm_scratch_release(mark);
    return rc;
}

static int fill_down(const struct fm_exporter *x, const struct fm_export_tensor *t, char *dst,
                     struct fm_err *err)
{
    uint32_t k = width_of(x, t);
    size_t size = (size_t)k * (size_t)row_bytes(x);
    struct fm_mark mark = fm_scratch_mark();
    char *ranked = fm_scratch(size);
    int rc =
        fm_file_read(&x->bundle.file, fm_volumes_expert(&x->volumes, t->l, FM_SEGMENT_DOWN, t->e),
                     ranked, size, err);
    if (rc == FM_OK)
        fm_layout_scatter(dst, ranked, (int)k, x->rows, x->config.H,
                          fm_dtype_bits(x->volumes.dtype) / 8);
    fm_scratch_release(mark);
    return rc;
}

int fm_exporter_fill(const struct fm_exporter *x, const struct fm_export_tensor *t, uint64_t from,
                     uint64_t size, void *dst, struct fm_err *err)
{
    switch (t->fill) {
    case FM_FILL_COPY:
        return fm_file_read(&x->bundle.file, t->from + from, dst, (size_t)size, err);
    case FM_FILL_FLAT:
        return fill_flat(x, t, from, size, dst, err);
    case FM_FILL_GATE:
    case FM_FILL_UP:
        return fill_rows(x, t, from, size, dst, err);
    case FM_FILL_DOWN:
        assert(from == 0 && size == t->t.size);
        return fill_down(x, t, dst, err);
    }
    assert(!"a fill");
    return FM_EBUG;
}

/* ---- inputs ---- */

static int read_config(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(&x->bundle, FM_MEMBER_CARRIED "config.json");
    void *text = NULL;
    if (!m)
        return fm_fail(err, FM_EFORMAT, "%s: member %sconfig.json is missing", x->bundle.file.path,
                       FM_MEMBER_CARRIED);
    int rc = fm_bundle_read(&x->bundle, m, &text, &x->config_bytes, err);
    x->config_text = text;
    return rc == FM_OK ? fm_config_parse(&x->config, x->config_text, x->config_bytes, err) : rc;
}

int fm_exporter_open(struct fm_exporter *x, struct fm_err *err)
{
    struct fm_stage_model model;
    const char *input = x->run->input ? x->run->input : "-";
    int rc = x->head ? fm_bundle_open_head(&x->bundle, input, err)
                     : fm_stage_open(&x->bundle, input, FM_MEMBER_SEGMENTS, err);
    if (rc == FM_OK)
        rc = fm_stage_model_read(&model, &x->bundle, err);
    if (rc == FM_OK)
        rc = read_config(x, err);
    if (rc == FM_OK)
        rc = fm_budgets_open(&x->budgets, &x->bundle, err);
    if (rc == FM_OK && !x->head)
        rc = fm_volumes_open(&x->volumes, &x->bundle, &x->config, model.dtype, err);
    if (rc == FM_OK && (x->budgets.family.L != x->config.L || x->budgets.family.E != x->config.E ||
                        x->budgets.family.I != x->config.I))
        rc = fm_fail(err, FM_EFORMAT, "%s: its masks are for another shape than its config.json",
                     x->bundle.file.path);
    if (rc == FM_OK) {
        x->widths =
            fm_alloc((size_t)x->config.L * (size_t)x->config.E, sizeof *x->widths, "widths", err);
        rc = x->widths ? FM_OK : err->code;
    }
    return rc;
}

void fm_exporter_release(struct fm_exporter *x)
{
    forget_plan(x);
    free(x->tensor);
    free(x->file);
    free(x->widths);
    free(x->config_text);
    fm_volumes_close(&x->volumes);
    fm_budgets_release(&x->budgets);
    fm_bundle_close(&x->bundle);
}
