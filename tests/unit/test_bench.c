/* Test the measurements: a synthetic checkpoint that the suite itself reads, a meter that counts
 * calls and changes no result. */
#include <unistd.h>

#include "formats/text/tokens.h"
#include "lib/model/model.h"
#include "tests/measure/meter.h"
#include "tests/measure/synth.h"
#include "tests/measure/workdir.h"
#include "tests/unit/test.h"

TEST(a_shape_is_seven_numbers)
{
    struct fm_synth s;
    assert_ok(fm_synth_parse(&s, "96,37,5,2,3,97,23", 0, &err));
    assert_int_equal(s.C, 32);
    assert_int_equal(s.Q, 3);
    assert_int_equal(s.G, 3);
    const char *bad[] = {"",
                         "96",
                         "96,37,5,2,3,97",
                         "96,37,5,2,3,97,23,1",
                         "96,37,5,6,3,97,23",
                         "0,37,5,2,3,97,23",
                         "96,37,5,2,-3,97,23",
                         "97,37,5,2,3,97,23",
                         "moonlight"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fm_synth_parse(&s, bad[i], 0, &err), FM_EUSAGE);
}

TEST(a_synthetic_checkpoint_opens_as_a_model)
{
    struct fm_synth s;
    struct fm_workdir work;
    struct fm_run_options run = {0};
    struct fm_model *model = NULL;
    struct fm_tokens tokens;
    const struct fm_layer *layer;
    char path[4096];
    assert_ok(fm_synth_parse(&s, "96,37,5,2,3,97,23", 0, &err));
    assert_ok(fm_workdir_open(&work, NULL, &err));
    assert_ok(fm_synth_model(&s, fm_workdir_at(&work, "model", path), &run, &err));
    assert_ok(fm_model_open(&model, path, 1 << 20, &err));
    assert_int_equal(fm_model_config(model)->I, 37);
    assert_int_equal(fm_config_params(fm_model_config(model), NULL) * 2, fm_synth_bytes(&s));
    assert_ok(fm_model_layer(model, 2, -1, &layer, &err));
    assert_true(layer->input_norm[95] == 1.0f);
    fm_model_close(model);
    assert_ok(fm_synth_tokens(&s, 4, fm_workdir_at(&work, "t.npy", path), &err));
    assert_ok(fm_tokens_open(&tokens, path, &err));
    assert_int_equal(tokens.rows, 4);
    assert_int_equal(tokens.cols, 23);
    fm_tokens_close(&tokens);
    fm_workdir_close(&work);
    assert_int_not_equal(access(path, F_OK), 0);
}

/* Tasks of the outer loop have the label of the thread that opened it, and tasks of a loop inside a
 * task have the label that the task set, whichever thread runs them. */
static void note_label(void *arg, int i)
{
    (void)i;
    int *wrong = arg, now = fm_pool_label(0);
    __atomic_fetch_add(wrong, now != 8, __ATOMIC_RELAXED);
    fm_pool_label(now);
}

static void label_inner(void *arg, int i)
{
    (void)i;
    int *wrong = arg, before = fm_pool_label(8);
    __atomic_fetch_add(wrong, before != 7, __ATOMIC_RELAXED);
    fm_pool_for(50, note_label, wrong);
    assert_int_equal(fm_pool_label(before), 8);
}

TEST(tasks_have_the_label_of_the_task_that_opened_their_loop)
{
    for (int threads = 1; threads <= 4; threads += 3) {
        int wrong = 0;
        assert_ok(fm_pool_start(threads, &err));
        assert_int_equal(fm_pool_label(7), 0);
        fm_pool_for(20, label_inner, &wrong);
        assert_int_equal(fm_pool_label(0), 7);
        fm_pool_stop();
        assert_int_equal(wrong, 0);
    }
}

TEST(the_meter_counts_and_changes_nothing)
{
    const float A[] = {1, 2, 3, 4, 5, 6}, B[] = {1, 0, 2, 1, 0, 3};
    float want[4], got[4];
    const struct fm_ops *ref = fm_ops_ref(), *meter = fm_meter_begin(ref);
    struct fm_meter_stage stage[FM_METER_STAGES];
    ref->gemm(false, false, 2, 2, 3, 1, fm_f32(A), 3, fm_f32(B), 2, 0, want, 2);
    for (int i = 0; i < 7; i++)
        meter->gemm(false, false, 2, 2, 3, 1, fm_f32(A), 3, fm_f32(B), 2, 0, got, 2);
    assert_memory_equal(got, want, sizeof got);
    struct fm_meter_rest rest;
    assert_int_equal(fm_meter_end(stage, &rest), 1);
    assert_true(rest.other > 0 && rest.reading == 0);
    assert_string_equal(stage[0].name, "gemm");
    assert_int_equal(stage[0].calls, 7);
    assert_true(fm_meter_flops() == 7 * 2.0 * 2 * 2 * 3);
    assert_true(stage[0].flops == fm_meter_flops());
}

TEST_MAIN(NULL, NULL)
