/*
 * ragged: a Hugging Face directory with its own modelling file; every expert has its width in the
 * mask.  A layer's experts are two flat tensors, gate_up (2 sum k, H) and down (sum k, H), and
 * config.json has the widths as fm_widths.
 */
#include "lib/export/plan.h"
#include "lib/export/texts.h"

const struct fm_layout fm_layout_ragged = {
    .name = "ragged",
    .multiple = 1,
    .names = FM_NAMING_RAGGED,
    .experts = fm_exportplan_flat,
    .sharded = true,
    .files = fm_exportplan_shards,
    .code = true,
    .config = fm_texts_ours,
    .about = "Layout `ragged`: every expert has its own width (`fm_widths` in config.json).",
    .vllm_options = " --trust-remote-code",
    .sglang_options = " --trust-remote-code",
    .split = FM_SPLIT_HEADS,
};
