/*
 * The beginning and end of every tool, with the rules that scripts rely on: after a signal the run
 * stops at its next step (lib/base/signals.h); a tool whose output pipe is closed ends by SIGPIPE;
 * the result is printed only when the work is done; and a failed flush never gives status 0.
 */
#include "cmd/cli.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cmd/progress.h"
#include "cmd/result.h"
#include "lib/base/clock.h"
#include "lib/base/fatal.h"
#include "lib/base/isa.h"
#include "lib/base/pool.h"
#include "lib/base/printable.h"
#include "lib/base/signals.h"
#include "lib/base/units.h"
#include "lib/run/confine.h"
#include "lib/run/ranks.h"

void fm_cli_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && epoll_create1(0) < 0)
            _exit(FM_EIO);
}

/* The text of each kind of advice.  It is printed only by tools that have the option groups
 * `groups`. */
static const struct {
    const char *words;
    int groups;
} advice[FM_ADVICES] = {
    [FM_ADVISE_LESS_MEMORY] = {"use a smaller --memory, --batch or --seq-len",
                               FM_CLI_MACHINE | FM_CLI_TOKENS},
    [FM_ADVISE_FEWER_THREADS] = {"use fewer --threads", 0},
    [FM_ADVISE_FLOAT32] = {"use --precision f32", 0},
    [FM_ADVISE_REPLACE] = {"use --force to replace it", 0},
    [FM_ADVISE_CARRY] = {"put a copy in its place, or give its name to --carry of fm-rank", 0},
    [FM_ADVISE_DECOMPRESS] = {"decompress it, or pipe it to --text -", 0},
    [FM_ADVISE_ROWS] = {"give its parts as JSON lines", 0},
    [FM_ADVISE_TEXT_FIELD] = {"name the field with --text-field", 0},
    [FM_ADVISE_OTHER_TOKENIZER] = {"use --tokenizer-cmd, or token files", 0},
    [FM_ADVISE_TOKEN_TYPE] =
        {"give raw tokens a name, or a link, that ends in .u16 or .u32; convert others to .npy", 0},
    [FM_ADVISE_TEXT] = {"give it with --text", 0},
    [FM_ADVISE_TOKENS_OR_TEXT] = {"give a file of tokens, or --text FILE", 0},
};

static bool files_confined; /* only files named on the command line can be opened */

/* The advice after the sentence of an error: "" or "; use --force to replace it". */
static const char *advise(char to[96], const struct fm_err *err, int groups)
{
    const char *words = advice[err->advice].words;
    assert(words || !err->advice);
    bool fits = words && !(advice[err->advice].groups & ~groups);
    if (!words && files_confined && err->code == FM_EPERM) {
        words = "if its permissions allow access, the sandbox denied it; see --no-sandbox in fm(7)";
        fits = true;
    }
    snprintf(to, 96, "%s%s", fits ? "; " : "", fits ? words : "");
    return to;
}

int fm_cli_settle_plot(const char *path, int code, struct fm_err *err)
{
    if (!code || strcmp(path, "-") == 0)
        return code;
    char text[FM_ERR_TEXT_BYTES + 160], words[96];
    snprintf(text, sizeof text, "--plot: %s%s; only the plot is lost, not the result", err->text,
             advise(words, err, 0));
    fm_progress_warn(text);
    *err = (struct fm_err){0};
    return FM_OK;
}

/* Check that all ranks take the same path; otherwise they would wait for each other.  Options that
 * affect the result are compared later. */
static int same_way(const struct fm_cli *cli, struct fm_err *err)
{
    const char *const says[] = {"absent", "given"};
    bool streams = fm_ranks_streams(&cli->run.inputs, !cli->dry_run);
    const struct fm_comm_fact fact[] = {
        {"the tool", cli->tool},
        {"--dry-run", says[cli->dry_run]},
        {"--state", says[cli->run.outputs.state != NULL]},
        {"standard input", streams ? "read" : "unused"},
    };
    return fm_comm_same(cli->run.machine.comm, fact, sizeof fact / sizeof *fact, err);
}

/* Start the ranks, if any.  Rank 0 prints, and checks whether outputs can be written: it writes
 * them, perhaps to a disk that no other machine sees. */
static int begin_ranks(struct fm_cli *cli, struct fm_err *err)
{
    struct fm_run_options *run = &cli->run;
    const char *warning = NULL;
    if ((cli->groups & FM_CLI_RANKS) &&
        fm_comm_open(&run->machine.comm, fm_wire_linked, &warning, err))
        return err->code;
    bool speaks = fm_comm_rank(run->machine.comm) == 0;
    if (warning)
        fm_run_warn(run, "%s", warning);
    if (!speaks)
        run->progress = (struct fm_progress){0};
    int rc =
        fm_comm_agree(run->machine.comm, speaks ? fm_guard_check(&cli->guard, err) : FM_OK, err);
    if (!rc)
        rc = same_way(cli, err);
    return rc ? rc : fm_ranks_begin(run, fm_ranks_streams(&run->inputs, !cli->dry_run), err);
}

static int check_isa(struct fm_err *err)
{
    const char *mistake = fm_isa_mistake();
    return mistake ? fm_fail(err, FM_EUSAGE,
                             "the environment variable FM_ISA is '%s'; it must be base, avx2, "
                             "avx512 or amx",
                             mistake)
                   : FM_OK;
}

static double began; /* fm_clock_now() of fm_cli_begin */

void fm_cli_begin(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                  int count)
{
    struct fm_err err = {0};
    int rc = FM_OK;
    began = fm_clock_now();
    fm_cli_descriptors();
    if (!fm_options_parse(cli, argc, argv, own, count))
        exit(fm_cli_end(cli, FM_OK, &err));
    if (cli->groups & FM_CLI_TOKENS)
        fm_fatal_advise("use a smaller --batch or --seq-len");
    if (cli->confined && cli->confined(cli) && !cli->no_sandbox)
        rc = fm_confine(&cli->guard, cli->descriptor ? *cli->descriptor : -1,
                        fm_options_make_file(cli), &files_confined, &err);
    cli->run.stop = fm_signals_stop();
    fm_progress_begin(&cli->run.progress, fm_options_speaker(cli), cli->quiet);
    if (rc || check_isa(&err) || fm_signals_install(fm_run_abandon, &err) ||
        begin_ranks(cli, &err) || fm_pool_start(cli->run.machine.threads, &err))
        exit(fm_cli_end(cli, err.code, &err));
}

int fm_cli_text_open(struct fm_cli_text *text, struct fm_err *err)
{
    *text = (struct fm_cli_text){0};
    text->out = open_memstream(&text->bytes, &text->size);
    return text->out ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for the result's text");
}

void fm_cli_text_drop(struct fm_cli_text *text)
{
    fclose(text->out);
    free(text->bytes);
}

/* Flush standard output; FM_EPIPE or FM_EIO.  Text that could not be written is discarded, so
 * that it is not written later. `why`: the errno of an earlier write, or 0. */
static int flush_stdout(int why, struct fm_err *err)
{
    bool lost = ferror(stdout) != 0;
    if (fflush(stdout))
        why = errno;
    if (!lost && !why)
        return FM_OK;
    __fpurge(stdout);
    clearerr(stdout);
    return fm_fail(err, why == EPIPE ? FM_EPIPE : FM_EIO, "cannot write standard output%s%s",
                   why ? ": " : "", why ? strerror(why) : "");
}

static int print_result(const struct fm_cli *cli, const char *text, const cJSON *report,
                        struct fm_err *err)
{
    bool stream = cli->run.outputs.path && strcmp(cli->run.outputs.path, "-") == 0 && !cli->dry_run;
    FILE *out = stream ? stderr : stdout;
    char *json = cli->json ? fm_result_json(report, err) : NULL;
    if (cli->json && !json)
        return err->code;
    bool silent = !json && stream && cli->quiet;
    int why = !silent && fputs(json ? json : text, out) < 0 && !stream ? errno : 0;
    free(json);
    return flush_stdout(why, err);
}

int fm_cli_result(const struct fm_cli *cli, struct fm_cli_text *text, cJSON *report,
                  struct fm_err *err)
{
    int rc = FM_OK;
    fm_progress_end();
    if (fclose(text->out) != 0 || !report)
        rc = fm_fail(err, FM_ENOMEM, "no memory for the result");
    if (!rc) {
        fm_printable(text->bytes, true);
        rc = print_result(cli, text->bytes, report, err);
    }
    free(text->bytes);
    cJSON_Delete(report);
    return rc;
}

/* Make all ranks end in the same way: with one code, or by one signal. */
static int agree_ends(const struct fm_cli *cli, int code, struct fm_err *err, int *stop)
{
    struct fm_comm *comm = cli->run.machine.comm;
    int least = -*stop;
    code = fm_comm_agree(comm, code, err);
    if (comm && code == FM_ESAVED && !fm_comm_least(comm, &least, err))
        *stop = -least;
    return code;
}

int fm_cli_end(const struct fm_cli *cli, int code, struct fm_err *err)
{
    int stop = *fm_signals_stop();
    bool speaks = fm_comm_rank(cli->run.machine.comm) == 0;
    fm_signals_settle();
    fm_progress_end();
    fm_pool_stop();
    code = agree_ends(cli, code, err, &stop);
    bool ended = code == FM_ESAVED && !cli->run.outputs.state && stop;
    char words[96];
    if (code && code != FM_EPIPE && !ended && err->text[0] && speaks) {
        const char *state = code == FM_ESAVED ? cli->run.outputs.state : NULL;
        bool saved = state && access(state, F_OK) == 0; /* false if stopped before the work began */
        fprintf(stderr, "%s: %s%s%s%s%s\n", fm_options_speaker(cli), err->text,
                advise(words, err, cli->groups),
                saved   ? "; repeat the command to continue from '"
                : state ? "; there was nothing to save yet: repeat the command"
                        : "",
                saved ? state : "", saved ? "'" : "");
    }
    if (ended && speaks && (cli->groups & FM_CLI_STATE)) {
        fm_units_time(words, fm_clock_now() - began);
        fprintf(stderr,
                "%s: stopped by a signal; %s of work is lost; use --state FILE to save progress\n",
                fm_options_speaker(cli), words);
    }
    /* A launcher may end the other ranks when the first exits with a status that is not 0. */
    code = fm_comm_close(cli->run.machine.comm, code, err);
    if (ended) {
        fm_run_abandon();
        fm_signals_end(stop);
    }
    struct fm_err lost = {0};
    if (flush_stdout(0, &lost) == FM_EIO)
        fprintf(stderr, "%s: %s\n", fm_options_speaker(cli), lost.text);
    code = code && lost.code != FM_EPIPE ? code : lost.code;
    if (code == FM_EPIPE) {
        fm_run_abandon();
        fm_signals_end(SIGPIPE);
    }
    return code;
}
