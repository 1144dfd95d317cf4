/*
 * native: the layout of the bundle itself, for the fm tools alone.  Prefixes of the ranked experts
 * are copied as they are: layers-NNNNN.safetensors has a layer's experts as two flat tensors,
 * gate_up (2 sum k, H) and down (sum k, H), and rest.safetensors everything else.
 */
#include "lib/export/tensorplan.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"

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

static int plan_files(struct fm_exporter *x, struct fm_err *err)
{
    int rc = FM_OK;
    for (int l = 0; l < x->config.M && rc == FM_OK; l++) {
        char name[FM_VOLUMES_NAME_BYTES];
        snprintf(name, sizeof name, "layers-%05d.safetensors", x->config.moe[l]);
        rc = add_file(x, name, l, err);
    }
    return rc == FM_OK ? add_file(x, "rest.safetensors", -1, err) : rc;
}

static void say_running(struct fm_text *t, const struct fm_exporter *x)
{
    (void)x;
    fm_text_printf(t, "The fm tools read it as a model: `--model DIR`.\n\n");
}

const struct fm_layout fm_layout_native = {
    .name = "native",
    .multiple = 1,
    .names = FM_SOURCE_ONLINE,
    .experts = fm_tensorplan_flat,
    .files = plan_files,
    .about = "Layout `native`: prefix ranges of the ranked weights, for the fm tools alone.",
    .running = say_running,
    .split = FM_SPLIT_NONE,
};
