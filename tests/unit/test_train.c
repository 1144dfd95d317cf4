/* Compare mask gradients with transformers' autograd; test whole training runs on odd-mixtral. */
#include <signal.h>
#include <sys/time.h>

#include "lib/base/clock.h"
#include "lib/base/pool.h"
#include "lib/learn/maskgrad.h"
#include "lib/learn/train.h"
#include "lib/learn/trainer.h"
#include "lib/masks/logits.h"
#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"
#include "tests/unit/golden.h"
#include "tests/unit/test.h"
#include "tests/measure/meter.h"
#include "tests/unit/training.h"

enum { L = 3, E = 5, X = L * E, I = 37, A = 4, T = 23, S = 2 };

static void assert_golden_dz(const struct fm_ops *ops)
{
    struct golden g;
    struct fm_err err = {0};
    struct fm_model *model = NULL;
    struct fm_sweep *sweep = NULL;
    struct fm_maskgrad grad = {0};
    struct fm_actions actions;
    struct fm_measure measure[2];
    int64_t counts[2 * X];
    golden_open(&g, RUNS_MODEL "/golden.safetensors");
    int32_t *order = golden_read(&g, "rank.order", FM_I32, NULL);
    int32_t *ids = golden_read(&g, "ids", FM_I32, NULL);
    int32_t *widths = golden_read(&g, "subnet.widths", FM_I32, NULL);
    float *share = golden_read(&g, "subnet.share", FM_F32, NULL);
    float *ce = golden_read(&g, "subnet.ce", FM_F32, NULL);
    float *kl = golden_read(&g, "subnet.kl", FM_F32, NULL);
    assert_ok(fm_actions_parse(&actions, "0.1,0.4,0.7,1", I, 1, &err));
    assert_ok(fm_model_open(&model, RUNS_MODEL, 1 << 26, &err));
    fm_model_rank(model, order);
    struct fm_sweep_options options = {.memory = 1 << 24};
    assert_ok(fm_sweep_new(&sweep, model, ops, 1, S * T, T, 2, &options, &err));
    assert_ok(
        fm_maskgrad_init(&grad, ops, &actions, fm_model_config(model), 1, sweep, false, &err));
    struct fm_lane lane[2] = {
        {.teacher = -1, .ce = 1},
        {.widths = (uint32_t *)widths, .backward = true, .teacher = 0, .ce = 1, .kl = 1}};
    struct fm_batch batch = {ids, S, T};
    struct fm_visitor visitor = fm_maskgrad_visitor(&grad);
    fm_maskgrad_begin(&grad, 1);
    assert_ok(fm_sweep_run(sweep, &batch, 1, lane, 2, &visitor, measure, counts, &err));
    float dz[X * A];
    for (int i = 0; i < X * A; i++)
        dz[i] = (float)grad.total[i];
    assert_true(golden_near(&g, "subnet.dz", dz, X * A, 1e-4));
    assert_true(fabs(measure[1].ce / (double)measure[1].n - *ce) <= 1e-5 * *ce);
    assert_true(fabs(measure[1].kl / (double)measure[1].n - *kl) <= 1e-4 * *kl);
    double q[X], floored[X];
    fm_logits_load(q, floored, counts, L, E, true);
    for (int x = 0; x < X; x++)
        assert_true(fabs(q[x] - share[x]) <= 1e-6);
    fm_maskgrad_release(&grad);
    fm_sweep_free(sweep);
    fm_model_close(model);
    free(order);
    free(ids);
    free(widths);
    free(share);
    free(ce);
    free(kl);
    golden_close(&g);
}

TEST(mask_gradients_are_the_golden_ones)
{
    const struct fm_ops *cpu = NULL;
    assert_golden_dz(fm_ops_ref());
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    assert_golden_dz(cpu);
}

static void must_train(const char *in, const char *out, const struct fm_method *method,
                       struct fm_train_report *report)
{
    struct runs r;
    struct fm_train_options options;
    training_init(&r, &options, in, out, method);
    training_must(&r, &options, report);
}

/* Check that the stream can be read, and agrees with the report. */
static void assert_stream(const char *name, const struct fm_masks *masks)
{
    struct fm_bundle b;
    struct fm_budgets budgets;
    struct fm_err err = {0};
    assert_ok(fm_stage_open(&b, scratch(name), FM_MEMBER_MASKS, &err));
    assert_ok(fm_budgets_open(&budgets, &b, &err));
    assert_int_equal(budgets.masks.count, masks->count);
    assert_memory_equal(budgets.masks.widths, masks->widths,
                        sizeof(uint32_t) * X * (size_t)masks->count);
    for (int m = 0; m < masks->count; m++) {
        assert_int_equal(budgets.masks.mask[m].method, masks->mask[m].method);
        assert_true(budgets.masks.mask[m].quality.ce == masks->mask[m].quality.ce);
    }
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
}

static void assert_family(const struct fm_train_report *report, int masks)
{
    const struct fm_masks *f = &report->masks;
    assert_true(f->count >= masks);
    assert_int_equal(f->mask[0].removed, 0);
    for (int b = 0; b < f->count; b++) {
        const struct fm_quality *q = &f->mask[b].quality;
        assert_int_equal(fm_masks_removed(f, fm_masks_widths(f, b)), f->mask[b].removed);
        assert_true(b == 0 || f->mask[b].removed > f->mask[b - 1].removed);
        assert_int_equal(q->positions, 16 * 10);
        assert_true(q->ce > 0 && q->kl >= 0 && q->agree >= 0 && q->agree <= 1);
        for (int x = 0; x < X; x++)
            assert_true(fm_actions_find(&report->actions, fm_masks_widths(f, b)[x]) >= 0);
    }
    assert_true(f->mask[0].quality.kl == 0 && f->mask[0].quality.agree == 1);
    assert_true(f->mask[f->count - 1].quality.kl > 0);
}

TEST(every_method_makes_a_family)
{
    for (int i = 0; fm_methods[i]; i++) {
        struct fm_train_report report = {0};
        must_train("ranked.fm", "family.fm", fm_methods[i], &report);
        printf("%s: %d masks to %.3f, %d steps\n", fm_methods[i]->name, report.masks.count,
               fm_masks_budget(&report.masks, report.masks.count - 1), report.steps);
        assert_family(&report, 5);
        assert_true(report.reached);
        assert_stream("family.fm", &report.masks);
        fm_train_report_release(&report);
    }
}

/* Only exchange has steps of a twentieth. */
TEST(exchange_has_finer_actions)
{
    static const struct {
        const struct fm_method *method;
        int actions;
    } row[] = {{&fm_method_learned, 10}, {&fm_method_exchange, 20}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct runs r;
        struct fm_train_options options;
        struct fm_train_report report = {0};
        training_init(&r, &options, "ranked.fm", "actions.fm", row[i].method);
        options.until = (struct fm_decimal){1, 10};
        options.steps = 2;
        training_must(&r, &options, &report);
        assert_int_equal(report.actions.count, row[i].actions);
        fm_train_report_release(&report);
    }
}

/* A state belongs to a run with the same number of tokens in a sweep of exchange. */
TEST(a_state_of_other_sweeps_is_refused)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    training_init(&r, &options, "ranked.fm", "state.fm", &fm_method_exchange);
    training_stop(&r, &options, 3);
    options.around_tokens = 1000;
    assert_int_equal(fm_train(&r.run, &options, NULL, &report, &err), FM_ECONFIG);
    fm_train_report_release(&report);
    unlink(r.run.outputs.state);
}

/* Stop `method` after that many reports, resume, and compare with an uninterrupted run. */
static void assert_resumes(const struct fm_method *method, int reports)
{
    struct runs r;
    struct fm_train_options options;
    training_init(&r, &options, "ranked.fm", "resumed.fm", method);
    training_stop(&r, &options, reports);
    training_go_on(&r, &options, "resumed.fm", "straight.fm");
}

TEST(a_stopped_run_goes_on_to_the_same_bytes)
{
    for (int i = 0; fm_methods[i]; i++) {
        if (!fm_methods[i]->step)
            continue;
        struct runs r;
        struct fm_train_options options;
        struct fm_train_report report = {0};
        const int many = 1000;
        training_init(&r, &options, "ranked.fm", "straight.fm", fm_methods[i]);
        r.countdown = many;
        training_must(&r, &options, &report);
        fm_train_report_release(&report);
        /* While making the family, near its end, and while measuring. */
        int reports = many - r.countdown;
        assert_resumes(fm_methods[i], 3);
        assert_resumes(fm_methods[i], reports - 2);
        assert_resumes(fm_methods[i], reports - 1);
    }
}

static atomic_int stop_now;

static void on_alarm(int signal_number)
{
    stop_now = signal_number;
}

static void prepare_exchange(struct runs *r, struct fm_train_options *options, const char *out)
{
    training_init(r, options, "ranked.fm", out, &fm_method_exchange);
    options->budget_step = (struct fm_decimal){5, 100};
}

/* A step of exchange is several sweeps, each of which changes the cost of steps: wherever one
 * is interrupted, the step is repeated from the same state. */
TEST(exchange_stopped_at_any_moment_goes_on)
{
    enum { MOMENTS = 24 };
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    int within = 0;
    prepare_exchange(&r, &options, "straight.fm");
    double began = fm_clock_now();
    training_must(&r, &options, &report);
    fm_train_report_release(&report);
    double moment = (fm_clock_now() - began) * 1e6 / MOMENTS;
    signal(SIGALRM, on_alarm);
    for (int i = 1; i < MOMENTS; i++) {
        prepare_exchange(&r, &options, "resumed.fm");
        r.run.outputs.state = runs_path(r.state, "train.state");
        r.run.stop = &stop_now;
        stop_now = 0;
        long us = 1 + (long)(i * moment);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {us / 1000000, us % 1000000}}, NULL);
        int rc = fm_train(&r.run, &options, NULL, &report, &err);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        assert_true(rc == FM_OK || rc == FM_ESAVED);
        within += rc && strstr(err.text, "interrupted in layer") != NULL;
        fm_train_report_release(&report);
        stop_now = 0;
        if (rc) {
            training_must(&r, &options, &report);
            fm_train_report_release(&report);
        }
        assert_true(runs_same("straight.fm", "resumed.fm"));
    }
    assert_true(within > 0);
}

/* Sweeps of exchange for 100,000 channels. */
static uint64_t sweeps_of_exchange(const char *step)
{
    struct fm_config config = {.M = 10, .E = 10, .I = 1000};
    struct fm_task task = {.config = &config, .calib = {.T = 8, .count = 1}};
    struct fm_train_options options;
    struct fm_estimate_sweep sweep = {0};
    fm_train_defaults(&options);
    options.budget_step = training_decimal(step);
    fm_method_exchange.cost(&sweep, &options, &task);
    return sweep.count;
}

/* A step removes a twelfth of the rest, or reaches the next budget: 8 15 22 28 34 ...  78 79 80. */
TEST(exchange_visits_few_budgets)
{
    assert_int_equal(sweeps_of_exchange("0.01"), 1 + 2 * 22);
    assert_int_equal(sweeps_of_exchange("0.05"), 1 + 2 * 16);
}

TEST(two_threads_make_the_same_bytes)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    for (int i = 0; fm_methods[i]; i++) {
        if (!fm_methods[i]->step)
            continue;
        for (int threads = 1; threads <= 2; threads++) {
            training_init(&r, &options, "ranked.fm", threads == 1 ? "one.fm" : "two.fm",
                          fm_methods[i]);
            options.samples = 2;
            r.run.machine.device = "cpu";
            r.run.machine.memory = threads == 1 ? (uint64_t)64 << 20 : 200 << 10;
            assert_ok(fm_pool_start(threads, &err));
            training_must(&r, &options, &report);
            fm_pool_stop();
            fm_train_report_release(&report);
        }
        assert_true(runs_same("one.fm", "two.fm"));
    }
}

/* The logits in the state of a run that was stopped after that many steps. */
static double *logits_after(int steps, double tau_last, double entropy_last, size_t *n)
{
    struct runs r;
    struct fm_train_options options;
    struct golden g;
    training_init(&r, &options, "ranked.fm", "annealed.fm", &fm_method_learned);
    options.tau_last = tau_last;
    options.entropy_last = entropy_last;
    training_stop(&r, &options, steps);
    golden_open(&g, r.run.outputs.state);
    double *logits = golden_read(&g, "alpha", FM_F64, n);
    golden_close(&g);
    unlink(r.run.outputs.state);
    return logits;
}

/* The first step uses the first values; by the third the last ones have an effect. */
TEST(temperature_and_entropy_go_from_first_to_last)
{
    for (int steps = 1; steps <= 3; steps += 2) {
        size_t n = 0;
        double *plain = logits_after(steps, 0.5, 0, &n);
        double *cold = logits_after(steps, 0.1, 0, &n);
        double *even = logits_after(steps, 0.5, 1, &n);
        assert_true((memcmp(plain, cold, n * sizeof *plain) == 0) == (steps == 1));
        assert_true((memcmp(plain, even, n * sizeof *plain) == 0) == (steps == 1));
        free(plain);
        free(cold);
        free(even);
    }
}

TEST(multiple_and_prior_can_be_set)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    training_init(&r, &options, "ranked.fm", "options.fm", &fm_method_learned);
    options.width_multiple = 10;
    options.prior = 0;
    training_must(&r, &options, &report);
    /* Of ten widths, 10, 20, 30 and 37 remain: six were merged, with a warning. */
    assert_int_equal(report.actions.count, 4);
    assert_int_equal(report.actions.merged, 6);
    assert_true(r.warnings >= 1);
    assert_family(&report, 3);
    fm_train_report_release(&report);
    struct fm_estimate plan;
    assert_ok(fm_train(&r.run, &options, &plan, NULL, &err));
    assert_int_equal(plan.sweeps, 30 + 1);
}

TEST(actions_without_the_full_model_or_a_choice_are_refused)
{
    const char *const bad[] = {"0.5", "1"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct runs r;
        struct fm_train_options options;
        struct fm_train_report report = {0};
        training_init(&r, &options, "ranked.fm", "no.fm", &fm_method_learned);
        assert_true(fm_decimals_parse(&options.actions, bad[i]));
        assert_fails(fm_train(&r.run, &options, NULL, &report, &err), FM_EUSAGE, "--actions");
        fm_train_report_release(&report);
    }
}

struct stages {
    uint64_t learn, catch_up; /* the totals that were reported */
    int learned, caught_up;   /* reports */
};

static void note_stage(void *self, const char *stage, uint64_t done, uint64_t total,
                       const char *unit)
{
    struct stages *s = self;
    (void)unit;
    assert_true(done <= total);
    if (strcmp(stage, "learn") == 0) {
        assert_true(s->learned++ == 0 || s->learn == total);
        s->learn = total;
    } else if (strcmp(stage, "catch up") == 0) {
        assert_true(s->caught_up++ == 0 || s->catch_up == total);
        s->catch_up = total;
    }
}

TEST(steps_after_the_last_are_reported_as_catching_up)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    struct stages stages = {0};
    training_init(&r, &options, "ranked.fm", "family.fm", &fm_method_learned);
    options.steps = 2;
    r.run.progress = (struct fm_progress){.report = note_stage, .self = &stages};
    training_must(&r, &options, &report);
    assert_int_equal(stages.learn, 2);
    assert_int_equal(stages.learned, 2);
    assert_int_equal(stages.catch_up, 2);
    assert_true(stages.caught_up >= 2 && report.steps == 4);
    assert_false(report.reached);
    assert_true(report.came_to < fm_masks_budget(&report.masks, report.masks.count - 1));
    fm_train_report_release(&report);
}

/* Stop a run when so much of its measuring is done. */
struct interruption {
    atomic_int stop;
    double layers; /* of L * pieces; INFINITY: never */
    bool measuring;
};

static void note_measuring(void *self, const char *stage, uint64_t done, uint64_t total,
                           const char *unit)
{
    struct interruption *x = self;
    (void)done, (void)total, (void)unit;
    x->measuring = strcmp(stage, "measure") == 0;
}

static void interrupt_measuring(void *self, double units)
{
    struct interruption *x = self;
    x->stop = x->stop || (x->measuring && units > x->layers);
}

/* A measurement of many tokens is saved in parts: after an interruption only the part that was
 * being measured is computed again, and the bytes are the same, also if memory is different. */
TEST(measuring_goes_on_within_a_sweep)
{
    enum { SEQUENCES = 4000, LENGTH = 11, LAYERS = 3 };
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    struct interruption x = {.layers = INFINITY};
    const struct fm_ops *ops;
    uint16_t *id = calloc(SEQUENCES * LENGTH, sizeof *id);
    double done[3];
    for (int i = 0; i < SEQUENCES * LENGTH; i++)
        id[i] = (uint16_t)fm_rng_below(2, FM_STREAM_BENCH, (uint64_t)i, 97);
    scratch_write("held.u16", id, SEQUENCES * LENGTH * sizeof *id);
    free(id);
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    for (int i = 0; i < 3; i++) {
        static const char *const out[] = {"straight.fm", "resumed.fm", "resumed.fm"};
        char held[512];
        training_init(&r, &options, "ranked.fm", out[i], &fm_method_saliency);
        r.run.inputs.eval_tokens[0] = runs_path(held, "held.u16");
        r.run.inputs.max_eval_tokens = SEQUENCES * LENGTH;
        r.run.machine.ops = fm_meter_begin(ops);
        r.run.progress = (struct fm_progress){
            .report = note_measuring, .within = interrupt_measuring, .self = &x};
        r.run.stop = &x.stop;
        x.stop = 0;
        x.layers = i == 1 ? 0.7 * LAYERS : INFINITY;
        if (i > 0)
            r.run.outputs.state = runs_path(r.state, "measure.state");
        if (i == 2)
            r.run.machine.memory *= 2;
        assert_int_equal(fm_train(&r.run, &options, NULL, &report, &err),
                         i == 1 ? FM_ESAVED : FM_OK);
        done[i] = fm_meter_flops();
        fm_train_report_release(&report);
    }
    assert_true(done[1] > 0.6 * done[0] && done[1] < 0.95 * done[0]);
    assert_true(done[2] < 0.6 * done[0] && done[1] + done[2] < 1.4 * done[0]);
    assert_true(runs_same("straight.fm", "resumed.fm"));
}

struct sweeps {
    uint64_t total;
    int reports;
};

static void note_sweep(void *self, const char *stage, uint64_t done, uint64_t total,
                       const char *unit)
{
    struct sweeps *s = self;
    if (strcmp(stage, "exchange") != 0)
        return;
    assert_string_equal(unit, "sweeps");
    assert_int_equal(done, s->reports++); /* each sweep is reported once, before it begins */
    s->total = total;
}

TEST(exchange_reports_its_sweeps)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    struct fm_estimate plan;
    struct sweeps s = {0};
    training_init(&r, &options, "ranked.fm", "watched.fm", &fm_method_exchange);
    r.run.progress = (struct fm_progress){.report = note_sweep, .self = &s};
    training_must(&r, &options, &report);
    assert_ok(fm_train(&r.run, &options, &plan, NULL, &err));
    assert_int_equal(s.reports, s.total);
    assert_int_equal(plan.sweeps, s.total + 1); /* and one that measures */
    fm_train_report_release(&report);
}

TEST_MAIN(training_ranked, NULL)
