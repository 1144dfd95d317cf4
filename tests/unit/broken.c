/*
 * A library that is preloaded into a tool (LD_PRELOAD) and acts like a reader that malicious input
 * has taken over.  At the first read of a file it makes one attempt, named by FM_BROKEN, and prints
 * the result on standard error:
 *
 *     read FILE, write FILE    open the file, and read or write a byte
 *     connect PORT             open a TCP connection to this machine
 *     execute FILE             execute this program
 *     fork, kill, io_uring     start a process, signal the parent, set up io_uring
 *     offers                   print Landlock's version and whether seccomp exists
 *
 * With FM_BROKEN_THREAD the attempt is made in a thread other than the main one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool touch(const char *path, int flags)
{
    char byte = 'x';
    int fd = open(path, flags, 0600);
    return fd >= 0 &&
           (flags & O_CREAT ? write(fd, &byte, 1) : syscall(SYS_pread64, fd, &byte, 1, 0)) == 1;
}

/* No process listens, so without a sandbox the network refuses the connection. */
static bool reaches(const char *port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)atoi(port)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd >= 0 &&
           (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0 || errno == ECONNREFUSED);
}

static bool forks(void)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    return pid > 0;
}

static bool act(const char *what, const char *with)
{
    char *const arguments[] = {"true", "executed", NULL};
    if (strcmp(what, "read") == 0)
        return touch(with, O_RDONLY);
    if (strcmp(what, "write") == 0)
        return touch(with, O_WRONLY | O_CREAT);
    if (strcmp(what, "connect") == 0)
        return reaches(with);
    if (strcmp(what, "execute") == 0)
        return execv(with, arguments) == 0;
    if (strcmp(what, "fork") == 0)
        return forks();
    if (strcmp(what, "kill") == 0)
        return kill(getppid(), 0) == 0;
    if (strcmp(what, "io_uring") == 0)
        return syscall(SYS_io_uring_setup, 0, NULL) < 0 && errno != ENOSYS && errno != EPERM;
    dprintf(STDERR_FILENO, "landlock %ld seccomp %d\n",
            syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION),
            prctl(PR_GET_SECCOMP) >= 0);
    return true;
}

ssize_t pread64(int fd, void *dst, size_t n, off_t at)
{
    static atomic_flag done = ATOMIC_FLAG_INIT;
    const char *asked = getenv("FM_BROKEN");
    char what[4096];
    bool here = !getenv("FM_BROKEN_THREAD") || syscall(SYS_gettid) != getpid();
    if (!here)
        usleep(20000); /* until a thread of the pool also reads */
    if (asked && here && !atomic_flag_test_and_set(&done)) {
        snprintf(what, sizeof what, "%s", asked);
        char *with = strchr(what, ' ');
        if (with)
            *with++ = '\0';
        bool did = act(what, with);
        int why = errno;
        if (did)
            dprintf(STDERR_FILENO, "broken: %s succeeded\n", what);
        else
            dprintf(STDERR_FILENO, "broken: %s failed: %s\n", what, strerror(why));
    }
    return syscall(SYS_pread64, fd, dst, n, at);
}
