/*
 * padded: stock names, stock config.json, stock shapes.  Channels that the mask removes are zeros,
 * so any program that runs the original can run it, with the same amount of memory.
 */
#include "lib/export/tensors.h"
#include "lib/export/texts.h"

/* Files have every channel. */
static void store_all(struct fm_exportplan *p)
{
    for (size_t i = 0; i < fm_opened_experts(p->from); i++)
        p->widths.stored[i] = (uint32_t)p->from->config.I;
    p->widths.full = true;
}

const struct fm_layout fm_layout_padded = {
    .name = "padded",
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE,
               [FM_WITH_ROUNDED] = FM_WHY_PLAIN,
               [FM_WITH_KEYS] = FM_WHY_ALL_KEYS},
    .store = store_all,
    .names = FM_NAMING_STOCK,
    .experts = fm_tensors_stock,
    .config = fm_texts_stock,
    .about = "Layout `padded`: stock names and shapes; removed channels are zeros.  It computes "
             "what the\n"
             "smaller model computes and is as large as the full one.",
};
