/*
 * The token that ends a document of text.  Models are trained on documents with the end-of-sequence
 * token between them; calibration text is encoded in the same way.
 */
#ifndef FM_SEPARATOR_H
#define FM_SEPARATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/text/tokenizer.h"
#include "lib/run/run.h"

struct fm_separator {
    int32_t id;                    /* -1: documents have no separator */
    bool unknown;                  /* id is -1 because no file names an end-of-sequence token */
    char token[FM_TOKENIZER_NAME]; /* its text */
};

/*
 * Find the separator that run->inputs.separator selects.  The end-of-sequence token is "eos_token"
 * of the tokenizer_config.json next to run->inputs.tokenizer; if that is NULL, of the one in
 * run->inputs.model; if that is NULL too, of the one in the bundle run->inputs.stream.  Without
 * one, it is the first "eos_token_id" of the model's or bundle's config.json or
 * generation_config.json.  If the tokenizer has no such token: FM_EUSAGE if the user
 * named it, FM_ECONFIG if a file does.  FM_EFORMAT if a value is malformed.
 */
int fm_separator_choose(struct fm_separator *separator, const struct fm_tokenizer *t,
                        const struct fm_run_options *run, struct fm_err *err);

#endif
