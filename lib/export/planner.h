/*
 * Making the plan of an export (lib/export/exportplan.h).
 *
 *     struct fm_exportplan p;
 *     rc = fm_planner_begin(&p, &opened, &options, &err);
 *     if (!rc)
 *         rc = fm_planner_member(&p, index, &err);      as often as wanted
 *     ...
 *     fm_exportplan_release(&p);
 *
 * One plan is for one set of options.  Another member changes its widths and texts; tensors and
 * weight files stay as long as they hold the same number of channels.
 */
#ifndef FM_PLANNER_H
#define FM_PLANNER_H

#include "lib/export/exportplan.h"

/* FM_EUSAGE for options that do not go together. */
int fm_planner_check(const struct fm_export_options *options, struct fm_err *err);

/* True for a budget inside the load cap, or without one. */
bool fm_planner_keeps(const struct fm_export_options *options, double budget);

/* Budgets are quotients of integers and what was asked for was typed: equal up to rounding is
 * equal. */
#define FM_PLANNER_SLACK 1e-9

/* Set first and last.  The options passed fm_planner_check; FM_EUSAGE where this family
 * cannot follow them.  Release in every case. */
int fm_planner_begin(struct fm_exportplan *p, const struct fm_opened *from,
                     const struct fm_export_options *options, struct fm_err *err);
/* The widths of a member alone: for counting channels. */
void fm_planner_widths(struct fm_exportplan *p, int index);
/* Widths, tensors, files and texts of a member.  FM_ECONFIG where the layout cannot hold them. */
int fm_planner_member(struct fm_exportplan *p, int index, struct fm_err *err);

#endif
