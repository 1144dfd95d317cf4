/* The member that a list recommends. */
#include "lib/export/list.h"
#include "tests/unit/test.h"

#define ROWS 5

TEST(the_recommended_member_agrees_with_the_original_often_enough)
{
    const double enough = FM_LIST_AGREEMENT;
    const double agree[ROWS] = {1, enough + 0.05, enough, enough - 0.01, enough + 0.1};
    struct fm_list_row row[ROWS];
    struct fm_list list = {.row = row, .rows = ROWS};
    for (int i = 0; i < ROWS; i++)
        row[i] = (struct fm_list_row){.removed = (uint64_t)i, .known = true, .agree = agree[i]};
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

TEST_MAIN(NULL, NULL)
