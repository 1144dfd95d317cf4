/*
 * fm-family: run the whole pipeline with one command.
 *
 * Each step is the tool of that name, called in a child process of its own (lib/run/child.h), with
 * the command line that --print shows.  This process has one thread; it holds the lock of the work
 * folder.  Which step is the first to run follows from the record of finished steps
 * (lib/run/ledger.h).  Before it, the steps that will run are called with --dry-run, so that they
 * refuse now what they would refuse after hours.
 */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/cli.h"
#include "cmd/progress.h"
#include "cmd/tools.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/printable.h"
#include "lib/base/signals.h"
#include "lib/base/units.h"
#include "lib/export/exportoptions.h"
#include "lib/export/list.h"
#include "lib/export/filetable.h"
#include "lib/learn/recover.h"
#include "lib/masks/methods.h"
#include "lib/run/child.h"
#include "lib/run/confine.h"
#include "lib/run/ledger.h"
#include "lib/stage/stage.h"

enum { RANK, TRAIN, RECOVER, PACK, EXPORT, VERIFY, STEPS };
enum {
    IN_RANK = 1 << RANK,
    IN_TRAIN = 1 << TRAIN,
    IN_RECOVER = 1 << RECOVER,
    IN_EXPORT = 1 << EXPORT
};
enum { LEARNING = IN_RANK | IN_TRAIN | IN_RECOVER, ALL = (1 << STEPS) - 1 };

static const struct {
    const char *tool, *name, *doing, *output, *state;
    int (*main)(int argc, char **argv);
} step_of[STEPS] = {
    {"fm-rank", "rank", "ranking", "ranked.fm", "rank.state", fm_rank_main},
    {"fm-train", "train", "making masks", "trained.fm", "train.state", fm_train_main},
    {"fm-recover", "recover", "recovery", "recovered.fm", "recover.state", fm_recover_main},
    {"fm-pack", "pack", "packing", "family.fm", NULL, fm_pack_main},
    {"fm-pack", "export", "exporting", "export", NULL, fm_pack_main},
    {"fm-verify", "verify", "verifying", NULL, NULL, fm_verify_main},
};

#define RATE 1e9 /* bytes per second that -n assumes of a disk */

static struct {
    const char *out, *work, *layout, *weights, *method, *granularity, *server;
    const char *passed; /* the value of an option that is only passed on */
    uint64_t fit;
    double budget;
    int tp, multiple, steps;
    bool recover, no_recover, keep, print;
} asked = {.budget = -1, .tp = 1};

/* A command line. */
struct words {
    char **word;
    size_t count, room;
    bool failed;
};

/* What a step is forecast to need. */
struct cost {
    double seconds_least, seconds;
    uint64_t memory, disk;
};

struct family {
    struct fm_cli cli;
    char *work;
    bool unmade; /* with --dry-run: there is no work folder */
    int first;   /* the first step to run; STEPS: none */
    struct fm_ledger_step step[STEPS];
    struct fm_ledger ledger;
    struct cost cost[STEPS];
    uint64_t calibrated, measured; /* tokens; 0: the ranking is done */
    double reach;                  /* the highest budget that masks can have */
};

/* ---- command lines ---- */

static void add(struct words *w, const char *fmt, ...) FM_PRINTF(2, 3);
static void add(struct words *w, const char *fmt, ...)
{
    va_list ap;
    struct fm_err none = {0};
    char *text = NULL;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    /* One more, so that the list ends with NULL. */
    w->failed = w->failed || !text || FM_GROW(w->word, w->room, w->count + 2, "words", &none);
    if (w->failed) {
        free(text);
        return;
    }
    w->word[w->count++] = text;
    w->word[w->count] = NULL;
}

static void release(struct words *w)
{
    for (size_t i = 0; i < w->count; i++)
        free(w->word[i]);
    free(w->word);
}

/* Widths that the layout can have, so that the losses in the list are those of exports. */
static void add_widths(struct words *w)
{
    const struct fm_quantiser *q = asked.weights ? fm_quantisers_find(asked.weights) : NULL;
    int server = asked.server ? fm_server_find(asked.server) : FM_SERVER_ANY;
    const struct fm_layout *layout = fm_layouts_find(asked.layout);
    if (!asked.granularity && layout && layout->granularity)
        add(w, "--granularity=%s", layout->granularity);
    if (!asked.multiple && layout && layout->multiple > 1)
        add(w, "--width-multiple=%d",
            asked.tp * (int)(q && server >= 0 ? q->multiple[server] : layout->multiple));
}

/* The options of a step; unless `all`, only those that determine its output, and files without
 * directories: their digests count. */
static void add_options(struct words *w, const struct family *f, int step, bool all)
{
    static const char *const aside[] = {"memory", "threads", "quiet", "no-sandbox", NULL};
    for (int i = 0; i < f->cli.words; i++) {
        const struct fm_cli_word *o = &f->cli.word[i];
        bool skip = !(o->modes & 1 << step) || (!all && fm_names_index(aside, o->name) >= 0);
        bool file = o->kind == FM_CLI_SOURCES || o->kind == FM_CLI_READS || o->kind == FM_CLI_READ;
        if (!skip && o->text)
            add(w, "--%s=%s", o->name, file && !all ? basename(o->text) : o->text);
        else if (!skip)
            add(w, "--%s", o->name);
    }
    /* The order of channels that loses least on released weights (tests/measure/RESULTS.md).  A
     * method that compares experts by their scores needs fm-rank's own. */
    const struct fm_method *method = asked.method ? fm_methods_find(asked.method) : NULL;
    if (step == RANK && !(method && method->weighs))
        add(w, "--criterion=activation");
    if (step == TRAIN)
        add_widths(w);
}

/* The command line of a step. */
static void add_command(struct words *w, const struct family *f, int step)
{
    add(w, "%s", step_of[step].tool);
    if (step <= PACK)
        add(w, "--model=%s", f->cli.operand[0]);
    if (step == EXPORT)
        add(w, "--export=%s", asked.out);
    add_options(w, f, step, true);
    if (step == VERIFY)
        add(w, "--against=%s", f->step[PACK].path);
    if (step_of[step].state && !f->unmade)
        add(w, "--state=%s", f->step[step].state);
    if (step <= PACK)
        add(w, "--output=%s", f->unmade ? "-" : f->step[step].path);
}

static void add_operand(struct words *w, const struct family *f, int step)
{
    int before = fm_ledger_before(f->step, step);
    const char *operand = before < 0 ? NULL : f->step[before].path;
    if (operand && operand[0] == '-')
        add(w, "--");
    if (operand)
        add(w, "%s", operand);
}

/* Print a word as a shell reads it; control characters as \xNN in $'...'. */
static void print_word(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "-_./=:,+@%";
    bool control = false;
    for (const char *p = word; *p; p++)
        control = control || (unsigned char)*p < 32 || *p == 127;
    if (*word && !word[strspn(word, plain)]) {
        fputs(word, stdout);
        return;
    }
    fputs(control ? "$'" : "'", stdout);
    for (const char *p = word; *p; p++)
        if ((unsigned char)*p < 32 || *p == 127)
            printf("\\x%02x", (unsigned char)*p);
        else if (control && (*p == '\'' || *p == '\\'))
            printf("\\%c", *p);
        else if (*p == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*p);
    putchar('\'');
}

static int print_commands(const struct family *f, struct fm_err *err)
{
    bool failed = false;
    for (int step = 0; step < STEPS; step++) {
        struct words w = {0};
        if (f->step[step].skip)
            continue;
        add_command(&w, f, step);
        add_operand(&w, f, step);
        for (size_t i = 0; i < w.count; i++) {
            print_word(w.word[i]);
            putchar(i + 1 < w.count ? ' ' : '\n');
        }
        failed = failed || w.failed;
        release(&w);
    }
    return failed ? fm_fail(err, FM_ENOMEM, "no memory for the commands") : FM_OK;
}

/* ---- children ---- */

struct call {
    int step;
    struct words words;
};

static int call(void *self)
{
    struct call *c = self;
    return step_of[c->step].main((int)c->words.count, c->words.word);
}

/* Call the tool of a step; *json, if not NULL, receives the report of its --dry-run. */
static int run_tool(struct call *c, cJSON **json, struct fm_err *err)
{
    char *said = NULL;
    int rc = c->words.failed ? fm_fail(err, FM_ENOMEM, "no memory for a command")
             : fm_signals_held()
                 ? fm_fail(err, FM_ESAVED, "stopped by a signal; repeat the command to continue")
                 : fm_child_run(call, c, step_of[c->step].state != NULL, json ? &said : NULL, err);
    if (!rc && json)
        rc = fm_json_tree(json, said, strlen(said), err);
    free(said);
    release(&c->words);
    return rc;
}

/* ---- what the record compares ---- */

static int list_options(struct family *f, struct fm_err *err)
{
    for (int step = 0; step < STEPS; step++) {
        struct words w = {0};
        add_options(&w, f, step, false);
        if (w.failed)
            return fm_fail(err, FM_ENOMEM, "no memory for the options of a step");
        /* Their order does not matter; that of files is in the inputs. */
        fm_names_sort(w.word, w.count, sizeof *w.word);
        f->step[step].options = w.word;
    }
    return FM_OK;
}

static int list_inputs(struct family *f, struct fm_err *err)
{
    const struct fm_guard *g = &f->cli.guard;
    cJSON *data = cJSON_CreateObject(), *model = cJSON_CreateObject();
    char what[80];
    int rc = FM_OK;
    for (int step = RANK; step < PACK; step++)
        f->step[step].inputs = data;
    f->step[PACK].inputs = model;
    /* The last two are MODEL and standard input.  MODEL takes longer to read. */
    for (int i = 0; i + 2 < g->reads && !rc; i++) {
        snprintf(what, sizeof what, "%s (file %d)", g->read[i].what, i + 1);
        rc = fm_ledger_digest(&f->ledger, data, what, g->read[i].path, err);
    }
    if (!rc)
        rc = fm_ledger_digest(&f->ledger, model, "MODEL", f->cli.run.inputs.model, err);
    if (!rc)
        rc = fm_ledger_digest(&f->ledger, data, "MODEL", f->cli.run.inputs.model, err);
    return rc;
}

/* ---- before the first step ---- */

static double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

/* Call a step with --dry-run. */
static int plan(cJSON **json, struct call *c, const char *operand, bool force, struct fm_err *err)
{
    add(&c->words, "--dry-run");
    add(&c->words, "--json");
    add(&c->words, "--quiet");
    if (force)
        add(&c->words, "--force");
    add(&c->words, "--");
    if (operand)
        add(&c->words, "%s", operand);
    return run_tool(c, json, err);
}

static int plan_learning(struct family *f, int step, struct fm_err *err)
{
    struct call c = {.step = step};
    cJSON *json = NULL;
    add_command(&c.words, f, step);
    int rc = plan(&json, &c, NULL, fm_ledger_made(&f->ledger, step), err);
    f->cost[step] = (struct cost){number(json, "seconds_least"), number(json, "seconds"),
                                  (uint64_t)number(json, "memory"),
                                  (uint64_t)(number(json, "output") + number(json, "state"))};
    f->cost[PACK].disk = (uint64_t)number(json, "later") / 2;
    if (step == RANK) {
        f->calibrated = (uint64_t)number(json, "tokens_used");
        f->measured = (uint64_t)(number(json, "held_out") * number(json, "held_out_seq_len"));
    }
    if (step == TRAIN) {
        double most = number(json, "budget_most"), beyond = number(json, "budget_beyond");
        f->reach = most > 0 ? most + beyond : 1;
        if (!rc && asked.budget > f->reach + 0.00005)
            rc = fm_fail(err, FM_ECONFIG,
                         "--budget %g: masks end at %g; give a higher --until, or a smaller budget",
                         asked.budget, most);
    }
    cJSON_Delete(json);
    return rc;
}

/* Replace the word that begins with `begin`. */
static void replace(struct words *w, const char *begin, const char *fmt, double value)
{
    char *text;
    for (size_t i = 0; i < w->count; i++)
        if (strncmp(w->word[i], begin, strlen(begin)) == 0) {
            if (asprintf(&text, fmt, value) < 0) {
                w->failed = true;
                return;
            }
            free(w->word[i]);
            w->word[i] = text;
        }
}

/* Plan the export of the bundle or, if that will be made, of the checkpoint with uniform masks: of
 * all members in that layout, one with the highest budget is the smallest. */
static int plan_export(struct family *f, struct fm_err *err)
{
    struct call c = {.step = EXPORT};
    cJSON *json = NULL;
    bool packed = f->first == EXPORT, smallest = asked.fit && !packed;
    char bytes[32], fit[32];
    add_command(&c.words, f, EXPORT);
    if (smallest)
        replace(&c.words, "--fit=", "--budget=%.6f", f->reach < 0.98 ? f->reach + 0.01 : 0.99);
    int rc = plan(&json, &c, packed ? f->step[PACK].path : f->cli.run.inputs.model, true, err);
    f->cost[EXPORT].disk = (uint64_t)number(json, "bytes_out");
    f->cost[EXPORT].memory = (uint64_t)number(json, "bytes_memory");
    fm_units_bytes(bytes, f->cost[EXPORT].disk);
    fm_units_bytes(fit, asked.fit);
    if (!rc && smallest && f->cost[EXPORT].disk > asked.fit)
        rc = fm_fail(err, FM_EUSAGE, "--fit %s: the smallest export takes about %s in layout %s",
                     fit, bytes, asked.layout);
    cJSON_Delete(json);
    return rc;
}

/* The filesystem of a file or, if it does not exist, of its directory. */
static dev_t disk_of(const char *path)
{
    struct stat st = {0};
    char *home = strdup(path), *slash = home ? strrchr(home, '/') : NULL;
    if (slash)
        slash[slash == home] = '\0';
    if (stat(path, &st) != 0 && stat(slash ? home : ".", &st) != 0)
        st.st_dev = 0;
    free(home);
    return st.st_dev;
}

static int check_space(const struct family *f, struct fm_err *err)
{
    uint64_t stages = 0, export = f->first <= EXPORT ? f->cost[EXPORT].disk : 0, unused;
    bool one = disk_of(f->work) == disk_of(asked.out);
    for (int step = f->first; step < EXPORT; step++)
        stages += f->cost[step].disk;
    if (one && stages)
        return fm_run_space(f->work, "family and its export", stages + export, &unused, err);
    int rc = stages ? fm_run_space(f->work, "family", stages, &unused, err) : FM_OK;
    return rc || !export ? rc : fm_run_space(asked.out, "export", export, &unused, err);
}

static int plan_steps(struct family *f, struct fm_err *err)
{
    int rc = FM_OK;
    bool later = asked.fit > 0 && f->first < EXPORT; /* it depends on the masks */
    if (f->first <= EXPORT && !later)
        rc = plan_export(f, err);
    for (int step = 0; step < PACK && f->first < EXPORT && !rc; step++)
        if (!f->step[step].skip && (step >= f->first || step == TRAIN))
            rc = plan_learning(f, step, err);
    if (!rc && later)
        rc = plan_export(f, err);
    if (rc)
        return rc;
    /* These three read and write as fast as the disk. */
    uint64_t bytes[STEPS] = {[PACK] = 2 * f->cost[PACK].disk,
                             [EXPORT] = 2 * f->cost[EXPORT].disk,
                             [VERIFY] = f->cost[EXPORT].disk};
    for (int step = PACK; step < STEPS; step++)
        f->cost[step].seconds_least = f->cost[step].seconds = (double)bytes[step] / RATE;
    return check_space(f, err);
}

static void show_cost(const char *name, const struct cost *c)
{
    char least[32], most[32], memory[32], disk[32];
    fm_units_time(least, c->seconds_least);
    fm_units_time(most, c->seconds);
    fm_units_bytes(memory, c->memory);
    fm_units_bytes(disk, c->disk);
    bool range = strcmp(least, most) != 0;
    printf("%-14s %12s%4s%-12s %12s %12s\n", name, least, range ? " to " : "", range ? most : "",
           c->memory ? memory : "", c->disk ? disk : "");
}

/* Print how many tokens are for calibration and how many for measuring losses: if there is little
 * text, half of it is held out. */
static void show_tokens(const struct family *f)
{
    bool evaluates = fm_inputs_evaluate(&f->cli.run.inputs);
    if (f->calibrated)
        printf("Tokens: %llu to calibrate on, %llu %s to measure losses on%s.\n",
               (unsigned long long)f->calibrated, (unsigned long long)f->measured,
               evaluates ? "of other text" : "held out",
               evaluates ? "" : "; with --eval-text, none are held out");
}

/* --dry-run: the forecast of each step, and their sum. */
static void show_plan(const struct family *f)
{
    struct cost all = {0};
    printf("%-14s %12s%16s %12s %12s\n", "step", "time", "", "memory", "disk");
    for (int step = 0; step < STEPS; step++) {
        const struct cost *c = &f->cost[step];
        if (f->step[step].skip)
            continue;
        if (step < f->first) {
            printf("%-14s %12s\n", step_of[step].doing, "is done");
            continue;
        }
        show_cost(step_of[step].doing, c);
        all.seconds_least += c->seconds_least;
        all.seconds += c->seconds;
        all.memory = c->memory > all.memory ? c->memory : all.memory;
        all.disk += c->disk;
    }
    show_cost("all", &all);
    show_tokens(f);
    puts("Other work on the machine makes all times longer; the last three are for a disk with "
         "1 GB/s.");
    printf("For a first result in less time:%s%s --measure-step 0.2, a smaller "
           "--max-tokens.\n",
           asked.method ? "" : " --method saliency", asked.recover ? " --no-recover" : "");
}

/* Say how long recovery will take; it is the longest step unless masks are learned. */
static void note_recovery(const struct family *f)
{
    char least[32], most[32];
    if (!asked.recover || f->first > RECOVER)
        return;
    fm_units_time(least, f->cost[RECOVER].seconds_least);
    fm_units_time(most, f->cost[RECOVER].seconds);
    bool range = strcmp(least, most) != 0;
    fm_run_note(&f->cli.run, "recovery will take %s%s%s; --no-recover leaves it out", least,
                range ? " to " : "", range ? most : "");
}

/* ---- the steps ---- */

static int run_step(struct family *f, int step, struct fm_err *err)
{
    struct call c = {.step = step};
    bool force = step < VERIFY && fm_ledger_made(&f->ledger, step);
    fm_run_note(&f->cli.run, "%s", step_of[step].doing);
    if (fm_ledger_begin(&f->ledger, step, err))
        return err->code;
    add_command(&c.words, f, step);
    if (force)
        add(&c.words, "--force");
    add_operand(&c.words, f, step);
    int rc = run_tool(&c, NULL, err);
    return rc ? rc : fm_ledger_end(&f->ledger, step, err);
}

/* ---- the last line ---- */

/* True if the export `json` computes what mask `index` does: experts of the same widths, which were
 * not rounded. */
static bool as_measured(const cJSON *json, const struct fm_masks *masks, int index)
{
    const char *weights = fm_json_string_value(json, "weights");
    const uint32_t *width = fm_masks_widths(masks, index);
    size_t same = 0;
    const cJSON *layer, *one;
    cJSON_ArrayForEach(layer, cJSON_GetObjectItemCaseSensitive(json, "widths"))
    {
        cJSON_ArrayForEach(one, layer)
        {
            if (same == (size_t)masks->M * (size_t)masks->E || one->valuedouble != width[same])
                return false;
            same++;
        }
    }
    return same == (size_t)masks->M * (size_t)masks->E && !(weights && fm_quantisers_find(weights));
}

/* Bytes of the weight files of an export. */
static uint64_t weight_bytes(const cJSON *json)
{
    uint64_t bytes = 0;
    const cJSON *file;
    cJSON_ArrayForEach(file, cJSON_GetObjectItemCaseSensitive(json, "files"))
    {
        if (fm_ends_with(file->string, ".safetensors"))
            bytes += (uint64_t)number(file, "bytes");
    }
    return bytes;
}

/* Describe the export `json`, a member of the list, which is that of `opened`. */
static void show_export(const cJSON *json, const struct fm_list *list,
                        const struct fm_opened *opened)
{
    const struct fm_masks *masks = &opened->budgets.masks;
    const struct fm_list_row *row = &list->row[(int)number(json, "index")];
    bool measured = row->known && as_measured(json, masks, row->index);
    double original, far = asked.budget < 0 ? 0 : asked.budget - row->budget;
    printf("fm-family: ");
    fm_printable_write(stdout, asked.out);
    printf(": %.2f MB of %.2f MB, mask %d, budget %.4f", (double)weight_bytes(json) / 1e6,
           (double)list->bytes_stored / 1e6, row->index, row->budget);
    if (!(far * far < 1e-8))
        printf(" (nearest to %g)", asked.budget);
    if (measured)
        printf(", held-out cross-entropy %s%.4f", row->interpolated ? "about " : "", row->ce);
    if (measured && fm_stage_original_ce(&original, &opened->bundle, masks->mask))
        printf(" (the original's: %.4f)", original);
    if (measured && row->removed > 0 && row->agree < FM_LIST_AGREEMENT)
        printf(", expect loops");
    if (!measured) {
        printf("; 'fm-bench quality ");
        fm_printable_write(stdout, asked.out);
        printf("' measures it");
    }
    printf("; fm-clients(7) says how to load it\n");
}

/* Print the last line, in a child: it reads files of other programs. */
static int summarise(void *self)
{
    const struct family *f = self;
    struct fm_guard guard = {.tool = "fm-family"};
    struct fm_list list = {0};
    struct fm_opened opened = {0};
    struct fm_filetable_own export = {0};
    struct fm_err err = {0};
    bool confined = false;
    fm_guard_reads(&guard, "the operand", f->step[PACK].path);
    fm_guard_reads(&guard, "--output", asked.out);
    fm_guard_reads(&guard, "standard input", "-");
    int rc = f->cli.no_sandbox ? FM_OK : fm_confine(&guard, -1, false, &confined, &err);
    if (!rc && !fm_filetable_own_open(&export, asked.out, &err))
        rc = fm_opened_open(&opened, f->step[PACK].path, 0, &err);
    if (!rc && !err.code)
        rc = fm_list_fill(&list, &opened, false, &err);
    double index = number(export.json, "index");
    if (!rc && !err.code && !(index >= 0 && index < list.rows))
        rc = fm_fail(&err, FM_EFORMAT, "'%s' is not an export of '%s'", asked.out,
                     f->step[PACK].path);
    if (!rc && !err.code)
        show_export(export.json, &list, &opened);
    fm_list_release(&list);
    fm_opened_release(&opened);
    fm_filetable_own_close(&export);
    return fm_cli_end(&f->cli, err.code, &err);
}

/* ---- from beginning to end ---- */

static int run_steps(struct family *f, struct fm_err *err)
{
    note_recovery(f);
    for (int step = f->first; step < STEPS; step++) {
        int rc = f->step[step].skip ? FM_OK : run_step(f, step, err);
        if (rc)
            return rc;
    }
    if (f->first == STEPS)
        fm_run_note(&f->cli.run, "'%s' and '%s' are up to date", f->work, asked.out);
    return fm_signals_held()
               ? fm_fail(err, FM_ESAVED, "stopped by a signal; repeat the command to continue")
               : fm_child_run(summarise, f, false, NULL, err);
}

static int work(struct family *f, struct fm_err *err)
{
    struct stat st;
    if (asked.print)
        return print_commands(f, err);
    if (fm_guard_check(&f->cli.guard, err))
        return err->code;
    f->ledger = (struct fm_ledger){.step = f->step, .steps = STEPS, .run = &f->cli.run};
    f->unmade = f->cli.dry_run && lstat(f->work, &st) != 0;
    int rc = fm_ledger_open(&f->ledger, f->work, !f->cli.dry_run, err);
    if (!rc)
        rc = list_options(f, err);
    if (!rc)
        rc = list_inputs(f, err);
    if (!rc)
        rc = fm_ledger_first(&f->first, &f->ledger, err);
    if (!rc)
        rc = plan_steps(f, err);
    if (!rc && f->cli.dry_run)
        show_plan(f);
    else if (!rc)
        rc = run_steps(f, err);
    fm_ledger_close(&f->ledger);
    return rc;
}

/* A copy of a directory's name without slashes at its end, followed by `more`. */
static char *name_of(const char *path, const char *more)
{
    char *name = NULL;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return asprintf(&name, "%.*s%s", (int)length, path, more) < 0 ? NULL : name;
}

/* Describe the steps to the record; FM_EUSAGE for a name that cannot be a directory's. */
static int name_files(struct family *f, struct fm_err *err)
{
    char *out = name_of(asked.out, "");
    const char *slash = out ? strrchr(out, '/') : NULL, *last = slash ? slash + 1 : out;
    if (last && (strcmp(last, ".") == 0 || strcmp(last, "..") == 0 || !*last))
        return fm_fail(err, FM_EUSAGE,
                       "--output '%s' has no name of its own; give one such as "
                       "'%s/small'",
                       asked.out, asked.out);
    f->work = out ? asked.work ? name_of(asked.work, "") : name_of(out, ".work") : NULL;
    bool failed = !f->work;
    asked.out = out;
    for (int i = 0; i < STEPS && !failed; i++) {
        struct fm_ledger_step *s = &f->step[i];
        *s = (struct fm_ledger_step){.name = step_of[i].name,
                                     .doing = step_of[i].doing,
                                     .output = step_of[i].output,
                                     .of = i < EXPORT ? "" : out,
                                     .path = i == EXPORT ? out : NULL};
        if (i < EXPORT)
            failed = asprintf(&s->path, "%s/%s", f->work, s->output) < 0;
        if (!failed && step_of[i].state)
            failed = asprintf(&s->state, "%s/%s", f->work, step_of[i].state) < 0;
        if (!failed && i < EXPORT &&
            (strcmp(out, s->path) == 0 || (s->state && strcmp(out, s->state) == 0)))
            return fm_fail(err, FM_EUSAGE, "--output '%s' is a file of --work; choose another name",
                           out);
    }
    return failed ? fm_fail(err, FM_ENOMEM, "no memory for the names of files") : FM_OK;
}

/* Text cannot come from standard input, because several steps read it. */
static int check_sources(const struct fm_cli *cli, struct fm_err *err)
{
    /* The last one is standard input itself. */
    for (int i = 0; i + 1 < cli->guard.reads; i++)
        if (strcmp(cli->guard.read[i].path, "-") == 0)
            return fm_fail(err, FM_EUSAGE, "%s -: several steps read it; name a file",
                           cli->guard.read[i].what);
    return FM_OK;
}

/* By default, recover unless experts are stored as codes: the merged weights would be written as
 * BF16.  A model that cannot be read is left to fm-rank to refuse. */
static int choose_recovery(const struct fm_cli *cli, struct fm_err *err)
{
    if (asked.recover && asked.no_recover)
        return fm_fail(err, FM_EUSAGE, "give only one of --recover and --no-recover");
    if (asked.no_recover && asked.steps)
        return fm_fail(err, FM_EUSAGE, "--steps is for recovery, which --no-recover leaves out");
    if (asked.recover || asked.no_recover)
        return FM_OK;
    asked.recover = !fm_recover_loses_codes(cli->run.inputs.model);
    if (!asked.recover && asked.steps)
        return fm_fail(err, FM_EUSAGE,
                       "--steps needs --recover, because the experts are quantised and recovery "
                       "would write them as BF16");
    return FM_OK;
}

static int prepare(struct family *f, struct fm_err *err)
{
    struct fm_cli *cli = &f->cli;
    if (!cli->operands)
        return fm_fail(err, FM_EUSAGE, "MODEL is missing; see fm-family --help");
    if (!asked.out || strcmp(asked.out, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "--output DIR is missing; see fm-family --help");
    if (asked.budget >= 0 && asked.fit)
        return fm_fail(err, FM_EUSAGE, "give only one of --budget R and --fit SIZE");
    if (asked.budget < 0 && !asked.fit)
        return fm_fail(err, FM_EUSAGE,
                       "--budget R is missing, the share of channels to remove; see "
                       "fm-family --help");
    if (check_sources(cli, err) || name_files(f, err))
        return err->code;
    cli->run.inputs.model = cli->operand[0];
    if (fm_inputs_find_model(&cli->run.inputs, err) || choose_recovery(cli, err))
        return err->code;
    f->step[RECOVER].skip = !asked.recover;
    fm_guard_writes(&cli->guard, "--work", f->work, FM_GUARD_FOLDER, NULL);
    cli->guard.force = true; /* an earlier export is replaced */
    return FM_OK;
}

static const struct fm_cli_option own[] = {
    {"output", 'o', FM_CLI_EXPORT, &asked.out, "DIR", "directory to write", 0, 0, 0},
    {"budget", 'b', FM_CLI_REAL, &asked.budget, "R", "share of all expert channels to remove", 0, 1,
     IN_EXPORT},
    {"fit", 0, FM_CLI_SIZE, &asked.fit, "SIZE", "instead: the largest member of at most SIZE", 0, 0,
     IN_EXPORT},
    {"layout", 0, FM_CLI_TEXT, &asked.layout, "LAYOUT",
     "form of the export (default: ragged); see fm-pack(1)", 0, 0, IN_EXPORT},
    {"weights", 0, FM_CLI_TEXT, &asked.weights, "FORMAT",
     "of experts in the export; see fm-pack(1)", 0, 0, IN_EXPORT},
    {"for", 0, FM_CLI_TEXT, &asked.server, "SERVER", "the server that will run it; see fm-pack(1)",
     0, 0, IN_EXPORT},
    {"tp", 0, FM_CLI_INT, &asked.tp, "N", "make widths that split over N devices", 1,
     FM_EXPORT_DEVICES_MAX, IN_EXPORT},
    {"pad-multiple", 0, FM_CLI_TEXT, &asked.passed, "M", "round widths up to a multiple of M", 0, 0,
     IN_EXPORT},
    {"base-model", 0, FM_CLI_TEXT, &asked.passed, "ORG/NAME",
     "name of the original model, for the card", 0, 0, IN_EXPORT},
    {"keep-extra", 0, FM_CLI_FLAG, &asked.keep, NULL,
     "keep layers for multi-token prediction; see fm-pack(1)", 0, 0, IN_RANK | IN_EXPORT},
    {"method", 0, FM_CLI_TEXT, &asked.method, "METHOD",
     "how masks are made (default: exchange); see fm-train(1)", 0, 0, IN_TRAIN},
    {"granularity", 0, FM_CLI_TEXT, &asked.granularity, "expert|layer|model",
     "which experts share a width (default: as the layout requires)", 0, 0, IN_TRAIN},
    {"width-multiple", 0, FM_CLI_INT, &asked.multiple, "M",
     "round widths of masks up to a multiple of M (default: as the layout requires)", 0, 0,
     IN_TRAIN},
    {"until", 0, FM_CLI_TEXT, &asked.passed, "R", "highest budget of the masks (default: 0.80)", 0,
     0, IN_TRAIN},
    {"measure-step", 0, FM_CLI_TEXT, &asked.passed, "R",
     "measure the masks nearest to multiples of R (default: 0.05)", 0, 0, IN_TRAIN},
    {"recover", 0, FM_CLI_FLAG, &asked.recover, NULL,
     "train an adapter even if experts are quantised", 0, 0, 0},
    {"no-recover", 0, FM_CLI_FLAG, &asked.no_recover, NULL, "train no adapter", 0, 0, 0},
    {"steps", 0, FM_CLI_INT, &asked.steps, "N", "training steps of the adapter (default: 60)", 1,
     FM_RECOVER_STEPS_MAX, IN_RECOVER},
    {"work", 0, FM_CLI_TEXT, &asked.work, "DIR", "folder of stages and bundle (default: DIR.work)",
     0, 0, 0},
    {"print", 0, FM_CLI_FLAG, &asked.print, NULL, "print the commands of the tools, and run none",
     0, 0, 0},
};

/* The steps that take the shared options. */
static const struct fm_cli_scope scope[] = {
    {.name = "threads", .modes = ALL},
    {.name = "quiet", .modes = ALL},
    {.name = "no-sandbox", .modes = IN_EXPORT | 1 << VERIFY},
    {.name = "json", .modes = FM_CLI_ABSENT},
    {.name = "force", .modes = FM_CLI_ABSENT},
    {.groups = FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE, .modes = LEARNING},
    {0},
};

int fm_family_main(int argc, char **argv)
{
    static struct family f = {
        .cli = {.tool = "fm-family",
                .synopsis = "MODEL --text FILE --budget R [--layout LAYOUT] [options] -o DIR",
                .about = "Rank, train, recover, pack, export, verify: a smaller model of a "
                         "checkpoint.",
                .often = "output budget fit layout weights method no-recover text tokens eval-text "
                         "seq-len max-tokens memory work print dry-run help version",
                .groups =
                    FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE | FM_CLI_CONFINED | FM_CLI_FAMILY,
                .operands_max = 1,
                .scope = scope}};
    struct fm_err err = {0};
    fm_signals_hold();
    fm_cli_descriptors();
    asked.layout = FM_LAYOUT_DEFAULT->name;
    if (!fm_options_parse(&f.cli, argc, argv, own, FM_CLI_COUNT(own)))
        return fm_cli_end(&f.cli, FM_OK, &err);
    fm_options_speak(f.cli.tool);
    fm_progress_begin(&f.cli.run.progress, f.cli.tool, f.cli.quiet);
    int rc = prepare(&f, &err);
    return fm_cli_end(&f.cli, rc ? rc : work(&f, &err), &err);
}
