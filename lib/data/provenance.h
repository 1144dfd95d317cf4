/* What the manifest records of calibration data: where every token came from. */
#ifndef FM_PROVENANCE_H
#define FM_PROVENANCE_H

#include <cjson/cJSON.h>

#include "lib/data/calib.h"

/* "tokens" of a history entry: {"digest", "sequences", "seq_len", "sources": [{"format", "packing",
 * "weight", "tokens", "used", "digest"; of a text "documents", "tokenizer", "before_each",
 * "behind_each" too}]}. */
void fm_provenance_tokens(cJSON *entry, const struct fm_calib *calib);

#endif
