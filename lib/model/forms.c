/*
 * All forms have the same items.  Where channels are rows, an item is a row, or for codes the part
 * of a block of rows; where they are columns, it is what a channel group has of one row.  So the
 * forms follow from the number of rows and items and from two questions: whether rows of a group
 * follow each other or are interleaved, and whether the file has channels as rows or as columns.
 */
#include "lib/model/forms.h"

#include <assert.h>

bool fm_forms_of(struct fm_forms *f, const struct fm_config *c, const struct fm_packed *packed,
                 int plane, size_t element, const struct fm_expert_cut *cut, uint64_t channels,
                 uint64_t stored)
{
    size_t all = (size_t)fm_expert_part_rows(c->expert, cut->of), rows = (size_t)cut->rows;
    size_t row = (size_t)fm_expert_part_row(cut->of, c->H), group = 1;
    struct fm_box box = {.rows = rows, .items = 1, .size = row * element};
    if (plane >= 0) {
        const struct fm_packed_part *part = fm_packed_find(packed, cut->of, plane);
        if (!part || (cut->columns && rows > 1))
            return false;
        assert((size_t)part->rows == all);
        group = (size_t)packed->group;
        box.items = part->items;
        box.size = part->item;
    } else if (cut->columns) {
        box.items = row;
        box.size = element;
    }
    assert(channels <= stored && channels % group == 0 && stored % group == 0);
    assert(cut->first + cut->rows <= (int)all && box.size > 0);
    box.groups = (size_t)channels / group;
    size_t s = box.size, groups = (size_t)stored / group, each = rows * box.items * s;
    /* The elements of one row are adjacent in the part; whole rows are interleaved. */
    size_t part_row = cut->columns ? box.items * s : s, part_item = cut->columns ? s : all * s;
    *f = (struct fm_forms){.box = box,
                           .part = {all * box.items * s, part_row, part_item},
                           .file = {each, s, rows * s},
                           .part_first = (size_t)cut->first * part_row,
                           .part_group = all * box.items * s,
                           .file_bytes = groups * each,
                           .padding = box};
    if (cut->columns)
        f->file = (struct fm_form){rows * s, s, groups * rows * s};
    f->padding.groups = groups - box.groups;
    f->file_padding = box.groups * f->file.group;
    return true;
}
