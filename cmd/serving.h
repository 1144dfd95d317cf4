/* fm-bench serve: its options, and the run. */
#ifndef FM_SERVING_H
#define FM_SERVING_H

#include "cmd/cli.h"

struct fm_serving {
    const char *budgets, *shape, *family, *dtype, *plot; /* NULL: the default, none */
    int sequences;
    int repeat; /* 0: the default */
    int layers, prompt, decode;
};

int fm_serving_run(const struct fm_cli *cli, const struct fm_serving *options, struct fm_err *err);

#endif
