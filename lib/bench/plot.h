/*
 * A line chart as SVG: named series over a common x axis, ticks on round numbers, a legend.  The
 * axes cover the data; the y axis is extended to round numbers.
 */
#ifndef FM_PLOT_H
#define FM_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

#define FM_PLOT_SERIES_MAX 20

struct fm_plot_series {
    const char *name;
    const double *x, *y; /* (count), finite, x increasing */
    int count;
};

struct fm_plot {
    const char *title, *x_label, *y_label;
    double y_most; /* larger values do not extend the axis, and lines are clipped; 0: no limit */
    struct fm_plot_series series[FM_PLOT_SERIES_MAX];
    int count;
};

/* The document as text, the same bytes for the same numbers; the caller frees it.  NULL:
 * FM_ENOMEM. */
char *fm_plot_svg(const struct fm_plot *plot, struct fm_err *err);

/* True if the text is a complete plot of `tool`, named by a comment in its second line. */
bool fm_plot_is_own(const char *text, size_t size, const char *tool);

/* Write the document to a file with fm_guard_text of lib/run/guard.h. */
int fm_plot_write(const struct fm_plot *plot, const char *path, bool force, struct fm_err *err);

#endif
