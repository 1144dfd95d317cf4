/*
 * Random numbers: Random123's published vectors, and moments of the distributions.
 */
#include <math.h>

#include "lib/base/rng.h"
#include "tests/unit/test.h"

/* The three vectors that Random123 publishes for philox4x32-10 (its file kat_vectors). */
TEST(philox_gives_its_known_answers)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } c[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < 3; i++) {
        philox4x32_ctr_t n = {{c[i].counter[0], c[i].counter[1], c[i].counter[2], c[i].counter[3]}};
        philox4x32_key_t k = {{c[i].key[0], c[i].key[1]}};
        philox4x32_ctr_t r = philox4x32(n, k);
        assert_memory_equal(r.v, c[i].want, sizeof c[i].want);
    }
    uint32_t w[4];
    fm_rng_words(w, 0, 0, 0);
    assert_memory_equal(w, c[0].want, sizeof w);
}

TEST(draws_depend_on_seed_stream_and_counter)
{
    uint32_t a[4], b[4];
    static const struct {
        uint64_t seed, counter;
        uint32_t stream;
    } other[] = {
        {2, 5, 3}, {1 + (1ULL << 32), 5, 3}, {1, 6, 3}, {1, 5 + (1ULL << 32), 3}, {1, 5, 4}};
    fm_rng_words(a, 1, 3, 5);
    fm_rng_words(b, 1, 3, 5);
    assert_memory_equal(a, b, sizeof a);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        fm_rng_words(b, other[i].seed, other[i].stream, other[i].counter);
        assert_memory_not_equal(a, b, sizeof a);
    }
}

TEST(the_unit_interval_is_open)
{
    assert_true(fm_rng_unit(0, 0) > 0);
    assert_true(fm_rng_unit(UINT32_MAX, UINT32_MAX) < 1);
    assert_true(isfinite(-log(-log(fm_rng_unit(0, 0)))));
    assert_true(isfinite(-log(-log(fm_rng_unit(UINT32_MAX, UINT32_MAX)))));
}

/* Means and variances of 100,000 draws, within five standard errors; the draws are always the
 * same. */
TEST(distributions_have_their_moments)
{
    enum { N = 100000 };
    double (*const draw[3])(uint64_t, uint32_t, uint64_t) = {fm_rng_uniform, fm_rng_normal,
                                                             fm_rng_gumbel};
    static const double mean[3] = {0.5, 0, 0.57721566490153286};
    static const double variance[3] = {1.0 / 12, 1, 1.6449340668482264};
    static const double kurtosis[3] = {1.8, 3, 5.4}; /* for the error of the variance */
    for (int k = 0; k < 3; k++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < N; i++) {
            double x = draw[k](42, FM_STREAM_GUMBEL, (uint64_t)i);
            sum += x;
            squares += (x - mean[k]) * (x - mean[k]);
        }
        double mean_error = 5 * sqrt(variance[k] / N);
        double variance_error = 5 * variance[k] * sqrt((kurtosis[k] - 1) / N);
        if (!(fabs(sum / N - mean[k]) <= mean_error) ||
            !(fabs(squares / N - variance[k]) <= variance_error))
            fail_msg("distribution %d: mean %g, variance %g", k, sum / N, squares / N);
    }
}

TEST(permutations_are_permutations_and_differ)
{
    enum { N = 1009 };
    static uint32_t first[N], second[N];
    static int seen[N];
    fm_rng_permutation(first, N, 7, FM_STREAM_EPOCH, 0);
    fm_rng_permutation(second, N, 7, FM_STREAM_EPOCH, 1);
    assert_memory_not_equal(first, second, sizeof first);
    for (int i = 0; i < N; i++)
        seen[first[i]]++;
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    int counts[3] = {0};
    for (uint64_t i = 0; i < 30000; i++)
        counts[fm_rng_below(7, FM_STREAM_CONTROL, i, 3)]++;
    for (int i = 0; i < 3; i++)
        assert_true(abs(counts[i] - 10000) <= 410); /* five standard errors of 82 */
    assert_int_equal(fm_rng_below(7, FM_STREAM_CONTROL, 5, 1), 0);
    fm_rng_permutation(first, 1, 7, FM_STREAM_EPOCH, 0);
    assert_int_equal(first[0], 0);
    fm_rng_permutation(first, 0, 7, FM_STREAM_EPOCH, 0);
}

TEST_MAIN(NULL, NULL)
