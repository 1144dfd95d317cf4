/*
 * What a family costs before it is made: the sweeps of each method, and how many sequences they
 * read.
 */
#include "lib/learn/trainplan.h"

#include "lib/learn/quality.h"
#include "lib/learn/refine.h"

#define BATCH 8

int fm_train_sequences(const struct fm_calib *calib, int want)
{
    return want < calib->count ? want : calib->count;
}

int fm_train_around(const struct fm_calib *calib, const struct fm_train_options *o)
{
    int take = (o->around_tokens + calib->T - 1) / calib->T;
    return fm_train_sequences(calib, take > o->around_sequences ? take : o->around_sequences);
}

int fm_train_batch(const struct fm_run_options *run)
{
    return run->batch > 0 ? run->batch : BATCH;
}

/* Students keep all channels at the start and 1 - until at the end. */
static double mean_kept(const struct fm_decimal *until)
{
    return 1 - (double)until->num / (double)until->den / 2;
}

void fm_trainplan_estimate(struct fm_estimate *estimate, const struct fm_train_options *o,
                           struct fm_task *task, const struct fm_decimal *step,
                           const struct fm_decimal *until)
{
    *estimate = (struct fm_estimate){0};
    uint64_t T = (uint64_t)task->calib.T, targets = fm_decimal_targets(step, until);
    uint64_t masks = targets + 1, memory = task->memory;
    uint64_t group = (uint64_t)fm_quality_group(task->config, &task->held, task->memory);
    int walk = fm_train_sequences(&task->calib, o->walk_sequences);
    int around = fm_train_around(&task->calib, o);
    int fixed = fm_train_sequences(&task->calib, o->refine_sequences);
    struct fm_estimate_sweep sweep = {.T = task->calib.T, .kept = mean_kept(until)};
    if (o->method == FM_METHOD_LEARNED) {
        sweep.count = (uint64_t)o->steps;
        sweep.rows = (uint64_t)fm_train_batch(task->run) * T;
        sweep.lanes = 1 + o->samples;
        sweep.backward = o->samples;
        fm_estimate_add(estimate, task->model, &sweep, memory);
    }
    if (o->method == FM_METHOD_WALK) {
        sweep.count = targets;
        sweep.rows = (uint64_t)walk * T;
        sweep.backward = 1;
        sweep.lanes = 2;
        fm_estimate_add(estimate, task->model, &sweep, memory);
    }
    if (o->method == FM_METHOD_EXCHANGE) {
        sweep.count = targets;
        sweep.rows = (uint64_t)around * T;
        sweep.backward = FM_WORTH_LANES;
        sweep.lanes = 1 + FM_WORTH_LANES;
        fm_estimate_add(estimate, task->model, &sweep, memory);
    }
    if (o->refine > 0) {
        sweep.count = fm_refine_masks(step, until) * (uint64_t)o->refine;
        sweep.rows = (uint64_t)around * T;
        sweep.lanes = 1 + FM_WORTH_LANES;
        sweep.backward = FM_WORTH_LANES;
        fm_estimate_add(estimate, task->model, &sweep, memory);
        sweep.rows = (uint64_t)fixed * T;
        sweep.lanes = 2 + FM_REFINE_SETS;
        sweep.backward = 0;
        fm_estimate_add(estimate, task->model, &sweep, memory);
    }
    group = group < masks ? group : masks;
    sweep.count = (masks + group - 1) / group;
    sweep.rows = (uint64_t)task->held.count * (uint64_t)task->held.T;
    sweep.lanes = (int)group + 1;
    sweep.backward = 0;
    fm_estimate_add(estimate, task->model, &sweep, memory);
    /* Widths compress well, so this is what they are at the most. */
    estimate->disk = masks * (uint64_t)task->config->M * (uint64_t)task->config->E * 4;
}

void fm_trainplan_offer(struct fm_estimate *estimate, const struct fm_train_options *o,
                        struct fm_task *task, const struct fm_decimal *step,
                        const struct fm_decimal *until)
{
    static const enum fm_method method[] = {FM_METHOD_WALK, FM_METHOD_SALIENCY};
    struct fm_train_options other = *o;
    struct fm_estimate changed;
    if (o->method == FM_METHOD_LEARNED && o->steps > 1) {
        other.steps = o->steps / 2;
        fm_trainplan_estimate(&changed, &other, task, step, until);
        fm_estimate_offer(estimate, changed.flops, "--steps %d", other.steps);
    }
    for (int i = 0; i < 2; i++) {
        other.method = method[i];
        fm_trainplan_estimate(&changed, &other, task, step, until);
        fm_estimate_offer(estimate, changed.flops, "--method %s", fm_method_name(method[i]));
    }
}

void fm_trainplan_work(struct fm_trainer *t, const struct fm_estimate *estimate)
{
    int at = 0;
    bool steps = t->learns || t->walks || t->exchanges;
    t->work.make = steps ? estimate->kind[at++].flops : 0;
    for (int i = 0; i < 2 && t->options->refine > 0; i++)
        t->work.refine += estimate->kind[at++].flops;
    t->work.measure = estimate->kind[at].flops;
}
