/*
 * Lets a process confine itself before it reads untrusted input: the kernel then refuses operations
 * that the tool never needs, even if the input takes control of the process.
 *
 *     struct fm_sandbox s;
 *     fm_sandbox_close(NULL, 0);
 *     fm_sandbox_open(&s);
 *     fm_sandbox_read(&s, "family.fm");
 *     fm_sandbox_write(&s, ".");
 *     fm_sandbox_enter(&s);        before any other thread exists
 *
 * Two parts, each used if the kernel has it:
 *
 *   - Landlock (Linux 5.13): only the files and directories that were named can be opened, created,
 *     renamed or removed.  No TCP (6.7); no signals to processes outside the sandbox, and no
 *     connections to their abstract sockets (6.12).  It holds for the calling thread and for
 *     threads and processes that it makes, so it is entered first.
 *   - seccomp: a list of allowed system calls, for all threads of the process.
 *
 * What happens to a call that is not allowed:
 *
 *   - Calls with no use in these tools end the process by SIGSYS: execve, fork, socket, ptrace and
 *     the like.  Only an attacker's code makes them, and a process that it controls must not go on
 *     to print "ok".
 *   - Every other call fails with ENOSYS, as in an older kernel: C libraries try new calls (clone3,
 *     io_uring, openat2) and fall back to older ones on ENOSYS, but report EPERM as an error.
 *     clone3 is refused because its flags are in memory, where a filter cannot check that it makes
 *     a thread.
 *
 * A kernel without one part, or a container that refuses its calls, is not an error: the other part
 * still applies.  Calls that take a name but open nothing (stat, readlink, access) are not
 * confined.  The filter supports x86-64 and arm64.  Sanitizers need more calls and files: with
 * FM_SANITIZED nothing is confined.
 *
 * Source: Linux, Documentation/userspace-api/landlock.rst and seccomp_filter.rst.
 */
#ifndef FM_SANDBOX_H
#define FM_SANDBOX_H

#include <stdint.h>

enum { FM_SANDBOX_FILES = 1, FM_SANDBOX_CALLS = 2 };

struct fm_sandbox {
    int ruleset;      /* -1: no Landlock */
    uint64_t handled; /* rights that the Landlock of this kernel supports */
};

/* Close every descriptor above 2 except the n in `keep`: what a parent left open could be written.
 * Call it before the process has opened any. */
void fm_sandbox_close(const int *keep, int n);
/* Begin; allows reading the system files that the C library, locales, OpenSSL and cgroup.h need. */
void fm_sandbox_open(struct fm_sandbox *s);
/* Allow reading the file, or the directory and everything below.  A missing path adds nothing. */
void fm_sandbox_read(struct fm_sandbox *s, const char *path);
/* Allow listing the directory and those below. */
void fm_sandbox_list(struct fm_sandbox *s, const char *directory);
/* Allow reading, creating, writing, renaming and removing below the directory: outputs are
 * created there, and read again for their digests. */
void fm_sandbox_write(struct fm_sandbox *s, const char *directory);
/* Enter permanently, and release *s.  Returns the parts that are in force: a sum of
 * FM_SANDBOX_FILES and FM_SANDBOX_CALLS. */
int fm_sandbox_enter(struct fm_sandbox *s);

#endif
