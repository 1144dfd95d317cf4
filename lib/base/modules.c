/* Regular expressions of checkpoints are Python's; they are translated to POSIX extended ones. */
#include "lib/base/modules.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits of an expression, so that glibc compiles it in little memory and stack: it parses groups
 * by recursion, and copies what a + repeats. */
#define DEPTH_MAX 16
#define REPEATS_MAX 4 /* groups followed by + */

/* Write what a backslash followed by c means, inside brackets or outside; NULL if it is not
 * supported. */
static char *translate_escape(char *posix, char c, bool bracket)
{
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == '\0' || (c >= '0' && c <= '9') || c == '{')
        return NULL;
    if (c == 'd')
        return stpcpy(posix, bracket ? "0-9" : "[0-9]");
    if (bracket && c == 'w')
        return stpcpy(posix, "A-Za-z0-9_");
    if (letter ? bracket || !strchr("wWsSbB", c) : bracket && strchr("]^-[", c))
        return NULL;
    if (!bracket && !strchr("<>`'", c)) /* GNU's library reads \ before these differently */
        *posix++ = '\\';
    *posix++ = c;
    return posix;
}

/* Translate an expression to POSIX syntax, preceded by ^ and enclosed in parentheses; false if
 * POSIX interprets a part of it differently, or it is beyond the limits. */
static bool translate(char *posix, const char *python)
{
    const char *open = NULL; /* first character in brackets */
    int depth = 0, repeats = 0;
    char last = '\0'; /* the previous character; '\0' if it was escaped or in brackets */
    posix = stpcpy(posix, "^(");
    for (; *python; python++) {
        char c = *python, before = last;
        last = open || c == '\\' ? '\0' : c;
        if (c == '{')
            return false;
        if (c == '\\') {
            posix = translate_escape(posix, *++python, open);
            if (!posix)
                return false;
            continue;
        }
        if (open) {
            if (c == '[' && strchr(":.=", python[1]))
                return false;
            open = c == ']' && python > open ? NULL : open;
        } else if (c == '[') {
            open = python + (python[1] == '^' ? 2 : 1);
        } else if (before && strchr("*+?L", before) && strchr("*+?", c)) {
            if (c != '?' || before == 'L') /* L: ? after a repetition */
                return false;
            last = 'L';
            continue; /* *? matches the same names as * */
        } else if (c == '(') {
            if (++depth > DEPTH_MAX || (python[1] == '?' && python[2] != ':'))
                return false;
            python += python[1] == '?' ? 2 : 0;
        } else if (c == ')') {
            if (--depth < 0)
                return false;
        } else if (c == '+' && before == ')' && ++repeats > REPEATS_MAX) {
            return false;
        }
        *posix++ = c;
    }
    memcpy(posix, ")", 2);
    return depth == 0;
}

bool fm_modules_read(struct fm_modules *m, const char *text)
{
    *m = (struct fm_modules){.text = text, .length = strlen(text)};
    m->expression = strncmp(text, "re:", 3) == 0;
    /* Room for "A-Za-z0-9_" instead of "\w", for "^()", and for ".*". */
    char *made = malloc(5 * m->length + 4);
    bool good = made && (!m->expression || m->length <= FM_EXPRESSION_BYTES_MAX);
    if (good && m->expression) {
        good = translate(made, text + 3) && regcomp(&m->regex, made, REG_EXTENDED | REG_NOSUB) == 0;
    } else if (good && strchr(text, '*')) {
        snprintf(made, m->length + 3, "%s.*", text);
        m->inside = made;
        return true;
    }
    free(made);
    if (!good)
        *m = (struct fm_modules){0};
    return good;
}

void fm_modules_release(struct fm_modules *m)
{
    if (m->expression)
        regfree(&m->regex);
    free(m->inside);
    *m = (struct fm_modules){0};
}

bool fm_modules_match(const struct fm_modules *m, const char *module)
{
    if (!m->text)
        return false;
    if (m->expression)
        return regexec(&m->regex, module, 0, NULL, 0) == 0;
    if (!m->inside)
        return strncmp(m->text, module, m->length) == 0 &&
               (module[m->length] == '\0' || module[m->length] == '.');
    return fnmatch(m->text, module, 0) == 0 || fnmatch(m->inside, module, 0) == 0;
}
