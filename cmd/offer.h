/* What a bundle offers, as a table or JSON: fm-pack --list. */
#ifndef FM_OFFER_H
#define FM_OFFER_H

#include "cmd/cli.h"

/* Read cli->run.input and print. */
int fm_offer(const struct fm_cli *cli, struct fm_err *err);

#endif
