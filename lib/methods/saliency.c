/*
 * Method `saliency`: take away the channels with the lowest scores, by the concave hull of each
 * expert's scores (lib/masks/masks.h, fm_masks_saliency).
 */
#include "lib/learn/trainer.h"

static int begin(struct fm_trainer *t, struct fm_err *err)
{
    const struct fm_ranking *r = &t->task.ranking;
    return fm_masks_saliency(&t->masks, &t->actions, r->scores, r->order, &t->options->budget_step,
                             &t->options->until, t->options->granularity, err);
}

const struct fm_method fm_method_saliency = {
    .name = "saliency",
    .shapes = true,
    .weighs = true,
    .actions = {1, 10},
    .begin = begin,
};
