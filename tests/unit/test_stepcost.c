/* The cost of steps, from known gradients. */
#include <math.h>

#include "lib/base/rng.h"
#include "lib/masks/stepcost.h"
#include "tests/unit/test.h"

enum { X = 6, A = 4, LANES = FM_STEPCOST_LANES };

static struct fm_actions actions; /* 10 20 30 40 */

static int set_up(void **state)
{
    (void)state;
    struct fm_err err = {0};
    return fm_actions_parse(&actions, "0.25,0.5,0.75,1", 40, 1, &err);
}

static void make(struct fm_stepcost *w)
{
    struct fm_err err = {0};
    assert_ok(fm_stepcost_init(w, &actions, X, &err));
}

/* Removing range a of expert x costs 10 (x + 1) (A - a).  The gradient is minus half of that cost
 * with the range and minus 1.5 times the cost without it, plus `noise`. */
static double gradient(int x, int a, bool with, double noise, uint64_t draw)
{
    double cost = 10.0 * (x + 1) * (A - a);
    return -cost * (with ? 0.5 : 1.5) + noise * (fm_rng_uniform(3, FM_STREAM_BENCH, draw) - 0.5);
}

static void add_sweep(struct fm_stepcost *w, const uint32_t *widths, uint64_t sweep, double noise)
{
    struct fm_err err = {0};
    uint32_t around[LANES * X];
    double sums[LANES * X * 2 * A] = {0};
    fm_stepcost_draw(w, widths, around, 5, sweep);
    for (int s = 0; s < LANES; s++) {
        for (int x = 0; x < X; x++) {
            double *dz = sums + (s * X + x) * 2 * A;
            for (int a = 1; a < A; a++) {
                bool with = around[s * X + x] >= actions.width[a];
                uint64_t draw =
                    (((sweep * LANES) + (uint64_t)s) * X + (uint64_t)x) * A + (uint64_t)a;
                dz[a] = dz[a - 1] + gradient(x, a, with, noise, draw);
                dz[A + a] = 2.0 * (x + 1) * (A - a);
            }
        }
    }
    assert_ok(fm_stepcost_add(w, widths, around, sums, &err));
}

TEST(each_expert_goes_a_step_both_ways)
{
    struct fm_stepcost w;
    make(&w);
    const uint32_t widths[X] = {10, 20, 30, 40, 20, 30};
    uint32_t around[LANES * X];
    int lane_of_down[LANES] = {0};
    for (uint64_t sweep = 0; sweep < 50; sweep++) {
        fm_stepcost_draw(&w, widths, around, 5, sweep);
        for (int x = 0; x < X; x++) {
            int down = 0, up = 0;
            for (int s = 0; s < LANES; s++) {
                uint32_t to = around[s * X + x];
                down += to + 10 == widths[x];
                up += to == widths[x] + 10;
                lane_of_down[s] += to < widths[x];
                assert_true(to + 10 == widths[x] || to == widths[x] || to == widths[x] + 10);
            }
            assert_int_equal(down, widths[x] > 10);
            assert_int_equal(up, widths[x] < 40);
        }
    }
    for (int s = 0; s < LANES; s++)
        assert_true(lane_of_down[s] > 40);
    fm_stepcost_release(&w);
}

TEST(worth_is_the_mean_of_both_ends)
{
    struct fm_stepcost w;
    make(&w);
    const uint32_t widths[X] = {20, 20, 20, 30, 30, 30};
    for (uint64_t sweep = 0; sweep < 4; sweep++)
        add_sweep(&w, widths, sweep, 0);
    /* Ten channels in a range, and the squares are a fifth of the values. */
    assert_true(fabs(w.scale[FM_STEPCOST_RATIO] - 5) < 1e-9);
    for (int x = 0; x < X; x++)
        for (int a = x < 3 ? 1 : 2; a <= (x < 3 ? 2 : 3); a++)
            assert_true(fabs(fm_stepcost_of(&w, x, a) - (x + 1) * (A - a)) < 1e-9);
    /* Range 1 of the last expert was not measured; its square gives 3 * 6. */
    assert_true(isnan(w.value[5 * A + 1]));
    assert_true(fabs(fm_stepcost_of(&w, 5, 1) - 18) < 1e-9);
    fm_stepcost_release(&w);
}

/* The root-mean-square error of the costs of the next steps. */
static double error_of(const struct fm_stepcost *w, bool raw)
{
    double sum = 0;
    for (int x = 0; x < X; x++) {
        double d = (raw ? w->value[x * A + 2] / 10 : fm_stepcost_of(w, x, 2)) - (x + 1) * 2;
        sum += d * d;
    }
    return sqrt(sum / X);
}

TEST(noise_is_reduced)
{
    struct fm_stepcost w;
    const uint32_t widths[X] = {30, 30, 30, 30, 30, 30};
    double raw = 0, drawn = 0;
    for (uint64_t trial = 0; trial < 20; trial++) {
        make(&w);
        for (uint64_t sweep = 0; sweep < 8; sweep++)
            add_sweep(&w, widths, 100 * trial + sweep, 400);
        raw += error_of(&w, true);
        drawn += error_of(&w, false);
        assert_in_range((int)(100 * w.scale[FM_STEPCOST_TRUST]), 0, 95);
        fm_stepcost_release(&w);
    }
    assert_true(drawn < 0.8 * raw);
}

/* An expert's weight is four fifths of its tokens plus one fifth of an even share; its tokens count
 * as at least a twentieth of that share. */
TEST(experts_are_weighed_by_their_tokens)
{
    struct fm_stepcost w;
    const uint32_t widths[X] = {20, 20, 20, 20, 20, 20};
    const int64_t tokens[X] = {0, 30, 60, 0, 0, 0};
    const double want[X] = {4.8, 1, 0.9, 1, 1, 1};
    make(&w);
    add_sweep(&w, widths, 0, 0);
    add_sweep(&w, widths, 1, 0);
    fm_stepcost_temper(&w, tokens, 3);
    for (int x = 0; x < X; x++)
        assert_true(fabs(fm_stepcost_of(&w, x, 2) - want[x] * (x + 1) * 2) < 1e-9);
    fm_stepcost_release(&w);
}

TEST(the_least_worth_goes_first)
{
    struct fm_stepcost w;
    make(&w);
    uint32_t widths[X] = {30, 30, 30, 30, 30, 30};
    add_sweep(&w, widths, 0, 0);
    add_sweep(&w, widths, 1, 0);
    fm_stepcost_lower(&w, widths, 61);
    assert_int_equal(widths[0], 20);
    /* The second step of expert 0 is worth 3 and the first of expert 1 is worth 4. */
    fm_stepcost_lower(&w, widths, 75);
    assert_int_equal(widths[0], 10);
    assert_int_equal(widths[1], 30);
    fm_stepcost_lower(&w, widths, 1000);
    for (int x = 0; x < X; x++)
        assert_int_equal(widths[x], 10);
    fm_stepcost_release(&w);
}

TEST(pairs_gain_and_share_no_expert)
{
    struct fm_stepcost w;
    struct fm_stepcost_pair pair[X];
    make(&w);
    uint32_t widths[X] = {30, 30, 30, 30, 30, 30};
    add_sweep(&w, widths, 0, 0);
    /* A step down costs 2 (x + 1), and a step up is worth x + 1. */
    int pairs = fm_stepcost_pairs(&w, widths, pair, &err);
    assert_int_equal(pairs, 2);
    assert_int_equal(pair[0].down, 0);
    assert_int_equal(pair[0].up, 5);
    assert_int_equal(pair[1].down, 1);
    assert_int_equal(pair[1].up, 4);
    fm_stepcost_exchange(&w, widths, &pair[0]);
    assert_int_equal(widths[0], 20);
    assert_int_equal(widths[5], 40);
    fm_stepcost_release(&w);
}

TEST_MAIN(set_up, NULL)
