/*
 * Names of modules in quantization_config: which modules an entry of `ignore`, `targets` or another
 * of its lists means.
 */
#ifndef FM_MODULES_H
#define FM_MODULES_H

#include <regex.h>
#include <stdbool.h>
#include <stddef.h>

/* An entry: a module's name, a pattern with `*`, or "re:" followed by a regular expression that
 * matches the start of a name.  Zeroed, it matches nothing. */
struct fm_modules {
    const char *text; /* the caller's */
    size_t length;
    bool expression;
    char *inside; /* of a pattern: the same for modules inside */
    regex_t regex;
};

/* Read an entry, which is borrowed.  False, and nothing to release, if its regular expression is
 * not one of POSIX once (?: and \d of Python are replaced, or if there is no memory. */
bool fm_modules_read(struct fm_modules *modules, const char *text);
void fm_modules_release(struct fm_modules *modules);

/* Whether the entry means this module or one that contains it. */
bool fm_modules_match(const struct fm_modules *modules, const char *module);

#endif
