/*
 * What members of a family keep of the importance that channels have for kinds of text: of the
 * scores of a ranking that was made on one kind, the share that the kept channels have.
 */
#ifndef FM_KEPT_H
#define FM_KEPT_H

#include <cjson/cJSON.h>

#include "lib/base/err.h"
#include "lib/export/opened.h"

struct fm_kept {
    int rows;
    struct fm_kinds kinds;         /* named after the files of the rankings */
    double (*share)[FM_KINDS_MAX]; /* (rows) for each member, the share of each kind */
};

/*
 * Fill *kept for the members of `o`, which is read (fm_opened_read), from the streams `ranking`, at
 * most FM_KINDS_MAX with NULL after the last.  FM_ECONFIG, naming the difference, if one was made
 * from another checkpoint or by another criterion than the family's ranking.  Release it even after
 * a failure.
 */
int fm_kept_fill(struct fm_kept *kept, const struct fm_opened *o, const char *const *ranking,
                 struct fm_err *err);
void fm_kept_release(struct fm_kept *kept); /* zeroed struct is fine */

/* The kind of which a member keeps the smallest share. */
int fm_kept_least(const struct fm_kept *kept, int row);

/* Add "coverage" and "least_covered" to the members in `budgets` of fm_list_json. */
void fm_kept_add(cJSON *budgets, const struct fm_kept *kept);

#endif
