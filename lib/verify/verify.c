/*
 * Checks run in parallel and find faults in any order, so each finding has a place, and findings
 * are reported in that order: the same faults give the same lines.  A scan reads a range of a file
 * once, in pieces that fit the cache, and computes the digest of the range, the digests of its
 * spans, and whether every value is finite.
 */
#include "lib/verify/verify.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/stage/pack.h"
#include "lib/verify/verifier.h"

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
    v->malformed |= code != FM_EDIFF;
    if (!FM_GROW(v->finding, v->capacity, v->findings + 1, "findings", &v->lost)) {
        struct fm_finding f = {place, v->findings, fm_strdup(item, &v->lost),
                               fm_strdup(text, &v->lost)};
        if (f.item && f.what)
            v->finding[v->findings++] = f;
    }
    pthread_mutex_unlock(&v->lock);
}

void fm_verifier_count(struct fm_verifier *v, uint64_t items, uint64_t bytes)
{
    pthread_mutex_lock(&v->lock);
    v->report->items += items;
    v->report->bytes += bytes;
    pthread_mutex_unlock(&v->lock);
}

static void free_findings(struct fm_verifier *v)
{
    for (size_t i = 0; i < v->findings; i++) {
        free(v->finding[i].item);
        free(v->finding[i].what);
    }
    v->findings = 0;
}

/* Report every finding, in order. */
static void tell_findings(struct fm_verifier *v)
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
    fm_scratch_release(mark);
    fm_hasher_free(st.hasher);
    return rc;
}

/* ---- entry points ---- */

/* Set *directory; false for a target that does not exist: opening it gives the error. */
static int is_directory(bool *directory, const char *path, struct fm_err *err)
{
    struct stat st = {0};
    if (strcmp(path, "-") != 0 && stat(path, &st) != 0 && errno != ENOENT && errno != ENOTDIR)
        return fm_fail_errno(err, "cannot examine '%s'", path);
    *directory = S_ISDIR(st.st_mode);
    return FM_OK;
}

bool fm_verify_is_alone(const struct fm_verify_options *options)
{
    struct fm_err unused = {0};
    bool directory = false;
    return !options->against && !is_directory(&directory, options->target, &unused) && directory;
}

static int check_options(const struct fm_run_options *run, const struct fm_verify_options *o,
                         struct fm_err *err)
{
    bool directory;
    int rc = is_directory(&directory, o->target, err);
    if (rc)
        return rc;
    bool alone = directory && !o->against;
    if (!directory && o->against && strcmp(o->target, "-") != 0 && access(o->target, F_OK) != 0)
        return fm_fail_errno(err, "cannot open the directory '%s'", o->target);
    if (alone && (o->function || run->inputs.model))
        return fm_fail(err, FM_EUSAGE, "%s of the directory %s needs its bundle: --against",
                       o->function ? "--function" : "--model", o->target);
    if (!directory && o->against)
        return fm_fail(
            err, FM_EUSAGE,
            "--against is for an exported directory, and '%s' is not a directory; omit it",
            o->target);
    if (o->function && !fm_inputs_first(&run->inputs))
        return fm_fail(err, FM_EUSAGE, "--function needs --text or --tokens");
    if (o->function && !directory && !run->inputs.model)
        return fm_fail(err, FM_EUSAGE, "--function of a bundle needs the checkpoint: --model");
    return FM_OK;
}

int fm_verify_plan(const struct fm_run_options *run, const struct fm_verify_options *o,
                   struct fm_err *err)
{
    struct fm_verify_report report = {.index = -1};
    struct fm_verifier v = {.run = run, .options = o, .report = &report, .dir = -1};
    int rc = check_options(run, o, err);
    return rc || !o->function ? rc : fm_verify_function(&v, true, err);
}

/* fm-pack --force renames a new export over an old one and removes the files of the old one.
 * Findings made in between are valid for neither. */
static int check_in_place(struct fm_verifier *v, int rc, struct fm_err *err)
{
    struct fm_err replaced = {0};
    if (!fm_file_same_directory(v->dir, v->options->target, &replaced))
        return rc;
    fm_verifier_forget(v);
    *err = replaced;
    return err->code;
}

static void note_difference(void *self, const char *item, const char *what)
{
    fm_verifier_find(self, 0, FM_EDIFF, item, "%s", what);
}

/* Compare the bundle, or that of an export, with the checkpoint (fm_pack_compare). */
static int compare_checkpoint(struct fm_verifier *v, struct fm_err *err)
{
    const struct fm_verify_options *o = v->options;
    struct fm_run_options run = *v->run;
    struct fm_pack_compared compared = {.differs = note_difference, .self = v};
    run.inputs.stream = o->against ? o->against : o->target;
    if (strcmp(run.inputs.stream, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "--model reads the bundle twice: give it as a file");
    int rc = fm_pack_compare(&run, &compared, err);
    fm_verifier_count(v, compared.items, compared.bytes);
    return rc;
}

int fm_verify(const struct fm_run_options *run, const struct fm_verify_options *options,
              struct fm_verify_report *report, struct fm_err *err)
{
    double start = fm_clock_now();
    *report = (struct fm_verify_report){.index = -1};
    struct fm_verifier v = {.run = run, .options = options, .report = report, .dir = -1};
    bool directory;
    if (check_options(run, options, err) || is_directory(&directory, options->target, err) ||
        (directory && fm_file_open_directory(&v.dir, options->target, err)))
        return err->code;
    pthread_mutex_init(&v.lock, NULL);
    int rc = FM_OK;
    if ((!directory         ? fm_verify_bundle(&v, err)
         : options->against ? fm_verify_export(&v, err)
                            : fm_verify_table(&v, err)) ||
        (run->inputs.model && !options->function && report->failed == 0 &&
         compare_checkpoint(&v, err)) ||
        (options->function && report->failed == 0 && fm_verify_function(&v, false, err)))
        rc = err->code;
    if (directory && rc != FM_ESAVED)
        rc = check_in_place(&v, rc, err);
    tell_findings(&v);
    free(v.finding);
    free(v.served);
    if (v.dir >= 0)
        close(v.dir);
    pthread_mutex_destroy(&v.lock);
    report->seconds = fm_clock_now() - start;
    if (!rc && v.lost.code) {
        *err = v.lost;
        rc = v.lost.code;
    }
    if (!rc && report->failed)
        rc = fm_fail(err,
                     v.machine   ? v.machine
                     : v.differs ? FM_EDIFF
                                 : FM_EFORMAT,
                     "%s does not verify: %llu fault%s in %llu item%s", options->target,
                     (unsigned long long)report->failed, report->failed == 1 ? "" : "s",
                     (unsigned long long)report->items, report->items == 1 ? "" : "s");
    return rc;
}
