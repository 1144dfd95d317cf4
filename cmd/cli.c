#include "cmd/cli.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "cmd/progress.h"
#include "lib/base/pool.h"
#include "lib/report.h"

#define OPTIONS_MAX 64

/* The option table of one parse: the tool's own rows, then the shared ones. */
struct table {
    const struct fm_cli_option *row[OPTIONS_MAX];
    int rows, own;
};

/* Shared options that are not plain fields of struct fm_run_options. */
static struct {
    int device, precision, token_dtype;
    bool help, version;
} chosen;

static const char *const device_name[] = {"auto", "ref", "cpu"};

/* --- signals and standard descriptors --- */

static int stop_signal;

static void on_signal(int sig)
{
    if (stop_signal) { /* the second one: now */
        fm_run_abandon();
        signal(sig, SIG_DFL);
        raise(sig);
    }
    stop_signal = sig;
}

static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    signal(SIGPIPE, SIG_IGN); /* a lost reader is an error of write, cleaned up after */
}

/* End by the signal itself; as process 1 of a container its default does nothing. */
static _Noreturn void end_by(int sig)
{
    signal(sig, SIG_DFL);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    raise(sig);
    _exit(128 + sig);
}

/* A closed descriptor 0, 1 or 2 would be given to the next file opened, and results printed
 * into it.  An epoll descriptor in its place can be neither read nor written. */
static void fill_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && epoll_create1(0) < 0)
            _exit(FM_EIO);
}

/* --- values --- */

static bool parse_count(uint64_t *value, const char *text, const char **end)
{
    uint64_t v = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, *p - '0', &v))
            return false;
    *value = v;
    *end = p;
    return p > text;
}

static uint64_t unit_of(const char *suffix)
{
    static const char letters[] = "KMGT";
    if (!*suffix || strcmp(suffix, "B") == 0)
        return 1;
    const char *at = strchr(letters, *suffix);
    bool binary = strcmp(suffix + 1, "iB") == 0 || suffix[1] == '\0';
    if (!at || (!binary && strcmp(suffix + 1, "B") != 0))
        return 0;
    uint64_t unit = 1;
    for (const char *p = letters; p <= at; p++)
        unit *= binary ? 1024 : 1000;
    return unit;
}

/* 23.4GB: exact, in integers; a fraction of a byte is dropped.  K, KiB are 1024, KB is 1000. */
static bool parse_size(uint64_t *value, const char *text)
{
    const char *p;
    uint64_t whole, fraction = 0, scale = 1;
    if (!parse_count(&whole, text, &p))
        return false;
    if (*p == '.') {
        const char *digits = p + 1;
        if (!parse_count(&fraction, digits, &p) || p - digits > 9)
            return false;
        for (const char *d = digits; d < p; d++)
            scale *= 10;
    }
    uint64_t unit = unit_of(p);
    unsigned __int128 bytes =
        (unsigned __int128)whole * unit + (unsigned __int128)fraction * unit / scale;
    *value = (uint64_t)bytes;
    return unit && bytes <= INT64_MAX;
}

static int index_of(const char *choices, const char *text)
{
    size_t len = strlen(text);
    for (int i = 0;; i++) {
        size_t span = strcspn(choices, "|");
        if (span == len && memcmp(choices, text, len) == 0)
            return i;
        if (!choices[span])
            return -1;
        choices += span + 1;
    }
}

static bool in_limits(const struct fm_cli_option *o, double v)
{
    return (o->min == 0 && o->max == 0) || (v >= o->min && v <= o->max);
}

static bool parse_int(const struct fm_cli_option *o, const char *text)
{
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    bool digits = (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1]);
    if (!digits || *end || errno || v < INT32_MIN || v > INT32_MAX || !in_limits(o, (double)v))
        return false;
    *(int *)o->value = (int)v;
    return true;
}

static bool parse_real(const struct fm_cli_option *o, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || strchr("+ \t\n", text[0]) || !isfinite(v) || !in_limits(o, v))
        return false;
    *(double *)o->value = v;
    return true;
}

static bool parse_value(const struct fm_cli_option *o, const char *text)
{
    const char *end;
    switch (o->kind) {
    case FM_CLI_FLAG:
        *(bool *)o->value = true;
        return true;
    case FM_CLI_TEXT:
        *(const char **)o->value = text;
        return *text != '\0';
    case FM_CLI_INT:
        return parse_int(o, text);
    case FM_CLI_COUNT64:
        return parse_count(o->value, text, &end) && !*end;
    case FM_CLI_SIZE:
        return parse_size(o->value, text);
    case FM_CLI_REAL:
        return parse_real(o, text);
    case FM_CLI_CHOICE:
        *(int *)o->value = index_of(o->arg, text);
        return *(int *)o->value >= 0;
    }
    return false;
}

static void explain_value(char *text, size_t size, const struct fm_cli_option *o)
{
    if (o->kind == FM_CLI_CHOICE)
        snprintf(text, size, "use %s", o->arg);
    else if (o->kind == FM_CLI_SIZE)
        snprintf(text, size, "use a size such as 4GiB, 23.4GB or 512M");
    else if (o->min != 0 || o->max != 0)
        snprintf(text, size, "use a number from %.15g to %.15g", o->min, o->max);
    else
        snprintf(text, size, "use a %s", o->kind == FM_CLI_TEXT ? "name" : "whole number");
}

/* --- the table --- */

struct shared {
    int groups;
    struct fm_cli_option option;
};

/* Section of --help that each group of shared options stands under. */
static const char *heading_of(int group)
{
    return group & (FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_EVAL) ? "Model and tokens"
           : group & FM_CLI_MACHINE                             ? "Machine"
           : group & (FM_CLI_OUTPUT | FM_CLI_STATE)             ? "Output"
                                                                : "Every tool";
}

static const struct shared *shared_options(struct fm_cli *cli, int *count)
{
    static struct shared rows[32];
    struct fm_run_options *run = &cli->run;
    int type = FM_CLI_TOKENS | FM_CLI_EVAL;
    const struct shared list[] = {
        {FM_CLI_MODEL,
         {"model", 'm', FM_CLI_TEXT, &run->model, "DIR", "checkpoint: config.json and safetensors",
          0, 0}},
        {FM_CLI_TOKENS,
         {"tokens", 't', FM_CLI_TEXT, &run->tokens, "FILE",
          "calibration tokens: .npy, llm.c bin, raw u16/u32", 0, 0}},
        {FM_CLI_EVAL,
         {"eval-tokens", 0, FM_CLI_TEXT, &run->eval_tokens, "FILE",
          "tokens that quality is measured on", 0, 0}},
        {type,
         {"token-dtype", 0, FM_CLI_CHOICE, &chosen.token_dtype, "auto|u16|u32",
          "type of a raw token file", 0, 0}},
        {type,
         {"seq-len", 0, FM_CLI_INT, &run->seq_len, "T",
          "tokens per sequence (default: 2048, at most the model's)", 2, INT32_MAX}},
        {type,
         {"batch", 0, FM_CLI_INT, &run->batch, "N",
          "sequences per batch (default: 1 to rank, else 8)", 1, 65536}},
        {type,
         {"max-tokens", 0, FM_CLI_COUNT64, &run->max_tokens, "N",
          "use the first N tokens (default: all)", 0, 0}},
        {FM_CLI_TOKENS,
         {"shuffle", 0, FM_CLI_FLAG, &run->shuffle, NULL, "shuffle the sequences", 0, 0}},
        {FM_CLI_TOKENS,
         {"seed", 0, FM_CLI_COUNT64, &run->seed, "N", "seed of every random choice (default: 0)", 0,
          0}},
        {FM_CLI_MACHINE,
         {"device", 0, FM_CLI_CHOICE, &chosen.device, "auto|ref|cpu",
          "who computes (default: auto)", 0, 0}},
        {FM_CLI_MACHINE,
         {"precision", 0, FM_CLI_CHOICE, &chosen.precision, "f32|bf16",
          "of matrix products (default: f32)", 0, 0}},
        {FM_CLI_MACHINE,
         {"memory", 0, FM_CLI_SIZE, &run->memory, "SIZE",
          "memory to stay within (default: half of the machine's)", 0, 0}},
        {FM_CLI_MACHINE | FM_CLI_ALL,
         {"threads", 'T', FM_CLI_INT, &run->threads, "N", "threads (default: one per CPU)", 0,
          FM_THREADS_MAX}},
        {FM_CLI_OUTPUT,
         {"output", 'o', FM_CLI_TEXT, &run->output, "FILE",
          "where the result goes; - is standard output", 0, 0}},
        {FM_CLI_OUTPUT,
         {"force", 'f', FM_CLI_FLAG, &run->force, NULL, "replace an output that exists", 0, 0}},
        {FM_CLI_STATE,
         {"state", 0, FM_CLI_TEXT, &run->state, "FILE",
          "save progress here; run the same command again to go on", 0, 0}},
        {FM_CLI_ALL, {"json", 0, FM_CLI_FLAG, &cli->json, NULL, "print the result as JSON", 0, 0}},
        {FM_CLI_ALL,
         {"report", 0, FM_CLI_TEXT, &cli->report, "FILE", "write the result as JSON to FILE", 0,
          0}},
        {FM_CLI_ALL,
         {"dry-run", 'n', FM_CLI_FLAG, &cli->dry_run, NULL,
          "check everything, print the plan, compute nothing", 0, 0}},
        {FM_CLI_ALL, {"quiet", 'q', FM_CLI_FLAG, &cli->quiet, NULL, "no progress", 0, 0}},
        {FM_CLI_ALL, {"help", 'h', FM_CLI_FLAG, &chosen.help, NULL, "this text", 0, 0}},
        {FM_CLI_ALL, {"version", 'V', FM_CLI_FLAG, &chosen.version, NULL, "the version", 0, 0}},
    };
    *count = FM_CLI_COUNT(list);
    memcpy(rows, list, sizeof list);
    return rows;
}

static void build_table(struct table *t, struct fm_cli *cli, const struct fm_cli_option *own,
                        int count)
{
    int shared;
    const struct shared *list = shared_options(cli, &shared);
    t->own = count;
    t->rows = 0;
    assert(count + shared < OPTIONS_MAX);
    for (int i = 0; i < count; i++)
        t->row[t->rows++] = &own[i];
    for (int i = 0; i < shared; i++)
        if (list[i].groups & (cli->groups | FM_CLI_ALL))
            t->row[t->rows++] = &list[i].option;
}

/* --- help and mistakes --- */

static void print_row(const struct fm_cli_option *o)
{
    char left[64];
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, o->name, o->arg ? " " : "",
             o->arg ? o->arg : "");
    if (strlen(left) > 30)
        printf("  %s\n  %-31s%s\n", left, "", o->help);
    else
        printf("  %-31s%s\n", left, o->help);
}

static void print_help(struct fm_cli *cli, const struct table *t)
{
    printf("usage: %s %s\n\n%s\n", cli->tool, cli->synopsis, cli->about);
    int shared;
    const struct shared *list = shared_options(cli, &shared);
    if (t->own)
        printf("\nOptions\n");
    for (int i = 0; i < t->own; i++)
        print_row(t->row[i]);
    const char *heading = "";
    for (int i = 0, at = t->own; at < t->rows; i++) {
        if (&list[i].option != t->row[at])
            continue;
        const char *now = heading_of(list[i].groups & cli->groups);
        if (strcmp(now, heading) != 0)
            printf("\n%s\n", now);
        heading = now;
        print_row(t->row[at++]);
    }
    printf("\nSizes: 4GiB, 23.4GB, 512M.  Exit statuses and everything else: %s(1), fm(7).\n",
           cli->tool);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance, for words of at most 31 bytes; longer ones are far from everything. */
static int distance(const char *a, const char *b)
{
    int row[32];
    size_t n = strlen(a), m = strlen(b);
    if (n > 31 || m > 31)
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int swap = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = least(swap, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[m];
}

static _Noreturn void refuse(const struct fm_cli *cli, const char *what, const char *name,
                             const char *advice)
{
    struct fm_err err = {0};
    fm_fail(&err, FM_EUSAGE, "%s%s%s%s%s; see %s --help", what, name, *advice ? " (" : "", advice,
            *advice ? ")" : "", cli->tool);
    fprintf(stderr, "%s: %s\n", cli->tool, err.text);
    exit(FM_EUSAGE);
}

static _Noreturn void refuse_option(const struct fm_cli *cli, const struct table *t,
                                    const char *word)
{
    char name[64], advice[96] = "";
    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = '\0';
    int best = 3;
    for (int i = 0; i < t->rows; i++) {
        int d = distance(name, t->row[i]->name);
        if (d < best) {
            best = d;
            snprintf(advice, sizeof advice, "did you mean --%s?", t->row[i]->name);
        }
    }
    refuse(cli, "there is no option ", word, advice);
}

/* --- parsing --- */

static int getopt_tables(const struct table *t, struct option *longs, char *shorts)
{
    char *s = shorts;
    *s++ = ':';
    for (int i = 0; i < t->rows; i++) {
        const struct fm_cli_option *o = t->row[i];
        longs[i] = (struct option){o->name, o->kind != FM_CLI_FLAG, NULL, 256 + i};
        if (!o->letter)
            continue;
        *s++ = o->letter;
        if (o->kind != FM_CLI_FLAG)
            *s++ = ':';
    }
    *s = '\0';
    longs[t->rows] = (struct option){0};
    return t->rows;
}

static const struct fm_cli_option *row_of(const struct table *t, int c)
{
    if (c >= 256)
        return t->row[c - 256];
    for (int i = 0; i < t->rows; i++)
        if (t->row[i]->letter == c)
            return t->row[i];
    return NULL;
}

static void parse_options(struct fm_cli *cli, const struct table *t, int argc, char **argv)
{
    struct option longs[OPTIONS_MAX + 1];
    char shorts[2 * OPTIONS_MAX + 2];
    getopt_tables(t, longs, shorts);
    int c;
    for (int at = 1; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1; at = optind) {
        if (c == ':')
            refuse(cli, "an argument is missing after ", argv[optind - 1], "");
        const struct fm_cli_option *o = c == '?' ? NULL : row_of(t, c);
        if (!o)
            refuse_option(cli, t, argv[at < optind ? optind - 1 : at]);
        if (!parse_value(o, optarg)) {
            char advice[160], what[96];
            explain_value(advice, sizeof advice, o);
            snprintf(what, sizeof what, "bad value for --%s: ", o->name);
            refuse(cli, what, optarg, advice);
        }
    }
    cli->operand = argv + optind;
    cli->operands = argc - optind;
}

static void check_needs(const struct fm_cli *cli)
{
    bool needed = !(cli->groups & FM_CLI_OPTIONAL);
    if (needed && (cli->groups & FM_CLI_MODEL) && !cli->run.model)
        refuse(cli, "--model DIR is missing", "", "");
    if (needed && (cli->groups & FM_CLI_TOKENS) && !cli->run.tokens)
        refuse(cli, "--tokens FILE is missing", "", "");
    if (cli->operands > cli->operands_max)
        refuse(cli, "one operand too many: ", cli->operand[cli->operands_max], "");
}

static void settle_run(struct fm_cli *cli)
{
    static const enum fm_token_type token_type[] = {FM_TOKEN_AUTO, FM_TOKEN_U16, FM_TOKEN_U32};
    cli->run.device = device_name[chosen.device];
    cli->run.precision = chosen.precision ? FM_PRECISION_BF16 : FM_PRECISION_F32;
    cli->run.token_dtype = token_type[chosen.token_dtype];
    cli->run.stop = &stop_signal;
    fm_progress_begin(&cli->run.progress, cli->tool, cli->quiet);
}

void fm_cli_begin(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                  int count)
{
    struct table t;
    struct fm_err err = {0};
    fill_standard_descriptors();
    build_table(&t, cli, own, count);
    parse_options(cli, &t, argc, argv);
    if (chosen.help || chosen.version) {
        if (chosen.help)
            print_help(cli, &t);
        else
            printf("%s (fm suite) %s\n", cli->tool, FM_VERSION);
        exit(fm_cli_end(cli, FM_OK, &err));
    }
    check_needs(cli);
    settle_run(cli);
    catch_signals();
    if (fm_pool_start(cli->run.threads, &err) != FM_OK)
        exit(fm_cli_end(cli, err.code, &err));
}

/* --- the end --- */

void fm_cli_bytes(char text[32], uint64_t bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 999.5 && u < 6) {
        v /= 1000;
        u++;
    }
    snprintf(text, 32, u == 0 || v >= 99.5 ? "%.0f %s" : "%.3g %s", v, unit[u]);
}

int fm_cli_print(const struct fm_cli *cli, const char *text, const cJSON *report,
                 struct fm_err *err)
{
    fm_progress_end();
    if (cli->report && report && fm_report_write(report, cli->report, err) != FM_OK)
        return err->code;
    bool stream = cli->run.output && strcmp(cli->run.output, "-") == 0 && !cli->dry_run;
    FILE *out = stream ? stderr : stdout;
    if (!cli->json || !report) {
        fputs(text ? text : "", out);
        return FM_OK;
    }
    char *json = fm_report_json(report, err);
    if (!json)
        return err->code;
    fputs(json, out);
    free(json);
    return FM_OK;
}

static int flush_stdout(const struct fm_cli *cli, int code)
{
    bool lost = ferror(stdout) != 0;
    int why = 0;
    if (fflush(stdout) != 0) {
        lost = true;
        why = errno;
    }
    if (!lost)
        return code;
    if (why == EPIPE)
        return FM_EPIPE;
    fprintf(stderr, "%s: cannot write standard output%s%s\n", cli->tool, why ? ": " : "",
            why ? strerror(why) : "");
    return code == FM_OK ? FM_EIO : code;
}

int fm_cli_end(const struct fm_cli *cli, int code, const struct fm_err *err)
{
    fm_progress_end();
    fm_pool_stop();
    bool saved = code == FM_ESAVED && cli->run.state;
    if (code == FM_ESAVED && !saved && stop_signal) {
        fm_run_abandon();
        end_by(stop_signal);
    }
    if (code != FM_OK && code != FM_EPIPE && err->text[0])
        fprintf(stderr, "%s: %s\n", cli->tool, err->text);
    code = flush_stdout(cli, code);
    if (code == FM_EPIPE) {
        fm_run_abandon();
        end_by(SIGPIPE);
    }
    return code;
}
