/*
 * The end of a program that runs beside us and was talked to: waited for with a limit, or made.
 * Whoever starts it (each gives it other descriptors) sets pid, and `group` where the program leads
 * a group of its own: then what it started ends with it.
 */
#ifndef FM_PROCESS_H
#define FM_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

struct fm_process {
    pid_t pid;  /* 0: it has ended and was waited for */
    bool group; /* signals go to the group */
    int status; /* of waitpid(2), once pid is 0 */
};

/* It has ended and was not waited for yet.  What its group left in the background is killed: nobody
 * waits for that, and it may hold the pipes. */
bool fm_process_over(const struct fm_process *p);

/* Wait for its end, at most so many seconds or until *stop (may be NULL).  True where pid is 0. */
bool fm_process_wait(struct fm_process *p, double seconds, const atomic_int *stop);

/* SIGTERM, and SIGKILL a second later where that was not its end; fm_process_kill at once. */
void fm_process_end(struct fm_process *p);
void fm_process_kill(struct fm_process *p);

/* Its exit status, or 128 and the signal that ended it, as a shell says it. */
int fm_process_status(const struct fm_process *p);

#endif
