/*
 * Writes a planned export.  A file is cut into pieces that threads fill from the bundle in
 * parallel.  In a directory each piece is written at its offset, in the order of the bundle, so
 * that the bundle is read sequentially; in a stream they are written in the order of the file, in
 * rounds of one group of pieces per thread.  The digests of a stream's files are computed as the
 * stream is written.  A directory's files are not written in order, so each is read once after it
 * has been written, mostly from the page cache.  fm-export.json, which has the digests of all other
 * files, is written last.
 *
 * In the bundle an expert without codes or biases is two ranges of ranked channels: interleaved
 * gate and up rows, and the transposed down matrix.  A prefix of either range is copied as it is;
 * separate gate and up rows are every second row of the first range, and the checkpoint's down is
 * the second range transposed back.  If the checksums were opened, segments are hashed while they
 * are in the cache, so every byte of an expert is checked before it enters an export.
 */
#include "lib/export/exportwriter.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/file/file.h"
#include "lib/base/dtype.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/export/card.h"
#include "lib/export/ownexport.h"
#include "lib/export/texts.h"
#include "lib/model/checkpoint.h"
#include "lib/model/reading.h"
#include "lib/move/move.h"
#include "lib/run/taskgroup.h"

/* ---- the bytes of a tensor ---- */

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
    if (t->by || t->picked)
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

/* Bytes of the largest piece between two cuts. */
static uint64_t piece_max(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
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
    assert(first % (uint64_t)packed->group == 0 && count % (uint64_t)packed->group == 0);
    assert(end <= (uint64_t)p->from->config.I);
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

/* Some tensors are made from the same bytes of the bundle, which should be read only once: gate and
 * up rows, which are interleaved there; and the values from which codes, scales and their factor
 * are computed.  A task that fills several such tensors of one expert reads a part that they share
 * with the first of them, and keeps it. */
struct held {
    size_t room; /* bytes for the widest of the experts; 0: nothing of this part is held */
    char *bytes; /* if `full`: all channels of expert e of layer m that are kept */
    bool full;
    int m, e;
};

/* The plan that is followed, and what is held of the expert's parts; NULL: bytes are read when they
 * are needed. */
struct filling {
    const struct fm_exportplan *p;
    struct held *held; /* (FM_PACKED_PARTS_MAX) */
};

/* Find channels [first, first + count) of the part-th tensor of the block's layer, in the bundle's
 * form: in the held bytes, into which all kept channels of the expert are read on its first use;
 * else they are read into `room`, or if that is NULL into scratch. */
static int find_part(const char **bytes, const struct filling *f, const struct fm_planned_block *b,
                     int part, uint64_t first, uint64_t count, char *room, struct fm_err *err)
{
    const struct fm_packed *packed = packed_of(f->p, b);
    const struct fm_packed_part *of = &packed->part[part];
    struct held *h = f->held ? &f->held[part] : NULL;
    uint64_t kept = fm_exportplan_kept(f->p, b);
    int rc = FM_OK;
    if (!h || fm_packed_bytes(packed, of, kept) > h->room || first + count > kept) {
        room = room ? room : fm_scratch((size_t)fm_packed_bytes(packed, of, count));
        *bytes = room;
        return read_checked(f->p, b, part, first, count, room, err);
    }
    if (!h->full || h->m != b->m || h->e != b->e) {
        rc = read_checked(f->p, b, part, 0, kept, h->bytes, err);
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

/* True if the tensor shares bytes of the bundle with others. */
static bool shares(const struct fm_exportplan *p, const struct fm_planned_tensor *t)
{
    enum fm_weight_part of;
    return find_shared(p, t, &of);
}

/* Make room for what the tensor shares with others. */
static void hold_add(struct held h[FM_PACKED_PARTS_MAX], const struct fm_exportplan *p,
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
        if (packed->part[i].of == of && bytes > h[i].room)
            h[i].room = bytes;
    }
}

/* The expert, m E + e, of byte `at` of a tensor; -1: none. */
static int64_t expert_at(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
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

/* Approximate offset in the bundle from which byte `at` of a tensor is read, so that pieces can be
 * filled in the bundle's order; equal for tensors that share a part of an expert.  0: the bundle
 * does not contain the tensor. */
static uint64_t source_at(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                          uint64_t at)
{
    const struct fm_expert_form *form = p->from->config.expert;
    int64_t expert = expert_at(p, t, at), E = p->from->config.E;
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
           (shares(p, t) ? 0 : at - b->at);
}

/* Compare what fm_packed_read_apart read of a tensor with its digest. */
static int check_apart(const void *in, const char *name, const void *bytes, size_t size,
                       struct fm_err *err)
{
    const struct fm_exportplan *p = in;
    struct fm_digest digest = fm_digest_of(bytes, size);
    return check_digest(p, fm_opened_find(p->from, name), &digest, err);
}

static const struct fm_stored *find_stored(const void *in, const char *name)
{
    return fm_opened_stored(((const struct fm_exportplan *)in)->from, name);
}

/* The block's expert in the bundle. */
static struct fm_packed_expert expert_of(const struct fm_exportplan *p,
                                         const struct fm_planned_block *b)
{
    return (struct fm_packed_expert){.config = &p->from->config,
                                     .packed = packed_of(p, b),
                                     .naming = FM_NAMING_STOCK,
                                     .l = p->from->config.moe[b->m],
                                     .e = b->e,
                                     .find = find_stored,
                                     .check = check_apart,
                                     .in = p,
                                     .path = p->from->bundle.file.path};
}

/* Read the values of channels that the bundle stores as codes. */
static int read_values(const struct filling *f, const struct fm_planned_block *b,
                       enum fm_weight_part of, uint64_t first, uint64_t count, void *dst,
                       struct fm_err *err)
{
    const struct fm_opened *o = f->p->from;
    const struct fm_packed_expert x = expert_of(f->p, b);
    const char *codes, *scales;
    float factor[2];
    int own = part_of(f->p, b->m, of, 1);
    struct fm_mark mark = fm_scratch_mark();
    int rc = find_part(&codes, f, b, part_of(f->p, b->m, of, 0), first, count, NULL, err);
    if (!rc && own >= 0)
        rc = find_part(&scales, f, b, own, first, count, NULL, err);
    if (!rc)
        rc = fm_packed_read_factors(factor, &x, of, err);
    if (!rc && own < 0)
        rc = fm_packed_read_scales(&scales, &x, of, err);
    if (!rc)
        fm_forms_values(dst, o->dtype, x.packed, &o->config, of, count, codes, scales, factor);
    fm_scratch_release(mark);
    return rc;
}

/* As find_part, for codes, scales or values, whichever the block has. */
static int find_channels(const char **bytes, const struct filling *f,
                         const struct fm_planned_block *b, uint64_t first, uint64_t count,
                         char *room, struct fm_err *err)
{
    const struct fm_opened *o = f->p->from;
    enum fm_weight_part of = source_of(f->p, b);
    const struct fm_expert_cut cut = fm_expert_cut(o->config.expert, of); /* all of the part */
    int part = part_of(f->p, b->m, of, b->plane);
    if (part >= 0)
        return find_part(bytes, f, b, part, first, count, room, err);
    if (!room)
        room = fm_scratch((size_t)count * (size_t)fm_expert_cut_channel(&cut, o->config.H) *
                          (size_t)fm_dtype_bits(o->dtype) / 8);
    *bytes = room;
    return read_values(f, b, of, first, count, room, err);
}

/* Write channels [first, first + n) of a block, from the values or the plane of the bundle; those
 * after the width are blank.  A block of columns is written as a whole. */
static int fill_moved(const struct filling *from, const struct fm_planned_block *b, uint64_t first,
                      uint64_t n, char *dst, struct fm_err *err)
{
    const struct fm_exportplan *p = from->p;
    uint64_t k = fm_exportplan_kept(p, b), end = first + n;
    uint64_t kept = k > first ? (end < k ? end : k) - first : 0;
    const struct fm_forms f = fm_exportplan_forms(p, b, kept, n);
    assert(f.file_bytes == fm_exportplan_unit_bytes(p, b, n));
    struct fm_mark mark = fm_scratch_mark();
    char *room = fm_forms_same(&f) ? dst : NULL;
    const char *part = dst;
    int rc = kept ? find_channels(&part, from, b, first, kept, room, err) : FM_OK;
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
    const struct fm_stored *at = &t->from->at;
    const struct fm_reading r = {.at = at, .e = -1};
    uint64_t bits = (uint64_t)fm_stored_bits(at);
    size_t bytes = (size_t)(n * bits / 8);
    const void *scale;
    struct fm_scales scales;
    float factor;
    struct fm_mark mark = fm_scratch_mark();
    void *raw = fm_scratch(bytes);
    int rc = FM_OK;
    if (first == 0 && (check_whole(p, at->tensor, err) || check_whole(p, at->scale, err) ||
                       (at->factor && check_whole(p, at->factor, err))))
        rc = err->code;
    else if (fm_reading_bytes(raw, &r, 0, first * bits / 8, bytes, err) ||
             fm_reading_plane(&scale, &r, 1, err) || fm_reading_factor(&factor, &r, false, err) ||
             fm_reading_widen(&scales, &r, scale, factor, err))
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
    return rc ? rc : check_digest(p, t->from, &digest, err);
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

/*
 * Fill a whole tensor of an expert for multi-token prediction: the first of its channels in ranked
 * order, which are rows or columns.
 */
static int fill_picked(const struct fm_exportplan *p, const struct fm_planned_tensor *t, char *dst,
                       struct fm_err *err)
{
    const struct fm_tensor *own = &t->from->t;
    size_t element = (size_t)fm_dtype_bits(t->t.dtype) / 8, k = (size_t)t->t.shape[t->across];
    size_t I = (size_t)p->from->config.I, other = (size_t)(fm_tensor_count(own) / I);
    const int32_t *order = p->ahead + (size_t)t->expert * I;
    bool rows = t->across == 0;
    const struct fm_box all = {I, 1, rows ? 1 : other, rows ? other * element : element};
    const struct fm_box box = {k, 1, all.items, all.size};
    const struct fm_form wide = {box.size, 0, rows ? 0 : I * element};
    const struct fm_form narrow = {box.size, 0, rows ? 0 : k * element};
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_scratch((size_t)own->size), *ranked = fm_scratch((size_t)own->size);
    int rc = read_own(p, t, bytes, (size_t)own->size, err);
    if (!rc) {
        fm_move(ranked, &wide, bytes, &wide, &all, order);
        fm_move(dst, &narrow, ranked, &wide, &box, NULL);
    }
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
static int read_rows(struct fm_quantise_matrix *all, const struct filling *f,
                     const struct fm_planned_block *b, struct fm_err *err)
{
    const struct fm_exportplan *p = f->p;
    const struct fm_planned_block values = {.m = b->m, .e = b->e, .part = b->part, .plane = -1};
    size_t k = fm_exportplan_stored(p, &values);
    assert(fm_exportplan_kept(p, &values) == k);
    const char *part = NULL;
    int rc = k ? find_channels(&part, f, &values, 0, k, NULL, err) : FM_OK;
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
    assert(b->plane >= 0 && b->plane <= FM_PLANES);
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
static int fill_rounded(const struct filling *from, const struct fm_planned_block *b, char *dst,
                        struct fm_err *err)
{
    const struct fm_exportplan *p = from->p;
    bool moved = b->part == FM_PART_GATE_UP || b->part == FM_PART_DOWN_T;
    int rows = moved ? fm_expert_part_rows(p->from->config.expert, b->part) : 0;
    uint32_t stored = fm_exportplan_stored(p, b);
    struct fm_mark mark = fm_scratch_mark();
    struct fm_quantise_matrix all;
    int rc = read_rows(&all, from, b, err);
    if (!rc && !moved)
        rc = round_cut(dst, p, b, &all, err);
    for (int i = 0; i < rows && !rc; i++) {
        struct fm_planned_block cut = *b;
        cut.part = fm_packed_matrix(b->part, i);
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
    const struct fm_packed_expert x = expert_of(p, b);
    const char *bytes;
    float factor[2];
    int rc = b->plane < FM_PLANES ? fm_packed_read_scales(&bytes, &x, source_of(p, b), err)
                                  : fm_packed_read_factors(factor, &x, source_of(p, b), err);
    if (!rc)
        memcpy(dst, b->plane < FM_PLANES ? bytes : (const char *)factor, (size_t)b->bytes);
    return rc;
}

/* Write bytes [from, from + size) of a block. */
static int fill_block(const struct filling *f, const struct fm_planned_block *b, uint64_t from,
                      uint64_t size, char *dst, struct fm_err *err)
{
    const struct fm_exportplan *p = f->p;
    assert(!fm_fill_alone(p, b) || (from == 0 && size == b->bytes));
    if (fm_fill_alone(p, b))
        return p->codes ? fill_apart(p, b, dst, err) : fill_rounded(f, b, dst, err);
    uint64_t group = (uint64_t)packed_of(p, b)->group, unit = fm_exportplan_unit_bytes(p, b, group);
    assert(from % unit == 0 && size % unit == 0);
    return fill_moved(f, b, from / unit * group, size / unit * group, dst, err);
}

/* Fill the blocks, or parts of them, that are inside [from, from + size). */
static int fill_blocks(const struct filling *f, const struct fm_planned_tensor *t, uint64_t from,
                       uint64_t size, char *dst, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = t->block; i < t->block + t->blocks && !rc; i++) {
        const struct fm_planned_block *b = &f->p->block[i];
        uint64_t end = b->at + b->bytes;
        uint64_t lo = from > b->at ? from : b->at, hi = from + size < end ? from + size : end;
        if (lo < hi)
            rc = fill_block(f, b, lo - b->at, hi - lo, dst + (lo - from), err);
    }
    return rc;
}

static int fill_bytes(const struct filling *f, const struct fm_planned_tensor *t, uint64_t from,
                      uint64_t size, void *dst, struct fm_err *err)
{
    uint64_t element = (uint64_t)fm_dtype_bits(t->t.dtype) / 8;
    if (t->blocks > 0)
        return fill_blocks(f, t, from, size, dst, err);
    if (!t->from)
        return fill_numbers(t, from, size, dst);
    if (t->by > 0)
        return fill_widened(f->p, t, dst, err);
    if (t->picked)
        return fill_picked(f->p, t, dst, err);
    if (t->decoded)
        return read_decoded(f->p, t, from / element, size / element, dst, err);
    return fm_file_read(&f->p->from->bundle.file, t->from->t.offset + from, dst, (size_t)size, err);
}

int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err)
{
    return fill_bytes(&(struct filling){p, NULL}, t, from, size, dst, err);
}

/* ---- the writer ---- */

struct writer {
    const struct fm_exportplan *plan;
    const struct fm_run_options *run;
    uint64_t scratch; /* of a thread that writes into a directory */
    struct fm_taskgroup tasks;
    struct fm_outdir dir;
    struct fm_hasher *whole; /* of the file in the stream; NULL: a directory */
    struct fm_output out;    /* the stream */
    struct fm_filetable table;
};

/* A file while it is written. */
struct filework {
    struct writer *w;
    const struct fm_planned_file *planned;
    struct fm_output out; /* in a directory */
    struct piece *piece;
    char **bytes; /* in a stream: of each piece of a round */
};

/* The digest of a text in the table: of the card only the part between its marks, because its owner
 * may edit the rest. */
static struct fm_digest digest_of_text(const char *name, const char *text, size_t size)
{
    struct fm_digest digest = {0};
    struct fm_err none = {0};
    if (strcmp(name, FM_EXPORT_CARD) != 0)
        return fm_digest_of(text, size);
    int rc = fm_card_digest(&digest, text, size, &none);
    assert(!rc); /* fm_card_plan wrote the marks */
    return digest;
}

/* fm-export.json, the last file of the plan, with the table of files; malloced. */
static int last_text(const struct writer *w, char **text, size_t *size, struct fm_err *err)
{
    const struct fm_planned_file *f = &w->plan->file[w->plan->files - 1];
    assert(strcmp(f->name, FM_EXPORT_JSON) == 0);
    *text = fm_strdup(f->header, err);
    int rc = *text ? fm_filetable_write(&w->table, text, size, err) : err->code;
    assert(rc || *size == f->bytes);
    return rc;
}

/* ---- pieces of one file ---- */

/* Consecutive pieces of one expert form a group, which one task fills, because some are made
 * from the same bytes of the bundle. */
struct piece {
    const struct fm_planned_tensor *tensor;
    uint64_t from, size;
    uint64_t source; /* offset of its source in the bundle */
    int group;       /* number of pieces of the group from this one on; 0: not its first */
};

static int compare_sources(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->source != y->source)
        return x->source < y->source ? -1 : 1;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Mark the first piece of each group.  A piece joins the group of the expert in which the
 * previous piece ends, unless both are of the same tensor and it shares no bytes with others. */
static void group(const struct fm_exportplan *p, struct piece *piece, int n)
{
    int64_t expert = -1;
    for (int i = 0, first = 0; i < n; i++) {
        const struct piece *at = &piece[i];
        bool goes_on = expert >= 0 && expert_at(p, at->tensor, at->from) == expert &&
                       (at->tensor != at[-1].tensor || shares(p, at->tensor));
        first = goes_on ? first : i;
        piece[first].group++;
        expert = expert_at(p, at->tensor, at->from + at->size - 1);
    }
}

/* Hold the bytes that the pieces of a group share; the caller releases the scratch. */
static void hold(struct held held[FM_PACKED_PARTS_MAX], const struct fm_exportplan *p,
                 const struct piece *piece)
{
    memset(held, 0, FM_PACKED_PARTS_MAX * sizeof *held);
    for (int i = 0; i < piece->group; i++)
        hold_add(held, p, piece[i].tensor);
    for (int i = 0; i < FM_PACKED_PARTS_MAX; i++)
        held[i].bytes = held[i].room ? fm_scratch(held[i].room) : NULL;
}

/* Cut a file into *count pieces.  Those of a stream are in order of the file; those of a directory
 * are in order of the bundle, which is then read sequentially.  A copy is one piece, because it has
 * one digest. */
static int cut(struct piece **piece, int *count, const struct fm_exportplan *p,
               const struct fm_planned_file *f, bool stream, struct fm_err *err)
{
    size_t n = 0, room = 0;
    for (size_t i = f->tensor; i < f->tensor + f->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        for (uint64_t at = 0, next; at < t->t.size; at = next) {
            next = fm_planned_copy(t) ? t->t.size : fm_fill_cut(p, t, at, FM_FILL_PIECE);
            assert(next > at && next <= t->t.size); /* pieces fill the tensor, each byte once */
            if (FM_GROW(*piece, room, n + 1, "the pieces of a file", err))
                return err->code;
            (*piece)[n++] = (struct piece){t, at, next - at, source_at(p, t, at), 0};
        }
    }
    *count = (int)n;
    if (!stream && n > 0)
        qsort(*piece, n, sizeof **piece, compare_sources);
    group(p, *piece, *count);
    return FM_OK;
}

/* Upper bound of the additional memory for the source of a piece.  Decoded: its codes, the tensor's
 * scales, and a buffer for comparing both with their checksums.  Rounded: the values of a part of
 * the expert, twice if they are transposed, and the rows that share scales, as float32.  Other
 * blocks that are not a range of the bundle are made, one after another, from copies of at most
 * twice their size. */
static uint64_t filling_memory(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                               uint64_t piece)
{
    const struct fm_tensor *scale = t->decoded ? t->from->at.scale : NULL;
    uint64_t most = 0, H = (uint64_t)p->from->config.H;
    if (t->from && !fm_planned_copy(t))
        return (t->picked ? 2 * (uint64_t)t->from->t.size : piece) +
               (scale ? piece + scale->size + fm_tensor_count(scale) * sizeof(float) + FM_FILL_PIECE
                      : 0);
    for (size_t i = t->block; i < t->block + t->blocks; i++) {
        struct fm_planned_block b = p->block[i];
        uint64_t k = fm_exportplan_stored(p, &b), bytes = 0;
        bool alone = fm_fill_alone(p, &b);
        const struct fm_forms f = alone ? (struct fm_forms){0} : fm_exportplan_forms(p, &b, 0, k);
        if (alone && p->options.quantise) {
            b.plane = -1;
            b.part = fm_expert_cut(p->from->config.expert, b.part).of;
            bytes = piece +
                    fm_exportplan_unit_bytes(p, &b, k) * (b.part == FM_PART_DOWN_T ? 2 : 1) +
                    (k + H) * (uint64_t)p->rounded.scheme.block_rows * sizeof(float);
        } else if (!alone && !fm_forms_same(&f)) {
            bytes = 2 * (b.bytes < piece ? b.bytes : piece);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Memory for the plan, with two copies of its tensors that are sorted into files, and headers in
 * buffers that grow by doubling. */
static uint64_t plan_memory(const struct fm_exportplan *p)
{
    uint64_t bytes = p->tensor_room * sizeof *p->tensor + p->block_room * sizeof *p->block +
                     p->tensors * 2 * sizeof(struct fm_tensor);
    for (size_t i = 0; i < p->tensors; i++)
        bytes += strlen(p->tensor[i].t.name) + 2 * sizeof(void *);
    for (size_t i = 0; i < p->files; i++)
        bytes += 2 * p->file[i].header_bytes;
    return bytes;
}

/* Scratch of a thread for the largest group: what its pieces share, the source of its largest
 * piece, and that piece; in a stream all pieces. */
static uint64_t group_memory(const struct fm_exportplan *p, bool stream)
{
    struct held held[FM_PACKED_PARTS_MAX] = {0};
    uint64_t most = 0, all = 0, filling = 0;
    int64_t expert = -1;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        if (t->t.size == 0)
            continue;
        uint64_t piece = piece_max(p, t, FM_FILL_PIECE), shared = 0;
        int64_t first = expert_at(p, t, 0), last = expert_at(p, t, t->t.size - 1);
        if (first < 0 || first != expert) {
            memset(held, 0, sizeof held);
            all = filling = 0;
        }
        hold_add(held, p, t);
        for (int k = 0; k < FM_PACKED_PARTS_MAX; k++)
            shared += held[k].room;
        if (first >= 0 && first == last)
            all += t->t.size;
        else /* a group may have several pieces of the tensor: add them up */
            all += piece + shared;
        uint64_t beside = filling_memory(p, t, piece) + (stream ? 0 : piece);
        filling = beside > filling ? beside : filling;
        uint64_t need = filling + shared + (stream ? all : 0);
        most = need > most ? need : most;
        expert = last;
    }
    return most;
}

/* Memory for the plan and for a group of every thread. */
uint64_t fm_exportwriter_memory(const struct fm_exportplan *p, bool stream)
{
    return FM_PROCESS_BYTES + group_memory(p, stream) * (uint64_t)fm_pool_threads() +
           plan_memory(p);
}

/* ---- the bytes of a file ---- */

/* Write bytes of a file; those of a stream are given in order. */
static int put(struct filework *f, uint64_t at, const void *bytes, size_t size, struct fm_err *err)
{
    if (!f->w->whole)
        return fm_output_write_at(&f->out, at, bytes, size, err);
    fm_hasher_add(f->w->whole, bytes, size);
    return fm_output_write(&f->w->out, bytes, size, err);
}

static int put_piece(struct filework *f, const struct piece *p, const char *bytes,
                     struct fm_err *err)
{
    assert(p->from + p->size <= p->tensor->t.size);
    int rc = put(f, p->tensor->t.offset + p->from, bytes, (size_t)p->size, err);
    if (!rc)
        fm_taskgroup_add(&f->w->tasks, p->size);
    return rc;
}

/* Write a tensor that is copied, in order, and check its digest. */
static int put_copy(struct filework *f, const struct piece *p, struct fm_err *err)
{
    const struct fm_planned_tensor *t = p->tensor;
    struct fm_hasher *hasher = fm_hasher_new();
    int rc = hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    for (uint64_t at = 0, next; at < t->t.size && !rc && fm_taskgroup_going(&f->w->tasks);
         at = next) {
        next = fm_fill_cut(f->w->plan, t, at, FM_FILL_PIECE);
        struct fm_mark mark = fm_scratch_mark();
        const struct piece some = {.tensor = t, .from = at, .size = next - at};
        char *bytes = fm_scratch((size_t)some.size);
        rc = fm_fill_bytes(f->w->plan, t, at, some.size, bytes, err);
        fm_hasher_add(hasher, bytes, (size_t)some.size);
        if (!rc)
            rc = put_piece(f, &some, bytes, err);
        fm_scratch_release(mark);
    }
    if (!rc && fm_taskgroup_going(&f->w->tasks)) {
        struct fm_digest digest = fm_hasher_done(hasher);
        rc = check_digest(f->w->plan, t->from, &digest, err);
    }
    fm_hasher_free(hasher);
    return rc;
}

/* Fill a piece and write it; in a stream, keep it in `bytes`. */
static int fill_piece(struct filework *f, const struct piece *p, struct held *held, char *bytes,
                      struct fm_err *err)
{
    struct fm_mark mark = fm_scratch_mark();
    char *to = bytes ? bytes : fm_scratch((size_t)p->size);
    const struct filling from = {f->w->plan, held};
    int rc = fill_bytes(&from, p->tensor, p->from, p->size, to, err);
    if (!rc && !bytes)
        rc = put_piece(f, p, to, err);
    fm_scratch_release(mark);
    return rc;
}

/* Fill the pieces of a group, of which i is the first. */
static void fill_group(void *arg, int i)
{
    struct filework *f = arg;
    const struct piece *p = &f->piece[i];
    struct fm_err err = {0};
    struct held held[FM_PACKED_PARTS_MAX];
    int rc = FM_OK;
    if (!p->group || !fm_taskgroup_going(&f->w->tasks))
        return;
    if (!f->bytes)
        fm_scratch_reserve(f->w->scratch);
    struct fm_mark mark = fm_scratch_mark();
    hold(held, f->w->plan, p);
    for (int k = 0; k < p->group && !rc; k++)
        rc = fm_planned_copy(p->tensor)
                 ? put_copy(f, p, &err)
                 : fill_piece(f, &p[k], held, f->bytes ? f->bytes[i + k] : NULL, &err);
    fm_scratch_release(mark);
    if (rc)
        fm_taskgroup_fail(&f->w->tasks, &err);
}

/* Groups are filled in parallel, one per thread, and written in order. */
static int stream_pieces(struct filework *f, int pieces, struct fm_err *err)
{
    struct piece *piece = f->piece;
    int most = fm_pool_threads(), rc = FM_OK;
    for (int first = 0, n; first < pieces && !rc && fm_taskgroup_going(&f->w->tasks); first += n) {
        if (fm_planned_copy(piece[first].tensor)) {
            n = 1;
            rc = put_copy(f, &piece[first], err);
            continue;
        }
        struct fm_mark mark = fm_scratch_mark();
        n = 0;
        for (int groups = 0;
             groups < most && first + n < pieces && !fm_planned_copy(piece[first + n].tensor);
             groups++)
            n += piece[first + n].group;
        char **bytes = fm_scratch((size_t)n * sizeof *bytes);
        for (int i = 0; i < n; i++)
            bytes[i] = fm_scratch((size_t)piece[first + i].size);
        struct filework round = {.w = f->w, .piece = piece + first, .bytes = bytes};
        fm_pool_for(n, fill_group, &round);
        for (int i = 0; i < n && !rc && fm_taskgroup_going(&f->w->tasks); i++)
            rc = put_piece(f, &piece[first + i], bytes[i], err);
        fm_scratch_release(mark);
    }
    return rc;
}

/* ---- files ---- */

static struct fm_filetable_entry *entry_of(const struct filework *f)
{
    return fm_filetable_find(&f->w->table, f->planned->name);
}

static int begin_file(struct filework *f, struct fm_err *err)
{
    const struct fm_planned_file *planned = f->planned;
    char member[FM_ARCHIVE_HEADER_MAX];
    size_t size = 0;
    if (!f->w->whole) {
        int rc = fm_outdir_file(&f->w->dir, &f->out, planned->name, err);
        return rc ? rc : fm_output_reserve(&f->out, planned->bytes, err);
    }
    if (!fm_archive_name_ok(planned->name))
        return fm_fail(err, FM_ECONFIG, "file name '%s' cannot be written to a tar stream",
                       planned->name);
    fm_hasher_reset(f->w->whole);
    int rc = fm_archive_header(member, &size, planned->name, planned->bytes, err);
    return rc ? rc : fm_output_write(&f->w->out, member, size, err);
}

/* Write the bytes before the tensors; for a text, the whole file. */
static int put_head(struct filework *f, struct fm_err *err)
{
    const struct fm_exportplan *p = f->w->plan;
    size_t i = (size_t)(f->planned - p->file), size = (size_t)f->planned->header_bytes;
    const char *header = NULL;
    char *owned = NULL;
    bool last = i + 1 == p->files;
    int rc = last ? last_text(f->w, &owned, &size, err)
                  : fm_exportplan_header(p, i, &header, &owned, err);
    header = last ? owned : header;
    if (!rc)
        rc = put(f, 0, header, size, err);
    if (!rc && !f->planned->weights && !last)
        entry_of(f)->digest = digest_of_text(f->planned->name, header, size);
    free(owned);
    return rc;
}

/* The bytes of a weight file that has been written to a directory are still in the page cache,
 * most of them. */
static int end_file(struct filework *f, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    uint64_t size = f->planned->bytes;
    struct writer *w = f->w;
    if (w->whole) {
        if (f->planned->weights)
            entry_of(f)->digest = fm_hasher_done(w->whole);
        return fm_output_write(&w->out, zeros, (size_t)(fm_archive_padded(size) - size), err);
    }
    const struct fm_file written = {
        .fd = f->out.fd, .size = size, .path = (char *)f->planned->name};
    if (f->planned->weights &&
        fm_filetable_hash(&entry_of(f)->digest, &written, &w->tasks, false, err))
        return err->code;
    return fm_taskgroup_going(&w->tasks) ? fm_output_commit(&f->out, err) : FM_OK;
}

static void write_file(void *arg, int i)
{
    struct writer *w = arg;
    struct filework f = {.w = w, .planned = &w->plan->file[i]};
    struct fm_err err = {0};
    int pieces = 0, rc = FM_OK;
    if (!fm_taskgroup_going(&w->tasks))
        return;
    if (begin_file(&f, &err) || cut(&f.piece, &pieces, w->plan, f.planned, w->whole, &err) ||
        put_head(&f, &err))
        rc = err.code;
    if (!rc && w->whole)
        rc = stream_pieces(&f, pieces, &err);
    else if (!rc)
        fm_pool_for(pieces, fill_group, &f);
    if (!rc && fm_taskgroup_going(&w->tasks))
        rc = end_file(&f, &err);
    fm_output_abandon(&f.out);
    free(f.piece);
    if (rc)
        fm_taskgroup_fail(&w->tasks, &err);
}

/* The files of a directory are written at the same time.  In a stream, small files that describe
 * the rest come first, except for fm-export.json. */
static int write_files(struct writer *w, struct fm_err *err)
{
    int last = (int)w->plan->files - 1;
    fm_taskgroup_init(&w->tasks, w->run, "export", fm_exportplan_weight_bytes(w->plan));
    if (!w->whole)
        fm_pool_for(last, write_file, w);
    for (int weights = 0; w->whole && weights < 2; weights++)
        for (int i = 0; i < last; i++)
            if (w->plan->file[i].weights == (weights == 1))
                write_file(w, i);
    write_file(w, last);
    return fm_taskgroup_end(&w->tasks, err);
}

static int write_directory(struct writer *w, struct fm_err *err)
{
    const char *path = w->run->outputs.path;
    bool force = w->run->outputs.force;
    struct fm_ownexport old = {0};
    int rc = force ? fm_ownexport_open(&old, path, err) : FM_OK;
    if (!rc && !(rc = fm_outdir_open(&w->dir, path, force ? &old.listed : NULL, err))) {
        if (write_files(w, err) || fm_file_unchanged(&w->plan->from->bundle.file, err) ||
            fm_run_announce(w->run, err) || fm_outdir_commit(&w->dir, err))
            rc = err->code;
        fm_outdir_abandon(&w->dir);
    }
    fm_ownexport_close(&old);
    return rc;
}

static int write_stream(struct writer *w, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    w->whole = fm_hasher_new();
    int rc = w->whole ? fm_output_open(&w->out, "-", true, false, err)
                      : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    if (!rc && (write_files(w, err) || fm_output_write(&w->out, zeros, sizeof zeros, err) ||
                fm_output_commit(&w->out, err) || fm_run_announce(w->run, err)))
        rc = err->code;
    fm_output_abandon(&w->out);
    fm_hasher_free(w->whole);
    return rc;
}

int fm_exportwriter_write(const struct fm_exportplan *plan, const struct fm_run_options *run,
                          struct fm_err *err)
{
    struct writer w = {.plan = plan, .run = run, .scratch = group_memory(plan, false)};
    int rc = fm_texts_files(&w.table, plan, err);
    if (!rc)
        rc = strcmp(run->outputs.path, "-") == 0 ? write_stream(&w, err) : write_directory(&w, err);
    fm_filetable_release(&w.table);
    return rc;
}
