/* Checks a bundle or a stage stream: first every digest, then the meaning of the members. */
#include "lib/verify/verify_contents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/stage/volumes.h"

/* ---- members ---- */

static bool has_digest(const char *name)
{
    return strcmp(name, FM_MEMBER_CHECKSUMS) != 0 &&
           strncmp(name, FM_MEMBER_PART_SUMS, strlen(FM_MEMBER_PART_SUMS)) != 0 &&
           strncmp(name, FM_MEMBER_PAD, strlen(FM_MEMBER_PAD)) != 0;
}

static void compare_member(struct fm_bundle_job *j, size_t i)
{
    const struct fm_member *m = &j->bundle.member[i];
    char have[FM_DIGEST_HEX], want[FM_DIGEST_HEX];
    j->good[i] = !m->known || fm_digest_equal(&j->have[i], &m->digest);
    fm_digest_hex(have, &j->have[i]);
    fm_digest_hex(want, &m->digest);
    if (!j->good[i])
        fm_verifier_find(j->v, i, FM_EDIFF, m->name, "digest is %s, %s says %s%s%s", have,
                         FM_MEMBER_CHECKSUMS, want, j->bundle.parts ? ", in " : "",
                         j->bundle.parts ? fm_file_path_at(&j->bundle.file, m->offset) : "");
}

/* A weights member while its tensors are checked. */
struct place {
    struct fm_bundle_job *j;
    size_t i; /* index of the member */
    int layer, parts;
    bool extra; /* it holds extra tensors */
    int part;   /* index of this tensor among the layer's tensors */
};

/* Report faults in the spans of a tensor, the segments of expert 0, of expert 1, ...: one line for
 * each expert that differs, and one for each with a value that is not finite. */
static void tell_segments(const struct place *p, const char *tensor, const struct fm_scan *s)
{
    const struct fm_segments *seg = &p->j->seg;
    const char *member = p->j->bundle.member[p->i].name;
    int differs = -1, bad = -1; /* expert reported last */
    for (size_t span = 0; span < s->spans; span++) {
        int e = (int)(span / s->bounds), b = (int)(span % s->bounds);
        if (s->found[span] & FM_SCAN_NOT_FINITE && bad != e) {
            fm_verifier_find(p->j->v, p->i, FM_EFORMAT, member,
                             "%s: expert %d has a value that is not finite", tensor, e);
            bad = e;
        }
        if (s->found[span] & FM_SCAN_DIFFERS && differs != e) {
            fm_verifier_find(p->j->v, p->i, FM_EDIFF, member,
                             "%s: expert %d: channels %d to %d differ from their segment checksum",
                             tensor, e, seg->bound[b], seg->bound[b + 1] - 1);
            differs = e;
        }
    }
}

static void tell_tensor(const struct place *p, const char *tensor, const struct fm_scan *s)
{
    const char *member = p->j->bundle.member[p->i].name;
    if (s->found[0] & FM_SCAN_NOT_FINITE)
        fm_verifier_find(p->j->v, p->i, FM_EFORMAT, member, "%s has a value that is not finite",
                         tensor);
    if (s->found[0] & FM_SCAN_DIFFERS)
        fm_verifier_find(p->j->v, p->i, FM_EDIFF, member, "%s differs from its checksum in %s",
                         tensor, FM_MEMBER_SEGMENTS);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct fm_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Find the tensor among those of the layer, and set p->part.  False, with a finding, if its name,
 * shape or type is not what the model requires. */
static bool check_layer_tensor(struct fm_bundle_job *j, struct place *p, const struct fm_tensor *t)
{
    char name[FM_VOLUMES_NAME_BYTES];
    const struct fm_packed *packed =
        fm_packed_at(&j->seg.packed, fm_config_moe(&j->config, p->layer));
    for (int i = 0; i < packed->parts; i++) {
        const struct fm_packed_part *part = &packed->part[i];
        fm_volumes_tensor(name, p->layer, part);
        if (strcmp(name, t->name) != 0)
            continue;
        p->part = i;
        p->parts++;
        if (t->dtype == part->dtype && fm_tensor_shaped(t, part->shape, part->dims))
            return true;
    }
    fm_verifier_find(j->v, p->i, FM_EFORMAT, j->bundle.member[p->i].name,
                     "tensor '%s' does not have the name, shape and type of a tensor of layer %d",
                     t->name, p->layer);
    return false;
}

static bool check_other_tensor(struct fm_bundle_job *j, struct place *p, const struct fm_tensor *t)
{
    bool same = fm_segments_match(&j->seg, t) != NULL;
    if (!same)
        fm_verifier_find(j->v, p->i, FM_EFORMAT, j->bundle.member[p->i].name,
                         "%s has no tensor '%s' of that type and shape", FM_MEMBER_SEGMENTS,
                         t->name);
    if ((fm_extra_layer(&j->config, t->name) >= 0) != p->extra)
        fm_verifier_find(j->v, p->i, FM_EFORMAT, j->bundle.member[p->i].name,
                         "tensor '%s' belongs in another member", t->name);
    return same;
}

/* Check one tensor of a weights member: add it to the member's digest, and compare its segments. */
static int scan_tensor(struct fm_bundle_job *j, struct place *p, const struct fm_tensor *t,
                       struct fm_hasher *whole, struct fm_err *err)
{
    const struct fm_segments *seg = &j->seg;
    struct fm_scan s = {.file = &j->bundle.file, .at = t->offset, .size = t->size, .whole = whole};
    bool known = p->layer >= 0 ? check_layer_tensor(j, p, t) : check_other_tensor(j, p, t);
    struct fm_mark mark = fm_scratch_mark();
    bool looked = fm_dtype_is_weight(t->dtype) || t->dtype == FM_F8_E4M3;
    s.dtype = !p->extra && looked ? (int)t->dtype : -1;
    if (known && p->layer >= 0) {
        int m = fm_config_moe(&j->config, p->layer);
        const struct fm_packed *packed = fm_packed_at(&seg->packed, m);
        s.digest = fm_segments_expert(seg, m, p->part, 0);
        s.spans = (size_t)seg->E * (size_t)seg->S;
        s.bound = seg->bound;
        s.bounds = (size_t)seg->S;
        s.group = packed->group;
        s.unit_bytes = fm_packed_group_bytes(&packed->part[p->part]);
    } else if (known) {
        s.digest = &fm_segments_find(seg, t->name)->digest;
        s.spans = 1;
    }
    s.found = fm_scratch(s.spans + 1);
    memset(s.found, 0, s.spans);
    int rc = fm_verifier_scan(j->v, &s, err);
    if (known)
        (s.bound ? tell_segments : tell_tensor)(p, t->name, &s);
    fm_scratch_release(mark);
    fm_verifier_count(j->v, 1, 0);
    return rc;
}

/* The decoder layer of a weights member: layers-00003.safetensors gives 3, rest.safetensors and
 * extra.safetensors -1; anything else, and a layer without experts, -2. */
static int layer_of(const struct fm_bundle_job *j, const char *name)
{
    char expected[FM_VOLUMES_NAME_BYTES];
    int l = -1;
    if (strcmp(name, FM_VOLUMES_REST) == 0 || strcmp(name, FM_VOLUMES_EXTRA) == 0)
        return -1;
    if (sscanf(name, FM_MEMBER_WEIGHTS "layers-%5d.safetensors", &l) != 1 || l < 0 ||
        fm_config_moe(&j->config, l) < 0)
        return -2;
    fm_volumes_member(expected, l);
    return strcmp(name, expected) == 0 ? l : -2;
}

/* For a stream: keep the bytes from which the index of a member is read. */
static int keep_header(struct fm_bundle_job *j, const struct fm_member *m, struct fm_err *err)
{
    unsigned char length[8];
    uint64_t at = m->offset;
    if (!j->v->spool || m->size < sizeof length)
        return FM_OK;
    int rc = fm_spool_keep(j->v->spool, at + sizeof length, err);
    if (!rc)
        rc = fm_spool_read(j->v->spool, at, length, sizeof length, err);
    uint64_t bytes = !rc ? fm_little_endian(length, sizeof length) : 0;
    /* headers of other lengths are refused when they are read */
    if (!rc && bytes <= FM_ST_HEADER_BYTES_MAX && bytes <= m->size - sizeof length)
        rc = fm_spool_keep(j->v->spool, at + sizeof length + bytes, err);
    j->bundle.file.size = at + m->size; /* members that are still to come count as present */
    return rc;
}

/* Count the tensors that a member must have according to the checksums. */
static size_t tensors_of(const struct fm_bundle_job *j, const struct place *p)
{
    size_t n = 0;
    if (p->layer >= 0)
        return (size_t)fm_packed_at(&j->seg.packed, fm_config_moe(&j->config, p->layer))->parts;
    for (size_t i = 0; i < j->seg.tensors; i++)
        n += (fm_extra_layer(&j->config, j->seg.tensor[i].t.name) >= 0) == p->extra;
    return n;
}

/* Read the header and then the tensors in file order, so that every byte is read once. */
static int check_weights(struct fm_bundle_job *j, size_t i, struct fm_hasher *whole,
                         struct fm_err *err)
{
    const struct fm_member *m = &j->bundle.member[i];
    struct place p = {.j = j, .i = i, .layer = layer_of(j, m->name)};
    p.extra = strcmp(m->name, FM_VOLUMES_EXTRA) == 0;
    struct fm_safetensors st = {0};
    struct fm_err broken = {0};
    struct fm_scan header = {
        .file = &j->bundle.file, .at = m->offset, .size = m->size, .whole = whole, .dtype = -1};
    int rc = keep_header(j, m, err);
    if (rc)
        return rc;
    if (p.layer < -1)
        fm_verifier_find(j->v, i, FM_EFORMAT, m->name, "the model has no such layer");
    else if (fm_safetensors_open(&st, &j->bundle.file, m->offset, m->size, &broken))
        fm_verifier_find(j->v, i, fm_verifier_code(&broken, FM_EFORMAT), m->name, "%s",
                         broken.text);
    if (!st.header_bytes)
        return fm_verifier_scan(j->v, &header, err);
    header.size = st.header_bytes;
    rc = fm_verifier_scan(j->v, &header, err);
    if (st.count > 0)
        qsort(st.tensor, st.count, sizeof *st.tensor, compare_offsets);
    for (size_t t = 0; t < st.count && !rc && fm_taskgroup_going(&j->v->tasks); t++)
        rc = scan_tensor(j, &p, &st.tensor[t], whole, err);
    size_t expected = tensors_of(j, &p);
    if ((p.layer >= 0 ? (size_t)p.parts : st.count) != expected)
        fm_verifier_find(j->v, i, FM_EFORMAT, m->name,
                         "holds %zu tensors, but the model has %zu here", st.count, expected);
    fm_safetensors_close(&st);
    return rc;
}

static bool is_weights(const char *name)
{
    return strncmp(name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) == 0;
}

static void check_member(struct fm_bundle_job *j, size_t i)
{
    const struct fm_member *m = &j->bundle.member[i];
    struct fm_err err = {0};
    if (!has_digest(m->name) || !fm_taskgroup_going(&j->v->tasks))
        return;
    struct fm_hasher *whole = fm_hasher_new();
    struct fm_scan all = {
        .file = &j->bundle.file, .at = m->offset, .size = m->size, .whole = whole, .dtype = -1};
    int rc = !whole ? fm_fail(&err, FM_ENOMEM, "no memory for a digest")
             : is_weights(m->name) && j->segments ? check_weights(j, i, whole, &err)
                                                  : fm_verifier_scan(j->v, &all, &err);
    if (rc) {
        fm_taskgroup_fail(&j->v->tasks, &err);
    } else if (fm_taskgroup_going(&j->v->tasks)) {
        j->have[i] = fm_hasher_done(whole);
        compare_member(j, i);
    }
    fm_hasher_free(whole);
    fm_verifier_count(j->v, 1, m->size);
    fm_taskgroup_add(&j->v->tasks, m->size);
}

/* Members that are checked together: the small ones, or the weights. */
struct round {
    struct fm_bundle_job *j;
    size_t *member;
};

static void check_one(void *arg, int i)
{
    const struct round *r = arg;
    check_member(r->j, r->member[i]);
}

/* For a stream: check the members in the order of arrival, and keep the bytes between them. */
static void pass_members(struct fm_bundle_job *j, const size_t *member, int n)
{
    struct fm_err err = {0};
    for (int i = 0; i < n && fm_taskgroup_going(&j->v->tasks); i++) {
        if (fm_spool_keep(j->v->spool, j->bundle.member[member[i]].offset, &err))
            fm_taskgroup_fail(&j->v->tasks, &err);
        check_member(j, member[i]);
    }
}

static int check_members(struct fm_bundle_job *j, bool weights, struct fm_err *err)
{
    struct round r = {.j = j};
    uint64_t bytes = 0;
    int n = 0;
    r.member = fm_alloc(j->bundle.members, sizeof *r.member, "the list of members", err);
    if (!r.member)
        return err->code;
    for (size_t i = 0; i < j->bundle.members; i++) {
        const struct fm_member *m = &j->bundle.member[i];
        if (!has_digest(m->name) || is_weights(m->name) != weights)
            continue;
        r.member[n++] = i;
        bytes += m->size;
    }
    fm_taskgroup_init(&j->v->tasks, j->v->run, weights ? "weights" : "members", bytes);
    if (weights && j->v->spool)
        pass_members(j, r.member, n);
    else
        fm_pool_for(n, check_one, &r);
    free(r.member);
    return fm_taskgroup_end(&j->v->tasks, err);
}

/* ---- a stream, in one pass ---- */

/* At the end of a stream: check the structure, and the digests that came last. */
static int close_stream(struct fm_bundle_job *j, int rc, struct fm_err *err)
{
    struct fm_bundle whole = {0};
    struct fm_err early = *err;
    size_t members = j->bundle.members;
    if (rc && rc != FM_EFORMAT)
        return rc;
    if (fm_spool_keep(j->v->spool, UINT64_MAX, err))
        return err->code;
    if (fm_bundle_open_file(&whole, &j->v->spool->file, false, err)) {
        fm_verifier_forget(j->v); /* report no other faults if the structure is broken */
        return err->code;
    }
    fm_bundle_close(&j->bundle);
    j->bundle = whole;
    if (rc || whole.members != members) {
        *err = early;
        return !rc ? fm_fail(err, FM_EFORMAT,
                             "standard input: its members are not those of its manifest")
                   : rc;
    }
    for (size_t i = 0; i < members; i++)
        if (has_digest(whole.member[i].name) && !whole.member[i].listed)
            compare_member(j, i);
    return FM_OK;
}

static int check_all(struct fm_bundle_job *j, struct fm_err *err)
{
    if (fm_stage_check(&j->bundle, NULL, err))
        return err->code;
    j->good = fm_alloc(j->bundle.members, sizeof *j->good, "the list of members", err);
    j->have = fm_alloc(j->bundle.members, sizeof *j->have, "the digests of members", err);
    if (!j->good || !j->have || check_members(j, false, err) || fm_verify_contents(j, err))
        return err->code;
    return check_members(j, true, err);
}

/* ---- a bundle from a pipe ---- */

/* Where the weights begin according to the manifest; 0 if it has no weights. */
static uint64_t weights_begin(const struct fm_bundle *b)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "members"), *entry;
    cJSON_ArrayForEach(entry, array)
    {
        const char *name = fm_json_string_value(entry, "name");
        double offset = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(entry, "offset"));
        if (name && strncmp(name, FM_MEMBER_WEIGHTS, strlen(FM_MEMBER_WEIGHTS)) == 0)
            return offset > 0 && offset < 1e15 ? (uint64_t)offset : 0;
    }
    return 0;
}

/*
 * Open a bundle from a pipe before its weights arrive.  The manifest, which comes first, has the
 * digests of the members before the weights; the digests of the weights come last.  So the members
 * before the weights are kept and opened at once.  If their content is unexpected, the whole bundle
 * is kept, and the checks for a file report the fault.
 */
static int open_stream(struct fm_bundle *b, struct fm_spool *s, struct fm_err *err)
{
    struct fm_err unused = {0};
    uint64_t begin = 0;
    uint64_t most = FM_BUNDLE_MANIFEST_BYTES_MAX + FM_BUNDLE_ALIGN, first = FM_BUNDLE_ALIGN;
    bool known = false;
    int rc = fm_spool_keep(s, first, err);
    while (!rc && !s->ended && !known && first < most) {
        first = 4 * first < most ? 4 * first : most;
        rc = fm_spool_keep(s, first, err);
        known = !rc && !fm_bundle_open_file(b, &s->file, true, &unused);
    }
    if (known) {
        begin = weights_begin(b);
        fm_bundle_close(b);
    }
    if (!rc)
        rc = fm_spool_keep(s, begin ? begin : UINT64_MAX, err);
    bool head = !rc && begin && !s->ended && s->file.size >= begin &&
                !fm_bundle_open_file(b, &s->file, true, &unused);
    if (head && !fm_bundle_expect(b, &unused))
        return FM_OK;
    if (head)
        fm_bundle_close(b);
    if (!rc)
        rc = fm_spool_keep(s, UINT64_MAX, err);
    return rc ? rc : fm_bundle_open_file(b, &s->file, false, err);
}

int fm_verify_bundle(struct fm_verifier *v, struct fm_err *err)
{
    struct fm_bundle_job j = {.v = v};
    struct fm_spool spool = {0};
    v->report->kind = "bundle";
    int rc = FM_OK;
    if (fm_spool_needed(v->options->target)) {
        v->spool = &spool;
        rc = fm_spool_begin(&spool, err);
        if (!rc)
            rc = open_stream(&j.bundle, &spool, err);
    } else {
        rc = fm_bundle_open(&j.bundle, v->options->target, err);
    }
    if (!rc)
        rc = check_all(&j, err);
    if (v->spool && j.good)
        rc = close_stream(&j, rc, err);
    else if (!rc)
        rc = fm_file_unchanged(&j.bundle.file, err);
    fm_segments_release(&j.seg);
    fm_config_release(&j.config);
    fm_budgets_release(&j.budgets);
    free(j.good);
    free(j.have);
    fm_bundle_close(&j.bundle);
    fm_spool_end(&spool);
    v->spool = NULL;
    return rc;
}
