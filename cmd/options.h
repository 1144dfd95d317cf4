/*
 * The option table: a tool's own rows and the shared ones, parsed by getopt_long, and
 * printed by --help, from one place.
 */
#ifndef FM_OPTIONS_H
#define FM_OPTIONS_H

#include "cmd/cli.h"

/*
 * Fill *cli and what the rows point to.  A mistake ends the process with one sentence and
 * status 2, with the nearest spelling where there is one.  False where --help or --version was
 * printed and nothing is left to do.
 */
bool fm_options_parse(struct fm_cli *cli, int argc, char **argv, const struct fm_cli_option *own,
                      int count);

#endif
