/*
 * For debugging: a table of operations that calls another table and then checks everything that was
 * written.  The first NaN or Inf ends the process and reports the operation and the layer that
 * produced it:
 *
 *     fm-rank: layer 3: swiglu wrote a value that is not finite (h, row 5, column 17)
 *
 * Rows and columns are those of FM_WRITES in kernels/ops/kernels.def.  fm_machine_ops returns such
 * a table only in the tools of `make DEBUG=1`.
 */
#ifndef FM_SCAN_H
#define FM_SCAN_H

#include "kernels/ops/kernels.h"

/* A table that checks the output of `base`, with its name and precision; the same table for the
 * same base.  Not thread-safe. */
const struct fm_ops *fm_ops_scanned(const struct fm_ops *base);

/* Set the decoder layer of the following operations, in any thread; -1: none.  Must not be called
 * while an operation runs. */
void fm_scan_layer(int l);

#endif
