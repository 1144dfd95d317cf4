/* Test PyTorch's rows of fm-bench kernels, with correct and faulty programs in place of Python. */
#include <math.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/bench/kernelbench.h"
#include "lib/bench/kernelcase.h"
#include "lib/bench/pytorch.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

/* Two cases of each kernel: one number of tokens, two budgets. */
static const struct fm_kernelbench_options small = {.shape = "8,10,3,2",
                                                    .tokens = "4",
                                                    .budgets = "0,0.3",
                                                    .dtype = "f32",
                                                    .repeat = 2,
                                                    .peak = 1e9,
                                                    .python_needed = true};

enum {
    LAYER_BYTES =
        3 * 3 * 10 * 8 * 4 + 4 * 8 * 4 + 2 * 4 * 2 * 4 + 2 * 3 * 4, /* bytes after the line */
    ROW_BYTES = 3 * 8 * 4,
};

/* Write a shell script to run in place of Python; its standard input is a socket. */
static const char *fake(const char *name, const char *script)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "#!/bin/sh\n%s\n", script);
    const char *path = scratch_write(name, text, (size_t)n);
    scratch_check(chmod(path, 0755) == 0, path);
    return path;
}

/* A script that answers with a version, reads the layer, and then does `rest`. */
static const char *fake_ready(const char *name, const char *rest)
{
    char script[768];
    snprintf(script, sizeof script,
             "echo torch 9.9 >&0\nread -r line\nhead -c %d >/dev/null\necho ready >&0\n"
             "rows() { head -c %d /dev/zero >&0; }\n%s",
             LAYER_BYTES, ROW_BYTES, rest);
    return fake(name, script);
}

static int run(struct fm_kernelbench *b, const char *python, bool needed, struct fm_err *err)
{
    struct fm_kernelbench_options o = small;
    *err = (struct fm_err){0};
    o.python = python;
    o.python_needed = needed;
    return fm_kernelbench_run(&o, false, b, err);
}

static void expect_sentence(const char *python, int code, const char *what)
{
    struct fm_kernelbench b;
    struct fm_err err;
    assert_fails(run(&b, python, true, &err), code, what);
    assert_null(strchr(err.text, '\n'));
    fm_kernelbench_release(&b);
}

/* True if posix_spawn reports that a program does not exist.  Under QEMU's user mode it starts a
 * process that ends with 127, as POSIX allows. */
static bool reports_missing(void)
{
    char name[] = "/nowhere/python3", *argv[] = {name, NULL};
    pid_t pid;
    if (posix_spawn(&pid, name, NULL, NULL, argv, environ) != 0)
        return true;
    waitpid(pid, NULL, 0);
    return false;
}

TEST(each_failure_is_one_sentence)
{
    if (reports_missing())
        expect_sentence("/nowhere/python3", FM_ENOENT,
                        "cannot run '/nowhere/python3': No such file");
    expect_sentence(fake("ends", "exit 3"), FM_EIO, "ended with status 3 before it answered");
    expect_sentence(fake("dies", "kill -9 $$"), FM_EIO, "was ended by signal 9");
    expect_sentence(fake("lacks", "echo 'error ModuleNotFoundError: no torch' >&0"), FM_ENOENT,
                    "ModuleNotFoundError: no torch");
    expect_sentence(fake("babbles", "echo Python 2.7 >&0"), FM_EIO,
                    "unexpected answer, 'Python 2.7'");
    expect_sentence(fake("leaves", "echo torch 9.9 >&0; read -r line"), FM_EIO,
                    "ended with status 0");
    expect_sentence(fake("unready", "echo torch 9.9 >&0; echo what >&0; exec cat >/dev/null"),
                    FM_EIO, "unexpected answer, 'what'");
}

TEST(silence_has_an_end)
{
    struct fm_kernelcase c = {0};
    struct fm_pytorch *p;
    const char *python = fake("sleeps", "exec sleep 60");
    assert_fails(fm_pytorch_open(&p, python, &c, 1, NULL, &err), FM_EIO,
                 "did not answer for 1 seconds");
    assert_null(p);
}

TEST(optional_rows_are_left_out)
{
    struct fm_kernelbench b;
    assert_ok(run(&b, "/nowhere/python3", false, &err));
    assert_int_equal(b.rows, 2 * 2);
    assert_string_equal(b.torch, "");
    assert_non_null(strstr(b.torch_missing,
                           reports_missing() ? "cannot run '/nowhere/python3'" : "status 127"));
    fm_kernelbench_release(&b);
    assert_ok(run(&b, NULL, false, &err)); /* no message either */
    assert_int_equal(b.rows, 2 * 2);
    assert_string_equal(b.torch_missing, "");
    fm_kernelbench_release(&b);
}

/* PyTorch's rows follow ours; their error is that of the returned numbers, which are all zeros. */
TEST(its_seconds_and_results_are_taken)
{
    struct fm_kernelbench b;
    const char *python = fake_ready("works", "while read -r line; do echo 0.25 >&0; rows; done");
    assert_ok(run(&b, python, true, &err));
    assert_string_equal(b.torch, "9.9");
    assert_string_equal(b.torch_missing, "");
    assert_int_equal(b.rows, 4 * 2);
    for (int i = 4; i < 8; i++) {
        assert_string_equal(b.row[i].kernel, i < 6 ? "torch-loop" : "torch-grouped");
        assert_true(b.row[i].seconds == 0.25 && b.row[i].speedup == 1);
        assert_true(b.row[i].error > 0.01 && b.row[i].error <= 1);
    }
    assert_true(b.row[2].error < 1e-6 && b.row[3].error < 1e-6);
    fm_kernelbench_release(&b);
}

/* The requests have the form that formats/runtime/torch_experts.py reads. */
TEST(requests_name_kernel_tokens_budget_and_rows)
{
    char script[300], line[64];
    struct fm_kernelbench b;
    const char *said = scratch("said");
    snprintf(script, sizeof script,
             "while read -r line; do echo \"$line\" >>%s; echo 0.25 >&0; rows; done", said);
    assert_ok(run(&b, fake_ready("listens", script), true, &err));
    fm_kernelbench_release(&b);
    FILE *f = fopen(said, "re");
    assert_non_null(f);
    static const char *const want[] = {"torch-loop 4 0 3\n", "torch-loop 4 1 3\n",
                                       "torch-grouped 4 0 3\n", "torch-grouped 4 1 3\n"};
    for (int i = 0; i < 12; i++) { /* a round to check, two to measure */
        assert_non_null(fgets(line, sizeof line, f));
        assert_string_equal(line, want[i % 4]);
    }
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
}

TEST(unsupported_rows_are_left_out_and_reported)
{
    struct fm_kernelbench b;
    const char *python =
        fake_ready("refuses", "while read -r kernel line; do case $kernel in\n"
                              "torch-loop) echo 0.25 >&0; rows ;;\n"
                              "*) echo cannot AttributeError: grouped_mm >&0 ;; esac; done");
    assert_ok(run(&b, python, true, &err));
    assert_true(b.row[4].seconds > 0 && b.row[5].seconds > 0);
    assert_true(b.row[6].seconds == 0 && b.row[7].seconds == 0);
    assert_string_equal(b.torch_missing, "torch-grouped: AttributeError: grouped_mm");
    fm_kernelbench_release(&b);
}

/* The child ends after some answers, or gives an answer that is not a valid time. */
TEST(our_rows_remain_if_the_child_fails)
{
    static const char *const bad[][3] = {
        {"quits", "for i in 1 2 3 4 5; do read -r line; echo 0.25 >&0; rows; done; exit 4",
         "ended with status 4"},
        {"negative", "while read -r line; do echo -0.25 >&0; rows; done",
         "unexpected answer, '-0.25'"},
        {"nan", "while read -r line; do echo nan >&0; rows; done", "unexpected answer, 'nan'"},
        {"short", "read -r line; echo 0.25 >&0; echo >&0; exit 5", "ended with status 5"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_kernelbench b;
        assert_ok(run(&b, fake_ready(bad[i][0], bad[i][1]), true, &err));
        assert_non_null(strstr(b.torch_missing, bad[i][2]));
        assert_true(b.row[2].seconds > 0 && b.row[3].seconds > 0);
        for (int r = 4; r < 8; r++)
            assert_true(b.row[r].seconds == 0);
        fm_kernelbench_release(&b);
    }
}

/* Loops over a checkpoint: requests, answers and refusals. */
static int run_loops(struct fm_pytorch_loops *loops, const char *name, const char *answers,
                     const char *model, struct fm_err *err)
{
    char script[512];
    snprintf(script, sizeof script,
             "echo torch 9.9 >&0\nread -r model\nread -r tokens\nread -r threads\n"
             "[ \"$model $tokens $threads\" = 'a b/c t.npy 2' ] || exit 6\necho ready >&0\n"
             "while read -r what precision; do %s; done",
             answers);
    *err = (struct fm_err){0};
    return fm_pytorch_loops(loops, fake(name, script), model, "t.npy", "bf16", true, 5, NULL, err);
}

TEST(loops_are_asked_for_the_precision_of_the_run)
{
    struct fm_pytorch_loops l;
    const char *answers = "if [ $what = train ]; then echo cannot KeyError: $precision >&0\n"
                          "else echo grouped_$precision 105.5 >&0; fi";
    assert_ok(run_loops(&l, "loops", answers, "a b/c", &err));
    assert_string_equal(l.version, "9.9");
    assert_int_equal(l.rows, 2);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(l.row[i].what, i == 0 ? "rank" : "train");
        assert_string_equal(l.row[i].precision, "bf16");
        assert_string_equal(l.row[i].experts, i == 0 ? "grouped_bf16" : "");
        assert_string_equal(l.row[i].why, i == 0 ? "" : "KeyError: bf16");
        assert_true(l.row[i].tokens_second == (i == 0 ? 105.5 : 0));
    }
}

TEST(loops_that_fail_are_one_sentence)
{
    static const struct {
        const char *name, *answers, *model, *what;
        int code;
    } bad[] = {
        {"loops-babble", "echo fast >&0", "a b/c", "unexpected answer, 'fast'", FM_EIO},
        {"loops-below", "echo eager -1 >&0", "a b/c", "unexpected answer, 'eager -1'", FM_EIO},
        {"loops-more", "echo eager 1 2 >&0", "a b/c", "unexpected answer, 'eager 1 2'", FM_EIO},
        {"loops-quit", "exit 4", "a b/c", "ended with status 4", FM_EIO},
        {"loops-other", ":", "a", "ended with status 6", FM_EIO},
        {"loops-lines", ":", "a\nb", "use another --dir", FM_EUSAGE},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fm_pytorch_loops l;
        assert_fails(run_loops(&l, bad[i].name, bad[i].answers, bad[i].model, &err), bad[i].code,
                     bad[i].what);
    }
}

TEST_MAIN(start_pool, stop_pool)
