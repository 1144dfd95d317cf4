/* Check the rule of lib/bench/loops.h at its limits, on texts that are made by repeating a unit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/bench/loops.h"
#include "tests/unit/test.h"

/* The repetitions found in `head`, n times `unit`, and `tail`. */
static uint64_t found(const char *head, const char *unit, int n, const char *tail,
                      struct fm_loop *loop)
{
    size_t size = strlen(head) + strlen(unit) * (size_t)n + strlen(tail);
    char *text = malloc(size + 1);
    double different;
    uint64_t words;
    struct fm_err err = {0};
    assert_non_null(text);
    strcpy(text, head);
    for (int i = 0; i < n; i++)
        strcat(text, unit);
    strcat(text, tail);
    assert_int_equal(fm_loops_find(loop, &different, &words, text, size, &err), FM_OK);
    free(text);
    return loop->repeats;
}

TEST(a_loop_has_four_units_and_128_characters)
{
    struct fm_loop l;
    const char *unit = "0123456789 abcdefghijk lmnopqrs ",
               *more = "a b c d e f g h i j k l m n o p ";
    assert_int_equal(strlen(unit), 32);
    assert_int_equal(found("Begin ", unit, 4, "", &l), 4);
    assert_int_equal(found("Begin ", unit, 3, "", &l), 0);
    assert_int_equal(found("Begin ", more, 3, "a b c d e f g h", &l), 0);
    assert_int_equal(found("x ", "ab ", 43, "", &l), 43);
    assert_int_equal(found("x ", "ab ", 40, "", &l), 0); /* 120 characters */
    assert_int_equal(found("", "!", 128, "", &l), 128);
    assert_int_equal(found("", "!", 127, "", &l), 0);
}

TEST(only_the_end_counts_and_it_may_be_cut)
{
    struct fm_loop l;
    const char *unit = "She went home and slept there again. ";
    assert_int_equal(found("", unit, 9, "She went ho", &l), 9);
    assert_int_equal(found("", unit, 9, "She went hot", &l), 0);
    assert_int_equal(found("", unit, 9, "Then it ended.", &l), 0);
    /* Words whose spaces differ. */
    assert_int_equal(
        found("", "She went\nhome  and slept\there today. She went home and slept here today. ", 4,
              "", &l),
        8);
}

TEST(the_longest_units)
{
    char words[2 * 65 + 1] = "", characters[258] = "";
    struct fm_loop l;
    for (int i = 0; i < 64; i++)
        snprintf(words + 2 * i, 3, "%c ", 'A' + i % 61);
    assert_true(found("", words, 4, "", &l) > 0);
    for (int i = 0; i < 257; i++)
        characters[i] = (char)(i % 16 ? 'a' + i % 16 : 'A' + i / 16);
    characters[256] = '\0';
    assert_int_equal(found("-", characters, 4, "", &l), 4);
    characters[256] = '%';
    assert_int_equal(found("-", characters, 4, "", &l), 0);
}

TEST(characters_of_several_bytes)
{
    struct fm_loop l;
    assert_int_equal(found("好", "\u54c8\u5566", 64, "", &l), 64);
    assert_int_equal(l.characters, 128);
    assert_int_equal(l.unit_bytes, 6);
    assert_int_equal(found("好", "\u54c8\u5566", 63, "", &l), 0);
    assert_int_equal(found("", "", 0, "", &l), 0);
    assert_int_equal(found("", "word", 1, "", &l), 0);
}

TEST(different_sequences_of_four_words)
{
    struct fm_loop l;
    const char *text = "a b c d e a b c d";
    double different;
    uint64_t words;
    assert_int_equal(fm_loops_find(&l, &different, &words, text, strlen(text), &err), FM_OK);
    assert_true(words == 9 && fabs(different - 5.0 / 6) < 1e-12);
    assert_int_equal(fm_loops_find(&l, &different, &words, "a b c", 5, &err), FM_OK);
    assert_true(words == 3 && different == -1);
}

TEST_MAIN(NULL, NULL)
