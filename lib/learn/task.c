/*
 * Checks before a long run, shared by rank, train and recover: the model can be opened, the stream
 * belongs to it, the tokens are in its vocabulary, the output can be created, and no other run
 * holds the state file.
 */
#include "lib/learn/task.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/rng.h"
#include "lib/data/provenance.h"
#include "lib/stage/stage.h"
#include "lib/state/journal.h"

#define LOCK_SECONDS 3
/* By default a run uses the memory with which it computes at most this share of operations more
 * than with half of the machine's: the last inner values that are kept take much memory and save
 * little. */
#define SLOWER 0.1

/* Lock the state file.  Killed ranks can outlive their launcher, so a run that is restarted at once
 * may find the lock still held: wait for a short time. */
static int lock_state(struct fm_lock *lock, const struct fm_run_options *run, struct fm_err *err)
{
    const struct timespec nap = {.tv_nsec = 50000000};
    double until = fm_clock_now() + LOCK_SECONDS;
    int rc = fm_lock_acquire(lock, run->outputs.state, err);
    while (rc == FM_ELOCKED && fm_clock_now() < until && !(run->stop && *run->stop)) {
        nanosleep(&nap, NULL);
        *err = (struct fm_err){0};
        rc = fm_lock_acquire(lock, run->outputs.state, err);
    }
    return rc;
}

/* Check the output (terminal, missing directory, existing file) now rather than after a long run.
 */
static int try_output(const struct fm_outputs *outputs, struct fm_err *err)
{
    struct fm_output out;
    int rc = fm_output_open(&out, outputs->path, true, outputs->force, err);
    if (!rc)
        fm_output_abandon(&out);
    return rc;
}

static int digest_identity(struct fm_task *task, struct fm_err *err)
{
    cJSON *model = NULL;
    int rc = fm_stage_model_identity(&model, &task->dir, task->config, fm_model_dtype(task->model),
                                     NULL, err);
    if (rc)
        return rc;
    char *text = fm_json_print(model);
    if (text)
        task->identity = fm_digest_of(text, strlen(text));
    else
        rc = fm_fail(err, FM_ENOMEM, "no memory for the model's identity");
    free(text);
    cJSON_Delete(model);
    return rc;
}

/* Refuse a ragged or native export: it is a model, but its experts lack channels. */
static int check_whole(const struct fm_task *task, struct fm_err *err)
{
    const struct fm_config *c = task->config;
    const uint32_t *caps = fm_model_caps(task->model);
    for (int i = 0; i < c->M * c->E; i++)
        if (caps[i] != (uint32_t)c->I)
            return fm_fail(
                err, FM_ECONFIG,
                "'%s' is an export (layer %d, expert %d has %u of %d channels); give the "
                "checkpoint that it was made from",
                task->run->inputs.model, c->moe[i / c->E], i % c->E, caps[i], c->I);
    return FM_OK;
}

int fm_task_open_inputs(struct fm_task *task, const struct fm_run_options *run, bool hold,
                        struct fm_err *err)
{
    *task = (struct fm_task){.run = run, .began = fm_clock_now(), .epoch_number = -1};
    task->memory = fm_machine_memory(&run->machine);
    /* Check the machine before opening anything. */
    if (fm_machine_ops(&task->ops, &run->machine, FM_F32, err) ||
        fm_hfdir_open(&task->dir, run->inputs.model, err) ||
        fm_model_open_dir(&task->model, &task->dir, task->memory / 2, err) ||
        fm_machine_ops(&task->ops, &run->machine, fm_model_dtype(task->model), err))
        return err->code;
    fm_model_use(task->model, task->ops);
    task->config = fm_model_config(task->model);
    if (check_whole(task, err) || digest_identity(task, err))
        return err->code;
    return hold ? fm_quality_open(&task->calib, &task->held, run, task->config, err)
                : fm_calib_open(&task->calib, run, task->config, false, err);
}

static int open_stream(struct fm_task *task, const char *needs, struct fm_err *err)
{
    const struct fm_config *c = task->config;
    if (fm_stage_open(&task->in, task->run->inputs.stream, needs, err) ||
        fm_stage_model_check(&task->in, &task->dir, err) ||
        fm_stage_weights_read(&task->wanted, &task->in, err) ||
        fm_ranking_open(&task->ranking, &task->in, err))
        return err->code;
    fm_model_want(task->model, &task->wanted);
    if (task->ranking.M != c->M || task->ranking.E != c->E || task->ranking.I != c->I)
        return fm_fail(err, FM_ECONFIG,
                       "the ranking in '%s' has %d x %d x %d channels, but the model "
                       "in '%s' has %d x %d x %d",
                       task->run->inputs.stream, task->ranking.M, task->ranking.E, task->ranking.I,
                       task->run->inputs.model, c->M, c->E, c->I);
    fm_model_rank(task->model, task->ranking.order);
    fm_model_keep_codes(task->model, fm_model_can_keep(task->model, task->ranking.group));
    return FM_OK;
}

/* Warn if losses would be measured on tokens that the ranking was made from. */
static void warn_ranked_on(const struct fm_task *task)
{
    const struct fm_run_options *run = task->run;
    if (!fm_inputs_evaluate(&run->inputs) &&
        !fm_provenance_is_held_out(fm_stage_history_of(&task->in, "fm-rank"), &task->held))
        fm_run_warn(
            run,
            "the %d sequences to measure on are not those that fm-rank held out, and it may have "
            "ranked on them; give all tools the same tokens, or --eval-text",
            task->held.count);
}

int fm_task_open(struct fm_task *task, const struct fm_run_options *run, const char *needs,
                 bool dry, struct fm_err *err)
{
    const char *stream = run->inputs.stream;
    bool writes = !dry && fm_comm_rank(run->machine.comm) == 0;
    bool reads = needs && (!dry || (stream && strcmp(stream, "-") != 0));
    struct fm_lock lock = {0};
    *task = (struct fm_task){0};
    if (writes && lock_state(&lock, run, err))
        return fm_within(err, "state file");
    int rc = fm_task_open_inputs(task, run, true, err);
    task->lock = lock;
    if (!rc && reads)
        rc = open_stream(task, needs, err);
    if (!rc && reads && !dry)
        warn_ranked_on(task);
    if (!rc && writes)
        rc = try_output(&run->outputs, err);
    return fm_comm_agree(run->machine.comm, rc, err);
}

struct planned {
    struct fm_task *task;
    fm_task_planner *plan;
    void *self;
};

static void plan_within(struct fm_estimate *estimate, void *self, uint64_t memory)
{
    const struct planned *p = self;
    uint64_t before = p->task->memory;
    p->task->memory = memory;
    p->plan(estimate, p->task, p->self);
    p->task->memory = before;
}

void fm_task_plan(struct fm_estimate *estimate, struct fm_task *task, fm_task_planner *plan,
                  void *self)
{
    struct planned planned = {task, plan, self};
    fm_estimate_fit(estimate, (struct fm_model *[]){task->model, NULL}, task->memory, plan_within,
                    &planned);
    if (estimate->least)
        return;
    double flops = estimate->flops;
    uint64_t enough = fm_estimate_enough(plan_within, &planned, task->memory, INFINITY);
    if (!task->run->machine.memory)
        task->memory = fm_estimate_enough(plan_within, &planned, task->memory, SLOWER);
    plan_within(estimate, &planned, enough);
    double more = estimate->flops / flops - 1;
    plan_within(estimate, &planned, task->memory);
    estimate->enough = enough;
    estimate->enough_more = more;
}

void fm_task_close(struct fm_task *task)
{
    if (!task->run)
        return;
    free(task->epoch);
    free(task->measured.measure);
    fm_calib_close(&task->calib);
    fm_calib_close(&task->held);
    fm_model_close(task->model);
    fm_ranking_release(&task->ranking);
    fm_bundle_close(&task->in);
    fm_hfdir_close(&task->dir);
    fm_lock_drop(&task->lock);
    *task = (struct fm_task){0};
}

/* Progress of a sweep within the stage that was reported last. */
static void report_share(void *self, double share)
{
    const struct fm_task *task = self;
    fm_run_within(task->run, share * (task->units > 0 ? task->units : 1));
}

int fm_task_sweep(struct fm_sweep **sweep, struct fm_task *task, int batches, int rows, int lanes,
                  uint64_t memory, struct fm_err *err)
{
    struct fm_sweep_options options = {
        .memory = fm_estimate_boundaries(task->model, batches, rows, task->cut, lanes, memory),
        .progress = report_share,
        .progress_self = task,
        .stop = task->run->stop,
        .comm = task->run->machine.comm,
        .cut = task->cut,
        .keep_last = task->keep_last};
    return fm_sweep_new(sweep, task->model, task->ops, batches, rows, task->calib.T, lanes,
                        &options, err);
}

int fm_task_run(const struct fm_task *task, struct fm_sweep *sweep, const int32_t *ids, int batches,
                int micro, const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                int64_t *counts, struct fm_err *err)
{
    int T = task->calib.T;
    size_t n = (size_t)batches, size = (size_t)micro * (size_t)T;
    struct fm_batch *batch = fm_alloc(n, sizeof *batch, "batches", err);
    struct fm_measure *measure = fm_alloc(n * (size_t)lanes, sizeof *measure, "measures", err);
    int rc = batch && measure ? FM_OK : FM_ENOMEM;
    for (size_t b = 0; !rc && b < n; b++)
        batch[b] = (struct fm_batch){ids + b * size, micro, T};
    if (!rc)
        rc = fm_sweep_run(sweep, batch, batches, lane, lanes, visitor, measure, counts, err);
    free(batch);
    free(measure);
    return rc;
}

void fm_task_warn_idle(const struct fm_task *task, int batches, int rows)
{
    int leaves = fm_sweep_leaves(batches, rows, task->cut),
        ranks = fm_comm_size(task->run->machine.comm);
    if (leaves < ranks)
        fm_run_warn(task->run,
                    "%d of %d ranks have work in a step; raise --batch, or start fewer ranks",
                    leaves, ranks);
}

int fm_task_draw(struct fm_task *task, int32_t *ids, uint64_t at, int n, struct fm_err *err)
{
    uint64_t count = (uint64_t)task->calib.count;
    size_t T = (size_t)task->calib.T;
    if (!task->epoch)
        task->epoch = fm_alloc(count, sizeof *task->epoch, "the order of an epoch", err);
    if (!task->epoch)
        return FM_ENOMEM;
    for (int i = 0; i < n; i++) {
        int64_t epoch = (int64_t)((at + (uint64_t)i) / count);
        if (epoch != task->epoch_number)
            fm_rng_permutation(task->epoch, (uint32_t)count, task->run->inputs.seed,
                               FM_STREAM_EPOCH, (uint32_t)epoch);
        task->epoch_number = epoch;
        size_t from = task->epoch[(at + (uint64_t)i) % count];
        int rc = fm_calib_read(&task->calib, (int)from, 1, ids + (size_t)i * T, err);
        if (rc)
            return rc;
    }
    return FM_OK;
}

int fm_task_stopped(const struct fm_task *task, struct fm_err *err)
{
    const atomic_int *stop = task->run->stop;
    int rc = stop && *stop ? fm_fail(err, FM_ESAVED, "stopped by a signal") : FM_OK;
    return fm_comm_agree(task->run->machine.comm, rc, err);
}

/* Pieces of a measurement, and the current one. */
struct pieces {
    const struct fm_run_options *run;
    int at, count;
};

static void report_piece(void *self, const char *stage, uint64_t done, uint64_t total,
                         const char *unit)
{
    const struct pieces *p = self;
    fm_run_report(p->run, stage, (uint64_t)p->at * total + done, (uint64_t)p->count * total, unit);
}

static void report_within(void *self, double units)
{
    const struct pieces *p = self;
    fm_run_within(p->run, units);
}

/* ---- measuring masks ---- */

_Static_assert(sizeof(struct fm_measure) % sizeof(int64_t) == 0, "a state file has whole words");
#define WORDS (sizeof(struct fm_measure) / sizeof(int64_t))
#define FACTS (offsetof(struct fm_measured, measure) / sizeof(int64_t))
_Static_assert(FACTS == 4, "these of struct fm_measured are four integers");

size_t fm_task_state_items(struct fm_journal_item *item, struct fm_task *task)
{
    struct fm_measured *m = &task->measured;
    if (m->words == 0)
        return 0;
    item[0] =
        (struct fm_journal_item){.name = "measuring", .dtype = FM_I64, .count = FACTS, .data = m};
    item[1] = (struct fm_journal_item){
        .name = "measures", .dtype = FM_I64, .count = m->words, .data = m->measure};
    return 2;
}

int fm_task_state_take(struct fm_task *task, const struct fm_journal *journal, struct fm_err *err)
{
    struct fm_measured *m = &task->measured;
    m->words = fm_journal_count(journal, "measures");
    if (m->words == 0)
        return FM_OK;
    m->measure = fm_alloc(m->words / WORDS + 1, sizeof *m->measure, "measures", err);
    return m->measure ? FM_OK : err->code;
}

uint64_t fm_task_part(const struct fm_task *task, uint64_t masks)
{
    const struct fm_calib *held = &task->held;
    uint64_t tokens = (uint64_t)held->count * (uint64_t)held->T;
    int ranks = fm_comm_size(task->run->machine.comm);
    if (!task->run->outputs.state)
        return tokens;
    uint64_t part = (uint64_t)fm_quality_part(held, (int)masks, ranks);
    return part * tokens / (uint64_t)fm_quality_batches(held);
}

/* One piece of a measurement in parts. */
struct piece {
    struct fm_task *task;
    struct fm_quality_parts *parts;
    const int *number;
    fm_task_took *took;
    void *self;
};

/* The parts that are done go into the state file. */
static void note_parts(struct fm_measured *m, const struct fm_quality_parts *parts)
{
    m->done = parts->done;
    m->words = (uint64_t)(m->done * (m->masks + 1)) * WORDS;
}

static int took_part(void *self, struct fm_err *err)
{
    const struct piece *p = self;
    note_parts(&p->task->measured, p->parts);
    return p->took(p->self, p->number, NULL, 0, err);
}

/* Measure masks in parts, continuing those of the state file if they are of the same masks. */
static int measure_parts(struct fm_quality *quality, struct fm_quality_subject *s,
                         struct piece *piece, const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_task *task = piece->task;
    struct fm_measured had = task->measured, *m = &task->measured;
    int batches = fm_quality_batches(&task->held), n = s->masks;
    *m = (struct fm_measured){.first = piece->number[0], .masks = n, .adapter = s->adapter != NULL};
    m->measure = fm_alloc((size_t)batches * ((size_t)n + 1), sizeof *m->measure, "measures", err);
    struct fm_quality_parts parts = {.measure = m->measure, .took = took_part, .self = piece};
    if (m->measure && had.first == m->first && had.masks == n && had.adapter == m->adapter &&
        had.done >= 0 && had.done <= batches &&
        had.words == (uint64_t)(had.done * (n + 1)) * WORDS && had.words > 0) {
        memcpy(m->measure, had.measure, (size_t)had.words * sizeof(int64_t));
        parts.done = (int)had.done;
    }
    free(had.measure);
    note_parts(m, &parts);
    piece->parts = s->parts = &parts;
    int rc = m->measure ? fm_quality_measure(quality, s, run, err) : err->code;
    note_parts(m, &parts);
    piece->parts = s->parts = NULL;
    if (rc)
        return rc;
    free(m->measure);
    *m = (struct fm_measured){0};
    return FM_OK;
}

int fm_task_measure(struct fm_task *task, const struct fm_masks *f, const int *number, int count,
                    const struct fm_adapter *adapter, fm_task_took *took, void *self,
                    struct fm_err *err)
{
    bool merges = adapter && !adapter->router;
    uint64_t merged = merges ? fm_estimate_merged(task->config) : 0;
    int group = fm_quality_group(task->model, &task->held,
                                 task->memory > merged ? task->memory - merged : 0);
    int rc = fm_comm_least(task->run->machine.comm, &group, err);
    if (rc)
        return rc;
    struct pieces pieces = {task->run, 0, (count + group - 1) / group};
    struct fm_run_options run = *task->run;
    run.progress =
        (struct fm_progress){.report = report_piece, .within = report_within, .self = &pieces};
    run.machine.memory = task->memory ? task->memory : 1;
    /* fm_quality_measure subtracts the adapter, which task->memory does not include. */
    if (merges)
        run.machine.memory += adapter->offset[adapter->M * adapter->E] * sizeof(float);
    group = group < count ? group : count;
    struct fm_quality *quality = fm_alloc((size_t)group, sizeof *quality, "quality", err);
    uint32_t *widths =
        fm_alloc((size_t)group, (size_t)f->M * (size_t)f->E * sizeof *widths, "widths", err);
    rc = quality && widths ? FM_OK : FM_ENOMEM;
    for (int at = 0, n; !rc && at < count; at += n, pieces.at++) {
        n = count - at < group ? count - at : group;
        fm_masks_gather(widths, f, number + at, n);
        rc = fm_task_stopped(task, err);
        struct piece piece = {.task = task, .number = number + at, .took = took, .self = self};
        struct fm_quality_subject subject = {.model = task->model,
                                             .held = &task->held,
                                             .masks = n,
                                             .widths = widths,
                                             .adapter = adapter};
        if (!rc)
            rc = run.outputs.state ? measure_parts(quality, &subject, &piece, &run, err)
                                   : fm_quality_measure(quality, &subject, &run, err);
        if (!rc)
            rc = took(self, number + at, quality, n, err);
    }
    free(quality);
    free(widths);
    return rc;
}

int fm_task_same_weights(const struct fm_task *task, struct fm_err *err)
{
    struct fm_comm *comm = task->run->machine.comm;
    struct fm_reading_sums sums;
    struct fm_digest first, own = {{0}};
    bool read = fm_comm_tally(comm)->leaves > 0; /* a rank without leaves computed nothing */
    if (!comm)
        return FM_OK;
    int rc = read ? fm_model_sums(task->model, &sums, task->run->stop, err) : FM_OK;
    if (!rc && read)
        own = fm_digest_of(sums.sum, ((size_t)sums.L + 1) * sizeof *sums.sum);
    first = own;
    rc = fm_comm_agree(comm, rc, err);
    if (!rc)
        rc = fm_comm_tell(comm, &first, sizeof first, err);
    if (!rc && read && !fm_digest_equal(&first, &own))
        rc = fm_fail(err, FM_ECONFIG,
                     "the weights in '%s' differ from those that rank 0 on %s has under this name",
                     task->run->inputs.model, fm_comm_host(comm, 0));
    return fm_comm_agree(comm, rc, err);
}
