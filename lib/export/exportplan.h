/*
 * The plan of an export: the member of an open family, the widths of its experts, the tensors, the
 * bytes of the bundle that fill them, the files with their sizes, and the texts.  The writer of an
 * export follows the plan, a list of exports takes its sizes from it, and fm-verify plans an export
 * again to compare files with it.
 *
 *     struct fm_exportplan p;
 *     rc = fm_exportplan_begin(&p, &opened, &options, &err);
 *     if (!rc)
 *         rc = fm_exportplan_member(&p, index, &err);      any number of times
 *     ...
 *     fm_planned_release(&p);
 *
 * A plan is for one set of options.  Planning a different member changes its widths and texts;
 * tensors and weight files are reused if every expert keeps its width in the files.
 */
#ifndef FM_EXPORTPLAN_H
#define FM_EXPORTPLAN_H

#include "lib/export/planned.h"

/* FM_EUSAGE for options that exclude each other. */
int fm_exportplan_check(const struct fm_export_options *options, struct fm_err *err);

/* --for: replace the layout with its form for that server, or set the rules for widths of rounded
 * experts.  FM_EUSAGE if the server makes no difference to the export. */
int fm_exportplan_serve(struct fm_export_options *options, enum fm_server server,
                        struct fm_err *err);

/* True for a budget inside the load cap, or without one. */
bool fm_exportplan_keeps(const struct fm_export_options *options, double budget);

/* Budgets are quotients of integers and the option is decimal text, so they are compared up to
 * rounding. */
#define FM_EXPORTPLAN_SLACK 1e-9

/* Begin a plan, and set first and last.  The options have passed fm_exportplan_check; FM_EUSAGE or
 * FM_ECONFIG if they do not suit this family.  Release it even after a failure. */
int fm_exportplan_begin(struct fm_exportplan *p, const struct fm_opened *from,
                        const struct fm_export_options *options, struct fm_err *err);
/* Set only the widths of a member, for counting channels. */
void fm_exportplan_widths(struct fm_exportplan *p, int index);
/* Plan widths, tensors, files and texts of a member.  FM_ECONFIG if the layout cannot hold them. */
int fm_exportplan_member(struct fm_exportplan *p, int index, struct fm_err *err);
/* Bytes of the tensors of a member in a layout with one width for all experts, without planning
 * files or texts: one layer of experts represents all of them.  The plan has no member afterwards.
 * FM_ECONFIG as fm_exportplan_member. */
int fm_exportplan_same_layers(struct fm_exportplan *p, int index, uint64_t *bytes,
                              struct fm_err *err);
/* Set the widths (M, E) with which the export computes at the budget of a member. */
void fm_exportplan_served(const struct fm_exportplan *p, int index, uint32_t *widths);

#endif
