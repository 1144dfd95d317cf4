/* Packing and exporting: the same bytes every way, and what they mean. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lib/base/pool.h"
#include "lib/export.h"
#include "lib/list.h"
#include "lib/pack.h"
#include "tests/given.h"

static struct fm_run_options run_for(const char *input, const char *output)
{
    return (struct fm_run_options){
        .model = GIVEN_MODEL, .input = input, .output = output, .device = "ref", .force = true};
}

static void pack(const char *stage, const char *output)
{
    struct fm_run_options run = run_for(stage, output);
    struct fm_pack_report report;
    struct fm_err err = {0};
    if (fm_pack(&run, &report, &err) != FM_OK)
        golden_die(&err);
}

static char *slurp(const char *path, size_t *size)
{
    struct fm_file f;
    struct fm_err err = {0};
    char *text;
    if (fm_file_open(&f, path, &err) || fm_file_slurp(&f, 1u << 30, &text, size, &err))
        golden_die(&err);
    fm_file_close(&f);
    return text;
}

static bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    char *x = slurp(a, &n), *y = slurp(b, &m);
    bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* Standard output goes to a file, through a pipe's rules: "-" is never seeked. */
static void pack_to_stdout(const char *stage, const char *output)
{
    fflush(stdout);
    int saved = dup(1);
    FILE *f = fopen(output, "wb");
    scratch_check(f && dup2(fileno(f), 1) == 1, output);
    pack(stage, "-");
    scratch_check(dup2(saved, 1) == 1, "dup2");
    close(saved);
    fclose(f);
}

static void a_file_and_a_pipe_get_the_same_bytes(void **unused)
{
    (void)unused;
    for (int adapter = 0; adapter < 2; adapter++) {
        const char *stage = given_stage("in.fm", adapter);
        pack(stage, scratch("file.fm"));
        pack_to_stdout(stage, scratch("pipe.fm"));
        assert_true(same_bytes(scratch("file.fm"), scratch("pipe.fm")));
    }
}

static void one_thread_and_three_give_the_same_bytes(void **unused)
{
    (void)unused;
    struct fm_err err = {0};
    const char *stage = given_stage("in.fm", true);
    pack(stage, scratch("one.fm"));
    assert_int_equal(fm_pool_start(3, &err), FM_OK);
    pack(stage, scratch("three.fm"));
    pack_to_stdout(stage, scratch("pipe.fm"));
    fm_pool_stop();
    assert_true(same_bytes(scratch("one.fm"), scratch("three.fm")));
    assert_true(same_bytes(scratch("one.fm"), scratch("pipe.fm")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_and_a_pipe_get_the_same_bytes),
        cmocka_unit_test(one_thread_and_three_give_the_same_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
