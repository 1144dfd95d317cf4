/* fm-pack --list: the members of a bundle, as a table or JSON. */
#ifndef FM_LISTING_H
#define FM_LISTING_H

#include "cmd/cli.h"

/* Read cli->run.inputs.stream and print; also what members keep of the rankings `coverage`, which
 * ends with NULL and may be empty. */
int fm_listing_print(const struct fm_cli *cli, const char *const *coverage, struct fm_err *err);

#endif
