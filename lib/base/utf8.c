/* A character of n bytes has n - 1 tails of six bits, and in its lead byte the bits above them. */
#include "lib/base/utf8.h"

#include <assert.h>

int fm_utf8_decode(const char *s, size_t left, uint32_t *c)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char lead = (unsigned char)s[0];
    int n = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (n == 0 || lead > 0xf4 || left < (size_t)n)
        return 0;
    *c = n == 1 ? lead : lead & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* true for a NUL, too */
            return 0;
        *c = *c << 6 | (s[i] & 0x3fu);
    }
    return *c < least[n] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000) ? 0 : n;
}

int fm_utf8_encode(char out[4], uint32_t c)
{
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    assert(c <= 0x10ffff);
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)(lead[n] | c);
    return n;
}
