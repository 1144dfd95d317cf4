/*
 * Writes figures measured on an exported directory into it: fm-export.json gets "measured", the
 * model card gets a section and a model-index, and the table of files gets the card's new digest.
 * fm-verify(1) does not compare these with the bundle.
 */
#ifndef FM_RECORD_H
#define FM_RECORD_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file/digest.h"
#include "lib/masks/masks.h"
#include "lib/masks/spread.h"
#include "lib/run/run.h"

#define FM_EXPORT_MEASURED "measured" /* the key of fm-export.json */
#define FM_EXPORT_MEASURED_MAX ((size_t)1 << 20)

/* One member of the family: the directory's only one, or one of several in a directory with all
 * members. */
struct fm_record_member {
    double budget;
    struct fm_quality quality; /* kl and agree: relative to the original, if `compared` */
    struct fm_spread spread;
    struct fm_spread_paired change, step; /* ce minus that of the original; of the member before */
};

/* The measured figures. */
struct fm_record {
    char layout[16];
    char weights[16];           /* from fm-export.json: "keep", "bf16", a format; "" if not set */
    uint64_t bytes;             /* bytes of the weight files */
    int sequences, T;           /* held-out sequences, and tokens of each */
    struct fm_kinds kinds;      /* kinds of the held-out text */
    char digest[FM_DIGEST_HEX]; /* digest of the ids of the held-out tokens */
    const char *precision;      /* of the computation: "f32" */
    bool whole;                 /* the layout has all members */
    bool compared;              /* kl, agree and `original` are set */
    int members, start;         /* number of measured members; index of the initial one */
    struct fm_record_member *member; /* (members), in order of budget */
    struct fm_quality original;      /* only ce and positions */
    struct fm_spread original_spread;
    struct fm_spread_sums sums; /* model i is member i; then the original */
    uint64_t tokens, values; /* number of tokens measured; upper bound, in bytes, of the memory for
                                the values of all of them */
};

/* Write the figures into the directory run->inputs.stream, replacing only those that an earlier
 * call wrote there; each file appears whole, and fm-export.json last.  A directory without a
 * card gets none. */
int fm_record_write(const struct fm_run_options *run, const struct fm_record *result,
                    struct fm_err *err);

/* Remove the measured figures and the table of files from the text of an fm-export.json (malloced);
 * what remains follows from its bundle. */
int fm_record_compared(char **text, size_t *size, struct fm_err *err);

#endif
