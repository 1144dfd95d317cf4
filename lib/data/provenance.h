/* What the manifest records of calibration data: where every token came from. */
#ifndef FM_PROVENANCE_H
#define FM_PROVENANCE_H

#include <cjson/cJSON.h>

#include "lib/data/calib.h"

/* {"digest", "sequences", "seq_len", "sources": [{"format", "packing", "weight", "tokens", "used",
 * "digest"; of a text "documents", "tokenizer", "before_each", "behind_each" too}]} of calibration
 * data; NULL: no memory. */
cJSON *fm_provenance_tokens(const struct fm_calib *calib);

#endif
