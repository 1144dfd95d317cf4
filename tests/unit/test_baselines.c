/* Test the rules that remove experts, against golden/baselines and results computed by
 * hand; and run a whole comparison. */
#include "lib/base/pool.h"
#include "lib/block/pass.h"
#include "lib/baseline/expertdrop.h"
#include "lib/baseline/baseline.h"
#include "lib/model/model.h"
#include "tests/unit/owned.h"
#include "tests/unit/baselines.h"
#include "tests/unit/runs.h"
#include "tests/unit/test.h"

/* The config of the model that baselines_open opened last. */
static struct fm_config config_of_baselines(void)
{
    struct fm_err err = {0};
    struct fm_hfdir dir;
    struct fm_config config;
    assert_ok(fm_hfdir_open(&dir, baselines_model, &err));
    assert_ok(fm_config_parse(&config, dir.config, dir.config_bytes, &err));
    fm_hfdir_close(&dir);
    return owned_config(&config);
}

static void init_run(struct runs *r, const char *device)
{
    runs_init(r, NULL, "none");
    r->run.inputs.model = baselines_model;
    r->run.inputs.tokens[0].path = baselines_tokens;
    r->run.machine.device = device;
}

static void assert_scores(const char *model, const char *device)
{
    struct golden g, own;
    struct runs r;
    struct fm_err err = {0};
    char path[96];
    size_t X;
    baselines_open(&g, model);
    snprintf(path, sizeof path, "%s/golden.safetensors", baselines_model);
    golden_open(&own, path);
    double *reap = golden_read(&g, "reap", FM_F64, &X), score[256];
    int64_t *tokens = golden_read(&own, "rank.tokens", FM_I64, NULL);
    assert_true(X <= 256);
    init_run(&r, device);
    assert_ok(fm_expertdrop_score(score, &r.run, true, &err));
    for (size_t x = 0; x < X; x++)
        assert_true(fabs(score[x] - reap[x]) <= 1e-4 * reap[x]);
    assert_ok(fm_expertdrop_score(score, &r.run, false, &err));
    for (size_t x = 0; x < X; x++)
        assert_true(score[x] == (double)tokens[x]);
    free(reap);
    free(tokens);
    golden_close(&own);
    golden_close(&g);
}

TEST(experts_are_scored_as_by_pytorch)
{
    for (size_t i = 0; i < BASELINES; i++) {
        assert_scores(baselines_models[i], "ref");
        assert_scores(baselines_models[i], "cpu");
    }
}

/* Remove one expert of every layer, or of every group of experts. */
TEST(experts_with_the_lowest_scores_are_closed)
{
    for (size_t i = 0; i < BASELINES; i++) {
        struct golden g;
        size_t X;
        int step;
        baselines_open(&g, baselines_models[i]);
        struct fm_config c = config_of_baselines();
        double *reap = golden_read(&g, "reap", FM_F64, &X);
        int32_t *keep = golden_read(&g, "keep", FM_I32, NULL);
        float closed[256];
        assert_true(fm_expertdrop_most(&c, &step) >= step && X <= 256);
        assert_int_equal(step, strcmp(baselines_models[i], "odd-dsv3") == 0 ? 4 : 1);
        fm_expertdrop_close(closed, reap, &c, step);
        for (size_t x = 0; x < X; x++)
            assert_true(closed[x] == (keep[x] ? 0 : FM_PASS_CLOSED));
        free(reap);
        free(keep);
        golden_close(&g);
    }
}

TEST(as_many_stay_as_the_router_needs)
{
    /* The routers choose 2 of 5; 4 of 6; 2 of 6; 3 of 12, from 2 of 4 groups, each of which is
     * scored by its best 2; 3 of 7. */
    const int most[BASELINES] = {3, 2, 4, 4, 4};
    for (size_t i = 0; i < BASELINES; i++) {
        struct golden g;
        int step;
        baselines_open(&g, baselines_models[i]);
        struct fm_config c = config_of_baselines();
        assert_int_equal(fm_expertdrop_most(&c, &step), most[i]);
        golden_close(&g);
    }
}

TEST(draws_are_seeded_and_differ)
{
    struct fm_config *c = calloc(1, sizeof *c);
    double a[12], b[12];
    c->M = 3;
    c->E = 4;
    fm_expertdrop_draw(a, c, 7, 1);
    fm_expertdrop_draw(b, c, 7, 1);
    assert_memory_equal(a, b, sizeof a);
    fm_expertdrop_draw(b, c, 7, 2);
    assert_memory_not_equal(a, b, sizeof a);
    fm_expertdrop_draw(b, c, 8, 1);
    assert_memory_not_equal(a, b, sizeof a);
    free(c);
}

/* The loss of the checkpoint without the closed experts, from transformers. */
static double golden_loss(const struct golden *g)
{
    size_t n;
    double sum = 0;
    float *logprob = golden_read(g, "closed.logprob", FM_F32, &n);
    for (size_t i = 0; i < n; i++)
        sum -= (double)logprob[i];
    free(logprob);
    return sum / (double)n;
}

static struct fm_baseline_table *compare(struct runs *r, const struct fm_decimals *budgets)
{
    struct fm_err err = {0};
    struct fm_baseline_table *t = calloc(1, sizeof *t);
    r->run.inputs.eval_tokens[0] = baselines_tokens;
    assert_ok(fm_baseline_run(&r->run, budgets, false, t, &err));
    return t;
}

TEST(closed_experts_give_the_loss_of_a_checkpoint_without_them)
{
    for (size_t i = 0; i < BASELINES; i++) {
        struct golden g;
        struct runs r;
        baselines_open(&g, baselines_models[i]);
        init_run(&r, "cpu");
        struct fm_baseline_table *t = compare(&r, NULL);
        assert_int_equal(t->row[0].baseline, FM_BASELINE_REAP);
        double want = golden_loss(&g);
        printf("%s: without experts %.6f, golden %.6f\n", baselines_models[i],
               t->row[0].cell[0].quality.ce, want);
        assert_true(fabs(t->row[0].cell[0].quality.ce - want) <= 1e-5 * want);
        for (int row = 0; row < FM_BASELINES; row++) {
            const struct fm_baseline_row *x = &t->row[row];
            assert_int_equal(x->measured, x->baseline != FM_BASELINE_RANDOM);
            assert_true(!x->measured || x->seconds > 0);
            for (int b = 0; b < t->budgets; b++) {
                assert_true(x->cell[b].quality.positions > 0);
                assert_true(x->cell[b].budget == (double)t->dropped[b] / t->experts);
            }
        }
        free(t);
        golden_close(&g);
    }
}

TEST(figures_do_not_depend_on_memory_or_threads)
{
    struct golden g;
    struct runs r;
    baselines_open(&g, "odd-mixtral");
    init_run(&r, "cpu");
    const struct fm_decimals budgets = {.count = 2, .at = {{2, 10}, {6, 10}}};
    struct fm_baseline_table *one = compare(&r, &budgets);
    init_run(&r, "cpu");
    r.run.machine.memory = 64 << 10;
    assert_ok(fm_pool_start(2, &err));
    struct fm_baseline_table *two = compare(&r, &budgets);
    fm_pool_stop();
    assert_int_equal(FM_BASELINES, FM_BASELINES);
    for (int row = 0; row < FM_BASELINES; row++)
        for (int b = 0; b < one->budgets; b++) {
            const struct fm_quality *x = &one->row[row].cell[b].quality,
                                    *y = &two->row[row].cell[b].quality;
            assert_true(x->ce == y->ce && x->kl == y->kl && x->agree == y->agree);
        }
    free(one);
    free(two);
    golden_close(&g);
}

TEST_MAIN(NULL, NULL)
