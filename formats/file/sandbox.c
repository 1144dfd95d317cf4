/*
 * Rights of Landlock, and a filter of system calls in classic BPF.  Headers of Debian 12 have only
 * the first rights of Landlock, so the later ones are numbers here; rights that the kernel does not
 * support are not requested.
 *
 * The filter compares the number of the call with each allowed one.  Linux 5.11 and newer cache the
 * result for calls that are decided by number only, so the length of the list costs nothing.
 */
#include "formats/file/sandbox.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/base/trace.h"

#define READ LANDLOCK_ACCESS_FS_READ_FILE
#define LIST LANDLOCK_ACCESS_FS_READ_DIR
#define TRUNCATE ((uint64_t)1 << 14) /* since version 3 */
#define OF_FILES                                                                                   \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | READ | TRUNCATE |                \
     (uint64_t)1 << 15 /* ioctl of devices, since version 5 */)
#define CHANGE                                                                                     \
    (LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_WRITE_FILE | TRUNCATE |                      \
     LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR)

/* struct landlock_ruleset_attr as of version 6. */
struct ruleset {
    uint64_t files, tcp, scopes;
};

static void allow(struct fm_sandbox *s, const char *path, uint64_t rights)
{
    struct stat st;
    int fd = s->ruleset >= 0 ? open(path, O_PATH | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        rights &= OF_FILES;
    struct landlock_path_beneath_attr rule = {.allowed_access = rights & s->handled,
                                              .parent_fd = fd};
    /* The result is ignored: the kernel refuses rules for pipes and the like, which need none. */
    if (rule.allowed_access)
        syscall(SYS_landlock_add_rule, s->ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(fd);
}

/* Close the descriptors first to last; Linux 5.9 and newer have a call for it. */
static void close_from(int first, int last)
{
    struct rlimit limit;
    if (first > last || close_range((unsigned)first, (unsigned)last, 0) == 0)
        return;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= (rlim_t)last)
        last = (int)limit.rlim_cur;
    for (int fd = first; fd <= last; fd++)
        close(fd);
}

void fm_sandbox_close(const int *keep, int n)
{
#ifndef FM_SANITIZED
    int from = STDERR_FILENO + 1;
    for (;;) {
        int next = INT_MAX;
        for (int i = 0; i < n; i++)
            if (keep[i] >= from && keep[i] < next)
                next = keep[i];
        close_from(from, next == INT_MAX ? next : next - 1);
        if (next == INT_MAX)
            return;
        from = next + 1;
    }
#else
    (void)keep, (void)n, (void)close_from;
#endif
}

void fm_sandbox_open(struct fm_sandbox *s)
{
    /* Libraries can be read: glibc's character sets, locales and OpenSSL's providers are loaded
     * late. */
    static const char *const systems[] = {"/lib",
                                          "/lib64",
                                          "/usr/lib",
                                          "/usr/lib64",
                                          "/usr/share/locale",
                                          "/usr/share/zoneinfo",
                                          "/etc/ld.so.cache",
                                          "/etc/localtime",
                                          "/etc/ssl/openssl.cnf",
                                          "/etc/pki/tls/openssl.cnf",
                                          "/proc/meminfo",
                                          "/proc/cpuinfo",
                                          "/proc/self/cgroup",
                                          "/proc/sys/vm/overcommit_memory",
                                          "/sys/devices/system/cpu",
                                          "/sys/fs/cgroup",
                                          "/dev/null",
                                          "/dev/urandom"};
    *s = (struct fm_sandbox){.ruleset = -1};
#ifndef FM_SANITIZED
    long version =
        syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1)
        return; /* ENOSYS; EOPNOTSUPP if it is switched off; EPERM in containers */
    int rights = version == 1 ? 13 : version == 2 ? 14 : version < 5 ? 15 : 16;
    struct ruleset all = {.files = ((uint64_t)1 << rights) - 1, .tcp = 3, .scopes = 3};
    size_t size = version < 4   ? offsetof(struct ruleset, tcp)
                  : version < 6 ? offsetof(struct ruleset, scopes)
                                : sizeof all;
    s->ruleset = (int)syscall(SYS_landlock_create_ruleset, &all, size, 0);
    s->handled = all.files;
    for (size_t i = 0; i < sizeof systems / sizeof *systems; i++)
        fm_sandbox_read(s, systems[i]);
#else
    (void)systems;
#endif
}

void fm_sandbox_read(struct fm_sandbox *s, const char *path)
{
    allow(s, path, READ | LIST);
}

void fm_sandbox_list(struct fm_sandbox *s, const char *directory)
{
    allow(s, directory, LIST);
}

void fm_sandbox_write(struct fm_sandbox *s, const char *directory)
{
    allow(s, directory, READ | LIST | CHANGE);
}

/* ---- system calls ---- */

#if defined(__x86_64__)
#define MACHINE AUDIT_ARCH_X86_64
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define MACHINE AUDIT_ARCH_AARCH64
#endif

#if defined(MACHINE) && !defined(FM_SANITIZED)

/* The calls that the commands make (seen with strace(1), for every layout and option), those
 * that glibc and musl make instead in other versions, and those at an abnormal end of a process. */
static const int of_data[] = {
    SYS_read,      SYS_write,    SYS_readv,     SYS_writev,    SYS_pread64,   SYS_pwrite64,
    SYS_preadv,    SYS_pwritev,  SYS_lseek,     SYS_close,     SYS_dup,       SYS_dup3,
    SYS_flock,     SYS_fsync,    SYS_fdatasync, SYS_ftruncate, SYS_fallocate, SYS_fadvise64,
    SYS_readahead, SYS_sendfile, SYS_pipe2,
};
static const int of_files[] = {
    SYS_openat,     SYS_fstat,       SYS_statx,           SYS_statfs,          SYS_fstatfs,
    SYS_newfstatat, SYS_readlinkat,  SYS_faccessat,       SYS_faccessat2,      SYS_getdents64,
    SYS_getcwd,     SYS_mkdirat,     SYS_unlinkat,        SYS_renameat2,       SYS_linkat,
    SYS_umask,      SYS_close_range, SYS_copy_file_range, SYS_sync_file_range, SYS_ppoll,
    SYS_pselect6,   SYS_eventfd2,    SYS_epoll_create1,
};
static const int of_process[] = {
    SYS_brk,     SYS_mmap,       SYS_munmap,  SYS_mremap,    SYS_mprotect,
    SYS_madvise, SYS_mlock,      SYS_munlock, SYS_exit,      SYS_exit_group,
    SYS_rseq,    SYS_membarrier, SYS_futex,   SYS_gettid,    SYS_getpid,
    SYS_getppid, SYS_getuid,     SYS_geteuid, SYS_getgid,    SYS_getegid,
    SYS_getcpu,  SYS_uname,      SYS_sysinfo, SYS_getrandom, SYS_getrusage,
};
static const int of_threads[] = {
    SYS_set_robust_list,   SYS_get_robust_list, SYS_set_tid_address, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_clock_gettime,   SYS_clock_getres,    SYS_clock_nanosleep,
    SYS_nanosleep,         SYS_gettimeofday,    SYS_restart_syscall, SYS_rt_sigaction,
    SYS_rt_sigprocmask,    SYS_rt_sigreturn,    SYS_rt_sigpending,   SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait,   SYS_sigaltstack,
};

/* Older forms of these, which arm64 lacks; and the request for AMX, of x86-64. */
static const int older[] = {
#ifdef SYS_renameat
    SYS_renameat,
#endif
#ifdef SYS_open
    SYS_open,     SYS_stat,  SYS_lstat,  SYS_access, SYS_readlink, SYS_unlink,
    SYS_rmdir,    SYS_mkdir, SYS_rename, SYS_link,   SYS_poll,     SYS_select,
    SYS_dup2,     SYS_pipe,  SYS_pause,  SYS_time,   SYS_getdents, SYS_arch_prctl,
#endif
};

/* The tools do not use these: the process ends. */
static const int fatal[] = {
    SYS_execve,      SYS_execveat,     SYS_socket,     SYS_socketpair,       SYS_connect,
    SYS_bind,        SYS_listen,       SYS_accept,     SYS_accept4,          SYS_sendto,
    SYS_sendmsg,     SYS_ptrace,       SYS_mount,      SYS_unshare,          SYS_setns,
    SYS_chroot,      SYS_pivot_root,   SYS_bpf,        SYS_process_vm_readv, SYS_process_vm_writev,
    SYS_init_module, SYS_finit_module, SYS_kexec_load, SYS_keyctl,           SYS_perf_event_open,
#ifdef SYS_fork
    SYS_fork,        SYS_vfork,
#endif
};

/* Calls that are allowed if bits of an argument have a certain value. */
static const struct {
    int call, argument;
    uint32_t mask, value;
    bool own; /* the value is the id of this process */
} partly[] = {
    {SYS_clone, 0, 0x10000 /* CLONE_THREAD */, 0x10000, false},
    /* not F_SETOWN, F_SETOWN_EX, F_SETSIG and O_ASYNC, which send a signal to any process */
    {SYS_fcntl, 1, ~(uint32_t)0, F_DUPFD, false},
    {SYS_fcntl, 1, ~(uint32_t)0, F_DUPFD_CLOEXEC, false},
    {SYS_fcntl, 1, ~(uint32_t)0, F_GETFD, false},
    {SYS_fcntl, 1, ~(uint32_t)0, F_SETFD, false},
    {SYS_fcntl, 1, ~(uint32_t)0, F_GETFL, false},
    {SYS_ioctl, 1, ~(uint32_t)0, TCGETS, false},
    {SYS_ioctl, 1, ~(uint32_t)0, 0x802c542a /* TCGETS2 of glibc 2.42 */, false},
    {SYS_ioctl, 1, ~(uint32_t)0, TIOCGWINSZ, false},
    {SYS_prctl, 0, ~(uint32_t)0, PR_SET_NAME, false},
    {SYS_prctl, 0, ~(uint32_t)0, 0x53564d41 /* PR_SET_VMA: malloc names its memory */, false},
    {SYS_prlimit64, 0, ~(uint32_t)0, 0, false},
    {SYS_kill, 0, ~(uint32_t)0, 0, true},
    {SYS_tgkill, 0, ~(uint32_t)0, 0, true},
    {SYS_tkill, 0, ~(uint32_t)0, 0, true}, /* musl's raise, in the first thread */
};

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define ARGUMENT(i) (offsetof(struct seccomp_data, args) + 8 * (uint32_t)(i)) /* its lower half */

static bool filter_calls(void)
{
    static const struct {
        const int *call;
        size_t count;
        uint32_t verdict;
    } lists[] = {{of_data, COUNT(of_data), SECCOMP_RET_ALLOW},
                 {of_files, COUNT(of_files), SECCOMP_RET_ALLOW},
                 {of_process, COUNT(of_process), SECCOMP_RET_ALLOW},
                 {of_threads, COUNT(of_threads), SECCOMP_RET_ALLOW},
                 {older, COUNT(older), SECCOMP_RET_ALLOW},
                 {fatal, COUNT(fatal), SECCOMP_RET_KILL_PROCESS}};
    struct sock_filter code[512];
    unsigned short n = 0;
#define OP(...) assert(n < COUNT(code)), code[n++] = (struct sock_filter)__VA_ARGS__
#define LOAD(offset) OP(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)(offset)))
#define SKIP_UNLESS(k, steps) OP(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(k), 0, steps))
#define RETURN(k) OP(BPF_STMT(BPF_RET | BPF_K, k))
    LOAD(offsetof(struct seccomp_data, arch));
    OP(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MACHINE, 1, 0));
    RETURN(SECCOMP_RET_KILL_PROCESS);
    LOAD(offsetof(struct seccomp_data, nr));
    for (size_t k = 0; k < COUNT(lists); k++)
        for (size_t i = 0; i < lists[k].count; i++) {
            SKIP_UNLESS(lists[k].call[i], 1);
            RETURN(lists[k].verdict);
        }
    for (size_t i = 0; i < COUNT(partly); i++) {
        SKIP_UNLESS(partly[i].call, 5);
        LOAD(ARGUMENT(partly[i].argument));
        OP(BPF_STMT(BPF_ALU | BPF_AND | BPF_K, partly[i].mask));
        SKIP_UNLESS(partly[i].own ? (uint32_t)getpid() : partly[i].value, 1);
        RETURN(SECCOMP_RET_ALLOW);
        LOAD(offsetof(struct seccomp_data, nr));
    }
    SKIP_UNLESS(SYS_clone, 1); /* a new process, not a thread */
    RETURN(SECCOMP_RET_KILL_PROCESS);
    RETURN(SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog program = {.len = n, .filter = code};
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}
#else
static bool filter_calls(void)
{
    return false;
}
#endif

int fm_sandbox_enter(struct fm_sandbox *s)
{
    int parts = 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
        if (s->ruleset >= 0 && syscall(SYS_landlock_restrict_self, s->ruleset, 0) == 0)
            parts |= FM_SANDBOX_FILES;
        if (filter_calls())
            parts |= FM_SANDBOX_CALLS;
    }
    if (s->ruleset >= 0)
        close(s->ruleset);
    FM_TRACE(FM_TRACE_IO, "sandbox: files %s, system calls %s",
             parts & FM_SANDBOX_FILES ? "confined" : "open",
             parts & FM_SANDBOX_CALLS ? "confined" : "open");
    return parts;
}
