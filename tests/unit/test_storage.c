/* Test the groups of channels of each storage format: a group has whole blocks of every plane, and
 * whole bytes of codes. */
#include "formats/quant/quant.h"
#include "lib/block/block.h"
#include "tests/unit/test.h"

static int group_of(const struct fm_storage *storage, int rows, int columns)
{
    const struct fm_scheme scheme = {storage, rows, columns};
    return fm_scheme_group(&scheme);
}

TEST(plain_weights_have_groups_of_one)
{
    assert_int_equal(group_of(NULL, 0, 0), 1);
}

TEST(a_group_is_whole_blocks_of_rows_and_of_columns)
{
    assert_int_equal(group_of(&fm_fp8, 128, 128), 128);
    assert_int_equal(group_of(&fm_fp8, 16, 24), 48);
    assert_int_equal(group_of(&fm_fp8, 1, 7), 7);
    assert_int_equal(group_of(&fm_mxfp4, 1, 32), 32);
}

/* The product of two block sizes may exceed an int. */
TEST(a_group_larger_than_every_expert_is_one_number)
{
    assert_int_equal(group_of(&fm_fp8, (1 << 20) - 1, 1 << 20), FM_CHANNELS_MAX + 1);
}

TEST_MAIN(NULL, NULL)
