/* What a list reports about its members: the recommended one, the cards that they fit on, and the
 * widths that servers accept. */
#include "lib/export/list.h"
#include "tests/unit/test.h"

#define ROWS 5

/* Weights of 90 to 10 GB in steps of 20; a cache of 1 MB per token. */
static void fill(struct fm_list *list, struct fm_list_row *row, const double *ce)
{
    *list = (struct fm_list){.row = row, .rows = ROWS, .cache = {.token = 1000000}};
    for (int i = 0; i < ROWS; i++)
        row[i] = (struct fm_list_row){.index = i,
                                      .budget = 0.2 * i,
                                      .removed = (uint64_t)i,
                                      .bytes = (uint64_t)(90 - 20 * i) * 1000000000,
                                      .known = true,
                                      .ce = ce[i]};
}

TEST(the_recommended_member_agrees_with_the_original_often_enough)
{
    const double enough = FM_LIST_AGREEMENT;
    const double agree[ROWS] = {1, enough + 0.05, enough, enough - 0.01, enough + 0.1};
    struct fm_list list;
    struct fm_list_row row[ROWS];
    fill(&list, row, (const double[]){1, 1.01, 1.05, 1.4, 2});
    for (int i = 0; i < ROWS; i++)
        row[i].agree = agree[i];
    assert_int_equal(fm_list_recommended(&list), 2);
    row[2].interpolated = true;
    assert_int_equal(fm_list_recommended(&list), 1);
    row[1].known = row[3].known = false;
    assert_int_equal(fm_list_recommended(&list), 4);
    row[4].agree = 0; /* only the full model is left */
    assert_int_equal(fm_list_recommended(&list), -1);
    list.rows = 0;
    assert_int_equal(fm_list_recommended(&list), -1);
}

TEST(a_card_has_room_for_weights_and_cache)
{
    struct fm_list list;
    struct fm_list_row row[ROWS];
    fill(&list, row, (const double[]){1, 1, 1, 1, 1});
    /* Nine tenths of a card's memory: 21.6, 43.2 and 72 GB. */
    assert_int_equal(fm_list_first_on_card(&list, 2, 1), 1);
    assert_int_equal(fm_list_first_on_card(&list, 1, 1), 3);
    assert_int_equal(fm_list_first_on_card(&list, 0, 1), 4);
    assert_int_equal(fm_list_first_on_card(&list, 2, 3000), 2);
    assert_int_equal(fm_list_first_on_card(&list, 0, 11000), 4);
    assert_int_equal(fm_list_first_on_card(&list, 0, 12000), -1);
}

TEST(widths_pass_where_each_device_has_multiples)
{
    struct fm_list_kind whole = {.layout = &fm_layout_ragged},
                        split = {.layout = &fm_layout_uniform};
    struct fm_list_form form = {.divisor = 256, .tp_degrees = 1 << 0 | 1 << 1 | 1 << 3};
    assert_true(fm_list_passes(&whole, &form, 2, 256));
    assert_true(fm_list_passes(&split, &form, 2, 128));
    assert_false(fm_list_passes(&split, &form, 2, 256));
    assert_false(fm_list_passes(&whole, &form, 3, 1));
    assert_true(fm_list_passes(&split, &form, 4, 64));
}

TEST_MAIN(NULL, NULL)
