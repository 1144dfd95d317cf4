/*
 * Criteria for the score of a channel.  The first is the suite's own (fm-method(7)); the others
 * come from other pruners.  Each is one descriptor in its own file in lib/methods, and one row of
 * the list below.  All are sums over the rows of an expert, batch by batch, computed by a visitor
 * of the sweep.
 */
#ifndef FM_CRITERION_H
#define FM_CRITERION_H

#include <stdbool.h>

#include "formats/bundle/bundle.h"
#include "lib/engine/sweep.h"

struct fm_criterion {
    const char *name; /* of --criterion, in manifests */
    bool backward;    /* it needs gradients */
    bool comparable;  /* scores of different experts can be compared, not only the channels of one
                         expert */
    /* Add one view of a batch to sums (I), which start at zero.  Called by many threads at once. */
    void (*add)(double *sums, const struct fm_expert_view *view, const struct fm_ops *ops, int I,
                int H);
    /* The score of a channel from its sum over all batches; NULL: the sum itself. */
    double (*score)(double sum, int batches);
    /* Its inverse, for blends (fm-rank --blend); NULL with score. */
    double (*sum)(double score, int batches);
};

/* The list, in the order of --help: a row NAME for each criterion, whose file defines
 * fm_criterion_NAME.  The first is the default, which manifests do not record. */
/* clang-format off */
#define FM_CRITERION_ROWS(ROW) \
    ROW(taylor)                \
    ROW(energy)                \
    ROW(activation)
/* clang-format on */

#define FM_CRITERION_DECLARE(name) extern const struct fm_criterion fm_criterion_##name;
FM_CRITERION_ROWS(FM_CRITERION_DECLARE)

/* All criteria, in the order of the list; the last is NULL. */
extern const struct fm_criterion *const fm_criteria[];

/* The criterion of a stream's ranking, from fm-rank's history entry; the default if it records
 * none.  FM_EFORMAT for a name that fm-rank does not have. */
int fm_criterion_read(const struct fm_criterion **criterion, const struct fm_bundle *stream,
                      struct fm_err *err);

/* For criteria: the input of down, view->h (n, I), as floats, in scratch if it has another type. */
const float *fm_criterion_inner(const struct fm_expert_view *view, int I);

#endif
