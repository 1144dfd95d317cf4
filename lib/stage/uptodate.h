/*
 * --if-changed: a stage whose output was made from the same inputs with the same options need not
 * run.  Digests are compared, not times: with --if-changed the history entry of an output has a
 * digest of everything that determined it except the weights, whose sums the manifest has anyway.
 * To check these against the checkpoint, its weights are read again.
 */
#ifndef FM_UPTODATE_H
#define FM_UPTODATE_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "formats/bundle/bundle.h"
#include "formats/file/digest.h"
#include "formats/tensor/hfdir.h"
#include "lib/base/err.h"
#include "lib/run/run.h"

struct fm_uptodate {
    bool is;                    /* the output is the one that this run would make */
    double seconds;             /* time of the check, which may read the weights */
    char inputs[FM_DIGEST_HEX]; /* the digest that an output must have; "" if --if-changed was
                                   not given */
};

/* The values that --if-changed compares; NULL and "" for values that a stage does not have. */
struct fm_uptodate_inputs {
    const char *tool;               /* name of the tool, "fm-train" */
    const struct fm_digest *params; /* fm_journal_params of a state: tokens, options, version */
    const char *text;               /* further options */
    const struct fm_bundle *in;     /* the input stream */
    const struct fm_hfdir *dir;     /* the checkpoint */
    bool carries;                   /* its carried files are part of the output */
};

/* True if `path` is the output of a run of the same tool with --if-changed, whatever its inputs; a
 * run with --if-changed may replace such a file. */
bool fm_uptodate_is_own(const char *path, const char *tool);

/* Does nothing without run->outputs.if_changed.  All ranks call it, and rank 0 does the check.
 * An output that is missing or cannot be read is not up to date, and not an error. */
int fm_uptodate_check(struct fm_uptodate *uptodate, const struct fm_run_options *run,
                      const struct fm_uptodate_inputs *inputs, struct fm_err *err);

/* Add the digest to an entry of a manifest's history. */
void fm_uptodate_record(cJSON *entry, const struct fm_uptodate *uptodate);

#endif
