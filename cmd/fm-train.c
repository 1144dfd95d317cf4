/* fm-train: learn a family of masks, one for every budget. */
#include "cmd/cli.h"
#include "cmd/show.h"
#include "cmd/tools.h"
#include "lib/base/names.h"
#include "lib/learn/train.h"
#include "lib/stage/budgets.h"

static void describe(const struct fm_result *out, const void *report)
{
    const struct fm_train_report *r = report;
    const struct fm_masks *f = &r->masks;
    fprintf(out->text, "masks    %d, budgets 0 to %.4f\n", f->count,
            fm_masks_budget(f, f->count - 1));
    if (r->steps)
        fprintf(out->text, "steps    %d, %d of them resumed\n", r->steps, r->resumed);
    fm_json_add_uint(out->json, "steps", (uint64_t)r->steps);
    fm_json_add_uint(out->json, "resumed", (uint64_t)r->resumed);
    fm_json_add_bool(out->json, "reached", r->reached);
    fm_show_family(out, f, NULL, NULL);
    if (!r->reached)
        fm_json_add_double(out->json, "came_to", r->came_to);
    fm_json_add_double(out->json, "seconds", r->seconds);
    fm_json_add_double(out->json, "seconds_per_step", r->seconds_step);
}

/* Modes: one bit for each method, and one for a method without shapes whose actions were given:
 * each of them is a budget. */
enum { WITH_ACTIONS = 1 << FM_METHODS_MAX };

#define LEAST 1e-9 /* the least decimal above 0 */

/* The modes of methods that train, of those that give each expert a width, and of all. */
struct modes {
    int training, shaping, all;
};

static struct modes modes_of_methods(void)
{
    struct modes modes = {0};
    for (int i = 0; fm_methods[i]; i++) {
        modes.training |= fm_methods[i]->trains ? 1 << i : 0;
        modes.shaping |= fm_methods[i]->shapes ? 1 << i : 0;
        modes.all |= 1 << i;
    }
    return modes;
}

static const char *method_that_trains(void)
{
    int i = 0;
    while (fm_methods[i + 1] && !fm_methods[i]->trains)
        i++;
    return fm_methods[i]->name;
}

/* FM_EUSAGE if an option of training was given and no method was: an option never selects the
 * method. */
static int check_default(const struct fm_cli *cli, struct fm_err *err)
{
    const int learning = modes_of_methods().training;
    const char *name = method_that_trains();
    for (int i = 0; i < cli->words; i++) {
        const struct fm_cli_word *g = &cli->word[i];
        if (g->modes && !(g->modes & ~learning))
            return fm_fail(err, FM_EUSAGE,
                           "--%s is an option of --method %s; add --method %s, or omit --%s",
                           g->name, name, name, g->name);
    }
    return FM_OK;
}

static int check_method(const struct fm_cli *cli, const struct fm_train_options *o,
                        struct fm_err *err)
{
    char says[48];
    snprintf(says, sizeof says, "with --method %s", o->method->name);
    if ((!fm_options_given(cli, "method") && check_default(cli, err)) ||
        fm_options_check(cli, 1 << fm_methods_index(o->method), says, err))
        return err->code;
    if (fm_decimal_targets(&o->budget_step, &o->until) >= FM_BUDGETS_MAX)
        return fm_fail(err, FM_EUSAGE, "--budget-step is too small: more than %d budgets",
                       FM_BUDGETS_MAX);
    if (o->method->shapes || o->actions.count == 0)
        return FM_OK;
    snprintf(says, sizeof says, "with --method %s and --actions", o->method->name);
    return fm_options_check(cli, WITH_ACTIONS, says, err);
}

static int work(const struct fm_cli *cli, const struct fm_train_options *options,
                struct fm_train_report *report, struct fm_err *err)
{
    struct fm_show_run show;
    if (check_method(cli, options, err) || fm_show_begin(&show, cli, describe, report, err))
        return err->code;
    return fm_show_end(&show, fm_train(&show.run, options, show.dry, report, err), err);
}

int fm_train_main(int argc, char **argv)
{
    struct fm_train_options options;
    fm_train_defaults(&options);
    int method = fm_methods_index(options.method), granularity = (int)options.granularity;
    int multiple = (int)options.width_multiple;
    const struct modes modes = modes_of_methods();
    const int learning = modes.training;
    const struct fm_cli_scope scope[] = {{.name = "batch", .modes = learning}, {0}};
    const struct fm_cli_option own[] = {
        {"method", 0, FM_CLI_CHOICE, &method, FM_NAMES_CHOICES(FM_METHOD_ROWS),
         "how masks are made (default: exchange)", 0, 0, 0},
        {"granularity", 0, FM_CLI_CHOICE, &granularity, "expert|layer|model",
         "which experts share a width (default: expert)", 0, 0, modes.shaping},
        {"actions", 0, FM_CLI_DECIMALS, &options.actions, "R,R,...",
         "shares of its channels that an expert may keep (default: tenths; exchange: twentieths)",
         0, 0, 0},
        {"width-multiple", 0, FM_CLI_INT, &multiple, "M",
         "round widths up to a multiple of M (default: the channel group)", 1,
         FM_TRAIN_MULTIPLE_MAX, 0},
        {"budget-step", 0, FM_CLI_DECIMAL, &options.budget_step, "R",
         "step between budgets (default: 0.01)", LEAST, 1, modes.all},
        {"until", 0, FM_CLI_DECIMAL, &options.until, "R", "highest budget (default: 0.80)", LEAST,
         1, 0},
        {"measure-step", 0, FM_CLI_DECIMAL, &options.measure_step, "R",
         "measure the masks nearest to multiples of R (default: 0.05)", LEAST, 1, 0},
        {"steps", 0, FM_CLI_INT, &options.steps, "N",
         "learned: training steps; up to twice as many to reach --until (default: 500)", 1,
         FM_TRAIN_STEPS_MAX, learning},
        {"samples-per-batch", 0, FM_CLI_INT, &options.samples, "N",
         "learned: subnets drawn and averaged per batch (default: 1)", 1, FM_TRAIN_SAMPLES_MAX,
         learning},
        {"prior", 0, FM_CLI_REAL, &options.prior, "ETA",
         "learned: influence of the scores on the initial logits, 0 for none (default: 4)", 0,
         FM_TRAIN_PRIOR_MAX, learning},
        {"lr", 0, FM_CLI_REAL, &options.lr, "X", "learned: learning rate (default: 0.02)",
         FM_TRAIN_LR_MIN, FM_TRAIN_LR_MAX, learning},
    };
    struct fm_cli cli = {
        .tool = "fm-train",
        .synopsis = "--model DIR --text FILE [options] [STAGE] > stage.fm",
        .about = "Learn how many channels each expert keeps at every budget of a family.",
        .often = "model tokens text eval-text seq-len max-tokens method until granularity "
                 "precision memory output state force dry-run json help version",
        .groups = FM_CLI_STAGE,
        .run = {.outputs.path = "-", .inputs.stream = "-"},
        .operands_max = 1,
        .scope = scope,
    };
    fm_cli_begin(&cli, argc, argv, own, FM_CLI_COUNT(own));
    options.method = fm_methods[method];
    options.granularity = (enum fm_granularity)granularity;
    options.width_multiple = (uint32_t)multiple;
    struct fm_train_report report = {0};
    struct fm_err err = {0};
    int rc = work(&cli, &options, &report, &err);
    fm_train_report_release(&report);
    return fm_cli_end(&cli, rc, &err);
}
