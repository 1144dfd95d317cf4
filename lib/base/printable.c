/*
 * Makes strings from files safe to print on a terminal, which would interpret control characters.
 * Control characters, marks that reverse or hide text, and bytes that are not UTF-8 become '?' in
 * text and \u escapes in JSON; the rest is copied.
 */
#include "lib/base/printable.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/utf8.h"

#define ESCAPE_BYTES 13 /* a surrogate pair of \uXXXX escapes and a NUL */

/* fm_utf8_decode in a string, whose NUL ends a character that is cut off. */
static int decode(const char *s, uint32_t *c)
{
    return fm_utf8_decode(s, SIZE_MAX, c);
}

static bool is_harmless(uint32_t c)
{
    static const uint32_t harm[][2] = {{0, 0x1f},        {0x7f, 0x9f},      {0xad, 0xad},
                                       {0x61c, 0x61c},   {0x180e, 0x180e},  {0x200b, 0x200f},
                                       {0x2028, 0x202e}, {0x2060, 0x206f},  {0xfeff, 0xfeff},
                                       {0xfff9, 0xfffb}, {0xe0000, 0xe007f}};
    for (size_t i = 0; i < sizeof harm / sizeof *harm; i++)
        if (c >= harm[i][0] && c <= harm[i][1])
            return false;
    return true;
}

void fm_printable(char *text, bool lines)
{
    uint32_t c = 0;
    for (char *at = text; *at;) {
        int n = decode(at, &c);
        if (n == 0 || !(is_harmless(c) || (lines && c == '\n')))
            memset(at, '?', n ? (size_t)n : 1);
        at += n ? n : 1;
    }
}

void fm_printable_write(FILE *out, const char *text)
{
    uint32_t c = 0;
    for (const char *at = text; *at;) {
        int n = decode(at, &c), size = n ? n : 1;
        fwrite(n && is_harmless(c) ? at : "????", 1, (size_t)size, out);
        at += size;
    }
}

static int escape(char out[ESCAPE_BYTES], uint32_t c)
{
    if (c < 0x10000)
        return snprintf(out, ESCAPE_BYTES, "\\u%04x", (unsigned)c);
    c -= 0x10000;
    return snprintf(out, ESCAPE_BYTES, "\\u%04x\\u%04x", 0xd800u + (unsigned)(c >> 10),
                    0xdc00u + (unsigned)(c & 0x3ff));
}

char *fm_printable_json(const char *json)
{
    size_t size = strlen(json);
    uint32_t c = 0;
    /* The worst case: every byte becomes an escape of six bytes. */
    char *text = size < SIZE_MAX / 6 ? malloc(6 * size + 1) : NULL, *to = text;
    for (const char *at = json; text && *at;) {
        int n = decode(at, &c);
        if (n > 0 && (is_harmless(c) || c == '\n')) {
            memcpy(to, at, (size_t)n);
            to += n;
        } else {
            char out[ESCAPE_BYTES];
            int size_out = escape(out, n ? c : 0xfffd);
            memcpy(to, out, (size_t)size_out);
            to += size_out;
        }
        at += n ? n : 1;
    }
    if (text)
        *to = '\0';
    return text;
}
