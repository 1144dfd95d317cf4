/*
 * This room, lib/page: a family as one HTML page that a browser shows without a network.  The page
 * holds what the bundle says and what measurements say that are named, as one JSON text, and a
 * script that draws it; no figure is computed anew.  Only cmd includes this room.  In reading
 * order: this header with page.c (how much of a large family a page shows), pagefacts (the bundle),
 * pagewidths (masks as text), pageresults (measurements), pagetext (HTML, and how words
 * of strangers stand in it), and page.html, page.css, page.js, charts.js and maps.js, which are put
 * into the tools.
 *
 * The same bundle and figures give the same bytes, whatever their directories.
 */
#ifndef FM_PAGE_H
#define FM_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_PAGE_BYTES_MAX 1000000
#define FM_PAGE_CONTEXT 8192 /* tokens, where nobody says how many, and the model takes as many */

struct fm_page_options {
    const char *const *figures; /* files that --json of our tools wrote; NULL behind the last */
    uint64_t context;           /* tokens that a card has to have space for beside the weights; 0:
                                   FM_PAGE_CONTEXT */
};

struct fm_page {
    char *text; /* NUL-terminated */
    size_t size;
    int budgets, shown; /* members of the family; those that the page has */
    int figures;        /* files */
    uint64_t context;
};

/*
 * The page of a bundle, or of a stage stream with masks; "-" is standard input.  At most
 * FM_PAGE_BYTES_MAX: of a large family as many members are shown as fit, evenly spaced.
 * FM_ECONFIG where figures are of another family or of no kind that is drawn, or are too many;
 * FM_EFORMAT for a broken file.  Release in every case.
 */
int fm_page_make(struct fm_page *page, const char *path, const struct fm_page_options *options,
                 struct fm_err *err);
/* Into a file, whole or not at all; "-" is standard output. */
int fm_page_write(const struct fm_page *page, const char *path, bool force, struct fm_err *err);
void fm_page_release(struct fm_page *page);

#endif
