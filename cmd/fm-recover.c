/* fm-recover: train one low-rank adapter, or the routers, or solve down projections, for every
 * budget. */
#include "cmd/cli.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/names.h"
#include "lib/learn/recover.h"
#include "lib/stage/lorafile.h"

/* Print the budgets for which a closed form was solved, and the smallest and largest number of rows
 * of an expert. */
static void describe_solved(const struct fm_result *out, const struct fm_recover_report *r)
{
    cJSON *served = fm_json_add_array(out->json, "served");
    fprintf(out->text, "down     solved for budgets");
    for (int i = 0; i < r->served.masks; i++) {
        double budget = fm_masks_budget(&r->masks, r->served.mask[i]);
        fprintf(out->text, "%s %.4f", i ? "," : "", budget);
        cJSON *mask = fm_json_add_object(served, NULL);
        fm_json_add_double(mask, "budget", budget);
        fm_json_add_double(mask, "weight", r->served.weight[i]);
    }
    fprintf(out->text, "\nrows     %lld to %lld of an expert\n", (long long)r->served.least,
            (long long)r->served.most);
    fm_json_add_uint(out->json, "rows_least", (uint64_t)r->served.least);
    fm_json_add_uint(out->json, "rows_most", (uint64_t)r->served.most);
}

static void describe(const struct fm_result *out, const void *report)
{
    const struct fm_recover_report *r = report;
    double budget = r->mask < 0 ? 0 : fm_masks_budget(&r->masks, r->mask);
    if (r->served.masks)
        describe_solved(out, r);
    else
        fprintf(out->text, "%-9son mask %d, budget %.4f\n", r->train->made, r->mask, budget);
    fprintf(out->text, "%-9s%d", r->served.masks ? "layers" : "steps", r->steps);
    if (r->resumed)
        fprintf(out->text, ", %d of them resumed", r->resumed);
    fputc('\n', out->text);
    if (r->mask >= 0) {
        fm_json_add_uint(out->json, "mask", (uint64_t)r->mask);
        fm_json_add_double(out->json, "budget", budget);
    }
    fm_json_add_uint(out->json, "steps", (uint64_t)r->steps);
    fm_json_add_uint(out->json, "resumed", (uint64_t)r->resumed);
    if (!r->served.masks) {
        fm_json_add_double(out->json, "loss_first", r->loss_first);
        fm_json_add_double(out->json, "loss_last", r->loss_last);
    }
    fm_show_family(out, &r->masks, r->after, r->train->made);
    fm_json_add_double(out->json, "seconds", r->seconds);
    fm_json_add_double(out->json, "seconds_per_step", r->seconds_step);
}

/* Modes of options: one bit for a strategy and one for what is trained: an adapter that is merged,
 * or another, or what is solved. */
enum { SINGLE = 1, CROSS = 2, MERGED = 4, OTHER = 8, SOLVED = 16, TRAINED = MERGED | OTHER };

static int work(const struct fm_cli *cli, const struct fm_recover_options *options,
                struct fm_recover_report *report, struct fm_err *err)
{
    struct fm_show_run show;
    int strategies = SINGLE | CROSS, trains = TRAINED | SOLVED;
    int train = !options->train->trains ? SOLVED : options->train->merges ? MERGED : OTHER;
    char says[48];
    snprintf(says, sizeof says, "with --train %s", options->train->name);
    if (fm_options_check(cli, trains | SINGLE << options->strategy, "with --strategy cross", err) ||
        fm_options_check(cli, strategies | train, says, err) ||
        fm_show_begin(&show, cli, describe, report, err))
        return err->code;
    return fm_show_end(&show, fm_recover(&show.run, options, show.dry, report, err), err);
}

int fm_recover_main(int argc, char **argv)
{
    struct fm_recover_options options;
    fm_recover_defaults(&options, fm_recoveries[0]);
    int strategy = (int)options.strategy, train = 0;
    const struct fm_cli_option own[] = {
        {"budget", 'b', FM_CLI_DECIMAL, &options.budget, "R",
         "train at the mask nearest to R (default: 0.40)", 0, 0, SINGLE},
        {"train", 0, FM_CLI_CHOICE, &train, FM_NAMES_CHOICES(FM_RECOVERY_ROWS),
         "train adapters, or the routers, or solve down in closed form (default: experts)", 0, 0,
         0},
        {"strategy", 0, FM_CLI_CHOICE, &strategy, "single|cross",
         "train at one mask, or at many (default: single)", 0, 0, TRAINED},
        {"lora-rank", 0, FM_CLI_INT, &options.rank, "N", "rank of the adapter (default: 16)", 1,
         FM_LORA_RANK_MAX, MERGED},
        {"steps", 0, FM_CLI_INT, &options.steps, "N", "training steps (default: 60)", 1,
         FM_RECOVER_STEPS_MAX, TRAINED},
        {"lr", 0, FM_CLI_REAL, &options.lr, "X", "learning rate (default: 3e-4)", FM_RECOVER_LR_MIN,
         FM_RECOVER_LR_MAX, TRAINED},
    };
    const struct fm_cli_scope scope[] = {{.name = "batch", .modes = TRAINED}, {0}};
    struct fm_cli cli = {
        .tool = "fm-recover",
        .synopsis = "--model DIR --text FILE [options] [STAGE] > stage.fm",
        .about = "Train one low-rank adapter, or the routers, or solve down, for every budget.",
        .often = "model tokens text eval-text seq-len max-tokens budget strategy steps "
                 "precision memory "
                 "output state force dry-run json help version",
        .groups = FM_CLI_STAGE,
        .run = {.outputs.path = "-", .inputs.stream = "-"},
        .operands_max = 1,
        .scope = scope,
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    options.strategy = (enum fm_recover_strategy)strategy;
    struct fm_recover_options usual;
    fm_recover_defaults(&usual, fm_recoveries[train]);
    options.train = usual.train;
    if (!options.train->trains && !options.budget.den) /* for the family */
        options.strategy = FM_RECOVER_CROSS;
    /* A cross step also trains the full model, with the cross-entropy as its only loss. */
    options.w_task = options.strategy == FM_RECOVER_CROSS ? 1 : usual.w_task;
    struct fm_recover_report report = {0};
    struct fm_err err = {0};
    int rc = work(&cli, &options, &report, &err);
    fm_recover_report_release(&report);
    return fm_cli_end(&cli, rc, &err);
}
