/*
 * Compares the bytes of an export's tensors with the golden segment checksums of its bundle.  A
 * task checks one block of the plan, which is one expert in one tensor.  A block that is a prefix
 * of the expert's bytes in the bundle is hashed segment by segment.  A block in any other form is
 * first moved back to the bundle's form in memory, gate and up rows together.
 */
#include "lib/verify/verify_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/export/fill.h"
#include "lib/move/move.h"

/* Number of segments that end at or before a width. */
static size_t segments_below(const struct fm_segments *seg, uint32_t width)
{
    size_t s = 0;
    while (s < (size_t)seg->S && (uint32_t)seg->bound[s + 1] <= width)
        s++;
    return s;
}

/* A tensor while it, or one block of it, is checked. */
struct place {
    struct fm_verify_job *j;
    const struct fm_planned_tensor *t;
    const struct fm_planned_block *b; /* NULL: not from the bundle */
    const struct fm_packed_part *of;  /* the layer's tensor in the bundle */
    int part;                         /* the index of that tensor */
    bool reported[2]; /* a difference and a value that is not finite are each reported once */
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

/* Offset of the block in its file. */
static uint64_t begin_of(const struct fm_verify_job *j, const struct fm_planned_block *b)
{
    return j->have[b->tensor]->offset + b->at;
}

static int layer_of(const struct place *p)
{
    return p->j->opened.config.moe[p->b->m];
}

static void say_differs(struct place *p, size_t s)
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

/* ---- in the bundle's form ---- */

/* Scan the spans of the tensor, or of one of its experts. */
static int scan(struct place *p, struct fm_scan *s, struct fm_err *err)
{
    s->file = &p->j->shard[p->t->file].file;
    bool extra = p->t->from && p->t->from->extra; /* a copy, whose values are not checked */
    s->dtype = !extra && fm_dtype_is_weight(p->t->t.dtype) ? (int)p->t->t.dtype : -1;
    s->found = fm_scratch(s->spans + 1);
    memset(s->found, 0, s->spans);
    int rc = fm_verifier_scan(p->j->v, s, err);
    for (size_t i = 0; i < s->spans; i++) {
        if (s->found[i] & FM_SCAN_NOT_FINITE)
            say_not_finite(p);
        if (s->found[i] & FM_SCAN_DIFFERS)
            say_differs(p, i);
    }
    return rc;
}

static int check_copy(struct place *p, const struct fm_tensor *have, struct fm_err *err)
{
    struct fm_scan s = {
        .at = have->offset, .size = have->size, .digest = p->t->from->digest, .spans = 1};
    return scan(p, &s, err);
}

/*
 * Check `rows`, channels [bound of segment s, k) of an expert, where k is inside the segment, so no
 * checksum covers exactly these bytes.  The whole segment in the bundle must match its checksum,
 * and must begin with these bytes.
 */
static int check_inside(struct place *p, size_t s, uint32_t k, const char *rows, struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_segments *seg = &j->opened.seg;
    uint32_t first = (uint32_t)seg->bound[s];
    size_t size = bytes_of(p, (uint32_t)seg->bound[s + 1] - first), kept = bytes_of(p, k - first);
    struct fm_mark mark = fm_scratch_mark();
    char *whole = fm_scratch(size);
    uint64_t at = fm_volumes_expert(&j->weights, p->b->m, p->part, p->b->e);
    int rc = fm_file_read(&j->opened.bundle.file, at + bytes_of(p, first), whole, size, err);
    struct fm_digest digest = fm_digest_of(whole, size);
    if (!rc && !fm_digest_equal(&digest, &digests(p)[s]))
        rc = fm_fail(err, FM_EFORMAT,
                     "%s: layer %d, expert %d: its weights do not match its checksums",
                     j->v->options->against, layer_of(p), p->b->e);
    if (!rc && memcmp(whole, rows, kept) != 0)
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
    if (!is_blank(bytes, n, fm_exportplan_blank(&p->j->plan, p->b)))
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
                         "layer %d, expert %d: channels from %" PRIu32 " on are not all zero",
                         layer_of(p), p->b->e, fm_exportplan_kept(&p->j->plan, p->b));
}

/* Check a prefix of an expert in the bundle's order, segment by segment. */
static int check_prefix(struct place *p, struct fm_err *err)
{
    const struct fm_segments *seg = &p->j->opened.seg;
    uint32_t k = fm_exportplan_kept(&p->j->plan, p->b);
    size_t whole = segments_below(seg, k), checked = bytes_of(p, (uint32_t)seg->bound[whole]);
    size_t rest = bytes_of(p, k) - checked;
    struct fm_scan s = {.at = begin_of(p->j, p->b),
                        .size = checked,
                        .digest = digests(p),
                        .spans = whole,
                        .bound = seg->bound,
                        .bounds = (size_t)seg->S,
                        .group = packed_of(p)->group,
                        .unit_bytes = fm_packed_group_bytes(p->of)};
    int rc = scan(p, &s, err);
    size_t blank = bytes_of(p, fm_exportplan_stored(&p->j->plan, p->b) - k);
    if (rc || rest + blank == 0)
        return rc;
    char *rows = fm_scratch(rest + blank);
    rc = fm_file_read(s.file, s.at + checked, rows, rest + blank, err);
    if (!rc)
        check_blank(p, rows + rest, blank);
    return rc || rest == 0 ? rc : check_inside(p, whole, k, rows, err);
}

/* ---- in another form ---- */

/* Check an expert rebuilt in memory: the digests of the kept segments, and the blank bytes after
 * them. */
static int check_rebuilt(struct place *p, const char *rows, struct fm_err *err)
{
    const struct fm_segments *seg = &p->j->opened.seg;
    uint32_t k = fm_exportplan_kept(&p->j->plan, p->b);
    uint32_t stored = fm_exportplan_stored(&p->j->plan, p->b);
    size_t n = segments_below(seg, k), kept = bytes_of(p, k);
    size_t values = kept / ((size_t)fm_dtype_bits(p->t->t.dtype) / 8);
    struct fm_digest *digest = fm_alloc((size_t)seg->S, sizeof *digest, "digests", err);
    if (!digest)
        return err->code;
    fm_segments_digest(digest, seg, p->b->m, (int)n, rows, fm_packed_group_bytes(p->of));
    for (size_t s = 0; s < n; s++)
        if (!fm_digest_equal(&digest[s], &digests(p)[s]))
            say_differs(p, s);
    free(digest);
    if (fm_dtype_is_weight(p->t->t.dtype) &&
        fm_dtype_nonfinite(rows, p->t->t.dtype, values) < values)
        say_not_finite(p);
    check_blank(p, rows + kept, bytes_of(p, stored - k));
    if ((uint32_t)seg->bound[n] == k)
        return FM_OK;
    return check_inside(p, n, k, rows + bytes_of(p, (uint32_t)seg->bound[n]), err);
}

/* Read the bytes of a block from its file; *bytes is scratch. */
static int read_block(const struct fm_verify_job *j, const struct fm_planned_block *b, char **bytes,
                      struct fm_err *err)
{
    size_t size = (size_t)b->bytes;
    *bytes = fm_scratch(size);
    return fm_file_read(&j->shard[j->plan.tensor[b->tensor].file].file, begin_of(j, b), *bytes,
                        size, err);
}

/* The block of up rows that belongs to a block of gate rows: the next one of its plane. */
static const struct fm_planned_block *up_of(const struct fm_planned_block *gate)
{
    return gate + (gate[1].plane == gate->plane ? 1 : FM_PLANES);
}

/* Move the block back to the bundle's form, with the block of up rows if it has gate rows, and
 * check it there. */
static int check_moved(struct place *p, struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_planned_block *block[] = {p->b, up_of(p->b)};
    uint32_t stored = fm_exportplan_stored(&j->plan, p->b);
    char *rows = fm_scratch(bytes_of(p, stored));
    int rc = FM_OK;
    for (int i = 0; i < (p->b->part == FM_PART_GATE ? 2 : 1) && !rc; i++) {
        struct fm_forms f = fm_exportplan_forms(&j->plan, block[i], stored, stored);
        struct fm_mark mark = fm_scratch_mark();
        char *bytes;
        rc = read_block(j, block[i], &bytes, err);
        if (!rc)
            fm_move(rows + f.part_first, &f.part, bytes, &f.file, &f.box, NULL);
        fm_scratch_release(mark);
    }
    return rc ? rc : check_rebuilt(p, rows, err);
}

/* Check a tensor wider than the bundle's: the digest of the bytes that the bundle has, which
 * determine the padding. */
static int check_widened(struct place *p, const struct fm_tensor *have, struct fm_err *err)
{
    const struct fm_widened w = fm_fill_widened(p->t);
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
    fm_fill_widen(padded, packed, &w);
    if (memcmp(bytes, padded, size) != 0)
        fm_verifier_find(
            p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
            p->t->again ? "scales after those of the shared expert do not repeat its last scale"
                        : "channels after those of the shared expert are not all zero");
    return FM_OK;
}

/* Compare bytes [from, to) of the tensor with those that the plan writes. */
static int check_filled(struct place *p, uint64_t from, uint64_t to, const char *what,
                        struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_file *file = &j->shard[p->t->file].file;
    int rc = FM_OK;
    for (uint64_t at = from, next; at < to && !rc; at = next) {
        next = fm_fill_cut(&j->plan, p->t, at, FM_FILL_PIECE);
        size_t size = (size_t)((next < to ? next : to) - at);
        struct fm_mark mark = fm_scratch_mark();
        char *have = fm_scratch(size), *want = fm_scratch(size);
        rc = fm_file_read(file, j->have[p->t - j->plan.tensor]->offset + at, have, size, err);
        if (!rc)
            rc = fm_fill_bytes(&j->plan, p->t, at, size, want, err);
        if (!rc && memcmp(have, want, size) != 0 && !p->reported[0]) {
            p->reported[0] = true;
            fm_verifier_find(j->v, p->t->file, FM_EDIFF, p->t->t.name, "%s", what);
        }
        fm_scratch_release(mark);
    }
    return rc;
}

/* ---- tasks ---- */

static int check_block(struct place *p, uint64_t *bytes, struct fm_err *err)
{
    const struct fm_expert_cut cut = fm_expert_cut(p->j->opened.config.expert, p->b->part);
    const struct fm_packed *packed = packed_of(p);
    const struct fm_packed_part *part = fm_packed_find(packed, cut.of, p->b->plane);
    *bytes = p->b->bytes;
    bool rounded = p->b->plane >= 0 && p->j->options.quantise;
    if (rounded || !part)
        return check_filled(p, p->b->at, p->b->at + *bytes,
                            rounded ? "differs from the bundle's weights, rounded to this format"
                            : p->b->plane >= 0
                                ? "differs from the value computed with the bundle's scales"
                                : "differs from the decoded values of the bundle's codes",
                            err);
    p->of = part;
    p->part = (int)(part - packed->part);
    uint32_t stored = fm_exportplan_stored(&p->j->plan, p->b);
    const struct fm_forms f = fm_exportplan_forms(&p->j->plan, p->b, stored, stored);
    if (fm_forms_same(&f))
        return check_prefix(p, err);
    *bytes *= p->b->part == FM_PART_GATE ? 2 : 1;
    return check_moved(p, err);
}

static void check_unit(void *arg, int i)
{
    struct fm_verify_job *j = arg;
    const struct fm_verify_unit *u = &j->unit[i];
    struct place p = {.j = j, .t = &j->plan.tensor[u->tensor], .b = u->block};
    const struct fm_tensor *have = j->have[u->tensor];
    struct fm_err err = {0};
    struct fm_mark mark = fm_scratch_mark();
    int rc = FM_OK;
    uint64_t bytes = have->size;
    if (!fm_taskgroup_going(&j->v->tasks))
        return;
    if (p.b)
        rc = check_block(&p, &bytes, &err);
    else if (!p.t->from)
        rc = check_filled(&p, 0, have->size, "differs from the expected value", &err);
    else if (p.t->decoded)
        rc = check_filled(&p, 0, have->size,
                          "differs from the value computed with the bundle's codes and scales",
                          &err);
    else
        rc = p.t->by ? check_widened(&p, have, &err) : check_copy(&p, have, &err);
    fm_scratch_release(mark);
    if (rc)
        fm_taskgroup_fail(&j->v->tasks, &err);
    fm_verifier_count(j->v, 1, bytes);
    fm_taskgroup_add(&j->v->tasks, bytes);
}

/* Up rows are checked with their gate rows if both exist and are the bundle's bytes. */
static bool is_unit(const struct fm_verify_job *j, const struct fm_planned_block *b)
{
    bool values = fm_packed_at(&j->opened.packed, b->m)->scheme.storage && b->plane < 0;
    if (values || fm_fill_alone(&j->plan, b))
        return true;
    return b->part != FM_PART_UP && (b->part != FM_PART_GATE || j->have[up_of(b)->tensor]);
}

static int plan_units(struct fm_verify_job *j, struct fm_err *err)
{
    const struct fm_exportplan *p = &j->plan;
    j->unit = fm_alloc(p->tensors + p->blocks, sizeof *j->unit, "the list of checks", err);
    if (!j->unit)
        return err->code;
    for (size_t i = 0; i < p->tensors; i++) {
        const struct fm_planned_tensor *t = &p->tensor[i];
        if (j->have[i] && t->blocks == 0)
            j->unit[j->units++] = (struct fm_verify_unit){i, NULL};
        for (size_t b = t->block; j->have[i] && b < t->block + t->blocks; b++)
            if (is_unit(j, &p->block[b]))
                j->unit[j->units++] = (struct fm_verify_unit){i, &p->block[b]};
    }
    return FM_OK;
}

/* If a width is not a boundary of segments, open the bundle's weights to compare with them. */
static int need_weights(struct fm_verify_job *j, struct fm_err *err)
{
    const struct fm_config *c = &j->opened.config;
    const uint32_t *kept = j->plan.widths.kept;
    for (int i = 0; i < c->M * c->E; i++) {
        if (fm_segments_at(&j->opened.seg, kept[i]) >= 0)
            continue;
        int rc = fm_volumes_open(&j->weights, &j->opened.bundle, c, err);
        return !rc ? rc
                   : fm_within(err,
                               "width %" PRIu32 " of layer %d, expert %d ends inside a "
                               "checksum's segment, so the complete bundle is needed to check it",
                               kept[i], c->moe[i / c->E], i % c->E);
    }
    return FM_OK;
}

int fm_verify_weights(struct fm_verify_job *j, struct fm_err *err)
{
    int rc = need_weights(j, err);
    if (!rc)
        rc = plan_units(j, err);
    if (!rc) {
        fm_taskgroup_init(&j->v->tasks, j->v->run, "verify", fm_exportplan_weight_bytes(&j->plan));
        fm_pool_for(j->units, check_unit, j);
        rc = fm_taskgroup_end(&j->v->tasks, err);
    }
    fm_volumes_close(&j->weights);
    return rc;
}
