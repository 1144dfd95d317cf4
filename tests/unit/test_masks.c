/* Test families of masks, and the methods that need no gradients. */
#include <math.h>

#include "lib/base/rng.h"
#include "lib/masks/masks.h"
#include "lib/masks/methods.h"
#include "tests/unit/test.h"

enum { L = 3, E = 5, I = 37, X = L * E };

static struct fm_decimal decimal(const char *text)
{
    struct fm_decimal d;
    struct fm_err err = {0};
    assert_ok(fm_decimal_parse(&d, text, "--x", &err));
    return d;
}

static struct fm_actions actions(const char *text)
{
    struct fm_actions a;
    struct fm_err err = {0};
    assert_ok(fm_actions_parse(&a, text, I, 1, &err));
    return a;
}

/* Random scores, and the order that sorts them. */
static void make_scores(double *scores, int32_t *order)
{
    for (int i = 0; i < X * I; i++)
        scores[i] = -log(fm_rng_uniform(7, FM_STREAM_BENCH, (uint64_t)i)) * (1 + i / I);
    for (int x = 0; x < X; x++) {
        const double *s = scores + x * I;
        int32_t *o = order + x * I;
        for (int j = 0; j < I; j++) {
            int rank = 0;
            for (int i = 0; i < I; i++)
                rank += s[i] > s[j];
            o[rank] = j;
        }
    }
}

static double kept_score(const double *scores, const int32_t *order, const uint32_t *widths)
{
    double sum = 0;
    for (int x = 0; x < X; x++) {
        for (uint32_t j = 0; j < widths[x]; j++)
            sum += scores[x * I + order[x * I + (int)j]];
    }
    return sum;
}

TEST(lost_scores_are_sums_of_the_tail)
{
    double scores[X * I], lost[X * 4];
    int32_t order[X * I];
    make_scores(scores, order);
    struct fm_actions a = actions("0.1,0.4,0.7,1");
    fm_masks_lost(lost, &a, scores, order, L, E, I);
    for (int x = 0; x < X; x++) {
        for (int k = 0; k < 4; k++) {
            double want = 0;
            for (int j = (int)a.width[k]; j < I; j++)
                want += scores[x * I + order[x * I + j]];
            assert_true(fabs(lost[x * 4 + k] - want) <= 1e-12 * (1 + want));
        }
        assert_true(lost[x * 4 + 3] == 0);
    }
}

TEST(saliency_beats_every_random_mask_of_its_budget)
{
    double scores[X * I];
    int32_t order[X * I];
    make_scores(scores, order);
    struct fm_actions a = actions("0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1");
    struct fm_decimal step = decimal("0.05"), until = decimal("0.80");
    struct fm_masks f;
    fm_masks_init(&f, L, E, I);
    assert_ok(fm_masks_full(&f, &fm_method_saliency, &err));
    assert_ok(fm_masks_saliency(&f, &a, scores, order, &step, &until, FM_PER_EXPERT, &err));
    assert_int_equal(f.count, 17);
    assert_int_equal(f.mask[0].removed, 0);
    for (int b = 1; b < f.count; b++) {
        const uint32_t *w = fm_masks_widths(&f, b);
        assert_true(f.mask[b].removed >= fm_decimal_target(&step, &until, (uint64_t)b, X * I));
        assert_true(f.mask[b].removed > f.mask[b - 1].removed);
        assert_int_equal(fm_masks_removed(&f, w), f.mask[b].removed);
        double kept = kept_score(scores, order, w);
        for (int trial = 0; trial < 200; trial++) {
            uint32_t other[X];
            for (int x = 0; x < X; x++)
                other[x] = a.width[fm_rng_below(1, FM_STREAM_BENCH,
                                                (uint64_t)((b * 200 + trial) * X + x), 10)];
            if (fm_masks_removed(&f, other) >= f.mask[b].removed)
                assert_true(kept_score(scores, order, other) <= kept * (1 + 1e-12));
        }
    }
    fm_masks_release(&f);
}

TEST(a_bump_in_the_scores_is_bridged_by_the_hull)
{
    /* In the original order, channels with low scores come first, so the tail costs the most: the
     * hull has only the narrowest and the full width. */
    double scores[X * I] = {0};
    int32_t order[X * I];
    for (int i = 0; i < X * I; i++) {
        order[i] = i % I;
        scores[i] = i % I < 20 ? 0.5 : 4;
    }
    struct fm_actions a = actions("0.1,0.4,0.5,1");
    struct fm_decimal step = decimal("0.01"), until = decimal("0.80");
    struct fm_masks f;
    fm_masks_init(&f, L, E, I);
    assert_ok(fm_masks_full(&f, &fm_method_saliency, &err));
    assert_ok(fm_masks_saliency(&f, &a, scores, order, &step, &until, FM_PER_EXPERT, &err));
    for (int b = 0; b < f.count; b++) {
        for (int x = 0; x < X; x++) {
            uint32_t w = fm_masks_widths(&f, b)[x];
            assert_true(w == 4 || w == 37);
        }
    }
    fm_masks_release(&f);
}

TEST(uniform_masks_have_one_width)
{
    struct fm_actions a;
    struct fm_decimal step = decimal("0.1"), until = decimal("0.80");
    struct fm_masks f;
    assert_ok(fm_actions_steps(&a, &step, &until, I, 1, &err));
    fm_masks_init(&f, L, E, I);
    assert_ok(fm_masks_full(&f, &fm_method_uniform, &err));
    assert_ok(fm_masks_uniform(&f, &a, &until, &err));
    assert_int_equal(f.count, 9);
    for (int b = 0; b < f.count; b++) {
        for (int x = 0; x < X; x++)
            assert_int_equal(fm_masks_widths(&f, b)[x], a.width[8 - b]);
    }
    fm_masks_release(&f);
}

static int compare_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void make_family(struct fm_masks *f)
{
    struct fm_err err = {0};
    uint32_t w[X];
    fm_masks_init(f, L, E, I);
    assert_ok(fm_masks_full(f, &fm_method_learned, &err));
    for (int b = 1; b < 6; b++) {
        for (int x = 0; x < X; x++)
            w[x] = (uint32_t)(I - b * (x + 1) / 3);
        assert_ok(fm_masks_append(f, w, &fm_method_learned, b, &err));
    }
}

/* True if a's n numbers are in the order of b's. */
static bool same_order(const uint32_t *a, const uint32_t *b, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if ((a[i] < a[j]) != (b[i] < b[j]))
                return false;
    return true;
}

TEST(a_shuffle_keeps_the_widths_and_moves_them)
{
    for (int global = 0; global < 2; global++) {
        struct fm_masks from, f, again, other;
        make_family(&from);
        fm_masks_init(&f, L, E, I);
        fm_masks_init(&again, L, E, I);
        fm_masks_init(&other, L, E, I);
        assert_ok(fm_masks_shuffle(&f, &from, global, 5, &err));
        assert_ok(fm_masks_shuffle(&again, &from, global, 5, &err));
        assert_ok(fm_masks_shuffle(&other, &from, global, 6, &err));
        size_t bytes = sizeof(uint32_t) * X * (size_t)from.count;
        assert_int_equal(f.count, from.count);
        assert_memory_equal(f.widths, again.widths, bytes);
        assert_memory_not_equal(f.widths, other.widths, bytes);
        assert_memory_not_equal(f.widths, from.widths, bytes);
        int span = global ? X : E;
        for (int at = 0; at < X * from.count; at += span) {
            uint32_t a[X], b[X];
            memcpy(a, from.widths + at, sizeof *a * (size_t)span);
            memcpy(b, f.widths + at, sizeof *b * (size_t)span);
            qsort(a, (size_t)span, sizeof *a, compare_u32);
            qsort(b, (size_t)span, sizeof *b, compare_u32);
            assert_memory_equal(a, b, sizeof *a * (size_t)span);
        }
        /* Every mask is permuted differently; all widths here are different. */
        const uint32_t *fourth = fm_masks_widths(&f, 4), *last = fm_masks_widths(&f, 5);
        assert_true(same_order(fm_masks_widths(&from, 4), fm_masks_widths(&from, 5), X));
        assert_false(same_order(fourth, last, span));
        fm_masks_release(&from);
        fm_masks_release(&f);
        fm_masks_release(&again);
        fm_masks_release(&other);
    }
}

TEST(a_mask_is_added_once_it_removes_enough_more)
{
    struct fm_masks f;
    uint32_t w[X];
    fm_masks_init(&f, L, E, I);
    assert_ok(fm_masks_full(&f, &fm_method_learned, &err));
    for (int x = 0; x < X; x++)
        w[x] = I;
    w[3] -= 5;
    assert_ok(fm_masks_append_grown(&f, w, &fm_method_learned, 1, 6, false, &err));
    assert_int_equal(f.count, 1);
    w[4] -= 1;
    assert_ok(fm_masks_append_grown(&f, w, &fm_method_learned, 2, 6, false, &err));
    assert_int_equal(f.count, 2);
    assert_ok(fm_masks_append_grown(&f, w, &fm_method_learned, 3, 6, true, &err));
    assert_int_equal(f.count, 2);
    w[0] -= 1;
    assert_ok(fm_masks_append_grown(&f, w, &fm_method_learned, 4, 6, true, &err));
    assert_int_equal(f.count, 3);
    assert_int_equal(f.mask[2].removed, 7);
    assert_int_equal(f.mask[2].step, 4);
    fm_masks_release(&f);
}

TEST(the_nearest_mask_is_found_and_ties_go_down)
{
    struct fm_masks f;
    uint32_t w[X];
    fm_masks_init(&f, L, E, 40);
    struct fm_decimal d = decimal("0.25");
    assert_int_equal(fm_masks_nearest(&f, &d), -1);
    assert_ok(fm_masks_full(&f, &fm_method_learned, &err));
    for (int b = 1; b <= 4; b++) {
        for (int x = 0; x < X; x++)
            w[x] = (uint32_t)(40 - 8 * b);
        assert_ok(fm_masks_append(&f, w, &fm_method_learned, b, &err));
    }
    assert_int_equal(fm_masks_nearest(&f, &d), 1); /* 0.2, not 0.4 */
    d = decimal("0.3");
    assert_int_equal(fm_masks_nearest(&f, &d), 1); /* the middle */
    d = decimal("0.300000001");
    assert_int_equal(fm_masks_nearest(&f, &d), 2);
    d = decimal("1");
    assert_int_equal(fm_masks_nearest(&f, &d), 4);
    fm_masks_release(&f);
}

TEST(some_masks_are_measured_and_the_rest_interpolated)
{
    struct fm_masks f;
    struct fm_quality q;
    uint32_t w[X];
    bool measured[9];
    fm_masks_init(&f, L, E, 40);
    assert_ok(fm_masks_full(&f, &fm_method_learned, &err));
    for (int b = 1; b <= 8; b++) { /* 0.1 to 0.8 */
        for (int x = 0; x < X; x++)
            w[x] = (uint32_t)(40 - 4 * b);
        assert_ok(fm_masks_append(&f, w, &fm_method_learned, b, &err));
    }
    struct fm_decimal step = decimal("0.1"), every = decimal("0.3");
    fm_masks_measured(measured, &f, &every, &step);
    for (int b = 0; b <= 8; b++) /* the last is also the nearest to 0.9 */
        assert_int_equal(measured[b], b == 0 || b == 3 || b == 6 || b == 8);
    fm_masks_measured(measured, &f, &step, &step);
    for (int b = 0; b <= 8; b++)
        assert_true(measured[b]);
    every = decimal("1");
    fm_masks_measured(measured, &f, &every, &step);
    for (int b = 0; b <= 8; b++)
        assert_int_equal(measured[b], b == 0 || b == 8);

    assert_false(fm_masks_quality(&q, &f, 2));
    f.mask[3].quality = (struct fm_quality){2, 1, 0.5, 10, true, {0}};
    assert_false(fm_masks_quality(&q, &f, 2)); /* nothing below it */
    f.mask[0].quality = (struct fm_quality){1, 0, 1, 10, true, {0}};
    assert_true(fm_masks_quality(&q, &f, 3));
    assert_true(q.ce == 2 && q.positions == 10);
    assert_true(fm_masks_quality(&q, &f, 2));
    assert_true(fabs(q.ce - (1 + 2 / 3.)) < 1e-12 && fabs(q.kl - 2 / 3.) < 1e-12);
    assert_true(fabs(q.agree - 2 / 3.) < 1e-12);
    assert_true(q.positions == 0 && q.recovered);
    assert_false(fm_masks_quality(&q, &f, 4)); /* nothing above it */
    f.mask[6].quality = (struct fm_quality){5, 4, 0.2, 10, true, {0}};
    assert_true(fm_masks_quality(&q, &f, 4) && fabs(q.ce - 3) < 1e-12 && fabs(q.kl - 2) < 1e-12);
    fm_masks_release(&f);
}

TEST(a_family_that_contradicts_itself_is_not_sane)
{
    struct fm_masks f;
    const struct fm_decimal until = decimal("0.5");
    const struct fm_actions a = actions("0.5,1");
    fm_masks_init(&f, L, E, I);
    assert_ok(fm_masks_full(&f, &fm_method_uniform, &err));
    assert_ok(fm_masks_uniform(&f, &a, &until, &err));
    assert_true(f.count > 1 && fm_masks_sane(&f));
    f.widths[X]--;
    assert_false(fm_masks_sane(&f)); /* removes more than it records */
    f.mask[1].removed++;
    assert_true(fm_masks_sane(&f));
    f.widths[0] = I + 1;
    assert_false(fm_masks_sane(&f));
    f.widths[0] = I;
    f.mask[1].quality.kl = NAN;
    assert_false(fm_masks_sane(&f));
    f.mask[1].quality.kl = 0;
    memcpy(f.widths + X, f.widths, X * sizeof *f.widths);
    f.mask[1].removed = f.mask[0].removed;
    assert_false(fm_masks_sane(&f)); /* the same mask twice */
    fm_masks_release(&f);
}

TEST_MAIN(NULL, NULL)
