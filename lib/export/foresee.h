/*
 * The forecast of an export before there is a bundle: a checkpoint that is opened as if it were one
 * of a family of uniform masks.  Options that do not suit the model are refused as for the bundle.
 * Sizes of files are those of an export of such a mask, without the texts; those of a mask with
 * unequal widths and the same budget differ by less than a channel for each expert, unless the
 * layout has one width for several experts.
 */
#ifndef FM_FORESEE_H
#define FM_FORESEE_H

#include "lib/export/opened.h"
#include "lib/model/checkpoint.h"

/* True if the path is a directory, so that it cannot be a bundle. */
bool fm_foresee_is_checkpoint(const char *path);

/* Open it; no weight is read, and o->foreseen is set.  Borrows cp.  Release both even after a
 * failure. */
int fm_foresee_open(struct fm_opened *o, struct fm_checkpoint *cp, const char *path,
                    enum fm_weights_as weights, struct fm_err *err);

#endif
