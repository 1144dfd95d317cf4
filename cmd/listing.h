/* What a bundle offers, as a table or JSON: fm-pack --list. */
#ifndef FM_LISTING_H
#define FM_LISTING_H

#include "cmd/cli.h"

/* What a list is to say beside the members. */
struct fm_listing_options {
    uint64_t context; /* tokens that a card has room for; 0: 32768, or what the model takes */
    int devices;      /* --tp */
    int quantum;      /* of both, 0: which layouts pass is not asked */
    int sort;         /* --sort: 0 by budget, 1 by what is lost on the worst kind of text */
};

/* Read cli->run.inputs.stream and print.  FM_EUSAGE for a context that the model does not take. */
int fm_listing_print(const struct fm_cli *cli, const struct fm_listing_options *options,
                     struct fm_err *err);

#endif
