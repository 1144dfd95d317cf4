/*
 * One poll loop writes and reads, so neither a program that answers line by line nor one that reads
 * all of its input first can deadlock.  The program runs in its own process group, which is killed
 * when the program ends.  Its exit status is examined only after all of its output has been read.
 */
#include "lib/data/command.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "formats/text/idlines.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/signals.h"

#define PIECE 65536 /* bytes read at a time: the capacity of a pipe */
#define TICK_MS 100 /* milliseconds between checks of *stop and the clock */
enum { NAP_NS = 5000000 };
#define GRACE 1.0 /* seconds between SIGTERM and SIGKILL */

/* --- waiting for a process --- */

/* A child program that leads a process group.  Its end is detected before it is reaped: until then
 * its id and that of the group cannot be reused. */
struct process {
    pid_t pid;  /* 0: it has ended and been reaped */
    int status; /* of waitpid(2), once pid is 0 */
};

/* True if the program has ended (it is not reaped yet).  Background processes of its group are
 * killed, because they may hold the pipes open. */
static bool process_over(const struct process *p)
{
    siginfo_t info = {0};
    if (p->pid <= 0 || waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != p->pid)
        return false;
    kill(-p->pid, SIGKILL);
    return true;
}

static void take_status(struct process *p)
{
    while (waitpid(p->pid, &p->status, 0) < 0 && errno == EINTR)
        ;
    p->pid = 0;
}

/* Wait for the program's end, at most `seconds` or until *stop (may be NULL) is set.  True if it
 * has ended (pid is 0). */
static bool process_wait(struct process *p, double seconds, const atomic_int *stop)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    double began = fm_clock_now();
    while (p->pid > 0) {
        if (process_over(p))
            take_status(p);
        else if (fm_clock_now() - began > seconds || (stop && *stop))
            return false;
        else
            nanosleep(&nap, NULL);
    }
    return true;
}

/* Send SIGTERM and, if the program still runs a second later, SIGKILL. */
static void process_end(struct process *p)
{
    if (p->pid <= 0)
        return;
    kill(-p->pid, SIGTERM);
    if (!process_wait(p, GRACE, NULL)) {
        kill(-p->pid, SIGKILL);
        take_status(p);
    }
}

/* --- a run --- */

/* One run: the process, its two pipes (-1: closed), its input and output. */
struct talk {
    const struct fm_command *c;
    struct fm_idlines *heard;
    struct process child;
    int to, from;
    const char *lines; /* still to be written */
    size_t size;
    uint64_t given;     /* number of lines received from the feed */
    bool fed;           /* the feed has ended */
    double moved;       /* time of the last transfer */
    struct fm_err late; /* error of the feed; reported once all lines before it are answered */
};

/* --- the process --- */

/* Run the command in its own process group, so that the processes that the shell starts can be
 * ended. */
static _Noreturn void exec_shell(const char *command, int in, int out)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    fm_signals_forked();
    if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

static void close_end(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int start(struct talk *t, struct fm_err *err)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, rc = FM_OK;
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 ||
        fcntl(in[1], F_SETFL, O_NONBLOCK) != 0 || (t->child.pid = fork()) < 0) {
        rc = fm_fail_errno(err, "cannot start --tokenizer-cmd");
        t->child.pid = 0;
        close_end(&in[1]);
        close_end(&out[0]);
    } else if (t->child.pid == 0) {
        exec_shell(t->c->command, in[0], out[1]);
    } else {
        setpgid(t->child.pid, t->child.pid);
    }
    close_end(&in[0]);
    close_end(&out[1]);
    t->to = in[1];
    t->from = out[0];
    return rc;
}

static int judge_status(const struct talk *t, struct fm_err *err)
{
    int status = WIFSIGNALED(t->child.status) ? 128 + WTERMSIG(t->child.status)
                                              : WEXITSTATUS(t->child.status);
    if (status > 128 && status < 128 + SIGRTMAX)
        return fm_fail(err, FM_EIO, "--tokenizer-cmd was stopped by signal %d", status - 128);
    if (status == 126 || status == 127)
        return fm_fail(err, FM_ENOENT, "--tokenizer-cmd: the shell cannot run '%.80s'",
                       t->c->command);
    return status ? fm_fail(err, FM_EFORMAT, "--tokenizer-cmd ended with status %d", status)
                  : FM_OK;
}

/* --- input and output --- */

static void fetch_lines(struct talk *t)
{
    uint64_t n = 0;
    int rc = t->c->feed(t->c->self, &t->lines, &t->size, &n, &t->late);
    t->given += n;
    t->fed = rc || !t->lines;
}

static int say(struct talk *t, struct fm_err *err)
{
    while (t->size == 0 && !t->fed)
        fetch_lines(t);
    if (t->size == 0) {
        close_end(&t->to);
        return FM_OK;
    }
    ssize_t put = write(t->to, t->lines, t->size);
    if (put > 0) {
        t->lines += put;
        t->size -= (size_t)put;
    } else if (put < 0 && errno == EPIPE) {
        close_end(&t->to); /* there may be lines left; conclude checks that */
    } else if (put < 0 && errno != EINTR && errno != EAGAIN) {
        return fm_fail_errno(err, "cannot write to --tokenizer-cmd");
    }
    t->moved = fm_clock_now();
    return FM_OK;
}

static int listen(struct talk *t, char *piece, struct fm_err *err)
{
    ssize_t got = read(t->from, piece, PIECE);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return FM_OK;
    if (got < 0)
        return fm_fail_errno(err, "cannot read from --tokenizer-cmd");
    t->moved = fm_clock_now();
    if (got == 0)
        close_end(&t->from);
    int rc = fm_idlines_feed(t->heard, piece, (size_t)got, err);
    if (!rc && t->heard->lines > t->given)
        rc = fm_fail(err, FM_EFORMAT, "--tokenizer-cmd printed more lines than it was given");
    return rc;
}

static int check_clock(const struct talk *t, struct fm_err *err)
{
    if (t->c->stop && *t->c->stop)
        return fm_fail(err, FM_ESAVED, "interrupted while --tokenizer-cmd encoded");
    if (fm_clock_now() - t->moved > t->c->silence)
        return fm_fail(err, FM_EIO,
                       "--tokenizer-cmd was silent for %d seconds, after %" PRIu64 " lines",
                       t->c->silence, t->heard->lines);
    return FM_OK;
}

/* Write and read until the output ends, there is enough of it, or the process has ended and its
 * output has been read.  If there is no limit, an error of the feed ends the loop, too. */
static int converse(struct talk *t, char *piece, struct fm_err *err)
{
    int rc = FM_OK;
    bool over = false;
    t->moved = fm_clock_now();
    while (!rc && t->from >= 0 && !t->heard->done) {
        struct pollfd p[2] = {{.fd = t->from, .events = POLLIN}, {.fd = t->to, .events = POLLOUT}};
        int ready = poll(p, over ? 1 : 2, over ? 0 : TICK_MS);
        if (ready < 0 && errno != EINTR)
            return fm_fail_errno(err, "cannot wait for --tokenizer-cmd");
        if (ready > 0 && p[0].revents)
            rc = listen(t, piece, err);
        else if (over)
            close_end(&t->from); /* a process in another session may keep it open forever */
        if (!rc && ready > 0 && t->to >= 0 && p[1].revents && !over && !t->heard->done)
            rc = say(t, err);
        if (!rc && t->late.code && !t->c->enough)
            return FM_OK;
        if (!rc)
            rc = check_clock(t, err);
        over = over || process_over(&t->child);
    }
    return rc;
}

static int check_end(struct talk *t, struct fm_err *err)
{
    bool ended = process_wait(&t->child, t->c->silence, t->c->stop);
    if (!ended && t->c->stop && *t->c->stop)
        return fm_fail(err, FM_ESAVED, "interrupted while --tokenizer-cmd encoded");
    if (!ended)
        return fm_fail(err, FM_EIO,
                       "--tokenizer-cmd closed its output and did not end in %d seconds",
                       t->c->silence);
    return judge_status(t, err);
}

/* The output was closed, or the feed failed: check that all lines were answered. */
static int conclude(struct talk *t, struct fm_err *err)
{
    int rc = FM_OK;
    close_end(&t->to);
    while (t->size == 0 && !t->fed)
        fetch_lines(t);
    if (!t->late.code)
        rc = check_end(t, err);
    if (!rc && t->from < 0)
        rc = fm_idlines_end(t->heard, err);
    if (rc || t->heard->done)
        return rc;
    if (t->late.code) {
        *err = t->late;
        return err->code;
    }
    if (t->size > 0 || t->heard->lines != t->given)
        return fm_fail(err, FM_EFORMAT,
                       "--tokenizer-cmd printed %" PRIu64 " lines, but there are more documents",
                       t->heard->lines);
    return FM_OK;
}

int fm_command_tokens(const struct fm_command *command, int fd, uint64_t *size, uint64_t *lines,
                      struct fm_err *err)
{
    struct fm_idlines *heard = fm_alloc(1, sizeof *heard, "ids", err);
    char *piece = fm_alloc(PIECE, 1, "ids", err);
    struct talk t = {.c = command, .heard = heard, .to = -1, .from = -1};
    assert(command->command && command->feed && command->silence > 0);
    int rc = FM_ENOMEM;
    if (!heard || !piece)
        goto out;
    heard->name = "the output of --tokenizer-cmd";
    heard->fd = fd;
    heard->enough = command->enough;
    if ((rc = start(&t, err)) || (rc = converse(&t, piece, err)) ||
        (rc = heard->done ? fm_idlines_end(heard, err) : conclude(&t, err)))
        goto out;
    *size = heard->ids * sizeof(int32_t);
    *lines = heard->lines;
out:
    close_end(&t.to);
    close_end(&t.from);
    process_end(&t.child);
    free(heard);
    free(piece);
    return rc;
}
