/* fm-bench baselines: run the comparison, and print and plot the figures. */
#ifndef FM_BASELINES_H
#define FM_BASELINES_H

#include "cmd/cli.h"
#include "lib/baseline/baseline.h"

int fm_baselines_run(const struct fm_cli *cli, const char *budgets, const char *plot,
                     struct fm_err *err);

#endif
