/*
 * Change or take out keys of a JSON object and leave every other byte of the text as it is:
 * config.json of an export is the checkpoint's but for the keys that the layout needs.
 */
#ifndef FM_JSONEDIT_H
#define FM_JSONEDIT_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

struct fm_jsonedit {
    const char *key, *value; /* the value is JSON; NULL: the key is taken out */
};

/*
 * *text (malloc, *size bytes, NUL behind) is an object.  Put the value of each of the `n` edits in
 * the place of its top-level key's, or add the key behind the last one, spaced as the first is;
 * what is added comes in the order of the edits.  A key that is taken out need not be there.  Keys
 * of edits differ.  The text is read once, and *text is replaced; on failure it stays.  FM_EFORMAT
 * where the text is not an object, FM_ENOMEM.
 */
int fm_jsonedit_set(char **text, size_t *size, const struct fm_jsonedit *edit, int n,
                    struct fm_err *err);

/* Does a member of this name stay?  depth: how many objects and arrays it is inside of, 1 for the
 * members of an object that is the whole text. */
typedef bool (*fm_jsonedit_stays)(void *self, const char *key, int depth);

/*
 * *text is JSON, as above.  Take out every member, at any depth, that does not stay, with all that
 * is in it; what stays is asked about inside, too, and keeps its bytes.  On failure *text stays:
 * FM_EFORMAT where it is not JSON as json.h wants it, or a key is longer than 1023 bytes;
 * FM_ENOMEM.
 */
int fm_jsonedit_prune(char **text, size_t *size, fm_jsonedit_stays stays, void *self,
                      struct fm_err *err);

#endif
