/* Regular expressions are Python's in the checkpoints, and POSIX's extended ones here. */
#include "lib/block/modules.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Copy an expression with (?: written as ( and \d as [0-9]; false if it has another (? of Python's,
 * which POSIX would read as something else. */
static bool translate(char *posix, const char *python)
{
    while (*python) {
        if (strncmp(python, "(?", 2) == 0) {
            if (python[2] != ':')
                return false;
            *posix++ = '(';
            python += 3;
        } else if (strncmp(python, "\\d", 2) == 0) {
            posix = stpcpy(posix, "[0-9]");
            python += 2;
        } else {
            if (*python == '\\' && python[1])
                *posix++ = *python++;
            *posix++ = *python++;
        }
    }
    *posix = '\0';
    return true;
}

bool fm_modules_read(struct fm_modules *m, const char *text)
{
    *m = (struct fm_modules){.text = text, .length = strlen(text)};
    m->expression = strncmp(text, "re:", 3) == 0;
    char *made = malloc(3 * m->length + 3); /* room for "[0-9]" instead of "\d", and for ".*" */
    bool good = made;
    if (good && m->expression) {
        good = translate(made, text + 3) && regcomp(&m->regex, made, REG_EXTENDED) == 0;
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
    regmatch_t match[1];
    if (!m->text)
        return false;
    if (m->expression)
        return regexec(&m->regex, module, 1, match, 0) == 0 && match[0].rm_so == 0;
    if (!m->inside)
        return strncmp(m->text, module, m->length) == 0 &&
               (module[m->length] == '\0' || module[m->length] == '.');
    return fnmatch(m->text, module, 0) == 0 || fnmatch(m->inside, module, 0) == 0;
}
