/* Records must come back the same whatever share of them fits into memory. */
#include "lib/state/store.h"
#include "tests/unit/test.h"

enum { RECORD = 200, COUNT = 7 };

static void put_all(const struct fm_store *s)
{
    struct fm_err err = {0};
    char spare[RECORD];
    for (size_t i = 0; i < COUNT; i++) {
        char *data = fm_store_place(s, i, spare);
        memset(data, 'a' + (int)i, RECORD);
        assert_ok(fm_store_put(s, i, 0, RECORD, data, &err));
    }
}

static void expect_all(const struct fm_store *s, size_t resident)
{
    struct fm_err err = {0};
    char spare[RECORD], want[RECORD];
    assert_int_equal(s->resident, resident);
    for (size_t i = COUNT; i-- > 0;) {
        void *data = NULL;
        memset(want, 'a' + (int)i, RECORD);
        assert_ok(fm_store_get(s, i, 0, RECORD, &data, spare, &err));
        assert_memory_equal(data, want, RECORD);
        assert_true((data == spare) == (i >= resident));
    }
}

TEST(records_come_back_whatever_the_limit)
{
    const struct {
        uint64_t memory;
        size_t resident;
    } cases[] = {{0, 0}, {255, 0}, {256, 1}, {3 * 256 + 9, 3}, {7 * 256, 7}, {UINT64_MAX, 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fm_store s = {0};
        assert_ok(fm_store_init(&s, fm_ops_ref(), RECORD, COUNT, cases[i].memory, &err));
        put_all(&s);
        expect_all(&s, cases[i].resident);
        fm_store_release(&s);
    }
}

TEST(a_part_of_a_record_is_changed)
{
    for (uint64_t memory = 0; memory <= 4096; memory += 4096) {
        struct fm_store s = {0};
        char spare[RECORD], want[RECORD];
        void *data = NULL;
        assert_ok(fm_store_init(&s, fm_ops_ref(), RECORD, COUNT, memory, &err));
        put_all(&s);
        assert_ok(fm_store_put(&s, 2, 50, 7, "1234567", &err));
        memset(want, 'c', RECORD);
        memcpy(want + 50, "1234567", 7);
        assert_ok(fm_store_get(&s, 2, 0, RECORD, &data, spare, &err));
        assert_memory_equal(data, want, RECORD);
        assert_ok(fm_store_get(&s, 2, 49, 9, &data, spare, &err));
        assert_memory_equal(data, "c1234567c", 9);
        fm_store_release(&s);
    }
}

TEST(sizes_that_overflow_are_refused)
{
    struct fm_store s = {0};
    assert_int_equal(fm_store_init(&s, fm_ops_ref(), SIZE_MAX / 2, 3, 0, &err), FM_ENOMEM);
    fm_store_release(&s);
    assert_int_equal(fm_store_init(&s, fm_ops_ref(), SIZE_MAX, 1, 0, &err), FM_ENOMEM);
    fm_store_release(&s);
}

TEST_MAIN(NULL, NULL)
