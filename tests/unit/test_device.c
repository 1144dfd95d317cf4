/*
 * The contract of kernels/ops/kernels.h, shown by a device whose memory nobody outside its
 * operations can touch: ranking, training and recovery there give the bytes of the definition.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>

#include "lib/base/pool.h"
#include "lib/learn/recover.h"
#include "tests/unit/child.h"
#include "tests/unit/device.h"
#include "tests/unit/models.h"
#include "tests/unit/training.h"

static float *block; /* of the device, for the children */

/* A fault ends the child, also where a sanitizer would explain it. */
static void fault_plainly(void)
{
    signal(SIGSEGV, SIG_DFL);
    signal(SIGABRT, SIG_DFL);
}

static int read_directly(void)
{
    fault_plainly();
    return *(volatile float *)block == 1;
}

static int write_directly(void)
{
    fault_plainly();
    *(volatile float *)block = 1;
    return 0;
}

static int compute_on_the_host(void)
{
    float x[4] = {0};
    fault_plainly();
    freopen("/dev/null", "w", stderr);
    device_ops.scale(x, 2, 4);
    return 0;
}

static int compute_in_a_freed_block(void)
{
    fault_plainly();
    freopen("/dev/null", "w", stderr);
    device_free(block);
    device_ops.scale(block, 2, 4);
    return 0;
}

/* The device would notice: without this the tests below say nothing. */
static void who_touches_its_memory_dies(void **state)
{
    (void)state;
    struct fm_err err = {0};
    const float four[4] = {1, 2, 3, 4};
    float back[4];
    block = device_alloc(sizeof four, "a block", &err);
    assert_non_null(block);
    device_copy_in(block, four, sizeof four);
    device_ops.scale(block, 2, 4);
    device_copy_out(back, block, sizeof back);
    assert_true(back[0] == 2 && back[3] == 8);
    assert_int_equal(in_child(read_directly, -2, -2), 200 + SIGSEGV);
    assert_int_equal(in_child(write_directly, -2, -2), 200 + SIGSEGV);
    assert_int_equal(in_child(compute_on_the_host, -2, -2), 200 + SIGABRT);
    device_copy_out(back, block, sizeof back);
    assert_true(back[0] == 2 && back[3] == 8);
    assert_int_equal(in_child(compute_in_a_freed_block, -2, -2), 200 + SIGABRT);
    device_free(block);
}

/* Where the runs of a test compute, and on which model. */
static struct {
    const struct fm_ops *ops;
    const char *model;
} place;

static const char *named(char *to, const char *name)
{
    snprintf(to, 64, "%s-%s", place.ops == &device_ops ? "device" : "ref", name);
    return to;
}

/* Options of a run from `in` to `out`, names that say where it computes. */
static void prepare(struct runs *r, const char *in, const char *out)
{
    static char model[64], tokens[96];
    char from[64], to[64];
    runs_init(r, in ? named(from, in) : NULL, named(to, out));
    snprintf(model, sizeof model, "golden/%s", place.model);
    snprintf(tokens, sizeof tokens, "%s/tokens.npy", model);
    r->run.inputs.model = model;
    r->run.inputs.tokens = tokens;
    r->run.inputs.seq_len = 7;
    r->run.inputs.batch = 2;
    r->run.machine.ops = place.ops;
}

static void rank(void)
{
    struct runs r;
    struct fm_err err = {0};
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    prepare(&r, NULL, "ranked.fm");
    if (fm_rank(&r.run, &options, &report, &err))
        fail_msg("%s", err.text);
    fm_rank_report_release(&report);
}

static void train(enum fm_method method, const char *out, uint64_t memory)
{
    struct runs r;
    struct fm_train_options options;
    struct fm_train_report report = {0};
    fm_train_defaults(&options);
    options.method = method;
    options.budget_step = "0.1";
    options.until = "0.3";
    options.steps = 6;
    options.samples = 2;
    options.lr = 0.5;
    options.walk_sequences = 3;
    prepare(&r, "ranked.fm", out);
    r.run.machine.memory = memory;
    training_must(&r, &options, &report);
    fm_train_report_release(&report);
}

/* Stopped after so many reports and gone on from the state file; 0: straight. */
static void recover(enum fm_recover_strategy strategy, const char *out, int stop)
{
    struct runs r;
    struct fm_err err = {0};
    struct fm_recover_options options;
    struct fm_recover_report report = {0};
    fm_recover_defaults(&options);
    options.strategy = strategy;
    options.rank = 2;
    options.steps = 3;
    options.lr = 5e-3;
    prepare(&r, "walked.fm", out);
    if (stop) {
        r.run.outputs.state = runs_path(r.state, "recover.state");
        r.countdown = stop;
        assert_int_equal(fm_recover(&r.run, &options, &report, &err), FM_ESAVED);
        fm_recover_report_release(&report);
        r.stop = 0;
        r.countdown = -1;
    }
    if (fm_recover(&r.run, &options, &report, &err))
        fail_msg("%s", err.text);
    assert_int_equal(report.resumed > 0, stop > 0);
    fm_recover_report_release(&report);
}

static void expect_same(const char *name)
{
    char a[64], b[64];
    snprintf(a, sizeof a, "ref-%s", name);
    snprintf(b, sizeof b, "device-%s", name);
    if (!runs_same(a, b))
        fail_msg("%s: %s has other bytes on the device", place.model, name);
}

static void run_all(void)
{
    rank();
    train(FM_METHOD_LEARNED, "learned.fm", (uint64_t)64 << 20);
    train(FM_METHOD_WALK, "walked.fm", (uint64_t)1 << 20); /* boundaries in a file */
    recover(FM_RECOVER_SINGLE, "single.fm", 0);
    recover(FM_RECOVER_CROSS, "cross.fm", 0);
}

static void runs_there_give_the_bytes_of_the_definition(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        place.model = odd_models[i];
        place.ops = fm_ops_ref();
        run_all();
        place.ops = &device_ops;
        run_all();
        expect_same("ranked.fm");
        expect_same("learned.fm");
        expect_same("walked.fm");
        expect_same("single.fm");
        expect_same("cross.fm");
        assert_int_equal(device_used, 0);
        printf("%s: %zu MiB of addresses given out\n", place.model, device.end >> 20);
    }
}

/* Adapter, moments and scores go to the state file and come back. */
static void a_stopped_run_goes_on_there(void **state)
{
    (void)state;
    place.model = odd_models[0];
    place.ops = fm_ops_ref();
    rank();
    train(FM_METHOD_WALK, "walked.fm", (uint64_t)64 << 20);
    recover(FM_RECOVER_SINGLE, "resumed.fm", 0);
    place.ops = &device_ops;
    rank();
    train(FM_METHOD_WALK, "walked.fm", (uint64_t)64 << 20);
    recover(FM_RECOVER_SINGLE, "resumed.fm", 2);
    expect_same("resumed.fm");
}

static void its_failure_ends_the_run(void **state)
{
    (void)state;
    struct runs r;
    struct fm_err err = {0};
    struct fm_rank_options options;
    struct fm_rank_report report = {0};
    fm_rank_defaults(&options);
    place.model = odd_models[0];
    place.ops = &device_ops;
    prepare(&r, NULL, "failed.fm");
    unlink(r.run.outputs.path);
    atomic_store(&device.failures, 1);
    assert_int_equal(fm_rank(&r.run, &options, &report, &err), FM_EDEVICE);
    assert_non_null(strstr(err.text, "the device failed"));
    assert_int_equal(access(r.run.outputs.path, F_OK), -1);
    fm_rank_report_release(&report);
}

static int start(void **unused)
{
    struct fm_err err = {0};
    (void)unused;
    device_start();
    return fm_pool_start(2, &err);
}

static int stop(void **unused)
{
    (void)unused;
    fm_pool_stop();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_touches_its_memory_dies),
        cmocka_unit_test(runs_there_give_the_bytes_of_the_definition),
        cmocka_unit_test(a_stopped_run_goes_on_there),
        cmocka_unit_test(its_failure_ends_the_run),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
