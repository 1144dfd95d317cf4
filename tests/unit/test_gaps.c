/* Families without gaps. */
#include "lib/masks/gaps.h"
#include "lib/masks/methods.h"
#include "tests/unit/test.h"

enum { M = 2, E = 4, I = 100, X = M * E, A = 10, FLIP = 10 };

static struct fm_actions actions;
static struct fm_decimal step, until;
static double lost[X * A];

/* Experts with a higher number lose more per channel. */
static int set_up(void **state)
{
    (void)state;
    struct fm_err err = {0};
    int rc = fm_actions_parse(&actions, "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", I, 1, &err);
    rc = rc ? rc : fm_decimal_parse(&step, "0.05", "--budget-step", &err);
    rc = rc ? rc : fm_decimal_parse(&until, "0.80", "--until", &err);
    for (int i = 0; i < X * A; i++)
        lost[i] = (1 + i / A) * (100.0 - actions.width[i % A]);
    return rc;
}

static struct fm_gaps gaps_of(int size)
{
    return (struct fm_gaps){&actions, lost, size, &step, &until};
}

static void add(struct fm_masks *f, const uint32_t *widths, int at)
{
    struct fm_err err = {0};
    assert_ok(fm_masks_append(f, widths, &fm_method_exchange, at, &err));
    f->mask[f->count - 1].quality = (struct fm_quality){.ce = at, .positions = 1};
}

/* The full mask, one at 0.25 whose expert 0 is the narrowest, and one at 0.5 whose expert 0 has all
 * channels. */
static void make_family(struct fm_masks *f)
{
    struct fm_err err = {0};
    fm_masks_init(f, M, E, I);
    assert_ok(fm_masks_full(f, &fm_method_exchange, &err));
    f->mask[0].quality.positions = 1;
    add(f, (const uint32_t[X]){10, 50, 40, 100, 100, 100, 100, 100}, 7);
    add(f, (const uint32_t[X]){100, 50, 40, 100, 10, 40, 40, 20}, 9);
}

/* For every target, some member removes at least as many channels, and fewer than `flip` more. */
static void has_every_target(const struct fm_masks *f, uint64_t flip)
{
    uint64_t n = fm_masks_channels(f);
    for (uint64_t i = 1; i <= fm_decimal_targets(&step, &until); i++) {
        uint64_t target = fm_decimal_target(&step, &until, i, n);
        int b = 0;
        while (b < f->count && f->mask[b].removed < target)
            b++;
        assert_in_range(b, 1, f->count - 1);
        assert_true(f->mask[b].removed < target + flip);
    }
}

TEST(gaps_are_filled_by_single_steps)
{
    struct fm_masks from, f;
    struct fm_gaps gaps = gaps_of(1);
    make_family(&from);
    fm_masks_init(&f, M, E, I);
    assert_ok(fm_gaps_fill(&f, &from, &gaps, &err));
    has_every_target(&f, FLIP);
    /* 40 channels are 0.05; the masks that remove 200 and 400 are those of `from`. */
    assert_int_equal(f.count, 17);
    assert_int_equal(f.mask[1].removed, 40);
    assert_int_equal(f.mask[1].step, 7);
    assert_int_equal(f.mask[1].quality.positions, 0);
    /* The cheapest steps go first, down to the width in the next mask. */
    assert_int_equal(fm_masks_widths(&f, 2)[0], 20);
    assert_int_equal(fm_masks_widths(&f, 2)[1], 100);
    assert_int_equal(f.mask[5].removed, 200);
    assert_true(f.mask[5].quality.ce == 7);
    /* Expert 0 is widened at once on the way to the second. */
    assert_int_equal(fm_masks_widths(&f, 6)[0], 100);
    assert_int_equal(fm_masks_widths(&f, 6)[3], 100);
    fm_masks_release(&from);
    fm_masks_release(&f);
}

TEST(a_family_without_gaps_stays_as_it_is)
{
    struct fm_masks from, f, again;
    struct fm_gaps gaps = gaps_of(1);
    make_family(&from);
    fm_masks_init(&f, M, E, I);
    fm_masks_init(&again, M, E, I);
    assert_ok(fm_gaps_fill(&f, &from, &gaps, &err));
    assert_ok(fm_gaps_fill(&again, &f, &gaps, &err));
    assert_int_equal(again.count, f.count);
    assert_memory_equal(again.widths, f.widths, (size_t)f.count * X * sizeof *f.widths);
    fm_masks_release(&from);
    fm_masks_release(&f);
    fm_masks_release(&again);
}

TEST(the_narrowest_mask_ends_a_family_that_cannot_go_on)
{
    struct fm_masks from, f;
    struct fm_decimal one = {1, 1};
    struct fm_gaps gaps = gaps_of(1);
    gaps.until = &one;
    make_family(&from);
    fm_masks_init(&f, M, E, I);
    assert_ok(fm_gaps_fill(&f, &from, &gaps, &err));
    assert_int_equal(f.mask[f.count - 1].removed, 720);
    fm_masks_release(&from);
    fm_masks_release(&f);
}

TEST(tied_experts_go_together)
{
    struct fm_masks from, f;
    struct fm_gaps gaps = gaps_of(E);
    fm_masks_init(&from, M, E, I);
    fm_masks_init(&f, M, E, I);
    assert_ok(fm_masks_full(&from, &fm_method_saliency, &err));
    add(&from, (const uint32_t[X]){40, 40, 40, 40, 50, 50, 50, 50}, 1);
    assert_ok(fm_gaps_fill(&f, &from, &gaps, &err));
    has_every_target(&f, E * FLIP);
    for (int b = 0; b < f.count; b++)
        for (int x = 0; x < X; x++)
            assert_int_equal(fm_masks_widths(&f, b)[x], fm_masks_widths(&f, b)[x / E * E]);
    fm_masks_release(&from);
    fm_masks_release(&f);
}

TEST_MAIN(set_up, NULL)
