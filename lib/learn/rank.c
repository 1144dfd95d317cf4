/*
 * fm-rank: squared first-order scores of every channel (fm-method(7)), or those of another
 * criterion, summed batch by batch.  The experts of a batch are scored into a slot, and slots are
 * added to the sums of the layer in order of batch.  After each group of batches the sums of all
 * layers are complete.  Each MPI rank owns a slice of them, of all layers together or of each
 * layer, until they are saved or the run ends.  Ranks exchange their contributions once per group
 * if the contributions of all layers fit into memory, because each exchange waits for the slowest
 * rank; otherwise once per layer.
 */
#include "lib/learn/rank.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "formats/file/text.h"
#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/printable.h"
#include "lib/block/storage.h"
#include "lib/data/provenance.h"
#include "lib/engine/reduction.h"
#include "lib/learn/task.h"
#include "lib/model/packed.h"
#include "lib/state/journal.h"
#include "lib/stage/stage.h"

#define TOOL "fm-rank"
#define GROUP_BATCHES 16
#define KEPT_PART 16 /* memory / KEPT_PART bounds the scores kept for one exchange per group */
#define GROUP_BYTES                                                                                \
    ((uint64_t)64                                                                                  \
     << 30) /* limit on the bytes of boundaries, so that the spill file fits on common disks */

/* The run: sums over the batches so far, in the ranking's scores, and the slots of those being
 * scored. */
struct scorer {
    struct fm_task *task;
    struct fm_ranking *ranking;
    enum fm_criterion criterion;
    struct fm_criterion_adder adder;
    double *slot;                  /* (slots, layer_size) */
    struct fm_reduction reduction; /* of the current layer, or of all layers */
    bool whole;     /* the reduction is of all layers: ranks exchange scores once per group */
    double *before; /* (M, layer_size) the sums at the start of the group */
    int32_t *ids;   /* of the group */
    struct fm_batch *batch;     /* of the group */
    struct fm_measure *measure; /* of the group */
    double ce;                  /* sum over batches of the mean loss */
    int64_t next;               /* next batch */
    struct fm_digest params;
    struct fm_journal_clock clock;
};

void fm_rank_defaults(struct fm_rank_options *options)
{
    *options = (struct fm_rank_options){.order = FM_ORDER_SCORE};
}

void fm_rank_report_release(struct fm_rank_report *report)
{
    free(report->coverage.unreached_at);
    free(report->coverage.tokens);
    *report = (struct fm_rank_report){0};
}

static const char *order_name(enum fm_rank_order order)
{
    return order == FM_ORDER_SCORE ? "score" : "original";
}

static int batch_of(const struct fm_run_options *run)
{
    return run->inputs.batch > 0 ? run->inputs.batch : 1;
}

/* Number of scores of a layer: (E, I). */
static size_t layer_size(const struct scorer *s)
{
    return (size_t)s->ranking->E * (size_t)s->ranking->I;
}

static void score_expert(void *self, const struct fm_expert_view *v)
{
    struct scorer *s = self;
    size_t I = (size_t)s->ranking->I, e = (size_t)v->expert;
    double *slot = s->slot + (size_t)v->slot * layer_size(s);
    assert(v->width == (int)I && v->cap == (int)I);
    fm_criterion_add(&s->adder, slot + e * I, v);
}

/* Number of values in one reduction. */
static size_t reduction_size(const struct scorer *s)
{
    return s->whole ? (size_t)s->ranking->M * layer_size(s) : layer_size(s);
}

/* Whether m is the layer that a sweep visits last or, if `last` is false, first. */
static bool is_end(const struct scorer *s, int m, bool last)
{
    return m == (fm_criterion_backward(s->criterion) == last ? 0 : s->ranking->M - 1);
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)err;
    struct scorer *s = self;
    double *sums = s->ranking->scores + (s->whole ? 0 : (size_t)m * layer_size(s));
    if (!s->whole || is_end(s, m, false))
        memcpy(s->reduction.sum, sums, reduction_size(s) * sizeof *sums);
    fm_reduction_layer(&s->reduction);
    return FM_OK;
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    (void)batch, (void)lane;
    struct scorer *s = self;
    size_t n = layer_size(s);
    fm_reduction_add(&s->reduction, s->slot + (size_t)slot * n, s->whole ? (size_t)m * n : 0, n);
}

/* Check that n sums, of the layers from m on, are finite. */
static int check_sums(const struct scorer *s, int m, const double *sums, size_t n,
                      struct fm_err *err)
{
    size_t I = (size_t)s->ranking->I, layer = layer_size(s);
    for (size_t i = 0; i < n; i++) {
        int l = s->task->config->moe[m + (int)(i / layer)];
        size_t at = i % layer;
        if (isfinite(sums[i]))
            continue;
        return fm_fail(err, FM_EFORMAT, "layer %d: the %s of expert %d, channel %d is not finite",
                       l, fm_criterion_backward(s->criterion) ? "weight gradient" : "score",
                       (int)(at / I), (int)(at % I));
    }
    return FM_OK;
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    struct scorer *s = self;
    size_t n = reduction_size(s);
    if (s->whole && !is_end(s, m, true))
        return FM_OK;
    m = s->whole ? 0 : m;
    double *sums = s->ranking->scores + (size_t)m * layer_size(s);
    int rc = fm_reduction_end(&s->reduction, n, err);
    if (rc)
        return rc;
    memcpy(sums, s->reduction.sum, n * sizeof *sums);
    return check_sums(s, m, sums, n, err);
}

static size_t list_state(struct fm_journal_item *item, struct scorer *s)
{
    uint64_t X = (uint64_t)s->ranking->M * (uint64_t)s->ranking->E;
    item[0] = (struct fm_journal_item){.name = "scores",
                                       .dtype = FM_F64,
                                       .count = (uint64_t)s->ranking->M * layer_size(s),
                                       .data = s->ranking->scores};
    item[1] = (struct fm_journal_item){
        .name = "tokens", .dtype = FM_I64, .count = X, .data = s->ranking->tokens};
    item[2] = (struct fm_journal_item){.name = "ce", .dtype = FM_F64, .count = 1, .data = &s->ce};
    item[3] =
        (struct fm_journal_item){.name = "next", .dtype = FM_I64, .count = 1, .data = &s->next};
    return 4;
}

/* Gather the sums of all slices on rank 0. */
static int gather(struct scorer *s, struct fm_err *err)
{
    size_t n = reduction_size(s), all = (size_t)s->ranking->M * layer_size(s);
    int rc = FM_OK;
    for (size_t at = 0; !rc && at < all; at += n)
        rc = fm_comm_gather(s->task->run->machine.comm, s->ranking->scores + at, sizeof(double), n,
                            err);
    return rc;
}

static int save(struct scorer *s, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    double began = fm_clock_now();
    int rc = gather(s, err);
    if (!rc)
        rc = fm_journal_save(s->task->run->machine.comm, s->task->run->outputs.state, TOOL,
                             &s->params, item, list_state(item, s), err);
    fm_journal_saved(&s->clock, began);
    return rc;
}

static int resume(struct scorer *s, int batches, struct fm_err *err)
{
    struct fm_journal j;
    bool found;
    int rc = fm_journal_open(&j, s->task->run->machine.comm, s->task->run->outputs.state, TOOL,
                             &s->params, &found, err);
    if (rc || !found)
        return rc;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    rc = fm_journal_read(&j, item, list_state(item, s), err);
    if (!rc && (s->next < 0 || s->next > batches))
        rc = fm_fail(
            err, FM_EFORMAT,
            "state file '%s' is at batch %lld, but the run has %d; remove the file to start anew",
            s->task->run->outputs.state, (long long)s->next, batches);
    fm_journal_close(&j);
    return rc;
}

/* Batches that one process computes per pass over the weights. */
static int group_of(const struct fm_task *task, int batch, int batches)
{
    uint64_t one = ((uint64_t)task->config->L + 1) * (uint64_t)batch * (uint64_t)task->calib.T *
                   (uint64_t)task->config->H * sizeof(float);
    uint64_t fit = GROUP_BYTES / one, group = fit < GROUP_BATCHES ? fit : GROUP_BATCHES;
    group = group < 1 ? 1 : group;
    return group > (uint64_t)batches ? batches : (int)group;
}

/* Batches that all ranks compute together: a multiple of one process's group, so that the leaves
 * are the same, and enough for each rank to have the leaves of half a group. */
static int groups_of(const struct fm_task *task, int batch, int batches)
{
    int group = group_of(task, batch, batches), ranks = fm_comm_size(task->run->machine.comm);
    int64_t leaves = fm_sweep_leaves(group, batch * task->calib.T, 0), each = (leaves + 1) / 2;
    int64_t groups = ranks > 1 ? (each * ranks + leaves - 1) / leaves : 1;
    return groups * group > batches ? batches : (int)(groups * group);
}

static int score_group(struct scorer *s, struct fm_sweep *sweep, int batch, int n,
                       struct fm_err *err)
{
    const struct fm_calib *calib = &s->task->calib;
    size_t X = (size_t)s->ranking->M * (size_t)s->ranking->E,
           ids = (size_t)batch * (size_t)calib->T;
    for (int i = 0; i < n; i++)
        s->batch[i] = (struct fm_batch){s->ids + (size_t)i * ids, batch, calib->T};
    bool backward = fm_criterion_backward(s->criterion);
    struct fm_lane lane = {.backward = backward, .teacher = -1, .ce = 1};
    /* In float32, and with biases, the scores of each batch are added separately. */
    bool spans = backward && s->task->ops->operand != FM_F32 && !s->task->config->expert->bias;
    struct fm_visitor visitor = {.self = s,
                                 .forward = !backward,
                                 .spans = spans,
                                 .layer_begin = begin_layer,
                                 .expert = score_expert,
                                 .commit = add_batch,
                                 .layer_end = end_layer};
    int64_t *counts = fm_alloc(X, sizeof *counts, "token counts", err);
    int rc =
        counts ? fm_calib_read(calib, (int)s->next * batch, n * batch, s->ids, err) : FM_ENOMEM;
    if (rc) {
        free(counts);
        return rc;
    }
    fm_reduction_begin(&s->reduction, 1);
    size_t sums = (size_t)s->ranking->M * layer_size(s) * sizeof *s->ranking->scores;
    memcpy(s->before, s->ranking->scores, sums);
    rc = fm_sweep_run(sweep, s->batch, n, &lane, 1, &visitor, s->measure, counts, err);
    if (rc)
        memcpy(s->ranking->scores, s->before, sums);
    for (int i = 0; !rc && i < n; i++)
        s->ce += s->measure[i].ce / (double)s->measure[i].n;
    for (size_t x = 0; !rc && x < X; x++)
        s->ranking->tokens[x] += counts[x];
    s->next += !rc ? n : 0;
    free(counts);
    return rc;
}

/* Bytes of the sums, of their copy from before the group, and of the scores of the batches in
 * progress; the sweep gets the rest of the memory. */
static uint64_t sums_bytes(const struct scorer *s, int group)
{
    uint64_t layers = 2 * (uint64_t)s->task->config->L + (uint64_t)group;
    return layers * layer_size(s) * sizeof(double);
}

/* Bytes in which a rank keeps its contributions to all layers until the end of a group.  0 if that
 * is too much for one of the ranks, or if there is only one process: layers are then reduced one by
 * one. */
static int kept_bytes(uint64_t *bytes, const struct scorer *s, int batch, int batches,
                      struct fm_err *err)
{
    const struct fm_task *task = s->task;
    int group = groups_of(task, batch, batches), rows = batch * task->calib.T, first, most;
    int leaves = fm_sweep_leaves(group, rows, group_of(task, batch, batches));
    fm_comm_share(task->run->machine.comm, 0, leaves, &first, &most);
    uint64_t own = (uint64_t)most * (uint64_t)((FM_SWEEP_BLOCK_TOKENS - 1) / rows + 1);
    *bytes = (own + 1) * (uint64_t)s->ranking->M * layer_size(s) * sizeof(double);
    int fits = task->run->machine.comm && *bytes < task->memory / KEPT_PART;
    int rc = fm_comm_least(task->run->machine.comm, &fits, err);
    *bytes = fits ? *bytes : 0;
    return rc;
}

static int take_sums(struct scorer *s, const struct fm_sweep *sweep, struct fm_err *err)
{
    const struct fm_ops *ops = s->task->ops;
    const struct fm_config *c = s->task->config;
    size_t layer = layer_size(s) * sizeof(double),
           slots = layer * (size_t)(fm_criterion_backward(s->criterion)
                                        ? fm_sweep_slots(sweep)
                                        : fm_sweep_slots_forward(sweep));
    s->adder = (struct fm_criterion_adder){s->criterion, ops, c->I, c->H};
    s->slot = fm_alloc_large(slots, "scores of batches", err);
    s->before = s->slot ? fm_alloc((size_t)s->ranking->M, layer, "scores", err) : NULL;
    if (s->slot)
        ops->zero(s->slot, slots);
    return s->before
               ? fm_reduction_init(&s->reduction, sweep, ops, FM_F64, 1, reduction_size(s), 1, err)
               : err->code;
}

static int take_group(struct scorer *s, int batch, int group, struct fm_err *err)
{
    size_t n = (size_t)group, T = (size_t)s->task->calib.T;
    s->ids = fm_alloc(n * (size_t)batch, T * sizeof *s->ids, "tokens of a group", err);
    s->batch = fm_alloc(n, sizeof *s->batch, "batches", err);
    s->measure = fm_alloc(n, sizeof *s->measure, "measures", err);
    return s->ids && s->batch && s->measure ? FM_OK : FM_ENOMEM;
}

static int score_groups(struct scorer *s, struct fm_sweep *sweep, int batch, int group, int batches,
                        struct fm_err *err)
{
    int rc = FM_OK;
    s->clock.saved = fm_clock_now();
    while (!rc && s->next < batches) {
        int n = batches - (int)s->next < group ? batches - (int)s->next : group;
        bool due = false;
        fm_run_report(s->task->run, "rank", (uint64_t)s->next, (uint64_t)batches, "batches");
        s->task->units = n;
        rc = score_group(s, sweep, batch, n, err);
        if (!rc)
            rc = fm_task_due(s->task, &s->clock, &due, err);
        if (!rc && due)
            rc = save(s, err);
        if (!rc && s->next < batches)
            rc = fm_task_stopped(s->task, err);
    }
    return rc;
}

static int score_all(struct scorer *s, int batch, int batches, struct fm_err *err)
{
    struct fm_task *task = s->task;
    int group = groups_of(task, batch, batches);
    struct fm_sweep *sweep = NULL;
    uint64_t sums = sums_bytes(s, group), kept;
    task->memory = task->memory > sums ? task->memory - sums : 0;
    task->cut = group_of(task, batch, batches);
    if (kept_bytes(&kept, s, batch, batches, err))
        return err->code;
    task->memory -= kept;
    s->whole = kept > 0;
    if (fm_task_sweep(&sweep, task, group, batch * task->calib.T, 1, err))
        return err->code;
    int rc = take_sums(s, sweep, err);
    if (!rc)
        rc = take_group(s, batch, group, err);
    rc = fm_comm_agree(task->run->machine.comm, rc, err);
    if (!rc)
        rc = score_groups(s, sweep, batch, group, batches, err);
    if (rc == FM_ESAVED && task->run->outputs.state) {
        int saved = save(s, err);
        rc = saved ? saved : FM_ESAVED;
    }
    fm_run_report(task->run, "rank", (uint64_t)s->next, (uint64_t)batches, "batches");
    fm_sweep_free(sweep);
    return rc;
}

static int finish_scores(struct scorer *s, enum fm_rank_order order, int batches,
                         struct fm_err *err)
{
    struct fm_ranking *r = s->ranking;
    fm_criterion_finish(s->criterion, r->scores, (size_t)r->M * (size_t)r->E, r->I, batches);
    if (order == FM_ORDER_SCORE)
        return fm_ranking_sort(r, err);
    fm_ranking_original(r);
    return FM_OK;
}

static void record(cJSON *manifest, struct scorer *s, enum fm_rank_order order, int batch,
                   const struct fm_rank_report *report)
{
    cJSON *entry = fm_stage_history(manifest, TOOL);
    cJSON *options = fm_task_options(entry, s->task, batch);
    fm_json_add_string(options, "order", order_name(order));
    if (s->criterion != FM_CRITERION_TAYLOR)
        fm_json_add_string(options, "criterion", fm_criterion_name(s->criterion));
    if (s->ranking->group > 1)
        fm_json_add_uint(options, "channel_group", (uint64_t)s->ranking->group);
    fm_provenance_tokens(entry, &s->task->calib);
    fm_provenance_held_out(entry, &s->task->held);
    cJSON *result = fm_json_add_object(entry, "result");
    fm_json_add_uint(result, "batches", (uint64_t)report->batches);
    fm_json_add_double(result, "ce", report->ce);
    fm_json_add_uint(result, "experts_without_tokens", (uint64_t)report->coverage.unreached);
}

static int write_stream(struct scorer *s, enum fm_rank_order order, int batch,
                        const struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_task *task = s->task;
    cJSON *model = NULL;
    char dropped[FM_STAGE_DROPPED_BYTES];
    void *data = NULL;
    size_t size = 0;
    struct fm_weightsum sums;
    int rc = FM_OK;
    if (fm_model_sums(task->model, &sums, task->run->stop, err) ||
        fm_stage_model_identity(&model, &task->dir, task->config, fm_model_dtype(task->model),
                                &sums, err) ||
        fm_ranking_pack(s->ranking, task->config->moe, &data, &size, err)) {
        cJSON_Delete(model);
        rc = err->code;
        goto out;
    }
    cJSON *manifest = fm_stage_manifest(FM_STAGE_RANK, NULL, model, dropped);
    record(manifest, s, order, batch, report);
    struct fm_stage_member member = {FM_MEMBER_RANKING, data, size};
    rc = fm_stage_write(task->run, FM_STAGE_RANK, manifest, NULL, &task->dir, &member, 1, err);
out:
    free(data);
    return rc;
}

/* Count whole batches of the calibration data; the mean over batches cannot include a partial
 * batch. */
static int count_batches(int *batches, const struct fm_task *task, struct fm_err *err)
{
    int batch = batch_of(task->run), count = task->calib.count;
    *batches = count / batch;
    if (*batches < 1)
        return fm_fail(err, FM_EUSAGE, "--batch %d: '%s' has only %d sequences", batch,
                       fm_inputs_first(&task->run->inputs), count);
    if (count % batch)
        fm_run_warn(task->run, "%d of %d sequences are not used: the last batch of %d is not full",
                    count % batch, count, batch);
    return FM_OK;
}

/* Choose the requested group; by default the smallest one that keeps the checkpoint's codes, or 1.
 */
static int choose_group(int *group, int asked, const struct fm_model *m, struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(m);
    struct fm_packed_layers layers;
    char why[FM_PACKED_WHY];
    *group = asked ? asked : c->storage && fm_model_forms(&layers, m, why) ? layers.group : 1;
    if (*group >= 1 && *group <= c->I && c->I % *group == 0)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "--channel-group %d does not divide the %d channels of an expert; use one that "
                   "does, or 1",
                   asked, c->I);
}

/* Say whether bundles keep the checkpoint's codes with that group; "" if its weights are values. */
static void say_codes(char text[FM_ESTIMATE_CODES], int group, const struct fm_model *m)
{
    const struct fm_config *c = fm_model_config(m);
    struct fm_packed_layers layers;
    char why[FM_PACKED_WHY];
    text[0] = '\0';
    if (!c->storage)
        return;
    if (!fm_model_forms(&layers, m, why))
        snprintf(text, FM_ESTIMATE_CODES, "not kept, bundles will have %s: %s",
                 fm_dtype_name(c->storage->written), why);
    else if (group % layers.group == 0)
        snprintf(text, FM_ESTIMATE_CODES, "kept in bundles, in groups of %d channels",
                 layers.group);
    else
        snprintf(text, FM_ESTIMATE_CODES,
                 "not kept, bundles will have %s: --channel-group %d is not a multiple of %d",
                 fm_dtype_name(c->storage->written), group, layers.group);
}

/* An upper bound on the bytes of the output: numbers in the manifest that are not known yet count
 * with their maximum length. */
static int estimate_stream(uint64_t *bytes, struct scorer *s, enum fm_rank_order order, int batches,
                           struct fm_err *err)
{
    struct fm_task *task = s->task;
    const struct fm_config *c = task->config;
    struct fm_weightsum sums = {.L = c->L}; /* all digests have the same length */
    struct fm_rank_report longest = {
        .batches = batches, .ce = -1.0 / 3 * 1e-300, .coverage.unreached = c->M * c->E};
    struct fm_stage_member member = {.name = FM_MEMBER_RANKING};
    struct fm_stage_parts parts = {0};
    struct fm_bundle_sizes sizes = {0};
    cJSON *model = NULL;
    char dropped[FM_STAGE_DROPPED_BYTES];
    if (fm_stage_model_identity(&model, &task->dir, c, fm_model_dtype(task->model), &sums, err))
        return err->code;
    cJSON *manifest = fm_stage_manifest(FM_STAGE_RANK, NULL, model, dropped);
    record(manifest, s, order, batch_of(task->run), &longest);
    int rc = FM_OK;
    if (fm_ranking_size(s->ranking, c->moe, &member.size, err) ||
        fm_stage_parts_collect(&parts, FM_STAGE_RANK, NULL, &task->dir, &member, 1, err) ||
        fm_bundle_size(&sizes, 0, manifest, parts.part, parts.parts, err))
        rc = err->code;
    *bytes = sizes.all;
    fm_stage_parts_release(&parts);
    cJSON_Delete(manifest);
    return rc;
}

/* List the names and sizes of the files that the stream will carry, and the names of others. */
static void estimate_carried(struct fm_estimate *estimate, const struct fm_hfdir *dir)
{
    for (size_t i = 0; i < dir->carried_count; i++) {
        struct fm_estimate_file *file = &estimate->carried[estimate->carried_count++];
        snprintf(file->name, sizeof file->name, "%s", dir->carried[i].name);
        file->bytes = dir->carried[i].size;
    }
    for (size_t i = 0; i < dir->left_count; i++) {
        char *name = estimate->left[estimate->left_count++];
        snprintf(name, sizeof *estimate->left, "%s", dir->left[i]);
        fm_printable(name, false);
    }
    estimate->left_more = (int)dir->left_more;
}

struct planned {
    const struct scorer *scorer;
    int batches;
};

static void estimate_scores(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct planned *p = self;
    const struct scorer *s = p->scorer;
    int batches = p->batches;
    bool backward = fm_criterion_backward(s->criterion);
    int batch = batch_of(task->run), group = group_of(task, batch, batches);
    uint64_t rows = (uint64_t)batch * (uint64_t)task->calib.T;
    struct fm_estimate_sweep sweep = {
        .count = (uint64_t)(batches / group),
        .rows = (uint64_t)group * rows,
        .T = task->calib.T,
        .lanes = 1,
        .backward = backward,
        .scores = backward,
        .kept = 1,
        .leaves = fm_sweep_leaves(groups_of(task, batch, batches), batch * task->calib.T, group)};
    *estimate = (struct fm_estimate){0};
    for (int i = 0; i < task->calib.inputs; i++)
        estimate->held += task->calib.input[i].tokens;
    estimate->used = (uint64_t)batches * (uint64_t)batch * (uint64_t)task->calib.T;
    uint64_t sums = sums_bytes(s, group), memory = task->memory > sums ? task->memory - sums : 0;
    fm_estimate_add(estimate, task->model, &sweep, memory);
    int rest = batches % group; /* the batches of a last group that is not full */
    if (rest > 0) {
        sweep.count = 1;
        sweep.rows = (uint64_t)rest * rows;
        sweep.leaves = fm_sweep_leaves(rest, batch * task->calib.T, group);
        fm_estimate_add(estimate, task->model, &sweep, memory);
    }
    estimate->memory += sums;
}

/*
 * Coverage: the scores of an expert that got few tokens or none are meaningless, so the user is
 * warned.
 */

/* Count experts whose scores are based on few tokens: less than a tenth of an even share of the
 * layer's tokens. */
static void count_starved(struct fm_coverage *y, const struct fm_ranking *r,
                          const struct fm_task *task)
{
    int worst = 0;
    int64_t fewest = INT64_MAX;
    for (int m = 0; m < r->M; m++) {
        const int64_t *tokens = r->tokens + (size_t)m * (size_t)r->E;
        double slots = fm_ranking_slots(r, m);
        for (int e = 0; e < r->E; e++) {
            if (fm_ranking_reach(r, m, e, slots) != FM_REACH_STARVED)
                continue;
            y->starved++;
            worst = tokens[e] < fewest ? m * r->E + e : worst;
            fewest = tokens[e] < fewest ? tokens[e] : fewest;
        }
    }
    if (y->starved)
        fm_run_warn(task->run,
                    "%d experts received less than a tenth of an even share of their layer's "
                    "tokens (the fewest: %lld, layer %d expert %d); their scores are noise: give "
                    "more tokens, or text for which the router chooses these experts",
                    y->starved, (long long)fewest, task->config->moe[worst / r->E], worst % r->E);
}

/* List the experts without tokens, in memory that the caller frees.  Warn about them, and about
 * experts with few tokens. */
static int list_unreached(struct fm_coverage *y, const struct fm_ranking *r,
                          const struct fm_task *task, struct fm_err *err)
{
    size_t X = (size_t)r->M * (size_t)r->E;
    y->unreached_at = fm_alloc(X, 2 * sizeof(int32_t), "experts without tokens", err);
    y->tokens = fm_alloc(X, sizeof *y->tokens, "token counts", err);
    if (!y->unreached_at || !y->tokens)
        return FM_ENOMEM;
    memcpy(y->tokens, r->tokens, X * sizeof *y->tokens);
    count_starved(y, r, task);
    for (size_t x = 0; x < X; x++) {
        if (r->tokens[x])
            continue;
        y->unreached_at[2 * y->unreached] = task->config->moe[x / (size_t)r->E];
        y->unreached_at[2 * y->unreached++ + 1] = (int32_t)(x % (size_t)r->E);
    }
    if (y->unreached)
        fm_run_warn(task->run,
                    "%d of %zu experts received no token; their scores are 0 and their order is "
                    "kept: give more text or tokens",
                    y->unreached, X);
    return FM_OK;
}

/* Compute the result from all sums, and write it. */
static int finish(struct scorer *s, enum fm_rank_order order, int batch,
                  struct fm_rank_report *report, struct fm_err *err)
{
    if (finish_scores(s, order, report->batches, err) ||
        list_unreached(&report->coverage, s->ranking, s->task, err))
        return err->code;
    return write_stream(s, order, batch, report, err);
}

static int run_task(struct scorer *s, const struct fm_rank_options *options,
                    struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_task *task = s->task;
    enum fm_rank_order order = options->order;
    const struct fm_config *c = task->config;
    struct fm_estimate estimate;
    int batch = batch_of(task->run), batches, group;
    if (choose_group(&group, options->group, task->model, err) ||
        count_batches(&batches, task, err))
        return err->code;
    *s->ranking = (struct fm_ranking){.M = c->M, .E = c->E, .I = c->I, .group = group};
    fm_task_plan(&estimate, task, estimate_scores, &(struct planned){s, batches});
    if (fm_comm_rank(task->run->machine.comm) == 0 &&
        estimate_stream(&estimate.disk, s, order, batches, err))
        return err->code;
    if (fm_estimate_check(&estimate, task->run, 0, err))
        return err->code;
    *report = (struct fm_rank_report){
        .criterion = s->criterion,
        .group = group,
        .L = c->L,
        .M = c->M,
        .E = c->E,
        .I = c->I,
        .T = task->calib.T,
        .sequences = batches * batch,
        .batches = batches,
        .dropped = task->calib.count - batches * batch,
        .held_out = fm_inputs_evaluate(&task->run->inputs) ? 0 : task->held.count};
    char text[64];
    memcpy(report->moe, c->moe, sizeof report->moe);
    int n = snprintf(text, sizeof text, "batch %d", batch);
    if (s->criterion != FM_CRITERION_TAYLOR)
        n += snprintf(text + n, sizeof text - (size_t)n, " criterion %s",
                      fm_criterion_name(s->criterion));
    if (group > 1)
        snprintf(text + n, sizeof text - (size_t)n, " group %d", group);
    if (fm_task_params(task, &s->params, text, err) ||
        fm_ranking_init(s->ranking, c->M, c->E, c->I, err))
        return err->code;
    s->ranking->group = group;
    if (resume(s, batches, err))
        return err->code;
    report->resumed = (int)s->next;
    int rc = score_all(s, batch, batches, err);
    if (rc)
        return rc;
    report->ce = s->ce / batches;
    if (gather(s, err) || fm_task_same_weights(task, err) ||
        fm_comm_share_tallies(task->run->machine.comm, err))
        rc = err->code;
    report->seconds = fm_clock_now() - task->began;
    if (!rc && fm_comm_rank(task->run->machine.comm) == 0)
        rc = finish(s, order, batch, report, err);
    rc = fm_comm_agree(task->run->machine.comm, rc, err);
    if (!rc)
        fm_task_forget(task, TOOL);
    return rc;
}

/* Find the checkpoint's files that the stream carries, including those of --carry. */
static int find_carried(struct fm_task *task, const char *const *pattern, struct fm_err *err)
{
    int rc = fm_carry_list(&task->dir, pattern, err);
    return rc == FM_EUSAGE ? fm_within(err, "--carry") : rc;
}

/* Templates beside the default one, which tokenizers save in a directory. */
#define TEMPLATES "additional_chat_templates/"

static void warn_templates(const struct fm_task *task)
{
    for (size_t i = 0; i < task->dir.left_count; i++)
        if (strcmp(task->dir.left[i], TEMPLATES) == 0)
            fm_run_warn(task->run,
                        "%s is not carried: exports have only the default chat template; copy the "
                        "directory into them",
                        TEMPLATES);
}

/* List the files to carry, and check that all ranks have the same patterns; rank 0 writes its own
 * files. */
static int list_carried(struct fm_task *task, const char *const *pattern, struct fm_err *err)
{
    struct fm_text given = {0};
    struct fm_comm *comm = task->run->machine.comm;
    int rc = fm_comm_agree(comm, find_carried(task, pattern, err), err);
    if (rc || !comm)
        return rc;
    for (int i = 0; pattern[i]; i++)
        fm_text_printf(&given, "%s%s", i ? "," : "", pattern[i]);
    if (given.failed)
        fm_fail(err, FM_ENOMEM, "no memory for the patterns of --carry");
    rc = fm_comm_agree(comm, given.failed ? err->code : FM_OK, err);
    if (!rc)
        rc = fm_comm_same(
            comm, &(struct fm_comm_fact){"--carry", given.data ? given.data : "absent"}, 1, err);
    free(given.data);
    return rc;
}

int fm_rank(const struct fm_run_options *run, const struct fm_rank_options *options,
            struct fm_rank_report *report, struct fm_err *err)
{
    struct fm_task task;
    struct fm_ranking ranking = {0};
    struct scorer s = {.task = &task, .ranking = &ranking, .criterion = options->criterion};
    char note[FM_EXTRA_NOTE] = "";
    int rc = fm_task_open(&task, run, NULL, err);
    if (rc)
        goto out;
    fm_extra_note(note, fm_model_extra(task.model), task.config);
    if (note[0])
        fm_run_warn(run, "%s", note);
    rc = list_carried(&task, options->carry, err);
    warn_templates(&task);
    if (!rc)
        rc = run_task(&s, options, report, err);
out:
    free(s.slot);
    fm_reduction_release(&s.reduction);
    free(s.before);
    free(s.ids);
    free(s.batch);
    free(s.measure);
    fm_ranking_release(&ranking);
    fm_task_close(&task);
    return rc;
}

/* The --max-tokens that leaves `used` sequences for the ranking; held-out sequences count towards
 * it. */
static uint64_t tokens_for(const struct fm_task *task, int used)
{
    int T = task->calib.T, all = used;
    while (!fm_inputs_evaluate(&task->run->inputs) && all < 2 * used &&
           all - fm_quality_held_out(all, T) < used)
        all++;
    return (uint64_t)all * (uint64_t)T;
}

int fm_rank_estimate(const struct fm_run_options *run, const struct fm_rank_options *options,
                     struct fm_estimate *estimate, struct fm_err *err)
{
    struct fm_task task;
    struct fm_ranking ranking;
    struct scorer s = {.task = &task, .ranking = &ranking, .criterion = options->criterion};
    int batches = 0, group = 1;
    int rc = FM_OK;
    if (fm_task_open_inputs(&task, run, true, err) ||
        choose_group(&group, options->group, task.model, err) ||
        find_carried(&task, options->carry, err) || count_batches(&batches, &task, err)) {
        rc = err->code;
        goto out;
    }
    const struct fm_config *c = task.config;
    ranking = (struct fm_ranking){.M = c->M, .E = c->E, .I = c->I, .group = group};
    fm_task_plan(estimate, &task, estimate_scores, &(struct planned){&s, batches});
    rc = estimate_stream(&estimate->disk, &s, options->order, batches, err);
    if (rc)
        goto out;
    int half = batches / 2; /* a single batch cannot be halved */
    if (half)
        fm_estimate_suggest(estimate, estimate->flops * half / batches, "--max-tokens %" PRIu64,
                            tokens_for(&task, half * batch_of(run)));
    estimate_carried(estimate, &task.dir);
    say_codes(estimate->codes, group, task.model);
    rc = fm_task_estimate_end(&task, FM_STAGE_RANK, estimate, err);
out:
    fm_task_close(&task);
    return rc;
}
