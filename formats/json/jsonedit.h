/*
 * Change or remove keys of a JSON object without changing any other byte of the text: config.json
 * of an export is that of the checkpoint except for the keys that the layout needs.
 */
#ifndef FM_JSONEDIT_H
#define FM_JSONEDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

struct fm_jsonedit {
    const char *key, *value; /* the value is JSON; NULL: remove the key */
};

/*
 * *text (from malloc, *size bytes and a NUL) is an object.  Each of the `n` edits replaces the
 * value of a top-level key, or adds the key after the last one, in the order of the edits and with
 * the spacing of the first key.  A key to remove may be absent.  No two edits have the same key.
 * *text is replaced; on failure it is unchanged.  FM_EFORMAT if the text is not an object or has
 * the key of an edit twice, FM_ENOMEM.
 */
int fm_jsonedit_set(char **text, size_t *size, const struct fm_jsonedit *edit, int n,
                    struct fm_err *err);

/* True if a member of this name is kept. depth: the number of objects and arrays around it, 1
 * for the members of the outermost object. */
typedef bool (*fm_jsonedit_stays)(void *self, const char *key, int depth);

/*
 * *text is any JSON value, from malloc as above.  Remove every member, at any depth, that is not
 * kept, with its contents; members inside a kept member are examined too.  On failure *text is
 * unchanged: FM_EFORMAT if it is not JSON as json.h requires, or a key is longer than 1023 bytes;
 * FM_ENOMEM.
 */
int fm_jsonedit_prune(char **text, size_t *size, fm_jsonedit_stays stays, void *self,
                      struct fm_err *err);

#endif
