/* Rankings of the golden models: scores and order are those of transformers' autograd. */
#include <signal.h>
#include <sys/time.h>

#include "lib/base/pool.h"
#include "lib/engine/sweep.h"
#include "lib/learn/estimate.h"
#include "lib/learn/quality.h"
#include "lib/learn/rank.h"
#include "lib/stage/ranking.h"
#include "tests/unit/golden.h"
#include "tests/unit/models.h"
#include "tests/unit/ranked.h"
#include "tests/unit/runs.h"
#include "tests/unit/test.h"

enum { L = 3, E = 5, I = 37, CHANNELS = L * E * I };

static void rank_to(struct runs *r, enum fm_rank_order order, struct fm_rank_report *report)
{
    struct fm_err err = {0};
    struct fm_rank_options options;
    fm_rank_defaults(&options);
    options.order = order;
    runs_whole(r);
    assert_ok(fm_rank(&r->run, &options, NULL, report, &err));
}

/* At each rank the channel is the golden one, or has the same score within the tolerance. */
static void assert_order(const struct fm_ranking *r, const struct golden *g)
{
    int32_t *order = golden_read(g, "rank.order", FM_I32, NULL);
    for (int x = 0; x < r->M * r->E; x++) {
        const double *s = r->scores + x * r->I;
        for (int j = 0; j < r->I; j++) {
            int32_t ours = r->order[x * r->I + j], golden = order[x * r->I + j];
            assert_true(ours == golden || fabs(s[ours] - s[golden]) <= 1e-4 * s[golden]);
        }
    }
    free(order);
}

/* Check that the ranking of a model in golden/ equals the stored one; `r` receives the warnings. */
static void assert_golden(struct runs *r, const char *model, const char *device, int batch,
                          struct fm_rank_report *report)
{
    struct golden g;
    struct fm_ranking ranking;
    char path[96], tokens_path[112], scores[16], losses[16];
    size_t batches;
    runs_init(r, NULL, "golden.fm");
    snprintf(path, sizeof path, "golden/%s/golden.safetensors", model);
    golden_open(&g, path);
    snprintf(path, sizeof path, "golden/%s", model);
    snprintf(tokens_path, sizeof tokens_path, "%s/tokens.npy", path);
    snprintf(scores, sizeof scores, "rank%d.scores", batch);
    snprintf(losses, sizeof losses, "rank%d.losses", batch);
    r->run.inputs.model = path;
    r->run.inputs.tokens[0].path = tokens_path;
    r->run.machine.device = device;
    r->run.inputs.batch = batch;
    rank_to(r, FM_ORDER_SCORE, report);
    ranked_read(&ranking, "golden.fm");
    int experts = ranking.M * ranking.E;
    double *want = golden_read(&g, scores, FM_F64, NULL), ce = 0;
    double *loss = golden_read(&g, losses, FM_F64, &batches);
    int64_t *tokens = golden_read(&g, "rank.tokens", FM_I64, NULL);
    double error = ranked_error(ranking.scores, want, experts, ranking.I);
    for (size_t b = 0; b < batches; b++)
        ce += loss[b] / (double)batches;
    printf("%s, %s, batches of %d: scores off by %.2g, loss by %.2g\n", model, device, batch, error,
           fabs(report->ce - ce));
    assert_true(error <= 1e-4);
    assert_true(fabs(report->ce - ce) <= 1e-5 * ce);
    assert_int_equal(report->batches, batches);
    assert_memory_equal(ranking.tokens, tokens, sizeof(int64_t) * (size_t)experts);
    if (batch == 1)
        assert_order(&ranking, &g);
    fm_ranking_release(&ranking);
    free(want);
    free(loss);
    free(tokens);
    golden_close(&g);
}

static void assert_all_golden(const char *device)
{
    for (size_t i = 0; i < MODELS; i++)
        for (int batch = 1; batch <= 2; batch++) {
            struct runs r;
            struct fm_rank_report report = {0};
            assert_golden(&r, odd_models[i], device, batch, &report);
            fm_rank_report_release(&report);
        }
}

TEST(scores_are_the_golden_ones)
{
    assert_all_golden("ref");
}

TEST(an_unreached_expert_is_reported)
{
    struct runs r;
    struct fm_rank_report report = {0};
    assert_golden(&r, "odd-mixtral", "cpu", 1, &report);
    assert_int_equal(report.coverage.unreached, 1);
    assert_int_equal(report.coverage.unreached_at[0], 1);
    assert_int_equal(report.coverage.unreached_at[1], 4);
    assert_int_equal(r.warnings, 1);
    assert_non_null(strstr(r.text, "1 of 15 experts"));
    fm_rank_report_release(&report);
}

TEST(scores_of_the_fast_table_are_the_golden_ones)
{
    assert_all_golden("cpu");
}

/* Scores of the trained model on eight sequences, in batches of `batch`. */
static void assert_trained(int batch, const char *scores)
{
    struct golden g;
    struct runs r;
    struct fm_ranking ranking;
    struct fm_rank_report report = {0};
    size_t n;
    uint16_t word[4096];
    golden_open(&g, "golden/tiny-mixtral/golden.safetensors");
    int32_t *ids = golden_read(&g, "ids", FM_I32, &n);
    double *want = golden_read(&g, scores, FM_F64, NULL);
    assert_true(n == 8 * 128);
    for (size_t i = 0; i < n; i++)
        word[i] = (uint16_t)ids[i];
    scratch_write("tiny.u16", word, n * sizeof *word);
    runs_init(&r, NULL, "tiny.fm");
    r.run.inputs.model = "golden/tiny-mixtral";
    r.run.inputs.tokens[0].path = runs_path(r.tokens, "tiny.u16");
    r.run.inputs.seq_len = 128;
    r.run.machine.device = "cpu";
    r.run.inputs.batch = batch;
    rank_to(&r, FM_ORDER_SCORE, &report);
    ranked_read(&ranking, "tiny.fm");
    double error = ranked_error(ranking.scores, want, 4 * 8, 256);
    printf("trained model, batches of %d: scores off by %.2g\n", batch, error);
    assert_true(error <= 1e-4);
    fm_rank_report_release(&report);
    fm_ranking_release(&ranking);
    free(ids);
    free(want);
    golden_close(&g);
}

TEST(scores_of_the_trained_model_are_the_golden_ones)
{
    assert_trained(1, "rank1.scores");
    assert_trained(4, "rank4.scores");
}

TEST(quality_of_the_full_model_is_the_golden_loss)
{
    struct golden g;
    struct runs r;
    struct fm_model *model = NULL;
    const struct fm_ops *ops = NULL;
    struct fm_calib held;
    struct fm_quality quality[2];
    uint32_t widths[2][4 * 8];
    golden_open(&g, "golden/tiny-mixtral/golden.safetensors");
    double *ce = golden_read(&g, "heldout.ce", FM_F64, NULL);
    runs_init(&r, NULL, "none");
    r.run.inputs.eval_tokens[0] = "golden/tiny-mixtral/heldout.npy";
    r.run.inputs.seq_len = 128;
    for (int x = 0; x < 4 * 8; x++) {
        widths[0][x] = 256;
        widths[1][x] = 128;
    }
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    assert_ok(fm_model_open(&model, "golden/tiny-mixtral", 1 << 26, &err));
    assert_ok(fm_calib_open(&held, &r.run, fm_model_config(model), true, &err));
    fm_model_use(model, ops);
    struct fm_quality_subject subject = {
        .model = model, .held = &held, .masks = 2, .widths = widths[0]};
    assert_ok(fm_quality_measure(quality, &subject, &r.run, &err));
    printf("loss %.7f, golden %.7f; at half width %.4f\n", quality[0].ce, *ce, quality[1].ce);
    assert_true(fabs(quality[0].ce - *ce) <= 1e-5 * *ce);
    assert_true(quality[0].kl == 0 && quality[0].agree == 1);
    assert_int_equal(quality[0].positions, 32 * 127);
    /* Without ranking, half the channels are not enough. */
    assert_true(quality[1].ce > quality[0].ce + 0.1 && quality[1].kl > 0.1);
    fm_calib_close(&held);
    fm_model_close(model);
    free(ce);
    golden_close(&g);
}

/* Losses are the same without an original, relative to the full model, and relative to a checkpoint
 * that is opened separately; so are divergences in the last two cases. */
TEST(an_original_elsewhere_compares_as_the_full_model_does)
{
    struct runs r;
    struct fm_model *model = NULL;
    struct fm_quality_original original = {0};
    const struct fm_ops *ops = NULL;
    struct fm_calib held;
    struct fm_quality beside[2], alone[2], apart[2], itself;
    uint32_t widths[2][4 * 8];
    runs_init(&r, NULL, "none");
    r.run.inputs.eval_tokens[0] = "golden/tiny-mixtral/heldout.npy";
    r.run.inputs.seq_len = 32;
    r.run.inputs.max_eval_tokens = 1024;
    for (int x = 0; x < 4 * 8; x++) {
        widths[0][x] = 256;
        widths[1][x] = 128;
    }
    assert_ok(fm_ops_cpu(&ops, FM_PRECISION_F32, &err));
    assert_ok(fm_model_open(&model, "golden/tiny-mixtral", 1 << 26, &err));
    assert_ok(fm_model_open(&original.model, "golden/tiny-mixtral", 1 << 24, &err));
    assert_ok(fm_calib_open(&held, &r.run, fm_model_config(model), true, &err));
    fm_model_use(model, ops);
    fm_model_use(original.model, ops);
    struct fm_quality_subject subject = {
        .model = model, .held = &held, .masks = 2, .widths = widths[0]};
    assert_ok(fm_quality_measure(beside, &subject, &r.run, &err));
    subject.uncompared = true;
    assert_ok(fm_quality_measure(alone, &subject, &r.run, &err));
    subject.original = &original;
    assert_ok(fm_quality_measure(apart, &subject, &r.run, &err));
    for (int i = 0; i < 2; i++) {
        assert_true(apart[i].ce == beside[i].ce && alone[i].ce == beside[i].ce);
        assert_true(apart[i].kl == beside[i].kl && apart[i].agree == beside[i].agree);
        assert_true(alone[i].kl == 0 && alone[i].agree == 0);
    }
    assert_true(original.quality.ce == beside[0].ce && apart[1].kl > 0.1 && apart[1].agree < 1);
    /* Without masks. */
    subject.widths = NULL;
    subject.masks = 1;
    assert_ok(fm_quality_measure(&itself, &subject, &r.run, &err));
    assert_true(itself.ce == beside[0].ce && itself.kl == 0 && itself.agree == 1);
    fm_calib_close(&held);
    fm_quality_original_release(&original);
    fm_model_close(original.model);
    fm_model_close(model);
}

/* Logits (1, T, V) of one sequence. */
static float *logits_of(struct fm_model *model, const struct fm_ops *ops, const int32_t *ids, int T)
{
    struct fm_err err = {0};
    struct fm_sweep *sweep = NULL;
    struct fm_measure measure;
    struct fm_batch batch = {ids, 1, T};
    struct fm_lane lane = {.teacher = -1, .ce = 1};
    struct fm_sweep_options options = {.memory = 1 << 24};
    size_t n = (size_t)T * (size_t)fm_model_config(model)->V;
    struct fm_sweep_taps taps = {.lane = 0, .logits = calloc(n, sizeof(float))};
    assert_ok(fm_sweep_new(&sweep, model, ops, 1, T, T, 1, &options, &err));
    fm_sweep_tap(sweep, &taps);
    assert_ok(fm_sweep_run(sweep, &batch, 1, &lane, 1, NULL, &measure, NULL, &err));
    fm_sweep_free(sweep);
    return taps.logits;
}

/* KL(softmax(to) || softmax(from)), both (V). */
static double divergence(const float *from, const float *to, int V)
{
    double all_from = 0, all_to = 0, kl = 0;
    for (int v = 0; v < V; v++) {
        all_from += exp(from[v]);
        all_to += exp(to[v]);
    }
    for (int v = 0; v < V; v++)
        kl += exp(to[v]) / all_to * (to[v] - log(all_to) - from[v] + log(all_from));
    return kl;
}

/* Models of two families and widths, each measured against the other as its original: the figures
 * must follow from their logits. */
TEST(an_original_may_be_of_another_shape)
{
    struct runs r;
    static const char *const path[] = {"golden/odd-mixtral", "golden/odd-glm4"};
    struct fm_model *model[2];
    float *logits[2];
    const struct fm_ops *ops = fm_ops_ref();
    struct fm_calib held;
    struct fm_quality q;
    int32_t ids[8];
    runs_init(&r, NULL, "none");
    r.run.inputs.eval_tokens[0] = "golden/odd-mixtral/tokens.npy";
    r.run.inputs.seq_len = 8;
    r.run.inputs.max_eval_tokens = 8;
    for (int i = 0; i < 2; i++)
        assert_ok(fm_model_open(&model[i], path[i], 1 << 24, &err));
    int V = fm_model_config(model[0])->V;
    assert_ok(fm_calib_open(&held, &r.run, fm_model_config(model[0]), true, &err));
    assert_int_equal(held.count, 1);
    assert_ok(fm_calib_read(&held, 0, 1, ids, &err));
    for (int i = 0; i < 2; i++)
        logits[i] = logits_of(model[i], ops, ids, 8);
    for (int i = 0; i < 2; i++) {
        struct fm_quality_original other = {.model = model[!i]};
        struct fm_quality_subject subject = {
            .model = model[i], .held = &held, .masks = 1, .original = &other};
        double want = 0;
        fm_model_use(model[0], ops);
        fm_model_use(model[1], ops);
        assert_ok(fm_quality_measure(&q, &subject, &r.run, &err));
        for (int t = 0; t < 7; t++)
            want += divergence(logits[i] + t * V, logits[!i] + t * V, V) / 7;
        assert_true(want > 1 && fabs(q.kl - want) < 1e-5 * want);
        assert_true(fabs(q.ce - other.quality.ce) > 0.01);
        fm_quality_original_release(&other);
    }
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        fm_model_close(model[i]);
    }
    fm_calib_close(&held);
}

/* ---- values of every token, against plain loops over the logits of both models ---- */

struct plain {
    double ce[64], other[64], kl[64], change[64];
    int same, near, n;
};

/* -log softmax(logits)[at]. */
static double loss_at(const float *logits, int V, int at)
{
    double all = 0;
    for (int v = 0; v < V; v++)
        all += exp((double)logits[v]);
    return log(all) - logits[at];
}

/* The number of logits that are larger than that of `at`, or equal with a lower index. */
static int place_of(const float *logits, int V, int at)
{
    int n = 0;
    for (int v = 0; v < V; v++)
        n += logits[v] > logits[at] || (logits[v] == logits[at] && v < at);
    return n;
}

static void add_plain(struct plain *p, const float *ours, const float *theirs, int V, int target)
{
    p->ce[p->n] = loss_at(ours, V, target);
    p->other[p->n] = loss_at(theirs, V, target);
    p->kl[p->n] = divergence(ours, theirs, V);
    p->change[p->n] = exp(-p->ce[p->n]) - exp(-p->other[p->n]);
    for (int v = 0; v < V; v++) {
        p->same += place_of(ours, V, v) == 0 && place_of(theirs, V, v) == 0;
        p->near += place_of(ours, V, v) < 5 && place_of(theirs, V, v) < 5;
    }
    p->n++;
}

static int rising(const void *a, const void *b)
{
    return *(const double *)a < *(const double *)b ? -1 : *(const double *)a > *(const double *)b;
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

/* Half the width of a 95 % interval, from the means of equal groups; t is Student's quantile. */
static double half_of(const double *x, int groups, int each, double t)
{
    double mean = mean_of(x, groups * each), squares = 0;
    for (int g = 0; g < groups; g++) {
        double off = mean_of(x + g * each, each) - mean;
        squares += off * off;
    }
    return t * sqrt(squares / (groups - 1) / groups);
}

static void assert_close(double a, double b)
{
    if (!(fabs(a - b) <= 1e-5 * fabs(b) + 2e-6))
        fail_msg("%.9g, not %.9g", a, b);
}

/* A second implementation of percentiles: the value at rank 1 + p (n - 1). */
static void assert_percentiles(const double at[FM_SPREAD_AT], double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, rising);
    assert_close(at[0], x[0]);
    assert_close(at[FM_SPREAD_AT - 1], x[n - 1]);
    assert_close(at[FM_SPREAD_MEDIAN], n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]));
    for (int i = 1; i < FM_SPREAD_AT - 1; i++) {
        double rank = fm_spread_at[i] * (n - 1), whole = floor(rank);
        int below = (int)whole;
        assert_close(at[i], x[below] + (rank - whole) * (x[below + 1] - x[below]));
    }
}

enum { TOKENS_T = 8, TOKENS_S = 4 };

/* Compare two models on four sequences, and check the values of every token against plain loops.
 * `memory` is in bytes. */
static void compare_tokens(struct fm_spread *got, struct fm_quality *q, uint64_t memory)
{
    struct runs r;
    struct fm_err err = {0};
    static const char *const path[] = {"golden/odd-mixtral", "golden/odd-glm4"};
    struct fm_model *model[2];
    const struct fm_ops *ops = fm_ops_ref();
    struct fm_calib held;
    int32_t ids[TOKENS_S][TOKENS_T];
    struct plain p = {0};
    runs_init(&r, NULL, "none");
    r.run.inputs.eval_tokens[0] = "golden/odd-mixtral/tokens.npy";
    r.run.inputs.seq_len = TOKENS_T;
    r.run.inputs.max_eval_tokens = TOKENS_S * TOKENS_T;
    r.run.machine.memory = memory;
    for (int i = 0; i < 2; i++)
        assert_ok(fm_model_open(&model[i], path[i], 1 << 24, &err));
    int V = fm_model_config(model[0])->V;
    assert_ok(fm_calib_open(&held, &r.run, fm_model_config(model[0]), true, &err));
    assert_int_equal(held.count, TOKENS_S);
    assert_ok(fm_calib_read(&held, 0, TOKENS_S, ids[0], &err));
    for (int s = 0; s < TOKENS_S; s++) {
        float *logits[2];
        for (int i = 0; i < 2; i++)
            logits[i] = logits_of(model[i], ops, ids[s], TOKENS_T);
        for (int t = 0; t < TOKENS_T - 1; t++)
            add_plain(&p, logits[0] + t * V, logits[1] + t * V, V, ids[s][t + 1]);
        free(logits[0]);
        free(logits[1]);
    }
    struct fm_quality_original other = {.model = model[1]};
    struct fm_quality_detail detail = {.spread = got};
    struct fm_quality_subject subject = {
        .model = model[0], .held = &held, .masks = 1, .detail = &detail, .original = &other};
    fm_model_use(model[0], ops);
    fm_model_use(model[1], ops);
    assert_ok(fm_quality_measure(q, &subject, &r.run, &err));
    fm_quality_original_release(&other);
    int each = TOKENS_T - 1;
    assert_int_equal(p.n, TOKENS_S * each);
    assert_int_equal(q->positions, p.n);
    assert_close(q->ce, mean_of(p.ce, p.n));
    assert_close(q->kl, mean_of(p.kl, p.n));
    assert_close(q->agree, (double)p.same / p.n);
    assert_close(other.quality.ce, mean_of(p.other, p.n));
    assert_close(got->top5, p.near / 5.0 / p.n);
    assert_true(p.near > 0 && p.near < 5 * p.n);
    assert_close(got->ce_half, half_of(p.ce, TOKENS_S, each, 3.18245));
    assert_close(got->kl_half, half_of(p.kl, TOKENS_S, each, 3.18245));
    assert_close(other.spread.ce_half, half_of(p.other, TOKENS_S, each, 3.18245));
    assert_false(other.spread.compared);
    assert_close(got->change, mean_of(p.change, p.n));
    double squares = 0;
    for (int i = 0; i < p.n; i++)
        squares += p.change[i] * p.change[i];
    assert_close(got->change_rms, sqrt(squares / p.n));
    assert_percentiles(got->kl_at, p.kl, p.n);
    assert_percentiles(got->change_at, p.change, p.n);
    fm_calib_close(&held);
    for (int i = 0; i < 2; i++)
        fm_model_close(model[i]);
}

TEST(figures_of_tokens_are_those_of_the_logits)
{
    struct fm_spread all, little;
    struct fm_quality q[2];
    compare_tokens(&all, &q[0], 1 << 26);
    compare_tokens(&little, &q[1], 1); /* boundaries are on disk */
    assert_memory_equal(&little, &all, sizeof all);
}

TEST(what_is_held_out_is_a_share_of_the_tokens)
{
    assert_int_equal(fm_quality_held_out(32, 128), 16);
    assert_int_equal(fm_quality_held_out(128, 512), 16);  /* 8,192 of 65,536 tokens */
    assert_int_equal(fm_quality_held_out(32, 2048), 4);   /* the same */
    assert_int_equal(fm_quality_held_out(128, 2048), 16); /* an eighth */
    assert_int_equal(fm_quality_held_out(96, 2048), 12);
    assert_int_equal(fm_quality_held_out(4, 16384), 2);
    assert_int_equal(fm_quality_held_out(1 << 30, 1024), 16);
}

TEST(the_original_order_can_be_kept)
{
    struct runs r;
    struct fm_ranking ranking;
    struct fm_rank_report report = {0};
    runs_init(&r, NULL, "original.fm");
    rank_to(&r, FM_ORDER_ORIGINAL, &report);
    ranked_read(&ranking, "original.fm");
    for (int i = 0; i < CHANNELS; i++)
        assert_int_equal(ranking.order[i], i % I);
    assert_true(ranking.scores[0] > 0);
    fm_ranking_release(&ranking);
    fm_rank_report_release(&report);
}

/* Two threads, little memory: the same bytes. */
TEST(threads_and_memory_change_nothing)
{
    struct runs r;
    struct fm_rank_report report = {0};
    runs_init(&r, NULL, "one.fm");
    r.run.machine.device = "cpu";
    rank_to(&r, FM_ORDER_SCORE, &report);
    fm_rank_report_release(&report);
    runs_init(&r, NULL, "two.fm");
    r.run.machine.device = "cpu";
    r.run.machine.memory = 64 << 10;
    assert_ok(fm_pool_start(2, &err));
    rank_to(&r, FM_ORDER_SCORE, &report);
    fm_pool_stop();
    fm_rank_report_release(&report);
    assert_true(runs_same("one.fm", "two.fm"));
}

TEST(a_stopped_run_goes_on)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "straight.fm");
    runs_tokens(&r, 40, 11);
    rank_to(&r, FM_ORDER_SCORE, &report);
    fm_rank_report_release(&report);
    runs_init(&r, NULL, "resumed.fm");
    runs_tokens(&r, 40, 11);
    runs_whole(&r);
    r.run.outputs.state = runs_path(r.state, "rank.state");
    r.countdown = 1; /* before the second of three groups */
    assert_int_equal(fm_rank(&r.run, &options, NULL, &report, &err), FM_ESAVED);
    fm_rank_report_release(&report);
    assert_int_equal(access(r.run.outputs.state, F_OK), 0);
    assert_int_equal(access(r.run.outputs.path, F_OK), -1);
    /* The state is for another batch size. */
    r.stop = 0;
    r.run.inputs.batch = 2;
    assert_int_equal(fm_rank(&r.run, &options, NULL, &report, &err), FM_ECONFIG);
    fm_rank_report_release(&report);
    r.run.inputs.batch = 0;
    rank_to(&r, FM_ORDER_SCORE, &report);
    assert_int_equal(report.resumed, 16);
    fm_rank_report_release(&report);
    assert_int_equal(access(r.run.outputs.state, F_OK), -1);
    assert_true(runs_same("straight.fm", "resumed.fm"));
}

static atomic_int stop_now;

static void on_alarm(int signal_number)
{
    stop_now = signal_number;
}

/* Whenever the signal arrives, even inside a group, no batch is counted twice. */
TEST(a_run_stopped_at_any_moment_goes_on)
{
    enum { MOMENTS = 24 };
    struct runs r;
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    int stopped = 0;
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "straight.fm");
    runs_tokens(&r, 16, 11); /* one group */
    rank_to(&r, FM_ORDER_SCORE, &report);
    int moment = (int)(report.seconds * 1e6 / MOMENTS);
    fm_rank_report_release(&report);
    signal(SIGALRM, on_alarm);
    for (int i = 1; i <= MOMENTS; i++) {
        runs_init(&r, NULL, "resumed.fm");
        runs_tokens(&r, 16, 11);
        runs_whole(&r);
        r.run.outputs.state = runs_path(r.state, "rank.state");
        r.run.stop = &stop_now;
        stop_now = 0;
        long us = 1 + (long)i * moment;
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {us / 1000000, us % 1000000}}, NULL);
        int rc = fm_rank(&r.run, &options, NULL, &report, &err);
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        assert_true(rc == FM_OK || rc == FM_ESAVED);
        fm_rank_report_release(&report);
        stop_now = 0;
        if (rc == FM_ESAVED) {
            rank_to(&r, FM_ORDER_SCORE, &report);
            fm_rank_report_release(&report);
            stopped++;
        }
        assert_true(runs_same("straight.fm", "resumed.fm"));
    }
    assert_true(stopped > 0);
}

TEST(what_cannot_be_ranked_is_refused)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "refused.fm");
    runs_whole(&r);
    r.run.inputs.batch = 7;
    assert_fails(fm_rank(&r.run, &options, NULL, &report, &err), FM_EUSAGE, "only 6 sequences");
    fm_rank_report_release(&report);
    r.run.inputs.batch = 4;
    rank_to(&r, FM_ORDER_SCORE, &report);
    assert_int_equal(report.dropped, 2);
    fm_rank_report_release(&report);
    /* The error is reported before the work, which may take hours. */
    r.run.outputs.force = false;
    err = (struct fm_err){0};
    assert_int_equal(fm_rank(&r.run, &options, NULL, &report, &err), FM_ECREATE);
    fm_rank_report_release(&report);
}

TEST(a_plan_counts_sweeps_and_products)
{
    struct runs r;
    struct fm_rank_options options;
    struct fm_estimate plan;
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "plan.fm");
    runs_whole(&r);
    assert_ok(fm_rank(&r.run, &options, &plan, NULL, &err));
    assert_int_equal(plan.sweeps, 1);
    assert_int_equal(plan.tokens, 6 * 23);
    assert_true(plan.flops > 1e6 && plan.forecast.rate_least > 0 &&
                plan.forecast.seconds_least > 0);
    assert_true(plan.values * 2 == (double)plan.read && plan.forecast.loading > 0);
    double expected = plan.flops / plan.forecast.rate_most * 4 / 3 + plan.forecast.loading;
    assert_true(fabs(plan.forecast.seconds_least - expected) < 1e-6 * expected);
    assert_true(plan.disk > CHANNELS * 12 && plan.memory > 0);
    assert_int_equal(access(r.run.outputs.path, F_OK), -1);
}

/* fm_alloc clears the order of channels, so that it takes memory during the sweep already. */
TEST(a_plan_counts_the_memory_of_the_ranking)
{
    struct runs r;
    struct fm_model *model;
    struct fm_rank_options options;
    struct fm_estimate plan, alone = {0};
    enum { SEQUENCES = 6, T = 23 };
    const struct fm_estimate_sweep sweep = {.count = 1,
                                            .rows = SEQUENCES * T,
                                            .T = T,
                                            .lanes = 1,
                                            .backward = 1,
                                            .scores = true,
                                            .kept = 1};
    fm_rank_defaults(&options);
    runs_init(&r, NULL, "plan.fm");
    runs_whole(&r);
    r.run.inputs.batch = SEQUENCES;
    assert_ok(fm_rank(&r.run, &options, &plan, NULL, &err));
    assert_ok(fm_model_open(&model, RUNS_MODEL, r.run.machine.memory, &err));
    fm_estimate_add(&alone, model, &sweep, r.run.machine.memory);
    fm_model_close(model);
    uint64_t sums = (2 * CHANNELS + E * I) * sizeof(double), order = CHANNELS * sizeof(int32_t);
    assert_int_equal(plan.memory, alone.memory + sums + order);
}

/* Progress of a run of 20 batches in groups of 16. */
struct watched {
    uint64_t done; /* as in the last report */
    int reports, parts;
    double first, last; /* units beyond `done`: in the group's first call, and in its last */
};

static void note_report(void *self, const char *stage, uint64_t done, uint64_t total,
                        const char *unit)
{
    struct watched *w = self;
    assert_string_equal(stage, "rank");
    assert_string_equal(unit, "batches");
    assert_int_equal(total, 20);
    if (w->reports++) /* the parts of a group add up to its batches */
        assert_true(fabs(w->last - (double)(done - w->done)) < 1e-9 * w->last);
    w->done = done;
    w->first = w->last = 0;
}

static void note_part(void *self, double units)
{
    struct watched *w = self;
    assert_true(units > w->last);
    w->parts++;
    if (w->last == 0) {
        w->first = units;
        assert_true(units < (w->done == 0 ? 16 : 4) / 4);
    }
    w->last = units;
}

TEST(progress_counts_parts_of_a_group)
{
    struct runs r;
    struct fm_rank_report report = {0};
    struct watched w = {0};
    runs_init(&r, NULL, "watched.fm");
    runs_tokens(&r, 20, 11);
    r.run.progress = (struct fm_progress){.report = note_report, .within = note_part, .self = &w};
    rank_to(&r, FM_ORDER_SCORE, &report);
    assert_int_equal(w.reports, 3);
    assert_int_equal(w.done, 20);
    /* In both groups: a block in every layer and direction, and every batch in the LM head. */
    assert_int_equal(w.parts, 2 * 2 * L + 20);
    fm_rank_report_release(&report);
}

TEST_MAIN(NULL, NULL)
