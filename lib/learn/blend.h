/*
 * fm-rank --blend: a ranking from finished rankings of one checkpoint, each with a weight.  Nothing
 * is computed on tokens, so mixtures of texts can be tried in seconds.
 *
 * A criterion's score is a function of a sum over batches (lib/learn/criterion.h).  The blend is
 * that function of the weighted mean of the rankings' sums per batch, so weights in the ratio of
 * the numbers of batches give the ranking of all batches together, except for rounding.  An
 * expert's tokens are weighted in the same way.
 */
#ifndef FM_BLEND_H
#define FM_BLEND_H

#include "lib/learn/rank.h"

/*
 * Blend the streams `from`, at most FM_INPUTS_MAX, and
 * write the stream to run->outputs.path.  FM_ECONFIG, naming the difference, if they are not
 * rankings of the same model with the same options.  The caller zeroes *report, and releases it
 * even after an error.  Of several ranks, the first one does it.
 */
int fm_blend(const struct fm_run_options *run, const struct fm_source *from,
             struct fm_rank_report *report, struct fm_err *err);

#endif
