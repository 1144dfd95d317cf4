/*
 * fm-rank: squared first-order scores of every channel (fm-method(7)), or those of another
 * criterion, summed batch by batch.  The experts of a batch are scored into a slot, and slots are
 * added to the sums of the layer in order of batch.  After each group of batches the sums of all
 * layers are complete.  Each MPI rank owns a slice of them, of all layers together or of each
 * layer, until they are saved or the run ends.  Ranks exchange their contributions once per group
 * if the contributions of all layers fit into memory, because each exchange waits for the slowest
 * rank; otherwise once per layer.
 *
 * A layer for multi-token prediction is ranked after each group by a sweep of its own, which begins
 * at the last boundary of the group's sweep and goes through that layer only.  So nothing of the
 * other layers depends on it.
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
#include "lib/base/mem.h"
#include "lib/base/printable.h"
#include "lib/engine/reduction.h"
#include "lib/learn/runner.h"
#include "lib/model/packed.h"

#define GROUP_BATCHES 16
#define KEPT_PART 16 /* memory / KEPT_PART bounds the scores kept for one exchange per group */
#define GROUP_BYTES                                                                                \
    ((uint64_t)64                                                                                  \
     << 30) /* limit on the bytes of boundaries, so that the spill file fits on common disks */

struct scorer;

/* The layers of the ranking to which one sweep adds: `self` of its visitor. */
struct sums {
    struct scorer *s;
    int first, layers; /* in the ranking */
    int lowest;        /* the first one's number m in the sweep */
    bool whole; /* the reduction is of all of them: ranks exchange scores once per group; else it is
                   of the current layer */
    struct fm_reduction reduction;
};

/* The run: sums over the batches so far, in the ranking's scores, and the slots of those being
 * scored. */
struct scorer {
    struct fm_runner runner;
    struct fm_task task;
    const struct fm_rank_options *options;
    struct fm_rank_report *report;
    struct fm_ranking ranking;
    const struct fm_criterion *criterion;
    int batches;                /* of the run */
    int group;                  /* batches of one step */
    uint64_t disk;              /* bytes of the stream, at most */
    struct fm_sweep *sweep;     /* of a group */
    double *slot;               /* (slots, layer_size) */
    struct sums sums;           /* of the model's layers */
    double *before;             /* (M + ahead, layer_size) sums at the start of the group */
    int32_t *ids;               /* of the group */
    struct fm_batch *batch;     /* of the group */
    struct fm_measure *measure; /* of the group */
    double ce;                  /* sum over batches of the mean loss */
    /* With options->keep_extra: the layer for multi-token prediction. */
    struct fm_model *draft;
    struct fm_model_joint joint;
    struct fm_sweep_draft ahead;
    struct fm_sweep *ahead_sweep;
    struct sums ahead_sums;
    int32_t *ahead_ids; /* of the group, without each sequence's first */
    double ahead_ce;
};

void fm_rank_defaults(struct fm_rank_options *options)
{
    *options = (struct fm_rank_options){.order = FM_ORDER_SCORE, .criterion = fm_criteria[0]};
}

void fm_rank_report_release(struct fm_rank_report *report)
{
    free(report->coverage.unreached_at);
    free(report->coverage.tokens);
    *report = (struct fm_rank_report){0};
}

/* Number of scores of a layer: (E, I). */
static size_t layer_size(const struct scorer *s)
{
    return (size_t)s->ranking.E * (size_t)s->ranking.I;
}

static void score_expert(void *self, const struct fm_expert_view *v)
{
    const struct sums *p = self;
    const struct scorer *s = p->s;
    size_t I = (size_t)s->ranking.I, e = (size_t)v->expert;
    double *slot = s->slot + (size_t)v->slot * layer_size(s);
    assert(v->width == (int)I && v->cap == (int)I);
    s->criterion->add(slot + e * I, v, s->task.ops, (int)I, s->task.config->H);
}

/* All ranked layers. */
static size_t layers_of(const struct scorer *s)
{
    return (size_t)(s->ranking.M + s->ranking.ahead);
}

/* Number of values in one reduction. */
static size_t reduction_size(const struct sums *p)
{
    return p->whole ? (size_t)p->layers * layer_size(p->s) : layer_size(p->s);
}

/* The layer in the ranking with which the reduction begins while the sweep is at m. */
static int reduced_from(const struct sums *p, int m)
{
    assert(m >= p->lowest && m < p->lowest + p->layers);
    return p->first + (p->whole ? 0 : m - p->lowest);
}

/* Whether m is the layer that the sweep visits last or, if `last` is false, first. */
static bool is_end(const struct sums *p, int m, bool last)
{
    return m == p->lowest + (p->s->criterion->backward == last ? 0 : p->layers - 1);
}

static int begin_layer(void *self, int m, struct fm_err *err)
{
    (void)err;
    struct sums *p = self;
    const double *scores = p->s->ranking.scores + (size_t)reduced_from(p, m) * layer_size(p->s);
    if (!p->whole || is_end(p, m, false))
        memcpy(p->reduction.sum, scores, reduction_size(p) * sizeof *scores);
    fm_reduction_layer(&p->reduction);
    return FM_OK;
}

static void add_batch(void *self, int m, int batch, int lane, int slot)
{
    (void)batch, (void)lane;
    struct sums *p = self;
    size_t n = layer_size(p->s), at = p->whole ? (size_t)(m - p->lowest) * n : 0;
    fm_reduction_add(&p->reduction, p->s->slot + (size_t)slot * n, at, n);
}

/* Check that n sums, of the layers from m on, are finite. */
static int check_sums(const struct scorer *s, int m, const double *sums, size_t n,
                      struct fm_err *err)
{
    size_t I = (size_t)s->ranking.I, layer = layer_size(s);
    for (size_t i = 0; i < n; i++) {
        int at_m = m + (int)(i / layer);
        int l = at_m < s->ranking.M ? s->task.config->moe[at_m] : s->task.config->L;
        size_t at = i % layer;
        if (isfinite(sums[i]))
            continue;
        return fm_fail(err, FM_EFORMAT, "layer %d: the %s of expert %d, channel %d is not finite",
                       l, s->criterion->backward ? "weight gradient" : "score", (int)(at / I),
                       (int)(at % I));
    }
    return FM_OK;
}

static int end_layer(void *self, int m, struct fm_err *err)
{
    struct sums *p = self;
    size_t n = reduction_size(p);
    if (p->whole && !is_end(p, m, true))
        return FM_OK;
    int from = reduced_from(p, m), rc = fm_reduction_end(&p->reduction, n, err);
    if (rc)
        return rc;
    double *scores = p->s->ranking.scores + (size_t)from * layer_size(p->s);
    memcpy(scores, p->reduction.sum, n * sizeof *scores);
    return check_sums(p->s, from, scores, n, err);
}

/* Score the layer for multi-token prediction, the last of the ranking, on the group of n batches
 * that was just swept; counts (M, E) is scratch. */
static int score_ahead(struct scorer *s, int n, const struct fm_lane *lane,
                       const struct fm_visitor *like, int64_t *counts, struct fm_err *err)
{
    struct fm_visitor visitor = *like;
    int batch = s->task.batch, T = s->task.calib.T, E = s->ranking.E;
    int m = s->ahead_sums.lowest;
    size_t sequences = (size_t)n * (size_t)batch, ids = (size_t)T - 1;
    visitor.self = &s->ahead_sums;
    for (size_t i = 0; i < sequences; i++)
        memcpy(s->ahead_ids + i * ids, s->ids + i * (size_t)T + 1, ids * sizeof *s->ids);
    for (int i = 0; i < n; i++)
        s->batch[i] =
            (struct fm_batch){s->ahead_ids + (size_t)i * (size_t)batch * ids, batch, T - 1};
    fm_reduction_begin(&s->ahead_sums.reduction, 1);
    if (fm_sweep_run(s->ahead_sweep, s->batch, n, lane, 1, &visitor, s->measure, counts, err))
        return fm_within(err, "layer for multi-token prediction");
    for (int i = 0; i < n; i++)
        s->ahead_ce += s->measure[i].ce / (double)s->measure[i].n;
    for (int e = 0; e < E; e++)
        s->ranking.tokens[s->ranking.M * E + e] += counts[m * E + e];
    return FM_OK;
}

static size_t list_state(void *self, struct fm_journal_item *item)
{
    struct scorer *s = self;
    struct fm_ranking *r = &s->ranking;
    size_t n = 0;
    fm_runner_item(item, &n, "scores", FM_F64, layers_of(s) * layer_size(s), r->scores);
    fm_runner_item(item, &n, "tokens", FM_I64, layers_of(s) * (uint64_t)r->E, r->tokens);
    fm_runner_item(item, &n, "ce", FM_F64, 1, &s->ce);
    if (r->ahead)
        fm_runner_item(item, &n, "ahead_ce", FM_F64, 1, &s->ahead_ce);
    fm_runner_item(item, &n, "next", FM_I64, 1, &s->runner.taken);
    return n;
}

/* Gather the sums of all slices on rank 0. */
static int gather_sums(const struct sums *p, struct fm_err *err)
{
    size_t layer = layer_size(p->s), n = reduction_size(p), all = (size_t)p->layers * layer;
    double *scores = p->s->ranking.scores + (size_t)p->first * layer;
    int rc = FM_OK;
    for (size_t at = 0; !rc && at < all; at += n)
        rc = fm_comm_gather(p->s->task.run->machine.comm, scores + at, sizeof *scores, n, err);
    return rc;
}

static int gather(void *self, struct fm_err *err)
{
    struct scorer *s = self;
    int rc = gather_sums(&s->sums, err);
    return rc || !s->ranking.ahead ? rc : gather_sums(&s->ahead_sums, err);
}

/* Batches that one process computes per pass over the weights. */
static int group_of(const struct fm_task *task, int batches)
{
    uint64_t one = ((uint64_t)task->config->L + 1) * (uint64_t)task->batch *
                   (uint64_t)task->calib.T * (uint64_t)task->config->H * sizeof(float);
    uint64_t fit = GROUP_BYTES / one, group = fit < GROUP_BATCHES ? fit : GROUP_BATCHES;
    group = group < 1 ? 1 : group;
    assert(batches >= 1); /* count_batches */
    return group > (uint64_t)batches ? batches : (int)group;
}

/* Batches that all ranks compute together: a multiple of one process's group, so that the leaves
 * are the same, and enough for each rank to have the leaves of half a group. */
static int groups_of(const struct fm_task *task, int batches)
{
    int group = group_of(task, batches), ranks = fm_comm_size(task->run->machine.comm);
    int64_t leaves = fm_sweep_leaves(group, task->batch * task->calib.T, 0),
            each = (leaves + 1) / 2;
    int64_t groups = ranks > 1 ? (each * ranks + leaves - 1) / leaves : 1;
    return groups * group > batches ? batches : (int)(groups * group);
}

/* Score a group of batches. */
static int score_group(void *self, bool *done, struct fm_err *err)
{
    (void)done;
    struct scorer *s = self;
    const struct fm_calib *calib = &s->task.calib;
    int batch = s->task.batch, next = (int)s->runner.taken;
    int n = s->batches - next < s->group ? s->batches - next : s->group;
    assert(next >= 0 && n > 0); /* the runner ends at s->batches, and check_taken was called */
    size_t X = (size_t)s->ranking.M * (size_t)s->ranking.E, ids = (size_t)batch * (size_t)calib->T;
    s->task.units = n;
    for (int i = 0; i < n; i++)
        s->batch[i] = (struct fm_batch){s->ids + (size_t)i * ids, batch, calib->T};
    bool backward = s->criterion->backward;
    struct fm_lane lane = {.backward = backward, .teacher = -1, .ce = 1};
    /* In float32, and with biases, the scores of each batch are added separately. */
    bool spans = backward && s->task.ops->operand != FM_F32 && !s->task.config->expert->bias;
    struct fm_visitor visitor = {.self = &s->sums,
                                 .forward = !backward,
                                 .spans = spans,
                                 .layer_begin = begin_layer,
                                 .expert = score_expert,
                                 .commit = add_batch,
                                 .layer_end = end_layer};
    int64_t *counts = fm_alloc(X, sizeof *counts, "token counts", err);
    int rc = counts ? fm_calib_read(calib, next * batch, n * batch, s->ids, err) : FM_ENOMEM;
    if (rc) {
        free(counts);
        return rc;
    }
    fm_reduction_begin(&s->sums.reduction, 1);
    size_t sums = layers_of(s) * layer_size(s) * sizeof *s->ranking.scores;
    memcpy(s->before, s->ranking.scores, sums);
    const double ce = s->ce;
    rc = fm_sweep_run(s->sweep, s->batch, n, &lane, 1, &visitor, s->measure, counts, err);
    for (int i = 0; !rc && i < n; i++)
        s->ce += s->measure[i].ce / (double)s->measure[i].n;
    int64_t *ahead =
        !rc && s->ranking.ahead ? fm_alloc(X, sizeof *ahead, "token counts", err) : NULL;
    if (!rc && s->ranking.ahead)
        rc = ahead ? score_ahead(s, n, &lane, &visitor, ahead, err) : err->code;
    free(ahead);
    if (rc) {
        memcpy(s->ranking.scores, s->before, sums);
        s->ce = ce;
    }
    for (size_t x = 0; !rc && x < X; x++)
        s->ranking.tokens[x] += counts[x];
    s->runner.taken += !rc ? n : 0;
    free(counts);
    return rc;
}

/* Bytes of the sums, of their copy from before the group, of the order of channels, and of the
 * scores of the batches in progress; the sweep gets the rest of the memory. */
static uint64_t sums_bytes(const struct scorer *s, int group)
{
    size_t ranked = layers_of(s) * layer_size(s), batches = (size_t)group * layer_size(s);
    return (2 * ranked + batches) * sizeof(double) + ranked * sizeof *s->ranking.order;
}

/* Bytes in which a rank keeps its contributions to all layers until the end of a group.  0 if that
 * is too much for one of the ranks, or if there is only one process: layers are then reduced one by
 * one. */
static int kept_bytes(uint64_t *bytes, const struct scorer *s, struct fm_err *err)
{
    const struct fm_task *task = &s->task;
    int rows = task->batch * task->calib.T, first, most;
    int leaves = fm_sweep_leaves(s->group, rows, group_of(task, s->batches));
    fm_comm_share(task->run->machine.comm, 0, leaves, &first, &most);
    uint64_t own = (uint64_t)most * (uint64_t)((FM_SWEEP_BLOCK_TOKENS - 1) / rows + 1);
    *bytes = (own + 1) * (uint64_t)s->ranking.M * layer_size(s) * sizeof(double);
    int fits = task->run->machine.comm && *bytes < task->memory / KEPT_PART;
    int rc = fm_comm_least(task->run->machine.comm, &fits, err);
    *bytes = fits ? *bytes : 0;
    return rc;
}

static int take_sums(struct scorer *s, struct fm_err *err)
{
    const struct fm_ops *ops = s->task.ops;
    size_t layer = layer_size(s) * sizeof(double),
           slots = layer * (size_t)(s->criterion->backward ? fm_sweep_slots(s->sweep)
                                                           : fm_sweep_slots_forward(s->sweep));
    s->slot = fm_alloc_large(slots, "scores of batches", err);
    s->before = s->slot ? fm_alloc(layers_of(s), layer, "scores", err) : NULL;
    if (s->slot)
        ops->zero(s->slot, slots);
    return s->before ? fm_reduction_init(&s->sums.reduction, s->sweep, ops, FM_F64, 1,
                                         reduction_size(&s->sums), 1, err)
                     : err->code;
}

static int take_group(struct scorer *s, struct fm_err *err)
{
    size_t n = (size_t)s->group, sequences = n * (size_t)s->task.batch;
    s->ids = fm_alloc(sequences, (size_t)s->task.calib.T * sizeof *s->ids, "tokens", err);
    s->batch = fm_alloc(n, sizeof *s->batch, "batches", err);
    s->measure = fm_alloc(n, sizeof *s->measure, "measures", err);
    return s->ids && s->batch && s->measure ? FM_OK : FM_ENOMEM;
}

/* Bytes that the layer for multi-token prediction takes in addition: its weights, the last boundary
 * of a group's sweep, which that keeps, and its own boundaries and scratch. */
static uint64_t ahead_bytes(const struct scorer *s, int group)
{
    const struct fm_config *c = s->task.config;
    int rows = s->task.batch * s->task.calib.T;
    if (!s->draft)
        return 0;
    return fm_model_resident_bytes(s->draft) + fm_model_joint_bytes(c) +
           3 * (uint64_t)group * (uint64_t)rows * (uint64_t)c->H * sizeof(float) +
           fm_sweep_scratch_bytes(c, group, rows, 0, 1);
}

/* Prepare the sweep through that layer. */
static int take_ahead(struct scorer *s, struct fm_err *err)
{
    const struct fm_task *task = &s->task;
    int rows = task->batch * task->calib.T;
    size_t sequences = (size_t)s->group * (size_t)task->batch;
    s->ahead = (struct fm_sweep_draft){s->sweep, &s->joint};
    const struct fm_sweep_options options = {.memory = 3 * (uint64_t)s->group * (uint64_t)rows *
                                                       (uint64_t)task->config->H * sizeof(float),
                                             .stop = task->run->stop,
                                             .comm = task->run->machine.comm,
                                             .cut = task->cut,
                                             .draft = &s->ahead};
    s->ahead_ids = fm_alloc(sequences, (size_t)task->calib.T * sizeof *s->ids, "tokens", err);
    if (!s->ahead_ids ||
        fm_sweep_new(&s->ahead_sweep, s->draft, task->ops, s->group, rows, task->calib.T, 1,
                     &options, err) ||
        fm_model_joint(&s->joint, s->draft, err) ||
        fm_reduction_init(&s->ahead_sums.reduction, s->ahead_sweep, task->ops, FM_F64, 1,
                          layer_size(s), 1, err))
        return err->code;
    return FM_OK;
}

/* Templates beside the default one, which tokenizers save in a directory. */
#define TEMPLATES "additional_chat_templates/"

static int begin(void *self, struct fm_err *err)
{
    struct scorer *s = self;
    struct fm_task *task = &s->task;
    const struct fm_config *c = task->config;
    char note[FM_EXTRA_NOTE] = "";
    int group = s->ranking.group;
    fm_extra_note(note, fm_model_extra(task->model), c);
    if (note[0])
        fm_run_warn(task->run, "%s", note);
    for (size_t i = 0; i < task->dir.left_count; i++)
        if (strcmp(task->dir.left[i], TEMPLATES) == 0)
            fm_run_warn(task->run,
                        "%s is not carried: exports have only the default chat template; copy the "
                        "directory into them",
                        TEMPLATES);
    if (fm_ranking_init(&s->ranking, c->M, s->ranking.ahead, c->E, c->I, err))
        return err->code;
    s->ranking.group = group;
    uint64_t sums = sums_bytes(s, s->group) + ahead_bytes(s, s->group), kept;
    task->memory = task->memory > sums ? task->memory - sums : 0;
    task->cut = group_of(task, s->batches);
    task->keep_last = s->ranking.ahead;
    if (kept_bytes(&kept, s, err))
        return err->code;
    task->memory -= kept;
    s->sums = (struct sums){.s = s, .layers = c->M, .whole = kept > 0};
    s->ahead_sums = (struct sums){
        .s = s, .first = c->M, .layers = 1, .lowest = fm_config_moe(c, fm_extra_twin_layer(c))};
    if (fm_task_sweep(&s->sweep, task, s->group, task->batch * task->calib.T, 1, task->memory,
                      err) ||
        take_sums(s, err) || take_group(s, err))
        return err->code;
    return s->ranking.ahead ? take_ahead(s, err) : FM_OK;
}

static int finish(void *self, struct fm_err *err)
{
    struct scorer *s = self;
    fm_sweep_free(s->sweep);
    s->sweep = NULL;
    int rc = gather(s, err);
    return rc ? rc : fm_task_same_weights(&s->task, err);
}

static int finish_scores(struct scorer *s, struct fm_err *err)
{
    struct fm_ranking *r = &s->ranking;
    size_t n = layers_of(s) * layer_size(s);
    assert(s->runner.taken == s->batches); /* scores are means over all batches */
    for (size_t i = 0; s->criterion->score && i < n; i++)
        r->scores[i] = s->criterion->score(r->scores[i], s->batches);
    if (s->options->order == FM_ORDER_SCORE)
        return fm_ranking_sort(r, err);
    fm_ranking_original(r);
    return FM_OK;
}

static void print_params(void *self, struct fm_text *text)
{
    const struct scorer *s = self;
    fm_text_printf(text, "batch %d", s->task.batch);
    if (s->criterion != fm_criteria[0])
        fm_text_printf(text, " criterion %s", s->criterion->name);
    if (s->ranking.group > 1)
        fm_text_printf(text, " group %d", s->ranking.group);
    if (s->ranking.ahead)
        fm_text_printf(text, " keep-extra");
}

static void record(void *self, cJSON *options)
{
    const struct scorer *s = self;
    fm_json_add_string(options, "order",
                       s->options->order == FM_ORDER_SCORE ? "score" : "original");
    if (s->criterion != fm_criteria[0])
        fm_json_add_string(options, "criterion", s->criterion->name);
    if (s->ranking.group > 1)
        fm_json_add_uint(options, "channel_group", (uint64_t)s->ranking.group);
    if (s->ranking.ahead)
        fm_json_add_bool(options, "keep_extra", true);
}

static void record_result(void *self, cJSON *result)
{
    const struct scorer *s = self;
    fm_json_add_uint(result, "batches", (uint64_t)s->report->batches);
    fm_json_add_double(result, "ce", s->report->ce);
    fm_json_add_uint(result, "experts_without_tokens", (uint64_t)s->report->coverage.unreached);
    if (s->report->ahead)
        fm_json_add_double(result, "extra_ce", s->report->ahead_ce);
}

static int make_members(void *self, cJSON *manifest, struct fm_stage_member *member,
                        size_t *members, struct fm_err *err)
{
    (void)manifest;
    struct scorer *s = self;
    void *data = NULL;
    member->name = FM_MEMBER_RANKING;
    const struct fm_config *c = s->task.config;
    int rc = fm_ranking_pack(&s->ranking, c->moe, c->L, &data, &member->size, err);
    member->data = data;
    *members = 1;
    return rc;
}

/* Count whole batches of the calibration data; the mean over batches cannot include a partial
 * batch. */
static int count_batches(int *batches, const struct fm_task *task, struct fm_err *err)
{
    int batch = task->batch, count = task->calib.count;
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
    *group = asked                                                  ? asked
             : c->scheme.storage && fm_model_forms(&layers, m, why) ? layers.group
                                                                    : 1;
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
    if (!c->scheme.storage)
        return;
    if (!fm_model_forms(&layers, m, why))
        snprintf(text, FM_ESTIMATE_CODES, "not kept, bundles will have %s: %s",
                 fm_dtype_name(c->scheme.storage->written), why);
    else if (group % layers.group == 0)
        snprintf(text, FM_ESTIMATE_CODES, "kept in bundles, in groups of %d channels",
                 layers.group);
    else
        snprintf(text, FM_ESTIMATE_CODES,
                 "not kept, bundles will have %s: --channel-group %d is not a multiple of %d",
                 fm_dtype_name(c->scheme.storage->written), group, layers.group);
}

/* An upper bound on the bytes of the output: numbers in the manifest that are not known yet count
 * with their maximum length. */
static int estimate_stream(struct scorer *s, struct fm_err *err)
{
    struct fm_task *task = &s->task;
    const struct fm_config *c = task->config;
    struct fm_reading_sums sums = {.L = c->L}; /* all digests have the same length */
    const double ce = -1.0 / 3 * 1e-300;
    struct fm_rank_report *report = s->report, longest = {.batches = s->batches,
                                                          .ce = ce,
                                                          .ahead = s->ranking.ahead,
                                                          .ahead_ce = ce,
                                                          .coverage.unreached = c->M * c->E};
    struct fm_stage_member member = {.name = FM_MEMBER_RANKING};
    struct fm_stage_parts parts = {0};
    struct fm_bundle_sizes sizes = {0};
    cJSON *model = NULL;
    if (fm_stage_model_identity(&model, &task->dir, c, fm_model_dtype(task->model), &sums, err))
        return err->code;
    s->report = &longest;
    cJSON *manifest = fm_runner_manifest(&s->runner, model);
    s->report = report;
    int rc = FM_OK;
    if (fm_ranking_size(&s->ranking, c->moe, c->L, &member.size, err) ||
        fm_stage_parts_collect(&parts, FM_STAGE_RANK, NULL, &task->dir, &member, 1, err) ||
        fm_bundle_size(&sizes, 0, manifest, parts.part, parts.parts, err))
        rc = err->code;
    s->disk = sizes.all;
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

/* Add a kind of sweep and, with it, that of the layer for multi-token prediction, whose sequences
 * are shorter by a token. */
static void add_sweep(struct fm_estimate *estimate, const struct scorer *s,
                      const struct fm_estimate_sweep *sweep, uint64_t memory)
{
    struct fm_estimate_sweep ahead = *sweep;
    fm_estimate_add(estimate, s->task.model, sweep, memory);
    ahead.T--;
    ahead.rows = sweep->rows / (uint64_t)sweep->T * (uint64_t)ahead.T;
    ahead.draft = true;
    if (s->draft)
        fm_estimate_add_draft(estimate, s->draft, &ahead);
}

static void estimate_scores(struct fm_estimate *estimate, struct fm_task *task, void *self)
{
    const struct scorer *s = self;
    int batches = s->batches;
    bool backward = s->criterion->backward;
    int batch = task->batch, group = group_of(task, batches);
    uint64_t rows = (uint64_t)batch * (uint64_t)task->calib.T;
    struct fm_estimate_sweep sweep = {
        .count = (uint64_t)(batches / group),
        .rows = (uint64_t)group * rows,
        .T = task->calib.T,
        .lanes = 1,
        .backward = backward,
        .scores = backward,
        .kept = 1,
        .leaves = fm_sweep_leaves(groups_of(task, batches), batch * task->calib.T, group)};
    *estimate = (struct fm_estimate){0};
    for (int i = 0; i < task->calib.inputs; i++)
        estimate->held += task->calib.input[i].tokens;
    estimate->used = (uint64_t)batches * (uint64_t)batch * (uint64_t)task->calib.T;
    uint64_t sums = sums_bytes(s, group) + ahead_bytes(s, group),
             memory = task->memory > sums ? task->memory - sums : 0;
    add_sweep(estimate, s, &sweep, memory);
    int rest = batches % group; /* the batches of a last group that is not full */
    if (rest > 0) {
        sweep.count = 1;
        sweep.rows = (uint64_t)rest * rows;
        sweep.leaves = fm_sweep_leaves(rest, batch * task->calib.T, group);
        add_sweep(estimate, s, &sweep, memory);
    }
    estimate->memory += sums;
    estimate->making = estimate->flops;
    estimate->disk = s->disk;
}

/*
 * Coverage: the scores of an expert that got few tokens or none are meaningless, so the user is
 * warned.
 */

/* Count experts whose scores are based on few tokens: less than a tenth of an even share of the
 * layer's tokens. */
static void count_starved(struct fm_coverage *y, const struct fm_ranking *r, const int16_t *moe,
                          const struct fm_run_options *run)
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
        fm_run_warn(run,
                    "%d experts received less than a tenth of an even share of their layer's "
                    "tokens (the fewest: %lld, layer %d expert %d); their scores are noise: give "
                    "more tokens, or text for which the router chooses these experts",
                    y->starved, (long long)fewest, moe[worst / r->E], worst % r->E);
}

int fm_rank_cover(struct fm_coverage *y, const struct fm_ranking *r, const int16_t *moe,
                  const struct fm_run_options *run, struct fm_err *err)
{
    size_t X = (size_t)r->M * (size_t)r->E;
    y->unreached_at = fm_alloc(X, 2 * sizeof(int32_t), "experts without tokens", err);
    y->tokens = fm_alloc(X, sizeof *y->tokens, "token counts", err);
    if (!y->unreached_at || !y->tokens)
        return FM_ENOMEM;
    memcpy(y->tokens, r->tokens, X * sizeof *y->tokens);
    count_starved(y, r, moe, run);
    for (size_t x = 0; x < X; x++) {
        if (r->tokens[x])
            continue;
        y->unreached_at[2 * y->unreached] = moe[x / (size_t)r->E];
        y->unreached_at[2 * y->unreached++ + 1] = (int32_t)(x % (size_t)r->E);
    }
    if (y->unreached)
        fm_run_warn(run,
                    "%d of %zu experts received no token; their scores are 0 and their order is "
                    "kept: give more text or tokens",
                    y->unreached, X);
    return FM_OK;
}

static int fill_report(void *self, struct fm_err *err)
{
    struct scorer *s = self;
    const struct fm_task *task = &s->task;
    const struct fm_config *c = task->config;
    int used = s->batches * task->batch;
    *s->report = (struct fm_rank_report){
        .criterion = s->criterion,
        .group = s->ranking.group,
        .L = c->L,
        .M = c->M,
        .E = c->E,
        .I = c->I,
        .T = task->calib.T,
        .sequences = used,
        .batches = s->batches,
        .dropped = task->calib.count - used,
        .held_out = fm_inputs_evaluate(&task->run->inputs) ? 0 : task->held.count,
        .ce = s->ce / s->batches,
        .ahead = s->ranking.ahead,
        .ahead_ce = s->ahead_ce / s->batches,
        .resumed = s->runner.resumed,
        .seconds = s->runner.seconds};
    memcpy(s->report->moe, c->moe, sizeof s->report->moe);
    if (fm_comm_rank(task->run->machine.comm) != 0)
        return FM_OK; /* it has no scores */
    int rc = finish_scores(s, err);
    for (int e = 0; s->ranking.ahead && e < c->E; e++)
        s->report->ahead_unreached += s->ranking.tokens[c->M * c->E + e] == 0;
    if (s->report->ahead_unreached)
        fm_run_warn(task->run,
                    "%d of %d experts of layer %d, for multi-token prediction, received no token; "
                    "their order is kept: give more text or tokens",
                    s->report->ahead_unreached, c->E, c->L);
    return rc ? rc : fm_rank_cover(&s->report->coverage, &s->ranking, c->moe, task->run, err);
}

/* Find the checkpoint's files that the stream carries, including those of --carry. */
static int find_carried(struct fm_task *task, const char *const *pattern, struct fm_err *err)
{
    int rc = fm_carry_list(&task->dir, pattern, err);
    return rc == FM_EUSAGE ? fm_within(err, "--carry") : rc;
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

/* Open the layer for multi-token prediction, if it is to be ranked. */
static int open_ahead(struct scorer *s, struct fm_err *err)
{
    const struct fm_task *task = &s->task;
    const struct fm_extra *extra = fm_model_extra(task->model);
    if (!s->options->keep_extra)
        return FM_OK;
    if (extra->tensors > 0 && !extra->experts) {
        fm_run_note(task->run, "layers for multi-token prediction have no experts to rank");
        return FM_OK;
    }
    if (fm_extra_can_draft(extra, task->config, err))
        return fm_within(err, "--keep-extra");
    if (task->calib.T < 3)
        return fm_fail(err, FM_EUSAGE,
                       "--keep-extra: sequences have %d tokens, and to predict the token after the "
                       "next one they need 3; use a larger --seq-len",
                       task->calib.T);
    if (fm_model_open_draft(&s->draft, &task->dir, err))
        return fm_within(err, "--keep-extra");
    fm_model_use(s->draft, task->ops);
    return FM_OK;
}

/* Choose the channel group and the number of batches, and list the files to carry. */
static int open_inputs(void *self, struct fm_err *err)
{
    struct scorer *s = self;
    struct fm_task *task = &s->task;
    const struct fm_config *c = task->config;
    int group;
    if (list_carried(task, s->options->carry, err) ||
        choose_group(&group, s->options->group, task->model, err) ||
        count_batches(&s->batches, task, err))
        return err->code;
    if (open_ahead(s, err))
        return err->code;
    s->ranking = (struct fm_ranking){
        .M = c->M, .ahead = s->draft != NULL, .E = c->E, .I = c->I, .group = group};
    s->group = groups_of(task, s->batches);
    s->runner.steps = s->batches;
    return fm_comm_rank(task->run->machine.comm) == 0 ? estimate_stream(s, err) : FM_OK;
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

static void forecast(void *self, struct fm_estimate *estimate)
{
    const struct scorer *s = self;
    int half = s->batches / 2; /* a single batch cannot be halved */
    if (half)
        fm_estimate_suggest(estimate, estimate->flops * half / s->batches, "--max-tokens %" PRIu64,
                            tokens_for(&s->task, half * s->task.batch));
    estimate_carried(estimate, &s->task.dir);
    say_codes(estimate->codes, s->ranking.group, s->task.model);
}

static const struct fm_work work = {
    .tool = "fm-rank",
    .stage = FM_STAGE_RANK,
    .batch = 1,
    .verb = "rank",
    .unit = "batch",
    .units = "batches",
    .open = open_inputs,
    .plan = estimate_scores,
    .forecast = forecast,
    .params = print_params,
    .begin = begin,
    .state = list_state,
    .collect = gather,
    .step = score_group,
    .finish = finish,
    .report = fill_report,
    .record = record,
    .result = record_result,
    .members = make_members,
};

int fm_rank(const struct fm_run_options *run, const struct fm_rank_options *options,
            struct fm_estimate *dry, struct fm_rank_report *report, struct fm_err *err)
{
    struct scorer s = {.runner = {.work = &work, .self = &s, .task = &s.task},
                       .options = options,
                       .report = report,
                       .criterion = options->criterion};
    int rc = fm_runner_run(&s.runner, run, dry, err);
    fm_sweep_free(s.ahead_sweep);
    fm_reduction_release(&s.ahead_sums.reduction);
    fm_model_joint_release(&s.joint);
    fm_model_close(s.draft);
    free(s.ahead_ids);
    fm_sweep_free(s.sweep);
    free(s.slot);
    fm_reduction_release(&s.sums.reduction);
    free(s.before);
    free(s.ids);
    free(s.batch);
    free(s.measure);
    fm_ranking_release(&s.ranking);
    fm_task_close(&s.task);
    return rc;
}
