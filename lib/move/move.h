/*
 * The mover: the only code that moves the stored bytes of experts from one form to another, by
 * interleaving, transposing, permuting and cutting.  lib/model/loading.c converts their values.
 *
 * The channels of one expert's part, or of some of its rows, are a box of items.  An item is a
 * number of bytes that stay together; it has three coordinates: its channel group g, its row r in
 * the group, and its place i in that row.  A form says where the items of a box are:
 *
 *     item (g, r, i) is at   base + g * form.group + r * form.row + i * form.item
 *
 * With s = box.size, G groups, and gate and up as rows 0 and 1, for example:
 *
 *     bundle, gate_up         | g0 r0 | g0 r1 | g1 r0 | g1 r1 | ...    group 2 s, row s
 *     bundle, only up                 | g0 r1 |       | g1 r1 | ...    group 2 s
 *     checkpoint, up          | g0 r1 | g1 r1 | g2 r1 | ...            group s
 *
 *     bundle, down            | g0: i0 i1 i2 ... | g1: i0 i1 ...       group items s, item s
 *     checkpoint, down        | i0: g0 g1 g2 ... | i1: g0 g1 ...       group s, item G s
 *     fused gate_up, columns  | i0: g0 r0, g0 r1, g1 r0, ... | i1: ... group 2 s, row s, item 2 G s
 *
 * lib/model/packed.h gives the forms of bundles, checkpoints and exports.
 */
#ifndef FM_MOVE_H
#define FM_MOVE_H

#include <stddef.h>
#include <stdint.h>

struct fm_box {
    size_t groups, rows, items;
    size_t size; /* bytes of an item, at least 1 */
};

/* Strides in bytes; 0 is allowed for a coordinate that has only one value, and in a source: the
 * same item is then read again and again. */
struct fm_form {
    size_t group, row, item;
};

static inline size_t fm_box_bytes(const struct fm_box *box)
{
    return box->groups * box->rows * box->items * box->size;
}

/*
 * Move all items of a box: group g of `to` is group order[g] of `from`, a permutation; NULL: group
 * g.  Source and destination do not overlap.  In the destination all items are at different places;
 * the bytes between them are not written.
 */
void fm_move(void *to, const struct fm_form *to_form, const void *from,
             const struct fm_form *from_form, const struct fm_box *box, const int32_t *order);

/* Set every byte of the items of a box to `byte`, for padding. */
void fm_move_blank(void *to, const struct fm_form *form, const struct fm_box *box, int byte);

#endif
