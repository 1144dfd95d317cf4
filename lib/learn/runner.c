/*
 * A run's parameters are one digest of everything that affects its result; a state file is resumed
 * only if it has the same digest.
 *
 * Ranks: every rank makes the same calls, and fm_comm_agree after those that may fail on one rank
 * only.  Rank 0 saves the state and writes the stream.
 */
#include "lib/learn/runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/data/provenance.h"
#include "lib/learn/forecast.h"

void fm_runner_item(struct fm_journal_item *item, size_t *items, const char *name,
                    enum fm_dtype dtype, uint64_t count, void *data)
{
    item[(*items)++] =
        (struct fm_journal_item){.name = name, .dtype = dtype, .count = count, .data = data};
}

static struct fm_comm *comm_of(const struct fm_runner *r)
{
    return r->task->run->machine.comm;
}

/* ---- the state file ---- */

static size_t list_state(struct fm_journal_item *item, struct fm_runner *r)
{
    size_t n = r->work->state(r->self, item);
    return n + fm_task_state_items(item + n, r->task);
}

static int save(struct fm_runner *r, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    double began = fm_clock_now();
    int rc = r->work->collect ? r->work->collect(r->self, err) : FM_OK;
    if (!rc)
        rc = fm_journal_save(comm_of(r), r->task->run->outputs.state, r->work->tool, &r->params,
                             item, list_state(item, r), err);
    fm_journal_saved(&r->clock, began);
    return rc;
}

int fm_runner_due(struct fm_runner *r, struct fm_err *err)
{
    r->advanced = true;
    bool due = r->task->run->outputs.state && fm_journal_due(&r->clock);
    int rc = r->task->run->outputs.state ? fm_comm_tell(comm_of(r), &due, sizeof due, err) : FM_OK;
    return !rc && due ? save(r, err) : rc;
}

static int check_taken(const struct fm_runner *r, struct fm_err *err)
{
    if (r->steps == 0 || (r->taken >= 0 && r->taken <= r->steps))
        return FM_OK;
    return fm_fail(
        err, FM_EFORMAT,
        "state file '%s' is at %s %lld, but the run has %lld; remove the file to start anew",
        r->task->run->outputs.state, r->work->unit, (long long)r->taken, (long long)r->steps);
}

/* FM_ECONFIG if the state file belongs to a different run. */
static int resume(struct fm_runner *r, struct fm_err *err)
{
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct fm_journal j;
    bool found;
    int rc = fm_journal_open(&j, comm_of(r), r->task->run->outputs.state, r->work->tool, &r->params,
                             &found, err);
    if (rc || !found)
        return rc;
    if ((r->work->size && r->work->size(r->self, &j, err)) ||
        fm_task_state_take(r->task, &j, err) ||
        fm_journal_read(&j, item, list_state(item, r), err) ||
        (r->work->resumed && r->work->resumed(r->self, err)) || check_taken(r, err))
        rc = err->code;
    r->resumed = (int)r->taken;
    fm_journal_close(&j);
    return rc;
}

/* ---- the steps ---- */

static void report_steps(const struct fm_runner *r)
{
    if (r->work->verb)
        fm_run_report(r->task->run, r->work->verb, (uint64_t)r->taken, (uint64_t)r->steps,
                      r->work->units);
}

static int take_steps(struct fm_runner *r, struct fm_err *err)
{
    double began = r->clock.saved = fm_clock_now();
    bool done = false;
    int rc = FM_OK;
    if (r->work_steps > 0)
        fm_run_phase(r->task->run, r->work_steps, r->work_measure);
    while (!rc && !done && (r->steps == 0 || r->taken < r->steps)) {
        report_steps(r);
        rc = fm_task_stopped(r->task, err);
        if (!rc)
            rc = r->work->step(r->self, &done, err);
        if (!rc)
            rc = fm_runner_due(r, err);
    }
    report_steps(r);
    int64_t steps = r->taken - r->resumed;
    r->seconds_step = steps > 0 ? (fm_clock_now() - began) / (double)steps : 0;
    return rc;
}

/* ---- the parameters of a run ---- */

/* A text that the suite itself encodes (all of these have the same separator); NULL if there is
 * none. */
static const struct fm_corpus *encoded_text(const struct fm_task *task)
{
    const struct fm_corpus *text = fm_calib_text(&task->calib);
    if (!text)
        text = fm_calib_text(&task->held);
    return text && !text->command ? text : NULL;
}

/* Compare between ranks all values that affect the result, or that can change its last bits; the
 * most likely differences come first. */
static int same_for_ranks(const struct fm_task *task, char (*hex)[FM_DIGEST_HEX], const char *text,
                          struct fm_err *err)
{
    char onednn[64], seed[64], options[FM_DIGEST_HEX];
    struct fm_digest digest = fm_digest_of(text, strlen(text));
    fm_digest_hex(options, &digest);
    fm_ops_dnnl_version(onednn, sizeof onednn);
    snprintf(seed, sizeof seed, "%llu %s", (unsigned long long)task->run->inputs.seed,
             task->run->inputs.shuffle ? "shuffled" : "in order");
    const struct fm_comm_fact fact[] = {
        {"the version", FM_VERSION},
        {"oneDNN with its instruction set", onednn},
        {"--device", task->ops->name},
        {"--precision", fm_machine_precision(task->ops)},
        {"--seed", seed},
        {"the digest of the model's config and tensors", hex[0]},
        {"the digest of the tokens", hex[1]},
        {"the digest of the tokens to measure on", hex[2]},
        {"the digest of the stream's ranking", hex[3]},
        {"the digest of the stream's masks", hex[4]},
        {"another option", text},
        {"the digest of the other options", options},
    };
    return fm_comm_same(task->run->machine.comm, fact, sizeof fact / sizeof *fact, err);
}

/* Digest of everything that affects the results of all tools, and of `text`, which has the
 * tool's own options.  FM_ECONFIG if ranks differ in any of this, or in the hardware or libraries
 * that they compute with. */
static int digest_params(const struct fm_task *task, struct fm_digest *params, const char *text,
                         struct fm_err *err)
{
    char hex[5][FM_DIGEST_HEX] = {"", "", "", "", ""}, separator[32] = "";
    char kinds[FM_INPUTS_MAX * (FM_KIND_BYTES + 1) + 1] = "";
    const struct fm_corpus *encoded = encoded_text(task);
    if (encoded)
        snprintf(separator, sizeof separator, " separator %d", (int)encoded->separator.id);
    size_t at = 0;
    for (int i = 0; i < task->held.inputs && task->held.input[i].kind[0]; i++)
        at += (size_t)snprintf(kinds + at, sizeof kinds - at, " %s", task->held.input[i].kind);
    fm_digest_hex(hex[0], &task->identity);
    fm_digest_hex(hex[1], &task->calib.digest);
    fm_digest_hex(hex[2], &task->held.digest);
    const char *const members[] = {FM_MEMBER_RANKING, FM_MEMBER_MASKS};
    for (int i = 0; i < 2 && task->in.members; i++) {
        const struct fm_member *m = fm_bundle_find(&task->in, members[i]);
        if (m)
            fm_digest_hex(hex[3 + i], &m->digest);
    }
    int rc = same_for_ranks(task, hex, text, err);
    return rc ? rc
              : fm_journal_params(params, err,
                                  "%s model %s tokens %s %d %d%s held %s %d %d%s ranking %s masks "
                                  "%s seed %llu shuffle %d device %s %s; %s",
                                  FM_VERSION, hex[0], hex[1], task->calib.count, task->calib.T,
                                  separator, hex[2], task->held.count, task->held.T, kinds, hex[3],
                                  hex[4], (unsigned long long)task->run->inputs.seed,
                                  task->run->inputs.shuffle, task->ops->name,
                                  fm_machine_precision(task->ops), text);
}

/* Begin or resume, and take all steps. */
static int compute(struct fm_runner *r, struct fm_err *err)
{
    struct fm_text text = {0};
    r->work->params(r->self, &text);
    int rc = text.failed ? fm_fail(err, FM_ENOMEM, "no memory for the options")
                         : digest_params(r->task, &r->params, text.data, err);
    free(text.data);
    if (!rc)
        rc = r->work->begin(r->self, err);
    rc = fm_comm_agree(comm_of(r), rc, err);
    if (rc || resume(r, err))
        return err->code;
    rc = take_steps(r, err);
    if (!rc)
        rc = r->work->finish(r->self, err);
    if (rc != FM_ESAVED || !r->task->run->outputs.state || !r->advanced)
        return rc;
    int saved = save(r, err);
    return saved ? saved : FM_ESAVED;
}

/* ---- the stream ---- */

/* "options" of a history entry, borrowed: {"batch", "shuffle", "seed", "device", "precision"}. */
static cJSON *record_options(cJSON *entry, const struct fm_task *task)
{
    cJSON *o = fm_json_add_object(entry, "options");
    fm_json_add_uint(o, "batch", (uint64_t)task->batch);
    fm_json_add_bool(o, "shuffle", task->run->inputs.shuffle);
    fm_json_add_uint(o, "seed", task->run->inputs.seed);
    fm_json_add_string(o, "device", task->ops->name);
    fm_json_add_string(o, "precision", fm_machine_precision(task->ops));
    return o;
}

cJSON *fm_runner_manifest(struct fm_runner *r, cJSON *model)
{
    const struct fm_work *work = r->work;
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    cJSON *manifest =
        fm_stage_manifest(work->stage, work->needs ? &r->task->in : NULL, model, dropped);
    if (dropped[0])
        fm_run_warn(r->task->run, "%s", dropped);
    cJSON *entry = fm_stage_history(manifest, work->tool);
    work->record(r->self, record_options(entry, r->task));
    fm_provenance_tokens(entry, &r->task->calib);
    fm_provenance_held_out(entry, &r->task->held);
    work->result(r->self, fm_json_add_object(entry, "result"));
    return manifest;
}

/* The first stage writes the identity of the model; the others copy it. */
static int identify(cJSON **model, const struct fm_runner *r, struct fm_err *err)
{
    const struct fm_task *task = r->task;
    struct fm_reading_sums sums;
    if (r->work->needs)
        return FM_OK;
    int rc = fm_model_sums(task->model, &sums, task->run->stop, err);
    return rc ? rc
              : fm_stage_model_identity(model, &task->dir, task->config,
                                        fm_model_dtype(task->model), &sums, err);
}

static int write_stream(struct fm_runner *r, struct fm_err *err)
{
    const struct fm_work *work = r->work;
    struct fm_task *task = r->task;
    struct fm_stage_member member[FM_WORK_MEMBERS] = {{0}};
    size_t members = 0;
    cJSON *model = NULL;
    int rc = identify(&model, r, err);
    if (rc)
        return rc;
    cJSON *manifest = fm_runner_manifest(r, model);
    rc = work->members(r->self, manifest, member, &members, err);
    if (rc)
        cJSON_Delete(manifest);
    else
        rc = fm_stage_write(task->run, work->stage, manifest, work->needs ? &task->in : NULL,
                            work->needs ? NULL : &task->dir, member, members, err);
    for (size_t i = 0; i < FM_WORK_MEMBERS; i++)
        free((void *)(uintptr_t)member[i].data);
    return rc;
}

/* ---- a run ---- */

/* Compute and write everything. */
static int make(struct fm_runner *r, struct fm_err *err)
{
    struct fm_comm *comm = comm_of(r);
    int rc = compute(r, err);
    if (!rc) {
        r->seconds = fm_clock_now() - r->task->began;
        rc = r->work->report(r->self, err);
    }
    rc = fm_comm_agree(comm, rc, err);
    if (!rc)
        rc = fm_comm_share_tallies(comm, err);
    if (!rc && fm_comm_rank(comm) == 0)
        rc = write_stream(r, err);
    rc = fm_comm_agree(comm, rc, err);
    /* The output exists, so if the state file cannot be removed, that is only a warning. */
    struct fm_err kept = {0};
    if (!rc && fm_comm_rank(comm) == 0 &&
        fm_journal_remove(r->task->run->outputs.state, r->work->tool, &kept))
        fm_run_warn(r->task->run, "%s; the run itself is complete", kept.text);
    return rc;
}

/* The end of a dry run: check memory and, if the output has a name, disk space; forecast the time.
 */
static int forecast(struct fm_runner *r, struct fm_estimate *estimate, struct fm_err *err)
{
    const struct fm_task *task = r->task;
    const char *output = task->run->outputs.path;
    bool file = output && strcmp(output, "-") != 0;
    const struct fm_corpus *text = encoded_text(task);
    r->work->forecast(r->self, estimate);
    estimate->precision = fm_machine_precision(task->ops);
    estimate->evaluated = task->held.count;
    estimate->evaluated_len = task->held.T;
    estimate->text = text != NULL;
    if (text)
        estimate->separator = text->separator;
    estimate->disk += fm_stage_copied_bytes(r->work->stage, &task->in);
    int rc = file ? fm_estimate_check(estimate, task->run, 0, err)
                  : fm_estimate_fits(estimate, task->run, err);
    return rc ? rc : fm_forecast_make(estimate, &task->run->machine, task->ops, err);
}

int fm_runner_run(struct fm_runner *r, const struct fm_run_options *run, struct fm_estimate *dry,
                  struct fm_err *err)
{
    struct fm_estimate estimate, *plan = dry ? dry : &estimate;
    int rc = fm_task_open(r->task, run, r->work->needs, dry, err);
    r->task->batch = run->inputs.batch > 0 ? run->inputs.batch : r->work->batch;
    if (!rc)
        rc = r->work->open(r->self, err);
    if (!rc)
        fm_task_plan(plan, r->task, r->work->plan, r->self);
    if (dry)
        return rc ? rc : forecast(r, dry, err);
    if (!rc) {
        r->work_steps = plan->making;
        r->work_measure = plan->flops - plan->making;
        rc = fm_estimate_check(plan, run, fm_stage_copied_bytes(r->work->stage, &r->task->in), err);
    }
    rc = fm_comm_agree(run->machine.comm, rc, err);
    return rc ? rc : make(r, err);
}
