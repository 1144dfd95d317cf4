/* What the manifest records about calibration and held-out data. */
#ifndef FM_PROVENANCE_H
#define FM_PROVENANCE_H

#include <stdbool.h>

#include <cjson/cJSON.h>

#include "lib/data/calib.h"

/* "tokens" of a history entry: {"digest", "sequences", "seq_len", "sources": [{"format",
 * "packing", "weight", "tokens", "used", "digest"; for a text also "documents", and either
 * "tokenizer", "dropped" (bytes, if not 0), "before_each", "behind_each" and "separator" (an id or
 * null), or "tokenizer_cmd"; for held-out text of several kinds also "kind"}]}. */
void fm_provenance_tokens(cJSON *entry, const struct fm_calib *calib);

/*
 * "held_out" of a history entry: {"digest", "sequences", "seq_len", "positions" (predictions, T - 1
 * of each sequence), "sources", as above}; without sources if it was split from the end of
 * "tokens".
 */
void fm_provenance_held_out(cJSON *entry, const struct fm_calib *held);
/* True if this history entry (may be NULL) records that its figures were measured on these
 * sequences. */
bool fm_provenance_is_held_out(const cJSON *entry, const struct fm_calib *held);

#endif
