/*
 * The text of lm-eval's task `wikitext` (lm_eval/tasks/wikitext/preprocess_wikitext.py of 0.4.13):
 * a page of WikiText has spaces around punctuation and marks inside numbers, which its detokeniser
 * takes out; words and bytes are counted before.
 */
#ifndef FM_WIKITEXT_H
#define FM_WIKITEXT_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* len(re.split(r"\s+", text)) of Python: one more than the runs of white space, so 1 of "".  The
 * text is UTF-8. */
uint64_t fm_wikitext_words(const char *text, size_t size);

/* *text (malloced, *size bytes of UTF-8) becomes the text that is encoded.  FM_ENOMEM: both are
 * as they were. */
int fm_wikitext_detokenise(char **text, size_t *size, struct fm_err *err);

#endif
