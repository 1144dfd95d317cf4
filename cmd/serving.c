/*
 * fm-bench serve: from its options to the measurement, and from its figures to table, JSON and
 * plot.
 */
#include "cmd/serving.h"

#include <string.h>

#include "cmd/figures.h"
#include "lib/bench/servebench.h"

int fm_serving_run(const struct fm_cli *cli, const struct fm_serving *o, struct fm_err *err)
{
    struct fm_servebench result;
    struct fm_cli_text text;
    struct fm_servebench_options s = {.shape = o->shape, .family = o->family};
    s.budgets = o->budgets ? o->budgets : "0,0.2,0.4,0.6";
    s.dtype = o->dtype;
    s.layers = o->layers;
    s.batch = o->sequences;
    s.prompt = o->prompt;
    s.decode = o->decode;
    s.repeat = o->repeat ? o->repeat : 3;
    if (s.shape && s.family)
        return fm_fail(err, FM_EUSAGE, "--shape and --family both name a shape; use one");
    int rc = fm_servebench_run(&cli->run, &s, cli->dry_run, &result, err);
    if (!rc && o->plot && !cli->dry_run)
        rc = fm_cli_settle_side("--plot", o->plot,
                                fm_figures_serve_plot(&result, o->plot, cli->run.force, err), err);
    if (!rc)
        rc = fm_cli_text_open(&text, err);
    if (!rc) {
        fm_figures_serve(text.out, &result);
        rc = fm_cli_result(cli, &text, fm_figures_serve_json(&result), err);
    }
    return rc;
}
