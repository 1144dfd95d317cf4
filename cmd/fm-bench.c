/* fm-bench: measure the quality of a family and the speed of a layer of experts; show a family. */
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/results.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/page/page.h"

/* Modes: what is measured, and variants selected by other options. */
enum {
    QUALITY = 1,
    HELD = 2, /* quality on --eval-tokens or --eval-text */
    KERNELS = 16,
    BASELINES = 32,
    EXPORTED = 64, /* quality of an exported directory */
    REPORT = 128,
    PLANNED = 256, /* quality of exports that are not written */
    LOOPS = 512,
    MEASURES = QUALITY | HELD | BASELINES | EXPORTED | PLANNED, /* losses of a model on tokens */
    CALIBRATED = QUALITY | BASELINES | EXPORTED | PLANNED,      /* modes with --tokens and --text */
    LOSSES = QUALITY | HELD | BASELINES /* modes whose losses --plot can draw */
};

struct options {
    struct fm_decimals given;          /* quality, baselines, kernels */
    const struct fm_decimals *budgets; /* NULL: not given */
    const char *plot;                  /* the same */
    const char *weights;               /* quality */
    int layout;                        /* quality; -1: the default */
    int repeat;                        /* kernels */
    const char *family;                /* kernels */
    int rows[FM_CLI_INTS_MAX + 1];
    const char *shape;                      /* kernels; NULL: the default */
    int dtype;                              /* kernels */
    const char *figures[FM_INPUTS_MAX + 1]; /* report */
};

/* Add the cost of a measurement that runs after those in *sum: memory is the maximum, time the
 * sum. */
static void add_cost(struct fm_estimate *sum, const struct fm_estimate *e)
{
    sum->memory = e->memory > sum->memory ? e->memory : sum->memory;
    sum->spill = e->spill > sum->spill ? e->spill : sum->spill;
    sum->read += e->read;
    sum->sweeps += e->sweeps;
    sum->flops += e->flops;
    struct fm_forecast before = sum->forecast;
    sum->precision = e->precision;
    sum->forecast = e->forecast;
    sum->forecast.seconds_least += before.seconds_least;
    sum->forecast.seconds_most += before.seconds_most;
    sum->forecast.loading += before.loading;
}

/* Measure an exported directory. */
static int exported(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    struct fm_bench_export e = {0};
    struct fm_bench_original original = {0};
    struct fm_estimate estimate, *dry = cli->dry_run ? &estimate : NULL;
    struct fm_shown shown = {cli, "fm-bench quality", fm_results_exported, &e, dry};
    int rc = FM_OK;
    if (fm_options_check(cli, EXPORTED, "for an exported directory", err) ||
        fm_bench_exported(&cli->run, o->budgets, NULL, &original, dry, &e, err) ||
        fm_show(&shown, err))
        rc = err->code;
    fm_bench_exported_release(&e);
    fm_bench_original_release(&original);
    return rc;
}

static int check_compared(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    for (int i = 1; i < cli->operands; i++)
        if (!fm_bench_is_export(cli->operand[i]))
            return fm_fail(err, FM_EUSAGE,
                           "'%s' is not an exported directory; give one family, or any number of "
                           "exported directories",
                           cli->operand[i]);
    if (o->budgets)
        return fm_fail(err, FM_EUSAGE, "--budgets is for one directory; omit it");
    return fm_options_check(cli, EXPORTED, "for exported directories", err);
}

/* Measure the n exports of a plan, or if it is NULL exported directories, and print one table. */
static int compared(const struct fm_cli *cli, const struct fm_export_options *planned, int n,
                    struct fm_err *err)
{
    struct fm_estimate sum = {0}, estimate, *dry = cli->dry_run ? &estimate : NULL;
    struct fm_cli own = *cli;
    struct fm_bench_original original = {0};
    int rc = FM_OK, refused = 0;
    struct fm_bench_export *e = fm_alloc((size_t)n, sizeof *e, "figures", err);
    if (!e)
        return err->code;
    for (int i = 0; i < n; i++) {
        own.run.inputs.stream = cli->operand[planned ? 1 : i + 1];
        rc = fm_bench_exported(&own.run, NULL, planned ? &planned[i] : NULL, &original, dry, &e[i],
                               err);
        if (rc)
            goto out;
        refused += e[i].why[0] != '\0';
        if (dry && !e[i].why[0])
            add_cost(&sum, dry);
    }
    const struct fm_results_exports all = {e, planned ? NULL : cli->operand + 1, n};
    struct fm_shown shown = {cli, "fm-bench quality", fm_results_compared, &all, dry ? &sum : NULL};
    rc = refused == n ? fm_fail(err, FM_ECONFIG, "%s", e[0].why) : fm_show(&shown, err);
out:
    for (int i = 0; i < n; i++)
        fm_bench_exported_release(&e[i]);
    fm_bench_original_release(&original);
    free(e);
    return rc;
}

/* Measure what fm-pack would export, in each format and at each budget. */
static int planned(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    const struct fm_layout *layout = o->layout < 0 ? FM_LAYOUT_DEFAULT : fm_layouts[o->layout];
    struct fm_export_options *plan = NULL;
    int n = 0;
    if (cli->operands != 2)
        return fm_fail(err, FM_EUSAGE, "quality --weights needs one BUNDLE");
    if (cli->run.inputs.model)
        return fm_fail(err, FM_EUSAGE, "'%s' is a bundle and has its own weights; omit --model",
                       cli->run.inputs.stream);
    if (fm_options_check(cli, PLANNED, "with --weights", err) ||
        fm_bench_plan(&plan, &n, cli->run.inputs.stream, o->budgets, o->weights, layout, err))
        goto out;
    if (n > FM_RESULTS_COMPARED_MAX)
        fm_fail(err, FM_EUSAGE, "%d formats and budgets; at most %d: give fewer --budgets", n,
                FM_RESULTS_COMPARED_MAX);
    else
        compared(cli, plan, n, err);
out:
    free(plan);
    return err->code;
}

static int quality(const struct fm_cli *cli, struct options *o, struct fm_err *err)
{
    struct fm_bench_quality q;
    struct fm_estimate estimate, *dry = cli->dry_run ? &estimate : NULL;
    struct fm_shown shown = {cli, "fm-bench quality", fm_results_quality, &q, dry};
    if (!fm_inputs_first(&cli->run.inputs) && !fm_inputs_evaluate(&cli->run.inputs))
        return fm_fail(err, FM_EUSAGE,
                       "quality needs --eval-tokens, --eval-text, --tokens or --text FILE");
    if (o->weights)
        return planned(cli, o, err);
    if (fm_options_given(cli, "layout"))
        return fm_fail(err, FM_EUSAGE, "--layout has no effect without --weights; omit it");
    if (cli->operands > 2)
        return check_compared(cli, o, err) ? err->code
                                           : compared(cli, NULL, cli->operands - 1, err);
    if (fm_bench_is_export(cli->run.inputs.stream))
        return exported(cli, o, err);
    int rc = FM_OK;
    if (fm_bench_quality(&cli->run, o->budgets, dry, &q, err) ||
        (o->plot && !cli->dry_run &&
         fm_cli_settle_plot(
             o->plot, fm_results_quality_plot(&q, o->plot, cli->run.outputs.force, err), err)) ||
        fm_show(&shown, err))
        rc = err->code;
    fm_bench_quality_release(&q);
    return rc;
}

static int kernels(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    static const char *const dtypes[] = {"bf16", "f32", "f16"};
    struct fm_kernelbench result;
    struct fm_shown shown = {cli, "fm-bench kernels", fm_results_kernels, &result, NULL};
    struct fm_kernelbench_options k = {.shape = o->shape, .family = o->family};
    k.tokens = o->rows;
    k.budgets = o->budgets;
    k.dtype = dtypes[o->dtype];
    k.repeat = o->repeat;
    k.threads = cli->run.machine.threads;
    k.seed = cli->run.inputs.seed;
    k.stop = cli->run.stop;
    if (k.shape && k.family)
        return fm_fail(err, FM_EUSAGE, "--shape and --family both name a shape; use one");
    int rc = FM_OK;
    if (fm_kernelbench_run(&k, cli->dry_run, &result, err) ||
        (o->plot && !cli->dry_run &&
         fm_cli_settle_plot(o->plot,
                            fm_results_kernels_plot(&result, o->plot, cli->run.outputs.force, err),
                            err)) ||
        fm_show(&shown, err))
        rc = err->code;
    fm_kernelbench_release(&result);
    return rc;
}

static int check_baselines(const struct fm_run_options *run, struct fm_err *err)
{
    if (!run->inputs.model)
        return fm_fail(err, FM_EUSAGE, "baselines needs --model DIR, the whole checkpoint");
    if (!fm_inputs_first(&run->inputs))
        return fm_fail(err, FM_EUSAGE, "baselines needs --tokens or --text FILE to calibrate on");
    if (!fm_inputs_evaluate(&run->inputs))
        return fm_fail(err, FM_EUSAGE,
                       "baselines needs --eval-tokens or --eval-text FILE with text that is not "
                       "used for calibration");
    return FM_OK;
}

static int baselines(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    struct fm_run_options run = cli->run;
    if (check_baselines(&run, err))
        return err->code;
    if (cli->operands > 1)
        return fm_fail(
            err, FM_EUSAGE,
            "baselines takes no bundle: measure the family with fm-bench quality, on the "
            "same --eval-tokens or --eval-text");
    run.inputs.stream = NULL;
    struct fm_baseline_table *table = fm_alloc(1, sizeof *table, "a table", err);
    int rc = table ? fm_baseline_run(&run, o->budgets, cli->dry_run, table, err) : FM_ENOMEM;
    if (!rc && o->plot && !cli->dry_run)
        rc = fm_cli_settle_plot(
            o->plot, fm_results_baselines_plot(table, o->plot, cli->run.outputs.force, err), err);
    struct fm_shown shown = {cli, "fm-bench baselines", fm_results_baselines, table, NULL};
    if (!rc)
        rc = fm_show(&shown, err);
    free(table);
    return rc;
}

/* The contents of the page. */
struct paged {
    struct fm_page page;
    bool dry_run;
};

static void describe_page(const struct fm_result *r, const void *self)
{
    const struct paged *p = self;
    fm_json_add_bool(r->json, "dry_run", p->dry_run);
    fm_result_bytes(r, "page", "bytes", p->page.size, "%s", "");
    fm_json_add_uint(r->json, "budgets", (uint64_t)p->page.budgets);
    fm_result_count(r, "members", "shown", (uint64_t)p->page.shown, "of %d in the family",
                    p->page.budgets);
    fm_result_count(r, "figures", "figures", (uint64_t)p->page.figures, "files of measurements");
}

static int report(const struct fm_cli *cli, const struct options *o, struct fm_err *err)
{
    struct paged p = {.dry_run = cli->dry_run};
    struct fm_shown shown = {cli, "fm-bench report", describe_page, &p, NULL};
    if (cli->operands < 2)
        return fm_fail(err, FM_EUSAGE, "report needs a BUNDLE, or - for standard input");
    int rc = FM_OK;
    if (fm_page_make(&p.page, cli->run.inputs.stream, o->figures, err) ||
        (!cli->dry_run &&
         fm_page_write(&p.page, cli->run.outputs.path, cli->run.outputs.force, err)) ||
        fm_show(&shown, err))
        rc = err->code;
    fm_page_release(&p.page);
    return rc;
}

static int loops(const struct fm_cli *cli, struct fm_err *err)
{
    char *const *path = cli->operand + 1;
    int n = cli->operands - 1, rc = FM_OK;
    if (n < 1)
        return fm_fail(err, FM_EUSAGE, "loops needs FILE, JSON lines of generated texts");
    struct fm_loops *l = fm_alloc((size_t)n, sizeof *l, "figures", err);
    for (int i = 0; i < n && l && !rc; i++)
        rc = fm_loops_read(&l[i], path[i], err);
    const struct fm_results_texts texts = {l, path, n};
    struct fm_shown shown = {cli, "fm-bench loops", fm_results_loops, &texts, NULL};
    if (l && !rc)
        rc = fm_show(&shown, err);
    free(l);
    return l ? rc : err->code;
}

static const struct fm_cli_scope scope[] = {
    {"model", 0, MEASURES, "shape", KERNELS},
    {"tokens", 0, CALIBRATED, "rows", KERNELS},
    {.name = "batch", .modes = FM_CLI_ABSENT},
    {.name = "output", .modes = REPORT},
    {.name = "no-sandbox", .modes = REPORT | LOOPS},
    {.name = "dry-run", .modes = MEASURES | KERNELS | REPORT},
    {.name = "threads", .modes = MEASURES | KERNELS},
    {.name = "text", .modes = CALIBRATED},
    {.name = "shuffle", .modes = CALIBRATED},
    {.name = "max-tokens", .modes = MEASURES},
    {.name = "device", .modes = MEASURES},
    {.name = "precision", .modes = MEASURES},
    {.name = "memory", .modes = MEASURES},
    {.groups = FM_CLI_TOKENS | FM_CLI_EVAL, .modes = MEASURES},
    {0},
};

static const struct fm_cli_first measurements[] = {
    {"quality", QUALITY}, {"loops", LOOPS},   {"baselines", BASELINES},
    {"kernels", KERNELS}, {"report", REPORT}, {0},
};

/* If `what` is a measurement, set *known and refuse options that have no effect in it. */
static int check_own(const struct fm_cli *cli, const char *what, bool *known, struct fm_err *err)
{
    for (const struct fm_cli_first *m = measurements; m->name; m++) {
        if (strcmp(what, m->name) != 0)
            continue;
        char says[16];
        *known = true;
        snprintf(says, sizeof says, "in %s", what);
        int rc = fm_options_check(cli, m->mode, says, err);
        if (!rc && m->mode == QUALITY && fm_inputs_evaluate(&cli->run.inputs))
            rc = fm_options_check(cli, HELD, "in quality with --eval-tokens or --eval-text", err);
        return rc;
    }
    return FM_OK;
}

static int work(struct fm_cli *cli, struct options *o, struct fm_err *err)
{
    const char *what = cli->operands ? cli->operand[0] : "";
    bool single = cli->operands < 2, known = false;
    if (*what && check_own(cli, what, &known, err))
        return err->code;
    if (strcmp(what, "loops") == 0)
        return loops(cli, err);
    if (cli->operands > 2 && strcmp(what, "quality") != 0)
        return fm_fail(err, FM_EUSAGE, "one operand too many: %s; see fm-bench --help",
                       cli->operand[2]);
    if (strcmp(what, "quality") == 0)
        return quality(cli, o, err);
    if (strcmp(what, "baselines") == 0)
        return baselines(cli, o, err);
    if (strcmp(what, "report") == 0) {
        cli->run.outputs.path = cli->run.outputs.path ? cli->run.outputs.path : "-";
        return report(cli, o, err);
    }
    if (strcmp(what, "kernels") == 0 && single)
        return kernels(cli, o, err);
    if (!*what)
        return fm_fail(err, FM_EUSAGE,
                       "name what to measure: quality BUNDLE, loops FILE, baselines or kernels; or "
                       "what to show: report BUNDLE");
    if (known)
        return fm_fail(err, FM_EUSAGE, "one operand too many: %s", cli->operand[1]);
    return fm_fail(err, FM_EUSAGE,
                   "unknown measurement '%s'; use quality BUNDLE, loops FILE, baselines, kernels "
                   "or report BUNDLE",
                   what);
}

#define SYNOPSIS                                                                                   \
    "quality [--eval-text FILE] [options] BUNDLE|DIR...\n"                                         \
    "       fm-bench loops [--json] FILE...\n"                                                     \
    "       fm-bench baselines --model DIR --text FILE --eval-text FILE\n"                         \
    "       fm-bench kernels [--shape SHAPE] [--rows N,N,...] [--budgets R,R,...]\n"               \
    "       fm-bench report [--figures FILE] [-o FILE] BUNDLE"

/* The options of the command line, with their defaults. */
static struct options asked = {
    .repeat = 7,
    .rows = {1, 16, 64, 256, 1024, 4096},
    .layout = -1,
};

static const struct fm_cli_option own[] = {
    {"budgets", 0, FM_CLI_DECIMALS, &asked.given, "R,R,...",
     "quality: budgets to measure, or all (default: tenths); baselines: shares of experts to "
     "remove; kernels: shares of channels to remove",
     0, 0, LOSSES | EXPORTED | PLANNED | KERNELS},
    {"weights", 0, FM_CLI_TEXT, &asked.weights, "FORMAT,...",
     "quality: measure what fm-pack would export with these --weights, at each budget", 0, 0,
     QUALITY | HELD | PLANNED},
    {"layout", 0, FM_CLI_CHOICE, &asked.layout, FM_NAMES_CHOICES(FM_LAYOUT_ROWS),
     "quality --weights: layout of the exports (default: ragged)", 0, 0, QUALITY | HELD | PLANNED},
    {"plot", 0, FM_CLI_PLOT, &asked.plot, "FILE",
     "quality, baselines: draw the losses as SVG; kernels: the speed-ups", 0, 0, LOSSES | KERNELS},
    {"repeat", 0, FM_CLI_INT, &asked.repeat, "N",
     "kernels: rounds, of which the median is printed (default: 7)", 1, 100, KERNELS},
    {"family", 0, FM_CLI_READ, &asked.family, "BUNDLE",
     "kernels: bundle to take shape and masks from", 0, 0, KERNELS},
    {"rows", 0, FM_CLI_INTS, asked.rows, "N,N,...",
     "kernels: numbers of tokens in a call (default: 1,16,64,256,1024,4096)", 1, 65536, KERNELS},
    {"shape", 0, FM_CLI_TEXT, &asked.shape, "SHAPE",
     "kernels: name of a model, or H,I,E,K (default: 1024,3584,8,2)", 0, 0, KERNELS},
    {"dtype", 0, FM_CLI_CHOICE, &asked.dtype, "bf16|f32|f16",
     "kernels: type of the weights (default: bf16)", 0, 0, KERNELS},
    {"figures", 0, FM_CLI_READS, asked.figures, "FILE",
     "report: JSON of quality, baselines, fm-train or fm-recover; may be repeated", 0, 0, REPORT},
};

static bool reads_only(const struct fm_cli *cli)
{
    return cli->operands &&
           (strcmp(cli->operand[0], "report") == 0 || strcmp(cli->operand[0], "loops") == 0);
}

int fm_bench_main(int argc, char **argv)
{
    struct fm_cli cli = {
        .tool = "fm-bench",
        .synopsis = SYNOPSIS,
        .about = "Measure a family's quality, loops in its texts, and the speed of a layer of "
                 "experts; show a family.",
        .often = "model tokens eval-tokens eval-text seq-len precision threads json quiet "
                 "help version",
        .groups = FM_CLI_MODEL | FM_CLI_TOKENS | FM_CLI_EVAL | FM_CLI_MACHINE | FM_CLI_OPTIONAL |
                  FM_CLI_OUTPUT | FM_CLI_CONFINED,
        .confined = reads_only,
        .run = {.inputs.stream = "-"},
        .operands_max = 1 + FM_RESULTS_COMPARED_MAX,
        .first = measurements,
        .scope = scope,
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    if (fm_options_given(&cli, "budgets"))
        asked.budgets = &asked.given;
    struct fm_err err = {0};
    return fm_cli_end(&cli, work(&cli, &asked, &err), &err);
}
