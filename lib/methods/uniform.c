/*
 * Method `uniform`: one width for all experts, a control and what some servers need
 * (lib/masks/masks.h, fm_masks_uniform).
 */
#include "lib/learn/trainer.h"

static int begin(struct fm_trainer *t, struct fm_err *err)
{
    return fm_masks_uniform(&t->masks, &t->actions, &t->options->until, err);
}

const struct fm_method fm_method_uniform = {.name = "uniform", .begin = begin};
