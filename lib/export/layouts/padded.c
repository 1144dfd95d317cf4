/*
 * padded: stock names, stock config.json, stock shapes.  Channels that the mask removes are zeros,
 * so any program that runs the original can run it, with the same amount of memory.
 */
#include "lib/export/plan.h"
#include "lib/export/texts.h"

const struct fm_layout fm_layout_padded = {
    .name = "padded",
    .full = true,
    .multiple = 1,
    .names = FM_NAMING_STOCK,
    .experts = fm_exportplan_stock,
    .sharded = true,
    .extra = true,
    .files = fm_exportplan_shards,
    .config = fm_texts_stock,
    .about = "Layout `padded`: stock names and shapes; removed channels are zeros.  It computes "
             "what the\n"
             "smaller model computes and is as large as the full one.",
    .vllm_options = "",
    .sglang_options = "",
    .split = FM_SPLIT_EXPERTS,
};
