/*
 * A library that is preloaded into a tool (LD_PRELOAD) and acts like a reader that malicious input
 * has taken over.  At the first read of a file it makes one attempt, named by FM_BROKEN, and prints
 * the result on standard error:
 *
 *     read FILE, write FILE    open the file, and read or write a byte
 *     connect PORT             open a TCP connection to this machine
 *     execute FILE             execute this program
 *     fork, kill, io_uring     start a process, signal the parent, set up io_uring
 *     setown, setsig, async    let a pipe signal the parent, by another signal than SIGIO, at all
 *     inherited FD             write to this descriptor
 *     CALL, such as prlimit    make this call for the parent or, if it has no target, at all
 *     offers                   print Landlock's version and whether seccomp exists
 *
 * With FM_BROKEN_THREAD the attempt is made in a thread other than the main one.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
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

static cpu_set_t processors;

/* Calls by which a process can reach another one, here its parent. */
#define REACHES(name, call)                                                                        \
    static long reach_##name(pid_t of)                                                             \
    {                                                                                              \
        (void)of;                                                                                  \
        return call;                                                                               \
    }
REACHES(ioctl, ioctl(STDERR_FILENO, FIOASYNC, &(int){0}))
REACHES(prlimit, syscall(SYS_prlimit64, of, RLIMIT_CORE, NULL, &(struct rlimit){0}))
REACHES(setpriority, setpriority(PRIO_PROCESS, (id_t)of, getpriority(PRIO_PROCESS, (id_t)of)))
REACHES(sched_setaffinity, sched_setaffinity(of, sizeof processors, &processors))
REACHES(pidfd_open, syscall(SYS_pidfd_open, of, 0))
REACHES(tgkill, syscall(SYS_tgkill, of, of, 0))
REACHES(tkill, syscall(SYS_tkill, of, 0))
REACHES(shmget, shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600))
REACHES(memfd_create, memfd_create("x", 0))
REACHES(process_vm_readv, syscall(SYS_process_vm_readv, of, NULL, 0L, NULL, 0L, 0L))
REACHES(prctl, prctl(PR_SET_DUMPABLE, 1))
static const struct {
    const char *name;
    long (*call)(pid_t of);
} calls[] = {{"ioctl", reach_ioctl},
             {"prlimit", reach_prlimit},
             {"setpriority", reach_setpriority},
             {"sched_setaffinity", reach_sched_setaffinity},
             {"pidfd_open", reach_pidfd_open},
             {"tgkill", reach_tgkill},
             {"tkill", reach_tkill},
             {"shmget", reach_shmget},
             {"memfd_create", reach_memfd_create},
             {"process_vm_readv", reach_process_vm_readv},
             {"prctl", reach_prctl}};

static bool act(const char *what, const char *with)
{
    char *const arguments[] = {"true", "executed", NULL};
    int ends[2];
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
    if (strcmp(what, "setown") == 0)
        return pipe(ends) == 0 && fcntl(ends[0], F_SETOWN, getppid()) == 0;
    if (strcmp(what, "setown_ex") == 0)
        return pipe(ends) == 0 &&
               fcntl(ends[0], F_SETOWN_EX, &(struct f_owner_ex){F_OWNER_PID, getppid()}) == 0;
    if (strcmp(what, "setsig") == 0)
        return pipe(ends) == 0 && fcntl(ends[0], F_SETSIG, SIGKILL) == 0;
    if (strcmp(what, "async") == 0)
        return pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_ASYNC) == 0;
    if (strcmp(what, "inherited") == 0)
        return write(atoi(with), "x", 1) == 1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (strcmp(what, calls[i].name) == 0)
            return calls[i].call(getppid()) >= 0;
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
        sched_getaffinity(0, sizeof processors, &processors);
        bool did = act(what, with);
        int why = errno;
        if (did)
            dprintf(STDERR_FILENO, "broken: %s succeeded\n", what);
        else
            dprintf(STDERR_FILENO, "broken: %s failed: %s\n", what, strerror(why));
    }
    return syscall(SYS_pread64, fd, dst, n, at);
}
