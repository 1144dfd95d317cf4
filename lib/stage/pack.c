/*
 * Everything but the weights' bytes is planned before the first of them is written:
 *
 *     stage stream     checkpoint
 *            |             |
 *         open_inputs            ranking, masks, adapter; the index of tensors
 *               |
 *         choose_form            are codes kept, or their values stored?
 *               |
 *         plan_segments          the boundaries at which digests are taken
 *         plan_volumes           the members under weights/
 *         plan_parts             all members, in order
 *         fill_report            sizes, memory; a --dry-run ends here
 *               |
 *     to a file    begin, pass, check_sums, finish_segments: fills in the digests
 *     to a pipe    pass, check_sums, finish_segments, begin, pass, compare_passes
 *     to compare   pass, check_sums, compare_all: with the digests of a bundle
 *
 * In a bundle, the digests of all segments come before the weights.  So for a pipe the checkpoint
 * is read twice, and the two passes are compared, so that a checkpoint that changes in between does
 * not become a bundle.  A pass visits every tensor of every member, with or without a writer:
 *
 *     pass_volume -> pass_tensor   a layer's: make_expert for each (read_share, fm_move, merge)
 *                 -> pass_other    any other: pass_piece for each piece of the file
 *
 * For a file, each thread makes the experts of a different member, one at a time; for a pipe, all
 * threads make experts of one tensor, which are appended in order.  So only a few experts are in
 * memory.  Rows are copied as bytes in their own dtype; only weights that the adapter changes, and
 * the values of codes, are computed in float32 and rounded once.  An expert is hashed, and checked
 * for NaN and Inf, while it is in the cache.
 *
 * Invariants:
 *  1. The plan is exact: a member has the size, and segments.safetensors the bytes, that were
 *     planned.
 *  2. `tensor` of a volume is in the order of the file, `name_of` in that of its parts or sources.
 *  3. The digests of an expert's part are written only by the task that makes it.  Sums over a
 *     tensor's shares or pieces are added by several tasks, under p->lock.
 */
#include "lib/stage/pack.h"

#include <assert.h>
#include <pthread.h>
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
#include "lib/engine/adapter.h"
#include "lib/model/checkpoint.h"
#include "lib/model/reading.h"
#include "lib/run/taskgroup.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "lib/stage/volumes.h"

/* A member under weights/: its header, and its tensors in file order. */
struct volume {
    char name[FM_VOLUMES_NAME_BYTES];
    char *header;
    uint64_t header_bytes, file_bytes;
    struct fm_tensor *tensor;
    size_t tensors;
    const char **name_of; /* (tensors) names in order of parts, or of `from`; `tensor` has the same
                             pointers */
    int layer;            /* -1: tensors outside the experts */
    const struct fm_stored *from; /* (tensors) the tensors' sources */
    bool extra;                   /* extra tensors, whose values are not checked */
    size_t part;
};

struct packing {
    const struct fm_run_options *run;
    const struct fm_pack_options *options;
    struct fm_pack_report *report;
    struct fm_bundle in;
    struct fm_checkpoint cp;
    struct fm_ranking ranking;
    struct fm_budgets budgets;
    struct fm_adapter adapter;
    const struct fm_ops *ops; /* NULL: no adapter of experts; without any adapter, adapter.M is 0 */
    struct fm_packed_layers packed; /* the tensors of each layer */
    struct fm_segments seg;
    struct volume *volume; /* layers, the other tensors, extra tensors */
    int volumes;
    struct fm_stage_parts parts;
    void *segments; /* bytes of the member; all digests are zero until they are known */
    size_t segments_bytes;
    struct fm_bundle_writer *writer; /* NULL: a pass that only computes digests */
    uint64_t scratch;                /* bytes of a task's scratch */
    int at_once;                     /* number of experts of one volume that are made in parallel */
    struct fm_reading_sums wanted,
        sums;             /* sums of the ranked checkpoint, and of the one that is read */
    pthread_mutex_t lock; /* guards sums, and the pieces of struct run */
    struct fm_taskgroup tasks;
};

static bool to_pipe(const struct packing *p)
{
    return strcmp(p->run->outputs.path, "-") == 0;
}

/* ---- inputs ---- */

static int check_sizes(const struct packing *p, struct fm_err *err)
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

static int open_inputs(struct packing *p, struct fm_err *err)
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

/* ---- form: codes, or their values ---- */

/* Whether codes can be kept with the ranking's channel group. */
static bool can_keep(struct fm_packed_layers *layers, const struct packing *p,
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
static const struct fm_tensor *find_router_codes(const struct packing *p)
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
static int choose_form(struct packing *p, struct fm_err *err)
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

/* ---- plan: segments and members ---- */

/* A tensor outside the experts, as the bundle has it; `name` receives its name if values are
 * written for its codes. */
static struct fm_tensor written(char name[FM_ST_NAME_BYTES_MAX + 1], const struct packing *p,
                                const struct fm_stored *s)
{
    struct fm_tensor t = *s->tensor;
    if (s->scale && !p->packed.storage)
        fm_stored_values(&t, name, s);
    return t;
}

static int plan_segments(struct packing *p, struct fm_err *err)
{
    int n = p->budgets.actions.count + p->budgets.masks.count;
    uint32_t *width = fm_alloc((size_t)n, sizeof *width, "widths", err);
    size_t rests = p->cp.rests + p->cp.extras;
    struct fm_tensor *rest = fm_alloc(rests, sizeof *rest, "the list of tensors", err);
    char(*name)[FM_ST_NAME_BYTES_MAX + 1] = fm_alloc(p->cp.rests, sizeof *name, "names", err);
    int rc = width && rest && name ? FM_OK : err->code;
    if (!rc) {
        for (int i = 0; i < n; i++)
            width[i] = fm_budgets_bound(&p->budgets, i);
        for (size_t i = 0; i < p->cp.rests; i++)
            rest[i] = written(name[i], p, &p->cp.rest[i]);
        for (size_t i = 0; i < p->cp.extras; i++)
            rest[p->cp.rests + i] = *p->cp.extra[i].tensor;
        rc = fm_segments_init(&p->seg, &p->cp.config, &p->packed, p->cp.dtype, width, (size_t)n,
                              rest, rests, err);
    }
    /* All digests are still zero, but the size is that of the finished member. */
    if (!rc)
        rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    free(width);
    free(rest);
    free(name);
    return rc;
}

static int alloc_tensors(struct volume *v, size_t n, struct fm_err *err)
{
    v->tensors = n;
    v->tensor = fm_alloc(n, sizeof *v->tensor, "the plan of a member", err);
    v->name_of = fm_alloc(n, sizeof *v->name_of, "the plan of a member", err);
    return v->tensor && v->name_of ? FM_OK : err->code;
}

static int plan_layer(struct packing *p, struct volume *v, struct fm_err *err)
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
static int plan_others(struct volume *v, const struct packing *p, const char *name,
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

static int plan_volumes(struct packing *p, struct fm_err *err)
{
    int M = p->cp.config.M;
    p->volumes = M + 1 + (p->cp.extras > 0);
    p->volume = fm_alloc((size_t)p->volumes, sizeof *p->volume, "the list of members", err);
    int rc = p->volume ? FM_OK : err->code;
    for (int i = 0; i < p->volumes && !rc; i++) {
        struct volume *v = &p->volume[i];
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
static int plan_parts(struct packing *p, bool final, struct fm_err *err)
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
        struct volume *v = &p->volume[i];
        v->part = p->parts.parts;
        part = (struct fm_part){.name = v->name, .size = v->file_bytes, .aligned = true};
        rc = fm_stage_parts_add(&p->parts, &part, err);
    }
    return rc;
}

static cJSON *make_manifest(const struct packing *p)
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

/* ---- memory ---- */

/* Dtype in which an expert is reordered: the bundle's, or float32 if an adapter is merged into
 * values of codes, so that they are rounded only once, after the merge. */
static enum fm_dtype made_as(const struct packing *p)
{
    return p->cp.config.scheme.storage && p->ops ? FM_F32 : p->cp.dtype;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t scale_bytes(const struct fm_stored *s)
{
    return s->scale ? s->scale->size + fm_tensor_count(s->scale) * sizeof(float) : 0;
}

/* Set *share to the bytes of the largest share of an expert in a tensor of codes, and *scales to
 * the most bytes that the scales of a tensor or share take, as stored and as floats. */
static void largest_codes(const struct packing *p, uint64_t *share, uint64_t *scales)
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
static uint64_t rows_of_tensor(const struct packing *p)
{
    uint64_t most = 1;
    for (int i = 0; i < p->cp.tensors; i++) {
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        int cuts =
            fm_expert_cuts(cut, p->cp.config.expert, fm_checkpoint_share(&p->cp, 0, 0, i).part);
        uint64_t rows = 0;
        for (int k = 0; k < cuts; k++)
            rows += (uint64_t)cut[k].rows;
        most = larger(most, rows);
    }
    return most;
}

/* Bytes of a task's scratch: a part of an expert as written and as read, its codes and scales, and
 * its channels in float32 if an adapter is merged; or a piece of another tensor.  Also the largest
 * matrix that is transposed when it is read. */
static uint64_t task_memory(const struct packing *p)
{
    uint64_t channels = (uint64_t)p->cp.config.I * (uint64_t)p->cp.config.H;
    uint64_t element = (uint64_t)fm_dtype_bits(p->cp.dtype) / 8;
    uint64_t made = (uint64_t)fm_dtype_bits(made_as(p)) / 8;
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
        FM_READING_PIECE *
        (1 + (decoded ? fm_storage_growth(&p->cp.config.scheme, p->cp.config.schemes) : 0));
    uint64_t turned = 0;
    for (size_t i = 0; i < p->cp.dir.shards; i++)
        for (size_t t = 0; t < p->cp.dir.shard[i].st.count; t++)
            turned = larger(turned, fm_tensor_scratch(&p->cp.dir.shard[i].st.tensor[t]));
    return larger(item, piece) + turned + scales +
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
static uint64_t plan_memory(const struct packing *p)
{
    /* For a pipe, the thread that writes also holds the parts that the others have made. */
    uint64_t threads = (uint64_t)fm_pool_threads(), tasks = to_pipe(p) ? 2 * threads - 1 : threads;
    uint64_t writing = tasks * task_memory(p) + p->segments_bytes;
    const struct fm_member *member = fm_bundle_find(&p->in, FM_MEMBER_ADAPTER);
    uint64_t adapter = member && p->adapter.M ? member->size : 0;
    uint64_t order = (uint64_t)p->ranking.M * (uint64_t)p->ranking.E * (uint64_t)p->ranking.I *
                     sizeof *p->ranking.order;
    uint64_t reading = 2 * fm_bundle_find(&p->in, FM_MEMBER_RANKING)->size;
    uint64_t most = larger(reading, order + adapter + larger(adapter, writing));
    return FM_PROCESS_BYTES + (p->ops ? FM_ENGINE_BYTES : 0) + most + index_memory(&p->cp);
}

/* ---- report ---- */

static void tell_large(const struct packing *p, uint64_t largest)
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
    char *first = fm_partname(basename(path), 1, r->parts, err);
    char *last = first ? fm_partname_other(first, r->parts, err) : NULL;
    if (last) {
        snprintf(r->part_first, sizeof r->part_first, "%s", first);
        snprintf(r->part_last, sizeof r->part_last, "%s", last);
    }
    free(first);
    free(last);
    return last ? FM_OK : err->code;
}

/* Number of weights that the adapter changes. */
static uint64_t count_merged(const struct packing *p)
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

static void report_weights(const struct packing *p)
{
    struct fm_pack_report *r = p->report;
    fm_model_bytes(p->cp.model, &r->bytes_in, &r->bytes_values);
    r->bytes_weights = r->kept ? r->bytes_in : r->bytes_values;
}

static int fill_report(struct packing *p, struct fm_err *err)
{
    struct fm_pack_report *r = p->report;
    r->layers = p->cp.config.M;
    r->experts = p->cp.config.E;
    r->budgets = p->budgets.masks.count;
    r->segments = p->seg.S;
    r->adapter = p->adapter.M > 0;
    r->merged = count_merged(p);
    report_weights(p);
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

static int plan(struct packing *p, struct fm_err *err)
{
    if (choose_form(p, err) || plan_segments(p, err) || plan_volumes(p, err) ||
        plan_parts(p, false, err))
        return err->code;
    return fill_report(p, err);
}

/* ---- the pass: a tensor of a layer, expert by expert ---- */

/* A range of experts of one tensor, made in parallel and appended in order. */
struct run {
    struct packing *p;
    int layer, first, part;         /* `part` is the index of a tensor in `packed` */
    const struct fm_packed *packed; /* the layer's */
    char *rows;                     /* one after another */
    size_t bytes;
    /* Sums of the shares' digests, for tensors that hold all experts. */
    struct fm_digest pieces[FM_EXPERT_TENSORS_MAX][FM_READING_SUMS];
};

static const struct fm_packed_part *part_of(const struct run *w)
{
    return &w->packed->part[w->part];
}

/* The place in [0, L] where a tensor of a stock checkpoint is summed (scales: with their weight);
 * -1 if it is not summed. */
static int place_of_sum(const struct fm_config *config, const struct fm_stored *s)
{
    if (!s->weight || s->role > FM_STORED_FACTOR || fm_weights_is_carried(s->weight))
        return -1;
    return s->l < 0 ? config->L : s->l;
}

/* The reading of a tensor, or with `pieces` of expert e's share of it. */
static struct fm_reading reading_of(struct packing *p, const struct fm_stored *at, int e,
                                    struct fm_digest *pieces)
{
    int l = place_of_sum(&p->cp.config, at);
    return (struct fm_reading){.at = at,
                               .e = pieces ? e : -1,
                               .E = p->cp.config.E,
                               .lock = &p->lock,
                               .sum = l < 0 ? NULL : &p->sums.sum[l],
                               .pieces = pieces};
}

/* The reading of share i of expert e (lib/model/checkpoint.h). */
static struct fm_reading share_of(struct run *w, int e, int i)
{
    const struct fm_share share = fm_checkpoint_share(&w->p->cp, w->layer, e, i);
    return reading_of(w->p, share.at, e, share.fused ? w->pieces[i] : NULL);
}

/* Add the digests of tensors that hold all experts, once every expert's share has been read. */
static void join_sums(struct run *w)
{
    int plane = part_of(w)->plane; /* -1: values, for which codes and scales are read */
    for (int i = 0; i < w->p->cp.tensors; i++) {
        const struct fm_reading r = share_of(w, 0, i);
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        fm_expert_cuts(cut, w->p->cp.config.expert,
                       fm_checkpoint_share(&w->p->cp, w->layer, 0, i).part);
        for (int n = 0; n < FM_READING_SUMS && r.pieces && cut[0].of == part_of(w)->of; n++)
            if (plane < 0 || n == plane)
                fm_reading_join(&r, n);
    }
}

/* Widen and check the scales `raw` of codes into scratch.  If codes are kept, scales and factor are
 * also copied as separate tensors, which adds their digests. */
static int widen_scales(struct packing *p, const struct fm_reading *r, const void *raw,
                        struct fm_scales *scales, struct fm_err *err)
{
    float factor = 1;
    if (fm_reading_factor(&factor, r, !p->packed.storage, err) ||
        fm_reading_widen(scales, r, raw, factor, err))
        return fm_within(err, "%s", r->at->scale_file->path);
    return FM_OK;
}

/* Read and widen the scales of codes; scales->scale is NULL for values. */
static int read_scales(struct packing *p, const struct fm_reading *r, struct fm_scales *scales,
                       struct fm_err *err)
{
    struct fm_reading own = *r;
    const void *raw;
    *scales = (struct fm_scales){0};
    own.sum = p->packed.storage ? NULL : r->sum;
    if (!r->at->scale)
        return FM_OK;
    return fm_reading_scales(&raw, &own, err) ? err->code : widen_scales(p, &own, raw, scales, err);
}

/* FM_EFORMAT if one of the n codes or values of a reading is not finite. */
static int check_finite(const struct fm_reading *r, const void *raw, size_t n, struct fm_err *err)
{
    if (fm_stored_finite(r->at, raw, r->e < 0 ? 0 : (size_t)r->e * n, n, err))
        return fm_within(err, "%s", r->at->file->path);
    return FM_OK;
}

/* Read share i of expert e: a plane, or the values as `dtype`.  FM_EFORMAT if it has a code, scale
 * or value that is not valid.  Scales without a channel dimension have no part and are read and
 * checked with the codes. */
static int read_share(struct run *w, int e, int i, void *dst, enum fm_dtype dtype,
                      struct fm_err *err)
{
    const struct fm_reading r = share_of(w, e, i);
    const struct fm_tensor *t = r.at->tensor;
    int plane = part_of(w)->plane;
    size_t n = (size_t)fm_stored_count(r.at) / (size_t)(r.e < 0 ? 1 : r.E);
    struct fm_mark mark = fm_scratch_mark();
    void *raw = plane < 0 && t->dtype != dtype ? fm_scratch(fm_reading_size(&r, 0)) : dst;
    struct fm_scales scales;
    int rc = fm_reading_share(raw, &r, plane > 0, err);
    if (!rc)
        rc = plane > 0 ? widen_scales(w->p, &r, dst, &scales, err) : check_finite(&r, raw, n, err);
    if (!rc && plane <= 0 && (plane < 0 || !fm_packed_find(w->packed, part_of(w)->of, 1)))
        rc = read_scales(w->p, &r, &scales, err);
    if (!rc && raw != dst)
        fm_stored_write(dst, dtype, raw, t->dtype, scales.scale ? &scales : NULL, n);
    fm_scratch_release(mark);
    return rc;
}

/* For each channel group of the part, in ranked order, the group in the checkpoint. */
static const int32_t *order_of(const struct run *w, int e)
{
    const struct fm_config *c = &w->p->cp.config;
    size_t expert = (size_t)w->layer * (size_t)c->E + (size_t)e;
    const int32_t *order = w->p->ranking.order + expert * (size_t)c->I;
    int32_t group = part_of(w)->plane < 0 ? 1 : w->packed->group;
    if (group == 1)
        return order;
    int32_t *groups = fm_scratch((size_t)(c->I / group) * sizeof *groups);
    for (int32_t g = 0; g < c->I / group; g++) {
        assert(order[g * group] % group == 0); /* can_keep(): groups were ranked as a whole */
        groups[g] = order[g * group] / group;
    }
    return groups;
}

/* Make one part of one expert in the bundle's form, its values as `dtype`. */
static int order_part(struct run *w, int e, char *rows, enum fm_dtype dtype, struct fm_err *err)
{
    const struct fm_config *c = &w->p->cp.config;
    const int32_t *order = order_of(w, e);
    int rc = FM_OK;
    for (int i = 0; i < w->p->cp.tensors && !rc; i++) {
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        struct fm_packed_forms f[FM_EXPERT_CUTS_MAX];
        int cuts =
            fm_expert_cuts(cut, c->expert, fm_checkpoint_share(&w->p->cp, w->layer, e, i).part);
        size_t all = 0;
        if (cut[0].of != part_of(w)->of)
            continue;
        for (int k = 0; k < cuts; all += f[k++].file_bytes)
            f[k] = fm_packed_forms(c, w->packed, part_of(w)->plane, dtype, &cut[k], (uint64_t)c->I,
                                   (uint64_t)c->I);
        struct fm_mark mark = fm_scratch_mark();
        char *from = fm_scratch(all);
        rc = read_share(w, e, i, from, dtype, err);
        for (int k = 0; k < cuts && !rc; from += f[k++].file_bytes)
            fm_move(rows + f[k].part_first, &f[k].part, from, &f[k].file, &f[k].box, order);
        fm_scratch_release(mark);
    }
    return rc;
}

/* Channels of expert e that the adapter changes. */
static size_t merged_width(const struct packing *p, int m, int e)
{
    return p->adapter.widths[(size_t)m * (size_t)p->adapter.E + (size_t)e];
}

/* Add the adapter to the first n elements of a part of an expert in float32; round them once. */
static int merge(const struct packing *p, enum fm_weight_part part, int m, int e, void *rows,
                 float *wide, size_t n, struct fm_err *err)
{
    /* At most one of the two parts is given and changed; the other is NULL, both for a bias. */
    if (merged_width(p, m, e) > 0)
        fm_adapter_merge(&p->adapter, p->ops, part == FM_PART_GATE_UP ? wide : NULL,
                         part == FM_PART_DOWN_T ? wide : NULL, m, e);
    fm_dtype_from_f32(rows, wide, p->cp.dtype, n);
    size_t bad = fm_dtype_nonfinite(rows, p->cp.dtype, n);
    if (bad < n)
        return fm_fail(err, FM_EFORMAT,
                       "layer %d, expert %d: weight %zu is not a finite %s with the adapter merged",
                       p->cp.config.moe[m], e, bad, fm_dtype_name(p->cp.dtype));
    return FM_OK;
}

/* Make one part of one expert, `bytes` long, as stored in the bundle. */
static int make_part(struct run *w, int e, char *rows, struct fm_err *err)
{
    struct packing *p = w->p;
    int m = w->layer;
    enum fm_dtype dtype = made_as(p);
    enum fm_weight_part of = part_of(w)->of;
    size_t element = (size_t)fm_dtype_bits(p->cp.dtype) / 8, n = w->bytes / element;
    if (dtype != p->cp.dtype && part_of(w)->plane < 0) {
        float *wide = fm_scratch(n * sizeof *wide);
        int rc = order_part(w, e, (char *)wide, dtype, err);
        return rc ? rc : merge(p, of, m, e, rows, wide, n, err);
    }
    int rc = order_part(w, e, rows, dtype, err);
    if (rc || !p->ops || of == FM_PART_BIAS || part_of(w)->plane >= 0)
        return rc;
    n = merged_width(p, m, e) * (size_t)p->cp.config.H *
        (size_t)fm_expert_part_rows(p->cp.config.expert, of);
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, rows, p->cp.dtype, n);
    return merge(p, of, m, e, rows, wide, n, err);
}

static void make_expert(void *arg, int i)
{
    struct run *w = arg;
    struct packing *p = w->p;
    struct fm_err err = {0};
    int e = w->first + i;
    if (!fm_taskgroup_going(&p->tasks))
        return;
    struct fm_mark mark = fm_scratch_mark();
    char *rows = w->rows + (size_t)i * w->bytes;
    if (!make_part(w, e, rows, &err))
        fm_segments_digest(fm_segments_expert(&p->seg, w->layer, w->part, e), &p->seg, w->layer,
                           p->seg.S, rows, fm_packed_group_bytes(part_of(w)));
    else
        fm_taskgroup_fail(&p->tasks, &err);
    fm_scratch_release(mark);
    if (!err.code)
        fm_taskgroup_add(&p->tasks, w->bytes);
}

static int append(struct packing *p, const struct volume *v, const void *src, size_t size,
                  struct fm_err *err)
{
    return p->writer ? fm_bundle_append(p->writer, v->part, src, size, err) : FM_OK;
}

/* The index of a tensor of the volume in the order of its parts or sources. */
static size_t place_of(const struct volume *v, const struct fm_tensor *t)
{
    size_t i = 0;
    while (v->name_of[i] != t->name) {
        i++;
        assert(i < v->tensors); /* invariant 2 */
    }
    return i;
}

/* Copy all experts of one tensor of a layer. */
static int pass_tensor(struct packing *p, const struct volume *v, const struct fm_tensor *t,
                       struct fm_err *err)
{
    int E = p->cp.config.E;
    assert(t->size % (size_t)E == 0); /* the experts of a layer have the same shape */
    struct fm_mark mark = fm_scratch_mark();
    struct run w = {.p = p,
                    .layer = v->layer,
                    .part = (int)place_of(v, t),
                    .packed = fm_packed_at(&p->packed, v->layer),
                    .bytes = t->size / (size_t)E};
    w.rows = fm_scratch((size_t)p->at_once * w.bytes);
    int rc = FM_OK;
    for (; w.first < E && !rc && fm_taskgroup_going(&p->tasks); w.first += p->at_once) {
        int n = E - w.first < p->at_once ? E - w.first : p->at_once;
        fm_pool_for(n, make_expert, &w);
        if (fm_taskgroup_going(&p->tasks))
            rc = append(p, v, w.rows, (size_t)n * w.bytes, err);
    }
    if (!rc && fm_taskgroup_going(&p->tasks))
        join_sums(&w);
    fm_scratch_release(mark);
    return rc;
}

/* ---- the pass: a tensor outside the experts, piece by piece ---- */

/* A tensor outside the experts that is being copied in pieces. */
struct other {
    const float *change; /* differences from a router's values; NULL: not a router, or unchanged */
    const struct volume *v;
    const struct fm_tensor *t; /* in the bundle */
    const struct fm_stored *place;
    struct fm_scales scales;
    size_t piece;        /* bytes that are copied at a time, and have a digest of their own */
    char *raw, *written; /* a piece; one buffer if values are not converted */
    struct fm_hasher *hasher;
    struct fm_digest pieces; /* sum of the pieces' digests */
    struct fm_reading r;
};

/* The differences that the adapter has for a tensor, or NULL. */
static const float *change_of(const struct packing *p, const struct fm_tensor *t)
{
    const struct fm_config *c = &p->cp.config;
    int l, e;
    if (!p->adapter.router)
        return NULL;
    const struct fm_weight *w = fm_weights_find(c, FM_NAMING_STOCK, t->name, &l, &e);
    if (!w || w->part != FM_PART_ROUTER || w->field == FM_LAYER_FIELD(router.choice_bias))
        return NULL;
    const float *values = fm_adapter_router(&p->adapter, fm_config_moe(c, l));
    return w->field == FM_LAYER_FIELD(router.w) ? values : values + (size_t)c->E * (size_t)c->H;
}

/* Add differences to n values of a router in float32, and round the sums once. */
static int change_values(void *values, enum fm_dtype dtype, const char *name, const float *change,
                         size_t n, struct fm_err *err)
{
    struct fm_mark mark = fm_scratch_mark();
    float *wide = fm_scratch(n * sizeof *wide);
    fm_dtype_to_f32(wide, values, dtype, n);
    for (size_t i = 0; i < n; i++)
        wide[i] += change[i];
    fm_dtype_from_f32(values, wide, dtype, n);
    fm_scratch_release(mark);
    return fm_dtype_nonfinite(values, dtype, n) == n
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "'%s' is not a finite %s with the adapter merged", name,
                         fm_dtype_name(dtype));
}

/* Copy piece `index`, n bytes of the file. */
static int pass_piece(struct packing *p, struct other *o, size_t index, size_t n,
                      struct fm_err *err)
{
    const struct fm_tensor *from = o->place->tensor;
    struct fm_reading r = o->r;
    size_t bits = (size_t)fm_stored_bits(o->place), at = index * o->piece;
    size_t first = 8 * at / bits, values = 8 * n / bits;
    r.e = (int)index;
    if (fm_reading_bytes(o->raw, &r, 0, at, n, err))
        return err->code;
    int rc = FM_OK;
    if (!o->v->extra && (o->place->scale || fm_dtype_is_weight(from->dtype)) &&
        fm_stored_finite(o->place, o->raw, first, values, err))
        rc = fm_within(err, "%s", o->place->file->path);
    if (o->scales.scale && !rc) {
        o->scales.first = (int64_t)first;
        fm_stored_write(o->written, o->t->dtype, o->raw, from->dtype, &o->scales, values);
        n = values * (size_t)fm_dtype_bits(o->t->dtype) / 8;
    }
    if (o->change && !rc)
        rc = change_values(o->written, o->t->dtype, o->t->name, o->change + first, values, err);
    fm_hasher_add(o->hasher, o->written, n);
    if (!rc)
        rc = append(p, o->v, o->written, n, err);
    fm_taskgroup_add(&p->tasks, n);
    return rc;
}

/* Copy one tensor outside the experts byte for byte or, if it has codes that are not kept, as their
 * values, rounded once. */
static int pass_other(struct packing *p, const struct volume *v, const struct fm_tensor *t,
                      struct fm_err *err)
{
    struct other o = {.v = v, .t = t, .place = &v->from[place_of(v, t)], .hasher = fm_hasher_new()};
    struct fm_mark mark = fm_scratch_mark();
    const struct fm_tensor *from = o.place->tensor;
    o.r = reading_of(p, o.place, 0, &o.pieces);
    o.r.e = -1;
    int rc = o.hasher ? read_scales(p, &o.r, &o.scales, err)
                      : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    o.change = rc ? NULL : change_of(p, t);
    assert(!o.change || !p->packed.storage || !o.place->scale); /* refused by choose_form() */
    if (p->packed.storage)
        o.scales.scale = NULL; /* scales of codes that are kept are only checked */
    /* Scales and factors of all experts are summed as when an expert's codes are read. */
    enum fm_stored_role role = o.place->role;
    bool shares =
        (role == FM_STORED_SCALE || role == FM_STORED_FACTOR) && fm_stored_is_fused(o.place);
    o.piece = shares ? (size_t)from->size / (size_t)p->cp.config.E : FM_READING_PIECE;
    o.raw = o.written = fm_scratch(o.piece);
    if (o.scales.scale)
        o.written = fm_scratch(FM_READING_PIECE *
                               fm_storage_growth(&p->cp.config.scheme, p->cp.config.schemes));
    size_t index = 0;
    for (uint64_t at = 0; at < from->size && !rc && fm_taskgroup_going(&p->tasks); at += o.piece) {
        uint64_t left = from->size - at;
        rc = pass_piece(p, &o, index++, left < o.piece ? (size_t)left : o.piece, err);
    }
    if (!rc) {
        fm_segments_find(&p->seg, t->name)->digest = fm_hasher_done(o.hasher);
        fm_reading_join(&o.r, 0);
    }
    fm_scratch_release(mark);
    fm_hasher_free(o.hasher);
    return rc;
}

/* ---- the pass: all members ---- */

static void pass_volume(void *arg, int i)
{
    struct packing *p = arg;
    const struct volume *v = &p->volume[i];
    struct fm_err err = {0};
    fm_scratch_reserve((size_t)p->at_once * p->scratch);
    int rc = fm_taskgroup_going(&p->tasks) ? append(p, v, v->header, v->header_bytes, &err) : FM_OK;
    for (size_t t = 0; t < v->tensors && !rc && fm_taskgroup_going(&p->tasks); t++)
        rc = v->layer >= 0 ? pass_tensor(p, v, &v->tensor[t], &err)
                           : pass_other(p, v, &v->tensor[t], &err);
    if (rc)
        fm_taskgroup_fail(&p->tasks, &err);
}

/* After a pass: FM_ECONFIG if the weights differ from those that were ranked. */
static int check_sums(const struct packing *p, struct fm_err *err)
{
    int rc = FM_OK;
    for (int l = 0; l <= p->wanted.L && !rc; l++)
        rc = fm_reading_check(&p->wanted, l, &p->sums.sum[l], err);
    return rc ? fm_within(err, "%s", p->run->inputs.model) : FM_OK;
}

/*
 * Pass over all weights once: compute the digests of p->seg, and append the weights if there is a
 * writer.  Members are made in parallel; when a pipe is written, one after another, with the
 * experts of each in parallel.  `stage` is the name in progress reports.
 */
static int pass(struct packing *p, const char *stage, struct fm_err *err)
{
    p->sums = (struct fm_reading_sums){.L = p->cp.config.L};
    pthread_mutex_init(&p->lock, NULL);
    bool in_order = p->writer && !fm_bundle_writer_seekable(p->writer);
    p->at_once = in_order ? fm_pool_threads() : 1;
    fm_taskgroup_init(&p->tasks, p->run, stage, p->report->bytes_weights);
    if (!in_order)
        fm_pool_for(p->volumes, pass_volume, p);
    for (int i = 0; in_order && i < p->volumes; i++)
        pass_volume(p, i);
    pthread_mutex_destroy(&p->lock);
    int rc = fm_taskgroup_end(&p->tasks, err);
    for (size_t s = 0; s < p->cp.dir.shards && !rc; s++)
        rc = fm_file_unchanged(&p->cp.dir.shard[s].file, err);
    return rc;
}

/* ---- a bundle with the output's name in a different number of files ---- */

struct replaced {
    char *first[2]; /* first file of a bundle in one file, and of one in parts; NULL: it does not
                       exist */
};

/* Find a bundle with the output's name in a different number of files; FM_ECREATE if it may not be
 * replaced. */
static int find_replaced(struct replaced *old, const struct packing *p, struct fm_err *err)
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

static int finish_segments(struct packing *p, struct fm_err *err)
{
    size_t planned = p->segments_bytes;
    free(p->segments);
    p->segments = NULL;
    int rc = fm_segments_write(&p->seg, &p->segments, &p->segments_bytes, err);
    assert(rc || p->segments_bytes == planned); /* invariant 1 */
    return rc;
}

static int begin(struct packing *p, struct fm_err *err)
{
    return fm_bundle_begin_parts(&p->writer, p->run->outputs.path, p->options->part_bytes,
                                 p->run->outputs.force, make_manifest(p), p->parts.part,
                                 p->parts.parts, err);
}

/* Check that the second pass read the same bytes as the first.  If not, the reader of the pipe gets
 * a truncated stream. */
static int compare_passes(const struct packing *p, struct fm_err *err)
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
static int write_pipe(struct packing *p, struct fm_err *err)
{
    if (pass(p, "digests", err) || check_sums(p, err) || finish_segments(p, err) ||
        plan_parts(p, true, err) || begin(p, err) || pass(p, "weights", err))
        return err->code;
    return compare_passes(p, err);
}

/* Write everything once; the digests go to the space reserved for them. */
static int write_file(struct packing *p, struct fm_err *err)
{
    if (begin(p, err) || pass(p, "weights", err) || check_sums(p, err) || finish_segments(p, err))
        return err->code;
    return fm_bundle_append(p->writer, p->volume[0].part - 1, p->segments, p->segments_bytes, err);
}

/* Write everything; the output has no name before fm_bundle_finish. */
static int write_bundle(struct packing *p, struct replaced *old, struct fm_err *err)
{
    if (plan(p, err) || find_replaced(old, p, err) ||
        (to_pipe(p) ? write_pipe(p, err) : write_file(p, err)))
        return err->code;
    return fm_bundle_complete(p->writer, err);
}

static void release(struct packing *p)
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
    struct packing p = {.run = run, .options = options, .report = report};
    struct replaced old = {{NULL}};
    *report = (struct fm_pack_report){0};
    bool made = !check_name(run, err) && !open_inputs(&p, err) && !write_bundle(&p, &old, err);
    report->seconds = fm_clock_now() - start;
    int rc = made ? fm_run_announce(run, err) : err->code;
    if (!rc) {
        rc = fm_bundle_finish(p.writer, err);
        p.writer = NULL;
    }
    if (!rc)
        remove_replaced(&old, run);
    free(old.first[0]);
    free(old.first[1]);
    release(&p);
    return rc;
}

int fm_pack_plan(const struct fm_run_options *run, const struct fm_pack_options *options,
                 struct fm_pack_report *report, struct fm_err *err)
{
    struct packing p = {.run = run, .options = options, .report = report};
    *report = (struct fm_pack_report){0};
    int rc = FM_OK;
    if (check_name(run, err) || open_inputs(&p, err) || plan(&p, err))
        rc = err->code;
    release(&p);
    return rc;
}

/* ---- comparing ---- */

/* Compare the experts of a tensor of a layer; report the tensor if the digests of any differ. */
static void compare_part(const struct packing *p, const struct fm_segments *said, int m, int part,
                         struct fm_pack_compared *out)
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

static int compare_all(const struct packing *p, struct fm_pack_compared *out, struct fm_err *err)
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
    struct packing p = {.run = run, .options = &options, .report = &report};
    int rc = open_inputs(&p, err);
    if (rc)
        goto out;
    if (p.cp.config.scheme.storage)
        options.weights = fm_packed_in(&p.in) ? FM_WEIGHTS_KEEP : FM_WEIGHTS_BF16;
    if (choose_form(&p, err) || plan_segments(&p, err) || plan_volumes(&p, err)) {
        rc = err->code;
        goto out;
    }
    report_weights(&p);
    if (pass(&p, "compare", err) || check_sums(&p, err) || compare_all(&p, compared, err))
        rc = err->code;
out:
    compared->bytes = report.bytes_in;
    release(&p);
    return rc;
}
