/*
 * The tile map of the clipped FFN: every number of a product is computed by exactly one tile, no
 * tile uses a channel past its expert's width, and the long tiles come first.
 */
#include <math.h>

#include "kernels/clip/cuda/clip_cuda_tiles.h"
#include "tests/unit/test.h"

#define GROUPS_MAX 24

enum { MANY = 216, FEW = 3 }; /* blocks that share the tiles */

/* A plan as the device makes it: active groups in order, and the first item of each in both
 * products. */
struct plan {
    struct fm_cuda_plan_totals totals;
    struct fm_cuda_group groups[GROUPS_MAX];
    int32_t begin[2][GROUPS_MAX + 1];
};

static struct plan make_plan(const int32_t *rows, const int32_t *widths, int32_t E, int32_t H)
{
    struct plan plan;
    memset(&plan, 0, sizeof plan);
    int32_t row = 0, y = 0;
    for (int32_t e = 0; e < E; e++) {
        if (rows[e] == 0 || widths[e] == 0)
            continue;
        int32_t large = fm_cuda_is_large(rows[e]), rank = 0;
        for (int32_t o = 0; o < E; o++)
            rank += rows[o] > 0 && widths[o] > 0 &&
                    fm_cuda_before(fm_cuda_is_large(rows[o]), widths[o], o, large, widths[e], e);
        struct fm_cuda_group *g = &plan.groups[rank];
        g->expert = e;
        g->width = widths[e];
        g->rows = rows[e];
        g->large = large;
        g->splits = fm_cuda_splits(widths[e], large);
        plan.totals.groups++;
    }
    for (int32_t a = 0; a < plan.totals.groups; a++) {
        struct fm_cuda_group *g = &plan.groups[a];
        g->row = row;
        g->y = y;
        row += g->rows;
        y += g->rows * g->splits;
        for (int p = 0; p < 2; p++) {
            int32_t n = fm_cuda_tiles(p + 1, g, H);
            plan.begin[p][a + 1] = plan.begin[p][a] + n;
        }
    }
    plan.totals.rows = row;
    for (int p = 0; p < 2; p++)
        plan.totals.tiles[p] = plan.begin[p][plan.totals.groups];
    return plan;
}

static struct fm_cuda_tile take(const struct plan *plan, int p, int32_t item, int32_t H)
{
    return fm_cuda_take(p, &plan->totals, plan->groups, plan->begin[p - 1], item, H);
}

/* Every block goes through its rounds; `seen` counts how often each item is taken. */
static void blocks_take_every_item_once(int32_t ctas, int32_t items)
{
    int32_t *seen = calloc((size_t)items + 1, sizeof *seen);
    assert_non_null(seen);
    for (int32_t cta = 0; cta < ctas; cta++)
        for (int32_t round = 0; round * ctas < items; round++) {
            int32_t item = fm_cuda_item(cta, ctas, round);
            if (item < items)
                seen[item]++;
        }
    for (int32_t i = 0; i < items; i++)
        assert_int_equal(seen[i], 1);
    free(seen);
}

/* Count how often each (row, column, split) of group a is computed, and check bounds. */
static void check_group(const struct plan *plan, int p, int32_t a, int32_t H)
{
    const struct fm_cuda_group *g = &plan->groups[a];
    int32_t columns = fm_cuda_columns(p, g->width, H), splits = p == 1 ? 1 : g->splits;
    int32_t items = plan->totals.tiles[p - 1];
    size_t cells = (size_t)g->rows * (size_t)columns * (size_t)splits;
    uint8_t *made = calloc(cells, 1);
    int32_t *summed = calloc((size_t)splits + 1, sizeof *summed);
    assert_true(made && summed);
    for (int32_t i = 0; i < items; i++) {
        struct fm_cuda_tile t = take(plan, p, i, H);
        if (t.group != a)
            continue;
        assert_in_range(t.rows, 1, FM_CUDA_TILE_ROWS);
        assert_in_range(t.cols, 1, FM_CUDA_TILE_COLS);
        assert_true(t.row + t.rows <= g->rows && t.col + t.cols <= columns);
        assert_int_equal(t.from % FM_CUDA_STEP, 0);
        assert_true(t.from < t.to && t.to <= (p == 1 ? H : g->width));
        summed[t.split] = t.to - t.from;
        for (int32_t r = t.row; r < t.row + t.rows; r++)
            for (int32_t c = t.col; c < t.col + t.cols; c++)
                made[((size_t)t.split * (size_t)g->rows + (size_t)r) * (size_t)columns +
                     (size_t)c]++;
    }
    for (size_t i = 0; i < cells; i++)
        assert_int_equal(made[i], 1);
    int32_t sum = 0;
    for (int32_t s = 0; s < splits; s++)
        sum += summed[s];
    assert_int_equal(sum, p == 1 ? H : g->width);
    free(made);
    free(summed);
}

static void check_plan(const int32_t *rows, const int32_t *widths, int32_t E, int32_t H)
{
    struct plan plan = make_plan(rows, widths, E, H);
    for (int p = 1; p <= 2; p++) {
        blocks_take_every_item_once(MANY, plan.totals.tiles[p - 1]);
        blocks_take_every_item_once(FEW, plan.totals.tiles[p - 1]);
        for (int32_t a = 0; a < plan.totals.groups; a++)
            check_group(&plan, p, a, H);
    }
}

TEST(tiles_cover_every_number_once)
{
    static const int32_t rows[] = {1, 0, 64, 65, 129, 3, 200, 17};
    static const int32_t widths[] = {1, 64, 63, 65, 130, 0, 5, 2111};
    check_plan(rows, widths, 8, 8);
    check_plan(rows, widths, 8, 344);
}

TEST(random_routings_are_covered_too)
{
    uint64_t x = 88172645463325252u;
    for (int round = 0; round < 40; round++) {
        int32_t rows[GROUPS_MAX], widths[GROUPS_MAX];
        for (int e = 0; e < GROUPS_MAX; e++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            rows[e] = x % 4 ? (int32_t)(x / 4 % 90) : 0;
            widths[e] = (int32_t)(x / 400 % 400);
        }
        check_plan(rows, widths, 8 + round % 16, 8 * (1 + round % 7));
    }
}

TEST(no_rows_or_no_width_gives_no_tiles)
{
    static const int32_t rows[] = {0, 7}, widths[] = {64, 0};
    struct plan plan = make_plan(rows, widths, 2, 64);
    assert_int_equal(plan.totals.groups, 0);
    assert_int_equal(plan.totals.tiles[0] + plan.totals.tiles[1], 0);
}

TEST(long_sums_come_first)
{
    static const int32_t rows[] = {256, 256, 256, 256, 9, 9, 9, 9};
    static const int32_t widths[] = {1434, 14336, 5735, 5735, 1434, 14336, 5735, 10036};
    struct plan plan = make_plan(rows, widths, 8, 4096);
    int32_t before = INT32_MAX, form = 1;
    for (int32_t a = 0; a < plan.totals.groups; a++) {
        const struct fm_cuda_group *g = &plan.groups[a];
        if (g->large != form)
            before = INT32_MAX;
        assert_true(g->large <= form && g->width <= before);
        form = g->large;
        before = g->width;
    }
}

TEST(splits_are_whole_steps_and_no_longer_than_the_bound)
{
    for (int32_t width = 1; width <= 1 << 20; width += 61) {
        int32_t splits = fm_cuda_splits(width, 0), part = fm_cuda_split_channels(width, 0);
        assert_int_equal(part % FM_CUDA_STEP, 0);
        assert_true(part <= FM_CUDA_SPLIT_CHANNELS && splits * part >= width);
        assert_true((splits - 1) * part < width); /* no split is empty */
        assert_int_equal(fm_cuda_splits(width, 1), 1);
    }
}

/* The work of the busiest block over the mean; the order of tiles keeps it near 1. */
static double imbalance(int32_t ctas, const struct plan *plan, int p, int32_t H)
{
    int32_t items = plan->totals.tiles[p - 1];
    double most = 0, sum = 0;
    for (int32_t cta = 0; cta < ctas; cta++) {
        double work = 0;
        for (int32_t round = 0; round * ctas < items; round++) {
            int32_t item = fm_cuda_item(cta, ctas, round);
            if (item >= items)
                continue;
            struct fm_cuda_tile t = take(plan, p, item, H);
            work += (double)(t.to - t.from) * t.cols;
        }
        sum += work;
        most = work > most ? work : most;
    }
    return most * ctas / sum;
}

/* Mixtral at 64 tokens, mixed widths at 60 % removed: no block has much more than its share, which
 * is the mean, or whole rounds of tiles if these are alike. */
TEST(mixed_widths_share_the_blocks_evenly)
{
    static const int32_t rows[] = {16, 16, 16, 16, 16, 16, 16, 16};
    static const int32_t widths[] = {14336, 10036, 5735, 5735, 5735, 1434, 1434, 1434};
    struct plan plan = make_plan(rows, widths, 8, 4096);
    for (int p = 1; p <= 2; p++) {
        double mean = (double)plan.totals.tiles[p - 1] / MANY;
        double share = imbalance(MANY, &plan, p, 4096), least = ceil(mean) / mean;
        print_message("product %d: the busiest block has %.3f of the mean; whole tiles: %.3f\n", p,
                      share, least);
        assert_true(share <= 1.06 * least);
    }
}

TEST_MAIN(NULL, NULL)
