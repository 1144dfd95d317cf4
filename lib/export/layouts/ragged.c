/*
 * ragged: a Hugging Face directory with its own modelling file; every expert has its width in the
 * mask.  A layer's experts are two flat tensors, gate_up (2 sum k, H) and down (sum k, H), and
 * config.json has the widths as fm_widths.
 */
#include "lib/export/tensors.h"
#include "lib/export/texts.h"

const struct fm_layout fm_layout_ragged = {
    .name = "ragged",
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE,
               [FM_WITH_FORMATS] = FM_WHY_ONE_FORMAT,
               [FM_WITH_TP] = FM_WHY_WHOLE,
               [FM_WITH_PARTS] = FM_WHY_TEXT},
    .modeling = true,
    .names = FM_NAMING_RAGGED,
    .experts = fm_tensors_flat,
    .config = fm_texts_ours,
    .about = "Layout `ragged`: every expert has its own width (`fm_widths` in config.json).",
};
