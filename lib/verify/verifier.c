/*
 * Checks run in parallel and find faults in any order, so each finding has a place, and findings
 * are reported in that order: the same faults give the same lines.  A scan reads a range of a file
 * once, in pieces that fit the cache, and computes the digest of the range, the digests of its
 * spans, and whether every value is finite.
 */
#include "lib/verify/verifier.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"

/* fits the L2 cache, from which the digests and the checks of values then read */
#define SCAN_BYTES ((size_t)256 << 10)

/* ---- findings ---- */

static int compare_findings(const void *a, const void *b)
{
    const struct fm_finding *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

void fm_verifier_find(struct fm_verifier *v, size_t place, int code, const char *item,
                      const char *fmt, ...)
{
    char text[FM_ERR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&v->lock);
    v->report->failed++;
    if (code == FM_EIO || code == FM_ENOMEM)
        v->machine = v->machine ? v->machine : code;
    v->differs |= code == FM_EDIFF;
    if (!FM_GROW(v->finding, v->capacity, v->findings + 1, "findings", &v->lost)) {
        struct fm_finding f = {place, v->findings, fm_strdup(item, &v->lost),
                               fm_strdup(text, &v->lost)};
        if (f.item && f.what) {
            v->finding[v->findings++] = f;
        } else {
            free(f.item);
            free(f.what);
        }
    }
    pthread_mutex_unlock(&v->lock);
}

int fm_verifier_note(struct fm_verifier *v, size_t place, int code, const char *item,
                     struct fm_err *err)
{
    if (err->code == FM_ENOMEM || err->code == FM_EIO)
        return err->code;
    fm_verifier_find(v, place, code, item, "%s", err->text);
    *err = (struct fm_err){0};
    return FM_OK;
}

void fm_verifier_count(struct fm_verifier *v, uint64_t items, uint64_t bytes)
{
    pthread_mutex_lock(&v->lock);
    v->report->items += items;
    v->report->bytes += bytes;
    pthread_mutex_unlock(&v->lock);
}

void fm_verifier_skip(struct fm_verifier *v, const char *what)
{
    struct fm_verify_report *r = v->report;
    assert(r->skips < FM_VERIFY_SKIPS_MAX);
    r->skip[r->skips++] = what;
}

static void free_findings(struct fm_verifier *v)
{
    for (size_t i = 0; i < v->findings; i++) {
        free(v->finding[i].item);
        free(v->finding[i].what);
    }
    v->findings = 0;
}

void fm_verifier_tell(struct fm_verifier *v)
{
    if (v->findings)
        qsort(v->finding, v->findings, sizeof *v->finding, compare_findings);
    for (size_t i = 0; i < v->findings && v->options->finding; i++)
        v->options->finding(v->options->self, v->finding[i].item, v->finding[i].what);
    free_findings(v);
}

void fm_verifier_forget(struct fm_verifier *v)
{
    free_findings(v);
    v->report->items = v->report->failed = v->report->bytes = 0;
}

/* ---- the scan ---- */

struct scan_state {
    const struct fm_scan *s;
    struct fm_hasher *hasher; /* bytes of the span */
    size_t span;
    uint64_t end; /* end of the span, in the scan */
    bool finite;  /* no NaN or Inf in the span so far */
};

static uint64_t span_size(const struct fm_scan *s, size_t span)
{
    if (!s->bound)
        return s->size;
    const int32_t *bound = s->bound + span % s->bounds;
    return (uint64_t)((bound[1] - bound[0]) / s->group) * s->unit_bytes;
}

static void end_span(struct scan_state *st)
{
    const struct fm_scan *s = st->s;
    struct fm_digest digest = fm_hasher_done(st->hasher);
    if (!fm_digest_equal(&digest, &s->digest[st->span]))
        s->found[st->span] |= FM_SCAN_DIFFERS;
    fm_hasher_reset(st->hasher);
    st->finite = true;
    if (++st->span < s->spans)
        st->end += span_size(s, st->span);
}

static void add_to_span(struct scan_state *st, const char *bytes, size_t n)
{
    const struct fm_scan *s = st->s;
    size_t count = s->dtype < 0 ? 0 : n / (size_t)(fm_dtype_bits((enum fm_dtype)s->dtype) / 8);
    if (st->finite && count && fm_dtype_nonfinite(bytes, (enum fm_dtype)s->dtype, count) < count) {
        st->finite = false;
        s->found[st->span] |= FM_SCAN_NOT_FINITE;
    }
    fm_hasher_add(st->hasher, bytes, n);
}

/* Process one piece in the cache: add all of it to the digest of the range, and its parts to
 * their spans. */
static void scan_piece(struct scan_state *st, const char *bytes, uint64_t at, size_t n)
{
    if (st->s->whole)
        fm_hasher_add(st->s->whole, bytes, n);
    for (size_t used = 0; st->s->spans && used < n;) {
        size_t part = st->end - (at + used) < n - used ? (size_t)(st->end - (at + used)) : n - used;
        add_to_span(st, bytes + used, part);
        used += part;
        if (at + used == st->end)
            end_span(st);
    }
}

int fm_verifier_scan(struct fm_verifier *v, const struct fm_scan *s, struct fm_err *err)
{
    struct scan_state st = {.s = s, .hasher = fm_hasher_new(), .finite = true};
    struct fm_mark mark = fm_scratch_mark();
    char *piece = fm_scratch(SCAN_BYTES);
    int rc = st.hasher ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    if (!rc)
        fm_hasher_reset(st.hasher);
    st.end = s->spans ? span_size(s, 0) : 0;
    for (uint64_t at = 0; at < s->size && !rc && fm_taskgroup_going(&v->tasks);) {
        size_t n = s->size - at < SCAN_BYTES ? (size_t)(s->size - at) : SCAN_BYTES;
        rc = v->spool ? fm_spool_read(v->spool, s->at + at, piece, n, err)
                      : fm_file_read(s->file, s->at + at, piece, n, err);
        if (!rc)
            scan_piece(&st, piece, at, n);
        at += n;
    }
    /* An empty tensor is one empty span. */
    if (!rc && s->size == 0 && s->spans)
        end_span(&st);
    assert(rc || st.span == s->spans || !fm_taskgroup_going(&v->tasks)); /* they end at `size` */
    fm_scratch_release(mark);
    fm_hasher_free(st.hasher);
    return rc;
}
