/*
 * layer: like ragged, but all experts of a layer are as wide as the widest; the added channels are
 * each expert's own next ranked ones.  The widths are not in transformers'
 * per_layer_config, because its classes read one width from the configuration of the whole model.
 *
 * Its form for vLLM is for that program's fused kernels: a layer's experts are two tensors of three
 * dimensions, gate_up_proj (E, 2 k, H), gate rows first, and down_proj (E, H, k); k is a multiple
 * of what the kernels require, and config.json lists it for every decoder layer as
 * moe_intermediate_size. fm_shared is the width of the shared expert, if the checkpoint's
 * config.json gives it as a multiple of that key.
 */
#include <assert.h>
#include <inttypes.h>

#include "lib/export/tensors.h"
#include "lib/export/texts.h"

static void level_layers(struct fm_exportplan *p)
{
    uint32_t multiple = p->options.layout->multiple;
    for (int m = 0; m < p->from->config.M; m++) {
        uint32_t *k = p->widths.kept + (size_t)m * (size_t)p->from->config.E, most = 0;
        for (int e = 0; e < p->from->config.E; e++)
            most = k[e] > most ? k[e] : most;
        if (multiple > 1)
            most =
                fm_actions_round(most, fm_actions_both(p->from->budgets.actions.multiple, multiple),
                                 p->from->config.I);
        for (int e = 0; e < p->from->config.E; e++)
            k[e] = most;
    }
}

/* Two tensors with a dimension for the experts, which all have width k. */
static int plan_fused(struct fm_exportplan *p, int m, struct fm_err *err)
{
    uint64_t E = (uint64_t)p->from->config.E, H = (uint64_t)p->from->config.H;
    uint64_t k = p->widths.stored[(size_t)m * (size_t)E];
    if (p->from->config.expert->bias)
        return fm_fail(
            err, FM_ECONFIG,
            "--for vllm: vLLM's fused kernels do not support biases of experts with several "
            "widths, and %s has such biases; use --layout ragged, or layer without --for",
            p->from->config.family->name);
    assert(fm_planned_layer_channels(p, m) == E * k);
    struct fm_tensor t = {.dtype = p->from->dtype, .dims = 3, .shape = {E, 2 * k, H}};
    if (fm_tensors_add_flat(p, m, &t, FM_PART_GATE_UP, "_proj", FM_PART_GATE_THEN_UP, -1, err))
        return err->code;
    t.shape[1] = H;
    t.shape[2] = k;
    return fm_tensors_add_flat(p, m, &t, FM_PART_DOWN_T, "_proj", FM_PART_DOWN, -1, err);
}

/* Set a width for each decoder layer, 0 for layers without experts. */
static void set_config(struct fm_texts_edit *edit, struct fm_exportplan *p)
{
    struct fm_text t = {0};
    fm_texts_ours(edit, p);
    fm_texts_setf(edit, "fm_layout", "\"layer\"");
    fm_text_printf(&t, "[");
    for (int l = 0; l < p->from->config.L; l++) {
        int m = fm_config_moe(&p->from->config, l);
        size_t first = (size_t)(m < 0 ? 0 : m) * (size_t)p->from->config.E;
        fm_text_printf(&t, "%s%" PRIu32, l ? ", " : "", m < 0 ? 0 : p->widths.kept[first]);
    }
    fm_text_printf(&t, "]");
    fm_texts_set(edit, "moe_intermediate_size", &t);
    if (p->from->config.family->shared_key && p->from->config.shared > 0)
        fm_texts_setf(edit, "fm_shared", "%d", p->from->config.shared);
}

#define NO_CODES "for vllm uses vLLM's fused kernels, which cannot get codes from a modelling file"

static const struct fm_layout fused = {
    .name = "layer",
    .runtime = "vllm",
    .listed = "layer-vllm",
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE,
               [FM_WITH_CODES] = NO_CODES,
               [FM_WITH_ROUNDED] = NO_CODES,
               [FM_WITH_EXTRA] = FM_WHY_NARROW},
    .modeling = true,
    .unread = "these widths, exported with `--for any`",
    .multiple = FM_UNIFORM_MULTIPLE,
    .level = level_layers,
    .leveled = "one width per layer",
    .granularity = "layer",
    .names = FM_NAMING_RAGGED,
    .experts = plan_fused,
    .config = set_config,
    .about =
        "Layout `layer` for vLLM: all experts of a layer have the same width, in the form that\n"
        "vLLM's fused kernels read.",
    .sglang_package = true,
};

const struct fm_layout fm_layout_layer = {
    .name = "layer",
    .runtime = "any",
    .vllm = &fused,
    .cannot = {[FM_WITH_LOAD_CAP] = FM_WHY_SINGLE,
               [FM_WITH_FORMATS] = FM_WHY_ONE_FORMAT,
               [FM_WITH_TP] = FM_WHY_WHOLE,
               [FM_WITH_EXTRA] = FM_WHY_NARROW},
    .modeling = true,
    .level = level_layers,
    .leveled = "one width per layer",
    .granularity = "layer",
    .names = FM_NAMING_RAGGED,
    .experts = fm_tensors_flat,
    .config = fm_texts_ours,
    .about = "Layout `layer`: all experts of a layer have the same width (`fm_widths` in "
             "config.json).",
};
