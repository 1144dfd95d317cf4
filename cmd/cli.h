/*
 * What the six tools share: options from one table (which also writes --help), the
 * run options of lib/run/run.h, progress, warnings, signals, and the end of the process.
 *
 *     struct fm_cli cli = {.tool = "fm-rank", .synopsis = "...", .about = "...",
 *                          .groups = FM_CLI_MODEL | ...};
 *     fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
 *     struct fm_err err = {0};
 *     return fm_cli_end(&cli, work(&cli, &err), &err);
 *
 * A tool prints its result with fm_cli_result, once.  Errors leave as one sentence on standard
 * error, "fm-rank: ...", and as the exit status (lib/base/err.h).
 */
#ifndef FM_CLI_H
#define FM_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/run/guard.h"
#include "lib/run/run.h"

enum fm_cli_kind {
    FM_CLI_FLAG,    /* bool *: no argument, sets true */
    FM_CLI_TEXT,    /* const char ** */
    FM_CLI_LIST,    /* const char *[FM_SOURCES_MAX + 1], one each time the option is given */
    FM_CLI_READ,    /* const char **: a file or directory that the run reads */
    FM_CLI_SOURCES, /* const char *[FM_SOURCES_MAX + 1]: FILE[:WEIGHT] that it reads, repeated */
    FM_CLI_RESULT,  /* const char **: the file that it makes */
    FM_CLI_EXPORT,  /* const char **: the directory that it makes */
    FM_CLI_REPORT,  /* const char **: beside that, JSON for scripts */
    FM_CLI_PLOT,    /* const char **: beside that, a picture */
    FM_CLI_JOURNAL, /* const char **: the state, while it lasts */
    FM_CLI_INT,     /* int *, in [min, max] */
    FM_CLI_COUNT64, /* uint64_t * */
    FM_CLI_SIZE,    /* uint64_t *, bytes: 4GiB, 23.4GB, 512M */
    FM_CLI_REAL,    /* double *, in [min, max] */
    FM_CLI_CHOICE   /* int *, index into `arg`, "score|original" */
};

struct fm_cli_option {
    const char *name; /* long name without dashes */
    char letter;      /* or 0 */
    enum fm_cli_kind kind;
    void *value;
    const char *arg;  /* "DIR"; choices for FM_CLI_CHOICE; NULL for a flag */
    const char *help; /* one line, with the default */
    double min, max;  /* both 0: no limit but the type's */
};

/* An option that was given, and the sets of shared options it belongs to (0: the tool's own). */
struct fm_cli_given {
    const char *name;
    int groups;
};
#define FM_CLI_GIVEN_MAX 64

/* Sets of shared options that a tool takes, beside --report --force --json --dry-run --quiet --help
 * --version, which all take. */
enum fm_cli_group {
    FM_CLI_ALL = 1 << 0,
    FM_CLI_MODEL = 1 << 1,    /* --model, required */
    FM_CLI_TOKENS = 1 << 2,   /* --tokens and what belongs to it, required */
    FM_CLI_EVAL = 1 << 3,     /* --eval-tokens --eval-text */
    FM_CLI_MACHINE = 1 << 4,  /* --device --precision --memory --threads */
    FM_CLI_OUTPUT = 1 << 5,   /* --output */
    FM_CLI_STATE = 1 << 6,    /* --state */
    FM_CLI_OPTIONAL = 1 << 7, /* --model and --tokens may be absent */
    FM_CLI_CUDA = 1 << 8      /* --device may be cuda */
};

struct fm_cli {
    const char *tool;
    const char *synopsis; /* what follows the name in the usage line */
    const char *about;    /* one sentence for --help */
    int groups;
    struct fm_run_options run;
    bool json, dry_run, quiet;
    const char *report; /* --report FILE: the result as JSON */
    char **operand;
    int operands, operands_max;
    int words;             /* of the operands that come first: they name no files */
    struct fm_guard guard; /* every file that the command line names */
    struct fm_cli_given given[FM_CLI_GIVEN_MAX];
    int givens;
};

#define FM_CLI_COUNT(table) (int)(sizeof(table) / sizeof *(table))

/* Parse; --help and --version print and exit 0, a mistake prints and exits 2, a file that must not
 * be written exits as lib/run/guard.h says.  Then the thread pool, the thread that takes signals
 * and the progress of cli->run are in place. */
void fm_cli_begin(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                  int count);

/*
 * FM_EUSAGE, naming the option, where one was given that does nothing in the mode at hand: one of
 * `names` ("steps lr"), or a shared one all of whose sets are in `groups`.  `mode` ends the
 * sentence: "with --method uniform", "in io", "without --text".
 */
int fm_cli_refuse(const struct fm_cli *cli, const char *mode, int groups, const char *names,
                  struct fm_err *err);

/* A result for people while it is written: a stream into memory. */
struct fm_cli_text {
    FILE *out;
    char *bytes;
    size_t size;
};
int fm_cli_text_open(struct fm_cli_text *text, struct fm_err *err);
/* A word of somebody else as a part of one line: a name or a value from a file. */
void fm_cli_word(FILE *out, const char *word);
void fm_cli_text_drop(struct fm_cli_text *text); /* not printed after all */

/*
 * What came of writing a report or plot (`option`, `path`): `code` and *err.  The run's result is
 * what its status is about, so a lost one is a warning, and FM_OK.  On standard output it is a lost
 * write like any other: `code`.
 */
int fm_cli_settle_side(const struct fm_cli *cli, const char *option, const char *path, int code,
                       struct fm_err *err);

/*
 * Print the result: `text` for people, or `report` as JSON with --json; on standard output, or
 * on standard error where standard output carries the stream (then nothing for people with
 * --quiet).  --report FILE gets the JSON too, or a warning says why not.  Releases text and takes
 * report over, always.
 */
int fm_cli_result(const struct fm_cli *cli, struct fm_cli_text *text, cJSON *report,
                  struct fm_err *err);

/* The sentence of a failed run, the last flush of standard output (a lost write is 74), and the
 * status for main to return.  After a signal without --state, or EPIPE, the process ends by that
 * signal instead, so that a shell sees 130, 143 or 141. */
int fm_cli_end(const struct fm_cli *cli, int code, const struct fm_err *err);

/* "1.5 GB" into text (decimal units, as disks and registries count). */
void fm_cli_bytes(char text[32], uint64_t bytes);

#endif
