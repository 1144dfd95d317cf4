/* Private to lib/bench/servecase.c: shape and masks of a serving loop, drawn or from a family. */
#ifndef FM_SERVEMASK_H
#define FM_SERVEMASK_H

#include "lib/bench/serveoptions.h"
#include "lib/model/model.h"
#include "lib/stage/budgets.h"

struct fm_servemask {
    int B;
    int layers;       /* of experts in the family; 0: masks are drawn, for any number of layers */
    int model_layers; /* of the family's model, those without experts too */
    const struct fm_servebench_options *options;
    uint64_t seed;
    struct fm_budgets budgets;
    int mask[FM_KERNELBENCH_BUDGETS_MAX]; /* the family's nearest to each budget */
};

/* Sets H, I, E, K of config.  FM_EUSAGE; what opening a family may say.  Close in any case. */
int fm_servemask_open(struct fm_servemask *m, const struct fm_servebench_options *options,
                      uint64_t seed, struct fm_config *config, struct fm_err *err);
void fm_servemask_close(struct fm_servemask *m); /* zeroed struct is fine */

/* widths (B, E) of layer l. */
int fm_servemask_draw(const struct fm_servemask *m, int l, int32_t *widths, struct fm_err *err);

#endif
