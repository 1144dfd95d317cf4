#include "lib/export/texts.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "lib/base/mem.h"
#include "lib/model/checkpoint.h"
#include "lib/stage/stage.h"

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

uint64_t fm_exporter_bytes(const struct fm_exporter *x)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < x->files; i++)
        bytes += x->file[i].bytes;
    return bytes;
}

uint64_t fm_exporter_stream_bytes(const struct fm_exporter *x)
{
    uint64_t bytes = FM_ARCHIVE_END_BYTES;
    for (size_t i = 0; i < x->files; i++)
        bytes += fm_archive_header_bytes(x->file[i].bytes) + fm_archive_padded(x->file[i].bytes);
    return bytes;
}

int fm_exporter_head(struct fm_exporter *x, size_t i, const char **head, struct fm_err *err)
{
    struct fm_export_file *f = &x->file[i];
    void *data = NULL;
    size_t size = 0;
    int rc = FM_OK;
    if (!f->head) {
        rc = fm_bundle_read(&x->bundle, f->member, &data, &size, err);
        f->head = data;
    }
    *head = f->head;
    return rc;
}

static void forget_files(struct fm_exporter *x, size_t first)
{
    for (size_t i = first; i < x->files; i++)
        free(x->file[i].head);
    x->files = x->files < first ? x->files : first;
}

static void forget_plan(struct fm_exporter *x)
{
    for (size_t i = 0; i < x->tensors; i++)
        free((char *)(uintptr_t)x->tensor[i].t.name);
    forget_files(x, 0);
    free(x->family);
    x->family = NULL;
    x->tensors = x->weight_files = 0;
}

/* The tensors planned last are those of the widths at hand. */
static bool is_planned(const struct fm_exporter *x)
{
    const struct fm_export_options *o = x->options, *p = &x->planned;
    size_t n = (size_t)x->config.M * (size_t)x->config.E;
    if (x->weight_files == 0 || o->layout != p->layout || o->shard_bytes != p->shard_bytes ||
        o->pad_multiple != p->pad_multiple || o->load_cap != p->load_cap ||
        o->load_low != p->load_low || o->load_high != p->load_high)
        return false;
    return memcmp(x->stored, x->planned_stored, n * sizeof *x->stored) == 0;
}

static void remember_plan(struct fm_exporter *x)
{
    x->planned = *x->options;
    memcpy(x->planned_stored, x->stored,
           (size_t)x->config.M * (size_t)x->config.E * sizeof *x->stored);
    x->weight_files = x->files;
}

/* Tensors that are no expert's, under the names of the layout. */
static int add_rest(struct fm_exporter *x, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < x->volumes.rest.count && rc == FM_OK; i++) {
        const struct fm_tensor *t = &x->volumes.rest.tensor[i];
        char name[FM_ST_NAME_BYTES_MAX + 1];
        fm_checkpoint_rename(name, &x->config, x->options->layout->names, t->name);
        struct fm_export_tensor like = {.t = *t, .fill = FM_FILL_COPY, .from = t->offset};
        like.t.name = name;
        rc = fm_exporter_add_tensor(x, &like, err);
    }
    return rc;
}

static int plan_weights(struct fm_exporter *x, struct fm_err *err)
{
    const struct fm_layout *layout = x->options->layout;
    int rc = add_rest(x, err);
    for (int m = 0; m < x->config.M && rc == FM_OK; m++)
        rc = layout->experts(x, m, err);
    if (rc == FM_OK) {
        qsort(x->tensor, x->tensors, sizeof *x->tensor, compare_names);
        rc = layout->files(x, err);
    }
    if (rc == FM_OK)
        qsort(x->tensor, x->tensors, sizeof *x->tensor, compare_places);
    if (rc == FM_OK)
        remember_plan(x);
    return rc;
}

int fm_exporter_plan(struct fm_exporter *x, int index, struct fm_err *err)
{
    int rc = FM_OK;
    x->index = index;
    fm_exporter_widths(x);
    if (is_planned(x)) {
        forget_files(x, x->weight_files);
    } else {
        forget_plan(x);
        rc = plan_weights(x, err);
    }
    return rc == FM_OK ? fm_texts_plan(x, err) : rc;
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
    const char *input = x->run->input ? x->run->input : "-";
    int rc = x->head ? fm_bundle_open_head(&x->bundle, input, err)
                     : fm_stage_open(&x->bundle, input, FM_MEMBER_SEGMENTS, err);
    return rc == FM_OK ? fm_exporter_take(x, err) : rc;
}

int fm_exporter_take(struct fm_exporter *x, struct fm_err *err)
{
    struct fm_stage_model model;
    int rc = fm_stage_model_read(&model, &x->bundle, err);
    if (rc == FM_OK)
        rc = read_config(x, err);
    if (rc == FM_OK)
        rc = fm_budgets_open(&x->budgets, &x->bundle, err);
    if (rc == FM_OK && x->head)
        x->volumes = (struct fm_volumes){.config = &x->config, .dtype = model.dtype};
    else if (rc == FM_OK)
        rc = fm_volumes_open(&x->volumes, &x->bundle, &x->config, model.dtype, err);
    if (rc == FM_OK && (x->budgets.family.M != x->config.M || x->budgets.family.E != x->config.E ||
                        x->budgets.family.I != x->config.I))
        rc = fm_fail(err, FM_EFORMAT, "%s: its masks are for another shape than its config.json",
                     x->bundle.file.path);
    if (rc == FM_OK) {
        size_t n = (size_t)x->config.M * (size_t)x->config.E;
        x->widths = fm_alloc(n, sizeof *x->widths, "widths", err);
        x->stored = fm_alloc(n, sizeof *x->stored, "widths", err);
        x->planned_stored = fm_alloc(n, sizeof *x->planned_stored, "widths", err);
        rc = x->widths && x->stored && x->planned_stored ? FM_OK : err->code;
    }
    if (rc == FM_OK)
        rc = fm_exporter_origin(x, err);
    if (rc == FM_OK)
        rc = fm_exporter_keep(x, err);
    return rc == FM_OK ? fm_exporter_check_pad(x, err) : rc;
}

void fm_exporter_release(struct fm_exporter *x)
{
    forget_plan(x);
    free(x->tensor);
    free(x->file);
    free(x->widths);
    free(x->stored);
    free(x->planned_stored);
    free(x->config_text);
    fm_volumes_close(&x->volumes);
    fm_budgets_release(&x->budgets);
    fm_bundle_close(&x->bundle);
}
