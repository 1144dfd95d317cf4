/*
 * An exported directory against its bundle, or the first members of it.  The export is planned
 * again from what the bundle says (lib/exporter.h), so that names, sizes and texts are known; the
 * bytes of its weights are then compared with the golden segment checksums.
 */
#include "lib/verifier.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "formats/json.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/exporter.h"
#include "lib/layout.h"
#include "lib/stage.h"

#define EXPORT_JSON_BYTES_MAX ((size_t)16 << 20)

/* A weight file of the directory. */
struct shard {
    struct fm_file file;
    struct fm_safetensors st;
    bool open, parsed;
};

struct job {
    struct fm_verifier *v;
    struct fm_export_options options;
    struct fm_run_options run; /* input is the bundle */
    struct fm_exporter x;
    struct fm_segments seg;
    struct shard *shard; /* (x.files) */
    size_t *up;          /* (L, E): that expert's up tensor, in stock layouts */
    struct unit *unit;
    int units;
};

/* What one task looks at: a tensor, or one expert of it. */
struct unit {
    size_t tensor;
    int e;
};

/* ---- what it is ---- */

static char *path_in(const struct job *j, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", j->v->options->target, name) < 0 ? NULL : path;
}

/* Bytes of a file of the directory; free(). */
static int slurp(const struct job *j, const char *name, size_t limit, char **text, size_t *size,
                 struct fm_err *err)
{
    struct fm_file f;
    char *path = path_in(j, name);
    int rc = path ? fm_file_open(&f, path, err) : fm_fail(err, FM_ENOMEM, "no memory for a name");
    if (rc == FM_OK) {
        rc = fm_file_slurp(&f, limit, text, size, err);
        fm_file_close(&f);
    }
    free(path);
    return rc;
}

/* Layout and budget from fm-export.json; that the rest of it is right is checked with the texts. */
static int read_claim(struct job *j, int64_t *index, struct fm_err *err)
{
    char *text = NULL;
    size_t size;
    cJSON *json = NULL;
    const char *layout = NULL;
    int rc = slurp(j, FM_EXPORT_JSON, EXPORT_JSON_BYTES_MAX, &text, &size, err);
    if (rc != FM_OK)
        return fm_within(err, "no export of fm-pack");
    rc = fm_json_tree(&json, text, size, err);
    if (rc == FM_OK)
        rc = fm_json_get_string(json, "layout", &layout, err);
    if (rc == FM_OK && fm_layout_from_name(layout) < 0)
        rc = fm_fail(err, FM_EFORMAT, "layout '%s' is not known", layout);
    if (rc == FM_OK) {
        j->options.layout = (enum fm_layout)fm_layout_from_name(layout);
        rc = fm_json_get_int(json, "index", 0, FM_BUDGETS_MAX, index, err);
    }
    cJSON_Delete(json);
    free(text);
    return rc == FM_OK ? rc : fm_within(err, "%s/%s", j->v->options->target, FM_EXPORT_JSON);
}

/* The bundle's own words about its weights stand in for them: other tensors with their place in
 * the list of segment checksums as offset. */
static int stand_in(struct job *j, enum fm_dtype dtype, struct fm_err *err)
{
    struct fm_volumes *vol = &j->x.volumes;
    const struct fm_config *c = &j->x.config;
    *vol = (struct fm_volumes){.L = c->L, .E = c->E, .H = c->H, .I = c->I, .dtype = dtype};
    vol->rest.tensor = fm_alloc(j->seg.tensors, sizeof *vol->rest.tensor, "tensors", err);
    if (!vol->rest.tensor)
        return err->code;
    vol->rest.count = j->seg.tensors;
    for (size_t i = 0; i < j->seg.tensors; i++) {
        const struct fm_segment_tensor *s = &j->seg.tensor[i];
        struct fm_tensor *t = &vol->rest.tensor[i];
        *t = (struct fm_tensor){.name = s->name, .dtype = s->dtype, .dims = s->dims, .offset = i};
        memcpy(t->shape, s->shape, sizeof t->shape);
    }
    return FM_OK;
}

static int open_bundle(struct job *j, struct fm_err *err)
{
    struct fm_stage_model model;
    int64_t index = 0;
    int rc = read_claim(j, &index, err);
    if (rc == FM_OK)
        rc = fm_exporter_open(&j->x, err);
    if (rc == FM_OK)
        rc = fm_stage_model_read(&model, &j->x.bundle, err);
    const struct fm_config *c = &j->x.config;
    if (rc == FM_OK)
        rc = fm_segments_read(&j->seg, &j->x.bundle, c->L, c->E, c->I, err);
    if (rc == FM_OK)
        rc = stand_in(j, model.dtype, err);
    if (rc == FM_OK && index >= j->x.budgets.family.count)
        return fm_fail(err, FM_EFORMAT, "%s/%s: budget %lld; %s has %d", j->v->options->target,
                       FM_EXPORT_JSON, (long long)index, j->run.input, j->x.budgets.family.count);
    if (rc == FM_OK)
        rc = fm_exporter_plan(&j->x, (int)index, err);
    return rc == FM_OK ? fm_exporter_texts(&j->x, err) : rc;
}

/* ---- files ---- */

static const struct fm_export_file *planned(const struct job *j, const char *name)
{
    for (size_t i = 0; i < j->x.files; i++)
        if (strcmp(j->x.file[i].name, name) == 0)
            return &j->x.file[i];
    return NULL;
}

static int check_no_others(struct job *j, struct fm_err *err)
{
    DIR *dir = opendir(j->v->options->target);
    if (!dir)
        return fm_fail_errno(err, "cannot read directory '%s'", j->v->options->target);
    const struct dirent *entry;
    while ((entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            !planned(j, entry->d_name))
            fm_verifier_find(j->v, j->x.files, FM_EDIFF, entry->d_name,
                             "is no file of this export");
    closedir(dir);
    return FM_OK;
}

/* A text is byte for byte what the bundle makes of it; the model card is the owner's to edit. */
static int check_text(struct job *j, size_t i, struct fm_err *err)
{
    const struct fm_export_file *f = &j->x.file[i];
    char *text = NULL;
    size_t size = 0;
    struct fm_err missing = {0};
    int rc = slurp(j, f->name, (size_t)f->bytes + 1, &text, &size, &missing);
    fm_verifier_count(j->v, 1, f->bytes);
    if (rc == FM_ENOMEM || rc == FM_EIO) {
        *err = missing;
        return rc;
    }
    if (strcmp(f->name, FM_EXPORT_CARD) == 0) {
        free(text);
        return FM_OK;
    }
    if (rc != FM_OK)
        fm_verifier_find(j->v, i, FM_EDIFF, f->name, "%s", missing.text);
    else if (size != f->bytes || memcmp(text, f->head, size) != 0)
        fm_verifier_find(j->v, i, FM_EDIFF, f->name, "differs from what the bundle says of it");
    free(text);
    return FM_OK;
}

static int open_shard(struct job *j, size_t i, struct fm_err *err)
{
    const struct fm_export_file *f = &j->x.file[i];
    struct shard *s = &j->shard[i];
    struct fm_err broken = {0};
    char *path = path_in(j, f->name);
    int rc = path ? fm_file_open(&s->file, path, &broken)
                  : fm_fail(&broken, FM_ENOMEM, "no memory for a name");
    free(path);
    if (rc == FM_OK) {
        s->open = true;
        rc = fm_safetensors_open(&s->st, &s->file, 0, s->file.size, &broken);
    }
    s->parsed = rc == FM_OK;
    fm_verifier_count(j->v, 1, 0);
    if (rc == FM_ENOMEM || rc == FM_EIO) {
        *err = broken;
        return rc;
    }
    if (rc != FM_OK)
        fm_verifier_find(j->v, i, FM_EDIFF, f->name, "%s", broken.text);
    return FM_OK;
}

/* Every tensor of the plan is in its file with its type and shape, and nothing else is. */
static bool check_tensor(struct job *j, struct fm_export_tensor *t)
{
    const struct shard *s = &j->shard[t->file];
    const struct fm_tensor *have = fm_safetensors_find(&s->st, t->t.name);
    bool same = have && have->dtype == t->t.dtype && have->dims == t->t.dims;
    for (int i = 0; same && i < have->dims; i++)
        same = have->shape[i] == t->t.shape[i];
    fm_verifier_count(j->v, 1, 0);
    if (!same && s->parsed)
        fm_verifier_find(j->v, t->file, FM_EDIFF, t->t.name,
                         have ? "has another type or shape than the budget gives it"
                              : "is not in its file %s",
                         j->x.file[t->file].name);
    if (same)
        t->t.offset = have->offset;
    return same;
}

static bool is_planned(const struct job *j, size_t file, const char *name)
{
    for (size_t i = 0; i < j->x.tensors; i++)
        if (j->x.tensor[i].file == file && strcmp(j->x.tensor[i].t.name, name) == 0)
            return true;
    return false;
}

static void check_no_more_tensors(struct job *j, size_t file)
{
    const struct fm_safetensors *st = &j->shard[file].st;
    size_t want = 0;
    for (size_t i = 0; i < j->x.tensors; i++)
        want += j->x.tensor[i].file == file;
    for (size_t i = 0; i < st->count && st->count != want; i++)
        if (!is_planned(j, file, st->tensor[i].name))
            fm_verifier_find(j->v, file, FM_EDIFF, st->tensor[i].name, "does not belong in %s",
                             j->x.file[file].name);
}

static int check_files(struct job *j, struct fm_err *err)
{
    int rc = check_no_others(j, err);
    j->shard = fm_alloc(j->x.files, sizeof *j->shard, "the list of files", err);
    if (!j->shard)
        return err->code;
    for (size_t i = 0; i < j->x.files && rc == FM_OK; i++)
        rc = j->x.file[i].weights ? open_shard(j, i, err) : check_text(j, i, err);
    for (size_t i = 0; i < j->x.files && rc == FM_OK; i++)
        if (j->shard[i].parsed)
            check_no_more_tensors(j, i);
    return rc;
}

/* ---- weights ---- */

static uint32_t width_of(const struct job *j, int l, int e)
{
    return j->x.widths[(size_t)l * (size_t)j->x.config.E + (size_t)e];
}

/* The tensor that holds the up rows beside these gate rows: one unit looks at both. */
static size_t up_of(const struct job *j, const struct fm_export_tensor *t)
{
    return j->up[(size_t)t->l * (size_t)j->x.config.E + (size_t)t->e];
}

/* Where a scan reports to. */
struct place {
    struct job *j;
    const struct fm_export_tensor *t;
    enum fm_segment_part part;
    bool told[2];
};

static uint64_t segment_bytes(const void *self, size_t s)
{
    const struct place *p = self;
    const struct fm_segments *seg = &p->j->seg;
    return (uint64_t)(seg->bound[s + 1] - seg->bound[s]) *
           fm_volumes_channel_bytes(&p->j->x.volumes, p->part);
}

static void say_differs(void *to, size_t s)
{
    struct place *p = to;
    const struct fm_segments *seg = &p->j->seg;
    if (p->told[0])
        return;
    p->told[0] = true;
    if (p->t->fill == FM_FILL_COPY)
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name, "differs from its checksum");
    else
        fm_verifier_find(p->j->v, p->t->file, FM_EDIFF, p->t->t.name,
                         "layer %d, expert %d: channels %d to %d differ from their checksum",
                         p->t->l, p->t->e, seg->bound[s], seg->bound[s + 1] - 1);
}

static void say_not_finite(void *to, size_t s)
{
    struct place *p = to;
    (void)s;
    if (!p->told[1])
        fm_verifier_find(p->j->v, p->t->file, FM_EFORMAT, p->t->t.name,
                         "layer %d, expert %d: a value is not finite", p->t->l, p->t->e);
    p->told[1] = true;
}

static int check_copy(struct job *j, const struct fm_export_tensor *t, struct fm_err *err)
{
    struct place p = {.j = j, .t = t};
    struct fm_scan s = {.file = &j->shard[t->file].file,
                        .at = t->t.offset,
                        .size = t->t.size,
                        .dtype = fm_dtype_is_weight(t->t.dtype) ? (int)t->t.dtype : -1,
                        .digest = &j->seg.tensor[t->from].digest,
                        .spans = 1,
                        .differs = say_differs,
                        .not_finite = say_not_finite,
                        .to = &p};
    return fm_verifier_scan(j->v, &s, err);
}

/* The rows of one expert in a flat tensor, segment by segment. */
static int check_flat(struct job *j, const struct fm_export_tensor *t, int e, struct fm_err *err)
{
    struct fm_export_tensor one = *t;
    struct place p = {.j = j, .t = &one, .part = t->part};
    uint64_t channel = fm_volumes_channel_bytes(&j->x.volumes, t->part), before = 0;
    one.e = e;
    for (int i = 0; i < e; i++)
        before += width_of(j, t->l, i);
    struct fm_scan s = {.file = &j->shard[t->file].file,
                        .at = t->t.offset + before * channel,
                        .size = width_of(j, t->l, e) * channel,
                        .dtype = (int)t->t.dtype,
                        .digest = fm_segments_expert(&j->seg, t->l, t->part, e),
                        .spans = (size_t)fm_segments_at(&j->seg, width_of(j, t->l, e)),
                        .span_bytes = segment_bytes,
                        .self = &p,
                        .differs = say_differs,
                        .not_finite = say_not_finite,
                        .to = &p};
    return fm_verifier_scan(j->v, &s, err);
}

/* Every byte equals the next and the first is zero: as fast as a comparison. */
static bool is_zero(const char *bytes, size_t n)
{
    return n == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, n - 1) == 0);
}

/* Digests of an expert rebuilt in memory: its kept segments, and zeros behind them. */
static int check_rebuilt(struct job *j, const struct fm_export_tensor *t, enum fm_segment_part part,
                         const char *rows, struct fm_err *err)
{
    struct place p = {.j = j, .t = t, .part = part};
    uint32_t k = width_of(j, t->l, t->e);
    int n = fm_segments_at(&j->seg, k);
    size_t channel = (size_t)fm_volumes_channel_bytes(&j->x.volumes, part);
    size_t element = (size_t)fm_dtype_bits(t->t.dtype) / 8;
    struct fm_digest *digest = fm_alloc((size_t)j->seg.S, sizeof *digest, "digests", err);
    if (!digest)
        return err->code;
    fm_segments_digest(digest, &j->seg, n, rows, channel);
    const struct fm_digest *want = fm_segments_expert(&j->seg, t->l, part, t->e);
    for (int s = 0; s < n; s++)
        if (!fm_digest_equal(&digest[s], &want[s]))
            say_differs(&p, (size_t)s);
    if (fm_dtype_nonfinite(rows, t->t.dtype, k * channel / element) < k * channel / element)
        say_not_finite(&p, 0);
    if (!is_zero(rows + k * channel, ((size_t)j->x.rows - k) * channel))
        fm_verifier_find(j->v, t->file, FM_EDIFF, t->t.name,
                         "layer %d, expert %d: channels from %" PRIu32 " on are not all zero", t->l,
                         t->e, k);
    free(digest);
    return FM_OK;
}

static int read_matrix(struct job *j, const struct fm_export_tensor *t, void *dst,
                       struct fm_err *err)
{
    return fm_file_read(&j->shard[t->file].file, t->t.offset, dst, (size_t)t->t.size, err);
}

static int check_down(struct job *j, const struct fm_export_tensor *t, struct fm_err *err)
{
    char *down = fm_scratch((size_t)t->t.size), *rows = fm_scratch((size_t)t->t.size);
    int rc = read_matrix(j, t, down, err);
    if (rc != FM_OK)
        return rc;
    fm_layout_gather(rows, down, NULL, j->x.rows, j->x.config.H, fm_dtype_bits(t->t.dtype) / 8);
    return check_rebuilt(j, t, FM_SEGMENT_DOWN, rows, err);
}

static int check_gate_up(struct job *j, const struct fm_export_tensor *t, struct fm_err *err)
{
    const struct fm_export_tensor *u = &j->x.tensor[up_of(j, t)];
    size_t size = (size_t)t->t.size;
    char *gate = fm_scratch(size), *up = fm_scratch(size), *rows = fm_scratch(2 * size);
    int rc = read_matrix(j, t, gate, err);
    if (rc == FM_OK)
        rc = read_matrix(j, u, up, err);
    if (rc != FM_OK)
        return rc;
    fm_layout_interleave(rows, gate, up, NULL, j->x.rows, j->x.config.H,
                         fm_dtype_bits(t->t.dtype) / 8);
    return check_rebuilt(j, t, FM_SEGMENT_GATE_UP, rows, err);
}

static void check_unit(void *arg, int i)
{
    struct job *j = arg;
    const struct unit *u = &j->unit[i];
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
        rc = check_gate_up(j, t, &err);
        break;
    case FM_FILL_DOWN:
        rc = check_down(j, t, &err);
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

/* Tasks for every tensor that is what the plan says. */
static int plan_units(struct job *j, bool *usable, struct fm_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < j->x.tensors; i++)
        n += j->x.tensor[i].fill == FM_FILL_FLAT ? (size_t)j->x.config.E : 1;
    j->unit = fm_alloc(n, sizeof *j->unit, "the list of checks", err);
    j->up = fm_alloc((size_t)j->x.config.L * (size_t)j->x.config.E, sizeof *j->up, "experts", err);
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
        for (int e = 0; e < (t->fill == FM_FILL_FLAT ? j->x.config.E : 1); e++)
            j->unit[j->units++] = (struct unit){i, e};
    }
    return FM_OK;
}

static int check_weights(struct job *j, struct fm_err *err)
{
    const struct fm_config *c = &j->x.config;
    for (int i = 0; i < c->L * c->E; i++)
        if (fm_segments_at(&j->seg, j->x.widths[i]) < 0)
            return fm_fail(err, FM_EFORMAT, "%s: width %" PRIu32 " is no boundary of its segments",
                           j->run.input, j->x.widths[i]);
    bool *usable = fm_alloc(j->x.tensors, sizeof *usable, "the list of tensors", err);
    if (!usable)
        return err->code;
    for (size_t i = 0; i < j->x.tensors; i++)
        usable[i] = check_tensor(j, &j->x.tensor[i]);
    int rc = plan_units(j, usable, err);
    free(usable);
    if (rc != FM_OK)
        return rc;
    fm_crew_init(&j->v->crew, j->v->run, "verify", fm_exporter_weight_bytes(&j->x));
    fm_pool_for(j->units, check_unit, j);
    return fm_crew_end(&j->v->crew, err);
}

int fm_verify_export(struct fm_verifier *v, struct fm_err *err)
{
    struct job j = {.v = v, .run = *v->run};
    j.run.input = v->options->against;
    j.x = (struct fm_exporter){.run = &j.run, .options = &j.options, .head = true};
    v->report->kind = "export";
    int rc = open_bundle(&j, err);
    if (rc == FM_OK) {
        v->report->kind = fm_layout_name(j.options.layout);
        v->report->index = j.x.index;
        v->report->budget = j.x.budgets.budget[j.x.index].budget;
        rc = check_files(&j, err);
    }
    if (rc == FM_OK)
        rc = check_weights(&j, err);
    for (size_t i = 0; j.shard && i < j.x.files; i++) {
        if (rc == FM_OK && j.shard[i].open)
            rc = fm_file_unchanged(&j.shard[i].file, err);
        fm_safetensors_close(&j.shard[i].st);
        if (j.shard[i].open)
            fm_file_close(&j.shard[i].file);
    }
    free(j.shard);
    free(j.unit);
    free(j.up);
    fm_exporter_release(&j.x);
    fm_segments_release(&j.seg);
    return rc;
}
