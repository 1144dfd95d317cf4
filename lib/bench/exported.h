/*
 * The loss of an exported directory, of whatever layout: as its files have it, read by the engine
 * as any checkpoint is, beside that of the original where that is at hand.  What was measured can
 * be written into the directory: fm-export.json gets "measured", the model card a section and a
 * model-index.  fm-verify(1) leaves both out of what must be the bundle's.
 */
#ifndef FM_EXPORTED_H
#define FM_EXPORTED_H

#include <stdbool.h>

#include "formats/file/digest.h"
#include "lib/masks/masks.h"
#include "lib/run/run.h"

struct fm_bench_exported {
    char layout[16];
    double budget;    /* of the member; of a layout with all members, that it starts with */
    int sequences, T; /* held out */
    char digest[FM_DIGEST_HEX];       /* of their ids */
    const char *precision;            /* "f32" */
    bool whole;                       /* the layout has all members */
    bool compared;                    /* there is an original */
    struct fm_quality here, original; /* ce and positions alone */
};

/* Whether `path` is a directory with fm-export.json. */
bool fm_bench_is_export(const char *path);

/*
 * Measure run->input, an exported directory, and run->model, the original (or NULL), on
 * run->eval_tokens or the like; with `dry_run` all is opened and nothing measured.  FM_ECONFIG
 * where the original has another vocabulary, since then the losses are of other things.
 */
int fm_bench_exported(const struct fm_run_options *run, bool dry_run,
                      struct fm_bench_exported *result, struct fm_err *err);

/* Write the figures into the directory, in the place of older ones; each file appears whole, and
 * fm-export.json last.  A directory without a card gets none. */
int fm_bench_record(const char *directory, const struct fm_bench_exported *result,
                    struct fm_err *err);

#endif
