/*
 * The bytes of a planned tensor, from the bundle's, checked as they pass: every segment of an
 * expert has its digest in the bundle, and so has every other tensor.
 */
#ifndef FM_FILL_H
#define FM_FILL_H

#include "lib/export/plan.h"

/*
 * Bytes [from, from + size) of a tensor into dst; both ends are cuts.  The family is open with
 * FM_OPENED_WEIGHTS, but for FM_FILL_NUMBER.  Where it is open with FM_OPENED_CHECKSUMS, too,
 * FM_EFORMAT names the expert and the channels that are not those of their digest; a tensor
 * outside the experts has one digest for all its bytes: code that takes all of them in order checks
 * that.
 */
int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err);
/* The cut behind `from`, which is 0 or a cut: at most about `limit` bytes on, where a segment or a
 * block that is filled as a whole ends. */
uint64_t fm_fill_cut(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                     uint64_t from, uint64_t limit);
/* How the bytes of a tensor that is wider in the export lie there: `rows` times `row` bytes of its
 * own, each with zeros behind it up to `wide`. */
void fm_fill_rows(const struct fm_planned_tensor *t, size_t *rows, size_t *row, size_t *wide);
/* Bytes of the largest piece between two cuts. */
uint64_t fm_fill_piece_max(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                           uint64_t limit);

/* FM_EFORMAT where `digest`, of all bytes of a tensor outside the experts, is not the bundle's. */
int fm_fill_check(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                  const struct fm_digest *digest, struct fm_err *err);

/* Bytes of a tensor that one task fills: large enough for a disk and for the system call's cost,
 * small enough for the second cache. */
#define FM_FILL_PIECE ((uint64_t)4 << 20)

#endif
