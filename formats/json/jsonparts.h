/*
 * Members of a JSON object by their position in its text, for files with members that are too large
 * for a tree.
 */
#ifndef FM_JSONPARTS_H
#define FM_JSONPARTS_H

#include <stdbool.h>

#include "formats/json/json.h"

struct fm_jsonpart {
    const char *key;
    const char *begin, *end; /* NULL if the member is absent */
};

/* Read the object at j and record the position of each member.  FM_EFORMAT for a member that occurs
 * twice, FM_ECONFIG for one that is not among `part`; `where` names the object. */
int fm_jsonparts_read(struct fm_json *j, struct fm_jsonpart *part, int parts, const char *where,
                      struct fm_err *err);

/* A scanner for the text of a member, which must exist; errors give positions in the whole text. */
struct fm_json fm_jsonparts_window(const struct fm_json *whole, const struct fm_jsonpart *p);

/* True if the text of the member is this word. */
bool fm_jsonparts_is_word(const struct fm_jsonpart *p, const char *word);

/* True if the member is absent or null. */
bool fm_jsonparts_is_null(const struct fm_jsonpart *p);

/* Parse an object or array as a tree; NULL if it is null or absent. */
int fm_jsonparts_tree(cJSON **tree, const struct fm_jsonpart *p, struct fm_err *err);

#endif
