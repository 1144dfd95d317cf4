/*
 * The bytes of a planned tensor, from the bundle's.
 */
#ifndef FM_FILL_H
#define FM_FILL_H

#include "lib/export/exportplan.h"

/* Bytes [from, from + size) of a tensor into dst, cut where fm_fill_piece says.  The family is open
 * with FM_OPENED_WEIGHTS, but for FM_FILL_UNSET. */
int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err);
/* Bytes that are filled at once, at most about `limit`: from multiples of them on, or to the
 * tensor's end. */
uint64_t fm_fill_piece(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t limit);

/* Bytes of a tensor that one task fills: large enough for a disk and for the system call's cost,
 * small enough for the second cache. */
#define FM_FILL_PIECE ((uint64_t)4 << 20)

#endif
