/*
 * Text as calibration tokens.  Documents are encoded separately, on all cores, and keep their
 * order.  Each gets the tokens that the tokenizer's template puts before and after it, and is
 * followed by the separator unless that is one of its last two ids.  A document without ids gets no
 * separator.  The ids of all documents go to an unlinked temporary file, which is then read like
 * any token file.  So neither a long text nor its tokens have to fit into memory.
 */
#ifndef FM_CORPUS_H
#define FM_CORPUS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/file/digest.h"
#include "formats/text/tokens.h"
#include "lib/data/separator.h"
#include "lib/run/run.h"

#define FM_CORPUS_FORMAT "text" /* fm_tokens.format */

/* What the manifest records about a text. */
struct fm_corpus {
    uint64_t documents;
    uint64_t dropped;           /* bytes of their texts that became no id; 0 with a command */
    bool command;               /* run->inputs.tokenizer_cmd made the ids */
    struct fm_digest tokenizer; /* of tokenizer.json, or of the command */
    int32_t last;               /* the tokenizer's largest id; 0 with a command */
    int32_t front[8], back[8];  /* the template */
    int fronts, backs;
    struct fm_separator separator; /* with a command: id -1, unknown false */
};

/*
 * Encode the text at `path` ("-": standard input) with run->inputs.tokenizer_cmd,
 * run->inputs.tokenizer, or the tokenizer.json of run->inputs.model or, if that is NULL, of the
 * bundle run->inputs.stream; with enough != 0 only until there are that many tokens.  *t is then an
 * open token file that the caller closes.  FM_EFORMAT names the file, the line and the mistake, or
 * the failed command.
 */
int fm_corpus_encode(struct fm_corpus *corpus, struct fm_tokens *t,
                     const struct fm_run_options *run, const char *path, uint64_t enough,
                     struct fm_err *err);

#endif
