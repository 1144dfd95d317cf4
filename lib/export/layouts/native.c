/*
 * native: the layout of the bundle itself, only for the fm tools.  Prefixes of the ranked experts
 * are copied unchanged: layers-NNNNN.safetensors has a layer's experts as two flat tensors, gate_up
 * (2 sum k, H) and down (sum k, H), and rest.safetensors has everything else.
 */
#include "lib/export/tensors.h"

#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"

/* Add the weight file `name`, with the tensors of the m-th layer of experts or, for -1, all others.
 */
static int add_file(struct fm_exportplan *p, const char *name, int m, struct fm_err *err)
{
    struct fm_tensor *tensor = fm_alloc(p->tensors, sizeof *tensor, "a file's plan", err);
    char *header = NULL;
    uint64_t header_bytes = 0, bytes = 0;
    size_t n = 0;
    if (!tensor)
        return err->code;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        if (t->m == m)
            tensor[n++] = t->t;
    }
    int rc = fm_safetensors_plan(tensor, n, NULL, &header, &header_bytes, &bytes, err);
    for (size_t i = 0; i < n && !rc; i++)
        fm_planned_place(p, &tensor[i], p->files);
    if (!rc)
        rc = fm_planned_add_file(p, name, header, header_bytes, bytes, true, err);
    free(tensor);
    return rc;
}

static int plan_files(struct fm_exportplan *p, struct fm_err *err)
{
    int rc = FM_OK;
    for (int m = 0; m < p->from->config.M && !rc; m++) {
        char name[FM_VOLUMES_NAME_BYTES];
        snprintf(name, sizeof name, FM_WEIGHTS_LAYER, p->from->config.moe[m]);
        rc = add_file(p, name, m, err);
    }
    return rc ? rc : add_file(p, FM_WEIGHTS_REST, -1, err);
}

const struct fm_layout fm_layout_native = {
    .name = "native",
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE,
               [FM_WITH_FORMATS] = FM_WHY_ONE_FORMAT,
               [FM_WITH_SHARDS] = "has a file for every layer, not shards",
               [FM_WITH_ROUNDED] = FM_WHY_PLAIN,
               [FM_WITH_TP] = "is not read by servers",
               [FM_WITH_KEYS] = FM_WHY_ALL_KEYS},
    .tools_only = true,
    .names = FM_NAMING_ONLINE,
    .experts = fm_tensors_flat,
    .files = plan_files,
    .about = "Layout `native`: prefixes of the ranked weights, readable only by the fm tools.",
    .running = "The fm tools read it as a model: `--model DIR`.\n\n",
};
