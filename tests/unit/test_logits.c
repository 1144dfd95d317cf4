/* Test the mathematics of learned masks without a model. */
#include <math.h>

#include "lib/base/rng.h"
#include "lib/masks/logits.h"
#include "tests/unit/golden.h"
#include "tests/unit/test.h"

enum { L = 3, E = 5, X = L * E, A = 4, N = X * A };

static struct fm_actions actions;
static struct fm_logits z;

static int start(void **state)
{
    (void)state;
    struct fm_err err = {0};
    if (fm_actions_parse(&actions, "0.1,0.4,0.7,1", 37, 1, &err) ||
        fm_logits_init(&z, &actions, X, &err))
        return -1;
    for (uint64_t i = 0; i < N; i++)
        z.alpha[i] = fm_rng_normal(3, FM_STREAM_BENCH, i);
    fm_logits_refresh(&z);
    fm_logits_clear(&z);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    fm_logits_release(&z);
    return 0;
}

static double load(int x)
{
    return 0.05 + 0.01 * x;
}

static double cost_of(void)
{
    double sum = 0;
    for (int x = 0; x < X; x++) {
        for (int a = 0; a < A; a++)
            sum += load(x) * z.p[x * A + a] * actions.width[a] / 37.0;
    }
    return sum;
}

static double entropy_of(void)
{
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum -= z.p[i] * log(z.p[i]);
    return sum / X;
}

/* Central differences of f against z.grad. */
static void assert_gradient(double (*f)(void), double factor)
{
    for (int i = 0; i < N; i++) {
        double alpha = z.alpha[i], h = 1e-5;
        z.alpha[i] = alpha + h;
        fm_logits_refresh(&z);
        double up = f();
        z.alpha[i] = alpha - h;
        fm_logits_refresh(&z);
        double down = f();
        z.alpha[i] = alpha;
        fm_logits_refresh(&z);
        double want = factor * (up - down) / (2 * h);
        /* the truncation error of order h^2, and rounding divided by h */
        assert_true(fabs(z.grad[i] - want) <= 1e-9 * (1 + fabs(want)));
    }
}

TEST_AROUND(cost_gradient_is_the_slope_of_the_cost, start, stop)
{
    double q[X];
    for (int x = 0; x < X; x++)
        q[x] = load(x);
    fm_logits_back_cost(&z, q, 0.7);
    assert_gradient(cost_of, 0.7);
}

TEST_AROUND(entropy_gradient_is_the_slope_of_the_entropy, start, stop)
{
    fm_logits_back_entropy(&z, 0.3);
    assert_gradient(entropy_of, -0.3);
}

static double last_dz[N];

/* The function that the straight-through estimator differentiates, which is linear in soft. */
static double surrogate(void)
{
    double sum = 0;
    uint32_t widths[X];
    fm_logits_sample(&z, widths, 0.8, 11, 5);
    for (int i = 0; i < N; i++)
        sum += z.soft[i] * last_dz[i];
    return sum;
}

TEST_AROUND(sample_gradient_goes_through_soft, start, stop)
{
    for (uint64_t i = 0; i < N; i++)
        last_dz[i] = fm_rng_normal(4, FM_STREAM_BENCH, i);
    uint32_t widths[X];
    fm_logits_sample(&z, widths, 0.8, 11, 5);
    fm_logits_back_sample(&z, last_dz, 0.8, 0.25);
    assert_gradient(surrogate, 0.25);
}

TEST_AROUND(golden_logit_gradients_are_met, start, stop)
{
    struct golden g;
    golden_open(&g, "golden/odd-mixtral/golden.safetensors");
    size_t n, three;
    float *alpha = golden_read(&g, "subnet.alpha", FM_F32, &n);
    float *soft = golden_read(&g, "subnet.soft", FM_F32, NULL);
    float *dz = golden_read(&g, "subnet.dz", FM_F32, NULL);
    float *share = golden_read(&g, "subnet.share", FM_F32, NULL);
    float *constants = golden_read(&g, "subnet.tau_lambda_beta", FM_F32, &three);
    assert_int_equal(n, N);
    assert_int_equal(three, 3);
    double wide[N], q[X];
    float got[N];
    for (int i = 0; i < N; i++) {
        z.alpha[i] = alpha[i];
        z.soft[i] = soft[i];
        wide[i] = dz[i];
    }
    for (int x = 0; x < X; x++)
        q[x] = share[x];
    fm_logits_refresh(&z);
    fm_logits_back_sample(&z, wide, constants[0], 1);
    for (int i = 0; i < N; i++)
        got[i] = (float)z.grad[i];
    assert_true(golden_near(&g, "subnet.dalpha", got, N, 1e-5));
    fm_logits_back_cost(&z, q, constants[1]);
    fm_logits_back_entropy(&z, constants[2]);
    for (int i = 0; i < N; i++)
        got[i] = (float)z.grad[i];
    assert_true(golden_near(&g, "subnet.dalpha_all", got, N, 1e-5));
    free(alpha);
    free(soft);
    free(dz);
    free(share);
    free(constants);
    golden_close(&g);
}

TEST_AROUND(a_sample_is_a_function_of_seed_and_draw, start, stop)
{
    uint32_t one[X], two[X];
    fm_logits_sample(&z, one, 2, 1, 7);
    fm_logits_sample(&z, two, 2, 1, 8);
    assert_memory_not_equal(one, two, sizeof one);
    fm_logits_sample(&z, two, 2, 1, 7);
    assert_memory_equal(one, two, sizeof one);
    for (int x = 0; x < X; x++) {
        int a = fm_actions_find(&actions, one[x]);
        for (int b = 0; b < A; b++)
            assert_true(z.soft[x * A + b] <= z.soft[x * A + a]);
    }
}

TEST_AROUND(samples_follow_the_clean_probabilities, start, stop)
{
    /* By the Gumbel trick the argmax has distribution p whatever tau is; 4 sigma of 4000 draws. */
    int count[N] = {0};
    uint32_t widths[X];
    for (uint64_t draw = 0; draw < 4000; draw++) {
        fm_logits_sample(&z, widths, 0.5, 9, draw);
        for (int x = 0; x < X; x++)
            count[x * A + fm_actions_find(&actions, widths[x])]++;
    }
    for (int i = 0; i < N; i++) {
        double sigma = sqrt(z.p[i] * (1 - z.p[i]) / 4000);
        assert_true(fabs(count[i] / 4000.0 - z.p[i]) <= 4 * sigma + 1e-3);
    }
}

TEST_AROUND(adam_takes_the_published_steps, start, stop)
{
    double alpha = z.alpha[0], m = 0, v = 0;
    for (int t = 1; t <= 5; t++) {
        double g = sin(t);
        for (int i = 0; i < N; i++)
            z.grad[i] = g;
        m = 0.9 * m + 0.1 * g;
        v = 0.99 * v + 0.01 * g * g;
        alpha -= 0.02 * (m / (1 - pow(0.9, t))) / (sqrt(v / (1 - pow(0.99, t))) + 1e-8);
        fm_logits_adam(&z, 0.02, 0.9, 0.99, t);
        assert_true(fabs(z.alpha[0] - alpha) <= 1e-14);
    }
}

TEST_AROUND(the_start_follows_the_scores, start, stop)
{
    double lost[N], mean = 0;
    for (int i = 0; i < N; i++)
        mean += (lost[i] = (i % A == A - 1 ? 0 : 1 + i)) / N;
    fm_logits_start(&z, lost, 3);
    for (int i = 0; i < N; i++)
        assert_true(fabs(z.alpha[i] - ((i % A == A - 1 ? 2 : 0) - 3 * lost[i] / mean)) <= 1e-12);
    uint32_t widths[X];
    fm_logits_harden(&z, widths);
    for (int x = 0; x < X; x++)
        assert_int_equal(widths[x], 37);
    memset(lost, 0, sizeof lost);
    fm_logits_start(&z, lost, 3);
    assert_true(z.alpha[0] == 0 && z.alpha[A - 1] == 2);
}

TEST(loads_are_a_running_mean_with_a_floor)
{
    int64_t counts[X] = {30, 10, 0, 0, 0, 1, 1, 1, 1, 1};
    double q[X], floored[X];
    fm_logits_load(q, floored, counts, L, E, true);
    assert_true(q[0] == 0.75 && q[1] == 0.25 && q[2] == 0);
    assert_true(floored[0] == 0.75 && floored[2] == 0.01 / E);
    assert_true(q[10] == 1.0 / E); /* a layer without any tokens */
    counts[0] = 0;
    fm_logits_load(q, floored, counts, L, E, false);
    assert_true(fabs(q[0] - 0.675) < 1e-15 && fabs(q[1] - 0.325) < 1e-15);
}

/* A toy problem: expert x loses w_x (1 - width)^2. */
TEST_AROUND(pacing_reaches_the_target_on_a_toy, start, stop)
{
    enum { STEPS = 300 };
    double lost[N] = {0}, dz[N], q[X], lambda = 0, worst = 0;
    int taken = 0;
    uint32_t widths[X];
    fm_logits_start(&z, lost, 0);
    double begin = fm_logits_expected(&z);
    for (int x = 0; x < X; x++)
        q[x] = 1.0 / E;
    for (uint64_t removed = 0; removed < 37 * X * 8 / 10 && taken < 2 * STEPS;) {
        double tau = 2 - 1.5 * (taken < STEPS ? taken : STEPS) / STEPS;
        fm_logits_sample(&z, widths, tau, 1, (uint64_t)taken);
        for (int i = 0; i < N; i++) {
            double gone = 1 - actions.width[i % A] / 37.0;
            dz[i] = 0.004 * (1 + i / A) * gone * gone;
        }
        fm_logits_clear(&z);
        fm_logits_back_sample(&z, dz, tau, 1);
        fm_logits_back_cost(&z, q, lambda);
        fm_logits_adam(&z, 0.02, 0.9, 0.99, ++taken);
        double rho = fm_logits_expected(&z);
        double target = begin + (0.8 - begin) * taken / STEPS;
        lambda = fm_logits_pace(lambda, 200, STEPS, taken, begin, 0.8, rho);
        if (taken > STEPS / 3 && taken <= STEPS)
            worst = fabs(target - rho) > worst ? fabs(target - rho) : worst;
        fm_logits_harden(&z, widths);
        removed = 0;
        for (int x = 0; x < X; x++)
            removed += 37 - widths[x];
    }
    /* Near the line after a third of STEPS, and at the target before one and a half STEPS. */
    assert_true(worst < 0.08);
    assert_true(taken < STEPS * 3 / 2);
}

TEST_MAIN(NULL, NULL)
