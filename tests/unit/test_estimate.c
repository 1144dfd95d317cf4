/*
 * A plan counts what a run does: its operations are compared with the products that the meter
 * counts, for every family, and they are proportional to the tokens.
 */
#include "lib/block/cost.h"
#include "lib/learn/quality.h"
#include "lib/learn/rank.h"
#include "tests/measure/meter.h"
#include "tests/unit/models.h"
#include "tests/unit/runs.h"
#include "tests/unit/training.h"
#include "tests/unit/test.h"

enum { T = 11, LEAST = 50 }; /* every vocabulary is larger than LEAST */

static void start(struct runs *r, const char *model, char path[64], int sequences, uint64_t memory)
{
    runs_init(r, NULL, "estimated.fm");
    snprintf(path, 64, "golden/%s", model);
    runs_tokens(r, sequences, T);
    uint16_t id[40 * T];
    for (int i = 0; i < sequences * T; i++)
        id[i] = (uint16_t)(i * i % LEAST);
    scratch_write("tokens.u16", id, (size_t)(sequences * T) * sizeof *id);
    runs_whole(r);
    r->run.inputs.model = path;
    r->run.machine.memory = memory;
    const struct fm_ops *ops;
    struct fm_err err = {0};
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    r->run.machine.ops = fm_meter_begin(ops);
}

/* Operations per token that are not products with a layer's matrices, and that the meter does not
 * count: once for each pass through a layer. */
static double others(const struct fm_config *c, bool again)
{
    double sum = 0;
    for (int l = 0; l < c->L; l++) {
        int passes = 1 + (l > c->moe[0]) + (again && l >= c->moe[0]);
        sum += passes * fm_cost_layer(c, l, T).others;
    }
    return sum;
}

static void count_ranking(const char *model, int sequences, uint64_t memory)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    struct fm_estimate plan;
    struct fm_model *m;
    struct fm_err err = {0};
    char path[64];
    fm_rank_defaults(&options);
    start(&r, model, path, sequences, memory);
    assert_ok(fm_rank(&r.run, &options, &plan, NULL, &err));
    assert_ok(fm_model_open(&m, path, 0, &err));
    double tokens = (double)sequences * T, before = fm_meter_flops();
    assert_ok(fm_rank(&r.run, &options, NULL, &report, &err));
    double done = fm_meter_flops() - before;
    bool again = plan.flops > plan.useful;
    assert_true(again == (memory == 1));
    double want = plan.flops - tokens * others(fm_model_config(m), again);
    if (!(fabs(done - want) <= 1e-9 * done))
        fail_msg("%s: %d sequences took %.0f products, the plan has %.0f", model, sequences, done,
                 want);
    fm_rank_report_release(&report);
    fm_model_close(m);
}

/* With memory for all inner values, and with none. */
TEST(a_ranking_takes_the_products_of_its_plan)
{
    for (size_t i = 0; i < MODELS; i++) {
        count_ranking(odd_models[i], 18, (uint64_t)4 << 30);
        count_ranking(odd_models[i], 18, 1);
    }
}

TEST(work_is_proportional_to_the_sequences)
{
    static const int sequences[] = {20, 24, 28, 32, 40, 7, 1};
    struct fm_estimate plan[7];
    struct fm_rank_options options;
    fm_rank_defaults(&options);
    for (int i = 0; i < 7; i++) {
        struct runs r;
        char path[64];
        start(&r, "odd-mixtral", path, sequences[i], (uint64_t)4 << 30);
        assert_ok(fm_rank(&r.run, &options, &plan[i], NULL, &err));
        assert_int_equal(plan[i].tokens, sequences[i] * T);
        assert_int_equal(plan[i].sweeps, (sequences[i] + 15) / 16);
        double a = plan[i].useful / sequences[i], b = plan[0].useful / sequences[0];
        assert_true(fabs(a - b) < 1e-12 * b && plan[i].useful == plan[i].flops);
    }
}

static struct fm_estimate plan_ranking(uint64_t memory)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_estimate plan;
    struct fm_err err = {0};
    char path[64];
    fm_rank_defaults(&options);
    start(&r, "odd-mixtral", path, 40, memory);
    r.run.machine.memory_firm = false;
    assert_ok(fm_rank(&r.run, &options, &plan, NULL, &err));
    return plan;
}

/* Without a limit a run takes less than everything that it could use, and computes little more. */
TEST(the_default_memory_keeps_the_speed)
{
    struct fm_estimate all = plan_ranking((uint64_t)4 << 30), usual = plan_ranking(0);
    struct fm_estimate enough = plan_ranking(all.enough), less = plan_ranking(all.enough / 50 * 49);
    assert_true(usual.memory < all.memory && usual.spill == 0 && usual.read == all.read);
    assert_true(usual.flops > all.flops && usual.flops <= 1.1 * all.flops);
    assert_true(enough.memory <= all.enough && enough.spill == 0 && enough.read == all.read);
    assert_true(fabs(enough.flops / all.flops - 1 - all.enough_more) < 1e-12);
    assert_true(all.enough < usual.memory && all.enough_more > 0.1);
    assert_true(less.least > 0 || less.spill > 0 || less.read > all.read);
}

/* Plan and run a method whose masks keep nearly all channels, as the plan assumes on average, and
 * compare their products to a few per cent; the plan is made for the steps that were taken. */
static void count_training(const struct fm_method *method, uint64_t memory, const char *step,
                           const char *until)
{
    struct runs r;
    struct fm_train_options o;
    struct fm_train_report report = {0};
    struct fm_estimate plan;
    struct fm_err err = {0};
    training_init(&r, &o, "ranked.fm", "masks.fm", method);
    o.budget_step = o.measure_step = training_decimal(step);
    o.until = training_decimal(until);
    r.run.machine.memory = memory;
    r.run.machine.ops = fm_meter_begin(fm_ops_ref());
    assert_ok(fm_train(&r.run, &o, NULL, &report, &err));
    double done = fm_meter_flops();
    o.steps = report.steps ? report.steps : o.steps;
    assert_ok(fm_train(&r.run, &o, &plan, NULL, &err));
    if (!(fabs(plan.flops - done) < 0.05 * done))
        fail_msg("%s in %llu bytes took %.4g products, the plan has %.4g", method->name,
                 (unsigned long long)memory, done, plan.flops);
    fm_train_report_release(&report);
}

TEST(training_takes_the_products_of_its_plan)
{
    for (int i = 0; fm_methods[i]; i++) {
        if (!fm_methods[i]->shapes)
            continue;
        count_training(fm_methods[i], (uint64_t)4 << 30, "0.005", "0.04");
        count_training(fm_methods[i], 1, "0.005", "0.04");
    }
    /* 22 masks: in little memory, 16 of them and then the rest. */
    count_training(&fm_method_saliency, 1, "0.007", "0.147");
}

TEST_MAIN(training_ranked, NULL)
