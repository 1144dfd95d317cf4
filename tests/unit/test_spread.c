/* Compare percentiles, intervals and agreement with numbers computed by hand. */
#include <math.h>

#include "lib/masks/spread.h"
#include "tests/unit/test.h"

TEST(a_percentile_is_between_two_values)
{
    const float x[] = {1, 2, 4, 8, 16};
    assert_true(fm_spread_percentile(x, 5, 0) == 1 && fm_spread_percentile(x, 5, 1) == 16);
    assert_true(fm_spread_percentile(x, 5, 0.5) == 4);
    assert_true(fabs(fm_spread_percentile(x, 5, 0.9) - 12.8) < 1e-6); /* 8 + 0.6 (16 - 8) */
    assert_true(fm_spread_percentile(x, 1, 0.999) == 1);
}

/* From tables of the t distribution. */
TEST(student_quantiles)
{
    const struct {
        int freedom;
        double t;
    } want[] = {{1, 12.706}, {2, 4.303},  {10, 2.228},  {11, 2.201},   {15, 2.131},
                {31, 2.040}, {60, 2.000}, {120, 1.980}, {1000, 1.962}, {1 << 30, 1.960}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_true(fabs(fm_spread_student(want[i].freedom) - want[i].t) < 0.0006);
    assert_true(isnan(fm_spread_student(0)));
}

/* Documents of 1, 2 and 3 tokens with sums 3, 2 and 7: the mean is 2, and the sums differ from 2
 * per token by 1, -2 and 1. */
TEST(an_interval_weighs_groups_by_their_tokens)
{
    const float ce[] = {3, 1, 1, 2, 2, 3}, kl[] = {1, 1, 1, 1, 1, 1};
    const size_t first[] = {0, 1, 3, 6};
    struct fm_token token[6];
    float sorted[6];
    struct fm_spread s;
    for (int i = 0; i < 6; i++)
        token[i] = (struct fm_token){ce[i], kl[i], (float)(i - 2), (uint8_t)(i % 3)};
    fm_spread_of(&s, token, first, 3, 2, true, sorted);
    assert_true(fabs(s.ce_half - 4.3026527 * sqrt(1.5 * 6) / 6) < 1e-6);
    assert_true(s.kl_half == 0 && s.kl_at[0] == 1 && s.kl_at[FM_SPREAD_AT - 1] == 1);
    assert_true(s.top5 == 0.5 && s.change == 0.5);
    assert_true(fabs(s.change_rms - sqrt(19 / 6.0)) < 1e-12);
    assert_true(s.change_at[FM_SPREAD_MEDIAN] == 0.5 && s.change_at[0] == -2);
    /* One group gives no interval. */
    fm_spread_of(&s, token, (const size_t[]){0, 6}, 1, 2, false, sorted);
    assert_true(isnan(s.ce_half));
}

/* Documents of 1, 2 and 3 tokens: the sums differ by 1, 0 and 5, the mean difference is 1, and the
 * distances from it are 0, -2 and 2.  Both models have losses that differ far more between the
 * documents. */
TEST(a_difference_is_paired_by_groups)
{
    const float ce[2][6] = {{10, 1, 1, 5, 6, 7}, {9, 0, 2, 4, 4, 5}};
    const size_t first[] = {0, 1, 3, 6};
    struct fm_spread_sums sums[2];
    struct fm_token token[6];
    for (int i = 0; i < 2; i++) {
        assert_ok(fm_spread_sums_init(&sums[i], 2, first, 3, &err));
        for (int t = 0; t < 6; t++)
            token[t] = (struct fm_token){.ce = ce[i][t]};
        fm_spread_sums_set(&sums[i], 1, token);
    }
    struct fm_spread_paired p = fm_spread_pair(&sums[0], 1, &sums[1], 1);
    assert_true(p.known && p.mean == 1);
    assert_true(fabs(p.error - sqrt(1.5 * 8) / 6) < 1e-12);
    p = fm_spread_pair(&sums[1], 1, &sums[1], 0); /* a model that was not set has losses of 0 */
    assert_true(p.mean == 4);
    fm_spread_sums_release(&sums[0]);
    fm_spread_sums_release(&sums[1]);
    assert_ok(fm_spread_sums_init(&sums[0], 2, (const size_t[]){0, 6}, 1, &err));
    p = fm_spread_pair(&sums[0], 0, &sums[0], 1);
    assert_true(p.known && p.mean == 0 && isnan(p.error));
    fm_spread_sums_release(&sums[0]);
}

TEST_MAIN(NULL, NULL)
