/*
 * One expert's weights between the checkpoint's three matrices and the order of a bundle
 * (fm-method(7)), as bytes: rows and elements move, values are not looked at.
 *
 *     checkpoint   gate (I, H), up (I, H), down (H, I)
 *     online       gate_up (2 I, H) rows g0, u0, g1, u1, ...; down (I, H), transposed
 *
 * `order` (I) says which channel of the checkpoint comes at each rank, NULL: they are ranked
 * already; `element` is the size of what moves, a weight of 2 or 4 bytes, or of codes what a
 * channel group has in a row (lib/model/packed.h; then I counts groups).  Sources and destinations
 * do not overlap.
 */
#ifndef FM_INTERLEAVE_H
#define FM_INTERLEAVE_H

#include <stddef.h>
#include <stdint.h>

/* n items of `size` bytes in order, `step` bytes apart in `to`: item order[j] comes j-th. */
void fm_interleave_spread(void *to, size_t step, const void *from, const int32_t *order, int n,
                          size_t size);

/* gate and up rows in order, interleaved: gate_up (2 I, H). */
void fm_interleave_rows(void *gate_up, const void *gate, const void *up, const int32_t *order,
                        int I, int H, int element);

/* Every second row of gate_up (2 n, H), from `which` (0: gate, 1: up): rows (n, H). */
void fm_interleave_undo(void *rows, const void *gate_up, int which, int n, int H, int element);

/* Columns of down (H, I) in order, as rows: ranked (I, H). */
void fm_interleave_gather(void *ranked, const void *down, const int32_t *order, int I, int H,
                          int element);

/* The first k channels back into a matrix of `columns` columns: down (H, columns), every byte of
 * the columns from k on `blank`. */
void fm_interleave_scatter(void *down, const void *ranked, int k, int columns, int H, int element,
                           int blank);

#endif
