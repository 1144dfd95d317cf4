/* fm-bench baselines: check its options, run the comparison, and print and plot the figures. */
#include "cmd/baselines.h"

#include <stdlib.h>

#include "cmd/results.h"
#include "lib/base/mem.h"

static int check(const struct fm_run_options *run, struct fm_err *err)
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

int fm_baselines_run(const struct fm_cli *cli, const char *budgets, const char *plot,
                     struct fm_err *err)
{
    struct fm_run_options run = cli->run;
    struct fm_cli_text text;
    if (check(&run, err))
        return err->code;
    if (cli->operands > 1)
        return fm_fail(
            err, FM_EUSAGE,
            "baselines takes no bundle: measure the family with fm-bench quality, on the "
            "same --eval-tokens or --eval-text");
    run.inputs.stream = NULL;
    struct fm_baseline_table *table = fm_alloc(1, sizeof *table, "a table", err);
    int rc = table ? fm_baseline_run(&run, budgets, cli->dry_run, table, err) : FM_ENOMEM;
    if (!rc && plot && !cli->dry_run)
        rc = fm_cli_settle_side("--plot", plot,
                                fm_results_baselines_plot(table, plot, cli->run.outputs.force, err),
                                err);
    if (!rc)
        rc = fm_cli_text_open(&text, err);
    if (!rc) {
        fm_results_baselines(text.out, table);
        rc = fm_cli_result(cli, &text, fm_results_baselines_json(table), err);
    }
    free(table);
    return rc;
}
