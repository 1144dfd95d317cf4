/* fm-bench rivals: what it needs, and the run. */
#ifndef FM_RIVALS_H
#define FM_RIVALS_H

#include "cmd/cli.h"
#include "lib/rival/rival.h"

int fm_rivals_run(const struct fm_cli *cli, const struct fm_rival_options *options,
                  const char *plot, bool bytes, struct fm_err *err);

#endif
