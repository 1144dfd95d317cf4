/* fm-bench kernels: shapes, masks, and one whole small measurement. */
#include <math.h>

#include "lib/bench/kernelbench.h"
#include "lib/bench/kernelcase.h"
#include "tests/unit/test.h"

static const struct fm_decimals shares = {.count = 2, .at = {{3, 10}, {6, 10}}};
static const struct fm_kernelbench_options small = {.shape = "40,60,6,2",
                                                    .tokens = (const int[]){1, 33, 0},
                                                    .budgets = &shares,
                                                    .dtype = "f32",
                                                    .repeat = 3,
                                                    .peak = 1e9};

TEST(shapes_are_names_or_four_numbers)
{
    static const char *const bad[] = {"", "mixtral", "1,2,3", "1,2,3,4", "8,8,4,0", "8,8,4,2,1"};
    struct fm_kernelbench b;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_kernelbench_options o = small;
        o.shape = bad[i];
        assert_int_equal(fm_kernelbench_run(&o, true, &b, &err), FM_EUSAGE);
        fm_kernelbench_release(&b);
    }
    struct fm_kernelbench_options o = small;
    o.shape = "mixtral-8x7b";
    o.dtype = "bf16";
    assert_ok(fm_kernelbench_run(&o, true, &b, &err));
    assert_int_equal(b.bytes, 3ull * 2 * 8 * 4096 * 14336);
    assert_int_equal(b.rows, 0);
    fm_kernelbench_release(&b);
}

TEST(invalid_lists_are_refused)
{
    static const char *const budgets[] = {"0.4,0.2", "0.95", "0.2,0.2", "all"};
    struct fm_kernelbench b;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct fm_kernelbench_options o = small;
        struct fm_decimals list;
        assert_true(fm_decimals_parse(&list, budgets[i]));
        o.budgets = &list;
        assert_int_equal(fm_kernelbench_run(&o, true, &b, &err), FM_EUSAGE);
        fm_kernelbench_release(&b);
    }
}

TEST(masks_mix_widths_and_remove_what_was_asked)
{
    struct fm_kernelcase c = {0};
    assert_ok(fm_kernelcase_shape(&c, &small, &err));
    assert_int_equal(c.layer.B, 3);
    assert_true(c.share[0] == 0 && c.share[1] >= 0.3 && c.share[1] < 0.35 && c.share[2] >= 0.6);
    int distinct = 0;
    for (int e = 0; e < 6; e++) {
        assert_int_equal(c.widths[e], 60);
        assert_true(c.widths[12 + e] >= 6 && c.widths[12 + e] <= 60);
        distinct += e > 0 && c.widths[12 + e] != c.widths[12];
    }
    assert_true(distinct > 0); /* widths are mixed */
    fm_kernelcase_release(&c);
}

TEST(every_case_is_timed_and_right)
{
    for (int d = 0; d < 3; d++) {
        struct fm_kernelbench_options o = small;
        struct fm_kernelbench b;
        o.dtype = ((const char *[]){"f32", "bf16", "f16"})[d];
        o.peak = d == 0 ? 0 : small.peak; /* 0: it is measured */
        assert_ok(fm_kernelbench_run(&o, false, &b, &err));
        assert_int_equal(b.rows, 2 * 3 * 3);
        assert_true(b.bandwidth >= 0 && b.peak > 0 && (b.peak == small.peak) == (d > 0));
        for (int i = 0; i < b.rows; i++) {
            const struct fm_kernelbench_row *r = &b.row[i];
            bool ours = strcmp(r->kernel, "cpu") == 0, naive = strcmp(r->kernel, "naive") == 0;
            bool runs = ours || (naive && d == 0); /* oneDNN has bf16 on some machines only */
            assert_true(!runs || r->seconds > 0);
            assert_true(!runs || r->error < (d == 0 ? 1e-6 : 0.01));
            assert_true(!naive || r->seconds == 0 || r->error < (d == 0 ? 1e-6 : 0.01));
            assert_true(ours || naive || isnan(r->error));
            assert_true(r->ideal >= 1 && r->flops > 0 && r->bytes > 0);
            assert_true(r->budget > 0 || r->speedup == 1 || r->seconds == 0);
        }
        fm_kernelbench_release(&b);
    }
}

/* 6 H k for each routed row of an expert of width k, computed again here for 33 tokens. */
TEST(work_is_that_of_the_routed_rows)
{
    struct fm_kernelcase c = {.tokens_max = 33};
    struct fm_kernelbench b;
    assert_ok(fm_kernelbench_run(&small, false, &b, &err));
    assert_ok(fm_kernelcase_shape(&c, &small, &err));
    assert_ok(fm_kernelcase_fill(&c, &err));
    double flops[3] = {0};
    for (int i = 0; i < 66; i++)
        for (int m = 0; m < 3; m++)
            flops[m] += 6.0 * 40 * c.widths[6 * m + c.ids[i]];
    for (int m = 0; m < 3; m++) {
        assert_true(b.row[15 + m].tokens == 33 && b.row[15 + m].flops == flops[m]);
        assert_true(b.row[15 + m].ideal == flops[0] / flops[m]);
    }
    fm_kernelcase_release(&c);
    fm_kernelbench_release(&b);
}

TEST_MAIN(start_pool, stop_pool)
