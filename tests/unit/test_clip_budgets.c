/* libfm_clip on the CPU: one budget for a call or for each token, and switching between budgets. */
#include "tests/unit/clip.h"

KERNEL_TEST(budgets_per_token_equal_a_call_per_budget)
{
    for (size_t p = 0; p < 4; p++) {
        struct layer s = make_layer(FM_CLIP_BF16, 61, 140, 4);
        s.l.path = paths[p];
        struct call mixed = make_call(&s, 83, 2);
        int32_t *budgets = array(83, sizeof *budgets);
        for (int t = 0; t < 83; t++)
            budgets[t] = t * 7 % 5 % 3;
        mixed.c.budgets = budgets;
        *s.budget = 99;                          /* must not be read */
        struct call cut = copy_call(&s, &mixed); /* a few tokens at a time */
        cut.c.workspace_bytes = fm_clip_workspace_bytes(&s.l, 7, 2);
        if (run_once(&s, &mixed) && run_once(&s, &cut)) {
            expect_same(&s, &mixed, &cut);
            for (*s.budget = 0; *s.budget < 3; ++*s.budget) {
                struct call all = copy_call(&s, &mixed);
                all.c.budgets = NULL;
                assert_true(run_once(&s, &all));
                for (int i = 0; i < 83 * 61; i++)
                    if (budgets[i / 61] == *s.budget)
                        assert_true(out_at(&s, &all, i) == out_at(&s, &mixed, i));
            }
        }
        free_arrays();
    }
}

KERNEL_TEST(a_switch_is_one_number_of_any_type)
{
    struct layer s = make_layer(FM_CLIP_F32, 30, 80, 3);
    struct call want[3], c = make_call(&s, 11, 2);
    for (*s.budget = 0; *s.budget < 3; ++*s.budget) {
        want[*s.budget] = copy_call(&s, &c);
        assert_true(run_once(&s, &want[*s.budget]));
    }
    for (int type = FM_CLIP_F32; type <= FM_CLIP_I64; type++) {
        s.l.budget = array(1, 8);
        s.l.budget_type = type;
        struct fm_clip *clip = NULL;
        assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
        for (int b = 2; b >= 0; b--) {
            write_number((void *)(uintptr_t)s.l.budget, type, b);
            run(clip, &s, &c);
            expect_same(&s, &want[b], &c);
            assert_int_equal(fm_clip_status(clip, NULL), 0);
        }
        c.c.budget = array(1, 8); /* a call's own number takes precedence */
        c.c.budget_type = type;
        write_number((void *)(uintptr_t)c.c.budget, type, 2);
        run(clip, &s, &c);
        expect_same(&s, &want[2], &c);
        c.c.budget = NULL;
        c.c.budget_type = 0;
        fm_clip_release(clip);
    }
    free_arrays();
}

KERNEL_TEST(values_out_of_range_are_clamped_and_reported_once)
{
    struct layer s = make_layer(FM_CLIP_F32, 30, 80, 3);
    struct call a = make_call(&s, 11, 2), b = copy_call(&s, &a);
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    *s.budget = 2;
    run(clip, &s, &a);
    assert_int_equal(fm_clip_status(clip, NULL), 0);
    *s.budget = 3;
    run(clip, &s, &b);
    expect_same(&s, &a, &b);
    assert_int_equal(fm_clip_status(clip, NULL), FM_CLIP_FAULT_BUDGET);
    assert_int_equal(fm_clip_status(clip, NULL), 0);
    *s.budget = 0;
    run(clip, &s, &a);
    *s.budget = -7;
    s.widths[0] = s.cap[0] + 1;
    s.widths[1] = s.cap[1];
    run(clip, &s, &b);
    expect_same(&s, &a, &b);
    assert_int_equal(fm_clip_status(clip, NULL), FM_CLIP_FAULT_BUDGET | FM_CLIP_FAULT_WIDTH);
    s.widths[0] = -1;
    s.widths[1] = s.widths[2] = 0;
    run(clip, &s, &b);
    for (int i = 0; i < 11 * 30; i++)
        assert_true(out_at(&s, &b, i) == 0);
    fm_clip_release(clip);
    free_arrays();
}

KERNEL_TEST(a_float_is_rounded_to_a_budget)
{
    static const struct {
        float value;
        int32_t budget, faults;
    } cases[] = {{0.4f, 0, 0},
                 {0.6f, 1, 0},
                 {-0.4f, 0, 0},
                 {2.4f, 2, 0},
                 {2.6f, 2, FM_CLIP_FAULT_BUDGET},
                 {-0.6f, 0, FM_CLIP_FAULT_BUDGET},
                 {NAN, 0, FM_CLIP_FAULT_BUDGET},
                 {INFINITY, 2, FM_CLIP_FAULT_BUDGET}};
    struct layer s = make_layer(FM_CLIP_F32, 30, 80, 3);
    struct call want[3], c = make_call(&s, 11, 2);
    for (*s.budget = 0; *s.budget < 3; ++*s.budget) {
        want[*s.budget] = copy_call(&s, &c);
        assert_true(run_once(&s, &want[*s.budget]));
    }
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    c.c.budget_type = FM_CLIP_F32;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        c.c.budget = &cases[i].value;
        run(clip, &s, &c);
        expect_same(&s, &want[cases[i].budget], &c);
        assert_int_equal(fm_clip_status(clip, NULL), cases[i].faults);
    }
    fm_clip_release(clip);
    free_arrays();
}

TEST_MAIN(NULL, NULL)
