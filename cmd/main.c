/* main of every tool: the Makefile compiles it once for each, with FM_MAIN as its function. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/tools.h"
#include "lib/base/mem.h"

/* End the process with one sentence if its stack cannot grow: otherwise SIGSEGV would end it. */
static void check_stack(int argc, char **argv)
{
    struct fm_err err = {0};
    char line[FM_ERR_TEXT_BYTES];
    if (!fm_reserve_stack(&err))
        return;
    int n =
        snprintf(line, sizeof line, "%.60s: %s\n", argc > 0 ? basename(argv[0]) : "fm", err.text);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) { /* standard error is closed */
    }
    _exit(err.code);
}

/* Libraries use the stack before main is called, in their constructors; this runs before those. */
#if defined(__GLIBC__) && !defined(FM_SANITIZED)
static void (*const early)(int argc, char **argv)
    __attribute__((section(".preinit_array"), used)) = check_stack;
#endif

int main(int argc, char **argv)
{
    check_stack(argc, argv);
    return FM_MAIN(argc, argv);
}
