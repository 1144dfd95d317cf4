/* The bytes of an export's tensors against the golden segment checksums of its bundle. */
#include "lib/verify/verify_parts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/model/layout.h"

static uint32_t width_of(const struct fm_verify_job *j, int l, int e)
{
    return j->x.widths[(size_t)l * (size_t)j->x.config.E + (size_t)e];
}

/* Channels of an expert of its own tensors that files have room for. */
static int stored_of(const struct fm_verify_job *j, const struct fm_export_tensor *t)
{
    return (int)j->x.stored[(size_t)t->l * (size_t)j->x.config.E + (size_t)t->e];
}

/* Segments that end at or before a width. */
static size_t segments_below(const struct fm_verify_job *j, uint32_t width)
{
    size_t s = 0;
    while (s < (size_t)j->seg.S && (uint32_t)j->seg.bound[s + 1] <= width)
        s++;
    return s;
}

/* The tensor that holds the up rows beside these gate rows: one unit looks at both. */
static size_t up_of(const struct fm_verify_job *j, const struct fm_export_tensor *t)
{
    return j->up[(size_t)t->l * (size_t)j->x.config.E + (size_t)t->e];
}

/* Where a scan reports to. */
struct place {
    struct fm_verify_job *j;
    const struct fm_export_tensor *t;
    enum fm_weight_part part;
    bool told[2];
};

static uint64_t segment_bytes(const struct place *p, size_t s)
{
    const struct fm_segments *seg = &p->j->seg;
    return (uint64_t)(seg->bound[s + 1] - seg->bound[s]) *
           fm_volumes_channel_bytes(&p->j->x.volumes, p->part);
}

static void say_differs(struct place *p, size_t s)
{
    const struct fm_segments *seg = &p->j->seg;
    if (p->told[0])
        return;
    p->told[0] = true;
    if (p->t->fill == FM_FILL_COPY)
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name, "differs from its checksum");
    else
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
                         "layer %d, expert %d: channels %d to %d differ from their checksum",
                         p->j->x.config.moe[p->t->l], p->t->e, seg->bound[s],
                         seg->bound[s + 1] - 1);
}

static void say_not_finite(struct place *p)
{
    if (!p->told[1])
        fm_verifier_find(p->j->v, p->t->file, FM_EFORMAT, p->t->t.name,
                         "layer %d, expert %d: a value is not finite", p->j->x.config.moe[p->t->l],
                         p->t->e);
    p->told[1] = true;
}

/* Spans of the tensor, or of one expert of it. */
static int scan(struct place *p, struct fm_scan *s, struct fm_err *err)
{
    s->file = &p->j->shard[p->t->file].file;
    s->dtype = fm_dtype_is_weight(p->t->t.dtype) ? (int)p->t->t.dtype : -1;
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

static int check_copy(struct fm_verify_job *j, const struct fm_export_tensor *t, struct fm_err *err)
{
    struct place p = {.j = j, .t = t};
    struct fm_scan s = {
        .at = t->t.offset, .size = t->t.size, .digest = &j->seg.tensor[t->from].digest, .spans = 1};
    return scan(&p, &s, err);
}

/*
 * Channels [bound of segment s, k) of an expert, `rows`, where k lies inside the segment: its
 * checksum says nothing of them alone.  The bundle's own segment must have that checksum, and
 * these bytes must be its first.
 */
static int check_inside(struct place *p, size_t s, uint32_t k, const char *rows, struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    size_t channel = (size_t)fm_volumes_channel_bytes(&j->x.volumes, p->part);
    size_t size = (size_t)segment_bytes(p, s), kept = (k - (size_t)j->seg.bound[s]) * channel;
    int l = p->t->l, e = p->t->e;
    struct fm_mark mark = fm_scratch_mark();
    char *whole = fm_scratch(size);
    uint64_t at = fm_volumes_expert(&j->weights, l, p->part, e);
    int rc =
        fm_file_read(&j->x.bundle.file, at + (uint64_t)j->seg.bound[s] * channel, whole, size, err);
    struct fm_digest digest = fm_digest_of(whole, size);
    if (rc == FM_OK && !fm_digest_equal(&digest, &fm_segments_expert(&j->seg, l, p->part, e)[s]))
        rc = fm_fail(err, FM_EFORMAT,
                     "%s: layer %d, expert %d: its weights are not those of its checksums",
                     j->run.input, j->x.config.moe[l], e);
    if (rc == FM_OK && memcmp(whole, rows, kept) != 0)
        say_differs(p, s);
    fm_scratch_release(mark);
    return rc;
}

/* The rows of one expert in a flat tensor, segment by segment. */
static int check_flat(struct fm_verify_job *j, const struct fm_export_tensor *t, int e,
                      struct fm_err *err)
{
    struct fm_export_tensor one = *t;
    struct place p = {.j = j, .t = &one, .part = t->part};
    uint64_t channel = fm_volumes_channel_bytes(&j->x.volumes, t->part), before = 0;
    uint32_t k = width_of(j, t->l, e);
    size_t whole = segments_below(j, k);
    uint64_t checked = (uint64_t)j->seg.bound[whole] * channel, rest = k * channel - checked;
    one.e = e;
    for (int i = 0; i < e; i++)
        before += width_of(j, t->l, i) * channel;
    struct fm_scan s = {.at = t->t.offset + before,
                        .size = checked,
                        .digest = fm_segments_expert(&j->seg, t->l, t->part, e),
                        .spans = whole,
                        .bound = j->seg.bound,
                        .bounds = (size_t)j->seg.S,
                        .unit_bytes = channel};
    int rc = scan(&p, &s, err);
    if (rc != FM_OK || rest == 0)
        return rc;
    char *rows = fm_scratch((size_t)rest);
    rc = fm_file_read(&j->shard[t->file].file, s.at + checked, rows, (size_t)rest, err);
    return rc == FM_OK ? check_inside(&p, whole, k, rows, err) : rc;
}

/* Every byte equals the next and the first is zero: as fast as a comparison. */
static bool is_zero(const char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* An expert rebuilt in memory, `stored` channels: the kept segments' digests, and zeros behind. */
static int check_rebuilt(struct place *p, const char *rows, int stored, struct fm_err *err)
{
    const struct fm_verify_job *j = p->j;
    const struct fm_export_tensor *t = p->t;
    uint32_t k = width_of(j, t->l, t->e);
    size_t n = segments_below(j, k);
    size_t channel = (size_t)fm_volumes_channel_bytes(&j->x.volumes, p->part);
    size_t values = k * channel / ((size_t)fm_dtype_bits(t->t.dtype) / 8);
    struct fm_digest *digest = fm_alloc((size_t)j->seg.S, sizeof *digest, "digests", err);
    if (!digest)
        return err->code;
    fm_segments_digest(digest, &j->seg, (int)n, rows, channel);
    const struct fm_digest *want = fm_segments_expert(&j->seg, t->l, p->part, t->e);
    for (size_t s = 0; s < n; s++)
        if (!fm_digest_equal(&digest[s], &want[s]))
            say_differs(p, s);
    free(digest);
    if (fm_dtype_nonfinite(rows, t->t.dtype, values) < values)
        say_not_finite(p);
    if (!is_zero(rows + k * channel, ((size_t)stored - k) * channel))
        fm_verifier_find(j->v, t->file, FM_EDIFF, t->t.name,
                         "layer %d, expert %d: channels from %" PRIu32 " on are not all zero",
                         j->x.config.moe[t->l], t->e, k);
    if ((uint32_t)j->seg.bound[n] == k)
        return FM_OK;
    return check_inside(p, n, k, rows + (size_t)j->seg.bound[n] * channel, err);
}

static int read_at(const struct fm_verify_job *j, const struct fm_export_tensor *t, uint64_t at,
                   size_t size, void *dst, struct fm_err *err)
{
    return fm_file_read(&j->shard[t->file].file, t->t.offset + at, dst, size, err);
}

/* One expert's down (H, stored), at byte `at` of its tensor. */
static int check_down(struct fm_verify_job *j, const struct fm_export_tensor *t, uint64_t at,
                      int stored, struct fm_err *err)
{
    struct place p = {.j = j, .t = t, .part = FM_PART_DOWN_T};
    size_t size = (size_t)stored * (size_t)fm_volumes_channel_bytes(&j->x.volumes, p.part);
    char *down = fm_scratch(size), *rows = fm_scratch(size);
    int rc = read_at(j, t, at, size, down, err);
    if (rc != FM_OK)
        return rc;
    fm_layout_gather(rows, down, NULL, stored, j->x.config.H, fm_dtype_bits(t->t.dtype) / 8);
    return check_rebuilt(&p, rows, stored, err);
}

/* One expert's gate and up (stored, H), each at its place. */
static int check_gate_up(struct fm_verify_job *j, const struct fm_export_tensor *t,
                         uint64_t gate_at, const struct fm_export_tensor *u, uint64_t up_at,
                         int stored, struct fm_err *err)
{
    struct place p = {.j = j, .t = t, .part = FM_PART_GATE_UP};
    size_t size = (size_t)stored * (size_t)fm_volumes_channel_bytes(&j->x.volumes, p.part) / 2;
    char *gate = fm_scratch(size), *up = fm_scratch(size), *rows = fm_scratch(2 * size);
    int rc = read_at(j, t, gate_at, size, gate, err);
    if (rc == FM_OK)
        rc = read_at(j, u, up_at, size, up, err);
    if (rc != FM_OK)
        return rc;
    fm_layout_interleave(rows, gate, up, NULL, stored, j->x.config.H,
                         fm_dtype_bits(t->t.dtype) / 8);
    return check_rebuilt(&p, rows, stored, err);
}

/* Expert e of a tensor with a dimension for the experts. */
static int check_fused(struct fm_verify_job *j, const struct fm_export_tensor *t, int e,
                       struct fm_err *err)
{
    struct fm_export_tensor one = *t;
    int k = (int)width_of(j, t->l, e);
    uint64_t expert = t->t.size / t->t.shape[0], at = (uint64_t)e * expert;
    one.e = e;
    if (t->fill == FM_FILL_FUSED_DOWN)
        return check_down(j, &one, at, k, err);
    return check_gate_up(j, &one, at, &one, at + expert / 2, k, err);
}

/* The tensor is what the plan puts there, byte for byte. */
static int check_filled(struct fm_verify_job *j, const struct fm_export_tensor *t,
                        struct fm_err *err)
{
    size_t size = (size_t)t->t.size;
    char *have = fm_scratch(size), *want = fm_scratch(size);
    int rc = read_at(j, t, 0, size, have, err);
    if (rc == FM_OK)
        rc = fm_exporter_fill(&j->x, t, 0, size, want, err);
    if (rc == FM_OK && memcmp(have, want, size) != 0)
        fm_verifier_find(j->v, t->file, FM_EDIFF, t->t.name,
                         "is not -1, the budget that config.json starts with");
    return rc;
}

static void check_unit(void *arg, int i)
{
    struct fm_verify_job *j = arg;
    const struct fm_verify_unit *u = &j->unit[i];
    const struct fm_export_tensor *t = &j->x.tensor[u->tensor];
    struct fm_err err = {0};
    struct fm_mark mark = fm_scratch_mark();
    int rc = FM_OK;
    uint64_t bytes = t->t.size;
    if (!fm_crew_going(&j->v->crew))
        return;
    switch (t->fill) {
    case FM_FILL_COPY:
        rc = check_copy(j, t, &err);
        break;
    case FM_FILL_FLAT:
        bytes = width_of(j, t->l, u->e) * fm_volumes_channel_bytes(&j->x.volumes, t->part);
        rc = check_flat(j, t, u->e, &err);
        break;
    case FM_FILL_GATE:
        bytes *= 2;
        rc = check_gate_up(j, t, 0, &j->x.tensor[up_of(j, t)], 0, stored_of(j, t), &err);
        break;
    case FM_FILL_DOWN:
        rc = check_down(j, t, 0, stored_of(j, t), &err);
        break;
    case FM_FILL_FUSED_UP:
    case FM_FILL_FUSED_DOWN:
        bytes /= t->t.shape[0];
        rc = check_fused(j, t, u->e, &err);
        break;
    case FM_FILL_INDEX:
        rc = check_filled(j, t, &err);
        break;
    case FM_FILL_UP:
        break;
    }
    fm_scratch_release(mark);
    if (rc != FM_OK)
        fm_crew_fail(&j->v->crew, &err);
    fm_verifier_count(j->v, 1, bytes);
    fm_crew_add(&j->v->crew, bytes);
}

/* Tasks for a tensor: one for every expert that it holds. */
static int units_of(const struct fm_verify_job *j, const struct fm_export_tensor *t)
{
    bool experts =
        t->fill == FM_FILL_FLAT || t->fill == FM_FILL_FUSED_UP || t->fill == FM_FILL_FUSED_DOWN;
    return experts ? j->x.config.E : 1;
}

static int plan_units(struct fm_verify_job *j, const bool *usable, struct fm_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < j->x.tensors; i++)
        n += (size_t)units_of(j, &j->x.tensor[i]);
    j->unit = fm_alloc(n, sizeof *j->unit, "the list of checks", err);
    j->up = fm_alloc((size_t)j->x.config.M * (size_t)j->x.config.E, sizeof *j->up, "experts", err);
    if (!j->unit || !j->up)
        return err->code;
    for (size_t i = 0; i < j->x.tensors; i++)
        if (j->x.tensor[i].fill == FM_FILL_UP)
            j->up[(size_t)j->x.tensor[i].l * (size_t)j->x.config.E + (size_t)j->x.tensor[i].e] = i;
    for (size_t i = 0; i < j->x.tensors; i++) {
        const struct fm_export_tensor *t = &j->x.tensor[i];
        bool whole = usable[i];
        if (t->fill == FM_FILL_GATE)
            whole = whole && usable[up_of(j, t)];
        if (!whole || t->fill == FM_FILL_UP)
            continue;
        for (int e = 0; e < units_of(j, t); e++)
            j->unit[j->units++] = (struct fm_verify_unit){i, e};
    }
    return FM_OK;
}

/* Where a width is no boundary of segments, the bundle's weights decide. */
static int need_weights(struct fm_verify_job *j, struct fm_err *err)
{
    const struct fm_config *c = &j->x.config;
    for (int i = 0; i < c->M * c->E; i++) {
        if (fm_segments_at(&j->seg, j->x.widths[i]) >= 0)
            continue;
        int rc = fm_volumes_open(&j->weights, &j->x.bundle, c, j->x.volumes.dtype, err);
        return rc == FM_OK ? rc
                           : fm_within(err,
                                       "width %" PRIu32 " of layer %d, expert %d ends inside a "
                                       "checksum's segment, so all of the bundle is needed",
                                       j->x.widths[i], c->moe[i / c->E], i % c->E);
    }
    return FM_OK;
}

int fm_verify_weights(struct fm_verify_job *j, const bool *usable, struct fm_err *err)
{
    int rc = need_weights(j, err);
    if (rc == FM_OK)
        rc = plan_units(j, usable, err);
    if (rc == FM_OK) {
        fm_crew_init(&j->v->crew, j->v->run, "verify", fm_exporter_weight_bytes(&j->x));
        fm_pool_for(j->units, check_unit, j);
        rc = fm_crew_end(&j->v->crew, err);
    }
    fm_volumes_close(&j->weights);
    return rc;
}
