/* fm-pack --list: the members of a bundle, as a table or JSON. */
#ifndef FM_LISTING_H
#define FM_LISTING_H

#include "cmd/cli.h"

/* What to list in addition to the members. */
struct fm_listing_options {
    uint64_t context; /* tokens to reserve GPU memory for; 0: 32768, at most the model's maximum */
    int devices;      /* --tp */
    int quantum;      /* --quantum; if this and devices are 0, no layout is checked for them */
};

/* Read cli->run.inputs.stream and print.  FM_EUSAGE for a context beyond the model's maximum. */
int fm_listing_print(const struct fm_cli *cli, const struct fm_listing_options *options,
                     struct fm_err *err);

#endif
