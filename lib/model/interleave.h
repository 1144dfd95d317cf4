/*
 * Convert one expert's weights between the checkpoint's three matrices and the order of a bundle
 * (fm-method(7)), as bytes: rows and elements are moved, and values are not interpreted.
 *
 *     checkpoint   gate (I, H), up (I, H), down (H, I)
 *     bundle       gate_up (2 I, H) rows g0, u0, g1, u1, ...; down (I, H), transposed
 *
 * `order` (I) gives the channel of the checkpoint at each rank, or is NULL if channels are already
 * ranked; `element` is the size of an element: a weight of 2 or 4 bytes, or for codes the bytes of
 * a channel group in one row (lib/model/packed.h; then I counts groups).  Sources and destinations
 * do not overlap.
 */
#ifndef FM_INTERLEAVE_H
#define FM_INTERLEAVE_H

#include <stddef.h>
#include <stdint.h>

/* Write n items of `size` bytes to `to`, `step` bytes apart: the j-th is item order[j] of
 * `from`. */
void fm_interleave_spread(void *to, size_t step, const void *from, const int32_t *order, int n,
                          size_t size);

/* Interleave gate and up rows in the given order into gate_up (2 I, H). */
void fm_interleave_rows(void *gate_up, const void *gate, const void *up, const int32_t *order,
                        int I, int H, int element);

/* Copy every second row of gate_up (2 n, H), starting at row `which` (0: gate, 1: up), to rows (n,
 * H). */
void fm_interleave_undo(void *rows, const void *gate_up, int which, int n, int H, int element);

/* Write the columns of down (H, I), in the given order, as rows of ranked (I, H). */
void fm_interleave_gather(void *ranked, const void *down, const int32_t *order, int I, int H,
                          int element);

/* Write the first k channels back as columns of down (H, columns); every byte of the columns from k
 * on is set to `blank`. */
void fm_interleave_scatter(void *down, const void *ranked, int k, int columns, int H, int element,
                           int blank);

#endif
