/*
 * Method `learned`: train logits on sampled subnets, while a controller raises the budget
 * (fm-method(7)).  All state that a step changes is in struct learned and the family, so a run can
 * be saved between any two steps.
 *
 * A step: draw widths for every student from the logits, run them with the teacher through one
 * sweep, turn the visitor's sums into gradients of the logits, take a step of Adam, and adjust
 * lambda so that the expected budget follows its linear schedule.  From one hardened mask (the most
 * probable actions) to the next, one expert is changed at a time, and a mask is appended to the
 * family whenever it removes a budget step more than the last, so that no budget is skipped.  Draws
 * are a function of (seed, step, student, expert), so no random state needs to be saved.
 */
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/learn/maskgrad.h"
#include "lib/learn/trainer.h"
#include "lib/masks/logits.h"

#define BETA1 0.9
#define BETA2 0.99 /* of Adam */
#define TAU_FIRST 2
#define ENTROPY_FIRST 0.02
#define GAIN 400 /* with 200 and eta 4, runs often end below `until` */

struct learned {
    int size; /* experts that share a width and logits */
    /* State. */
    struct fm_logits logits;
    double *q;        /* (M, E) running load */
    double lambda;    /* weight of the cost */
    double rho_start; /* expected budget before the first step */
    /* Scratch. */
    struct fm_sweep *sweep;
    struct fm_maskgrad grad;
    uint32_t *widths; /* (samples + 2, M, E): sampled, then hardened before and after a step */
    double *floored;  /* (M, E) */
    int32_t *ids;     /* (batch, T) */
    int64_t *counts;  /* (1 + samples, M, E) */
};

static int alloc_scratch(struct fm_trainer *t, size_t X, struct fm_err *err)
{
    struct learned *n = t->own;
    size_t samples = (size_t)t->options->samples, T = (size_t)t->task.calib.T;
    n->q = fm_alloc(X, sizeof *n->q, "loads", err);
    n->floored = fm_alloc(X, sizeof *n->floored, "loads", err);
    n->widths = fm_alloc((samples + 2) * X, sizeof *n->widths, "sampled widths", err);
    n->ids = fm_alloc((size_t)t->task.batch * T, sizeof *n->ids, "sequences", err);
    n->counts = fm_alloc((samples + 1) * X, sizeof *n->counts, "token counts", err);
    return n->q && n->floored && n->widths && n->ids && n->counts ? FM_OK : FM_ENOMEM;
}

static int start_logits(struct fm_trainer *t, size_t X, struct fm_err *err)
{
    struct learned *n = t->own;
    const struct fm_ranking *r = &t->task.ranking;
    double *lost = fm_alloc(X * (size_t)t->actions.count, sizeof *lost, "lost scores", err);
    if (!lost)
        return FM_ENOMEM;
    fm_masks_lost(lost, &t->actions, r->scores, r->order, r->M, r->E, r->I);
    fm_granularity_sum(lost, lost, X, n->size, t->actions.count);
    fm_logits_start(&n->logits, lost, t->options->prior);
    n->rho_start = fm_logits_expected(&n->logits);
    free(lost);
    return FM_OK;
}

static int begin(struct fm_trainer *t, struct fm_err *err)
{
    struct learned *n = t->own = fm_alloc(1, sizeof *n, "the method", err);
    if (!n)
        return FM_ENOMEM;
    const struct fm_config *c = t->task.config;
    size_t X = (size_t)c->M * (size_t)c->E;
    int micro = fm_sweep_micro(t->task.batch, t->task.calib.T), samples = t->options->samples;
    n->size = fm_granularity_size(t->options->granularity, c->M, c->E);
    int rc = FM_OK;
    if (fm_logits_init(&n->logits, &t->actions, (int)X / n->size, err) ||
        alloc_scratch(t, X, err) || start_logits(t, X, err) ||
        fm_task_sweep(&n->sweep, &t->task, t->task.batch / micro, micro * t->task.calib.T,
                      samples + 1, t->task.memory, err))
        rc = err->code;
    if (!rc)
        fm_task_warn_idle(&t->task, t->task.batch / micro, micro * t->task.calib.T);
    return rc ? rc
              : fm_maskgrad_init(&n->grad, t->task.ops, &t->actions, c, samples, n->sweep, false,
                                 err);
}

static void release(struct fm_trainer *t)
{
    struct learned *n = t->own;
    fm_sweep_free(n->sweep);
    fm_maskgrad_release(&n->grad);
    fm_logits_release(&n->logits);
    free(n->q);
    free(n->floored);
    free(n->widths);
    free(n->ids);
    free(n->counts);
}

static double anneal(double first, double last, int64_t taken, int steps)
{
    double at = (double)taken / steps;
    return at < 1 ? first + (last - first) * at : last;
}

static double tau_of(const struct fm_trainer *t)
{
    return anneal(TAU_FIRST, t->options->tau_last, t->runner.taken, t->options->steps);
}

/* Number of experts of the model, in all layers. */
static size_t experts_of(const struct fm_trainer *t)
{
    const struct learned *n = t->own;
    return (size_t)n->logits.X * (size_t)n->size;
}

/* Draw subnet s: its widths (M, E), equal for experts that share a width. */
static void sample(struct fm_trainer *t, int s)
{
    struct learned *n = t->own;
    int samples = t->options->samples;
    uint32_t *widths = n->widths + (size_t)s * experts_of(t);
    fm_logits_sample(&n->logits, widths, tau_of(t), t->task.run->inputs.seed,
                     (uint64_t)t->runner.taken * (uint64_t)samples + (uint64_t)s);
    fm_granularity_spread(widths, experts_of(t), n->size);
}

static void harden(const struct fm_trainer *t, uint32_t *widths)
{
    const struct learned *n = t->own;
    fm_logits_harden(&n->logits, widths);
    fm_granularity_spread(widths, experts_of(t), n->size);
}

/* Sample subnets and run them through the model; fills grad.total and counts. */
static int run_students(struct fm_trainer *t, struct fm_err *err)
{
    struct learned *n = t->own;
    int samples = t->options->samples;
    int micro = fm_sweep_micro(t->task.batch, t->task.calib.T), batches = t->task.batch / micro;
    struct fm_lane lane[FM_LANES_MAX] = {{.teacher = -1, .ce = 1}};
    for (int s = 0; s < samples; s++) {
        sample(t, s);
        lane[s + 1] = (struct fm_lane){.widths = n->widths + (size_t)s * experts_of(t),
                                       .backward = true,
                                       .teacher = 0,
                                       .ce = 1,
                                       .kl = 1};
    }
    fm_maskgrad_begin(&n->grad, batches);
    struct fm_visitor visitor = fm_maskgrad_visitor(&n->grad);
    return fm_task_run(&t->task, n->sweep, n->ids, batches, micro, lane, samples + 1, &visitor,
                       n->counts, err);
}

static void update_logits(struct fm_trainer *t)
{
    struct learned *n = t->own;
    const struct fm_train_options *o = t->options;
    struct fm_logits *z = &n->logits;
    const struct fm_config *c = t->task.config;
    fm_logits_load(n->q, n->floored, n->counts, c->M, c->E, t->runner.taken == 0);
    fm_granularity_sum(n->floored, n->floored, experts_of(t), n->size, 1);
    fm_logits_clear(z);
    for (int s = 0; s < o->samples; s++) {
        double *dz = n->grad.total + (size_t)s * experts_of(t) * (size_t)z->A;
        /* Draw the same widths again, because the logits hold the softmax of one sample only. */
        sample(t, s);
        fm_granularity_sum(dz, dz, experts_of(t), n->size, z->A);
        fm_logits_back_sample(z, dz, tau_of(t), 1.0 / o->samples);
    }
    fm_logits_back_cost(z, n->floored, n->lambda);
    fm_logits_back_entropy(z, anneal(ENTROPY_FIRST, o->entropy_last, t->runner.taken, o->steps));
    t->runner.taken++;
    fm_logits_adam(z, o->lr, BETA1, BETA2, (int)t->runner.taken);
    n->lambda = fm_logits_pace(n->lambda, GAIN, o->steps, t->runner.taken, n->rho_start,
                               fm_decimal_value(&t->options->until), fm_logits_expected(z));
}

/* An expert, or a group of tied experts, whose hardened width a step changed. */
struct flip {
    int x;
    uint32_t to;
    bool wider;
    double margin; /* the new action's logit minus the old action's */
};

static int compare_flips(const void *pa, const void *pb)
{
    const struct flip *a = pa, *b = pb;
    if (a->wider != b->wider)
        return a->wider ? -1 : 1;
    if (a->margin != b->margin)
        return a->margin > b->margin ? -1 : 1;
    return a->x - b->x;
}

static int list_flips(const struct fm_trainer *t, struct flip *flip, const uint32_t *from,
                      const uint32_t *to)
{
    const struct learned *n = t->own;
    int flips = 0;
    for (int x = 0; x < n->logits.X; x++) {
        uint32_t old = from[x * n->size], now = to[x * n->size];
        if (old == now)
            continue;
        const double *alpha = n->logits.alpha + (size_t)x * (size_t)n->logits.A;
        double margin =
            alpha[fm_actions_find(&t->actions, now)] - alpha[fm_actions_find(&t->actions, old)];
        flip[flips++] = (struct flip){x, now, now > old, margin};
    }
    return flips;
}

/*
 * Append the masks between one hardened mask and the next, flip by flip, so that the family has a
 * mask at every budget step even if several experts flip in one training step.  Flips to a larger
 * width come first; within each direction, the largest margin comes first.  On return
 * `from` equals `to`, unless a mask reached `until` first.
 */
static int append_flips(struct fm_trainer *t, uint32_t *from, const uint32_t *to,
                        struct fm_err *err)
{
    struct learned *n = t->own;
    struct fm_masks *masks = &t->masks;
    uint64_t channels = fm_masks_channels(masks);
    uint64_t grown = fm_decimal_ceil(&t->options->budget_step, channels);
    uint64_t until = fm_decimal_ceil(&t->options->until, channels);
    struct flip *flip = fm_alloc((size_t)n->logits.X, sizeof *flip, "flips", err);
    if (!flip)
        return FM_ENOMEM;
    int flips = list_flips(t, flip, from, to), rc = FM_OK;
    qsort(flip, (size_t)flips, sizeof *flip, compare_flips);
    for (int i = 0; !rc && i < flips; i++) {
        for (int e = 0; e < n->size; e++)
            from[flip[i].x * n->size + e] = flip[i].to;
        bool arrived = fm_masks_removed(masks, from) >= until;
        rc = fm_masks_append_grown(masks, from, t->method, (int)t->runner.taken, grown, arrived,
                                   err);
        if (arrived)
            break;
    }
    free(flip);
    return rc;
}

static uint64_t removed_by(const struct fm_trainer *t, const struct fm_masks *masks)
{
    const struct learned *n = t->own;
    harden(t, n->widths);
    return fm_masks_removed(masks, n->widths);
}

static void report_step(const struct fm_trainer *t)
{
    const struct fm_run_options *run = t->task.run;
    uint64_t taken = (uint64_t)t->runner.taken, steps = (uint64_t)t->options->steps;
    if (taken == steps)
        fm_run_phase(run, t->runner.work_steps, t->runner.work_measure);
    if (taken < steps)
        fm_run_report(run, "learn", taken, steps, "steps");
    else
        fm_run_report(run, "catch up", taken - steps, steps, "steps at most");
}

/*
 * Take one step, go from the previous hardened mask to the new one, one flip at a time, and append
 * each mask that removes at least `step` more than the family's last, up to the first that reaches
 * `until`.  *done is set, and no step is taken, if the family has reached `until`, or after 2 *
 * options->steps steps; the second half lets the hardened budget catch up.  In the second case the
 * last hardened mask is appended if it removes more than the family's last mask.
 */
static int step(struct fm_trainer *t, bool *done, struct fm_err *err)
{
    struct learned *n = t->own;
    struct fm_masks *f = &t->masks;
    size_t X = experts_of(t);
    int64_t taken = t->runner.taken, steps = t->options->steps;
    uint64_t until = fm_decimal_ceil(&t->options->until, fm_masks_channels(f));
    uint32_t *before = n->widths + (size_t)t->options->samples * X, *hard = before + X;
    report_step(t);
    harden(t, before);
    bool arrived = f->mask[f->count - 1].removed >= until;
    *done = arrived || taken >= 2 * steps;
    if (*done)
        return arrived ? FM_OK
                       : fm_masks_append_grown(f, before, t->method, (int)taken, 0, true, err);
    int batch = t->task.batch;
    int rc = fm_task_draw(&t->task, n->ids, (uint64_t)taken * (uint64_t)batch, batch, err);
    if (!rc)
        rc = run_students(t, err);
    if (rc)
        return rc;
    update_logits(t);
    harden(t, hard);
    return append_flips(t, before, hard, err);
}

static void cost(struct fm_estimate_sweep *sweep, const struct fm_train_options *o,
                 const struct fm_task *task)
{
    sweep->count = (uint64_t)o->steps;
    sweep->rows = (uint64_t)task->batch * (uint64_t)task->calib.T;
    sweep->lanes = 1 + o->samples;
    sweep->backward = o->samples;
}

static void record(cJSON *to, const struct fm_trainer *t)
{
    const struct fm_train_options *o = t->options;
    fm_json_add_uint(to, "steps", (uint64_t)o->steps);
    fm_json_add_uint(to, "samples_per_batch", (uint64_t)o->samples);
    fm_json_add_double(to, "prior", o->prior);
}

static void save(struct fm_journal_item *item, size_t *items, struct fm_trainer *t)
{
    struct learned *n = t->own;
    uint64_t X = (uint64_t)t->task.config->M * (uint64_t)t->task.config->E;
    uint64_t logits = (uint64_t)n->logits.X * (uint64_t)t->actions.count;
    fm_runner_item(item, items, "taken", FM_I64, 1, &t->runner.taken);
    fm_runner_item(item, items, "lambda", FM_F64, 1, &n->lambda);
    fm_runner_item(item, items, "alpha", FM_F64, logits, n->logits.alpha);
    fm_runner_item(item, items, "m", FM_F64, logits, n->logits.m);
    fm_runner_item(item, items, "v", FM_F64, logits, n->logits.v);
    fm_runner_item(item, items, "q", FM_F64, X, n->q);
}

static void resumed(struct fm_trainer *t)
{
    struct learned *n = t->own;
    fm_logits_refresh(&n->logits);
}

const struct fm_method fm_method_learned = {
    .name = "learned",
    .trains = true,
    .shapes = true,
    .weighs = true,
    .actions = {1, 10},
    .cost = cost,
    .begin = begin,
    .step = step,
    .save = save,
    .resumed = resumed,
    .removed = removed_by,
    .record = record,
    .release = release,
};
