/*
 * Makes the bytes of an export's tensors from the bytes of the bundle.  In the bundle an expert
 * without codes or biases is two ranges of ranked channels: interleaved gate and up rows, and the
 * transposed down matrix.  A prefix of either range is copied as it is; separate gate and up rows
 * are every second row of the first range, and the checkpoint's down is the second range transposed
 * back.  If the checksums were opened, segments are hashed while they are in the cache, so every
 * byte of an expert is checked before it enters an export.
 */
#include "lib/export/fill.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/pool.h"
#include "lib/model/checkpoint.h"
#include "lib/model/stored.h"
#include "lib/move/move.h"

static int check_digest(const struct fm_exportplan *p, const struct fm_opened_tensor *from,
                        const struct fm_digest *digest, struct fm_err *err)
{
    if (!from->digest || fm_digest_equal(digest, from->digest))
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: tensor '%s' does not match its checksum; the bundle is damaged (fm-verify "
                   "lists all damage)",
                   fm_file_path_at(&p->from->bundle.file, from->t.offset), from->t.name);
}

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

bool fm_fill_alone(const struct fm_exportplan *p, const struct fm_planned_block *b)
{
    return b->plane >= 0 &&
           (p->options.quantise || !fm_packed_find(packed_of(p, b), source_of(p, b), b->plane));
}

/* The last place after `from` where a block that begins at 0 can be cut: the last boundary of
 * segments within `limit`, or the next one if that is farther.  Transposed blocks are not cut. */
static uint64_t cut_block(const struct fm_exportplan *p, const struct fm_planned_block *b,
                          uint64_t from, uint64_t limit)
{
    const struct fm_segments *seg = &p->from->seg;
    uint64_t all = b->bytes, cut = all;
    const struct fm_expert_cut form = fm_expert_cut(p->from->config.expert, b->part);
    if (form.columns || all - from <= limit)
        return all;
    uint64_t group = (uint64_t)packed_of(p, b)->group, unit = fm_exportplan_unit_bytes(p, b, group);
    if (seg->S == 0) /* without checksums, any channel group is a boundary */
        return from + (limit > unit ? limit / unit : 1) * unit;
    for (int s = seg->S; s > 0; s--) {
        uint64_t at = (uint64_t)seg->bound[s] / group * unit;
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
    limit = t->decoded ? limit / 16 * 16 : limit; /* whole bytes of codes */
    if (t->by)
        return t->t.size;
    if (t->blocks == 0)
        return from + (left < limit ? left : limit);
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        const struct fm_planned_block *b = &p->block[i];
        uint64_t end = b->at + b->bytes;
        if (end <= from)
            continue;
        if (at > from && (end - from > limit || fm_fill_alone(p, b)))
            return at; /* as many whole blocks as fit, or one that is computed as a whole */
        at = fm_fill_alone(p, b) ? end : b->at + cut_block(p, b, at - b->at, limit - (at - from));
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
 * form; whole channel groups, `first` a boundary of segments.  A segment that the width cuts is
 * read completely, so that its digest can be checked.
 */
static int read_checked(const struct fm_exportplan *p, const struct fm_planned_block *b, int part,
                        uint64_t first, uint64_t count, void *dst, struct fm_err *err)
{
    const struct fm_packed *packed = packed_of(p, b);
    const struct fm_packed_part *of = &packed->part[part];
    const struct fm_segments *seg = &p->from->seg;
    uint64_t end = first + count, before = fm_packed_bytes(packed, of, first);
    uint64_t at = fm_volumes_expert(&p->from->volumes, b->m, part, b->e);
    int rc = fm_file_read(&p->from->bundle.file, at + before, dst,
                          (size_t)fm_packed_bytes(packed, of, count), err);
    for (int s = 0; s < seg->S && !rc; s++) {
        uint64_t lo = (uint64_t)seg->bound[s], hi = (uint64_t)seg->bound[s + 1];
        if (lo < first || lo >= end)
            continue;
        char *bytes = (char *)dst + fm_packed_bytes(packed, of, lo - first);
        size_t size = (size_t)fm_packed_bytes(packed, of, hi - lo);
        struct fm_mark mark = fm_scratch_mark();
        if (hi > end) {
            size_t have = (size_t)fm_packed_bytes(packed, of, end - lo);
            char *whole = fm_scratch(size);
            memcpy(whole, bytes, have);
            rc = fm_file_read(&p->from->bundle.file, at + fm_packed_bytes(packed, of, end),
                              whole + have, size - have, err);
            bytes = whole;
        }
        if (!rc)
            rc = check_segment(p, b, part, s, bytes, size, err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* The innermost fm_fill_hold of this thread; NULL: bytes are read on demand. */
static _Thread_local struct fm_fill_held *held;

/* Find channels [first, first + count) of the part-th tensor of the block's layer, in the bundle's
 * form: in the held bytes, into which all kept channels of the expert are read on its first use;
 * else they are read into `room`, or if that is NULL into scratch. */
static int find_part(const char **bytes, const struct fm_exportplan *p,
                     const struct fm_planned_block *b, int part, uint64_t first, uint64_t count,
                     char *room, struct fm_err *err)
{
    const struct fm_packed *packed = packed_of(p, b);
    const struct fm_packed_part *of = &packed->part[part];
    struct fm_fill_held_part *h = held ? &held->part[part] : NULL;
    uint64_t kept = fm_exportplan_kept(p, b);
    int rc = FM_OK;
    if (!h || fm_packed_bytes(packed, of, kept) > h->room || first + count > kept) {
        room = room ? room : fm_scratch((size_t)fm_packed_bytes(packed, of, count));
        *bytes = room;
        return read_checked(p, b, part, first, count, room, err);
    }
    if (!h->full || h->m != b->m || h->e != b->e) {
        rc = read_checked(p, b, part, 0, kept, h->bytes, err);
        h->full = !rc;
        h->m = b->m;
        h->e = b->e;
    }
    *bytes = h->bytes + fm_packed_bytes(packed, of, first);
    return rc;
}

/* Find the part of the bundle that the tensor shares with others: one whose rows go into several
 * tensors, or into several blocks of one; or the values from which codes, scales and their factor
 * are computed. */
static bool find_shared(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                        enum fm_weight_part *of)
{
    const struct fm_expert_form *form = p->from->config.expert;
    const struct fm_planned_block *b = &p->block[t->block];
    if (t->blocks == 0)
        return false;
    const struct fm_expert_cut cut = fm_expert_cut(form, b->part);
    *of = cut.of;
    if (fm_fill_alone(p, b))
        return !p->codes;
    return !cut.columns && cut.rows < fm_expert_part_rows(form, cut.of);
}

bool fm_fill_shares(const struct fm_exportplan *p, const struct fm_planned_tensor *t)
{
    enum fm_weight_part of;
    return find_shared(p, t, &of);
}

void fm_fill_hold_add(struct fm_fill_held *h, const struct fm_exportplan *p,
                      const struct fm_planned_tensor *t)
{
    enum fm_weight_part of;
    uint32_t kept = 0;
    if (!find_shared(p, t, &of))
        return;
    const struct fm_packed *packed = fm_packed_at(&p->from->packed, t->m);
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        uint32_t k = fm_exportplan_kept(p, &p->block[i]);
        kept = k > kept ? k : kept;
    }
    for (int i = 0; i < packed->parts; i++) {
        size_t bytes = (size_t)fm_packed_bytes(packed, &packed->part[i], kept);
        if (packed->part[i].of == of && bytes > h->part[i].room)
            h->part[i].room = bytes;
    }
}

void fm_fill_hold(struct fm_fill_held *h)
{
    for (int i = 0; i < FM_PACKED_PARTS_MAX; i++)
        h->part[i].bytes = h->part[i].room ? fm_scratch(h->part[i].room) : NULL;
    h->before = held;
    held = h;
}

void fm_fill_drop(struct fm_fill_held *h)
{
    assert(held == h);
    held = h->before;
}

int64_t fm_fill_expert(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t at)
{
    int64_t E = p->from->config.E;
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        const struct fm_planned_block *b = &p->block[i];
        if (at < b->at + b->bytes)
            return b->m * E + b->e;
    }
    return -1;
}

/* Index of the tensor that has a plane of a part of the m-th layer's experts; -1 if the bundle
 * lacks it. */
static int part_of(const struct fm_exportplan *p, int m, enum fm_weight_part of, int plane)
{
    const struct fm_packed *packed = fm_packed_at(&p->from->packed, m);
    const struct fm_packed_part *part = fm_packed_find(packed, of, plane);
    return part ? (int)(part - packed->part) : -1;
}

uint64_t fm_fill_source(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                        uint64_t at)
{
    const struct fm_expert_form *form = p->from->config.expert;
    int64_t expert = fm_fill_expert(p, t, at), E = p->from->config.E;
    if (t->from)
        return t->from->t.offset + (fm_planned_copy(t) ? at : 0);
    if (expert < 0)
        return 0;
    const struct fm_planned_block *b = &p->block[t->block];
    for (; at >= b->at + b->bytes; b++)
        ;
    const struct fm_expert_cut cut = fm_expert_cut(form, b->part);
    int m = (int)(expert / E);
    int part = part_of(p, m, cut.of, p->options.quantise ? -1 : b->plane);
    part = part < 0 ? part_of(p, m, cut.of, 0) : part;
    return fm_volumes_expert(&p->from->volumes, m, part, (int)(expert % E)) +
           (fm_fill_shares(p, t) ? 0 : at - b->at);
}

/* Read values of the block's expert that belong to no channel (fm_packed_read_apart). */
static int read_apart(void *dst, const struct fm_exportplan *p, const struct fm_planned_block *b,
                      enum fm_weight_part of, int row, struct fm_err *err)
{
    const struct fm_packed_expert x = {.config = &p->from->config,
                                       .packed = packed_of(p, b),
                                       .naming = FM_NAMING_STOCK,
                                       .l = p->from->config.moe[b->m],
                                       .e = b->e,
                                       .find = fm_opened_stored,
                                       .in = p->from};
    const char *name;
    if (fm_packed_read_apart(dst, &name, &x, of, row, err))
        return fm_within(err, "%s", p->from->bundle.file.path);
    struct fm_digest digest = fm_digest_of(dst, fm_packed_apart_bytes(&x, row));
    return check_digest(p, fm_opened_find(p->from, name), &digest, err);
}

/* The factor that multiplies or divides the scales of each row of a channel. */
static int read_factors(float factor[2], const struct fm_exportplan *p,
                        const struct fm_planned_block *b, enum fm_weight_part of,
                        struct fm_err *err)
{
    int rc = FM_OK, rows = fm_expert_part_rows(p->from->config.expert, of);
    for (int i = 0; i < rows && !rc; i++) {
        factor[i] = 1;
        if (packed_of(p, b)->scheme.storage->factor_end)
            rc = read_apart(&factor[i], p, b, of, i, err);
    }
    return rc;
}

/* Read the values of channels that the bundle stores as codes. */
static int read_values(const struct fm_exportplan *p, const struct fm_planned_block *b,
                       enum fm_weight_part of, uint64_t first, uint64_t count, void *dst,
                       struct fm_err *err)
{
    const struct fm_opened *o = p->from;
    const struct fm_packed *packed = packed_of(p, b);
    int part[FM_PLANES] = {part_of(p, b->m, of, 0), part_of(p, b->m, of, 1)};
    const char *bytes[FM_PLANES] = {NULL, NULL};
    struct fm_mark mark = fm_scratch_mark();
    int rc = FM_OK;
    for (int i = 0; i < FM_PLANES && part[i] >= 0 && !rc; i++)
        rc = find_part(&bytes[i], p, b, part[i], first, count, NULL, err);
    float factor[2];
    if (!rc)
        rc = read_factors(factor, p, b, of, err);
    if (!rc && part[1] < 0) {
        char *scales = fm_scratch((size_t)o->config.H * sizeof(float));
        rc = read_apart(scales, p, b, of, -1, err);
        bytes[1] = scales;
    }
    if (!rc)
        fm_forms_values(dst, o->dtype, packed, &o->config, of, count, bytes[0], bytes[1], factor);
    fm_scratch_release(mark);
    return rc;
}

/* As find_part, for codes, scales or values, whichever the block has. */
static int find_channels(const char **bytes, const struct fm_exportplan *p,
                         const struct fm_planned_block *b, uint64_t first, uint64_t count,
                         char *room, struct fm_err *err)
{
    enum fm_weight_part of = source_of(p, b);
    int part = part_of(p, b->m, of, b->plane);
    if (part >= 0)
        return find_part(bytes, p, b, part, first, count, room, err);
    if (!room)
        room = fm_scratch((size_t)(count * fm_opened_channel_bytes(p->from, of)));
    *bytes = room;
    return read_values(p, b, of, first, count, room, err);
}

/* Write channels [first, first + n) of a block, from the values or the plane of the bundle; those
 * after the width are blank.  A block of columns is written as a whole. */
static int fill_moved(const struct fm_exportplan *p, const struct fm_planned_block *b,
                      uint64_t first, uint64_t n, char *dst, struct fm_err *err)
{
    uint64_t k = fm_exportplan_kept(p, b), end = first + n;
    uint64_t kept = k > first ? (end < k ? end : k) - first : 0;
    const struct fm_forms f = fm_exportplan_forms(p, b, kept, n);
    struct fm_mark mark = fm_scratch_mark();
    char *room = fm_forms_same(&f) ? dst : NULL;
    const char *part = dst;
    int rc = kept ? find_channels(&part, p, b, first, kept, room, err) : FM_OK;
    if (!rc && part != dst)
        fm_move(dst, &f.file, part + f.part_first, &f.part, &f.box, NULL);
    if (!rc)
        fm_move_blank(dst + f.file_padding, &f.file, &f.padding, fm_exportplan_blank(p, b));
    fm_scratch_release(mark);
    return rc;
}

/* FM_EFORMAT if a tensor of the bundle outside the experts does not match its checksum. */
static int check_whole(const struct fm_exportplan *p, const struct fm_tensor *t, struct fm_err *err)
{
    const struct fm_opened_tensor *from = fm_opened_find(p->from, t->name);
    struct fm_hasher *hasher = from->digest ? fm_hasher_new() : NULL;
    if (from->digest && !hasher)
        return fm_fail(err, FM_ENOMEM, "no memory for a digest");
    struct fm_mark mark = fm_scratch_mark();
    void *bytes = hasher ? fm_scratch(FM_FILL_PIECE) : NULL;
    int rc = FM_OK;
    for (uint64_t at = 0, n; hasher && at < from->t.size && !rc; at += n) {
        n = from->t.size - at < FM_FILL_PIECE ? from->t.size - at : FM_FILL_PIECE;
        rc = fm_file_read(&p->from->bundle.file, from->t.offset + at, bytes, (size_t)n, err);
        fm_hasher_add(hasher, bytes, (size_t)n);
    }
    fm_scratch_release(mark);
    if (hasher && !rc) {
        struct fm_digest digest = fm_hasher_done(hasher);
        rc = check_digest(p, from, &digest, err);
    }
    fm_hasher_free(hasher);
    return rc;
}

/* Write values [first, first + n) of a tensor of codes, rounded once.  With the first of them,
 * codes and scales are compared with their checksums. */
static int read_decoded(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                        uint64_t first, uint64_t n, void *dst, struct fm_err *err)
{
    const struct fm_file *file = &p->from->bundle.file;
    const struct fm_stored *at = &t->from->at;
    uint64_t bits = (uint64_t)fm_stored_bits(at);
    size_t bytes = (size_t)(n * bits / 8), scales_n = (size_t)fm_tensor_count(at->scale);
    struct fm_mark mark = fm_scratch_mark();
    void *raw = fm_scratch(bytes), *scale = fm_scratch((size_t)at->scale->size);
    struct fm_scales scales;
    int rc = FM_OK;
    if (fm_file_read(file, at->tensor->offset + first * bits / 8, raw, bytes, err) ||
        fm_file_read(file, at->scale->offset, scale, (size_t)at->scale->size, err) ||
        (first == 0 && (check_whole(p, at->tensor, err) || check_whole(p, at->scale, err))) ||
        (first == 0 && at->factor && check_whole(p, at->factor, err)))
        rc = err->code;
    float factor = 1;
    if (!rc && fm_stored_factor(&factor, at, err))
        rc = fm_within(err, "%s", file->path);
    if (!rc && fm_stored_widen(&scales, fm_scratch(scales_n * sizeof(float)), at, scale, 0,
                               scales_n, factor, err))
        rc = fm_within(err, "%s", file->path);
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
    return rc ? rc : fm_fill_check(p, t, &digest, err);
}

struct fm_widened fm_fill_widened(const struct fm_planned_tensor *t)
{
    size_t rows = t->wider ? (size_t)t->t.shape[0] : 1, wide = (size_t)t->t.size / rows;
    uint64_t all = t->t.shape[t->wider];
    size_t row = wide / (size_t)all * (size_t)(all - t->by), one = t->again ? t->again : 1;
    assert((wide - row) % one == 0 && row >= t->again);
    return (struct fm_widened){.own = {rows, 1, 1, row},
                               .padding = {rows, 1, (wide - row) / one, one},
                               .narrow = {row, 0, 0},
                               .wide = {wide, 0, one},
                               .again = t->again,
                               .blank = t->blank};
}

void fm_fill_widen(char *to, const char *own, const struct fm_widened *w)
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
    const struct fm_widened w = fm_fill_widened(t);
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_scratch(fm_box_bytes(&w.own));
    int rc = read_own(p, t, bytes, fm_box_bytes(&w.own), err);
    if (!rc)
        fm_fill_widen(dst, bytes, &w);
    fm_scratch_release(mark);
    return rc;
}

static int fill_numbers(const struct fm_planned_tensor *t, uint64_t from, uint64_t size, char *dst)
{
    char value[sizeof t->number];
    const float number = (float)t->number[0];
    if (t->t.dtype == FM_I64)
        memcpy(value, t->number, sizeof value);
    else
        fm_dtype_from_f32(value, &number, t->t.dtype, 1);
    memcpy(dst, value + from, (size_t)size);
    return FM_OK;
}

/* ---- rounded to another format ---- */

/* Read the values of a block's part of the expert, whose rows are interleaved as in the bundle. */
static int read_rows(struct fm_quantise_matrix *all, const struct fm_exportplan *p,
                     const struct fm_planned_block *b, struct fm_err *err)
{
    const struct fm_planned_block values = {.m = b->m, .e = b->e, .part = b->part, .plane = -1};
    size_t k = fm_exportplan_stored(p, &values);
    assert(fm_exportplan_kept(p, &values) == k);
    const char *part = NULL;
    int rc = k ? find_channels(&part, p, &values, 0, k, NULL, err) : FM_OK;
    *all = fm_forms_rows(&p->from->config, source_of(p, b), part, p->from->dtype, k);
    return rc;
}

/* Write a plane of a cut, or the factor, which gate and up have in common. */
static int round_cut(char *dst, const struct fm_exportplan *p, const struct fm_planned_block *b,
                     const struct fm_quantise_matrix *all, struct fm_err *err)
{
    const struct fm_quantiser *q = p->options.quantise;
    const struct fm_expert_cut cut = fm_expert_cut(p->from->config.expert, b->part);
    float factor;
    bool finite = fm_quantise_factor(&factor, q, &p->rounded.scheme, all);
    if (b->plane == FM_PLANES) {
        for (uint64_t at = 0; at < b->bytes; at += sizeof factor)
            memcpy(dst + at, &factor, sizeof factor);
    } else if (finite) {
        const struct fm_quantise_matrix w = fm_forms_matrix(&p->from->config, &cut, all);
        finite = fm_quantise(b->plane == 0 ? dst : NULL, b->plane == 1 ? dst : NULL, q,
                             &p->rounded.scheme, &w, factor);
    }
    if (finite)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "%s: layer %d, expert %d: a weight is NaN or Inf, which --weights %s cannot "
                   "round; use --weights bf16 or repair the checkpoint",
                   p->from->bundle.file.path, p->from->config.moe[b->m], b->e, q->name);
}

/* Round a block.  What has the form of a bundle of codes (lib/model/packed.h) is rounded cut by
 * cut, and the result moved there. */
static int fill_rounded(const struct fm_exportplan *p, const struct fm_planned_block *b, char *dst,
                        struct fm_err *err)
{
    static const enum fm_weight_part parts[] = {FM_PART_GATE, FM_PART_UP};
    bool rows = b->part == FM_PART_GATE_UP, moved = rows || b->part == FM_PART_DOWN_T;
    uint32_t stored = fm_exportplan_stored(p, b);
    struct fm_mark mark = fm_scratch_mark();
    struct fm_quantise_matrix all;
    int rc = read_rows(&all, p, b, err);
    if (!rc && !moved)
        rc = round_cut(dst, p, b, &all, err);
    for (int i = 0; i < (rows ? 2 : 1) && moved && !rc; i++) {
        struct fm_planned_block cut = *b;
        cut.part = rows ? parts[i] : FM_PART_DOWN;
        const struct fm_forms f = fm_exportplan_forms(p, &cut, stored, stored);
        char *own = fm_scratch(f.file_bytes);
        rc = round_cut(own, p, &cut, &all, err);
        if (!rc)
            fm_move(dst + f.part_first, &f.part, own, &f.file, &f.box, NULL);
    }
    fm_scratch_release(mark);
    return rc;
}

/* Write what belongs to one expert's matrices but to no channel: factors or scales. */
static int fill_apart(const struct fm_exportplan *p, const struct fm_planned_block *b, char *dst,
                      struct fm_err *err)
{
    float factor[2];
    if (b->plane < FM_PLANES)
        return read_apart(dst, p, b, source_of(p, b), -1, err);
    int rc = read_factors(factor, p, b, source_of(p, b), err);
    if (!rc)
        memcpy(dst, factor, (size_t)b->bytes);
    return rc;
}

/* Write bytes [from, from + size) of a block. */
static int fill_block(const struct fm_exportplan *p, const struct fm_planned_block *b,
                      uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    assert(!fm_fill_alone(p, b) || (from == 0 && size == b->bytes));
    if (fm_fill_alone(p, b))
        return p->codes ? fill_apart(p, b, dst, err) : fill_rounded(p, b, dst, err);
    uint64_t group = (uint64_t)packed_of(p, b)->group, unit = fm_exportplan_unit_bytes(p, b, group);
    assert(from % unit == 0 && size % unit == 0);
    return fill_moved(p, b, from / unit * group, size / unit * group, dst, err);
}

/* Fill the blocks, or parts of them, that are inside [from, from + size). */
static int fill_blocks(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t from, uint64_t size, char *dst, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = t->block; i < t->block + t->blocks && !rc; i++) {
        const struct fm_planned_block *b = &p->block[i];
        uint64_t end = b->at + b->bytes;
        uint64_t lo = from > b->at ? from : b->at, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fill_block(p, b, lo - b->at, hi - lo, dst + (lo - from), err);
    }
    return rc;
}

int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err)
{
    uint64_t element = (uint64_t)fm_dtype_bits(t->t.dtype) / 8;
    if (t->blocks > 0)
        return fill_blocks(p, t, from, size, dst, err);
    if (!t->from)
        return fill_numbers(t, from, size, dst);
    if (t->by > 0)
        return fill_widened(p, t, dst, err);
    if (t->decoded)
        return read_decoded(p, t, from / element, size / element, dst, err);
    return fm_file_read(&p->from->bundle.file, t->from->t.offset + from, dst, (size_t)size, err);
}

int fm_fill_check(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                  const struct fm_digest *digest, struct fm_err *err)
{
    return t->from ? check_digest(p, t->from, digest, err) : FM_OK;
}
