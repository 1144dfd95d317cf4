/* Run a function in a child process, for tests of standard streams, signals and limits. */
#ifndef FM_TESTS_CHILD_H
#define FM_TESTS_CHILD_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/scratch.h"

/* Run body in a child with this stdin and stdout (-1: closed, -2: unchanged); returns its status.
 */
static inline int in_child(int (*body)(void), int in, int out)
{
    pid_t pid = fork();
    scratch_check(pid >= 0, "fork");
    if (pid == 0) {
        if (in == -1)
            close(0);
        else if (in >= 0)
            dup2(in, 0);
        if (out == -1)
            close(1);
        else if (out >= 0)
            dup2(out, 1);
        closefrom(3); /* otherwise the other end of a pipe would stay open here */
        _exit(body());
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200 + WTERMSIG(status);
}

#endif
