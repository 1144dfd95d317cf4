/* State files: saved arrays can be read, and nothing else is accepted. */
#include "lib/base/clock.h"
#include "lib/state/journal.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

enum { N = 1001, RECORDS = 5, RECORD = 640 };

struct arrays {
    double a[N];
    int64_t b;
    struct fm_store store;
};

static void init_arrays(struct arrays *x, int value)
{
    struct fm_err err = {0};
    char spare[RECORD];
    *x = (struct arrays){.b = value};
    for (int i = 0; i < N; i++)
        x->a[i] = value + i / 7.0;
    /* Two records in memory, three in the file. */
    assert_ok(fm_store_init(&x->store, fm_ops_ref(), RECORD, RECORDS, 2 * RECORD, &err));
    assert_int_equal(x->store.resident, 2);
    for (size_t r = 0; r < RECORDS; r++) {
        void *place = fm_store_place(&x->store, r, spare);
        memset(place, value + (int)r, RECORD);
        assert_ok(fm_store_put(&x->store, r, 0, RECORD, place, &err));
    }
}

static size_t list(struct fm_journal_item *item, struct arrays *x)
{
    /* Not the order of the file, in which larger elements come first and names are sorted. */
    item[0] = (struct fm_journal_item){
        .name = "store", .dtype = FM_F32, .count = RECORDS * RECORD / 4, .store = &x->store};
    item[1] = (struct fm_journal_item){.name = "b", .dtype = FM_I64, .count = 1, .data = &x->b};
    item[2] = (struct fm_journal_item){.name = "a", .dtype = FM_F64, .count = N, .data = x->a};
    return 3;
}

static struct fm_digest params(int lr)
{
    struct fm_digest d;
    struct fm_err err = {0};
    assert_int_equal(fm_journal_params(&d, &err, "lr %d", lr), FM_OK);
    return d;
}

static const char *save_state(const char *name, int value)
{
    struct arrays x;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct fm_err err = {0};
    struct fm_digest d = params(1);
    const char *path = scratch(name);
    init_arrays(&x, value);
    assert_ok(fm_journal_save(NULL, path, "fm-test", &d, item, list(item, &x), &err));
    fm_store_release(&x.store);
    return path;
}

TEST(what_was_saved_comes_back)
{
    const char *path = save_state("a.state", 3);
    save_state("a.state", 4); /* replaces the older one */
    struct arrays x, want;
    struct fm_journal j;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct fm_digest d = params(1);
    bool found;
    init_arrays(&x, 0);
    init_arrays(&want, 4);
    assert_ok(fm_journal_open(&j, NULL, path, "fm-test", &d, &found, &err));
    assert_true(found);
    assert_int_equal(fm_journal_count(&j, "a"), N);
    assert_int_equal(fm_journal_count(&j, "none"), 0);
    assert_ok(fm_journal_read(&j, item, list(item, &x), &err));
    fm_journal_close(&j);
    assert_memory_equal(x.a, want.a, sizeof x.a);
    assert_int_equal(x.b, 4);
    for (size_t r = 0; r < RECORDS; r++) {
        char spare[RECORD];
        void *data;
        assert_ok(fm_store_get(&x.store, r, 0, RECORD, &data, spare, &err));
        for (size_t i = 0; i < RECORD; i++)
            assert_int_equal(((char *)data)[i], 4 + (int)r);
    }
    fm_store_release(&x.store);
    fm_store_release(&want.store);
}

TEST(no_file_is_no_state)
{
    struct fm_journal j;
    struct fm_digest d = params(1);
    bool found = true;
    assert_ok(fm_journal_open(&j, NULL, scratch("none"), "fm-test", &d, &found, &err));
    assert_false(found);
    found = true;
    assert_ok(fm_journal_open(&j, NULL, NULL, "fm-test", &d, &found, &err));
    assert_false(found);
    fm_journal_close(&j);
    assert_ok(fm_journal_remove(scratch("none"), "fm-test", &err));
    const char *path = save_state("gone.state", 1);
    assert_ok(fm_journal_remove(path, "fm-test", &err));
    assert_int_equal(access(path, F_OK), -1);
}

/* Neither a file of another program nor one of another tool is replaced or removed. */
TEST(another_file_is_never_replaced)
{
    struct arrays x;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct fm_digest d = params(1);
    const char *path = scratch_write("foreign", "notes\n", 6);
    init_arrays(&x, 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(fm_journal_save(NULL, path, "fm-test", &d, item, list(item, &x), &err),
                         FM_ECREATE);
        assert_ok(fm_journal_remove(path, "fm-test", &err));
    }
    size_t size;
    char *text = scratch_read(path, &size);
    assert_int_equal(size, 6);
    assert_memory_equal(text, "notes\n", 6);
    free(text);
    path = save_state("theirs", 1);
    assert_true(fm_journal_is_own(path, "fm-test"));
    assert_int_equal(fm_journal_save(NULL, path, "fm-other", &d, item, list(item, &x), &err),
                     FM_ECREATE);
    assert_ok(fm_journal_remove(path, "fm-other", &err));
    assert_true(fm_journal_is_own(path, "fm-test"));
    fm_store_release(&x.store);
}

TEST(the_state_of_another_run_is_refused)
{
    const char *path = save_state("b.state", 3);
    struct fm_journal j;
    struct fm_digest d = params(2);
    bool found;
    assert_fails(fm_journal_open(&j, NULL, path, "fm-test", &d, &found, &err), FM_ECONFIG,
                 "other inputs or options");
    d = params(1);
    assert_fails(fm_journal_open(&j, NULL, path, "fm-other", &d, &found, &err), FM_ECONFIG,
                 "fm-test");
    path = scratch_write("c.state", "no header at all", 16);
    assert_int_equal(fm_journal_open(&j, NULL, path, "fm-test", &d, &found, &err), FM_EFORMAT);
}

/* The versions have the same length, so nothing else in the file changes. */
TEST(the_state_of_another_version_is_refused)
{
    const char *path = save_state("e.state", 3);
    struct fm_journal j;
    struct fm_digest d = params(1);
    bool found;
    char want[128], other[] = FM_VERSION;
    size_t size, n = strlen(FM_VERSION);
    other[0] = other[0] == '9' ? '8' : '9';
    char *bytes = scratch_read(path, &size);
    char *at = memmem(bytes, size, "\"fm.version\":\"", 14);
    assert_non_null(at);
    assert_memory_equal(at + 14, FM_VERSION, n);
    memcpy(at + 14, other, n);
    scratch_write("e.state", bytes, size);
    free(bytes);
    assert_int_equal(fm_journal_open(&j, NULL, path, "fm-test", &d, &found, &err), FM_EFORMAT);
    snprintf(want, sizeof want, "is of version %s of the fm suite, but this is %s", other,
             FM_VERSION);
    assert_non_null(strstr(err.text, want));
    assert_true(fm_journal_is_own(path, "fm-test"));
}

TEST(a_flipped_bit_is_found)
{
    const char *path = save_state("d.state", 3);
    struct arrays x;
    struct fm_journal j;
    struct fm_journal_item item[FM_JOURNAL_ITEMS_MAX];
    struct fm_digest d = params(1);
    bool found;
    scratch_flip(path, -100);
    init_arrays(&x, 0);
    assert_ok(fm_journal_open(&j, NULL, path, "fm-test", &d, &found, &err));
    assert_fails(fm_journal_read(&j, item, list(item, &x), &err), FM_EFORMAT, "damaged");
    /* A shape that differs from the file's is refused, too. */
    item[0].count--;
    assert_int_equal(fm_journal_read(&j, item, 3, &err), FM_EFORMAT);
    assert_int_equal(fm_journal_read(&j, item, 2, &err), FM_EFORMAT);
    fm_journal_close(&j);
    fm_store_release(&x.store);
}

TEST(saving_waits_longer_where_it_costs_more)
{
    struct fm_journal_clock clock = {0};
    fm_journal_saved(&clock, fm_clock_now());
    assert_false(fm_journal_due(&clock));
    clock.saved -= 1.1;
    assert_true(fm_journal_due(&clock));
    clock.cost = 0.5;
    assert_false(fm_journal_due(&clock));
    clock.saved -= 9;
    assert_true(fm_journal_due(&clock));
    clock.cost = 100;
    assert_false(fm_journal_due(&clock));
    clock.saved -= 10;
    assert_true(fm_journal_due(&clock));
}

TEST_MAIN(NULL, NULL)
