/* The native layout: ranges of the bundle as they are, one file per layer. */
#include "lib/export/exporter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

/* layers.{l}.gate_up (2 sum k, H) and layers.{l}.down (sum k, H). */
static int add_layer(struct fm_exporter *x, int l, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; i < FM_SEGMENT_PARTS && rc == FM_OK; i++) {
        enum fm_weight_part part = fm_segments_part(i);
        char name[FM_VOLUMES_NAME_BYTES];
        fm_volumes_tensor(name, x->config.moe[l], part);
        struct fm_export_tensor t = {.fill = FM_FILL_FLAT, .l = l, .part = part};
        t.t = (struct fm_tensor){.name = name, .dtype = x->volumes.dtype, .dims = 2};
        t.t.shape[0] = fm_exporter_channels(x, l) * (part == FM_PART_DOWN_T ? 1 : 2);
        t.t.shape[1] = (uint64_t)x->config.H;
        rc = fm_exporter_add_tensor(x, &t, err);
    }
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct fm_export_tensor *)a)->t.name,
                  ((const struct fm_export_tensor *)b)->t.name);
}

/* One weight file of those tensors that the filter lets in: layer l, or -1 for the rest. */
static int add_file(struct fm_exporter *x, const char *name, int l, struct fm_err *err)
{
    struct fm_tensor *tensor = fm_alloc(x->tensors, sizeof *tensor, "a file's plan", err);
    char *header = NULL;
    uint64_t header_bytes = 0, bytes = 0;
    size_t n = 0;
    if (!tensor)
        return err->code;
    for (size_t i = 0; i < x->tensors; i++) {
        const struct fm_export_tensor *t = &x->tensor[i];
        if (t->fill == FM_FILL_FLAT ? t->l == l : l < 0)
            tensor[n++] = t->t;
    }
    int rc = fm_safetensors_plan(tensor, n, NULL, &header, &header_bytes, &bytes, err);
    for (size_t i = 0; i < n && rc == FM_OK; i++)
        fm_exporter_place(x, &tensor[i], x->files);
    if (rc == FM_OK)
        rc = fm_exporter_add_file(x, name, header, header_bytes, bytes, true, err);
    free(tensor);
    return rc;
}

int fm_exporter_native(struct fm_exporter *x, struct fm_err *err)
{
    int rc = FM_OK;
    for (int l = 0; l < x->config.M && rc == FM_OK; l++)
        rc = add_layer(x, l, err);
    qsort(x->tensor, x->tensors, sizeof *x->tensor, compare_names);
    for (int l = 0; l < x->config.M && rc == FM_OK; l++) {
        char name[FM_VOLUMES_NAME_BYTES];
        snprintf(name, sizeof name, "layers-%05d.safetensors", x->config.moe[l]);
        rc = add_file(x, name, l, err);
    }
    return rc == FM_OK ? add_file(x, "rest.safetensors", -1, err) : rc;
}
