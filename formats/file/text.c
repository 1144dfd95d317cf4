/*
 * A failed addition is recorded in the text, not returned: printing a card of a hundred lines takes
 * a hundred calls and needs only one check at the end.
 */
#include "formats/file/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "lib/base/mem.h"

#define FIRST_BYTES 1024

/* Make room for `more` bytes and the NUL. */
static bool reserve(struct fm_text *t, size_t more)
{
    size_t need = 0;
    if (t->failed || !fm_add(&need, t->size, more) || !fm_add(&need, need, 1))
        return !(t->failed = true);
    if (t->data && need <= t->capacity)
        return true;
    struct fm_err unused = {0};
    if (!t->data && need < FIRST_BYTES)
        need = FIRST_BYTES;
    t->failed = FM_GROW(t->data, t->capacity, need, "text", &unused);
    return !t->failed;
}

void fm_text_add(struct fm_text *t, const char *bytes, size_t size)
{
    if (!reserve(t, size))
        return;
    memcpy(t->data + t->size, bytes, size);
    t->size += size;
    t->data[t->size] = 0;
}

void fm_text_printf(struct fm_text *t, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    if (n < 0)
        t->failed = true;
    else if (reserve(t, (size_t)n))
        t->size += (size_t)vsnprintf(t->data + t->size, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(ap);
}

void fm_text_quote(struct fm_text *t, const char *s)
{
    static const char letters[0x20] = {
        ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r'};
    fm_text_add(t, "\"", 1);
    const char *plain = s;
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        fm_text_add(t, plain, (size_t)(s - plain));
        plain = s + 1;
        if (c >= 0x20)
            fm_text_printf(t, "\\%c", c);
        else if (letters[c])
            fm_text_printf(t, "\\%c", letters[c]);
        else
            fm_text_printf(t, "\\u%04x", c);
    }
    fm_text_add(t, plain, (size_t)(s - plain));
    fm_text_add(t, "\"", 1);
}
