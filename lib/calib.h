/*
 * Calibration sequences.  Sequence i of a 1-D token file is tokens [i T, (i + 1) T), the rest
 * at the end is dropped; of a 2-D file it is row i cut to T.  File order unless shuffled (seeded).
 * Ids are checked against the vocabulary when they are read.
 */
#ifndef FM_CALIB_H
#define FM_CALIB_H

#include <stdint.h>

#include "formats/digest.h"
#include "lib/run.h"
#include "lib/sweep.h"

struct fm_calib {
    int T;                   /* tokens per sequence */
    int count;               /* sequences */
    int32_t *ids;            /* (count, T), already in the order asked for */
    struct fm_digest digest; /* of ids as little-endian int32, in this order */
};

/*
 * Open run->tokens (eval: run->eval_tokens) for a model.  T = run->seq_len or its default.
 * run->shuffle permutes all sequences of the file, then run->max_tokens keeps the first whole ones;
 * neither touches evaluation tokens.  FM_EFORMAT where not one whole sequence is there; FM_EUSAGE
 * where seq_len is under 2 or over the model's positions, or max_tokens less than a sequence.
 */
int fm_calib_open(struct fm_calib *calib, const struct fm_run_options *run,
                  const struct fm_config *config, bool eval, struct fm_err *err);
void fm_calib_close(struct fm_calib *calib);

/* Move the last `sequences` of calib to *held (fewer where calib has fewer than twice that:
 * half): kept out of training, quality is measured on them.  Both digests are made again, both
 * are closed separately.  FM_EFORMAT where calib has one sequence alone. */
int fm_calib_hold_out(struct fm_calib *calib, struct fm_calib *held, int sequences,
                      struct fm_err *err);

#endif
