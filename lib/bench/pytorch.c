/*
 * PyTorch runs as a separate program, because it brings threads and an allocator that must not be
 * in a process being measured.  It receives commands as lines over a socket, with raw numbers in
 * between.  If anything fails in that program, its rows have no figure and the reason is reported;
 * the measurement goes on.
 */
#include "lib/bench/pytorch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/signals.h"
#include "lib/bench/kernelcase.h"
#include "lib/base/process.h"

/* The assembler includes the programs, so that an installed tool needs no other file. */
__asm__(".pushsection .rodata\n"
        ".globl fm_pytorch_program\n"
        "fm_pytorch_program: .incbin \"formats/runtime/torch_channel.py\"\n"
        ".incbin \"formats/runtime/torch_experts.py\"\n"
        ".byte 0\n"
        ".globl fm_pytorch_loops_program\n"
        "fm_pytorch_loops_program: .incbin \"formats/runtime/torch_channel.py\"\n"
        ".incbin \"formats/runtime/torch_loops.py\"\n"
        ".byte 0\n"
        ".popsection\n");

extern const char fm_pytorch_program[], fm_pytorch_loops_program[];

enum { LINE_BYTES = 512 };
#define GRACE 1.0 /* seconds it may take to exit after the socket is closed */

struct fm_pytorch {
    const char *python; /* the command as given */
    const char *program;
    struct fm_process child;
    int socket, silence;
    const atomic_int *stop; /* or NULL */
    bool lost;              /* no further requests are sent */
    char version[64], why[FM_ERR_TEXT_BYTES];
};

/* --- the process --- */

/* Return the error for a process that closed the socket. */
static int fail_gone(struct fm_pytorch *p, struct fm_err *err)
{
    if (!fm_process_wait(&p->child, GRACE, NULL))
        fm_process_kill(&p->child);
    int status = p->child.status;
    if (WIFSIGNALED(status))
        return fm_fail(err, FM_EIO, "'%s' was ended by signal %d before it answered", p->python,
                       WTERMSIG(status));
    return fm_fail(err, FM_EIO, "'%s' ended with status %d before it answered", p->python,
                   WEXITSTATUS(status));
}

/* Start the process.  Its standard input is the socket; its standard output and error are
 * discarded. */
static int spawn(struct fm_pytorch *p, int theirs, struct fm_err *err)
{
    char option[] = "-c";
    char *argv[] = {(char *)p->python, option, (char *)p->program, NULL};
    posix_spawn_file_actions_t actions;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return fm_fail(err, FM_ENOMEM, "no memory to run '%s'", p->python);
    int failed = posix_spawn_file_actions_adddup2(&actions, theirs, STDIN_FILENO);
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO && !failed; fd++)
        failed = posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_WRONLY, 0);
    if (!failed)
        failed = fm_signals_spawn(&p->child.pid, &actions, argv);
    posix_spawn_file_actions_destroy(&actions);
    if (failed) {
        p->child.pid = 0;
        return fm_fail(err, FM_ENOENT, "cannot run '%s': %s", p->python, strerror(failed));
    }
    return FM_OK;
}

/* --- lines and numbers --- */

/* Wait until the socket is writable or has bytes, as `events` selects; fail after `silence` seconds
 * or on a signal. */
static int await(const struct fm_pytorch *p, short events, struct fm_err *err)
{
    if (fm_signals_await(p->socket, events, p->silence * 1000))
        return FM_OK;
    if (p->stop && *p->stop)
        return fm_fail(err, FM_ESAVED, "stopped by a signal");
    return fm_fail(err, FM_EIO, "'%s' did not answer for %d seconds", p->python, p->silence);
}

/* Send `size` bytes from `to`, or receive them into `from`; the other is NULL. */
static int transfer(struct fm_pytorch *p, const char *to, char *from, size_t size,
                    struct fm_err *err)
{
    for (size_t done = 0; done < size;) {
        if (await(p, to ? POLLOUT : POLLIN, err))
            return err->code;
        ssize_t n = to ? send(p->socket, to + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : recv(p->socket, from + done, size - done, MSG_DONTWAIT);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n <= 0)
            return fail_gone(p, err);
        done += (size_t)n;
    }
    return FM_OK;
}

static int send_all(struct fm_pytorch *p, const void *data, size_t size, struct fm_err *err)
{
    return transfer(p, data, NULL, size, err);
}

static int receive_all(struct fm_pytorch *p, void *data, size_t size, struct fm_err *err)
{
    return transfer(p, NULL, data, size, err);
}

FM_PRINTF(3, 4)
static int send_line(struct fm_pytorch *p, struct fm_err *err, const char *fmt, ...)
{
    char line[LINE_BYTES];
    va_list list;
    va_start(list, fmt);
    int n = vsnprintf(line, sizeof line, fmt, list);
    va_end(list);
    return send_all(p, line, (size_t)n, err);
}

/* Read a line without its line feed; one that begins with "error" is a failure. */
static int receive_line(struct fm_pytorch *p, char line[LINE_BYTES], struct fm_err *err)
{
    size_t n = 0;
    for (; n + 1 < LINE_BYTES; n++) {
        if (receive_all(p, line + n, 1, err))
            return err->code;
        if (line[n] == '\n')
            break;
    }
    line[n] = '\0';
    if (strncmp(line, "error ", 6) == 0)
        return fm_fail(err, FM_ENOENT, "'%s': %s", p->python, line + 6);
    return FM_OK;
}

static int fail_strange(const struct fm_pytorch *p, const char *line, struct fm_err *err)
{
    return fm_fail(err, FM_EIO, "'%s' gave an unexpected answer, '%.40s'", p->python, line);
}

/* --- requests --- */

static int greet(struct fm_pytorch *p, struct fm_err *err)
{
    char line[LINE_BYTES];
    if (receive_line(p, line, err))
        return err->code;
    if (sscanf(line, "torch %63s", p->version) != 1)
        return fail_strange(p, line, err);
    return FM_OK;
}

/* Send the layer. */
static int load(struct fm_pytorch *p, const struct fm_kernelcase *c, struct fm_err *err)
{
    const struct fm_clip_layer *l = &c->layer;
    const char *type = l->type == FM_CLIP_F16 ? "f16" : l->type == FM_CLIP_F32 ? "f32" : "bf16";
    size_t weights = (size_t)(fm_kernelcase_bytes(c) / 3), N = (size_t)c->tokens_max;
    size_t slots = N * (size_t)c->K;
    const struct {
        const void *data;
        size_t size;
    } part[] = {{c->gate_up, 2 * weights},
                {c->down, weights},
                {c->hidden, N * (size_t)l->H * (l->type == FM_CLIP_F32 ? 4 : 2)},
                {c->ids, slots * sizeof *c->ids},
                {c->weights, slots * sizeof *c->weights},
                {c->widths, (size_t)l->B * (size_t)l->E * sizeof *c->widths}};
    char line[LINE_BYTES];
    int rc = send_line(p, err, "%d %d %d %d %d %zu %s %d\n", l->H, c->I, l->E, c->K, l->B, N, type,
                       c->threads);
    for (size_t i = 0; i < sizeof part / sizeof *part && !rc; i++)
        rc = send_all(p, part[i].data, part[i].size, err);
    if (!rc)
        rc = receive_line(p, line, err);
    if (!rc && strcmp(line, "ready") != 0)
        rc = fail_strange(p, line, err);
    return rc;
}

static int start(struct fm_pytorch *p, struct fm_err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return fm_fail_errno(err, "cannot make a socket for '%s'", p->python);
    p->socket = pair[0];
    int rc = spawn(p, pair[1], err);
    close(pair[1]);
    return rc;
}

static int open_program(struct fm_pytorch **result, const char *python, const char *program,
                        int silence, const atomic_int *stop, struct fm_err *err)
{
    struct fm_pytorch *p = *result = fm_alloc(1, sizeof *p, "PyTorch", err);
    if (!p)
        return err->code;
    p->python = python;
    p->program = program;
    p->silence = silence;
    p->stop = stop;
    p->socket = -1;
    int rc = start(p, err);
    return rc ? rc : greet(p, err);
}

int fm_pytorch_open(struct fm_pytorch **result, const char *python, const struct fm_kernelcase *c,
                    int silence, const atomic_int *stop, struct fm_err *err)
{
    int rc = open_program(result, python, fm_pytorch_program, silence, stop, err);
    struct fm_pytorch *p = *result;
    if (!rc)
        rc = load(p, c, err);
    if (rc) {
        fm_pytorch_close(p);
        *result = NULL;
    }
    return rc;
}

void fm_pytorch_close(struct fm_pytorch *p)
{
    if (!p)
        return;
    if (p->socket >= 0)
        close(p->socket);
    fm_process_kill(&p->child);
    free(p);
}

const char *fm_pytorch_version(const struct fm_pytorch *p)
{
    return p->version;
}

const char *fm_pytorch_why(const struct fm_pytorch *p)
{
    return p->why;
}

/* Send one request and read its answer.  If it cannot be measured, store the reason and leave
 * *seconds unchanged. */
static int ask(struct fm_pytorch *p, const struct fm_kernelcase *c, const char *kernel, int tokens,
               double *seconds, struct fm_err *err)
{
    int rows = tokens < FM_KERNELCASE_CHECKED ? tokens : FM_KERNELCASE_CHECKED;
    size_t size = c->layer.type == FM_CLIP_F32 ? 4 : 2;
    char line[LINE_BYTES], *end;
    if (send_line(p, err, "%s %d %d %d\n", kernel, tokens, c->budget, rows) ||
        receive_line(p, line, err))
        return err->code;
    if (strncmp(line, "cannot ", 7) == 0) {
        if (!*p->why)
            snprintf(p->why, sizeof p->why, "%s: %s", kernel, line + 7);
        return FM_OK;
    }
    double took = strtod(line, &end);
    if (end == line || *end || !(took > 0) || !isfinite(took))
        return fail_strange(p, line, err);
    *seconds = took;
    return receive_all(p, c->out, (size_t)rows * (size_t)c->layer.H * size, err);
}

double fm_pytorch_run(struct fm_pytorch *p, const struct fm_kernelcase *c, const char *kernel,
                      int tokens)
{
    struct fm_err err = {0};
    double seconds = 0;
    if (p->lost)
        return 0;
    if (ask(p, c, kernel, tokens, &seconds, &err)) {
        p->lost = true;
        snprintf(p->why, sizeof p->why, "%s", err.text);
        return 0;
    }
    return seconds;
}

/* --- autograd loops over a checkpoint --- */

/* Send the paths; a line feed in a name would split it in two. */
static int send_place(struct fm_pytorch *p, const char *model, const char *tokens, int threads,
                      struct fm_err *err)
{
    char line[LINE_BYTES];
    if (strchr(model, '\n') || strchr(tokens, '\n'))
        return fm_fail(
            err, FM_EUSAGE,
            "PyTorch cannot use a directory with a newline in its name; use another --dir");
    if (send_all(p, model, strlen(model), err) || send_line(p, err, "\n") ||
        send_all(p, tokens, strlen(tokens), err) || send_line(p, err, "\n%d\n", threads) ||
        receive_line(p, line, err))
        return err->code;
    return strcmp(line, "ready") == 0 ? FM_OK : fail_strange(p, line, err);
}

static int ask_loop(struct fm_pytorch *p, struct fm_pytorch_row *row, struct fm_err *err)
{
    char line[LINE_BYTES];
    if (send_line(p, err, "%s %s\n", row->what, row->precision) || receive_line(p, line, err))
        return err->code;
    if (strncmp(line, "cannot ", 7) == 0) {
        snprintf(row->why, sizeof row->why, "%s", line + 7);
        return FM_OK;
    }
    double rate = 0;
    int end = 0;
    if (sscanf(line, "%31s %lf%n", row->experts, &rate, &end) != 2 || line[end] || !(rate > 0) ||
        !isfinite(rate))
        return fail_strange(p, line, err);
    row->tokens_second = rate;
    return FM_OK;
}

int fm_pytorch_loops(struct fm_pytorch_loops *loops, const char *python, const char *model,
                     const char *tokens, const char *precision, bool train, int silence,
                     const atomic_int *stop, struct fm_err *err)
{
    static const char *const what[] = {"rank", "train"};
    struct fm_pytorch *p;
    *loops = (struct fm_pytorch_loops){0};
    int rc = open_program(&p, python, fm_pytorch_loops_program, silence, stop, err);
    if (!rc) {
        snprintf(loops->version, sizeof loops->version, "%s", p->version);
        rc = send_place(p, model, tokens, fm_pool_threads(), err);
    }
    for (int i = 0; i < (train ? 2 : 1) && !rc; i++) {
        struct fm_pytorch_row *row = &loops->row[loops->rows];
        *row = (struct fm_pytorch_row){.what = what[i], .precision = precision};
        rc = ask_loop(p, row, err);
        loops->rows += !rc;
    }
    fm_pytorch_close(p);
    return rc;
}
