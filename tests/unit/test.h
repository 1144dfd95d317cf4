/*
 * Every unit test program includes this header: cmocka, the headers that it needs, and TEST, which
 * defines a test and adds it to the program.  The tests of a file run in the order of the file:
 *
 *     TEST(two_and_two_are_four)
 *     {
 *         assert_int_equal(2 + 2, 4);
 *     }
 *
 *     TEST_MAIN(NULL, NULL)
 */
#ifndef FM_TESTS_TEST_H
#define FM_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/base/pool.h"

enum { TESTS_MAX = 64 };

static struct {
    struct CMUnitTest unit[TESTS_MAX]; /* in the order of their lines; the unused ones are zeros */
    int line[TESTS_MAX];
    int count;
} tests_all;

static inline void tests_add(struct CMUnitTest unit, int line)
{
    if (tests_all.count == TESTS_MAX)
        abort();
    int i = tests_all.count++;
    for (; i > 0 && tests_all.line[i - 1] > line; i--) {
        tests_all.unit[i] = tests_all.unit[i - 1];
        tests_all.line[i] = tests_all.line[i - 1];
    }
    tests_all.unit[i] = unit;
    tests_all.line[i] = line;
}

/* Run all tests between setup and teardown, which may be NULL; returns the program's exit status.
 */
static inline int tests_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return cmocka_run_group_tests(tests_all.unit, setup, teardown) ? 1 : 0;
}

/* A test with functions that run before and after it; either may be NULL.  Its body has a variable
 * `err`, which is zero at first.  Constructors run before main() in an order that the compiler
 * chooses, so the tests are sorted by their lines. */
#define TEST_AROUND(name, before, after)                                                           \
    static void name(struct fm_err err);                                                           \
    static void run_##name(void **state)                                                           \
    {                                                                                              \
        (void)state;                                                                               \
        name((struct fm_err){0});                                                                  \
    }                                                                                              \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        tests_add((struct CMUnitTest){#name, run_##name, before, after, NULL}, __LINE__);          \
    }                                                                                              \
    static void name(__attribute__((unused)) struct fm_err err)
#define TEST(name) TEST_AROUND(name, NULL, NULL)

/* Check that the call, which gets &err of the enclosing function, succeeds, or that it fails with
 * this code and a sentence that contains these words. */
#define assert_ok(call) check_status(call, FM_OK, "", &err, #call, __FILE__, __LINE__)
#define assert_fails(call, code, words)                                                            \
    check_status(call, code, words, &err, #call, __FILE__, __LINE__)

static inline void check_status(int rc, int expected, const char *words, const struct fm_err *err,
                                const char *call, const char *file, int line)
{
    if (rc == expected && strstr(err->text, words))
        return;
    print_error("%s\nreturned %d: %s\nexpected %d: %s\n", call, rc, rc ? err->text : "", expected,
                words);
    _fail(file, line);
}

/* Setup and teardown of tests that compute on two threads. */
static inline int start_pool(void **state)
{
    struct fm_err err = {0};
    (void)state;
    return fm_pool_start(2, &err);
}

static inline int stop_pool(void **state)
{
    (void)state;
    fm_pool_stop();
    return 0;
}

#define TEST_MAIN(setup, teardown)                                                                 \
    int main(void)                                                                                 \
    {                                                                                              \
        return tests_run(setup, teardown);                                                         \
    }

#endif
