/*
 * The option table: a tool's own rows and the shared ones, parsed with getopt_long and printed by
 * --help.
 */
#ifndef FM_OPTIONS_H
#define FM_OPTIONS_H

#include <stdbool.h>

#include "cmd/value.h"
#include "lib/base/err.h"
#include "lib/run/guard.h"
#include "lib/run/run.h"

/*
 * Restricts a shared option of a tool, `name`, to some of the tool's modes; if `name` is NULL, all
 * options that are in no set other than `groups`.  The first matching row is used.  In the modes
 * `instead_in`, the error message names `instead`, the option that the user probably meant.
 */
struct fm_cli_scope {
    const char *name;
    int groups, modes;
    const char *instead;
    int instead_in;
};
#define FM_CLI_ABSENT (1 << 30) /* the tool does not have the option */

/* An option as it was given; all of them are in the order of the command line. */
struct fm_cli_word {
    const char *name, *text; /* borrowed; text NULL: a flag */
    enum fm_cli_kind kind;
    int modes;                        /* 0: all */
    int needs;                        /* private to options.c */
    const struct fm_cli_scope *scope; /* the tool's row for a shared option, or NULL */
};

/* Sets of shared options.  In addition, all tools have --threads --force --json
 * --dry-run --quiet --help --version. */
enum fm_cli_group {
    FM_CLI_ALL = 1 << 0,
    FM_CLI_MODEL = 1 << 1,    /* --model, required */
    FM_CLI_TOKENS = 1 << 2,   /* --tokens, --text, one of which is required, and options for them */
    FM_CLI_EVAL = 1 << 3,     /* --eval-tokens --eval-text --max-eval-tokens */
    FM_CLI_MACHINE = 1 << 4,  /* --device --precision --memory --seed */
    FM_CLI_OUTPUT = 1 << 5,   /* --output */
    FM_CLI_STATE = 1 << 6,    /* --state */
    FM_CLI_OPTIONAL = 1 << 7, /* --model and --tokens may be absent */
    FM_CLI_RANKS = 1 << 8,    /* the run may be one of many ranks */
    FM_CLI_CONFINED = 1 << 10, /* --no-sandbox */
    FM_CLI_FAMILY = 1 << 11,   /* no options of its own: it passes the others to the stages */
    /* fm-rank, fm-train, fm-recover */
    FM_CLI_STAGE = FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE | FM_CLI_OUTPUT |
                   FM_CLI_STATE | FM_CLI_RANKS
};

struct fm_cli {
    const char *tool;
    const char *synopsis; /* what follows the name in the usage line */
    const char *about;    /* one sentence for --help */
    const char *often;    /* options that --help shows, "model tokens"; --help=all shows all */
    int groups;
    struct fm_run_options run; /* inputs.stream "-": the operand names the stream */
    bool json, dry_run, quiet, no_sandbox;
    char **operand;
    int operands, operands_max;
    const struct fm_cli_scope *scope; /* ends with {0}; or NULL */
    const char *instead; /* an option with which --model and tokens are not needed; NULL: none */
    const char *makes;   /* an option that makes the tool write a file that no option names; NULL:
                            none */
    /* True if the command reads untrusted files, so that it confines itself (lib/run/confine.h).
     * NULL: never. */
    bool (*confined)(const struct fm_cli *cli);
    const int *descriptor; /* value of an option that names an open descriptor; NULL: none */
    const struct fm_cli_first *first; /* ends with {0}; or NULL: all operands name files */
    struct fm_guard guard;            /* every file that the command line names */
    struct fm_cli_word *word;
    int words;
};

#define FM_CLI_COUNT(table) (int)(sizeof(table) / sizeof *(table))

/*
 * Fill *cli and the variables that the rows point to.  A mistake ends the process with one sentence
 * and status 2, with the nearest spelling if there is one.  False if --help, --version or
 * --completion was given: its output was printed, and nothing is left to do.
 */
bool fm_options_parse(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                      int count);

/* The name that begins messages from now on, instead of cli->tool: a tool that another one calls
 * (cmd/tools.h) prints that one's. */
void fm_options_speak(const char *name);
const char *fm_options_speaker(const struct fm_cli *cli);

/* True if the option was given. */
bool fm_options_given(const struct fm_cli *cli, const char *name);
/* True if the user gave the option cli->makes. */
bool fm_options_make_file(const struct fm_cli *cli);

/*
 * FM_EUSAGE, naming the option, if an option without effect in the mode was given. `says` ends the
 * sentence: "with --method uniform", "in io", "without --function".
 */
int fm_options_check(const struct fm_cli *cli, int mode, const char *says, struct fm_err *err);

#endif
