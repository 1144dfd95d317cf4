/* Signals that were pending for this process are not pending for a child, and both block them until
 * the child is ready for them, so none is lost between fork and wait. */
#include "lib/run/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/signals.h"

#define SAID_BYTES_MAX ((size_t)16 << 20)

static _Noreturn void be_child(int (*body)(void *self), void *self, bool saves, pid_t parent,
                               int out)
{
    prctl(PR_SET_PDEATHSIG, saves ? SIGTERM : SIGKILL);
    if (getppid() != parent || (out >= 0 && dup2(out, STDOUT_FILENO) < 0))
        _exit(FM_ESAVED);
    exit(body(self));
}

static int read_said(char **said, int fd, struct fm_err *err)
{
    size_t size = 0;
    ssize_t n = 0;
    *said = malloc(SAID_BYTES_MAX + 1);
    while (*said && size < SAID_BYTES_MAX &&
           (n = pread(fd, *said + size, SAID_BYTES_MAX - size, (off_t)size)) > 0)
        size += (size_t)n;
    if (!*said)
        return fm_fail(err, FM_ENOMEM, "no memory for the output of a child");
    (*said)[size] = '\0';
    return n < 0 ? fm_fail_errno(err, "cannot read the output of a child") : FM_OK;
}

static int explain(int status, struct fm_err *err)
{
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    int sig = WTERMSIG(status);
    if (fm_signals_stops(sig))
        return fm_fail(err, FM_ESAVED, "stopped by a signal; repeat the command to continue");
    if (sig == SIGPIPE)
        return fm_fail(err, FM_EPIPE, "cannot write standard output: its reader closed the pipe");
    if (sig == SIGKILL)
        return fm_fail(err, FM_ENOMEM,
                       "the child process was killed, perhaps for lack of memory; repeat the "
                       "command to continue");
    return fm_fail(err, FM_EBUG, "the child process was ended by signal %d (%s)", sig,
                   strsignal(sig));
}

int fm_child_run(int (*body)(void *self), void *self, bool saves, char **said, struct fm_err *err)
{
    int out = -1, status = 0;
    pid_t parent = getpid();
    if (said) {
        *said = NULL;
        out = memfd_create("said", MFD_CLOEXEC);
        if (out < 0)
            return fm_fail_errno(err, "cannot take the output of a child");
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        be_child(body, self, saves, parent, out);
    int rc = pid < 0 ? fm_fail_errno(err, "cannot start a child process") : FM_OK;
    if (!rc) {
        status = fm_signals_follow(pid);
        rc = explain(status, err);
    }
    if (said && !rc)
        rc = read_said(said, out, err);
    if (out >= 0)
        close(out);
    return rc;
}
