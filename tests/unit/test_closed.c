/* Compare closed experts with checkpoints without these experts (golden/baselines). */
#include "lib/block/pass.h"
#include "lib/engine/sweep.h"
#include "tests/unit/baselines.h"
#include "tests/unit/test.h"

/* (M, E) of the lane: 0, or closed if keep is 0. */
static float *close_experts(const int32_t *keep, size_t count)
{
    float *closed = malloc(count * sizeof *closed);
    for (size_t i = 0; i < count; i++)
        closed[i] = keep[i] ? 0 : FM_PASS_CLOSED;
    return closed;
}

static void assert_closed(const char *model, const struct fm_ops *ops)
{
    struct golden g, own;
    struct fm_err err = {0};
    struct fm_model *m = NULL;
    struct fm_sweep *sweep = NULL;
    struct fm_measure measure;
    char path[96];
    size_t experts;
    baselines_open(&g, model);
    snprintf(path, sizeof path, "%s/golden.safetensors", baselines_model);
    golden_open(&own, path);
    int32_t *ids = golden_read(&own, "ids", FM_I32, NULL);
    int S = (int)fm_safetensors_find(&own.st, "ids")->shape[0];
    int T = (int)fm_safetensors_find(&own.st, "ids")->shape[1];
    int32_t *keep = golden_read(&g, "keep", FM_I32, &experts);
    float *closed = close_experts(keep, experts);
    const struct fm_sweep_options options = {.memory = 1 << 30};
    assert_ok(fm_model_open(&m, baselines_model, 1 << 30, &err));
    assert_ok(fm_sweep_new(&sweep, m, ops, 1, S * T, T, 1, &options, &err));
    int64_t *counts = calloc(experts, sizeof *counts);
    struct fm_sweep_taps taps = {.logprob = calloc((size_t)(S * T), sizeof(float))};
    struct fm_batch batch = {ids, S, T};
    struct fm_lane lane = {.teacher = -1, .ce = 1, .closed = closed};
    fm_sweep_tap(sweep, &taps);
    assert_ok(fm_sweep_run(sweep, &batch, 1, &lane, 1, NULL, &measure, counts, &err));
    printf("%s, %s: ", model, ops->name);
    assert_true(golden_near(&g, "closed.logprob", taps.logprob, (size_t)(S * (T - 1)), 1e-4));
    int64_t sum = 0;
    for (size_t i = 0; i < experts; i++) {
        assert_true(keep[i] || counts[i] == 0);
        sum += counts[i];
    }
    const struct fm_config *c = fm_model_config(m);
    assert_int_equal(sum, (int64_t)c->M * S * T * c->K);
    fm_sweep_free(sweep);
    fm_model_close(m);
    free(taps.logprob);
    free(counts);
    free(closed);
    free(keep);
    free(ids);
    golden_close(&own);
    golden_close(&g);
}

TEST(closed_experts_are_as_if_removed)
{
    const struct fm_ops *cpu = NULL;
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    for (size_t i = 0; i < BASELINES; i++) {
        assert_closed(baselines_models[i], fm_ops_ref());
        assert_closed(baselines_models[i], cpu);
    }
}

TEST_MAIN(NULL, NULL)
