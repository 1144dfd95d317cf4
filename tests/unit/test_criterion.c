/* Compare criteria other than fm-rank's default with golden/baselines, which was computed with
 * PyTorch, and test their use by fm-train. */
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/learn/rank.h"
#include "lib/learn/recover.h"
#include "lib/learn/train.h"
#include "lib/stage/ranking.h"
#include "tests/unit/baselines.h"
#include "tests/unit/ranked.h"
#include "tests/unit/runs.h"
#include "tests/unit/test.h"

static void rank_by(struct runs *r, const struct fm_criterion *criterion)
{
    struct fm_err err = {0};
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    options.criterion = criterion;
    runs_whole(r);
    assert_ok(fm_rank(&r->run, &options, NULL, &report, &err));
    assert_ptr_equal(report.criterion, criterion);
    fm_rank_report_release(&report);
}

static void assert_scores(const char *model, const char *device,
                          const struct fm_criterion *criterion)
{
    struct golden g;
    struct runs r;
    struct fm_ranking ranking;
    size_t n;
    baselines_open(&g, model);
    runs_init(&r, NULL, "baseline.fm");
    r.run.inputs.model = baselines_model;
    r.run.inputs.tokens[0].path = baselines_tokens;
    r.run.machine.device = device;
    rank_by(&r, criterion);
    ranked_read(&ranking, "baseline.fm");
    double *want = golden_read(&g, criterion->name, FM_F64, &n);
    assert_int_equal(n, ranking.M * ranking.E * ranking.I);
    double worst = ranked_error(ranking.scores, want, ranking.M * ranking.E, ranking.I);
    printf("%s, %s: %s off by %.2g\n", model, device, criterion->name, worst);
    assert_true(worst <= 1e-4);
    free(want);
    fm_ranking_release(&ranking);
    golden_close(&g);
}

TEST(scores_are_those_of_pytorch)
{
    for (size_t i = 0; i < BASELINES; i++)
        for (int c = 1; fm_criteria[c]; c++) {
            assert_scores(baselines_models[i], "ref", fm_criteria[c]);
            assert_scores(baselines_models[i], "cpu", fm_criteria[c]);
        }
}

TEST(the_bytes_do_not_depend_on_threads_memory_or_interruptions)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    options.criterion = &fm_criterion_energy;
    runs_init(&r, NULL, "one.fm");
    runs_tokens(&r, 40, 11);
    r.run.machine.device = "cpu";
    rank_by(&r, &fm_criterion_energy);
    runs_init(&r, NULL, "two.fm");
    runs_tokens(&r, 40, 11);
    runs_whole(&r);
    r.run.machine.device = "cpu";
    r.run.machine.memory = 64 << 10;
    r.run.outputs.state = runs_path(r.state, "rank.state");
    r.countdown = 1; /* before the second of three groups */
    assert_ok(fm_pool_start(2, &err));
    assert_int_equal(fm_rank(&r.run, &options, NULL, &report, &err), FM_ESAVED);
    fm_rank_report_release(&report);
    r.stop = 0;
    options.criterion = &fm_criterion_activation; /* the state is for energy */
    assert_int_equal(fm_rank(&r.run, &options, NULL, &report, &err), FM_ECONFIG);
    fm_rank_report_release(&report);
    rank_by(&r, &fm_criterion_energy);
    fm_pool_stop();
    assert_true(runs_same("one.fm", "two.fm"));
}

/* Run fm-train on a ranking by energy; returns its code. */
static int train_on_energy(const struct fm_method *method, double prior, struct fm_err *err)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    fm_train_defaults(&options);
    options.method = method;
    options.prior = prior;
    options.budget_step = (struct fm_decimal){25, 100};
    options.until = (struct fm_decimal){25, 100};
    options.steps = 2;
    runs_init(&r, "energy.fm", "masks.fm");
    runs_tokens(&r, 40, 11);
    *err = (struct fm_err){0};
    int rc = fm_train(&r.run, &options, NULL, &report, err);
    if (!rc)
        assert_int_equal(report.masks.mask[0].method, options.method);
    fm_train_report_release(&report);
    return rc;
}

TEST(other_scores_do_not_compare_experts)
{
    const struct fm_method *const refused[] = {&fm_method_saliency, &fm_method_learned};
    struct runs r;
    runs_init(&r, NULL, "energy.fm");
    runs_tokens(&r, 40, 11);
    rank_by(&r, &fm_criterion_energy);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_fails(train_on_energy(refused[i], 4, &err), FM_ECONFIG, "--criterion taylor");
        assert_non_null(strstr(err.text, refused[i]->name));
    }
    assert_non_null(strstr(err.text, "--prior 0"));
    assert_ok(train_on_energy(&fm_method_learned, 0, &err));
    assert_ok(train_on_energy(&fm_method_uniform, 4, &err));
    assert_ok(train_on_energy(&fm_method_exchange, 4, &err));
}

/* The text of an option's choices is made from the rows of a list, not from the descriptors. */
TEST(choices_are_the_names_in_the_lists)
{
    char criteria[128] = "", methods[128] = "", recoveries[128] = "";
    for (int i = 0; fm_criteria[i]; i++)
        strcat(strcat(criteria, i ? "|" : ""), fm_criteria[i]->name);
    for (int i = 0; fm_methods[i]; i++)
        strcat(strcat(methods, i ? "|" : ""), fm_methods[i]->name);
    for (int i = 0; fm_recoveries[i]; i++)
        strcat(strcat(recoveries, i ? "|" : ""), fm_recoveries[i]->name);
    assert_string_equal(criteria, FM_NAMES_CHOICES(FM_CRITERION_ROWS));
    assert_string_equal(methods, FM_NAMES_CHOICES(FM_METHOD_ROWS));
    assert_string_equal(recoveries, FM_NAMES_CHOICES(FM_RECOVERY_ROWS));
}

TEST_MAIN(NULL, NULL)
