/*
 * This room, cmd: the user interface of the tools: options, output, exit statuses.  A tool's file
 * has its option table and calls lib; everything that is useful without a command line is there.
 * In reading order: this header with cli.c, options and value (options from one table), completion,
 * progress; the tools fm-recover.c (the smallest), fm-rank.c, fm-train.c, fm-pack.c, fm-verify.c,
 * and fm-bench.c, which are functions (tools.h, main.c); fm-family.c, which calls them; their
 * output (result, show, listing, results and results_*).
 *
 * Common to the tools: options from one table (which also prints --help), the run options of
 * lib/run/run.h, progress, warnings, signals, and the end of the process.  A tool begins with
 * fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own)), does its work, and ends with return
 * fm_cli_end(&cli, work(&cli, &err), &err).
 *
 * A tool prints its result with fm_cli_result, once.  An error is one sentence on standard error,
 * "fm-rank: ...", and the exit status (lib/base/err.h).
 */
#ifndef FM_CLI_H
#define FM_CLI_H

#include <stddef.h>
#include <stdio.h>

#include <cjson/cJSON.h>

#include "cmd/options.h"
#include "lib/base/err.h"

/* Parse the options. --help and --version print and exit with status 0; a mistake ends the tool
 * with a message and status 2.  If an option names a file that must not be written, the tool ends
 * as lib/run/guard.h says.  Then start the sandbox (cli->confined), the progress of
 * cli->run, the thread that handles signals, the ranks and the thread pool. */
void fm_cli_begin(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                  int count);

/* A closed descriptor 0, 1 or 2 would be reused for the next file opened, and results would be
 * printed into it.  An epoll descriptor in its place can be neither read nor written.
 * fm_cli_begin calls it. */
void fm_cli_descriptors(void);

/* The result as text for people, written to a stream in memory. */
struct fm_cli_text {
    FILE *out;
    char *bytes;
    size_t size;
};
int fm_cli_text_open(struct fm_cli_text *text, struct fm_err *err);
void fm_cli_text_drop(struct fm_cli_text *text); /* discard it */

/*
 * Handle the result (`code` and *err) of writing a plot.  The exit status is that of the run's
 * result, so a lost plot is only a warning, and FM_OK is returned.  On standard output it is an
 * error like any other lost write, and `code` is returned.
 */
int fm_cli_settle_plot(const char *path, int code, struct fm_err *err);

/*
 * Print the result, before the output gets its final name (lib/run/run.h, struct fm_announce):
 * `text` for people, or `report` as JSON with --json.  It goes to standard output, which is
 * flushed, or to standard error if standard output carries the stream; there, --quiet suppresses
 * the text.  Always releases text and takes ownership of report.
 */
int fm_cli_result(const struct fm_cli *cli, struct fm_cli_text *text, cJSON *report,
                  struct fm_err *err);

/* Print the error sentence of a failed run, flush standard output (a lost write is 74), and return
 * the status for main.  After a signal without --state, or EPIPE, the process ends by that signal
 * instead, so that a shell sees 130, 143 or 141.  Ranks end together, with the sentence and
 * status of the lowest rank that failed. */
int fm_cli_end(const struct fm_cli *cli, int code, struct fm_err *err);

#endif
