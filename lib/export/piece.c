/*
 * The bytes of pieces.  A segment of an expert is hashed while it is in the cache, so every byte of
 * an expert is checked before it enters an export.
 *
 *     bundle    | gate, up of channel 0 | gate, up of channel 1 | ...     and scales of codes
 *                  |  fm_piece_read: once for a group, compared with checksums
 *                  |  fm_packed_convert: decoded, rounded
 *                  v
 *     channels  | gate, up of channel 0 | gate, up of channel 1 | ...     in the export's format
 *                  |  fm_piece_bytes: fm_packed_cut
 *                  v
 *     pieces    | gate of channel 0 | gate of channel 1 | ...   | up of channel 0 | ...
 */
#include "lib/export/piece.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file/file.h"
#include "lib/base/dtype.h"
#include "lib/model/reading.h"

/* ---- pieces of a tensor ---- */

/* The form of the block's layer in the bundle. */
static const struct fm_packed *packed_of(const struct fm_exportplan *p,
                                         const struct fm_planned_block *b)
{
    return fm_packed_at(&p->from->packed, b->m);
}

/* The part of the bundle in which the block's channels are. */
static enum fm_weight_part source_of(const struct fm_exportplan *p,
                                     const struct fm_planned_block *b)
{
    return fm_expert_cut(p->from->config.expert, b->part).of;
}

bool fm_piece_moved(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return (b->plane < 0 || p->codes) && fm_packed_find(packed_of(p, b), source_of(p, b), b->plane);
}

/* Channels from `first` on that are read at a time, for all blocks that are made from them: at most
 * `limit` bytes if possible, to a boundary of segments.  All of the rest if they are rounded, or if
 * they are columns of a file, which cannot be cut. */
static uint32_t step_of(const struct fm_exportplan *p, const struct fm_planned_block *b,
                        uint32_t first, uint64_t limit)
{
    const struct fm_segments *seg = &p->from->seg;
    const struct fm_packed *packed = packed_of(p, b);
    uint32_t all = fm_planned_stored(p, b), group = (uint32_t)packed->group, end = all;
    bool columns = fm_expert_cut(p->from->config.expert, b->part).columns;
    if (columns || (p->options.quantise && fm_packed_at(&p->packed, b->m)->scheme.storage))
        return all - first;
    uint64_t bytes = 0; /* of a group, in all planes */
    for (int i = 0; i < packed->parts; i++)
        if (packed->part[i].of == source_of(p, b))
            bytes += fm_packed_group_bytes(&packed->part[i]);
    if ((all - first) / group * bytes <= limit)
        return all - first;
    if (seg->S == 0) /* without checksums, any channel group is a boundary */
        return (uint32_t)(limit > bytes ? limit / bytes : 1) * group;
    for (int s = seg->S; s > 0 && (uint32_t)seg->bound[s] > first; s--) {
        uint32_t at = (uint32_t)seg->bound[s];
        end = at < all ? at : end;
        if ((at - first) / group * bytes <= limit)
            break;
    }
    return end - first;
}

struct fm_piece fm_piece_next(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                              uint64_t at, uint64_t limit)
{
    struct fm_piece x = {.tensor = t, .from = at, .size = t->t.size - at};
    assert(at < t->t.size);
    limit = limit / 16 * 16; /* whole bytes of codes */
    if (t->from)
        x.source = t->from->t.offset;
    if (t->kind == FM_PLANNED_DECODED && x.size > limit)
        x.size = limit;
    if (t->kind != FM_PLANNED_EXPERTS)
        return x;
    const struct fm_planned_block *b = &p->block[t->block];
    while (at >= b->at + b->bytes) /* they fill the tensor: planned.h, invariant 3 */
        b++;
    assert(b < &p->block[t->block + t->blocks]);
    const struct fm_packed *packed = packed_of(p, b);
    const struct fm_packed_part *part = packed->part; /* its first plane */
    while (part->of != source_of(p, b))
        part++;
    uint64_t group = (uint64_t)packed->group;
    x.block = b;
    if (at > b->at)
        x.first = (uint32_t)((at - b->at) / fm_planned_unit_bytes(p, b, group) * group);
    x.n = step_of(p, b, x.first, limit);
    x.size = b->bytes - (at - b->at);
    assert(x.size > 0 && (uint64_t)x.first + x.n <= fm_planned_stored(p, b));
    if (fm_planned_has_channels(p, b) && x.first + x.n < fm_planned_stored(p, b))
        x.size = fm_planned_unit_bytes(p, b, x.n);
    if (p->from->volumes.at)
        x.source = fm_volumes_expert(&p->from->volumes, b->m, (int)(part - packed->part), b->e) +
                   fm_packed_bytes(packed, part, x.first);
    return x;
}

/* ---- the bytes of experts ---- */

static int check_digest(const struct fm_opened *o, const struct fm_opened_tensor *from,
                        const struct fm_digest *digest, struct fm_err *err)
{
    if (!from->digest || fm_digest_equal(digest, from->digest))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: tensor '%s' does not match its checksum; the bundle is damaged (fm-verify "
                   "lists all damage)",
                   fm_file_path_at(&o->bundle.file, from->t.offset), from->t.name);
}

/* Check the digest of segment s of a block's expert, whose bytes are complete. */
static int check_segment(const struct fm_exportplan *p, const struct fm_planned_block *b, int part,
                         int s, const void *bytes, size_t size, struct fm_err *err)
{
    const struct fm_opened *o = p->from;
    struct fm_digest digest = fm_digest_of(bytes, size);
    if (fm_digest_equal(&digest, &fm_segments_expert(&o->seg, b->m, part, b->e)[s]))
        return FM_OK;
    return fm_fail(
        err, FM_EFORMAT,
        "%s: layer %d, expert %d: channels %d to %d do not match their checksum; the bundle is "
        "damaged (fm-verify lists all damage)",
        fm_file_path_at(&o->bundle.file, fm_volumes_expert(&o->volumes, b->m, part, b->e)),
        o->config.moe[b->m], b->e, o->seg.bound[s], o->seg.bound[s + 1] - 1);
}

/*
 * Read channels [first, first + count) of the part-th tensor of the block's layer in the bundle's
 * form, into scratch; whole channel groups, `first` a boundary of segments.  A segment that the
 * width cuts is read completely, so that its digest can be checked.
 */
static int read_checked(const void **bytes, const struct fm_exportplan *p,
                        const struct fm_planned_block *b, int part, uint64_t first, uint64_t count,
                        struct fm_err *err)
{
    const struct fm_packed *packed = packed_of(p, b);
    const struct fm_packed_part *of = &packed->part[part];
    const struct fm_segments *seg = &p->from->seg;
    const struct fm_file *file = &p->from->bundle.file;
    uint64_t end = first + count, at = fm_volumes_expert(&p->from->volumes, b->m, part, b->e);
    char *dst = fm_scratch((size_t)fm_packed_bytes(packed, of, count));
    *bytes = dst;
    assert(first % (uint64_t)packed->group == 0 && count % (uint64_t)packed->group == 0);
    assert(end <= (uint64_t)p->from->config.I);
    int rc = fm_file_read(file, at + fm_packed_bytes(packed, of, first), dst,
                          (size_t)fm_packed_bytes(packed, of, count), err);
    for (int s = 0; s < seg->S && !rc; s++) {
        uint64_t lo = (uint64_t)seg->bound[s], hi = (uint64_t)seg->bound[s + 1];
        if (lo < first || lo >= end)
            continue;
        char *segment = dst + fm_packed_bytes(packed, of, lo - first);
        size_t size = (size_t)fm_packed_bytes(packed, of, hi - lo);
        struct fm_mark mark = fm_scratch_mark();
        if (hi > end) {
            size_t have = (size_t)fm_packed_bytes(packed, of, end - lo);
            char *whole = fm_scratch(size);
            memcpy(whole, segment, have);
            rc = fm_file_read(file, at + fm_packed_bytes(packed, of, end), whole + have,
                              size - have, err);
            segment = whole;
        }
        if (!rc)
            rc = check_segment(p, b, part, s, segment, size, err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* Compare what fm_packed_read_apart read of a tensor with its digest. */
static int check_apart(const void *in, const char *name, const void *bytes, size_t size,
                       struct fm_err *err)
{
    struct fm_digest digest = fm_digest_of(bytes, size);
    return check_digest(in, fm_opened_find(in, name), &digest, err);
}

/* Read the planes of the bundle that the piece is made from, unless they have been read. */
static int read_planes(struct fm_channels *c, const struct fm_exportplan *p,
                       const struct fm_piece *x, struct fm_err *err)
{
    const struct fm_planned_block *b = x->block;
    const struct fm_packed_expert expert = {.naming = FM_NAMING_STOCK,
                                            .l = p->from->config.moe[b->m],
                                            .e = b->e,
                                            .find = fm_opened_stored,
                                            .check = check_apart,
                                            .in = p->from,
                                            .path = p->from->bundle.file.path};
    int rc = FM_OK;
    for (int i = 0; i < c->packed->parts && c->count > 0 && !rc; i++) {
        const struct fm_packed_part *part = &c->packed->part[i];
        const void **plane = &c->plane[part->plane > 0];
        bool needed = part->of == c->of && (!p->codes || part->plane == b->plane);
        if (needed && !*plane)
            rc = read_checked(plane, p, b, i, x->first, c->count, err);
    }
    bool codes = fm_packed_find(c->packed, c->of, 0);
    bool apart = p->codes ? !fm_planned_has_channels(p, b) : c->count > 0;
    return !rc && codes && apart ? fm_packed_read_apart(c, &expert, err) : rc;
}

int fm_piece_read(struct fm_channels *c, const struct fm_exportplan *p, const struct fm_piece *x,
                  struct fm_err *err)
{
    const struct fm_planned_block *b = x->block;
    if (!b || (c->config && !p->codes))
        return FM_OK;
    uint64_t k = p->codes ? fm_planned_stored(p, b) : fm_planned_kept(p, b);
    uint64_t end = (uint64_t)x->first + x->n;
    if (!c->config)
        *c = (struct fm_channels){.config = &p->from->config,
                                  .of = source_of(p, b),
                                  .count = k > x->first ? (end < k ? end : k) - x->first : 0,
                                  .packed = packed_of(p, b),
                                  .dtype = p->from->dtype};
    assert(p->from->volumes.at);      /* FM_OPENED_WEIGHTS */
    assert(c->of == source_of(p, b)); /* all pieces of a group */
    if (read_planes(c, p, x, err))
        return err->code;
    if (p->codes || fm_packed_convert(c, fm_packed_at(&p->packed, b->m), p->options.quantise))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: layer %d, expert %d: a weight is NaN or Inf, which --weights %s cannot "
                   "round; use --weights bf16 or repair the checkpoint",
                   p->from->bundle.file.path, p->from->config.moe[b->m], b->e,
                   p->options.quantise->name);
}

/* The piece of a block.  Channels after the width are blank. */
static const void *cut_channels(const struct fm_channels *c, const struct fm_exportplan *p,
                                const struct fm_piece *x)
{
    const struct fm_planned_block *b = x->block;
    uint64_t k = fm_planned_kept(p, b), end = (uint64_t)x->first + x->n;
    assert(c->of == source_of(p, b));
    if (!fm_planned_has_channels(p, b))
        return b->plane == FM_PLANES ? c->factor : c->plane[1];
    return fm_packed_cut(c, b->part, b->plane, k > x->first ? (end < k ? end : k) - x->first : 0,
                         x->n, fm_planned_blank(p, b));
}

/* ---- the bytes of other tensors ---- */

int fm_piece_copy(const struct fm_exportplan *p, const struct fm_opened_tensor *from,
                  const struct fm_piece_sink *to, struct fm_err *err)
{
    struct fm_hasher *hasher = fm_hasher_new();
    struct fm_mark mark = fm_scratch_mark();
    uint64_t left = from->t.size, n;
    void *bytes = fm_scratch((size_t)(left < FM_PIECE_BYTES ? left : FM_PIECE_BYTES));
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    for (; left > 0 && !rc && (!to || fm_taskgroup_going(to->tasks)); left -= n) {
        uint64_t at = from->t.size - left;
        n = left < FM_PIECE_BYTES ? left : FM_PIECE_BYTES;
        rc = fm_file_read(&p->from->bundle.file, from->t.offset + at, bytes, (size_t)n, err);
        fm_hasher_add(hasher, bytes, (size_t)n);
        if (!rc && to)
            rc = to->put(to->self, to->offset + at, bytes, (size_t)n, err);
    }
    fm_scratch_release(mark);
    if (!rc && left == 0) {
        struct fm_digest digest = fm_hasher_done(hasher);
        rc = check_digest(p->from, from, &digest, err);
    }
    fm_hasher_free(hasher);
    return rc;
}

/* FM_EFORMAT if a tensor of the bundle outside the experts does not match its checksum. */
static int check_whole(const struct fm_exportplan *p, const struct fm_tensor *t, struct fm_err *err)
{
    const struct fm_opened_tensor *from = fm_opened_find(p->from, t->name);
    return from->digest ? fm_piece_copy(p, from, NULL, err) : FM_OK;
}

/* Read values [first, first + n) of a tensor of codes, rounded once.  With the first of them, codes
 * and scales are compared with their checksums. */
static int read_decoded(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                        uint64_t first, uint64_t n, void *dst, struct fm_err *err)
{
    const struct fm_stored *at = &t->from->at;
    const struct fm_tensor *const whole[] = {at->tensor, at->scale, at->factor, at->zero};
    const struct fm_reading r = {.at = at, .e = -1};
    uint64_t bits = (uint64_t)fm_stored_bits(at);
    size_t bytes = (size_t)(n * bits / 8);
    const void *scale;
    struct fm_scales scales;
    float factor;
    struct fm_mark mark = fm_scratch_mark();
    void *raw = fm_scratch(bytes);
    int rc = FM_OK;
    for (int i = 0; i < 4 && first == 0 && !rc; i++)
        rc = whole[i] ? check_whole(p, whole[i], err) : FM_OK;
    if (!rc && (fm_reading_bytes(raw, &r, 0, first * bits / 8, bytes, err) ||
                fm_reading_scales(&scale, &r, err) || fm_reading_factor(&factor, &r, false, err) ||
                fm_reading_widen(&scales, &r, scale, factor, err)))
        rc = fm_within(err, "%s", at->file->path);
    if (!rc) {
        scales.first = (int64_t)first;
        fm_stored_write(dst, t->t.dtype, raw, at->tensor->dtype, &scales, (size_t)n);
    }
    fm_scratch_release(mark);
    return rc;
}

/* Read all bytes of a tensor of the bundle, or of its decoded values. */
static int read_own(const struct fm_exportplan *p, const struct fm_planned_tensor *t, char *dst,
                    size_t size, struct fm_err *err)
{
    size_t element = (size_t)fm_dtype_bits(t->t.dtype) / 8;
    if (t->decoded)
        return read_decoded(p, t, 0, size / element, dst, err);
    int rc = fm_file_read(&p->from->bundle.file, t->from->t.offset, dst, size, err);
    struct fm_digest digest = fm_digest_of(dst, size);
    return rc ? rc : check_digest(p->from, t->from, &digest, err);
}

struct fm_widened fm_piece_widened(const struct fm_planned_tensor *t)
{
    int d = t->widen.dimension;
    size_t rows = d ? (size_t)t->t.shape[0] : 1, wide = (size_t)t->t.size / rows;
    size_t row = wide / (size_t)t->t.shape[d] * (size_t)(t->t.shape[d] - t->widen.by);
    size_t again = t->widen.again, one = again ? again : 1;
    assert((wide - row) % one == 0 && row >= again);
    return (struct fm_widened){.own = {rows, 1, 1, row},
                               .padding = {rows, 1, (wide - row) / one, one},
                               .narrow = {row, 0, 0},
                               .wide = {wide, 0, one},
                               .again = again,
                               .blank = t->widen.blank};
}

void fm_piece_widen(char *to, const char *own, const struct fm_widened *w)
{
    char *padding = to + w->own.size;
    fm_move(to, &w->wide, own, &w->narrow, &w->own, NULL);
    if (w->again) /* the same item again and again */
        fm_move(padding, &w->wide, padding - w->again, &(struct fm_form){w->wide.group, 0, 0},
                &w->padding, NULL);
    else
        fm_move_blank(padding, &w->wide, &w->padding, w->blank);
}

/*
 * Fill a whole tensor of the shared expert, whose channels are rows of gate and up and columns of
 * down: its own values, with zeros after each row, or after the last.  The digest covers only its
 * own values.  Codes are padded with the code of 0, scales with the last scale.
 */
static int fill_widened(const struct fm_exportplan *p, const struct fm_planned_tensor *t, char *dst,
                        struct fm_err *err)
{
    const struct fm_widened w = fm_piece_widened(t);
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_scratch(fm_box_bytes(&w.own));
    int rc = read_own(p, t, bytes, fm_box_bytes(&w.own), err);
    if (!rc)
        fm_piece_widen(dst, bytes, &w);
    fm_scratch_release(mark);
    return rc;
}

/* Bytes of a tensor of an expert for multi-token prediction, at full width, as it is written. */
static size_t full_bytes(const struct fm_planned_tensor *t)
{
    return t->decoded
               ? (size_t)fm_stored_count(&t->from->at) * (size_t)fm_dtype_bits(t->t.dtype) / 8
               : (size_t)t->from->t.size;
}

/*
 * Fill a whole tensor of one expert or all experts for multi-token prediction: the first channel
 * groups of each in ranked order, which are rows or columns.
 */
static int fill_narrowed(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                         char *dst, struct fm_err *err)
{
    size_t I = (size_t)p->from->config.I, group = (size_t)p->packed.group, n = I / group;
    size_t full = full_bytes(t), each = (size_t)t->narrow.matrices;
    int expert = t->narrow.expert, rows = t->t.dims - 2; /* the dimension */
    size_t matrices = each * (size_t)(expert < 0 ? p->from->config.E : 1), one = full / matrices;
    size_t items = t->narrow.dimension == rows ? 1 : (size_t)t->t.shape[rows];
    assert(p->ahead); /* read if the plan narrows experts, unless it was made without a bundle */
    const struct fm_box all = {n, 1, items, one / items / n};
    const struct fm_box box = {p->widths.stored[0] / group, 1, items, all.size};
    const struct fm_form wide = {all.size, 0, all.groups * all.size};
    const struct fm_form narrow = {all.size, 0, box.groups * all.size};
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_scratch(full), *ranked = fm_scratch(one);
    int rc = read_own(p, t, bytes, full, err);
    for (size_t i = 0; i < matrices && !rc; i++) {
        size_t e = expert < 0 ? i / each : (size_t)expert;
        fm_move(ranked, &wide, bytes + i * one, &wide, &all, p->ahead + e * I);
        fm_move(dst + i * fm_box_bytes(&box), &narrow, ranked, &wide, &box, NULL);
    }
    fm_scratch_release(mark);
    return rc;
}

static void fill_numbers(const struct fm_planned_tensor *t, char *dst)
{
    const float number = (float)t->number[0];
    if (t->t.dtype == FM_I64)
        memcpy(dst, t->number, (size_t)t->t.size);
    else
        fm_dtype_from_f32(dst, &number, t->t.dtype, 1);
}

int fm_piece_bytes(const void **bytes, const struct fm_channels *c, const struct fm_exportplan *p,
                   const struct fm_piece *x, struct fm_err *err)
{
    const struct fm_planned_tensor *t = x->tensor;
    uint64_t element = (uint64_t)fm_dtype_bits(t->t.dtype) / 8;
    assert(t->kind != FM_PLANNED_COPY);
    char *dst = x->block ? NULL : fm_scratch((size_t)x->size);
    *bytes = x->block ? cut_channels(c, p, x) : dst;
    switch (t->kind) {
    case FM_PLANNED_NUMBERS:
        fill_numbers(t, dst);
        break;
    case FM_PLANNED_EXPERTS:
    case FM_PLANNED_COPY:
        break;
    case FM_PLANNED_DECODED:
        return read_decoded(p, t, x->from / element, x->size / element, dst, err);
    case FM_PLANNED_WIDENED:
        return fill_widened(p, t, dst, err);
    case FM_PLANNED_NARROWED:
        return fill_narrowed(p, t, dst, err);
    }
    return FM_OK;
}

/* ---- several pieces ---- */

static int compare_sources(const void *a, const void *b)
{
    const struct fm_piece *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

void fm_piece_group(struct fm_piece *piece, size_t n)
{
    if (n > 0)
        qsort(piece, n, sizeof *piece, compare_sources);
    for (size_t i = 0, first = 0; i < n; i++) {
        bool same =
            i > 0 && piece[i].block && piece[i - 1].block && piece[i].source == piece[i - 1].source;
        first = same ? first : i;
        piece[i].group = 0;
        piece[first].group++;
    }
}

/* Upper bound of the memory for a piece of experts and for what it is made from.  Rounded: the
 * values, twice if they are transposed; what they are rounded to, twice; and the rows that share
 * scales, as float32. */
static uint64_t channels_memory(const struct fm_exportplan *p, const struct fm_piece *x)
{
    const struct fm_packed *from = packed_of(p, x->block),
                           *to = fm_packed_at(&p->packed, x->block->m);
    enum fm_weight_part of = source_of(p, x->block);
    uint64_t values = (uint64_t)fm_expert_part_rows(p->from->config.expert, of) * x->n *
                      fm_expert_part_row(of, p->from->config.H) *
                      (uint64_t)fm_dtype_bits(p->from->dtype) / 8;
    uint64_t bytes = x->size;
    for (int i = 0; i < from->parts; i++)
        bytes += from->part[i].of == of ? fm_packed_bytes(from, &from->part[i], x->n) : 0;
    if (!p->codes && from->scheme.storage)
        bytes += values + FM_PIECE_BYTES;
    for (int i = 0; p->options.quantise && i < to->parts; i++)
        bytes += to->part[i].of == of ? 2 * fm_packed_bytes(to, &to->part[i], x->n) : 0;
    if (p->options.quantise)
        bytes += values + (x->n + (uint64_t)p->from->config.H) * (uint64_t)to->scheme.block_rows *
                              sizeof(float);
    return bytes;
}

/* The same for any piece.  Decoded: codes, scales, and a buffer for comparing both with their
 * checksums. */
uint64_t fm_piece_memory(const struct fm_exportplan *p, const struct fm_piece *x)
{
    const struct fm_planned_tensor *t = x->tensor;
    const struct fm_tensor *scale = t->decoded ? t->from->at.scale : NULL;
    uint64_t decoding =
        scale ? x->size + scale->size + fm_tensor_count(scale) * sizeof(float) + FM_PIECE_BYTES : 0;
    switch (t->kind) {
    case FM_PLANNED_EXPERTS:
        return channels_memory(p, x);
    case FM_PLANNED_COPY:
        return x->size < FM_PIECE_BYTES ? x->size : FM_PIECE_BYTES;
    case FM_PLANNED_NARROWED:
        return x->size + 2 * (uint64_t)full_bytes(t) + decoding;
    case FM_PLANNED_NUMBERS:
    case FM_PLANNED_DECODED:
    case FM_PLANNED_WIDENED:
        break;
    }
    return 2 * x->size + decoding;
}
