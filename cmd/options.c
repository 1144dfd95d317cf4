/*
 * One table drives parsing, --help and the checks that an option applies in the mode, so the three
 * always agree. getopt_long splits the command line; the table says what a value is and where it is
 * stored. glibc's argp has tables too, but no modes, units or limits, and it prints and exits by
 * itself.
 */
#include "cmd/options.h"

#include <assert.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/completion.h"
#include "cmd/value.h"
#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/export/filetable.h"

#define OPTIONS_MAX 64

/* The option table of one parse: the tool's own rows, then the shared ones. */
struct table {
    const struct fm_cli_option *row[OPTIONS_MAX];
    const struct shared *shared[OPTIONS_MAX]; /* NULL: the tool's own */
    int rows, own;
};

/* Shared options that are not plain fields of struct fm_run_options. */
static struct {
    int device, precision;
    const char *help; /* "" or "all" */
    bool version;
} chosen;

/* Values of --precision.  Tools that measure losses choose the faster type by default; fm-verify
 * compares values, in float32. */
enum { IN_F32, IN_BF16, IN_EITHER };

static bool is_measuring(const struct fm_cli *cli)
{
    return cli->groups & FM_CLI_EVAL;
}

static bool is_stage(const struct fm_cli *cli)
{
    return cli->groups & (FM_CLI_STATE | FM_CLI_FAMILY);
}

static const char *speaker;

void fm_options_speak(const char *name)
{
    speaker = name;
}

const char *fm_options_speaker(const struct fm_cli *cli)
{
    return speaker ? speaker : cli->tool;
}

/* Options that a shared option requires, beside its groups. */
enum { NEEDS_TEXT = 1 << 20, NEEDS_RESULT = 1 << 21, NEEDS_EVAL = 1 << 22, NEEDS = 7 << 20 };

struct shared {
    int groups;
    struct fm_cli_option option;
};

/* Section of --help for each group of shared options. */
static const char *heading_of(int group)
{
    return group & (FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_EVAL) ? "Model and tokens"
           : group & (FM_CLI_MACHINE | FM_CLI_RANKS)            ? "Machine"
           : group & (FM_CLI_OUTPUT | FM_CLI_STATE)             ? "Output"
                                                                : "Every tool";
}

/* Help of --json: if standard output carries a stream, the result goes to standard error. */
static const char *json_help(const struct fm_cli *cli)
{
    return cli->groups & FM_CLI_OUTPUT
               ? "print the result as JSON; on standard error if standard output is a stream"
               : "print the result as JSON";
}

/* The shared options, in the order of --help. */
static const struct shared *shared_options(struct fm_cli *cli, int *count)
{
    static struct shared rows[OPTIONS_MAX];
    struct fm_run_options *run = &cli->run;
    const int type = FM_CLI_TOKENS | FM_CLI_EVAL;
    const struct shared list[] = {
        {FM_CLI_MODEL,
         {"model", 'm', FM_CLI_READ, &run->inputs.model, "DIR",
          "checkpoint, or ORG/NAME in the Hugging Face cache", 0, 0, 0}},
        {FM_CLI_TOKENS,
         {"tokens", 't', FM_CLI_SOURCES, run->inputs.tokens, "FILE[:W]",
          "tokens: .npy, or raw .u16 or .u32; repeat to mix", 0, 0, 0}},
        {FM_CLI_TOKENS,
         {"text", 0, FM_CLI_SOURCES, run->inputs.texts, "FILE[:W]",
          cli->groups & FM_CLI_FAMILY ? "text to calibrate on: .jsonl, .txt; repeat to mix"
                                      : "text instead, or mixed in: .jsonl, .txt, - (stdin)",
          0, 0, 0}},
        {FM_CLI_TOKENS | NEEDS_TEXT,
         {"text-field", 0, FM_CLI_TEXT, &run->inputs.text_field, "NAME",
          "field of .jsonl rows with the text (default: text)", 0, 0, 0}},
        {FM_CLI_TOKENS | NEEDS_TEXT,
         {"tokenizer", 0, FM_CLI_READ, &run->inputs.tokenizer, "FILE",
          "tokenizer.json for text (default: the model's own)", 0, 0, 0}},
        {FM_CLI_TOKENS | NEEDS_TEXT,
         {"tokenizer-cmd", 0, FM_CLI_TEXT, &run->inputs.tokenizer_cmd, "CMD",
          "encode text with a command: JSON string in, JSON ids out, per line", 0, 0, 0}},
        {FM_CLI_TOKENS | NEEDS_TEXT,
         {"separator", 0, FM_CLI_TEXT, &run->inputs.separator, "eos|none|TOKEN",
          "token after each document of text (default: eos)", 0, 0, 0}},
        {FM_CLI_EVAL,
         {"eval-tokens", 0, FM_CLI_READS, run->inputs.eval_tokens, "FILE",
          "tokens to measure quality on; repeat for other kinds of text", 0, 0, 0}},
        {FM_CLI_EVAL,
         {"eval-text", 0, FM_CLI_READS, run->inputs.eval_texts, "FILE",
          "text to measure quality on; repeat for other kinds of text", 0, 0, 0}},
        {type,
         {"seq-len", 0, FM_CLI_INT, &run->inputs.seq_len, "T",
          "tokens per sequence (default: 2048 or the model's)", 2, INT32_MAX, 0}},
        {type,
         {"batch", 0, FM_CLI_INT, &run->inputs.batch, "N",
          "sequences per batch (default: 1 to rank, else 8)", 1, 65536, 0}},
        {type,
         {"max-tokens", 0, FM_CLI_COUNT64, &run->inputs.max_tokens, "N",
          is_stage(cli) ? "use N tokens, held-out ones included (default: all)"
                        : "use the first N tokens (default: all)",
          0, 0, 0}},
        {FM_CLI_EVAL | NEEDS_EVAL,
         {"max-eval-tokens", 0, FM_CLI_COUNT64, &run->inputs.max_eval_tokens, "N",
          is_stage(cli) ? "measure on the first N held-out tokens (default: 1/8 of the others)"
                        : "measure on the first N held-out tokens (default: 65536)",
          0, 0, 0}},
        {FM_CLI_TOKENS,
         {"shuffle", 0, FM_CLI_FLAG, &run->inputs.shuffle, NULL, "shuffle the sequences", 0, 0, 0}},
        {FM_CLI_TOKENS | FM_CLI_MACHINE,
         {"seed", 0, FM_CLI_COUNT64, &run->inputs.seed, "N",
          "seed of every random choice (default: 0)", 0, 0, 0}},
        {FM_CLI_MACHINE,
         {"device", 0, FM_CLI_CHOICE, &chosen.device, "cpu|ref",
          "where to compute: fast, or slow with the same bytes everywhere (default: cpu)", 0, 0,
          0}},
        {FM_CLI_MACHINE,
         {"precision", 0, FM_CLI_CHOICE, &chosen.precision, "f32|bf16|auto",
          is_measuring(cli) ? "precision of matrix products (default: auto)"
                            : "precision of matrix products (default: f32)",
          0, 0, 0}},
        {FM_CLI_MACHINE,
         {"memory", 0, FM_CLI_SIZE, &run->machine.memory, "SIZE",
          "memory limit (default: half of what is available)", 0, 0, 0}},
        {FM_CLI_MACHINE | FM_CLI_ALL,
         {"threads", 'T', FM_CLI_INT, &run->machine.threads, "N", "threads (default: one per CPU)",
          0, FM_THREADS_MAX, 0}},
        {FM_CLI_OUTPUT,
         {"output", 'o', FM_CLI_RESULT, &run->outputs.path, "FILE",
          "file to write; - is standard output", 0, 0, 0}},
        {FM_CLI_STATE,
         {"state", 0, FM_CLI_JOURNAL, &run->outputs.state, "FILE",
          "save progress here; the same command then resumes", 0, 0, 0}},
        {FM_CLI_ALL, {"json", 0, FM_CLI_FLAG, &cli->json, NULL, json_help(cli), 0, 0, 0}},
        {FM_CLI_ALL | NEEDS_RESULT,
         {"force", 'f', FM_CLI_FLAG, &run->outputs.force, NULL, "replace files that exist", 0, 0,
          0}},
        {FM_CLI_ALL,
         {"dry-run", 'n', FM_CLI_FLAG, &cli->dry_run, NULL,
          "check everything, print a forecast, compute nothing", 0, 0, 0}},
        {FM_CLI_ALL,
         {"quiet", 'q', FM_CLI_FLAG, &cli->quiet, NULL,
          "print only errors on standard error; no progress, no warnings", 0, 0, 0}},
        {FM_CLI_CONFINED,
         {"no-sandbox", 0, FM_CLI_FLAG, &cli->no_sandbox, NULL,
          "read untrusted files without a sandbox", 0, 0, 0}},
        {FM_CLI_ALL,
         {"help", 'h', FM_CLI_HELP, &chosen.help, NULL,
          "print the common options; --help=all: all options", 0, 0, 0}},
        {FM_CLI_ALL,
         {"version", 'V', FM_CLI_FLAG, &chosen.version, NULL, "print the version", 0, 0, 0}},
    };
    *count = FM_CLI_COUNT(list);
    return memcpy(rows, list, sizeof list);
}

/* The tool's row for a shared option; NULL: none, so the option applies in all modes. */
static const struct fm_cli_scope *find_scope(const struct fm_cli *cli, const struct shared *shared)
{
    const struct fm_cli_scope *s = cli->scope;
    for (; s && (s->name || s->groups); s++)
        if (s->name ? strcmp(s->name, shared->option.name) == 0
                    : !(shared->groups & ~(s->groups | NEEDS)))
            return s;
    return NULL;
}

static void build_table(struct table *t, struct fm_cli *cli, const struct fm_cli_option *own,
                        int count)
{
    int shared;
    const struct shared *list = shared_options(cli, &shared);
    t->own = count;
    t->rows = 0;
    assert(count + shared < OPTIONS_MAX);
    for (int i = 0; i < count; i++) {
        t->shared[t->rows] = NULL;
        t->row[t->rows++] = &own[i];
    }
    for (int i = 0; i < shared; i++) {
        const struct fm_cli_scope *scope = find_scope(cli, &list[i]);
        if (!(list[i].groups & (cli->groups | FM_CLI_ALL)) ||
            (scope && scope->modes == FM_CLI_ABSENT))
            continue;
        t->shared[t->rows] = &list[i];
        t->row[t->rows++] = &list[i].option;
    }
}

/* --- help and mistakes --- */

static const struct fm_cli_option *find_row(const struct table *t, const char *name, size_t length)
{
    for (int i = 0; i < t->rows; i++)
        if (strlen(t->row[i]->name) == length && memcmp(t->row[i]->name, name, length) == 0)
            return t->row[i];
    return NULL;
}

/* Print the most common options, in the order of cli->often; they fit on a screen of 80 by 24. */
static void print_brief(const struct fm_cli *cli, const struct table *t)
{
    printf("usage: %s %s\n\n%s\n\n", cli->tool, cli->synopsis, cli->about);
    for (const char *name = cli->often, *end; *name; name = end + (*end == ' ')) {
        end = name + strcspn(name, " ");
        const struct fm_cli_option *row = find_row(t, name, (size_t)(end - name));
        assert(row);
        fm_value_print_short(row);
    }
    printf("\n%s --help=all: all options.  Manual: %s(1), fm(7).\n", cli->tool, cli->tool);
}

static void print_help(struct fm_cli *cli, const struct table *t)
{
    printf("usage: %s %s\n\n%s\n", cli->tool, cli->synopsis, cli->about);
    int shared;
    const struct shared *list = shared_options(cli, &shared);
    if (t->own)
        printf("\nOptions\n");
    for (int i = 0; i < t->own; i++)
        fm_value_print(t->row[i]);
    const char *heading = "";
    for (int i = 0, at = t->own; at < t->rows; i++) {
        if (&list[i].option != t->row[at])
            continue;
        const char *now = heading_of(list[i].groups);
        if (strcmp(now, heading) != 0)
            printf("\n%s\n", now);
        heading = now;
        fm_value_print(t->row[at++]);
    }
    printf("\nSizes: 4GiB, 23.4GB, 512M.  Exit statuses and everything else: %s(1), fm(7).\n",
           cli->tool);
}

static _Noreturn void refuse(const struct fm_cli *cli, const char *what, const char *name,
                             const char *advice)
{
    struct fm_err err = {0};
    fm_fail(&err, FM_EUSAGE, "%s%s%s%s%s; see %s --help", what, name, *advice ? " (" : "", advice,
            *advice ? ")" : "", fm_options_speaker(cli));
    fprintf(stderr, "%s: %s\n", fm_options_speaker(cli), err.text);
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
        int d = fm_names_distance(name, t->row[i]->name);
        if (d < best) {
            best = d;
            snprintf(advice, sizeof advice, "did you mean --%s?", t->row[i]->name);
        }
    }
    refuse(cli, "unknown option ", word, advice);
}

/* --- parsing --- */

static void getopt_tables(const struct table *t, struct option *longs, char *shorts)
{
    char *s = shorts;
    *s++ = ':';
    for (int i = 0; i < t->rows; i++) {
        const struct fm_cli_option *o = t->row[i];
        bool plain = o->kind == FM_CLI_FLAG || o->kind == FM_CLI_HELP;
        longs[i] = (struct option){o->name, plain ? no_argument : required_argument, NULL, 256 + i};
        if (o->kind == FM_CLI_HELP)
            longs[i].has_arg = optional_argument;
        if (!o->letter)
            continue;
        *s++ = o->letter;
        if (!plain)
            *s++ = ':';
    }
    *s = '\0';
    longs[t->rows] = (struct option){0};
}

/* The row for the result of getopt_long, or -1. */
static int row_of(const struct table *t, int c)
{
    if (c >= 256)
        return c - 256;
    for (int i = 0; i < t->rows; i++)
        if (c != '?' && t->row[i]->letter == c)
            return i;
    return -1;
}

/* The modes in which an option applies; 0: all. */
static int modes_of(const struct fm_cli *cli, const struct table *t, int row)
{
    const struct fm_cli_scope *scope = t->shared[row] ? find_scope(cli, t->shared[row]) : NULL;
    return scope ? scope->modes : t->row[row]->modes;
}

static void parse_words(struct fm_cli *cli, const struct table *t, int argc, char **argv)
{
    struct option longs[OPTIONS_MAX + 1];
    char shorts[2 * OPTIONS_MAX + 2];
    getopt_tables(t, longs, shorts);
    static struct fm_cli_word *words; /* until the process ends */
    size_t most = 1;                  /* a word like -nq has several options */
    for (int i = 1; i < argc; i++)
        most += strlen(argv[i]);
    free(words);
    words = cli->word = calloc(most, sizeof *words);
    if (!words)
        refuse(cli, "no memory for the options", "", "");
    optind = 0; /* begin, also after another tool's command line */
    int c;
    for (int at = 1; (c = getopt_long(argc, argv, shorts, longs, NULL)) != -1; at = optind) {
        if (c == ':')
            refuse(cli, "an argument is missing after ", argv[optind - 1], "");
        int row = row_of(t, c);
        if (row < 0)
            refuse_option(cli, t, argv[at < optind ? optind - 1 : at]);
        const struct fm_cli_option *o = t->row[row];
        const struct shared *shared = t->shared[row];
        words[cli->words++] =
            (struct fm_cli_word){.name = o->name,
                                 .text = optarg,
                                 .kind = o->kind,
                                 .modes = modes_of(cli, t, row),
                                 .needs = shared ? shared->groups & NEEDS : 0,
                                 .scope = shared ? find_scope(cli, shared) : NULL};
        if (!fm_value_parse(o, optarg)) {
            char advice[160], what[96];
            fm_value_explain(advice, sizeof advice, o, optarg);
            snprintf(what, sizeof what, "bad value for --%s: ", o->name);
            refuse(cli, what, optarg, advice);
        }
    }
    cli->operand = argv + optind;
    cli->operands = argc - optind;
    int first = cli->first ? 1 : 0;
    if (cli->run.inputs.stream && cli->operands > first)
        cli->run.inputs.stream = cli->operand[first];
}

static int refuse_idle(const struct fm_cli_word *g, const char *says, struct fm_err *err)
{
    return fm_fail(err, FM_EUSAGE, "--%s has no effect %s; omit it", g->name, says);
}

int fm_options_check(const struct fm_cli *cli, int mode, const char *says, struct fm_err *err)
{
    for (int i = 0; i < cli->words; i++) {
        const struct fm_cli_word *g = &cli->word[i];
        if (!g->modes || g->modes & mode)
            continue;
        if (g->scope && g->scope->instead_in & mode)
            return fm_fail(err, FM_EUSAGE, "--%s has no effect %s; use --%s", g->name, says,
                           g->scope->instead);
        return refuse_idle(g, says, err);
    }
    return FM_OK;
}

bool fm_options_given(const struct fm_cli *cli, const char *name)
{
    return fm_names_among(cli->word, (size_t)cli->words, sizeof *cli->word, name) != NULL;
}

bool fm_options_make_file(const struct fm_cli *cli)
{
    return cli->makes && fm_options_given(cli, cli->makes);
}

/* Refuse options that modify others which were not given. */
static int check_given(const struct fm_cli *cli, struct fm_err *err)
{
    const struct fm_inputs *in = &cli->run.inputs;
    for (int i = 0; i < cli->words; i++) {
        const struct fm_cli_word *g = &cli->word[i];
        if (g->needs == NEEDS_RESULT && cli->guard.writes == 0 && !fm_options_make_file(cli))
            return refuse_idle(g, "without a file to write", err);
        if (g->needs == NEEDS_EVAL && !fm_inputs_evaluate(in))
            return refuse_idle(g, "without --eval-tokens or --eval-text", err);
        if (g->needs == NEEDS_TEXT && !in->texts[0].path && !in->eval_texts[0])
            return refuse_idle(g, "without a text", err);
    }
    return FM_OK;
}

static void check_needs(const struct fm_cli *cli)
{
    struct fm_err err = {0};
    bool needed =
        !(cli->groups & FM_CLI_OPTIONAL) && !(cli->instead && fm_options_given(cli, cli->instead));
    if (needed && (cli->groups & FM_CLI_MODEL) && !cli->run.inputs.model &&
        cli->operands > cli->operands_max)
        refuse(cli, "--model is missing before ", cli->operand[0], "");
    if (needed && (cli->groups & FM_CLI_MODEL) && !cli->run.inputs.model)
        refuse(cli, "--model DIR is missing", "", "");
    if (needed && (cli->groups & FM_CLI_TOKENS) && !fm_inputs_first(&cli->run.inputs))
        refuse(cli, "--tokens FILE or --text FILE is missing", "", "");
    if (cli->operands > cli->operands_max)
        refuse(cli, "one operand too many: ", cli->operand[cli->operands_max], "");
    if (check_given(cli, &err))
        refuse(cli, err.text, "", "");
}

/* Register all files of the command line, and standard input. */
static void collect(struct fm_cli *cli, const struct table *t)
{
    static char what[OPTIONS_MAX][32]; /* "--state" */
    struct fm_guard *g = &cli->guard;
    *g = (struct fm_guard){
        .tool = cli->tool, .force = cli->run.outputs.force, .directory = fm_filetable_own_check};
    for (int i = 0; i < t->rows; i++) {
        const struct fm_cli_option *o = t->row[i];
        snprintf(what[i], sizeof what[i], "--%s", o->name);
        if (o->kind == FM_CLI_RESULT && g->writes > 0 && g->write[0].kind == FM_GUARD_DIRECTORY)
            continue; /* the export is the result; the default of --output is not used */
        fm_value_files(g, o, what[i]);
    }
    for (int i = cli->first ? 1 : 0; i < cli->operands && i < cli->operands_max; i++)
        fm_guard_reads(g, "the operand", cli->operand[i]);
    fm_guard_reads(g, "standard input", "-");
}

/* --completion=SHELL, without other arguments: for installation, so --help does not list it. */
static bool completes(const struct fm_cli *cli, const struct table *t, int argc, char **argv)
{
    static const char option[] = "--completion=";
    struct fm_completion_row row[OPTIONS_MAX];
    if (argc != 2 || strncmp(argv[1], option, strlen(option)) != 0)
        return false;
    for (int i = 0; i < t->rows; i++)
        row[i] = (struct fm_completion_row){t->row[i], modes_of(cli, t, i)};
    const char *shell = argv[1] + strlen(option);
    const struct fm_completion c = {.tool = cli->tool,
                                    .first = cli->first,
                                    .files = cli->operands_max > (cli->first ? 1 : 0),
                                    .row = row,
                                    .rows = t->rows};
    if (!fm_completion_print(stdout, shell, &c))
        refuse(cli, "bad value for --completion: ", shell, "use bash or zsh");
    return true;
}

bool fm_options_parse(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                      int count)
{
    struct table t;
    memset(&chosen, 0, sizeof chosen);
    build_table(&t, cli, own, count);
    chosen.precision = is_measuring(cli) ? IN_EITHER : IN_F32;
    if (completes(cli, &t, argc, argv))
        return false;
    parse_words(cli, &t, argc, argv);
    struct fm_err err = {0}; /* a hub name is looked up in the cache of this machine */
    if (fm_inputs_find_model(&cli->run.inputs, &err)) {
        fprintf(stderr, "%s: --model: %s\n", fm_options_speaker(cli), err.text);
        exit(err.code);
    }
    collect(cli, &t);
    if (chosen.help && *chosen.help)
        print_help(cli, &t);
    else if (chosen.help)
        print_brief(cli, &t);
    else if (chosen.version)
        printf("%s (fm suite) %s\n", cli->tool, FM_VERSION);
    else
        check_needs(cli);
    static const char *const device[] = {"cpu", "ref"};
    cli->run.machine.device = device[chosen.device];
    cli->run.machine.precision = chosen.precision == IN_BF16 ? FM_PRECISION_BF16 : FM_PRECISION_F32;
    cli->run.machine.precision_auto = chosen.precision == IN_EITHER;
    cli->run.machine.memory_firm = cli->run.machine.memory > 0;
    return !chosen.help && !chosen.version;
}
