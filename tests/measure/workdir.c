/*
 * Measurements write gigabytes of files.  All of these are in one directory with a unique name,
 * which is removed with its contents at the end.
 */
#include "tests/measure/workdir.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/signals.h"

int fm_workdir_open(struct fm_workdir *w, const char *dir, struct fm_err *err)
{
    if (!dir)
        dir = getenv("TMPDIR");
    if (!dir || !*dir)
        dir = "/var/tmp";
    int n = snprintf(w->path, sizeof w->path, "%s/fm-bench.XXXXXX", dir);
    if (n >= (int)sizeof w->path - 64)
        return fm_fail(err, FM_EUSAGE, "the directory's name has %d bytes (limit %zu)", n,
                       sizeof w->path - 64);
    if (!mkdtemp(w->path))
        return fm_fail_errno(err, "cannot make a directory in '%s'", dir);
    return FM_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)at;
    if (type == FTW_DP)
        rmdir(path);
    else
        unlink(path);
    return 0;
}

void fm_workdir_close(struct fm_workdir *w)
{
    if (w->path[0])
        nftw(w->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    w->path[0] = '\0';
}

const char *fm_workdir_at(const struct fm_workdir *w, const char *name, char *path)
{
    snprintf(path, sizeof w->path, "%.4000s/%.64s", w->path, name);
    return path;
}

void fm_workdir_remove(const struct fm_workdir *w, const char *name)
{
    char path[sizeof w->path];
    nftw(fm_workdir_at(w, name, path), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* False if we were asked to stop before the program ended by itself.  The wait on its pidfd returns
 * as soon as the program ends, so the measured time is exact; Linux before 5.3 has no pidfd. */
static bool await_end(pid_t pid, int *status)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    bool going = fd < 0 || fm_signals_await(fd, POLLIN);
    if (fd >= 0)
        close(fd);
    if (!going)
        kill(pid, SIGTERM);
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        ;
    return going;
}

int fm_workdir_run(char *const argv[], double *seconds, struct fm_err *err)
{
    int status = 0;
    double begin = fm_clock_now();
    pid_t pid = fork();
    if (pid == 0) {
        fm_signals_forked();
        if (freopen("/dev/null", "w", stdout))
            execvp(argv[0], argv);
        _exit(127);
    }
    if (pid < 0)
        return fm_fail(err, FM_ENOMEM, "cannot run '%s': %s", argv[0], strerror(errno));
    if (!await_end(pid, &status))
        return fm_fail(err, FM_ESAVED, "stopped while '%s' ran", argv[0]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return fm_fail(err, FM_EIO, "'%s' failed (status %d)", argv[0],
                       WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    *seconds += fm_clock_now() - begin;
    return FM_OK;
}
