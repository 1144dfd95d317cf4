/*
 * This room, lib/page: a family as one HTML page that a browser shows without a network.  The page
 * holds one JSON text with figures from the bundle and from the measurement files that --figures
 * names, and a script that draws them.  Only cmd includes this room.  In reading order: this header
 * with page.c (how much of a large family a page shows), pagefacts (the bundle), pageresults
 * (measurements), pagetext (HTML and its escaping), and page.html, page.css, page.js, charts.js and
 * maps.js, which are compiled into the tools.
 *
 * The same bundle and figures give the same bytes, whatever the files' directories.
 */
#ifndef FM_PAGE_H
#define FM_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

#define FM_PAGE_BYTES_MAX 1000000

struct fm_page {
    char *text; /* NUL-terminated */
    size_t size;
    int budgets, shown; /* members of the family; members on the page */
    int figures;        /* files */
};

/*
 * Make the page of a bundle, or of a stage stream with masks; "-" is standard input.  `figures`
 * names reports of the tools (pageresults.h) and ends with NULL.  The page has at most
 * FM_PAGE_BYTES_MAX bytes: if the family is too large, it shows fewer, evenly spaced members, or
 * omits the widths and tokens of individual experts.  FM_ECONFIG if figures belong to another
 * family, are of a kind that cannot be drawn, or are too many; FM_EFORMAT for a malformed file.
 * Release the page even after a failure.
 */
int fm_page_make(struct fm_page *page, const char *path, const char *const *figures,
                 struct fm_err *err);
/* Write the page to a file, completely or not at all; "-" is standard output. */
int fm_page_write(const struct fm_page *page, const char *path, bool force, struct fm_err *err);
void fm_page_release(struct fm_page *page);

#endif
