/*
 * The text of lm-eval's task `wikitext` (lm_eval/tasks/wikitext/preprocess_wikitext.py of 0.4.13):
 * a page of WikiText has spaces around punctuation and marks inside numbers, which the task's
 * detokeniser removes.  Words and bytes are counted before that.
 */
#ifndef FM_WIKITEXT_H
#define FM_WIKITEXT_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* len(re.split(r"\s+", text)) in Python: the number of runs of white space plus 1, so 1 for "".
 * The text is UTF-8. */
uint64_t fm_wikitext_words(const char *text, size_t size);

/* Replace *text (malloced, *size bytes of UTF-8) with the text to encode.  FM_ENOMEM: both are
 * unchanged. */
int fm_wikitext_detokenise(char **text, size_t *size, struct fm_err *err);

#endif
