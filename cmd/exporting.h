/*
 * fm-pack --export: make the export, or with --dry-run plan it, and print the result.
 */
#ifndef FM_EXPORTING_H
#define FM_EXPORTING_H

#include "cmd/cli.h"
#include "lib/export/export.h"

int fm_exporting(const struct fm_cli *cli, const struct fm_export_options *options,
                 struct fm_err *err);

#endif
