/* Test correct and faulty tokenizer commands. */
#include <signal.h>

#include "formats/file/file.h"
#include "formats/text/idlines.h"
#include "lib/base/clock.h"
#include "lib/data/command.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

/* `lines` lines of "text N"; if `fails`, an error after them. */
struct source {
    uint64_t lines, given, piece;
    bool fails;
    char text[1 << 16];
};

static int feed(void *self, const char **lines, size_t *size, uint64_t *count, struct fm_err *err)
{
    struct source *s = self;
    *lines = NULL;
    *size = *count = 0;
    if (s->given == s->lines)
        return s->fails ? fm_fail(err, FM_EFORMAT, "line %d is wrong", (int)s->lines + 1) : FM_OK;
    for (; *count < s->piece && s->given < s->lines; ++*count)
        *size +=
            (size_t)sprintf(s->text + *size, "\"text %llu\"\n", (unsigned long long)s->given++);
    *lines = s->text;
    return FM_OK;
}

struct answer {
    int rc;
    struct fm_err err;
    uint64_t size, lines;
    int32_t first[8];
    double seconds;
};

static struct answer ask(const char *text, uint64_t lines, bool fails, uint64_t enough)
{
    struct source source = {.lines = lines, .piece = 1000, .fails = fails};
    struct fm_command c = {
        .command = text, .feed = feed, .self = &source, .enough = enough, .silence = 1};
    struct answer a = {0};
    int fd = -1;
    double began = fm_clock_now();
    assert_int_equal(fm_file_temp(&fd, &a.err), FM_OK);
    a.rc = fm_command_tokens(&c, fd, &a.size, &a.lines, &a.err);
    if (a.rc == FM_OK && a.size > 0)
        assert_true(pread(fd, a.first, sizeof a.first, 0) > 0);
    close(fd);
    a.seconds = fm_clock_now() - began;
    return a;
}

static void fails(const char *text, uint64_t lines, int code, const char *says)
{
    struct answer a = ask(text, lines, false, 0);
    if (a.rc != code || !strstr(a.err.text, says))
        fail_msg("%s: %d '%s'", text, a.rc, a.rc ? a.err.text : "");
    assert_true(a.seconds < 5);
}

TEST(a_command_may_answer_at_once_or_at_the_end)
{
    static const char *const commands[] = {"sed 's/.*text \\(.*\\)\"/[7, \\1 ,3]/'",
                                           "sed 's/.*text \\(.*\\)\"/ [7,\\1,3]\\r/' | tac | tac",
                                           "while read -r a b; do echo \"[7, ${b%?}, 3]\"; done"};
    for (int i = 0; i < 3; i++) {
        struct answer a = ask(commands[i], i == 2 ? 3000 : 100000, false, 0);
        if (a.rc != FM_OK)
            fail_msg("%s: %s", commands[i], a.err.text);
        assert_int_equal(a.lines, i == 2 ? 3000 : 100000);
        assert_int_equal(a.size, a.lines * 12);
        static const int32_t first[] = {7, 0, 3, 7, 1, 3, 7, 2};
        assert_memory_equal(a.first, first, sizeof first);
    }
}

TEST(a_command_is_stopped_after_enough_tokens)
{
    /* The command would never end; its later output does not matter. */
    struct answer a = ask("sed -u 5q >/dev/null; printf '[1]\\n[2, 2]\\n[3,3]\\n[4]\\nrubbish'; "
                          "trap '' TERM; while :; do sleep 0.1; done",
                          1000000000, false, 4);
    if (a.rc != FM_OK)
        fail_msg("%s", a.err.text);
    assert_int_equal(a.lines, 3);
    assert_int_equal(a.size, 20);
    assert_true(a.seconds < 3);
    /* An error in the feed after the requested tokens is ignored. */
    a = ask("sed 's/.*/[1,2]/'", 10, true, 20);
    assert_int_equal(a.rc, FM_OK);
    assert_int_equal(a.lines, 10);
    a = ask("sed 's/.*/[1,2]/'", 10, true, 21);
    assert_int_equal(a.rc, FM_EFORMAT);
    assert_string_equal(a.err.text, "line 11 is wrong");
    a = ask("sed 's/.*/[1,2]/'", 10, true, 0);
    assert_string_equal(a.err.text, "line 11 is wrong");
}

TEST(failing_commands_are_named)
{
    fails("exit 3", 10, FM_EFORMAT, "ended with status 3");
    fails("cat >/dev/null; exit 1", 1000000, FM_EFORMAT, "ended with status 1");
    fails("fm-no-such-program --x", 10, FM_ENOENT, "cannot run 'fm-no-such-program --x'");
    fails("kill -9 $$", 10, FM_EIO, "signal 9");
    fails("sh -c 'kill -11 $$'; exit $?", 10, FM_EIO, "signal 11");
    fails("sed 5q | sed 's/.*/[1]/'", 1000000, FM_EFORMAT, "printed 5 lines, but there are more");
    fails("cat >/dev/null", 3, FM_EFORMAT, "printed 0 lines, but there are more");
    fails("yes '[1]'", 3, FM_EFORMAT, "more lines than it was given");
    fails("sed 's/.*/[1]/'; echo '[]'", 3, FM_EFORMAT, "more lines than it was given");
}

TEST(hanging_commands_are_stopped)
{
    fails("sleep 60", 10, FM_EIO, "silent for 1 seconds, after 0 lines");
    fails("sed 's/.*/[1]/'; sleep 60", 10, FM_EIO, "silent for 1 seconds, after 10 lines");
    fails("exec >&-; sleep 60", 10, FM_EIO, "did not end");
    atomic_int stop = 1;
    struct source source = {.lines = 10, .piece = 10};
    struct fm_command c = {
        .command = "sleep 60", .feed = feed, .self = &source, .silence = 9, .stop = &stop};
    uint64_t size, lines;
    double began = fm_clock_now();
    assert_int_equal(fm_command_tokens(&c, -1, &size, &lines, &err), FM_ESAVED);
    assert_true(fm_clock_now() - began < 3);
}

TEST(background_processes_are_not_waited_for)
{
    static const char *const left[] = {"sleep 60 &", "(trap '' TERM; sleep 60) & sleep 0.2",
                                       "setsid sleep 6 &"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        char command[128];
        snprintf(command, sizeof command, "sed 's/.*/[1,2]/'; %s", left[i]);
        struct answer a = ask(command, 10000, false, 0);
        if (a.rc != FM_OK)
            fail_msg("%s: %s", command, a.err.text);
        assert_int_equal(a.lines, 10000);
        assert_true(a.seconds < 0.9); /* before it would count as silent */
    }
    /* A background process of the command is ended, too. */
    char command[700];
    snprintf(command, sizeof command, "sed 's/.*/[1]/'; sleep 60 & echo $! >%s", scratch("stray"));
    assert_int_equal(ask(command, 3, false, 0).rc, FM_OK);
    snprintf(command, sizeof command,
             "for i in $(seq 50); do grep -q 'State:.[SRD]' /proc/$(cat %s)/status 2>/dev/null || "
             "exit 1; "
             "sleep 0.1; done",
             scratch("stray"));
    assert_int_not_equal(system(command), 0);
    fails("sleep 60 & exit 3", 10, FM_EFORMAT, "ended with status 3");
}

TEST(invalid_output_is_refused_with_its_line)
{
    static const struct {
        const char *say, *says;
    } bad[] = {{"1", "line 1 of the output of --tokenizer-cmd: '1' where '[' was"},
               {"[]\\n[1]\\n\\nloading\\n", "line 3 of the output of --tokenizer-cmd: 'l'"},
               {"[1,,2]", "',' where a token id was"},
               {"[1 2]", "'2' where ',' or ']' was"},
               {"[1.5]", "'.' where ',' or ']' was"},
               {"[01]", "'1' where ',' or ']' was"},
               {"[-1]", "'-' where a token id or ']' was"},
               {"[1,]", "']' where a token id was"},
               {"[[1]]", "'[' where a token id or ']' was"},
               {"[1] [2]", "'[' where the end of the line was"},
               {"[1,\\n2]", "0x0a where a token id was"},
               {"[2147483648]", "an id over 2147483647"},
               {"[99999999999999999999999]", "an id over"},
               {"[1,2", "ends in the middle of line 1"},
               {"[1,2]\\n[", "ends in the middle of line 2"},
               {"\\303\\244", "0xc3 where '[' was"},
               {"\\0", "0x00 where '[' was"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char command[128];
        snprintf(command, sizeof command, "cat >/dev/null; printf '%s'", bad[i].say);
        fails(command, 9, FM_EFORMAT, bad[i].says);
    }
    fails("yes", 1000000, FM_EFORMAT, "'y' where '['");
    fails("cat </dev/zero", 1000000, FM_EFORMAT, "0x00 where '['");
}

TEST(lines_are_the_same_in_any_pieces)
{
    static const char text[] = "[1,22, 333]\n\r\n[ ]\r\n[ 2147483647 ]\n[0,4]";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct fm_idlines *l = calloc(1, sizeof *l);
        int32_t ids[8];
        static const int32_t wanted[] = {1, 22, 333, 2147483647, 0, 4};
        assert_ok(fm_file_temp(&l->fd, &err));
        l->name = "x";
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t n = sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece;
            assert_ok(fm_idlines_feed(l, text + at, n, &err));
        }
        assert_ok(fm_idlines_end(l, &err));
        assert_int_equal(l->lines, 4);
        assert_int_equal(l->ids, 6);
        assert_int_equal(pread(l->fd, ids, sizeof ids, 0), sizeof wanted);
        assert_memory_equal(ids, wanted, sizeof wanted);
        close(l->fd);
        free(l);
    }
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    return tests_run(NULL, NULL);
}
