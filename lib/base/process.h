/*
 * Waits for the end of a child program, with a time limit, or kills it.  The caller starts the
 * program (each caller with its own descriptors) and sets pid.  It also sets `group` if the program
 * leads a process group; then the other processes of the group are ended with it.
 */
#ifndef FM_PROCESS_H
#define FM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct fm_process {
    pid_t pid;  /* 0: it has ended and been reaped */
    bool group; /* signals go to the group */
    int status; /* of waitpid(2), once pid is 0 */
};

/* True if the program has ended (it is not reaped yet).  Background processes of its group are
 * killed, because they may hold the pipes open. */
bool fm_process_over(const struct fm_process *p);

/* Wait for the program's end, at most `seconds` or until *stop (may be NULL) is set.  True if it
 * has ended (pid is 0). */
bool fm_process_wait(struct fm_process *p, double seconds, const atomic_int *stop);

/* Send SIGTERM and, if the program still runs a second later, SIGKILL; fm_process_kill sends
 * SIGKILL at once. */
void fm_process_end(struct fm_process *p);
void fm_process_kill(struct fm_process *p);

/* The program's exit status, or 128 plus the signal that ended it, as in a shell. */
int fm_process_status(const struct fm_process *p);

#endif
