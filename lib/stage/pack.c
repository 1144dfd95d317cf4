/*
 * Everything but the weights' bytes is planned first: the members, their sizes, and the boundaries
 * at which digests are taken.  Then the weights are copied.  In a bundle, the digests of all
 * segments come before the weights.  In a file they are filled in afterwards.  For a pipe the
 * checkpoint is read twice, and the two passes are compared, so that a checkpoint that changes in
 * between does not become a bundle.
 */
#include "lib/stage/pack.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/bundle/partname.h"
#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/units.h"
#include "lib/model/stored.h"
#include "lib/stage/packing.h"
#include "lib/stage/lorafile.h"

/* ---- plans ---- */

static int check_sizes(const struct fm_packing *p, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    const struct fm_masks *f = &p->budgets.masks;
    if (p->ranking.M != c->M || p->ranking.E != c->E || p->ranking.I != c->I || f->M != c->M ||
        f->E != c->E || f->I != c->I)
        return fm_fail(err, FM_ECONFIG, "%s: ranking and masks do not have the shape of %s",
                       p->in.file.path, p->run->inputs.model);
    bool biased = p->adapter.router && fm_weights_biased_router(c);
    if (p->adapter.M && (p->adapter.M != c->M || p->adapter.E != c->E || p->adapter.H != c->H ||
                         p->adapter.biased != biased))
        return fm_fail(err, FM_ECONFIG, "%s: the adapter does not have the shape of %s",
                       p->in.file.path, p->run->inputs.model);
    return FM_OK;
}

/* Refuse the name of a part as output: a bundle with such a name would be read as one part of
 * several. */
static int check_name(const struct fm_run_options *run, struct fm_err *err)
{
    int number, parts;
    return fm_partname_parse(run->outputs.path, &number, &parts)
               ? fm_fail(err, FM_EUSAGE,
                         "--output '%s' is the name of part %d of %d; give a name without these "
                         "numbers, which --part-size adds",
                         run->outputs.path, number, parts)
               : FM_OK;
}

static int open_inputs(struct fm_packing *p, struct fm_err *err)
{
    const char *input = p->run->inputs.stream ? p->run->inputs.stream : "-";
    if (fm_stage_open(&p->in, input, FM_MEMBER_MASKS, err) ||
        fm_checkpoint_open(&p->cp, p->run->inputs.model, err) ||
        fm_stage_model_check(&p->in, &p->cp.dir, err) ||
        fm_stage_weights_read(&p->wanted, &p->in, err) ||
        fm_ranking_open(&p->ranking, &p->in, err) || fm_budgets_open(&p->budgets, &p->in, err))
        return err->code;
    fm_ranking_keep_order(&p->ranking);
    if (fm_bundle_find(&p->in, FM_MEMBER_ADAPTER) &&
        (fm_lorafile_open(&p->adapter, &p->in, err) ||
         (!p->adapter.router && fm_machine_ops(&p->ops, &p->run->machine, FM_F32, err))))
        return err->code;
    if (check_sizes(p, err))
        return err->code;
    char note[FM_EXTRA_NOTE];
    fm_extra_note(note, &p->cp.sum, &p->cp.config);
    if (note[0])
        fm_run_warn(p->run, "%s", note);
    return p->adapter.M ? fm_lorafile_check(&p->adapter, &p->in, &p->budgets.masks, err) : FM_OK;
}

/* ---- codes, or their values ---- */

/* Whether codes can be kept with the ranking's channel group. */
static bool can_keep(struct fm_packed_layers *layers, const struct fm_packing *p,
                     char why[FM_PACKED_WHY])
{
    if (!fm_model_forms(layers, p->cp.model, why))
        return false;
    if (p->ranking.group % layers->group == 0)
        return true;
    snprintf(
        why, FM_PACKED_WHY,
        "codes can only be removed in groups of %d channels, but these were ranked in groups of "
        "%d; rank with --channel-group %d",
        layers->group, p->ranking.group, layers->group);
    return false;
}

/* A router that is stored as codes, or NULL. */
static const struct fm_tensor *find_router_codes(const struct fm_packing *p)
{
    for (size_t i = 0; i < p->cp.rests; i++) {
        const struct fm_stored *s = &p->cp.rest[i];
        if (s->scale && s->weight && s->weight->part == FM_PART_ROUTER)
            return s->tensor;
    }
    return NULL;
}

/* Refuse to store values of a tensor of q, k and v, whose codes cannot be kept because of `why`. */
static int check_chunks(const struct fm_config *c, const char *why, struct fm_err *err)
{
    return fm_stored_chunks(c) < 2
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "qkv_proj must stay codes, because programs differ in the order of its "
                         "rows without scales, and its codes cannot be kept: %s",
                         why);
}

/* Decide whether the bundle keeps codes or stores values. */
static int choose_form(struct fm_packing *p, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    struct fm_pack_report *r = p->report;
    struct fm_packed_layers layers;
    fm_packed_plain(&p->packed, c, p->cp.dtype);
    if (!c->scheme.storage && p->options->weights == FM_WEIGHTS_KEEP)
        return fm_fail(err, FM_ECONFIG, "--weights keep: %s has no codes to keep; omit the option",
                       p->run->inputs.model);
    if (!c->scheme.storage)
        return FM_OK;
    if (p->options->weights == FM_WEIGHTS_BF16) {
        snprintf(r->why_not, sizeof r->why_not, "--weights bf16");
        return check_chunks(c, r->why_not, err);
    }
    if (!can_keep(&layers, p, r->why_not))
        return p->options->weights == FM_WEIGHTS_KEEP
                   ? fm_fail(err, FM_ECONFIG, "--weights keep: %s", r->why_not)
                   : check_chunks(c, r->why_not, err);
    if (p->ops)
        return fm_fail(
            err, FM_ECONFIG,
            "%s: an adapter cannot be merged into codes; pack fm-train's stream to keep the "
            "codes without it, or give --weights bf16 to merge it into their values",
            p->in.file.path);
    const struct fm_tensor *router = p->adapter.router ? find_router_codes(p) : NULL;
    if (router)
        return fm_fail(err, FM_ECONFIG,
                       "tensor '%s' has codes, into which an adapter cannot be merged; use "
                       "--weights bf16",
                       router->name);
    p->packed = layers;
    fm_checkpoint_keep(&p->cp, &layers);
    r->kept = true;
    return FM_OK;
}

/* A tensor outside the experts, as the bundle has it; `name` receives its name if values are
 * written for its codes. */
static struct fm_tensor written(char name[FM_ST_NAME_BYTES_MAX + 1], const struct fm_packing *p,
                                const struct fm_stored *s)
{
    struct fm_tensor t = *s->tensor;
    if (s->scale && !p->packed.storage)
        fm_stored_values(&t, name, s);
    return t;
}

/* Plan segments with boundaries at every action width and at the uniform width of every budget. */
static int plan_segments(struct fm_packing *p, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    const struct fm_actions *a = &p->budgets.actions;
    const struct fm_masks *f = &p->budgets.masks;
    size_t n = 0;
    uint32_t *width = fm_alloc((size_t)a->count + (size_t)f->count, sizeof *width, "widths", err);
    size_t rests = p->cp.rests + p->cp.extras;
    struct fm_tensor *rest = fm_alloc(rests, sizeof *rest, "the list of tensors", err);
    char(*name)[FM_ST_NAME_BYTES_MAX + 1] = fm_alloc(p->cp.rests, sizeof *name, "names", err);
    int rc = width && rest && name ? FM_OK : err->code;
    if (!rc) {
        for (int i = 0; i < a->count; i++)
            width[n++] = a->width[i];
        for (int i = 0; i < f->count; i++)
            width[n++] =
                fm_actions_uniform_export(f->mask[i].removed, c->M, c->E, c->I, a->multiple);
        for (size_t i = 0; i < p->cp.rests; i++)
            rest[i] = written(name[i], p, &p->cp.rest[i]);
        for (size_t i = 0; i < p->cp.extras; i++)
            rest[p->cp.rests + i] = *p->cp.extra[i].tensor;
        rc = fm_segments_init(&p->seg, c, &p->packed, p->cp.dtype, width, n, rest, rests, err);
    }
    /* All digests are still zero, but the size is that of the finished member. */
    if (!rc)
        rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    free(width);
    free(rest);
    free(name);
    return rc;
}

static int alloc_tensors(struct fm_packing_volume *v, size_t n, struct fm_err *err)
{
    v->tensors = n;
    v->tensor = fm_alloc(n, sizeof *v->tensor, "the plan of a member", err);
    v->name_of = fm_alloc(n, sizeof *v->name_of, "the plan of a member", err);
    return v->tensor && v->name_of ? FM_OK : err->code;
}

static int plan_layer(struct fm_packing *p, struct fm_packing_volume *v, struct fm_err *err)
{
    const struct fm_config *c = &p->cp.config;
    int l = c->moe[v->layer];
    fm_volumes_member(v->name, l);
    const struct fm_packed *packed = fm_packed_at(&p->packed, v->layer);
    if (alloc_tensors(v, (size_t)packed->parts, err))
        return err->code;
    for (int i = 0; i < packed->parts; i++) {
        char text[FM_VOLUMES_NAME_BYTES];
        const struct fm_packed_part *part = &packed->part[i];
        struct fm_tensor *t = &v->tensor[i];
        fm_volumes_tensor(text, l, part);
        *t = (struct fm_tensor){
            .name = fm_strdup(text, err), .dtype = part->dtype, .dims = part->dims};
        if (!t->name)
            return err->code;
        memcpy(t->shape, part->shape, sizeof t->shape);
        v->name_of[i] = t->name;
    }
    return FM_OK;
}

/* Plan a member of tensors outside the experts. */
static int plan_others(struct fm_packing_volume *v, const struct fm_packing *p, const char *name,
                       const struct fm_stored *from, size_t tensors, struct fm_err *err)
{
    snprintf(v->name, sizeof v->name, "%s", name);
    v->layer = -1;
    v->from = from;
    if (alloc_tensors(v, tensors, err))
        return err->code;
    for (size_t i = 0; i < v->tensors; i++) {
        char own[FM_ST_NAME_BYTES_MAX + 1];
        v->tensor[i] = written(own, p, &from[i]);
        v->name_of[i] = v->tensor[i].name = fm_strdup(v->tensor[i].name, err);
        if (!v->tensor[i].name)
            return err->code;
    }
    return FM_OK;
}

static int plan_volumes(struct fm_packing *p, struct fm_err *err)
{
    int M = p->cp.config.M;
    p->volumes = M + 1 + (p->cp.extras > 0);
    p->volume = fm_alloc((size_t)p->volumes, sizeof *p->volume, "the list of members", err);
    int rc = p->volume ? FM_OK : err->code;
    for (int i = 0; i < p->volumes && !rc; i++) {
        struct fm_packing_volume *v = &p->volume[i];
        v->layer = i;
        v->extra = i > M;
        if (i < M)
            rc = plan_layer(p, v, err);
        else if (i == M)
            rc = plan_others(v, p, FM_VOLUMES_REST, p->cp.rest, p->cp.rests, err);
        else
            rc = plan_others(v, p, FM_VOLUMES_EXTRA, p->cp.extra, p->cp.extras, err);
        if (!rc)
            rc = fm_safetensors_plan(v->tensor, v->tensors, NULL, &v->header, &v->header_bytes,
                                     &v->file_bytes, err);
    }
    return rc;
}

/* List the members in bundle order, with the bytes of segments.safetensors if they are `final`. */
static int plan_parts(struct fm_packing *p, bool final, struct fm_err *err)
{
    fm_stage_parts_release(&p->parts);
    int rc = fm_stage_parts_collect(&p->parts, FM_STAGE_PACK, &p->in, NULL, NULL, 0, err);
    struct fm_part part = {.name = FM_MEMBER_SEGMENTS,
                           .size = p->segments_bytes,
                           .data = final ? p->segments : NULL,
                           .aligned = true};
    if (!rc)
        rc = fm_stage_parts_add(&p->parts, &part, err);
    for (int i = 0; i < p->volumes && !rc; i++) {
        struct fm_packing_volume *v = &p->volume[i];
        v->part = p->parts.parts;
        part = (struct fm_part){.name = v->name, .size = v->file_bytes, .aligned = true};
        rc = fm_stage_parts_add(&p->parts, &part, err);
    }
    return rc;
}

static cJSON *make_manifest(const struct fm_packing *p)
{
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *manifest = fm_stage_manifest(FM_STAGE_PACK, &p->in, NULL, dropped);
    fm_packed_json(cJSON_GetObjectItemCaseSensitive(manifest, "model"), &p->packed);
    cJSON *entry = fm_stage_history(manifest, "fm-pack");
    fm_json_add_object(entry, "options");
    cJSON *result = fm_json_add_object(entry, "result");
    fm_json_add_uint(result, "segments", (uint64_t)p->seg.S);
    fm_json_add_uint(result, "merged", p->report->merged);
    return manifest;
}

static bool to_pipe(const struct fm_packing *p)
{
    return strcmp(p->run->outputs.path, "-") == 0;
}

/* Number of weights that the adapter changes. */
static uint64_t count_merged(const struct fm_packing *p)
{
    uint64_t channels = 0;
    if (p->adapter.router)
        return p->adapter.offset[(size_t)p->adapter.M * (size_t)p->adapter.E];
    for (int i = 0; p->ops && i < p->adapter.M * p->adapter.E; i++)
        channels += p->adapter.widths[i];
    if (p->adapter.down)
        return channels * (uint64_t)p->cp.config.H;
    return channels * fm_expert_channel_weights(p->cp.config.expert, p->cp.config.H);
}

static uint64_t scale_bytes(const struct fm_stored *s)
{
    return s->scale ? s->scale->size + fm_tensor_count(s->scale) * sizeof(float) : 0;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Set *share to the bytes of the largest share of an expert in a tensor of codes, and *scales to
 * the most bytes that the scales of a tensor or share take, as stored and as floats. */
static void largest_codes(const struct fm_packing *p, uint64_t *share, uint64_t *scales)
{
    const struct fm_checkpoint *cp = &p->cp;
    int E = cp->config.E;
    *share = *scales = 0;
    for (int i = 0; cp->config.scheme.storage && i < cp->config.M * E * cp->tensors; i++) {
        int x = i / cp->tensors;
        const struct fm_share s = fm_checkpoint_share(cp, x / E, x % E, i % cp->tensors);
        uint64_t shares = s.fused ? (uint64_t)E : 1;
        *share = larger(*share, s.at->tensor->size / shares);
        *scales = larger(*scales, scale_bytes(s.at) / shares);
    }
    for (size_t i = 0; i < cp->rests; i++)
        *scales = larger(*scales, scale_bytes(&cp->rest[i]));
}

/* Largest number of rows of a channel in one tensor of the checkpoint: 2 if gate and up are in one
 * tensor. */
static uint64_t rows_of_tensor(const struct fm_packing *p)
{
    uint64_t most = 1;
    for (int i = 0; i < p->cp.tensors; i++) {
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        int cuts =
            fm_expert_cuts(cut, p->cp.config.expert, fm_checkpoint_share(&p->cp, 0, 0, i).part);
        uint64_t rows = 0;
        for (int k = 0; k < cuts; k++)
            rows += (uint64_t)cut[k].rows;
        most = rows > most ? rows : most;
    }
    return most;
}

/* Bytes of a task's scratch: a part of an expert as written and as read, its codes and scales, and
 * its channels in float32 if an adapter is merged; or a piece of another tensor. */
static uint64_t task_memory(const struct fm_packing *p)
{
    uint64_t channels = (uint64_t)p->cp.config.I * (uint64_t)p->cp.config.H;
    uint64_t element = (uint64_t)fm_dtype_bits(p->cp.dtype) / 8;
    uint64_t made = (uint64_t)fm_dtype_bits(fm_packing_made_as(p)) / 8;
    uint64_t rows = (uint64_t)p->cp.config.expert->rows, read = rows_of_tensor(p), share, scales;
    largest_codes(p, &share, &scales);
    bool wide = p->ops || made != element;
    uint64_t item = channels * (rows * element + read * made + (wide ? rows * sizeof(float) : 0));
    if (p->packed.storage) /* codes are kept */
        item = (rows / read + 1) * share;
    else
        item += share;
    bool decoded = p->cp.config.scheme.storage && !p->packed.storage;
    uint64_t piece =
        FM_PACKING_PIECE_BYTES *
        (1 + (decoded ? fm_storage_growth(&p->cp.config.scheme, p->cp.config.schemes) : 0));
    return (item > piece ? item : piece) + scales +
           (uint64_t)p->cp.config.I * rows * sizeof(int32_t);
}

/* Memory for the names and places of a checkpoint's tensors, which the model lists twice. */
static uint64_t index_memory(const struct fm_checkpoint *cp)
{
    uint64_t bytes = (cp->rests + cp->asides + cp->extras) * sizeof *cp->rest;
    for (size_t i = 0; i < cp->dir.shards; i++) {
        const struct fm_safetensors *st = &cp->dir.shard[i].st;
        bytes += st->count * (sizeof *st->tensor + 2 * sizeof(struct fm_stored));
        for (size_t t = 0; t < st->count; t++)
            bytes += strlen(st->tensor[t].name) + 2 * sizeof(void *);
    }
    return bytes;
}

/* The most bytes of memory in use: while the ranking is read or, with the ranking's order and the
 * adapter in memory, while the adapter is read or weights are written.  Merging needs oneDNN. */
static uint64_t plan_memory(const struct fm_packing *p)
{
    /* For a pipe, the thread that writes also holds the parts that the others have made. */
    uint64_t threads = (uint64_t)fm_pool_threads(), tasks = to_pipe(p) ? 2 * threads - 1 : threads;
    uint64_t writing = tasks * task_memory(p) + p->segments_bytes;
    const struct fm_member *member = fm_bundle_find(&p->in, FM_MEMBER_ADAPTER);
    uint64_t adapter = member && p->adapter.M ? member->size : 0;
    uint64_t order = (uint64_t)p->ranking.M * (uint64_t)p->ranking.E * (uint64_t)p->ranking.I *
                     sizeof *p->ranking.order;
    uint64_t reading = 2 * fm_bundle_find(&p->in, FM_MEMBER_RANKING)->size;
    uint64_t most = order + adapter + (adapter > writing ? adapter : writing);
    return FM_PROCESS_BYTES + (p->ops ? FM_ENGINE_BYTES : 0) + (reading > most ? reading : most) +
           index_memory(&p->cp);
}

static void tell_large(const struct fm_packing *p, uint64_t largest)
{
    char bytes[32];
    fm_units_bytes(bytes, largest);
    fm_run_warn(
        p->run,
        "a file of %s: hubs recommend files of at most 200 GB; use --part-size 50GB to write parts",
        bytes);
}

/* The names of the first and the last part, without directories. */
static int name_parts(struct fm_pack_report *r, const char *path, struct fm_err *err)
{
    const char *slash = strrchr(path, '/');
    char *first = fm_partname(slash ? slash + 1 : path, 1, r->parts, err);
    char *last = first ? fm_partname_other(first, r->parts, err) : NULL;
    if (last) {
        snprintf(r->part_first, sizeof r->part_first, "%s", first);
        snprintf(r->part_last, sizeof r->part_last, "%s", last);
    }
    free(first);
    free(last);
    return last ? FM_OK : err->code;
}

static int fill_report(struct fm_packing *p, struct fm_err *err)
{
    struct fm_pack_report *r = p->report;
    r->layers = p->cp.config.M;
    r->experts = p->cp.config.E;
    r->budgets = p->budgets.masks.count;
    r->segments = p->seg.S;
    r->adapter = p->adapter.M > 0;
    r->merged = count_merged(p);
    fm_model_bytes(p->cp.model, &r->bytes_in, &r->bytes_values);
    r->bytes_weights = r->kept ? r->bytes_in : r->bytes_values;
    fm_storage_names(r->storage, &p->cp.config.scheme, p->cp.config.schemes);
    r->extra = p->cp.sum;
    p->scratch = task_memory(p);
    r->bytes_memory = plan_memory(p);
    r->passes = to_pipe(p) ? 2 : 1;
    cJSON *manifest = make_manifest(p);
    struct fm_bundle_sizes sizes = {0};
    int rc = fm_bundle_size(&sizes, p->options->part_bytes, manifest, p->parts.part, p->parts.parts,
                            err);
    cJSON_Delete(manifest);
    r->bytes_out = sizes.all;
    r->bytes_largest = sizes.largest;
    r->parts = sizes.files;
    if (!rc && r->parts > 1)
        rc = name_parts(r, p->run->outputs.path, err);
    if (rc && p->options->part_bytes)
        fm_within(err, "--part-size");
    if (rc || to_pipe(p))
        return rc;
    if (sizes.largest > FM_PACK_FILE_BYTES)
        tell_large(p, sizes.largest);
    return fm_run_space(p->run->outputs.path, "bundle", r->bytes_out, &r->bytes_free, err);
}

static int plan(struct fm_packing *p, struct fm_err *err)
{
    if (choose_form(p, err) || plan_segments(p, err) || plan_volumes(p, err) ||
        plan_parts(p, false, err))
        return err->code;
    return fill_report(p, err);
}

/* ---- a bundle with the output's name in a different number of files ---- */

struct replaced {
    char *first[2]; /* first file of a bundle in one file, and of one in parts; NULL: it does not
                       exist */
};

/* Find a bundle with the output's name in a different number of files; FM_ECREATE if it may not be
 * replaced. */
static int find_replaced(struct replaced *old, const struct fm_packing *p, struct fm_err *err)
{
    const char *path = p->run->outputs.path;
    int number, parts;
    if (to_pipe(p))
        return FM_OK;
    fm_outdir_spread_restore(path); /* of a run that was killed */
    if (p->report->parts > 1 && access(path, F_OK) == 0 && !(old->first[0] = fm_strdup(path, err)))
        return err->code;
    char *first = fm_partname_find(path, err);
    if (!first)
        return err->code;
    if (strcmp(first, path) != 0 && fm_partname_parse(first, &number, &parts) &&
        parts != p->report->parts)
        old->first[1] = first;
    else
        free(first);
    for (int i = 0; i < 2; i++)
        if (old->first[i] && !p->run->outputs.force) {
            fm_fail(err, FM_ECREATE, "'%s' exists and is a bundle of the same name", old->first[i]);
            return fm_advise(err, FM_ADVISE_REPLACE);
        }
    return FM_OK;
}

/* Remove the old bundle, beginning with its first file, after the new one is complete.  A file that
 * cannot be opened as a bundle is kept. */
static void remove_replaced(const struct replaced *old, const struct fm_run_options *run)
{
    for (int i = 0; i < 2; i++) {
        struct fm_bundle b;
        struct fm_err err = {0};
        if (!old->first[i])
            continue;
        int rc = fm_stage_open(&b, old->first[i], NULL, &err);
        int parts = !rc && i ? b.parts : 1;
        if (!rc)
            fm_bundle_close(&b);
        for (int k = 1; k <= parts && !rc; k++) {
            char *name = i ? fm_partname_other(old->first[i], k, &err) : old->first[i];
            rc = !name          ? err.code
                 : unlink(name) ? fm_fail_errno(&err, "cannot remove '%s'", name)
                                : 0;
            if (i)
                free(name);
        }
        if (rc)
            fm_run_warn(run, "an old bundle of the same name was not removed: %s", err.text);
    }
}

/* ---- writing ---- */

static int finish_segments(struct fm_packing *p, struct fm_err *err)
{
    size_t planned = p->segments_bytes;
    free(p->segments);
    p->segments = NULL;
    int rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    assert(rc || p->segments_bytes == planned);
    return rc;
}

static int begin(struct fm_packing *p, struct fm_err *err)
{
    return fm_bundle_begin_parts(&p->writer, p->run->outputs.path, p->options->part_bytes,
                                 p->run->outputs.force, make_manifest(p), p->parts.part,
                                 p->parts.parts, err);
}

/* Check that the second pass read the same bytes as the first.  If not, the reader of the pipe gets
 * a truncated stream. */
static int compare_passes(const struct fm_packing *p, struct fm_err *err)
{
    void *segments = NULL;
    size_t size = 0;
    int rc = fm_segments_write(&p->seg, &segments, &size, err);
    if (!rc && (size != p->segments_bytes || memcmp(segments, p->segments, size) != 0))
        rc =
            fm_fail(err, FM_EIO, "%s: the weights changed between the first reading and the second",
                    p->run->inputs.model);
    free(segments);
    return rc;
}

/* Compute the digests in a first pass, then write everything in order. */
static int write_pipe(struct fm_packing *p, struct fm_err *err)
{
    if (fm_packing_pass(p, "digests", err) || fm_packing_check_sums(p, err) ||
        finish_segments(p, err) || plan_parts(p, true, err) || begin(p, err) ||
        fm_packing_pass(p, "weights", err))
        return err->code;
    return compare_passes(p, err);
}

/* Write everything once; the digests go to the space reserved for them. */
static int write_file(struct fm_packing *p, struct fm_err *err)
{
    int rc = FM_OK;
    if (begin(p, err) || fm_packing_pass(p, "weights", err) || fm_packing_check_sums(p, err) ||
        finish_segments(p, err))
        rc = err->code;
    return !rc ? fm_bundle_append(p->writer, p->volume[0].part - 1, p->segments, p->segments_bytes,
                                  err)
               : rc;
}

/* Write everything; the output has no name before fm_bundle_finish. */
static int write_bundle(struct fm_packing *p, struct replaced *old, struct fm_err *err)
{
    if (plan(p, err) || find_replaced(old, p, err) ||
        (to_pipe(p) ? write_pipe(p, err) : write_file(p, err)))
        return err->code;
    return fm_bundle_complete(p->writer, err);
}

static void release(struct fm_packing *p)
{
    fm_bundle_abandon(p->writer);
    for (int i = 0; p->volume && i < p->volumes; i++) {
        for (size_t t = 0; p->volume[i].tensor && t < p->volume[i].tensors; t++)
            free((char *)(uintptr_t)p->volume[i].tensor[t].name);
        free(p->volume[i].tensor);
        free(p->volume[i].name_of);
        free(p->volume[i].header);
    }
    free(p->volume);
    free(p->segments);
    fm_stage_parts_release(&p->parts);
    fm_segments_release(&p->seg);
    fm_adapter_release(&p->adapter);
    fm_budgets_release(&p->budgets);
    fm_ranking_release(&p->ranking);
    fm_checkpoint_close(&p->cp);
    fm_bundle_close(&p->in);
}

int fm_pack(const struct fm_run_options *run, const struct fm_pack_options *options,
            struct fm_pack_report *report, struct fm_err *err)
{
    double start = fm_clock_now();
    struct fm_packing p = {.run = run, .options = options, .report = report};
    struct replaced old = {{NULL}};
    *report = (struct fm_pack_report){0};
    int rc = FM_OK;
    if (check_name(run, err) || open_inputs(&p, err) || write_bundle(&p, &old, err))
        rc = err->code;
    report->seconds = fm_clock_now() - start;
    if (rc)
        goto out;
    rc = fm_run_announce(run, err);
    if (rc)
        goto out;
    rc = fm_bundle_finish(p.writer, err);
    p.writer = NULL;
    if (!rc)
        remove_replaced(&old, run);
out:
    free(old.first[0]);
    free(old.first[1]);
    release(&p);
    return rc;
}

int fm_pack_plan(const struct fm_run_options *run, const struct fm_pack_options *options,
                 struct fm_pack_report *report, struct fm_err *err)
{
    struct fm_packing p = {.run = run, .options = options, .report = report};
    *report = (struct fm_pack_report){0};
    int rc = FM_OK;
    if (check_name(run, err) || open_inputs(&p, err) || plan(&p, err))
        rc = err->code;
    release(&p);
    return rc;
}

/* ---- comparing ---- */

/* Compare the experts of a tensor of a layer; report the tensor if the digests of any differ. */
static void compare_part(const struct fm_packing *p, const struct fm_segments *said, int m,
                         int part, struct fm_pack_compared *out)
{
    char item[FM_VOLUMES_NAME_BYTES], what[128];
    int first = -1, count = 0, at = 0;
    size_t size = (size_t)said->S * sizeof(struct fm_digest);
    for (int e = 0; e < said->E; e++) {
        const struct fm_digest *a = fm_segments_expert(&p->seg, m, part, e);
        const struct fm_digest *b = fm_segments_expert(said, m, part, e);
        if (memcmp(a, b, size) == 0)
            continue;
        first = count++ ? first : e;
        while (first == e && fm_digest_equal(&a[at], &b[at]))
            at++;
    }
    out->items++;
    if (!count)
        return;
    fm_volumes_tensor(item, p->cp.config.moe[m], &fm_packed_at(&said->packed, m)->part[part]);
    snprintf(what, sizeof what,
             "differs from the checkpoint in %d of %d experts; the first is %d, from channel %d on",
             count, said->E, first, said->bound[at]);
    out->differs(out->self, item, what);
}

static int compare_all(const struct fm_packing *p, struct fm_pack_compared *out, struct fm_err *err)
{
    struct fm_segments said = {0};
    int rc = fm_segments_read(&said, &p->in, &p->cp.config, err);
    size_t bounds = ((size_t)p->seg.S + 1) * sizeof *said.bound;
    bool same = !rc && said.S == p->seg.S && memcmp(said.bound, p->seg.bound, bounds) == 0;
    for (int m = 0; same && m < p->cp.config.M; m++)
        same = fm_packed_equal(fm_packed_at(&said.packed, m), fm_packed_at(&p->seg.packed, m));
    if (!rc && !same)
        rc = fm_fail(err, FM_EFORMAT, "%s: its segments are not those of its masks",
                     p->in.file.path);
    for (int m = 0; m < p->cp.config.M && !rc; m++)
        for (int part = 0; part < fm_packed_at(&said.packed, m)->parts; part++)
            compare_part(p, &said, m, part, out);
    for (size_t i = 0; i < p->seg.tensors && !rc; i++, out->items++) {
        const struct fm_segment_tensor *have = fm_segments_find(&said, p->seg.tensor[i].t.name);
        if (!have || !fm_digest_equal(&have->digest, &p->seg.tensor[i].digest))
            out->differs(out->self, p->seg.tensor[i].t.name,
                         have ? "differs from the checkpoint" : "is missing");
    }
    fm_segments_release(&said);
    return rc;
}

int fm_pack_compare(const struct fm_run_options *run, struct fm_pack_compared *compared,
                    struct fm_err *err)
{
    struct fm_pack_options options = {0};
    struct fm_pack_report report = {0};
    struct fm_packing p = {.run = run, .options = &options, .report = &report};
    int rc = open_inputs(&p, err);
    if (rc)
        goto out;
    if (p.cp.config.scheme.storage)
        options.weights = fm_packed_in(&p.in) ? FM_WEIGHTS_KEEP : FM_WEIGHTS_BF16;
    if (choose_form(&p, err) || plan_segments(&p, err) || plan_volumes(&p, err)) {
        rc = err->code;
        goto out;
    }
    fm_model_bytes(p.cp.model, &report.bytes_in, &report.bytes_values);
    report.bytes_weights = report.kept ? report.bytes_in : report.bytes_values;
    if (fm_packing_pass(&p, "compare", err) || fm_packing_check_sums(&p, err) ||
        compare_all(&p, compared, err))
        rc = err->code;
out:
    compared->bytes = report.bytes_in;
    release(&p);
    return rc;
}
