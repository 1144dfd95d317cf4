/*
 * The list of layouts, and the names for messages and options.  To add a layout, write a file with
 * its descriptor in lib/export/layouts, and add a row to lib/export/layouts.h.
 */
#include "lib/export/layouts.h"

#include <string.h>

#define POINT(name) &fm_layout_##name,
const struct fm_layout *const fm_layouts[] = {FM_LAYOUT_ROWS(POINT) NULL};
_Static_assert(sizeof fm_layouts / sizeof *fm_layouts <= FM_LAYOUTS_MAX + 1, "FM_LAYOUTS_MAX");

const struct fm_layout *fm_layouts_find(const char *name)
{
    const struct fm_layout *const *layout = fm_layouts;
    while (*layout && strcmp((*layout)->name, name) != 0)
        layout++;
    return *layout;
}

int fm_layouts_vllm(const struct fm_layout **layout, struct fm_err *err)
{
    const char *has = "";
    for (int i = 0; fm_layouts[i]; i++)
        has = fm_layouts[i]->vllm ? fm_layouts[i]->name : has;
    if (!(*layout)->vllm)
        return fm_fail(err, FM_EUSAGE,
                       "--for vllm needs layout %s; layout %s is the same for all programs", has,
                       (*layout)->name);
    *layout = (*layout)->vllm;
    return FM_OK;
}
