/*
 * Signals at any time: the status is right, a resumed run gives the bytes of an uninterrupted one,
 * and signals from a terminal work.
 *
 * Environment, with defaults: FM_SIGNALS, the number of signals sent (48, or 30 with a sanitizer);
 * FM_SIGNALS_SEED, the seed of their times (1); FM_SIGNALS_SECONDS, the time limit of a tool (120);
 * FM_SIGNALS_BIN, the directory of the tools; FM_SIGNALS_EMULATED, set if the tools run in an
 * emulator, whose threads /proc lists.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "lib/base/err.h"
#include "lib/base/rng.h"
#include "lib/base/signals.h"
#include "tests/measure/synth.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

enum { ARGS_MAX = 24, ENDED_BY = 1000 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { HITS = 30 };
#else
enum { HITS = 48 };
#endif

static char bin[4096];

/* --- running a tool as a process --- */

static unsigned seconds_max(void)
{
    const char *text = getenv("FM_SIGNALS_SECONDS");
    return text ? (unsigned)strtoul(text, NULL, 10) : 120;
}

struct process {
    pid_t pid;
    int in; /* the other end of its standard input, or -1 */
};

/* Start the tool in the scratch directory, in its own process group as shells do; `more` is
 * added after the words of `line`. */
static struct process start(const char *line, const char *more, bool piped)
{
    int pipe_of[2] = {-1, -1};
    scratch_check(!piped || pipe2(pipe_of, O_CLOEXEC) == 0, "pipe");
    struct process p = {.pid = fork(), .in = pipe_of[1]};
    scratch_check(p.pid >= 0, "fork");
    if (p.pid > 0) {
        setpgid(p.pid, p.pid);
        if (piped)
            close(pipe_of[0]);
        return p;
    }
    char words[4096], tool[8192], *argv[ARGS_MAX] = {0}, *rest = words, *word;
    snprintf(words, sizeof words, "%s %s", line, more);
    for (int n = 0; n + 1 < ARGS_MAX && (word = strsep(&rest, " "));)
        if (*word)
            argv[n++] = word;
    snprintf(tool, sizeof tool, "%s/%s", bin, argv[0]);
    setpgid(0, 0);
    int none = open("/dev/null", O_RDWR), log = open(scratch("log"), O_WRONLY | O_CREAT, 0600);
    dup2(piped ? pipe_of[0] : none, 0);
    dup2(none, 1);
    dup2(log, 2);
    alarm(seconds_max());
    if (chdir(scratch_root) == 0)
        execv(tool, argv);
    _exit(98);
}

/* The tool's exit status, or ENDED_BY + the signal that ended it. */
static int finish(struct process p)
{
    int status = 0;
    if (waitpid(p.pid, &status, 0) != p.pid)
        return 999;
    if (p.in >= 0)
        close(p.in);
    return WIFEXITED(status) ? WEXITSTATUS(status) : ENDED_BY + WTERMSIG(status);
}

static int run(const char *line, const char *more)
{
    return finish(start(line, more, false));
}

/* The set of signals after `name` in a status file of /proc; empty if the file is gone. */
static uint64_t signal_set(const char *path, const char *name)
{
    char line[256], format[32];
    unsigned long long set = 0;
    FILE *f = fopen(path, "r");
    snprintf(format, sizeof format, "%s: %%llx", name);
    while (f && fgets(line, sizeof line, f) && sscanf(line, format, &set) != 1)
        ;
    if (f)
        fclose(f);
    return set;
}

static bool contains(uint64_t set, int sig)
{
    return set >> (sig - 1) & 1;
}

static void nap(double seconds)
{
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid;
}

/* Wait until the tool catches SIGTERM; before that, signals end it as they end any program. */
static void await_catching(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    while (!has_ended(pid) && !contains(signal_set(path, "SigCgt"), SIGTERM))
        nap(0.001);
}

/* Wait until the tool has used that many seconds of processor time or has ended, so that it has
 * done the same amount of work on busy and idle machines. */
static void await_work(pid_t pid, double seconds)
{
    clockid_t clock;
    struct timespec t = {0};
    while (!has_ended(pid) && clock_getcpuclockid(pid, &clock) == 0 &&
           clock_gettime(clock, &t) == 0 && (double)t.tv_sec + 1e-9 * (double)t.tv_nsec < seconds)
        nap(0.001);
}

/* True if the tool sleeps for a while without using processor time. */
static bool is_waiting(pid_t pid)
{
    char path[64], state = 0;
    unsigned long before = 0, used = 1;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (int i = 0; i < 4; i++) {
        unsigned long user = 0, system = 0;
        FILE *f = fopen(path, "r");
        if (!f || fscanf(f, "%*d (%*[^)]) %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                         &state, &user, &system) != 3)
            state = 0;
        if (f)
            fclose(f);
        before = used;
        used = user + system;
        if (state != 'S' || (i > 0 && used != before))
            return false;
        nap(0.05);
    }
    return true;
}

static void await_waiting(pid_t pid)
{
    while (!has_ended(pid) && !is_waiting(pid))
        nap(0.001);
}

/* Send a signal that stops it, as a terminal does, and wait until it has stopped. */
static void pause_by(pid_t pid, int sig)
{
    int status = 0;
    kill(pid, sig);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status) && WSTOPSIG(status) == sig);
}

/* --- what is run --- */

#define ON "--model model --tokens tokens.npy -q"

static struct job {
    const char *tool, *line, *straight;
    double seconds, work; /* from start to end; processor time */
} jobs[] = {
    {"fm-rank", "fm-rank " ON, "ranked", 0, 0},
    {"fm-train",
     "fm-train " ON " --method learned --batch 2 --steps 2 --budget-step 0.4 --until 0.4 ranked",
     "trained", 0, 0},
    {"fm-recover", "fm-recover " ON " --batch 2 --steps 2 --budget 0.4 trained", "recovered", 0, 0},
};
enum { JOBS = sizeof jobs / sizeof *jobs };

/* Seconds of processor time that the finished tools took. */
static double work_of_tools(void)
{
    struct rusage u;
    getrusage(RUSAGE_CHILDREN, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Make a model whose runs spend most of their time in products, and run each tool once without
 * signals. */
static int prepare(void **state)
{
    (void)state;
    struct fm_synth s;
    struct fm_err err = {0};
    struct fm_run_options options = {0};
    if (fm_synth_parse(&s, "256,256,8,8,2,128,128", 0, &err) != FM_OK)
        return -1;
    s.dtype = FM_BF16;
    if (fm_synth_model(&s, scratch("model"), &options, &err) != FM_OK ||
        fm_synth_tokens(&s, 12, scratch("tokens.npy"), &err) != FM_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    for (int i = 0; i < JOBS; i++) {
        char more[64];
        double began = now(), before = work_of_tools();
        snprintf(more, sizeof more, "-T 2 -o %s", jobs[i].straight);
        int status = run(jobs[i].line, more);
        jobs[i].seconds = now() - began;
        jobs[i].work = work_of_tools() - before;
        if (status != 0) {
            print_error("%s: status %d\n", jobs[i].tool, status);
            return -1;
        }
    }
    return 0;
}

static bool is_there(const char *name)
{
    return access(scratch(name), F_OK) == 0;
}

/* Remove files of an earlier test. */
static int tidy(void **state)
{
    (void)state;
    unlink(scratch("out"));
    unlink(scratch("state"));
    return 0;
}

/* --- at any time --- */

struct tally {
    int hits, saved, ended, over, wrong, damaged;
};

/* Start the tool and send one signal `moment` seconds after it catches signals; counts the signal
 * if the tool was still running, and returns the tool's status. */
static int hit(const struct job *job, const char *more, int sig, double moment, struct tally *t)
{
    struct process p = start(job->line, more, false);
    await_catching(p.pid);
    nap(moment);
    bool alive = !has_ended(p.pid);
    kill(p.pid, sig);
    t->hits += alive;
    return finish(p);
}

static void check_result(const struct job *job, const char *name, struct tally *t)
{
    if (!is_there(name) || !scratch_same(scratch(name), scratch(job->straight)))
        t->damaged++;
    unlink(scratch(name));
}

/* Send one signal to a run that the next one resumes, if `keeps`, or to one without a state, and
 * check its status and result. */
static void hit_and_judge(const struct job *job, int threads, bool keeps, int sig, double moment,
                          struct tally *t)
{
    char more[64];
    int entries = scratch_entries(scratch_root);
    snprintf(more, sizeof more, "-T %d -o %s", threads, keeps ? "out --state state" : "gone");
    int status = hit(job, more, sig, moment, t);
    if (status == 0) {
        t->over++;
        check_result(job, keeps ? "out" : "gone", t);
    } else if (keeps && status == FM_ESAVED) {
        t->saved++;
    } else if (!keeps && status == ENDED_BY + sig) {
        t->ended++;
        t->damaged += scratch_entries(scratch_root) != entries;
    } else {
        t->wrong++;
        print_message("%s -T %d, signal %d after %.3f s: status %d\n", job->tool, threads, sig,
                      moment, status);
    }
}

static void hit_often(const struct job *job, int threads, int hits, struct tally *t)
{
    static const int signals[] = {SIGTERM, SIGINT, SIGTERM, SIGINT, SIGHUP, SIGTERM, SIGINT};
    static uint64_t n;
    const char *text = getenv("FM_SIGNALS_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : 1;
    char more[64];
    while (t->hits < hits) {
        double moment = fm_rng_uniform(seed, FM_STREAM_BENCH, n) * 0.6 * job->seconds;
        hit_and_judge(job, threads, n % 4 != 3, signals[n % 7], moment, t);
        n++;
    }
    snprintf(more, sizeof more, "-T %d -o out --state state", threads);
    int status = run(job->line, more);
    t->wrong += status != 0;
    check_result(job, "out", t);
    print_message("%s -T %d: %d signals, %d saved, %d ended by it, %d were over, %d wrong "
                  "statuses, %d wrong results\n",
                  job->tool, threads, t->hits, t->saved, t->ended, t->over, t->wrong, t->damaged);
}

TEST_AROUND(signals_at_any_moment_change_no_result, tidy, NULL)
{
    const char *text = getenv("FM_SIGNALS");
    int hits = text ? atoi(text) : HITS, wrong = 0, damaged = 0;
    for (int i = 0; i < 2 * JOBS; i++) {
        struct tally t = {0};
        int share = hits * (i + 1) / (2 * JOBS) - hits * i / (2 * JOBS);
        hit_often(&jobs[i / 2], i % 2 ? 2 : 1, share, &t);
        wrong += t.wrong;
        damaged += t.damaged;
    }
    assert_int_equal(wrong, 0);
    assert_int_equal(damaged, 0);
}

/* --- one by one --- */

struct masks {
    int threads;
    int open;    /* threads that block no signal */
    int handled; /* threads that block the signals of users and terminals, but not faults */
};

static bool are_right(struct masks m)
{
    return m.open == 1 && m.handled == m.threads - 1;
}

static struct masks masks_of(pid_t pid)
{
    char path[600];
    struct masks m = {0};
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    scratch_check(tasks != NULL, path);
    for (struct dirent *d; (d = readdir(tasks));) {
        if (*d->d_name == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, d->d_name);
        uint64_t set = signal_set(path, "SigBlk");
        bool handled = contains(set, SIGTERM) && contains(set, SIGPROF) && contains(set, SIGTSTP);
        m.threads++;
        m.open += set == 0;
        m.handled += handled && !contains(set, SIGSEGV) && !contains(set, SIGTTOU);
    }
    closedir(tasks);
    return m;
}

TEST_AROUND(all_threads_but_one_block_what_is_handled, tidy, NULL)
{
    struct masks m = {0};
    if (getenv("FM_SIGNALS_EMULATED"))
        skip(); /* QEMU does not show the signal masks of its program's threads */
    struct process p = start(jobs[0].line, "-T 3 -o out", false);
    await_catching(p.pid);
    for (int i = 0; i < 20 && !are_right(m); i++) { /* at its start and end, a thread blocks all */
        await_work(p.pid, jobs[0].work * (0.25 + 0.025 * i));
        pause_by(p.pid, SIGSTOP);
        m = masks_of(p.pid);
        kill(p.pid, SIGCONT);
    }
    assert_int_equal(finish(p), 0);
    assert_true(m.threads >= 4); /* threads of the pool, and the one that receives signals */
    assert_true(are_right(m));
}

/* Signal a tool that waits for input that does not arrive: it ends at once with this status. */
static void expect_heeded(const char *line, const char *more, int sig, int expected)
{
    struct process p = start(line, more, true);
    await_catching(p.pid);
    await_waiting(p.pid);
    double began = now();
    assert_false(has_ended(p.pid));
    kill(p.pid, sig);
    assert_int_equal(finish(p), expected);
    assert_true(now() - began < 20); /* at once, even on a busy machine */
}

TEST_AROUND(a_silent_pipe_does_not_delay_a_signal, tidy, NULL)
{
    static const char train[] = "fm-train " ON, recover[] = "fm-recover " ON;
    int entries = scratch_entries(scratch_root);
    expect_heeded(train, "-o out", SIGTERM, ENDED_BY + SIGTERM);
    expect_heeded(train, "-o out --state state", SIGTERM, FM_ESAVED);
    expect_heeded(recover, "-o out -", SIGINT, ENDED_BY + SIGINT);
    expect_heeded("fm-verify -q -", "", SIGHUP, ENDED_BY + SIGHUP);
    assert_int_equal(scratch_entries(scratch_root), entries);
}

TEST_AROUND(a_tokenizer_command_has_no_signal_blocked, tidy, NULL)
{
    static const char script[] =
        "#!/bin/sh\ngrep Sig /proc/self/status >command.status\nexec sed s/.*/[1,2,3,4,5,6,7,8]/\n";
    const char *command = scratch_write("command", script, sizeof script - 1);
    scratch_check(chmod(command, 0755) == 0, command);
    scratch_write("text.txt", "a\n", 2);
    run("fm-rank --model model -q --text text.txt --tokenizer-cmd ./command --seq-len 8 -o out",
        "");
    assert_true(is_there("command.status"));
    assert_int_equal(signal_set(scratch("command.status"), "SigBlk"), 0);
    uint64_t ignored = signal_set(scratch("command.status"), "SigIgn");
    assert_int_equal(ignored & 0x7fffffff, 0); /* 32 and 33: inherited from the parent of the
                                                  test */
}

TEST_AROUND(terminal_signals_stop_and_continue_a_tool, tidy, NULL)
{
    for (int i = 0; i < 2 * JOBS; i++) {
        const struct job *job = &jobs[i / 2];
        struct process p = start(job->line, i % 2 ? "-T 2 -o out" : "-T 1 -o out", false);
        await_catching(p.pid);
        await_work(p.pid, job->work / 4);
        pause_by(p.pid, SIGTSTP);
        for (int k = 0; k < 50; k++)
            kill(p.pid, k % 2 ? SIGWINCH : SIGURG);
        kill(p.pid, SIGCONT);
        while (!has_ended(p.pid)) {
            kill(p.pid, SIGWINCH);
            nap(0.001);
        }
        assert_int_equal(finish(p), 0);
        assert_true(scratch_same(scratch("out"), scratch(job->straight)));
        unlink(scratch("out"));
    }
}

TEST_AROUND(a_hangup_that_is_ignored_stays_ignored, tidy, NULL)
{
    signal(SIGHUP, SIG_IGN); /* as nohup does */
    struct process p = start(jobs[0].line, "-T 2 -o out", false);
    signal(SIGHUP, SIG_DFL);
    await_catching(p.pid);
    await_work(p.pid, jobs[0].work / 4);
    kill(p.pid, SIGHUP);
    assert_int_equal(finish(p), 0);
    assert_true(scratch_same(scratch("out"), scratch(jobs[0].straight)));
}

TEST_AROUND(a_second_signal_ends_it_at_once, tidy, NULL)
{
    int entries = scratch_entries(scratch_root);
    struct process p = start(jobs[0].line, "-T 2 -o out", false);
    await_catching(p.pid);
    await_work(p.pid, jobs[0].work / 4);
    pause_by(p.pid, SIGSTOP); /* so that both are pending before the first is handled */
    kill(p.pid, SIGTERM);
    kill(p.pid, SIGINT);
    kill(p.pid, SIGCONT);
    assert_in_range(finish(p), ENDED_BY + 1, ENDED_BY + SIGTERM);
    assert_int_equal(scratch_entries(scratch_root), entries);
}

TEST_AROUND(other_signals_end_a_tool_as_usual, tidy, NULL)
{
    static const int signals[] = {SIGUSR1, SIGQUIT, SIGALRM, SIGXCPU};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct process p = start("fm-train " ON " -o out", "", true);
        await_catching(p.pid);
        kill(p.pid, signals[i]);
        assert_int_equal(finish(p), ENDED_BY + signals[i]);
    }
}

/* Start a shell command whose standard output is `to`, which is never read. */
static pid_t start_unread(const char *line, int to)
{
    pid_t pid = fork();
    scratch_check(pid >= 0, "fork");
    if (pid > 0)
        return pid;
    dup2(to, 1);
    alarm(seconds_max());
    if (chdir(scratch_root) == 0)
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(98);
}

/* One signal ends a tool whose pipe or socket is full.  The tool does not change the status flags
 * of its standard output, which other processes share. */
TEST_AROUND(a_stalled_reader_does_not_delay_a_signal, tidy, NULL)
{
    char line[8400];
    snprintf(line, sizeof line, "exec %s/fm-pack --model model -q -T 2 trained 2>/dev/null", bin);
    for (int kind = 0; kind < 3; kind++) {
        int ends[2], wait = 0;
        scratch_check((kind == 2 ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends)
                                 : pipe2(ends, kind ? O_NONBLOCK : 0)) == 0,
                      "pipe");
        pid_t pid = start_unread(line, ends[1]);
        await_catching(pid);
        await_waiting(pid);
        assert_false(has_ended(pid));
        assert_int_equal(fcntl(ends[1], F_GETFL) & O_NONBLOCK, kind == 1 ? O_NONBLOCK : 0);
        kill(pid, SIGTERM);
        assert_int_equal(waitpid(pid, &wait, 0), pid);
        assert_true(WIFSIGNALED(wait) && WTERMSIG(wait) == SIGTERM);
        close(ends[0]);
        close(ends[1]);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    char given[4200];
    signal(SIGINT, SIG_DFL); /* a shell ignores both for processes in the background */
    signal(SIGQUIT, SIG_DFL);
    const char *slash = strrchr(argv[0], '/');
    snprintf(given, sizeof given, "%.*s/../../bin", slash ? (int)(slash - argv[0]) : 1,
             slash ? argv[0] : ".");
    const char *dir = getenv("FM_SIGNALS_BIN") ? getenv("FM_SIGNALS_BIN") : given;
    scratch_check(realpath(dir, bin) != NULL, dir);
    return tests_run(prepare, NULL);
}
