/* Test decimal ratios and the integer widths that they give. */
#include "lib/masks/actions.h"
#include "tests/unit/test.h"

static struct fm_decimal decimal(const char *text)
{
    struct fm_decimal d;
    struct fm_err err = {0};
    assert_ok(fm_decimal_parse(&d, text, "--x", &err));
    return d;
}

TEST(seven_tenths_of_2560_is_1792)
{
    struct fm_decimal d = decimal("0.7");
    assert_int_equal(fm_decimal_ceil(&d, 2560), 1792);
    assert_int_equal(fm_decimal_floor(&d, 2560), 1792);
    assert_int_equal(fm_decimal_ceil(&d, 37), 26);
    assert_int_equal(fm_decimal_floor(&d, 37), 25);
}

TEST(invalid_ratios_are_refused)
{
    static const char *const bad[] = {"",  ".",    "-0.1", "1.1",          "0.1x", "1e-1",
                                      "2", "0..1", "+1",   "0.1234567891", "10",   "nan"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_decimal d;
        assert_fails(fm_decimal_parse(&d, bad[i], "--until", &err), FM_EUSAGE, "--until");
    }
}

TEST(a_decimal_is_printed_in_its_shortest_form)
{
    static const char *const pairs[][2] = {{"0.40", "0.4"},
                                           {"1.000", "1"},
                                           {".05", "0.05"},
                                           {"0", "0"},
                                           {"0.123456789", "0.123456789"}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char text[FM_DECIMAL_TEXT];
        struct fm_decimal d = decimal(pairs[i][0]);
        fm_decimal_print(text, &d);
        assert_string_equal(text, pairs[i][1]);
    }
}

TEST(ten_actions_give_ten_widths)
{
    struct fm_actions a;
    assert_ok(fm_actions_parse(&a, "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", 37, 1, &err));
    static const uint32_t want[] = {4, 8, 12, 15, 19, 23, 26, 30, 34, 37};
    assert_int_equal(a.count, 10);
    assert_int_equal(a.merged, 0);
    assert_memory_equal(a.width, want, sizeof want);
    assert_int_equal(fm_actions_find(&a, 19), 4);
    assert_int_equal(fm_actions_find(&a, 20), -1);
}

TEST(widths_that_coincide_are_merged)
{
    struct fm_actions a;
    /* 256 channels in multiples of 100: 100, 200 and, as the maximum, 256. */
    assert_ok(fm_actions_parse(&a, "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9,1", 256, 100, &err));
    assert_int_equal(a.count, 3);
    assert_int_equal(a.merged, 7);
    assert_int_equal(a.width[0], 100);
    assert_int_equal(a.width[1], 200);
    assert_int_equal(a.width[2], 256);
    assert_int_equal(fm_decimal_ceil(&a.ratio[1], 10), 4);
}

TEST(the_first_width_may_be_zero)
{
    struct fm_actions a;
    assert_ok(fm_actions_parse(&a, "0,0.3,1", 37, 8, &err));
    assert_int_equal(a.count, 3);
    assert_int_equal(a.width[0], 0);
    assert_int_equal(a.width[1], 16);
    assert_int_equal(a.width[2], 37);
    assert_int_equal(fm_actions_find(&a, 0), 0);
}

TEST(invalid_action_sets_are_refused)
{
    static const char *const bad[] = {"",        "0.5",       "1,0.5", "0,0,1", "0",
                                      "0.5,0,1", "0.5,0.5,1", "0.5;1", "0.1,2"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_actions a;
        assert_fails(fm_actions_parse(&a, bad[i], 64, 1, &err), FM_EUSAGE, "--actions");
    }
    struct fm_actions a;
    assert_int_equal(fm_actions_parse(&a, "1", 64, 0, &err), FM_EUSAGE);
    assert_int_equal(fm_actions_parse(&a, "1", 64, 65, &err), FM_EUSAGE);
}

TEST(uniform_steps_reach_until_and_keep_something)
{
    struct fm_actions a;
    struct fm_decimal step = decimal("0.01"), until = decimal("0.80"), one = decimal("1");
    assert_ok(fm_actions_steps(&a, &step, &until, 256, 1, &err));
    assert_int_equal(a.count, 81);
    assert_int_equal(a.width[0], 52);
    assert_int_equal(a.width[80], 256);
    /* 20, 40 and 60 % removed */
    assert_int_equal(a.width[80 - 20], 205);
    assert_int_equal(a.width[80 - 40], 154);
    assert_int_equal(a.width[80 - 60], 103);
    assert_ok(fm_actions_steps(&a, &step, &one, 256, 1, &err));
    assert_int_equal(a.count, 100);
    assert_int_equal(a.width[0], 3);
    step = decimal("0.0001");
    assert_int_equal(fm_actions_steps(&a, &step, &one, 14336, 1, &err), FM_EUSAGE);
}

TEST(targets_end_with_until)
{
    struct fm_decimal step = decimal("0.3"), until = decimal("0.8");
    assert_int_equal(fm_decimal_targets(&step, &until), 3);
    assert_int_equal(fm_decimal_target(&step, &until, 1, 1001), 301);
    assert_int_equal(fm_decimal_target(&step, &until, 2, 1001), 601);
    assert_int_equal(fm_decimal_target(&step, &until, 3, 1001), 801);
    step = decimal("0.01");
    assert_int_equal(fm_decimal_targets(&step, &until), 80);
    assert_int_equal(fm_decimal_target(&step, &until, 80, 8192), 6554);
}

TEST(the_uniform_width_of_a_budget_is_rounded_up)
{
    assert_int_equal(fm_actions_uniform(0, 4, 8, 256, 1), 256);
    assert_int_equal(fm_actions_uniform(32 * 51 + 31, 4, 8, 256, 1), 205);
    assert_int_equal(fm_actions_uniform(32 * 51, 4, 8, 256, 64), 256);
    assert_int_equal(fm_actions_uniform(32 * 100, 4, 8, 256, 64), 192);
    assert_int_equal(fm_actions_uniform_export(32 * 51, 4, 8, 256, 1), 208);
    assert_int_equal(fm_actions_uniform_export(32 * 100, 4, 8, 256, 12), 168);
    assert_int_equal(fm_actions_uniform_export(15 * 2, 3, 5, 37, 1), 37);
}

TEST(lists_of_decimals_are_exact_and_strict)
{
    static const char *const bad[] = {"",     "x",   "0.2,", ",0.2", "0.2 0.4",
                                      "-0.1", "1.5", "nan",  "all,0"};
    struct fm_decimals list;
    char many[2 * (FM_DECIMALS_MAX + 1) + 1] = "";
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(fm_decimals_parse(&list, bad[i]));
    for (int i = 0; i < FM_DECIMALS_MAX; i++)
        strcat(many, i ? ",0" : "0");
    assert_true(fm_decimals_parse(&list, many));
    assert_int_equal(list.count, FM_DECIMALS_MAX);
    assert_false(fm_decimals_parse(&list, strcat(many, ",0")));
    assert_true(fm_decimals_parse(&list, "all") && list.all && list.count == 0);
    assert_true(fm_decimals_parse(&list, "0,0.250,1") && !list.all);
    assert_int_equal(list.count, 3);
    assert_true(list.at[1].num == 25 && list.at[1].den == 100 && list.at[2].num == 1);
}

TEST_MAIN(NULL, NULL)
