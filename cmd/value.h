/*
 * An option of the command line: its row in a table, and its argument, parsed strictly and exactly,
 * whatever the locale.
 */
#ifndef FM_VALUE_H
#define FM_VALUE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/run/guard.h"
#include "lib/run/run.h"

enum fm_cli_kind {
    FM_CLI_FLAG,    /* bool *: no argument; set to true */
    FM_CLI_HELP,    /* const char **: "", or the "all" of --help=all */
    FM_CLI_TEXT,    /* const char ** */
    FM_CLI_LIST,    /* const char *[FM_INPUTS_MAX + 1], one for each use of the option */
    FM_CLI_READ,    /* const char **: a file or directory that the run reads */
    FM_CLI_READS,   /* const char *[FM_INPUTS_MAX + 1]: files or directories that the run reads; may
                       be repeated */
    FM_CLI_SOURCES, /* struct fm_source [FM_INPUTS_MAX + 1]: FILE[:WEIGHT] that the run reads; may
                       be repeated */
    FM_CLI_RESULT,  /* const char **: the file that the run makes */
    FM_CLI_EXPORT,  /* const char **: the directory that the run makes */
    FM_CLI_PLOT,    /* const char **: an additional file, a picture */
    FM_CLI_JOURNAL, /* const char **: the state file, which exists during the run */
    FM_CLI_INT,     /* int *, in [min, max] */
    FM_CLI_INTS,    /* int [FM_CLI_INTS_MAX + 1], N,N,... in [min, max]; 0 follows the last */
    FM_CLI_COUNT64, /* uint64_t * */
    FM_CLI_SIZE,    /* uint64_t *, bytes: 4GiB, 23.4GB, 512M */
    FM_CLI_REAL,    /* double *, in [min, max] */
    FM_CLI_DECIMAL, /* struct fm_decimal *, from 0 to 1, exactly as typed; above 0 if min is */
    FM_CLI_DECIMALS, /* struct fm_decimals *: 0.2,0.4, or "all" */
    FM_CLI_CHOICE    /* int *, index into `arg`, "score|original" */
};

#define FM_CLI_INTS_MAX 16

struct fm_cli_option {
    const char *name; /* long name without dashes */
    char letter;      /* or 0 */
    enum fm_cli_kind kind;
    void *value;
    const char *arg;  /* "DIR"; choices for FM_CLI_CHOICE; NULL for a flag */
    const char *help; /* one line, with the default */
    double min, max;  /* both 0: only the limits of the type */
    int modes;        /* bits of the tool's modes in which it has an effect; 0: in all */
};

/* A word that can be the first operand, for tools whose first operand selects the work. */
struct fm_cli_first {
    const char *name;
    int mode;
};

/* Store text (NULL for a flag) in *option->value; false if it is not a valid value. */
bool fm_value_parse(const struct fm_cli_option *option, const char *text);

/* Describe valid values: "use a size such as 4GiB, 23.4GB or 512M". */
void fm_value_explain(char *text, size_t size, const struct fm_cli_option *option,
                      const char *given);

/* Pass the files that an option's value names to the guard; `what` is the option's name with
 * dashes, and must stay valid while the guard is used. */
void fm_value_files(struct fm_guard *guard, const struct fm_cli_option *option, const char *what);

/* Print the option's row of --help on standard output: completely, or on one line of a terminal,
 * with the first of many choices and the beginning of a long text. */
void fm_value_print(const struct fm_cli_option *option);
void fm_value_print_short(const struct fm_cli_option *option);

#endif
