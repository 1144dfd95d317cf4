/*
 * Matches names of modules with the entries of `ignore`, `targets` and the other lists of
 * quantization_config.
 */
#ifndef FM_MODULES_H
#define FM_MODULES_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>

/* An entry: a module's name, a pattern with `*`, or "re:" followed by a regular expression that
 * matches the start of a name.  A zeroed entry matches nothing. */
struct fm_modules {
    const char *text; /* the caller's */
    size_t length;
    bool expression;
    char *inside; /* for a pattern: the pattern of modules inside the matching ones */
    regex_t regex;
};

#define FM_EXPRESSION_BYTES_MAX 256 /* with "re:" */
#define FM_PATTERNS_MAX 256         /* patterns and expressions of a list */

/* Read an entry, which is borrowed.  False, with nothing to release, if there is no memory or the
 * regular expression is not supported.  An expression must not be longer than
 * FM_EXPRESSION_BYTES_MAX or contain {, a back reference, more than 16 nested groups, more than 4
 * groups followed by +, or a construct that POSIX interprets differently (after "(?:", \d, lazy
 * repetition and escapes in brackets were replaced). */
bool fm_modules_read(struct fm_modules *modules, const char *text);
void fm_modules_release(struct fm_modules *modules);

/* Whether the entry matches this module or one that contains it. */
bool fm_modules_match(const struct fm_modules *modules, const char *module);

#endif
