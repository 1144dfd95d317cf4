/*
 * The bytes of an export's tensors, from the bundle's.  There an expert is two ranges of ranked
 * channels: gate and up rows in turn, and down transposed.  A prefix of either is a copy; gate and
 * up rows apart are every second row of one, and the checkpoint's down is the other transposed
 * back.  Segments are hashed while they are in the cache, so an export trusts no byte of a bundle
 * that nobody has looked at since it was written.
 */
#include "lib/export/fill.h"

#include <assert.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/pool.h"
#include "lib/model/interleave.h"

/* Bytes of a channel in a block. */
static uint64_t unit_bytes(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return fm_opened_channel_bytes(p->from, b->part);
}

/* Where a block that begins at 0 can be cut behind `from`: at the last boundary of segments within
 * `limit`, at least the next one.  What is transposed is never cut. */
static uint64_t cut_block(const struct fm_exportplan *p, const struct fm_planned_block *b,
                          uint64_t from, uint64_t limit)
{
    const struct fm_segments *seg = &p->from->seg;
    uint64_t all = fm_exportplan_block_bytes(p, b), unit = unit_bytes(p, b), cut = all;
    const struct fm_expert_cut form = fm_expert_cut(p->from->config.expert, b->part);
    if (form.columns || all - from <= limit)
        return all;
    if (seg->S == 0) /* nothing is checked: any channel will do */
        return from + (limit > unit ? limit / unit : 1) * unit;
    for (int s = seg->S; s > 0; s--) {
        uint64_t at = (uint64_t)seg->bound[s] * unit;
        if (at <= from)
            break;
        if (at < all)
            cut = at;
        if (at - from <= limit)
            break;
    }
    return cut;
}

uint64_t fm_fill_cut(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                     uint64_t from, uint64_t limit)
{
    uint64_t left = t->t.size - from, at = from;
    if (t->fill == FM_FILL_WIDENED)
        return t->t.size;
    if (t->blocks == 0)
        return from + (left < limit ? left : limit);
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        const struct fm_planned_block *b = &p->block[i];
        uint64_t end = b->at + fm_exportplan_block_bytes(p, b);
        if (end <= from)
            continue;
        if (at > from && end - from > limit)
            return at; /* whole blocks, as many as fit */
        at = b->at + cut_block(p, b, at - b->at, limit - (at - from));
        if (at < end)
            return at;
    }
    return at;
}

uint64_t fm_fill_piece_max(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                           uint64_t limit)
{
    uint64_t most = 0;
    for (uint64_t at = 0; at < t->t.size;) {
        uint64_t next = fm_fill_cut(p, t, at, limit);
        most = next - at > most ? next - at : most;
        at = next;
    }
    return most;
}

/* The tensor of a layer in the bundle that has a part of the experts. */
static int part_of(const struct fm_exportplan *p, enum fm_weight_part of)
{
    const struct fm_packed *packed = &p->from->packed;
    return (int)(fm_packed_find(packed, of, -1) - packed->part);
}

/* The digest of segment s of a block's expert; `bytes` are all of it. */
static int check_segment(const struct fm_exportplan *p, const struct fm_planned_block *b,
                         int part, int s, const void *bytes, size_t size, struct fm_err *err)
{
    const struct fm_opened *o = p->from;
    struct fm_digest digest = fm_digest_of(bytes, size);
    if (fm_digest_equal(&digest, &fm_segments_expert(&o->seg, b->m, part, b->e)[s]))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: layer %d, expert %d: channels %d to %d are not those of their checksum; "
                   "the bundle is damaged (fm-verify lists all that is)",
                   o->bundle.file.path, o->config.moe[b->m], b->e, o->seg.bound[s],
                   o->seg.bound[s + 1] - 1);
}

/*
 * Channels [first, first + count) of a part of the block's expert as the bundle has them, `first` a
 * boundary of segments.  Of a segment that is cut by the width all is read, to be checked.
 */
static int read_channels(const struct fm_exportplan *p, const struct fm_planned_block *b,
                         enum fm_weight_part of, uint64_t first, uint64_t count, void *dst,
                         struct fm_err *err)
{
    const struct fm_segments *seg = &p->from->seg;
    int part = part_of(p, of);
    uint64_t unit = fm_opened_channel_bytes(p->from, of), end = first + count;
    uint64_t at = fm_volumes_expert(&p->from->volumes, b->m, part, b->e);
    int rc =
        fm_file_read(&p->from->bundle.file, at + first * unit, dst, (size_t)(count * unit), err);
    for (int s = 0; s < seg->S && !rc; s++) {
        uint64_t lo = (uint64_t)seg->bound[s], hi = (uint64_t)seg->bound[s + 1];
        if (lo < first || lo >= end)
            continue;
        char *bytes = (char *)dst + (lo - first) * unit;
        size_t size = (size_t)((hi - lo) * unit);
        struct fm_mark mark = fm_scratch_mark();
        if (hi > end) {
            size_t have = (size_t)((end - lo) * unit);
            char *whole = fm_scratch(size);
            memcpy(whole, bytes, have);
            rc = fm_file_read(&p->from->bundle.file, at + end * unit, whole + have, size - have,
                              err);
            bytes = whole;
        }
        if (!rc)
            rc = check_segment(p, b, part, s, bytes, size, err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* Channels [first, first + n) of a block that has them as rows, those from the width on zero. */
static int fill_rows(const struct fm_exportplan *p, const struct fm_planned_block *b,
                     const struct fm_expert_cut *cut, uint64_t first, uint64_t n, char *dst,
                     struct fm_err *err)
{
    uint64_t unit = unit_bytes(p, b), k = fm_exportplan_kept(p, b), end = first + n;
    uint64_t kept = k > first ? (end < k ? end : k) - first : 0;
    bool range = fm_expert_cut_is_range(p->from->config.expert, cut);
    struct fm_mark mark = fm_scratch_mark();
    uint64_t channel = fm_opened_channel_bytes(p->from, cut->of);
    char *all = range ? dst : fm_scratch((size_t)(kept * channel) + 1);
    int rc = kept ? read_channels(p, b, cut->of, first, kept, all, err) : FM_OK;
    if (!rc && !range)
        fm_interleave_undo(dst, all, cut->first, (int)kept, p->from->config.H,
                           fm_dtype_bits(p->from->dtype) / 8);
    if (!rc)
        memset(dst + kept * unit, 0, (size_t)((n - kept) * unit));
    fm_scratch_release(mark);
    return rc;
}

/* (H, channels): the columns from the width on zero. */
static int fill_columns(const struct fm_exportplan *p, const struct fm_planned_block *b,
                        const struct fm_expert_cut *cut, char *dst, struct fm_err *err)
{
    int rows = cut->rows, element = fm_dtype_bits(p->from->dtype) / 8;
    uint32_t k = fm_exportplan_kept(p, b), stored = fm_exportplan_stored(p, b);
    struct fm_mark mark = fm_scratch_mark();
    char *ranked = fm_scratch((size_t)k * (size_t)unit_bytes(p, b));
    int rc = read_channels(p, b, cut->of, 0, k, ranked, err);
    if (!rc)
        fm_interleave_scatter(dst, ranked, rows * (int)k, rows * (int)stored, p->from->config.H,
                              element);
    fm_scratch_release(mark);
    return rc;
}

/* Bytes [from, from + size) of a block. */
static int fill_block(const struct fm_exportplan *p, const struct fm_planned_block *b,
                      uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    const struct fm_expert_cut cut = fm_expert_cut(p->from->config.expert, b->part);
    uint64_t unit = unit_bytes(p, b);
    assert(from % unit == 0 && size % unit == 0);
    if (cut.columns)
        return fill_columns(p, b, &cut, dst, err);
    return fill_rows(p, b, &cut, from / unit, size / unit, dst, err);
}

/* Those blocks, or parts of them, that lie in [from, from + size). */
static int fill_blocks(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = t->block; i < t->block + t->blocks && !rc; i++) {
        const struct fm_planned_block *b = &p->block[i];
        uint64_t end = b->at + fm_exportplan_block_bytes(p, b);
        uint64_t lo = from > b->at ? from : b->at, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fill_block(p, b, lo - b->at, hi - lo, dst + (lo - from), err);
    }
    return rc;
}

/*
 * All of a tensor of the shared expert, whose channels are rows of gate and up and columns of down:
 * its own bytes with zeros behind those of each row, or of the last.  They are hashed as a whole.
 */
static int fill_widened(const struct fm_exportplan *p, const struct fm_planned_tensor *t, char *dst,
                        struct fm_err *err)
{
    size_t rows, row, wide;
    fm_fill_rows(t, &rows, &row, &wide);
    size_t size = rows * row;
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_scratch(size);
    int rc = fm_file_read(&p->from->bundle.file, t->from->t.offset, bytes, size, err);
    if (!rc && t->from->digest) {
        struct fm_digest digest = fm_digest_of(bytes, size);
        rc = fm_fill_check(p, t, &digest, err);
    }
    for (size_t i = 0; i < rows && !rc; i++) {
        memcpy(dst + i * wide, bytes + i * row, row);
        memset(dst + i * wide + row, 0, wide - row);
    }
    fm_scratch_release(mark);
    return rc;
}

void fm_fill_rows(const struct fm_planned_tensor *t, size_t *rows, size_t *row, size_t *wide)
{
    int d = t->t.shape[0] == t->from->t.shape[0]; /* the dimension that is wider */
    *rows = d ? (size_t)t->t.shape[0] : 1;
    *wide = (size_t)t->t.size / *rows;
    *row = *wide / (size_t)t->t.shape[d] * (size_t)t->from->t.shape[d];
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
    case FM_FILL_WIDENED:
        assert(from == 0 && size == t->t.size);
        return fill_widened(p, t, dst, err);
    case FM_FILL_EXPERTS:
        return fill_blocks(p, t, from, size, dst, err);
    case FM_FILL_UNSET:
        return fill_unset(t, from, size, dst);
    }
    assert(!"a fill");
    return FM_EBUG;
}

int fm_fill_check(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                  const struct fm_digest *digest, struct fm_err *err)
{
    if (!t->from || !t->from->digest || fm_digest_equal(digest, t->from->digest))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: tensor '%s' is not that of its checksum; the bundle is damaged (fm-verify "
                   "lists all that is)",
                   p->from->bundle.file.path, t->from->t.name);
}
