/*
 * This room, cmd: the tools as users see them: options, what is printed, exit statuses.  A tool's
 * file has its option table and calls one function of lib; everything that could be wanted without
 * a command line is in lib.  In reading order: this header with cli.c, options and value (options
 * from one table), completion, progress; the tools fm-recover.c (the smallest), fm-rank.c,
 * fm-train.c, fm-pack.c, fm-verify.c and fm-bench.c; what they print (show, listing, exporting,
 * baselines, results and results_*).
 *
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

#include <stddef.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "cmd/options.h"
#include "lib/base/err.h"

/* Parse; --help and --version print and exit 0, a mistake prints and exits 2, a file that must not
 * be written exits as lib/run/guard.h says.  Then the thread pool, the thread that takes signals
 * and the progress of cli->run are in place. */
void fm_cli_begin(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                  int count);

/* A result for people while it is written: a stream into memory. */
struct fm_cli_text {
    FILE *out;
    char *bytes;
    size_t size;
};
int fm_cli_text_open(struct fm_cli_text *text, struct fm_err *err);
/* Print an untrusted word, a name or a value from a file, as part of one line. */
void fm_cli_word(FILE *out, const char *word);
void fm_cli_text_drop(struct fm_cli_text *text); /* not printed after all */

/*
 * What came of writing a report or plot (`option`, `path`): `code` and *err.  The run's result is
 * what its status is about, so a lost one is a warning, and FM_OK.  On standard output it is a lost
 * write like any other: `code`.
 */
int fm_cli_settle_side(const char *option, const char *path, int code, struct fm_err *err);

/*
 * Print the result, before the output has its name (lib/run/run.h, struct fm_announce): `text` for
 * people, or `report` as JSON with --json; on standard output, which is flushed, or
 * on standard error where standard output carries the stream (then nothing for people with
 * --quiet).  --report FILE gets the JSON too, or a warning says why not.  Releases text and takes
 * report over, always.
 */
int fm_cli_result(const struct fm_cli *cli, struct fm_cli_text *text, cJSON *report,
                  struct fm_err *err);

/* The sentence of a failed run, the last flush of standard output (a lost write is 74), and the
 * status for main to return.  After a signal without --state, or EPIPE, the process ends by that
 * signal instead, so that a shell sees 130, 143 or 141.  Ranks end together, with the sentence and
 * status of the lowest that failed. */
int fm_cli_end(const struct fm_cli *cli, int code, struct fm_err *err);

#endif
