/*
 * Compares the bytes of an export's tensors with the golden segment checksums of its bundle.  A
 * task checks one block of the plan, which is one expert in one tensor.  Its bytes are moved back
 * to the bundle's form, gate and up rows together, in pieces that fit the cache, and digested there
 * segment by segment.  What is computed from several tensors of the bundle is computed again.
 *
 *     the export      gate: c0, c1, c2, c3, c4, blank         up: c0, c1, c2, c3, c4, blank
 *                                        |  read_channels: fm_move     |
 *                                        v                             v
 *     as the bundle   c0: gate, up; c1: gate, up | c2: gate, up; c3: gate, up | c4: gate, up; blank
 *     segments        0: its digest              | 1: its digest              | 2 has more than c4
 *
 * A segment in which the kept channels end has no digest of exactly these: check_inside reads the
 * whole segment from the bundle.
 */
#include "lib/verify/verify_weights.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/export/piece.h"
#include "lib/move/move.h"

/* A tensor while it, or one block of it, is checked. */
struct place {
    struct fm_verify_job *j;
    const struct fm_planned_tensor *t;
    const struct fm_planned_block *b; /* NULL: not from the bundle */
    const struct fm_packed_part *of;  /* the layer's tensor in the bundle */
    int part;                         /* the index of that tensor */
    struct fm_hasher *hasher;         /* of the bytes of a segment */
    bool reported[3]; /* a difference, a value that is not finite, and padding that is not blank
                         are each reported once */
};

/* How the bundle stores the block's layer. */
static const struct fm_packed *packed_of(const struct place *p)
{
    return fm_packed_at(&p->j->opened.packed, p->b->m);
}

/* Bytes of that number of channels in the bundle. */
static size_t bytes_of(const struct place *p, uint64_t channels)
{
    return (size_t)fm_packed_bytes(packed_of(p), p->of, channels);
}

/* Digests of the segments of the block's expert. */
static const struct fm_digest *digests(const struct place *p)
{
    return fm_segments_expert(&p->j->opened.seg, p->b->m, p->part, p->b->e);
}

static int layer_of(const struct place *p)
{
    return p->j->opened.config.moe[p->b->m];
}

static void say_differs(struct place *p, int s)
{
    const struct fm_segments *seg = &p->j->opened.seg;
    if (p->reported[0])
        return;
    p->reported[0] = true;
    if (!p->b)
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name, "differs from its checksum");
    else
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
                         "layer %d, expert %d: channels %d to %d differ from their checksum",
                         layer_of(p), p->b->e, seg->bound[s], seg->bound[s + 1] - 1);
}

static void say_not_finite(struct place *p)
{
    if (p->reported[1])
        return;
    p->reported[1] = true;
    if (!p->b)
        fm_verifier_find(p->j->v, p->t->file, FM_EFORMAT, p->t->t.name,
                         "has a value that is not finite");
    else
        fm_verifier_find(p->j->v, p->t->file, FM_EFORMAT, p->t->t.name,
                         "layer %d, expert %d: a value is not finite", layer_of(p), p->b->e);
}

/* ---- tensors outside the experts ---- */

static int check_copy(struct place *p, const struct fm_tensor *have, struct fm_err *err)
{
    unsigned char found = 0;
    bool extra = p->t->from->extra; /* its values are not checked */
    const struct fm_scan s = {.file = &p->j->shard[p->t->file].file,
                              .at = have->offset,
                              .size = have->size,
                              .dtype =
                                  !extra && fm_dtype_is_weight(have->dtype) ? (int)have->dtype : -1,
                              .digest = p->t->from->digest,
                              .spans = 1,
                              .found = &found};
    int rc = fm_verifier_scan(p->j->v, &s, err);
    if (found & FM_SCAN_NOT_FINITE)
        say_not_finite(p);
    if (found & FM_SCAN_DIFFERS)
        say_differs(p, 0);
    return rc;
}

/* Check a tensor wider than the bundle's: the digest of the bytes that the bundle has, which
 * determine the padding. */
static int check_widened(struct place *p, const struct fm_tensor *have, struct fm_err *err)
{
    const struct fm_widened w = fm_piece_widened(p->t);
    size_t own = fm_box_bytes(&w.own), values = own / ((size_t)fm_dtype_bits(have->dtype) / 8);
    size_t size = (size_t)have->size;
    char *bytes = fm_scratch(size), *packed = fm_scratch(own), *padded = fm_scratch(size);
    int rc = fm_file_read(&p->j->shard[p->t->file].file, have->offset, bytes, size, err);
    if (rc)
        return rc;
    fm_move(packed, &w.narrow, bytes, &w.wide, &w.own, NULL);
    struct fm_digest digest = fm_digest_of(packed, own);
    if (!fm_digest_equal(&digest, p->t->from->digest))
        say_differs(p, 0);
    if (fm_dtype_is_weight(have->dtype) && fm_dtype_nonfinite(packed, have->dtype, values) < values)
        say_not_finite(p);
    fm_piece_widen(padded, packed, &w);
    if (memcmp(bytes, padded, size) != 0)
        fm_verifier_find(
            p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
            w.again ? "scales after those of the shared expert do not repeat its last scale"
                    : "channels after those of the shared expert are not all zero");
    return FM_OK;
}

/* ---- experts, in the bundle's form ---- */

/*
 * The export's bytes of segment s have the digest `have`, and end at channel k, inside the segment,
 * so no checksum covers exactly these.  The whole segment in the bundle must match its checksum,
 * and must begin with the same bytes.
 */
static int check_inside(struct place *p, int s, uint32_t k, const struct fm_digest *have,
                        struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_segments *seg = &j->opened.seg;
    uint32_t first = (uint32_t)seg->bound[s];
    assert(first < k && k < (uint32_t)seg->bound[s + 1]);
    size_t size = bytes_of(p, (uint32_t)seg->bound[s + 1] - first);
    struct fm_mark mark = fm_scratch_mark();
    char *whole = fm_scratch(size);
    uint64_t at = fm_volumes_expert(&j->opened.volumes, p->b->m, p->part, p->b->e);
    int rc = fm_file_read(&j->opened.bundle.file, at + bytes_of(p, first), whole, size, err);
    struct fm_digest digest = fm_digest_of(whole, size),
                     kept = fm_digest_of(whole, bytes_of(p, k - first));
    if (!rc && !fm_digest_equal(&digest, &digests(p)[s]))
        rc = fm_fail(err, FM_EFORMAT,
                     "%s: layer %d, expert %d: its weights do not match its checksums",
                     j->v->options->against, layer_of(p), p->b->e);
    if (!rc && !fm_digest_equal(have, &kept))
        say_differs(p, s);
    fm_scratch_release(mark);
    return rc;
}

/* True if all bytes are `blank`: the first one is, and memcmp finds each byte equal to the next. */
static bool is_blank(const char *bytes, size_t n, int blank)
{
    return n == 0 || (bytes[0] == (char)blank && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* Check that the padding after the kept channels is blank. */
static void check_blank(struct place *p, const char *bytes, size_t n)
{
    if (p->reported[2] || is_blank(bytes, n, fm_planned_blank(&p->j->plan, p->b)))
        return;
    p->reported[2] = true;
    fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
                     "layer %d, expert %d: channels from %" PRIu32 " on are not all zero",
                     layer_of(p), p->b->e, fm_planned_kept(&p->j->plan, p->b));
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Digest channels [at, end) of the part, which are given in order; compare every segment that
 * ends with them. */
static int add_channels(struct place *p, const char *rows, uint32_t at, uint32_t end,
                        struct fm_err *err)
{
    const struct fm_segments *seg = &p->j->opened.seg;
    uint32_t k = fm_planned_kept(&p->j->plan, p->b);
    enum fm_dtype dtype = p->t->t.dtype;
    int rc = FM_OK, s = 0;
    assert(at <= end && end <= fm_planned_stored(&p->j->plan, p->b));
    for (uint32_t next; at < smaller(end, k) && !rc; at = next) {
        while ((uint32_t)seg->bound[s + 1] <= at)
            s++;
        uint32_t bound = (uint32_t)seg->bound[s + 1];
        next = smaller(smaller(bound, k), end);
        size_t size = bytes_of(p, next - at), values = size / ((size_t)fm_dtype_bits(dtype) / 8);
        if (at == (uint32_t)seg->bound[s])
            fm_hasher_reset(p->hasher);
        fm_hasher_add(p->hasher, rows, size);
        if (fm_dtype_is_weight(dtype) && fm_dtype_nonfinite(rows, dtype, values) < values)
            say_not_finite(p);
        struct fm_digest digest = fm_hasher_done(p->hasher);
        if (next == bound && !fm_digest_equal(&digest, &digests(p)[s]))
            say_differs(p, s);
        if (next == k && k < bound)
            rc = check_inside(p, s, k, &digest, err);
        rows += size;
    }
    check_blank(p, rows, bytes_of(p, end - at));
    return rc;
}

/* The block of up rows that belongs to a block of gate rows: the next of its expert and plane. */
static const struct fm_planned_block *up_of(const struct fm_verify_job *j,
                                            const struct fm_planned_block *gate)
{
    const struct fm_planned_block *up = gate + 1, *end = j->plan.block + j->plan.blocks;
    while (up < end && (up->part != FM_PART_UP || up->e != gate->e || up->plane != gate->plane))
        up++;
    assert(up < end);
    return up;
}

/* Read channels [first, first + n) of a block, and move them to their place in the part. */
static int read_channels(struct place *p, const struct fm_planned_block *b, uint32_t first,
                         uint32_t n, char *rows, struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_packed_forms f = fm_planned_forms(&j->plan, b, n, n);
    assert(fm_box_bytes(&f.box) == f.file_bytes); /* nothing is lost on the way back */
    struct fm_mark mark = fm_scratch_mark();
    char *bytes = fm_packed_same(&f) ? rows : fm_scratch(f.file_bytes);
    uint64_t at = j->have[b->tensor]->offset + b->at + fm_planned_unit_bytes(&j->plan, b, first);
    int rc =
        fm_file_read(&j->shard[j->plan.tensor[b->tensor].file].file, at, bytes, f.file_bytes, err);
    if (!rc && bytes != rows)
        fm_move(rows + f.part_first, &f.part, bytes, &f.file, &f.box, NULL);
    fm_scratch_release(mark);
    return rc;
}

/* Bytes of a part that are digested at a time, so that they stay in the cache. */
#define SOME ((size_t)256 << 10)

/* Move the block back to the bundle's form, with the block of up rows if it has gate rows, and
 * check it there.  A block of columns is moved as a whole. */
static int check_moved(struct place *p, struct fm_err *err)
{
    const struct fm_exportplan *plan = &p->j->plan;
    uint32_t stored = fm_planned_stored(plan, p->b), group = (uint32_t)packed_of(p)->group;
    uint32_t some = (uint32_t)(SOME / bytes_of(p, group) + 1) * group;
    some = fm_expert_cut(plan->from->config.expert, p->b->part).columns ? stored : some;
    p->hasher = fm_hasher_new();
    int rc = p->hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    for (uint32_t at = 0, n; at < stored && !rc && fm_taskgroup_going(&p->j->v->tasks); at += n) {
        n = smaller(some, stored - at);
        struct fm_mark mark = fm_scratch_mark();
        char *rows = fm_scratch(bytes_of(p, n));
        rc = read_channels(p, p->b, at, n, rows, err);
        if (!rc && p->b->part == FM_PART_GATE)
            rc = read_channels(p, up_of(p->j, p->b), at, n, rows, err);
        if (!rc)
            rc = add_channels(p, rows, at, at + n, err);
        fm_scratch_release(mark);
    }
    fm_hasher_free(p->hasher);
    return rc;
}

/* ---- what is computed again ---- */

/* What is wrong with a tensor, or a block of it, that differs from what the plan writes. */
static const char *what_differs(const struct place *p)
{
    if (p->b)
        return p->b->plane < 0 ? "differs from the decoded values of the bundle's codes"
               : p->j->options.quantise
                   ? "differs from the bundle's weights, rounded to this format"
                   : "differs from the value computed with the bundle's scales";
    return p->t->kind == FM_PLANNED_NUMBERS ? "differs from the expected value"
           : p->t->decoded ? "differs from the value computed with the bundle's codes and scales"
                           : "differs from the bundle's channels in ranked order, at this width";
}

/* Compare a piece with that which the plan makes. */
static int check_piece(struct place *p, struct fm_channels *c, const struct fm_piece *x,
                       struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const void *want;
    size_t size = (size_t)x->size;
    int rc = fm_piece_read(c, &j->plan, x, err);
    struct fm_mark mark = fm_scratch_mark();
    char *have = fm_scratch(size);
    if (!rc)
        rc = fm_file_read(&j->shard[p->t->file].file,
                          j->have[p->t - j->plan.tensor]->offset + x->from, have, size, err);
    if (!rc)
        rc = fm_piece_bytes(&want, c, &j->plan, x, err);
    if (!rc && memcmp(have, want, size) != 0 && !p->reported[0]) {
        p->reported[0] = true;
        fm_verifier_find(j->v, p->t->file, FM_EDIFF, p->t->t.name, "%s", what_differs(p));
    }
    fm_scratch_release(mark);
    return rc;
}

/* Check a tensor outside the experts, piece by piece. */
static int check_filled(struct place *p, struct fm_err *err)
{
    struct fm_piece x = {0};
    int rc = FM_OK;
    for (uint64_t at = 0; at < p->t->t.size && !rc; at += x.size) {
        x = fm_piece_next(&p->j->plan, p->t, at, FM_PIECE_BYTES);
        rc = check_piece(p, NULL, &x, err);
    }
    return rc;
}

/* ---- tasks ---- */

static int check_block(struct place *p, uint64_t *bytes, struct fm_err *err)
{
    const struct fm_expert_cut cut = fm_expert_cut(p->j->opened.config.expert, p->b->part);
    const struct fm_packed *packed = packed_of(p);
    p->of = fm_packed_find(packed, cut.of, p->b->plane);
    if (p->b->bytes == 0)
        return FM_OK;
    assert(p->of); /* fm_piece_moved */
    p->part = (int)(p->of - packed->part);
    *bytes = p->b->bytes * (p->b->part == FM_PART_GATE ? 2 : 1);
    return check_moved(p, err);
}

static int check_tensor(struct place *p, uint64_t *bytes, struct fm_err *err)
{
    const struct fm_tensor *have = p->j->have[p->t - p->j->plan.tensor];
    *bytes = have->size;
    switch (p->t->kind) {
    case FM_PLANNED_COPY:
        return check_copy(p, have, err);
    case FM_PLANNED_WIDENED:
        return p->t->decoded ? check_filled(p, err) : check_widened(p, have, err);
    case FM_PLANNED_NUMBERS:
    case FM_PLANNED_DECODED:
    case FM_PLANNED_NARROWED:
        return check_filled(p, err);
    case FM_PLANNED_EXPERTS: /* by blocks */
        break;
    }
    return FM_OK;
}

static void check_unit(void *arg, int i)
{
    struct fm_verify_job *j = arg;
    const struct fm_verify_unit *u = &j->unit[i];
    struct fm_channels c = {0};
    struct fm_err err = {0};
    struct fm_mark mark = fm_scratch_mark();
    uint64_t bytes = 0;
    assert(!u->piece != !u->tensor && (!u->block || u->tensor));
    int rc = FM_OK, items = u->piece ? u->piece->group : 1;
    if (!fm_taskgroup_going(&j->v->tasks))
        return;
    for (int k = 0; k < items && !rc; k++) {
        const struct fm_piece *x = u->piece ? u->piece + k : NULL;
        struct place p = {.j = j, .t = x ? x->tensor : u->tensor, .b = x ? x->block : u->block};
        uint64_t size = x ? x->size : 0;
        rc = x     ? check_piece(&p, &c, x, &err)
             : p.b ? check_block(&p, &size, &err)
                   : check_tensor(&p, &size, &err);
        bytes += size;
    }
    fm_scratch_release(mark);
    if (rc)
        fm_taskgroup_fail(&j->v->tasks, &err);
    fm_verifier_count(j->v, (uint64_t)items, bytes);
    fm_taskgroup_add(&j->v->tasks, bytes);
}

/* Up rows are checked with their gate rows if both exist. */
static bool is_unit(const struct fm_verify_job *j, const struct fm_planned_block *b)
{
    return b->part != FM_PART_UP && (b->part != FM_PART_GATE || j->have[up_of(j, b)->tensor]);
}

/* What is computed again is checked in groups of blocks that are made from the same channels. */
static int plan_units(struct fm_verify_job *j, struct fm_err *err)
{
    const struct fm_exportplan *p = &j->plan;
    size_t n = 0;
    j->unit = fm_alloc(p->tensors + p->blocks, sizeof *j->unit, "the list of checks", err);
    j->piece = fm_alloc(p->blocks + 1, sizeof *j->piece, "the list of checks", err);
    if (!j->unit || !j->piece)
        return err->code;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        if (j->have[i] && t->kind != FM_PLANNED_EXPERTS)
            j->unit[j->units++] = (struct fm_verify_unit){.tensor = t};
        for (size_t k = t->block; j->have[i] && k < t->block + t->blocks; k++) {
            const struct fm_planned_block *b = &p->block[k];
            if (!fm_piece_moved(p, b) && b->bytes > 0)
                j->piece[n++] = fm_piece_next(p, t, b->at, UINT64_MAX);
            else if (!fm_piece_moved(p, b) || is_unit(j, b))
                j->unit[j->units++] = (struct fm_verify_unit){.tensor = t, .block = b};
        }
    }
    assert(n <= p->blocks && (size_t)j->units + n <= p->tensors + p->blocks); /* the lists' sizes */
    fm_piece_group(j->piece, n);
    for (size_t i = 0; i < n; i++)
        if (j->piece[i].group)
            j->unit[j->units++] = (struct fm_verify_unit){.piece = &j->piece[i]};
    return FM_OK;
}

/* If a width is not a boundary of segments, open the bundle's weights to compare with them. */
static int need_weights(struct fm_verify_job *j, struct fm_err *err)
{
    const struct fm_config *c = &j->opened.config;
    const uint32_t *kept = j->plan.widths.kept;
    for (int i = 0; i < c->M * c->E && !j->opened.volumes.at; i++)
        if (fm_segments_at(&j->opened.seg, kept[i]) < 0 &&
            fm_volumes_open(&j->opened.volumes, &j->opened.bundle, c, err))
            return fm_within(err,
                             "width %" PRIu32 " of layer %d, expert %d ends inside a "
                             "checksum's segment, so the complete bundle is needed to check it",
                             kept[i], c->moe[i / c->E], i % c->E);
    return FM_OK;
}

int fm_verify_weights(struct fm_verify_job *j, struct fm_err *err)
{
    if (need_weights(j, err) || plan_units(j, err))
        return err->code;
    fm_taskgroup_init(&j->v->tasks, j->v->run, "verify", fm_planned_weight_bytes(&j->plan));
    fm_pool_for(j->units, check_unit, j);
    return fm_taskgroup_end(&j->v->tasks, err);
}
