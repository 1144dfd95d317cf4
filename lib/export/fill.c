/*
 * The bytes of an export's tensors, from the bundle's.  There an expert is two ranges of ranked
 * channels: gate and up rows in turn, and down transposed.  A prefix of either is a copy; gate and
 * up rows apart are every second row of one, and the checkpoint's down is the other transposed
 * back.
 */
#include "lib/export/fill.h"

#include <assert.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/pool.h"
#include "lib/model/layout.h"

static uint64_t row_bytes(const struct fm_exportplan *p)
{
    return fm_opened_channel_bytes(p->from, FM_PART_DOWN_T);
}

/* What cannot be cut: a row, or a whole matrix that is transposed; 1: any byte. */
static uint64_t grain(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    switch (b->part) {
    case FM_PART_GATE:
    case FM_PART_UP:
        return row_bytes(p);
    case FM_PART_DOWN:
        return fm_exportplan_block_bytes(p, b);
    default:
        return 1;
    }
}

/* The blocks of a tensor have one grain. */
uint64_t fm_fill_piece(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t limit)
{
    uint64_t unit = t->blocks ? grain(p, &p->block[t->block]) : 1;
    if (unit <= 1)
        return limit;
    return limit > unit ? limit / unit * unit : unit;
}

/* Rows [first, first + rows) of gate or up, those from the width on zero. */
static int fill_rows(const struct fm_exportplan *p, const struct fm_planned_block *b,
                     uint64_t first, uint64_t rows, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(p), k = fm_exportplan_kept(p, b), end = first + rows;
    uint64_t kept = k > first ? (end < k ? end : k) - first : 0;
    uint64_t at = fm_volumes_expert(&p->from->volumes, b->m, FM_PART_GATE_UP, b->e);
    size_t size = (size_t)(2 * kept * row);
    struct fm_mark mark = fm_scratch_mark();
    char *both = fm_scratch(size + 1);
    int rc = fm_file_read(&p->from->bundle.file, at + 2 * first * row, both, size, err);
    if (rc == FM_OK) {
        fm_layout_deinterleave(dst, both, b->part == FM_PART_UP, (int)kept, p->from->config.H,
                               fm_dtype_bits(p->from->dtype) / 8);
        memset(dst + kept * row, 0, (size_t)((rows - kept) * row));
    }
    fm_scratch_release(mark);
    return rc;
}

/* (H, stored): the columns from the width on zero. */
static int fill_down(const struct fm_exportplan *p, const struct fm_planned_block *b, char *dst,
                     struct fm_err *err)
{
    uint32_t k = fm_exportplan_kept(p, b), stored = fm_exportplan_stored(p, b);
    size_t size = (size_t)k * (size_t)row_bytes(p);
    uint64_t at = fm_volumes_expert(&p->from->volumes, b->m, FM_PART_DOWN_T, b->e);
    struct fm_mark mark = fm_scratch_mark();
    char *ranked = fm_scratch(size);
    int rc = fm_file_read(&p->from->bundle.file, at, ranked, size, err);
    if (rc == FM_OK)
        fm_layout_scatter(dst, ranked, (int)k, (int)stored, p->from->config.H,
                          fm_dtype_bits(p->from->dtype) / 8);
    fm_scratch_release(mark);
    return rc;
}

/* Bytes [from, from + size) of a block. */
static int fill_block(const struct fm_exportplan *p, const struct fm_planned_block *b,
                      uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    uint64_t row = row_bytes(p);
    assert(from % grain(p, b) == 0 && size % grain(p, b) == 0);
    switch (b->part) {
    case FM_PART_GATE:
    case FM_PART_UP:
        return fill_rows(p, b, from / row, size / row, dst, err);
    case FM_PART_DOWN:
        return fill_down(p, b, dst, err);
    default:
        return fm_file_read(&p->from->bundle.file,
                            fm_volumes_expert(&p->from->volumes, b->m, b->part, b->e) + from, dst,
                            (size_t)size, err);
    }
}

/* Those blocks, or parts of them, that lie in [from, from + size). */
static int fill_blocks(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = t->block; i < t->block + t->blocks && rc == FM_OK; i++) {
        const struct fm_planned_block *b = &p->block[i];
        uint64_t end = b->at + fm_exportplan_block_bytes(p, b);
        uint64_t lo = from > b->at ? from : b->at, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fill_block(p, b, lo - b->at, hi - lo, dst + (lo - from), err);
    }
    return rc;
}

/* "Start with what config.json or the environment says": an index is put there to switch. */
static int fill_unset(const struct fm_planned_tensor *t, uint64_t from, uint64_t size, char *dst)
{
    const float unset = -1;
    char value[sizeof unset];
    fm_dtype_from_f32(value, &unset, t->t.dtype, 1);
    memcpy(dst, value + from, (size_t)size);
    return FM_OK;
}

int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err)
{
    switch (t->fill) {
    case FM_FILL_COPY:
        return fm_file_read(&p->from->bundle.file, t->from->t.offset + from, dst, (size_t)size,
                            err);
    case FM_FILL_EXPERTS:
        return fill_blocks(p, t, from, size, dst, err);
    case FM_FILL_UNSET:
        return fill_unset(t, from, size, dst);
    }
    assert(!"a fill");
    return FM_EBUG;
}
