/*
 * Test lib/base, which all other code uses: for example, conversions of all float16 and bfloat16
 * values, and nested loops, which must give the same bytes on any number of threads.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/base/fatal.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/base/printable.h"
#include "lib/base/units.h"
#include "tests/unit/child.h"
#include "tests/unit/test.h"

/* err */

TEST(a_sentence_is_kept_with_its_code)
{
    assert_int_equal(fm_fail(&err, FM_EFORMAT, "offset %d is past the end (%d)", 9, 8), FM_EFORMAT);
    assert_string_equal(err.text, "offset 9 is past the end (8)");
    assert_int_equal(err.code, FM_EFORMAT);
    assert_int_equal(fm_within(&err, "tensor '%s'", "w"), FM_EFORMAT);
    assert_string_equal(err.text, "tensor 'w': offset 9 is past the end (8)");
}

TEST(advice_stays_with_its_sentence)
{
    fm_fail(&err, FM_ECREATE, "'x' exists");
    assert_int_equal(fm_advise(&err, FM_ADVISE_REPLACE), FM_ECREATE);
    fm_within(&err, "--output");
    assert_string_equal(err.text, "--output: 'x' exists");
    assert_int_equal(err.advice, FM_ADVISE_REPLACE);
    fm_fail(&err, FM_EIO, "another");
    assert_int_equal(err.advice, FM_ADVISE_NONE);
    fm_advise(&err, FM_ADVISE_REPLACE);
    errno = EIO;
    fm_fail_errno(&err, "one more");
    assert_int_equal(err.advice, FM_ADVISE_NONE);
}

TEST(control_bytes_in_messages_are_replaced)
{
    fm_fail(&err, FM_EFORMAT, "name '%s'", "\x1b[2J\n\x7f\xc3\xa9");
    assert_string_equal(err.text, "name '?[2J??\xc3\xa9'");
    fm_within(&err, "%s", "a\tb");
    assert_string_equal(err.text, "a?b: name '?[2J??\xc3\xa9'");
}

TEST(terminal_controls_are_not_printed)
{
    static const struct {
        const char *text, *plain, *json;
    } c[] = {
        {"caf\xc3\xa9 \xf0\x9f\x98\x80", "caf\xc3\xa9 \xf0\x9f\x98\x80",
         "caf\xc3\xa9 \xf0\x9f\x98\x80"},
        {"\x1b]0;x\x07\r\t\x7f", "?]0;x????", "\\u001b]0;x\\u0007\\u000d\\u0009\\u007f"},
        {"\xc2\x9b"
         "31m",
         "??31m", "\\u009b31m"},
        {"a\xe2\x80\xae"
         "b\xe2\x81\xa6",
         "a???b???", "a\\u202eb\\u2066"},
        {"\xf3\xa0\x81\x81", "????", "\\udb40\\udc41"},
        {"\xff\x80\xc3", "???", "\\ufffd\\ufffd\\ufffd"},
        {"\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80", "?????????", NULL},
        {"\xe2\x80", "??", "\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char text[64];
        strcpy(text, c[i].text);
        fm_printable(text, false);
        assert_string_equal(text, c[i].plain);
        char written[64] = "";
        FILE *out = fmemopen(written, sizeof written, "w");
        assert_non_null(out);
        fm_printable_write(out, c[i].text);
        fclose(out);
        assert_string_equal(written, c[i].plain);
        char *json = fm_printable_json(c[i].text);
        assert_non_null(json);
        if (c[i].json)
            assert_string_equal(json, c[i].json);
        free(json);
    }
    char lines[] = "a\nb\r\n";
    fm_printable(lines, true);
    assert_string_equal(lines, "a\nb?\n");
    fm_fail(&err, FM_EFORMAT, "family '%s'", "\xc2\x9b\xff");
    assert_string_equal(err.text, "family '?\?\?'");
}

TEST(long_sentences_are_cut_and_stay_strings)
{
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    fm_fail(&err, FM_EIO, "%s", text);
    assert_int_equal(strlen(err.text), FM_ERR_TEXT_BYTES - 1);
    fm_within(&err, "%s", text);
    assert_int_equal(strlen(err.text), FM_ERR_TEXT_BYTES - 1);
    assert_non_null(strstr(err.text, ": "));
    for (int i = 0; i < 10; i++)
        fm_within(&err, "context %d", i);
    assert_memory_equal(err.text, "context 9: context 8: ", 22);
    errno = EIO;
    fm_fail_errno(&err, "%s", text);
    assert_int_equal(strlen(err.text), FM_ERR_TEXT_BYTES - 1);
}

TEST(errno_chooses_the_code)
{
    static const struct {
        int e, code;
    } c[] = {{ENOENT, FM_ENOENT}, {ENOTDIR, FM_ENOENT}, {EACCES, FM_EPERM}, {EPERM, FM_EPERM},
             {EROFS, FM_EPERM},   {ENOMEM, FM_ENOMEM},  {EPIPE, FM_EPIPE},  {EEXIST, FM_ECREATE},
             {EIO, FM_EIO},       {ENOSPC, FM_EIO},     {EMFILE, FM_EIO}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        errno = c[i].e;
        assert_int_equal(fm_fail_errno(&err, "cannot open '%s'", "x"), c[i].code);
        assert_int_equal(err.code, c[i].code);
        assert_non_null(strstr(err.text, strerror(c[i].e)));
    }
}

/* mem */

TEST(sizes_that_overflow_are_noticed)
{
    size_t r, room = 0;
    assert_false(fm_mul(&r, SIZE_MAX / 2 + 1, 2));
    assert_false(fm_add(&r, SIZE_MAX, 1));
    assert_true(fm_mul(&r, SIZE_MAX / 3, 3) && r == SIZE_MAX);
    assert_true(fm_add(&r, SIZE_MAX - 1, 1) && r == SIZE_MAX);
    assert_null(fm_alloc(SIZE_MAX / 4, 5, "a giant", &err));
    assert_int_equal(err.advice, FM_ADVISE_LESS_MEMORY);
    assert_int_equal(err.code, FM_ENOMEM);
    assert_non_null(strstr(err.text, "a giant"));
    assert_null(fm_alloc(SIZE_MAX - 8, 1, "a giant", &err));
    void *p = NULL;
    assert_int_equal(fm_grow(&p, &room, SIZE_MAX / 2, 3, "a giant", &err), FM_ENOMEM);
    assert_null(p);
}

TEST(blocks_are_aligned_zeroed_and_may_be_empty)
{
    for (size_t n = 0; n < 300; n += 13) {
        unsigned char *p = fm_alloc(n, 3, "a block", &err);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % FM_ALIGN, 0);
        for (size_t i = 0; i < 3 * n; i++)
            assert_int_equal(p[i], 0);
        free(p);
    }
    uint32_t *grown = NULL, *first;
    size_t room = 0;
    assert_ok(FM_GROW(grown, room, 3, "words", &err));
    assert_true(grown && room >= 3);
    memcpy(grown, "abcdefghijkl", 12);
    first = grown;
    assert_ok(FM_GROW(grown, room, room, "words", &err));
    assert_ptr_equal(grown, first); /* memory suffices */
    size_t before = room;
    assert_ok(FM_GROW(grown, room, room + 1, "words", &err));
    assert_true(room == 2 * before);
    assert_ok(FM_GROW(grown, room, 3000, "words", &err));
    assert_true(room == 3000);
    assert_memory_equal(grown, "abcdefghijkl", 12);
    free(grown);
    char *copy = fm_strdup("text", &err);
    assert_string_equal(copy, "text");
    free(copy);
}

/* dtype */

TEST(names_and_sizes_agree)
{
    for (int t = 0; t < FM_DTYPES; t++) {
        const char *name = fm_dtype_name((enum fm_dtype)t);
        assert_int_equal(fm_dtype_from_name(name, strlen(name)), t);
        assert_int_equal(fm_dtype_from_name(name, strlen(name) - 1) == t, 0);
        int bits = fm_dtype_bits((enum fm_dtype)t);
        assert_true(bits == 4 || bits == 6 || bits == 8 || bits == 16 || bits == 32 || bits == 64);
    }
    assert_int_equal(fm_dtype_from_name("f32", 3), -1);
    assert_int_equal(fm_dtype_from_name("", 0), -1);
    assert_null(fm_dtype_name(FM_DTYPES));
    assert_null(fm_dtype_name((enum fm_dtype) - 1));
}

/* The value of these bits by definition, from sign, exponent and fraction. */
static double value_of(uint32_t bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    int e = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double f = (double)(bits & ((1u << fraction_bits) - 1));
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (e == (1 << exponent_bits) - 1)
        return f != 0 ? NAN : sign * INFINITY;
    if (e == 0)
        return sign * ldexp(f, 1 - bias - fraction_bits);
    return sign * ldexp(f + ldexp(1, fraction_bits), e - bias - fraction_bits);
}

static void widens_like_the_definition(enum fm_dtype dtype, int exponent_bits, int fraction_bits)
{
    static uint16_t all[65536], back[65536];
    static float wide[65536];
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    fm_dtype_to_f32(wide, all, dtype, 65536);
    fm_dtype_from_f32(back, wide, dtype, 65536);
    for (int i = 0; i < 65536; i++) {
        double v = value_of((uint32_t)i, exponent_bits, fraction_bits);
        if (isnan(v)) {
            assert_true(isnan(wide[i]));
            assert_true(isnan(value_of(back[i], exponent_bits, fraction_bits)));
        } else {
            assert_true((double)wide[i] == v && !signbit(wide[i]) == !signbit(v));
            assert_int_equal(back[i], i); /* the same bits */
        }
        assert_int_equal(fm_dtype_nonfinite(&all[i], dtype, 1), isfinite(v) ? 1 : 0);
    }
}

TEST(every_half_and_bfloat_widens_exactly)
{
    widens_like_the_definition(FM_F16, 5, 10);
    widens_like_the_definition(FM_BF16, 8, 7);
}

/* For neighbours a < b: values below the middle round to a, those above it to b, the middle to the
 * even one.  Check all neighbours from 0 to infinity, and their negatives. */
static void narrows_to_the_nearest(enum fm_dtype dtype, int exponent_bits, int fraction_bits)
{
    int last = ((1 << exponent_bits) - 1) << fraction_bits; /* Inf, the result of overflow */
    for (int i = 0; i < last; i++) {
        double a = value_of((uint32_t)i, exponent_bits, fraction_bits);
        double b = i + 1 < last ? value_of((uint32_t)i + 1, exponent_bits, fraction_bits)
                                : ldexp(1, 1 << (exponent_bits - 1));
        float middle = (float)((a + b) / 2); /* exact, because float32 has at least one bit more */
        float in[6] = {nextafterf(middle, 0), middle, nextafterf(middle, INFINITY)};
        uint16_t out[6], even = (uint16_t)(i + (i & 1));
        for (int k = 0; k < 3; k++)
            in[3 + k] = -in[k];
        fm_dtype_from_f32(out, in, dtype, 6);
        const uint16_t want[3] = {(uint16_t)i, even, (uint16_t)(i + 1)};
        for (int k = 0; k < 3; k++)
            if (out[k] != want[k] || out[3 + k] != (want[k] | 0x8000))
                fail_msg("%s: %a gives %04x and %04x, not %04x", fm_dtype_name(dtype), in[k],
                         out[k], out[3 + k], want[k]);
    }
}

TEST(narrowing_rounds_to_nearest_even)
{
    narrows_to_the_nearest(FM_F16, 5, 10);
    narrows_to_the_nearest(FM_BF16, 8, 7);
    float f[4] = {INFINITY, -INFINITY, 1e30f, -0.0f};
    uint16_t h[4];
    fm_dtype_from_f32(h, f, FM_F16, 4);
    assert_int_equal(h[0], 0x7c00);
    assert_int_equal(h[1], 0xfc00);
    assert_int_equal(h[2], 0x7c00);
    assert_int_equal(h[3], 0x8000);
}

TEST(the_first_nonfinite_is_found_anywhere)
{
    enum { N = 9001 };
    float *f = calloc(N, sizeof *f);
    uint16_t *h = calloc(N, sizeof *h);
    assert_int_equal(fm_dtype_nonfinite(f, FM_F32, N), N);
    assert_int_equal(fm_dtype_nonfinite(h, FM_BF16, N), N);
    assert_int_equal(fm_dtype_nonfinite(h, FM_F16, 0), 0);
    static const size_t places[] = {9000, 8192, 8191, 4096, 4095, 17, 0};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        f[places[i]] = i % 2 ? NAN : -INFINITY;
        h[places[i]] = 0x7fc0; /* a NaN in both formats */
        assert_int_equal(fm_dtype_nonfinite(f, FM_F32, N), places[i]);
        assert_int_equal(fm_dtype_nonfinite(h, FM_BF16, N), places[i]);
        assert_int_equal(fm_dtype_nonfinite(h, FM_F16, N), places[i]);
    }
    free(f);
    free(h);
}

/* pool */

enum { OUTER = 37, INNER = 53 };

struct work {
    double sum[OUTER], part[OUTER][INNER];
    int done[OUTER][INNER];
};

struct inner {
    struct work *work;
    int i;
};

static void do_inner(void *arg, int j)
{
    struct inner *in = arg;
    struct fm_mark mark = fm_scratch_mark();
    size_t n = (size_t)(1 + (in->i * 131 + j * 17) % 5000);
    double *x = fm_scratch(n * sizeof *x), s = 0;
    for (size_t k = 0; k < n; k++)
        x[k] = 1.0 / (double)(k + (size_t)in->i + (size_t)j + 1);
    for (size_t k = 0; k < n; k++)
        s += x[k];
    in->work->part[in->i][j] = s;
    in->work->done[in->i][j]++;
    fm_scratch_release(mark);
}

static void do_outer(void *arg, int i)
{
    struct inner in = {arg, i};
    fm_pool_for(INNER, do_inner, &in);
    double s = 0;
    for (int j = 0; j < INNER; j++)
        s += in.work->part[i][j];
    in.work->sum[i] = s;
}

TEST(nested_loops_give_the_same_bytes_on_any_threads)
{
    static struct work alone, together;
    fm_pool_for(OUTER, do_outer, &alone);
    assert_int_equal(fm_pool_threads(), 1);
    for (int threads = 1; threads <= 8; threads++) {
        assert_ok(fm_pool_start(threads, &err));
        assert_int_equal(fm_pool_threads(), threads);
        for (int round = 0; round < 3; round++) {
            memset(&together, 0, sizeof together);
            fm_pool_for(OUTER, do_outer, &together);
            assert_memory_equal(&alone, &together, sizeof alone);
        }
        fm_pool_stop();
        assert_int_equal(fm_pool_threads(), 1);
    }
    for (int i = 0; i < OUTER; i++)
        for (int j = 0; j < INNER; j++)
            assert_int_equal(alone.done[i][j], 1);
}

/* Two tasks on two threads begin together.  The one that is not on the caller's thread then runs an
 * inner loop that needs both threads. */
struct meeting {
    pthread_barrier_t begun;
    pthread_mutex_t lock;
    pthread_cond_t came;
    pthread_t caller;
    int there;
    bool met;
};

static void meet(void *arg, int i)
{
    struct meeting *m = arg;
    struct timespec end;
    (void)i;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 10;
    pthread_mutex_lock(&m->lock);
    m->there++;
    pthread_cond_broadcast(&m->came);
    while (m->there < 2 && pthread_cond_timedwait(&m->came, &m->lock, &end) == 0)
        ;
    m->met = m->there == 2;
    pthread_mutex_unlock(&m->lock);
}

static void begin_together(void *arg, int i)
{
    struct meeting *m = arg;
    (void)i;
    pthread_barrier_wait(&m->begun);
    if (!pthread_equal(pthread_self(), m->caller))
        fm_pool_for(2, meet, m);
}

TEST(a_waiting_thread_helps_with_inner_loops)
{
    struct meeting m = {.lock = PTHREAD_MUTEX_INITIALIZER,
                        .came = PTHREAD_COND_INITIALIZER,
                        .caller = pthread_self()};
    pthread_barrier_init(&m.begun, NULL, 2);
    assert_ok(fm_pool_start(2, &err));
    fm_pool_for(2, begin_together, &m);
    fm_pool_stop();
    pthread_barrier_destroy(&m.begun);
    assert_true(m.met);
}

struct order {
    int at, next[100];
};

static void note_index(void *arg, int i)
{
    struct order *o = arg;
    o->next[o->at++] = i;
}

TEST(one_thread_takes_indices_in_order)
{
    struct order o = {0};
    assert_ok(fm_pool_start(1, &err));
    fm_pool_for(100, note_index, &o);
    fm_pool_for(0, note_index, &o);
    fm_pool_for(-3, note_index, &o);
    fm_pool_stop();
    assert_int_equal(o.at, 100);
    for (int i = 0; i < 100; i++)
        assert_int_equal(o.next[i], i);
}

TEST(thread_counts_are_checked)
{
    assert_int_equal(fm_pool_start(-1, &err), FM_EUSAGE);
    assert_fails(fm_pool_start(FM_THREADS_MAX + 1, &err), FM_EUSAGE, "1025 threads (limit 1024)");
    assert_ok(fm_pool_start(0, &err));
    assert_true(fm_pool_threads() >= 1);
    fm_pool_stop();
}

TEST(scratch_is_a_stack)
{
    struct fm_mark outer = fm_scratch_mark();
    char *a = fm_scratch(100);
    memset(a, 'a', 100);
    struct fm_mark inner = fm_scratch_mark();
    char *b = fm_scratch(3 << 20); /* more than the first chunk holds */
    memset(b, 'b', 3 << 20);
    char *c = fm_scratch(0), *d = fm_scratch(1);
    assert_non_null(c);
    *d = 'd';
    for (int i = 0; i < 100; i++)
        assert_int_equal(a[i], 'a');
    assert_int_equal((uintptr_t)a % FM_ALIGN, 0);
    assert_int_equal((uintptr_t)b % FM_ALIGN, 0);
    assert_int_equal((uintptr_t)d % FM_ALIGN, 0);
    fm_scratch_release(inner);
    assert_ptr_equal(fm_scratch(3 << 20), b); /* the memory is kept */
    fm_scratch_release(outer);
    /* The stack is empty: its two chunks are replaced by one, which is kept. */
    a = fm_scratch(100);
    b = fm_scratch(3 << 20);
    assert_true(b > a && b - a < 4096);
    fm_scratch_release(outer);
    assert_ptr_equal(fm_scratch(100), a);
    fm_scratch_release(outer);
}

static void watch_a_library(bool starved)
{
    const struct rlimit core = {0, 0}, all = {1 << 20, 1 << 20}; /* less than the process
                                                                    already has */
    setrlimit(RLIMIT_CORE, &core);
    signal(SIGSEGV, SIG_DFL); /* instead of cmocka's handler */
    if (freopen("/dev/null", "w", stderr) == NULL || (starved && setrlimit(RLIMIT_AS, &all) != 0))
        _exit(100);
    fm_fatal_watch("a library");
}

TEST(a_fatal_sentence_ends_with_the_advice)
{
    int ends[2], status = 0;
    char said[256] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        fm_fatal_advise("use less");
        fm_fatal_memory("no memory for %d bytes", 7);
    }
    close(ends[1]);
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), FM_ENOMEM);
    assert_non_null(strstr(said, ": no memory for 7 bytes; use less\n"));
}

static int crash_with_memory(void)
{
    watch_a_library(false);
    abort();
}

/* QEMU's user mode accepts the limit and ignores it. */
static int can_be_starved(void)
{
    watch_a_library(true);
    return mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

static int crash_without_memory(void)
{
    watch_a_library(true);
    abort();
}

static int write_through_null(void)
{
    watch_a_library(true);
    *(volatile int *)NULL = 1;
    return 101;
}

static int exit_inside(void)
{
    watch_a_library(false);
    exit(1);
}

TEST(an_exit_inside_a_library_has_status_71)
{
    assert_int_equal(in_child(exit_inside, -2, -2), FM_ENOMEM);
}

static long stack_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmStk: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib;
}

static int reserve_stack(void)
{
    struct fm_err err = {0};
    return fm_reserve_stack(&err) || stack_kib() < (long)(FM_STACK_BYTES >> 10);
}

static int reserve_stack_starved(void)
{
    struct fm_err err = {0};
    watch_a_library(true);
    fm_fatal_unwatch();
    return fm_reserve_stack(&err);
}

static int reserve_limited_stack(void)
{
    struct fm_err err = {0};
    const struct rlimit limit = {FM_STACK_BYTES, FM_STACK_BYTES};
    return setrlimit(RLIMIT_STACK, &limit) == 0 ? fm_reserve_stack(&err) : -1;
}

TEST(the_stack_grows_early_or_the_lack_of_memory_is_reported)
{
    assert_int_equal(in_child(reserve_limited_stack, -2, -2), FM_ENOMEM);
    assert_int_equal(in_child(reserve_stack, -2, -2), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (in_child(can_be_starved, -2, -2) == 1)
        assert_int_equal(in_child(reserve_stack_starved, -2, -2), FM_ENOMEM);
#endif
}

/* A signal sent with kill(2), during the library's call and after it. */
static int killed_inside(void)
{
    watch_a_library(true);
    kill(getpid(), SIGSEGV);
    return 101;
}

static int killed_after(void)
{
    watch_a_library(false);
    fm_fatal_unwatch();
    kill(getpid(), SIGSEGV);
    return 101;
}

TEST(a_watched_crash_without_free_memory_has_status_71)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    assert_int_equal(in_child(crash_with_memory, -2, -2), 200 + SIGABRT);
    if (in_child(can_be_starved, -2, -2) != 1)
        skip();
    assert_int_equal(in_child(crash_without_memory, -2, -2), FM_ENOMEM);
    assert_int_equal(in_child(write_through_null, -2, -2), FM_ENOMEM);
}

TEST(a_crash_sent_from_outside_ends_the_process)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    assert_int_equal(in_child(killed_inside, -2, -2), 200 + SIGSEGV);
    assert_int_equal(in_child(killed_after, -2, -2), 200 + SIGSEGV);
}

/* names */

TEST(records_are_sorted_and_found_by_their_names)
{
    struct record {
        const char *name;
        int value;
    } r[] = {{"b", 2}, {"\xff", 4}, {"a.10", 1}, {"a", 0}, {"b.", 3}};
    assert_ptr_equal(fm_names_among(r, 5, sizeof *r, "a"), &r[3]);
    assert_null(fm_names_among(r, 3, sizeof *r, "a"));
    assert_null(fm_names_among(NULL, 0, sizeof *r, "a"));
    fm_names_sort(r, 5, sizeof *r);
    for (int i = 0; i < 5; i++)
        assert_int_equal(r[i].value, i);
    assert_null(fm_names_twin(r, 5, sizeof *r));
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(fm_names_find(r, 5, sizeof *r, r[i].name), &r[i]);
    assert_null(fm_names_find(r, 5, sizeof *r, "a."));
    r[4].name = r[3].name;
    assert_string_equal(fm_names_twin(r, 5, sizeof *r), "b.");
    assert_null(fm_names_twin(r, 4, sizeof *r));
    assert_ok(fm_names_distinct(r, 4, sizeof *r, FM_EFORMAT, "file", "is here twice", &err));
    struct record first = r[0];
    r[0] = r[3];
    r[3] = first;
    assert_fails(fm_names_distinct(r, 5, sizeof *r, FM_EFORMAT, "file", "is here twice", &err),
                 FM_EFORMAT, "file 'b.' is here twice");
    assert_int_equal(r[3].value, 0);
    fm_names_sort(NULL, 0, sizeof *r);
    assert_null(fm_names_find(NULL, 0, sizeof *r, "a"));
    assert_null(fm_names_twin(NULL, 0, sizeof *r));
}

TEST(sizes_and_times_are_printed_in_short_form)
{
    static const struct {
        double seconds;
        const char *text;
    } time[] = {{-1, "under 1 s"},
                {0.5, "under 1 s"},
                {4.26, "4.3 s"},
                {45.4, "45 s"},
                {59.6, "1 min"},
                {89.6, "1 min 30 s"},
                {560, "9 min 20 s"},
                {3599.6, "1 h"},
                {33477, "9 h 18 min"},
                {86399, "1 d"},
                {3 * 86400 + 4.4 * 3600, "3 d 4 h"},
                {1e300, NULL}};
    static const struct {
        uint64_t bytes;
        const char *text;
    } size[] = {{0, "0 B"}, {999, "999 B"}, {999600, "1 MB"}, {12900000000, "12.9 GB"}};
    for (size_t i = 0; i < sizeof time / sizeof *time; i++) {
        char text[32];
        fm_units_time(text, time[i].seconds);
        if (time[i].text)
            assert_string_equal(text, time[i].text);
    }
    for (size_t i = 0; i < sizeof size / sizeof *size; i++) {
        char text[32];
        fm_units_bytes(text, size[i].bytes);
        assert_string_equal(text, size[i].text);
    }
}

/* The printed size is never less than the number of bytes. */
TEST(sizes_for_options_are_rounded_up)
{
    char text[32];
    fm_units_option(text, 999);
    assert_string_equal(text, "999B");
    fm_units_option(text, 16961921);
    assert_string_equal(text, "16.962MB");
    fm_units_option(text, 743210001);
    assert_string_equal(text, "743.22MB");
    fm_units_option(text, 8000000000);
    assert_string_equal(text, "8.0000GB");
}

/* fm_scratch_reserve replaces the chunks of earlier uses with one. */
TEST(reserved_scratch_is_one_chunk)
{
    struct fm_mark mark = fm_scratch_mark();
    fm_scratch(100);
    fm_scratch_release(mark);
    fm_scratch_reserve(5 << 20);
    mark = fm_scratch_mark();
    fm_scratch(1 << 20);
    fm_scratch(4 << 20);
    assert_int_equal(fm_scratch_mark().chunk, mark.chunk);
    fm_scratch_release(mark);
}

static int take_too_much(void)
{
    alarm(10);
    if (freopen("/dev/null", "w", stderr) == NULL)
        return 100;
    fm_scratch(SIZE_MAX / 2 + 2);
    return 0;
}

TEST(scratch_of_any_size_is_given_or_refused)
{
    assert_int_equal(in_child(take_too_much, -2, -2), FM_ENOMEM);
}

TEST_MAIN(NULL, NULL)
