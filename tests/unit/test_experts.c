/*
 * Test the layout of experts in tensors: compare the cuts of every part with its shape, element by
 * element, and check the sizes of channels and parts.
 */
#include "lib/block/experts.h"
#include "lib/block/swiglu.h"
#include "tests/unit/test.h"

enum { I = 5, H = 3 };

static const struct fm_expert_form biased = {.rows = 2, .bias = true};

/* Locate channel j, row r, element h of the bundle's part `of`: returns its index in a tensor of
 * `part` (shapes: lib/block/weight.h), or -1 if that tensor does not have it. */
static int place(enum fm_weight_part part, enum fm_weight_part of, int j, int r, int h)
{
    if (of == FM_PART_BIAS)
        return part == FM_PART_BIAS ? 2 * j + r : -1;
    if (of == FM_PART_DOWN_T)
        return part == FM_PART_DOWN_T ? j * H + h : part == FM_PART_DOWN ? h * I + j : -1;
    switch (part) {
    case FM_PART_GATE:
        return r == 0 ? j * H + h : -1;
    case FM_PART_UP:
        return r == 1 ? j * H + h : -1;
    case FM_PART_GATE_THEN_UP:
        return (r * I + j) * H + h;
    case FM_PART_GATE_UP_T:
        return h * 2 * I + 2 * j + r;
    case FM_PART_GATE_UP:
        return (2 * j + r) * H + h;
    default:
        return -1;
    }
}

/* Check the elements of a cut that begins `at` elements into the expert's share of the tensor;
 * returns their number. */
static int check_cut(const struct fm_expert_cut *cut, enum fm_weight_part part, int at)
{
    int width = (int)fm_expert_part_row(cut->of, H), n = 0;
    for (int j = 0; j < I; j++)
        for (int i = 0; i < cut->rows; i++)
            for (int h = 0; h < width; h++, n++) {
                int row = j * cut->rows + i;
                int has = cut->columns ? h * cut->rows * I + row : row * width + h;
                assert_int_equal(at + has, place(part, cut->of, j, cut->first + i, h));
            }
    assert_int_equal(n, I * (int)fm_expert_cut_channel(cut, H));
    return n;
}

TEST(cuts_are_where_the_shapes_say)
{
    for (int p = FM_PART_GATE; p <= FM_PART_BIAS; p++) {
        struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
        int cuts = fm_expert_cuts(cut, &biased, (enum fm_weight_part)p), at = 0;
        assert_in_range(cuts, 1, FM_EXPERT_CUTS_MAX);
        for (int i = 0; i < cuts; i++)
            at += check_cut(&cut[i], (enum fm_weight_part)p, at);
        if (cuts == 1)
            assert_int_equal(cut[0].part, p);
    }
}

TEST(sizes_count_biases_where_there_are_some)
{
    const struct fm_config c = {.E = 7, .H = H, .I = I, .expert = &biased};
    uint64_t shape[3];
    assert_int_equal(fm_expert_parts(&fm_swiglu), 2);
    assert_int_equal(fm_expert_parts(&biased), 3);
    assert_int_equal(fm_expert_channel_params(&fm_swiglu, H), 3 * H);
    assert_int_equal(fm_expert_channel_params(&biased, H), 3 * H + 2);
    assert_int_equal(fm_expert_channel_weights(&biased, H), 3 * H);
    assert_int_equal(fm_expert_part_shape(shape, &c, FM_PART_GATE_UP), 3);
    assert_int_equal(shape[1], 2 * I);
    assert_int_equal(fm_expert_part_shape(shape, &c, FM_PART_DOWN_T), 3);
    assert_int_equal(shape[1], I);
    assert_int_equal(fm_expert_part_shape(shape, &c, FM_PART_BIAS), 2);
    assert_int_equal(shape[1], 2 * I);
    assert_string_equal(fm_expert_part_name(FM_PART_BIAS), "gate_up_bias");
}

TEST_MAIN(NULL, NULL)
