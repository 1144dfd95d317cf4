/* Test what `make DEBUG=1` adds: a table of operations that checks outputs, and a trace of
 * events. */
#include <math.h>
#include <sys/mman.h>

#include "kernels/ops/scan.h"
#include "lib/base/trace.h"
#include "lib/run/machine.h"
#include "tests/unit/child.h"
#include "tests/unit/sweeps.h"
#include "tests/unit/test.h"

/* Run body() in a child.  Returns how the child ended, and its standard error in `said`. */
static int said_by(char said[4096], int (*body)(void))
{
    int log = memfd_create("stderr", 0), before = dup(STDERR_FILENO);
    assert_true(log >= 0 && before >= 0);
    dup2(log, STDERR_FILENO);
    int status = in_child(body, -2, -2);
    dup2(before, STDERR_FILENO);
    ssize_t n = pread(log, said, 4095, 0);
    assert_true(n >= 0);
    said[n] = 0;
    close(before);
    close(log);
    return status;
}

enum { ROWS = 3, I = 4 };
static float gu[ROWS * 2 * I], h[ROWS * I];

static const struct fm_ops *fill_gu(void)
{
    for (int i = 0; i < ROWS * 2 * I; i++)
        gu[i] = 0.5f;
    return fm_ops_scanned(fm_ops_ref());
}

/* Row 2, channel 3 of h comes from a NaN in gu. */
static int swiglu_of_nan(void)
{
    const struct fm_ops *ops = fill_gu();
    gu[2 * 2 * I + 2 * 3] = NAN;
    fm_scan_layer(3);
    ops->swiglu(fm_to_f32(h), gu, ROWS, I);
    return 0;
}

static int swiglu_of_numbers(void)
{
    const struct fm_ops *ops = fill_gu();
    ops->swiglu(fm_to_f32(h), gu, ROWS, I);
    return 0;
}

/* Rows of C with gaps between them: the gaps are not output. */
static int gemm_between(float bad)
{
    static float A[2] = {1, 1}, B[2] = {1, 2}, C[2 * 5];
    for (int i = 0; i < 10; i++)
        C[i] = NAN;
    A[1] = bad;
    fm_ops_scanned(fm_ops_ref())
        ->gemm(false, false, 2, 2, 1, 1, fm_f32(A), 1, fm_f32(B), 2, 0, C, 5);
    return 0;
}

static int gemm_of_numbers(void)
{
    return gemm_between(1);
}

static int gemm_of_inf(void)
{
    return gemm_between(INFINITY);
}

/* Sums are doubles. */
static int sums_of_inf(void)
{
    static double c[2] = {0, INFINITY};
    static float ones[2] = {1, 1};
    fm_ops_scanned(fm_ops_ref())->channel_sums(c, fm_f32(ones), fm_f32(ones), 1, 2);
    return 0;
}

TEST(the_operation_that_wrote_nan_is_named)
{
    char said[4096];
    assert_int_equal(said_by(said, swiglu_of_numbers), 0);
    assert_string_equal(said, "");
    assert_int_equal(said_by(said, swiglu_of_nan), 200 + SIGABRT);
    assert_string_equal(said,
                        "test_debug: layer 3: swiglu wrote a value that is not finite (h, row "
                        "2, column 3)\n");
}

TEST(rows_apart_and_sums_are_scanned)
{
    char said[4096];
    assert_int_equal(said_by(said, gemm_of_numbers), 0);
    assert_int_equal(said_by(said, gemm_of_inf), 200 + SIGABRT);
    assert_string_equal(said,
                        "test_debug: outside the layers: gemm wrote a value that is not finite "
                        "(C, row 1, column 0)\n");
    assert_int_equal(said_by(said, sums_of_inf), 200 + SIGABRT);
    assert_non_null(
        strstr(said, "channel_sums wrote a value that is not finite (c, row 0, column 1)"));
}

/* The wrappers of each table call the functions of that table. */
TEST(a_table_has_one_scanned_table)
{
    const struct fm_ops *cpu, *ref = fm_ops_ref();
    assert_ok(fm_ops_cpu(&cpu, FM_PRECISION_F32, &err));
    const struct fm_ops *a = fm_ops_scanned(ref), *b = fm_ops_scanned(cpu);
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(a, fm_ops_scanned(ref));
    assert_ptr_equal(a->f32, a);
    assert_string_equal(b->name, cpu->name);
    assert_ptr_equal(b->f32, b);
}

static int print_two_events(void)
{
    setenv("FM_TRACE", "load,nothing", 1);
    if (fm_trace_wanted(FM_TRACE_LOAD))
        fm_trace_print(FM_TRACE_LOAD, "layer %d of a\033file", 7);
    return fm_trace_wanted(FM_TRACE_SWEEP);
}

TEST(events_that_are_named_are_printed)
{
    char said[4096], *line = said;
    assert_int_equal(said_by(said, print_two_events), 0);
    const char *refused =
        "test_debug: FM_TRACE: no events 'nothing'; use sweep, load, io or pool\n";
    assert_memory_equal(said, refused, strlen(refused));
    assert_true(strtod(said + strlen(refused), &line) > 0);
    assert_string_equal(line, " load: layer 7 of a?file\n");
}

/* Forward and backward. */
static int sweep_once(void)
{
    struct sweeps u;
    struct sweeps_seen seen;
    sweeps_open(&u, false, "grad.ids", 1, 1, 1 << 30);
    sweeps_seen_init(&seen, &u, NULL);
    struct fm_lane lane = {.teacher = -1, .ce = 1, .backward = true};
    struct fm_batch batch = sweeps_whole(&u);
    struct fm_visitor visitor = sweeps_visitor(&seen);
    int rc = fm_sweep_run(u.sweep, &batch, 1, &lane, 1, &visitor, u.measure, NULL, &sweeps_err);
    sweeps_seen_release(&seen);
    sweeps_close(&u);
    return rc;
}

/* Sweep with the table that tools use. */
static int traced_sweep(void)
{
    const struct fm_ops *ops;
    struct fm_machine machine = {.device = "ref"};
    setenv("FM_TRACE", "sweep", 1);
    return fm_machine_ops(&ops, &machine, FM_F32, &sweeps_err) || ops == fm_ops_ref() ||
           sweeps_run_on("odd-mixtral", ops, sweep_once);
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    while ((text = strstr(text, part))) {
        n++;
        text += strlen(part);
    }
    return n;
}

TEST(a_sweep_lists_each_layer_once_per_direction)
{
    char said[4096], part[64];
    static const char *const way[] = {"forward", "backward"};
    if (!FM_DEBUGGING)
        skip();
    assert_int_equal(said_by(said, traced_sweep), 0);
    assert_int_equal(count_of(said, "\n"), 2 * 3);
    for (int i = 0; i < 2 * 3; i++) {
        snprintf(part, sizeof part, " sweep: layer %d of 3 %s, 1 tasks\n", i / 2, way[i % 2]);
        assert_int_equal(count_of(said, part), 1);
    }
}

/* The sixth swiglu belongs to layer 1, because a layer has five experts. */
static void fail_sixth(struct fm_out y, const float *x, int n, int k)
{
    static int calls;
    fm_ops_ref()->swiglu(y, x, n, k);
    if (++calls == 6)
        ((float *)y.data)[0] = INFINITY;
}

static int failing_sweep(void)
{
    static struct fm_ops table;
    table = *fm_ops_ref();
    table.f32 = &table;
    table.swiglu = fail_sixth;
    return sweeps_run_on("odd-mixtral", fm_ops_scanned(&table), sweep_once);
}

TEST(messages_of_a_sweep_name_the_layer)
{
    char said[4096];
    if (!FM_DEBUGGING)
        skip();
    assert_int_equal(said_by(said, failing_sweep), 200 + SIGABRT);
    assert_string_equal(
        said,
        "test_debug: layer 1: swiglu wrote a value that is not finite (h, row 0, column 0)\n");
}

TEST_MAIN(NULL, NULL)
