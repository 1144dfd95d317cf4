/*
 * Change one key of a JSON object and leave every other byte of the text as it is:
 * config.json of an export is the checkpoint's but for the keys that the layout needs.
 */
#ifndef FM_JSONEDIT_H
#define FM_JSONEDIT_H

#include <stddef.h>

#include "lib/base/err.h"

/*
 * *text (malloc, *size bytes, NUL behind) is an object.  Put `value`, which is JSON, in the place
 * of top-level `key`'s, or add the key behind the last one, spaced as the first is.  *text is
 * replaced.  FM_EFORMAT where the text is no object, FM_ENOMEM.
 */
int fm_jsonedit_set(char **text, size_t *size, const char *key, const char *value,
                    struct fm_err *err);

#endif
