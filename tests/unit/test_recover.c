/* Compare the training of adapters with transformers' autograd and AdamW on odd-mixtral. */
#include <fcntl.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "lib/base/pool.h"
#include "lib/block/cost.h"
#include "lib/learn/recover.h"
#include "lib/learn/train.h"
#include "lib/learn/tune.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/stage.h"
#include "tests/measure/meter.h"
#include "tests/unit/golden.h"
#include "tests/unit/test.h"
#include "tests/unit/training.h"

enum { L = 3, E = 5, X = L * E, I = 37, H = 48, T = 23, STEPS = 3 };

/* odd-mixtral, ranked; the full mask and that of the golden subnet; and two sequences. */
struct fixture {
    struct golden golden;
    struct fm_run_options run;
    struct fm_task task;
    struct fm_masks masks;
    struct fm_recover_options options;
    int32_t *order, *ids, *widths;
};

static void open_fixture(struct fixture *f, const struct fm_ops *ops)
{
    struct fm_err err = {0};
    *f = (struct fixture){.run = {.inputs.model = RUNS_MODEL, .inputs.seed = 1}};
    golden_open(&f->golden, RUNS_MODEL "/golden.safetensors");
    f->order = golden_read(&f->golden, "rank.order", FM_I32, NULL);
    f->ids = golden_read(&f->golden, "ids", FM_I32, NULL);
    f->widths = golden_read(&f->golden, "lora.widths", FM_I32, NULL);
    f->task = (struct fm_task){.run = &f->run,
                               .ops = ops,
                               .memory = 1 << 20,
                               .epoch_number = -1,
                               .calib = {.T = T, .count = 2, .ids = f->ids}};
    assert_ok(fm_model_open(&f->task.model, RUNS_MODEL, 1 << 26, &err));
    f->task.config = fm_model_config(f->task.model);
    fm_model_rank(f->task.model, f->order);
    fm_masks_init(&f->masks, L, E, I);
    assert_ok(fm_masks_full(&f->masks, &fm_method_learned, &err));
    assert_ok(fm_masks_append(&f->masks, (uint32_t *)f->widths, &fm_method_learned, 1, &err));
    fm_recover_defaults(&f->options, &fm_recovery_experts);
}

static void close_fixture(struct fixture *f)
{
    fm_model_close(f->task.model);
    fm_masks_release(&f->masks);
    free(f->task.epoch);
    free(f->order);
    free(f->ids);
    free(f->widths);
    golden_close(&f->golden);
}

static void start_tune(struct fm_tune *tune, struct fixture *f)
{
    struct fm_err err = {0};
    *tune = (struct fm_tune){
        .task = &f->task, .options = &f->options, .masks = &f->masks, .mask = 1, .batch = 2};
    tune->memory = f->task.memory;
    assert_ok(fm_tune_init(tune, &err));
}

static size_t count_of(const struct fm_tune *tune)
{
    return tune->adapter.offset[X];
}

static void take_golden_steps(const struct fm_ops *ops, uint64_t memory)
{
    struct fixture f;
    struct fm_tune tune;
    struct fm_err err = {0};
    open_fixture(&f, ops);
    f.task.memory = memory;
    double *adamw = golden_read(&f.golden, "lora.adamw", FM_F64, NULL);
    float *values = golden_read(&f.golden, "lora.values", FM_F32, NULL);
    float *steps = golden_read(&f.golden, "lora.steps", FM_F32, NULL);
    float *losses = golden_read(&f.golden, "lora.losses", FM_F32, NULL);
    f.options.rank = 3;
    f.options.alpha = 6;
    f.options.lr = adamw[0];
    f.options.beta1 = adamw[1];
    f.options.beta2 = adamw[2];
    f.options.eps = adamw[3];
    f.options.decay = adamw[4];
    start_tune(&tune, &f);
    size_t n = count_of(&tune);
    memcpy(tune.adapter.values, values, n * sizeof *values);
    for (int step = 0; step < STEPS; step++) {
        assert_ok(fm_tune_step(&tune, &err));
        double want = (double)losses[2 * step] + (double)losses[2 * step + 1];
        double error = fabs(tune.loss - want) / want;
        double moved = golden_error(tune.adapter.values, steps + (size_t)step * n, n);
        printf("step %d: loss off by %.2g, values by %.2g\n", step + 1, error, moved);
        assert_true(error <= 1e-5);
        assert_true(moved <= 1e-4);
    }
    assert_int_equal(tune.taken, STEPS);
    fm_tune_release(&tune);
    free(adamw);
    free(values);
    free(steps);
    free(losses);
    close_fixture(&f);
}

TEST(steps_follow_the_golden_ones)
{
    take_golden_steps(fm_ops_ref(), 1 << 24);
}

TEST(steps_follow_the_golden_ones_on_the_fast_table)
{
    const struct fm_ops *ops = NULL;
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    take_golden_steps(ops, 1 << 24);
}

TEST(moments_in_a_file_change_nothing)
{
    struct fixture f;
    float *kept = NULL;
    open_fixture(&f, fm_ops_ref());
    for (int spilled = 0; spilled < 2; spilled++) {
        struct fm_tune tune;
        f.task.memory = spilled ? 4096 : 1 << 24;
        start_tune(&tune, &f);
        assert_int_equal(tune.moments.resident < L, spilled);
        for (int step = 0; step < 2; step++)
            assert_ok(fm_tune_step(&tune, &err));
        size_t bytes = count_of(&tune) * sizeof *kept;
        if (!spilled) {
            kept = malloc(bytes);
            assert_non_null(kept);
            memcpy(kept, tune.adapter.values, bytes);
        } else {
            assert_memory_equal(kept, tune.adapter.values, bytes);
        }
        fm_tune_release(&tune);
    }
    free(kept);
    close_fixture(&f);
}

/* Largest change of expert (l, e)'s rows [from, to) when the adapter is merged into zeros. */
static float merged_change(const struct fm_adapter *a, int l, int e, int from, int to)
{
    static float gate_up[2 * I * H], down[I * H];
    float most = 0;
    memset(gate_up, 0, sizeof gate_up);
    memset(down, 0, sizeof down);
    fm_adapter_merge(a, fm_ops_ref(), gate_up, down, l, e);
    for (int i = 2 * from * H; i < 2 * to * H; i++)
        most = fmaxf(most, fabsf(gate_up[i]));
    for (int i = from * H; i < to * H; i++)
        most = fmaxf(most, fabsf(down[i]));
    return most;
}

TEST(only_kept_channels_are_touched_and_the_start_is_neutral)
{
    struct fixture f;
    struct fm_tune tune;
    open_fixture(&f, fm_ops_ref());
    start_tune(&tune, &f);
    for (int x = 0; x < X; x++)
        assert_true(merged_change(&tune.adapter, x / E, x % E, 0, I) == 0);
    for (int step = 0; step < 2; step++)
        assert_ok(fm_tune_step(&tune, &err));
    int touched = 0;
    for (int x = 0; x < X; x++) {
        touched += merged_change(&tune.adapter, x / E, x % E, 0, f.widths[x]) > 0;
        assert_true(merged_change(&tune.adapter, x / E, x % E, f.widths[x], I) == 0);
    }
    /* One expert has no tokens. */
    assert_int_equal(touched, X - 1);
    fm_tune_release(&tune);
    close_fixture(&f);
}

TEST(loss_falls_with_either_strategy)
{
    for (int s = FM_RECOVER_SINGLE; s <= FM_RECOVER_CROSS; s++) {
        struct fixture f;
        struct fm_tune tune;
        open_fixture(&f, fm_ops_ref());
        f.options.strategy = (enum fm_recover_strategy)s;
        f.options.lr = 5e-3;
        start_tune(&tune, &f);
        assert_int_equal(tune.lanes, 2); /* the family has no mask between these two */
        if (s == FM_RECOVER_CROSS)
            assert_int_equal(tune.adapter.widths[0], I);
        for (int step = 0; step < 12; step++)
            assert_ok(fm_tune_step(&tune, &err));
        printf("loss %g -> %g\n", tune.loss_first, tune.loss);
        assert_true(tune.loss < tune.loss_first - 0.05);
        fm_tune_release(&tune);
        close_fixture(&f);
    }
}

/* If the same sequences are repeated, the model with trained routers approaches the full model. */
TEST(divergence_falls_with_routers)
{
    struct fixture f;
    struct fm_tune tune;
    open_fixture(&f, fm_ops_ref());
    fm_recover_defaults(&f.options, &fm_recovery_router);
    assert_true(f.options.w_task == 0 && f.options.w_kl == 1);
    f.options.lr = 2e-3;
    start_tune(&tune, &f);
    for (int step = 0; step < 24; step++)
        assert_ok(fm_tune_step(&tune, &err));
    printf("divergence %g -> %g\n", tune.loss_first, tune.loss);
    assert_true(tune.loss < 0.95 * tune.loss_first);
    fm_tune_release(&tune);
    close_fixture(&f);
}

/* The adapter after two steps of strategy cross. */
static float *cross_values(double w_kl, double balance_eps, size_t *n)
{
    struct fixture f;
    struct fm_tune tune;
    struct fm_err err = {0};
    open_fixture(&f, fm_ops_ref());
    f.options.strategy = FM_RECOVER_CROSS;
    f.options.w_kl = w_kl;
    f.options.balance_eps = balance_eps;
    start_tune(&tune, &f);
    for (int i = 0; i < 2; i++)
        assert_ok(fm_tune_step(&tune, &err));
    *n = count_of(&tune);
    float *values = malloc(*n * sizeof *values);
    assert_non_null(values);
    memcpy(values, tune.adapter.values, *n * sizeof *values);
    fm_tune_release(&tune);
    close_fixture(&f);
    return values;
}

static double largest_difference(const float *a, const float *b, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

/* A subnet's weight is |L_full| / (|L_sub| + eps): with a very large eps it is nearly 0. */
TEST(cross_weighs_a_subnet_by_its_loss)
{
    const double lr = 1e-4;
    size_t n;
    float *without = cross_values(0, 1e-6, &n), *none = cross_values(1, 1e30, &n);
    float *usual = cross_values(1, 1e-6, &n);
    double same = largest_difference(without, none, n),
           other = largest_difference(without, usual, n);
    assert_true(same <= 1e-3 * lr);
    assert_true(other >= 0.1 * lr);
    free(without);
    free(none);
    free(usual);
}

static int trained(void **unused)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    training_ranked(unused);
    fm_train_defaults(&options);
    options.method = &fm_method_saliency;
    options.budget_step = (struct fm_decimal){1, 10};
    runs_init(&r, "ranked.fm", "family.fm");
    runs_tokens(&r, 40, 11);
    training_must(&r, &options, &report);
    fm_train_report_release(&report);
    return 0;
}

static void start_training(struct runs *r, struct fm_recover_options *o,
                           const struct fm_recovery *train, const char *out)
{
    fm_recover_defaults(o, train);
    o->rank = 2;
    o->steps = 6;
    o->lr = 5e-3;
    runs_init(r, "family.fm", out);
    runs_tokens(r, 40, 11);
    r->run.inputs.batch = 4;
}

static void start_recover(struct runs *r, struct fm_recover_options *o, const char *out)
{
    start_training(r, o, &fm_recovery_experts, out);
}

static void must_recover(struct runs *r, const struct fm_recover_options *o,
                         struct fm_recover_report *report)
{
    struct fm_err err = {0};
    assert_ok(fm_recover(&r->run, o, NULL, report, &err));
}

TEST(the_stream_gets_the_adapter_and_new_figures)
{
    for (int s = FM_RECOVER_SINGLE; s <= FM_RECOVER_CROSS; s++) {
        struct runs r;
        struct fm_recover_options options;
        struct fm_recover_report report = {0};
        struct fm_bundle b;
        struct fm_budgets budgets;
        struct fm_adapter adapter;
        start_recover(&r, &options, "recovered.fm");
        options.strategy = (enum fm_recover_strategy)s;
        options.steps = 24;
        options.lr = 1e-2;
        must_recover(&r, &options, &report);
        double budget = fm_masks_budget(&report.masks, report.mask);
        assert_true(fabs(budget - 0.4) < 0.05);
        printf("%s: loss %g to %g; held-out at the mask %g to %g\n", s ? "cross" : "single",
               report.loss_first, report.loss_last, report.masks.mask[report.mask].quality.ce,
               report.after[report.mask].ce);
        /* One small batch is too noisy to compare training losses of two steps. */
        assert_true(report.loss_first > 0 && report.loss_last > 0);
        assert_true(report.after[report.mask].ce < report.masks.mask[report.mask].quality.ce);
        assert_ok(fm_stage_open(&b, r.run.outputs.path, FM_MEMBER_ADAPTER, &err));
        assert_ok(fm_budgets_open(&budgets, &b, &err));
        assert_ok(fm_lorafile_open(&adapter, &b, &err));
        for (int m = 0; m < report.masks.count; m++) {
            assert_true(budgets.masks.mask[m].quality.recovered);
            assert_true(budgets.masks.mask[m].quality.ce == report.after[m].ce);
        }
        int mask = s == FM_RECOVER_CROSS ? 0 : report.mask;
        assert_memory_equal(adapter.widths, fm_masks_widths(&report.masks, mask),
                            sizeof(uint32_t) * X);
        fm_adapter_release(&adapter);
        fm_budgets_release(&budgets);
        fm_bundle_close(&b);
        fm_recover_report_release(&report);
    }
}

static void stop_and_go_on(const struct fm_recovery *train)
{
    struct runs r;
    struct fm_err err = {0};
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    start_training(&r, &options, train, "straight.fm");
    options.strategy = FM_RECOVER_CROSS;
    must_recover(&r, &options, &report);
    fm_recover_report_release(&report);
    /* Before the third step, and before the masks are measured again. */
    for (int reports = 2; reports <= 7; reports += 5) {
        start_training(&r, &options, train, "resumed.fm");
        options.strategy = FM_RECOVER_CROSS;
        r.run.outputs.state = runs_path(r.state, "recover.state");
        r.countdown = reports;
        unlink(r.run.outputs.path);
        assert_int_equal(fm_recover(&r.run, &options, NULL, &report, &err), FM_ESAVED);
        assert_int_equal(access(r.run.outputs.path, F_OK), -1);
        fm_recover_report_release(&report);
        r.stop = 0;
        must_recover(&r, &options, &report);
        assert_int_equal(report.resumed, reports < 6 ? reports : 6);
        fm_recover_report_release(&report);
        assert_int_equal(access(r.run.outputs.state, F_OK), -1);
        assert_true(runs_same("straight.fm", "resumed.fm"));
    }
}

TEST(a_stopped_recovery_goes_on_to_the_same_bytes)
{
    stop_and_go_on(&fm_recovery_experts);
    stop_and_go_on(&fm_recovery_router);
}

TEST(the_stream_gets_the_routers)
{
    struct runs r;
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    struct fm_bundle b;
    struct fm_budgets budgets;
    struct fm_adapter adapter;
    start_training(&r, &options, &fm_recovery_router, "routed.fm");
    must_recover(&r, &options, &report);
    assert_true(report.after[report.mask].recovered);
    assert_true(report.after[report.mask].kl != report.masks.mask[report.mask].quality.kl);
    assert_ok(fm_stage_open(&b, r.run.outputs.path, FM_MEMBER_ADAPTER, &err));
    assert_ok(fm_budgets_open(&budgets, &b, &err));
    assert_ok(fm_lorafile_open(&adapter, &b, &err));
    assert_ok(fm_lorafile_check(&adapter, &b, &budgets.masks, &err));
    assert_true(adapter.router && !adapter.biased);
    for (int m = 0; m < L; m++)
        assert_true(fm_adapter_router(&adapter, m)[0] != 0);
    fm_adapter_release(&adapter);
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
    fm_recover_report_release(&report);
}

TEST(two_threads_make_the_same_adapter)
{
    for (int threads = 1; threads <= 2; threads++) {
        struct runs r;
        struct fm_recover_options options;
        struct fm_recover_report report = {0};
        start_recover(&r, &options, threads == 1 ? "one.fm" : "two.fm");
        r.run.machine.device = "cpu";
        r.run.machine.memory = threads == 1 ? (uint64_t)64 << 20 : 64 << 10;
        assert_ok(fm_pool_start(threads, &err));
        must_recover(&r, &options, &report);
        fm_pool_stop();
        fm_recover_report_release(&report);
    }
    assert_true(runs_same("one.fm", "two.fm"));
}

/* FLOPs of a recovery within `memory`, as planned and as counted by the meter. */
static double count_recovery(struct fm_estimate *plan, const char *out, uint64_t memory)
{
    struct runs r;
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    struct fm_err err = {0};
    start_recover(&r, &options, out);
    r.run.machine.memory = memory;
    r.run.machine.ops = fm_meter_begin(fm_ops_ref());
    assert_ok(fm_recover(&r.run, &options, plan, NULL, &err));
    must_recover(&r, &options, &report);
    fm_recover_report_release(&report);
    return fm_meter_flops();
}

/* The products with gate_up at the students' widths, and attention and router.  The plan also
 * counts operations of attention that are not products with a matrix. */
TEST(memory_saves_a_recovery_the_products_that_its_plan_says)
{
    struct fm_estimate kept, again;
    struct fm_model *m;
    double less = count_recovery(&kept, "kept.fm", (uint64_t)1 << 30);
    double more = count_recovery(&again, "again.fm", 64 << 10), others = 0;
    assert_ok(fm_model_open(&m, RUNS_MODEL, 0, &err));
    for (int l = 0; l < L; l++)
        others += fm_cost_layer(fm_model_config(m), l, 11).others;
    double tokens = 6 * 4 * 11, saved = again.flops - kept.flops - tokens * others;
    if (!(fabs(more - less - saved) < 0.05 * saved))
        fail_msg("memory saved %.4g products, the plans %.4g", more - less, saved);
    assert_true(saved > 0.02 * more);
    assert_true(runs_same("kept.fm", "again.fm"));
    fm_model_close(m);
}

TEST(a_recovery_that_diverges_says_what_to_turn_down)
{
    struct runs r;
    struct fm_recover_report report = {0};
    struct fm_recover_options o;
    start_recover(&r, &o, "no.fm");
    o.lr = 1;
    o.alpha = 1e6; /* the merged weights exceed the largest number of the dtype in which they are
                      stored */
    assert_fails(fm_recover(&r.run, &o, NULL, &report, &err), FM_EFORMAT,
                 "diverged; use a smaller --lr");
    fm_recover_report_release(&report);
}

TEST(a_stream_without_masks_is_refused)
{
    struct runs r;
    struct fm_recover_report report = {0};
    struct fm_recover_options good;
    start_recover(&r, &good, "no.fm");
    struct fm_estimate plan;
    assert_ok(fm_recover(&r.run, &good, &plan, NULL, &err));
    assert_int_equal(plan.sweeps, 6 + 1);
    r.run.inputs.stream =
        scratch("ranked.fm"); /* it has no masks: both the run and its plan refuse it */
    assert_fails(fm_recover(&r.run, &good, NULL, &report, &err), FM_ECONFIG, "fm-train");
    assert_fails(fm_recover(&r.run, &good, &plan, NULL, &err), FM_ECONFIG, "fm-train");
}

/* Space for the state file and its next version is needed, less that of a state that exists.  On
 * one filesystem it is needed beside that of the output or of temporary files; these two are not
 * added. */
TEST(a_plan_checks_the_space_for_its_state)
{
    struct fm_run_options run = {.machine.memory = 1, .outputs.path = scratch("output")};
    uint64_t space = 0;
    run.outputs.state = scratch("large-state");
    assert_ok(fm_file_free_space(run.outputs.state, &space, &err));
    struct fm_estimate plan = {.state = space / 4 * 3};
    assert_fails(fm_estimate_check(&plan, &run, 0, &err), FM_ECREATE, "state file");
    int fd = open(run.outputs.state, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)plan.state) == 0 && close(fd) == 0); /* a hole */
    assert_ok(fm_estimate_check(&plan, &run, 0, &err));
    plan.disk = space / 4 * 3;
    if (!fm_file_share_space(run.outputs.path, run.outputs.state))
        skip(); /* the system does not tell */
    assert_fails(fm_estimate_check(&plan, &run, 0, &err), FM_ECREATE, "and the output take");
    setenv("TMPDIR", scratch(""), 1);
    plan = (struct fm_estimate){.disk = space / 4 * 3, .spill = space / 4 * 3};
    assert_ok(fm_estimate_check(&plan, &run, 0, &err));
    plan.disk = 0;
    plan.state = space / 4 * 3;
    assert_fails(fm_estimate_check(&plan, &run, 0, &err), FM_ECREATE,
                 "and the temporary files take");
    unsetenv("TMPDIR");
}

/* Every run of this tool holds a layer's experts twice, the second time with the adapter merged. */
TEST(a_plan_counts_the_merged_copy)
{
    struct fm_model *model;
    struct fm_estimate plan[2] = {{0}};
    assert_ok(fm_model_open(&model, RUNS_MODEL, 1 << 26, &err));
    const struct fm_config *c = fm_model_config(model);
    for (int merged = 0; merged < 2; merged++)
        fm_estimate_add(
            &plan[merged], model,
            &(struct fm_estimate_sweep){
                .count = 1, .rows = 24, .T = 12, .lanes = 2, .merged = merged, .kept = 1},
            1 << 26);
    assert_int_equal(plan[1].memory - plan[0].memory, 12 * c->E * c->I * c->H);
    fm_model_close(model);
}

static int took(void *self, const int *number, const struct fm_quality *quality, int n,
                struct fm_err *err)
{
    (void)self, (void)number, (void)quality, (void)n, (void)err;
    return FM_OK;
}

/* The memory that a task has for its sweeps does not include the adapter, so measuring must not
 * subtract it: with less memory it spills to a file, and there is no directory for one. */
TEST(the_adapter_is_subtracted_once_for_measuring)
{
    struct fixture f;
    struct fm_tune tune;
    struct fm_estimate plan;
    int mask = 1;
    open_fixture(&f, fm_ops_ref());
    f.options.rank = 64; /* the adapter is larger than all boundaries */
    start_tune(&tune, &f);
    uint64_t size = count_of(&tune) * sizeof(float);
    f.task.held = f.task.calib;
    f.run.machine.memory = 1 << 28;
    struct fm_quality_subject subject = {.model = f.task.model,
                                         .held = &f.task.held,
                                         .adapter = &tune.adapter,
                                         .masks = 1,
                                         .kept = 1};
    fm_quality_plan(&plan, &subject, &f.run);
    f.task.memory = plan.memory - size;
    setenv("TMPDIR", scratch("nowhere"), 1);
    assert_ok(fm_task_measure(&f.task, &f.masks, &mask, 1, &tune.adapter, took, NULL, &err));
    f.task.memory -= size;
    assert_fails(fm_task_measure(&f.task, &f.masks, &mask, 1, &tune.adapter, took, NULL, &err),
                 FM_ECREATE, "nowhere");
    unsetenv("TMPDIR");
    fm_tune_release(&tune);
    close_fixture(&f);
}

/* A thread has scratch for a block only if there is a block for it. */
TEST(a_thread_without_work_needs_no_scratch)
{
    struct fm_model *model;
    assert_ok(fm_model_open(&model, RUNS_MODEL, 1 << 26, &err));
    assert_ok(fm_pool_start(2, &err));
    uint64_t left[3];
    for (int lanes = 1; lanes <= 3; lanes++)
        left[lanes - 1] = fm_estimate_boundaries(model, 1, 24, 0, lanes, 1 << 26);
    assert_true(left[0] > left[1]);
    assert_true(left[1] == left[2]);
    /* Two micro-batches of 1024 tokens are one block, and four are two. */
    assert_true(fm_estimate_boundaries(model, 4, 1024, 0, 1, 1 << 30) <
                fm_estimate_boundaries(model, 2, 1024, 0, 1, 1 << 30));
    fm_pool_stop();
    fm_model_close(model);
}

TEST_MAIN(trained, NULL)
