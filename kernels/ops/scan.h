/*
 * For debugging: a table of operations that calls another one and then looks at all that was
 * written.  The first NaN or Inf ends the process with the operation and the layer, where it is
 * made and not where it is noticed:
 *
 *     fm-rank: layer 3: swiglu wrote a value that is not finite (h, row 5, column 17)
 *
 * Rows and columns are those of FM_WRITES in kernels/ops/kernels.def.  fm_machine_ops gives such a
 * table in the tools of `make DEBUG=1` and nowhere else.
 */
#ifndef FM_SCAN_H
#define FM_SCAN_H

#include "kernels/ops/kernels.h"

/* The table that scans what `base` writes, of the same name and precision; the same one for the
 * same base.  Not for several threads at once. */
const struct fm_ops *fm_ops_scanned(const struct fm_ops *base);

/* The decoder layer that operations belong to from here on, whatever thread calls them; -1: none.
 * While no operation runs. */
void fm_scan_layer(int l);

#endif
