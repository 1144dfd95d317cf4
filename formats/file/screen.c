/*
 * Open MPI's daemon creates a pseudoterminal for the standard output of each process that it
 * starts, and forwards its data to mpirun, which writes it to its own standard output.  If our
 * process is a child of mpirun itself, /proc shows whether that output is a pipe or a file, which
 * take binary data.  With a daemon on another machine, or a shell in between, /proc does not show
 * it, and the pseudoterminal counts as a terminal.
 */
#include "formats/file/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

static bool is_passed_on(void)
{
    char path[40];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getppid(), STDOUT_FILENO);
    return getenv("OMPI_COMM_WORLD_SIZE") && stat(path, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

bool fm_screen_is_output(void)
{
    return isatty(STDOUT_FILENO) && !is_passed_on();
}

void fm_screen_pass(void)
{
    struct termios t;
    if (tcgetattr(STDOUT_FILENO, &t) != 0 || !(t.c_oflag & OPOST))
        return;
    t.c_oflag &= ~(tcflag_t)OPOST;
    tcsetattr(STDOUT_FILENO, TCSADRAIN, &t);
}
