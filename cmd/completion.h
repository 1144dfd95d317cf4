/*
 * Scripts with which bash and zsh complete a tool's command line, from its option table: names,
 * listed values, files and directories.
 */
#ifndef FM_COMPLETION_H
#define FM_COMPLETION_H

#include <stdbool.h>
#include <stdio.h>

#include "cmd/value.h"

/* A row of the table, and the modes in which it applies; 0: all. */
struct fm_completion_row {
    const struct fm_cli_option *option;
    int modes;
};

struct fm_completion {
    const char *tool;
    const struct fm_cli_first *first; /* possible first operands, or NULL */
    bool files;                       /* operands are file names, all or those after the first */
    const struct fm_completion_row *row;
    int rows;
};

/* Print the script for `shell`; false if it is neither "bash" nor "zsh". */
bool fm_completion_print(FILE *out, const char *shell, const struct fm_completion *c);

#endif
