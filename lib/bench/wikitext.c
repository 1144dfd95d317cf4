/* The task's replacements, in order, each over the whole text, like Python's str.replace and
 * re.sub. */
#include "lib/bench/wikitext.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

/* The length of the white space character at text; 0 if it is not white space.  White space is
 * what \s matches in Python, as in str.isspace(): the separators of Unicode, and control
 * characters 9 to 13, 28 to 31 and 133. */
static size_t space(const char *text, const char *end)
{
    const unsigned char *c = (const unsigned char *)text;
    if (text == end)
        return 0;
    if ((c[0] >= 9 && c[0] <= 13) || (c[0] >= 28 && c[0] <= 32))
        return 1;
    if (end - text >= 2 && c[0] == 0xc2 && (c[1] == 0x85 || c[1] == 0xa0))
        return 2;
    if (end - text < 3 || c[0] < 0xe1 || c[0] > 0xe3)
        return 0;
    unsigned code = (c[0] & 15u) << 12 | (c[1] & 63u) << 6 | (c[2] & 63u);
    bool is = code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
              code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
    return is ? 3 : 0;
}

uint64_t fm_wikitext_words(const char *text, size_t size)
{
    uint64_t words = 1;
    const char *end = text + size;
    bool inside = false;
    for (const char *at = text; at < end;) {
        size_t n = space(at, end);
        words += n && !inside;
        inside = n > 0;
        at += n ? n : 1;
    }
    return words;
}

/* A text that is being changed: `to` has room for the result of every replacement. */
struct change {
    const char *from, *end;
    char *to;
};

/* Copy the text to `to` with `a` replaced by `b`; returns the end of the copy. */
static char *replace(const struct change *c, const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    char *to = c->to;
    for (const char *at = c->from; at < c->end;) {
        if ((size_t)(c->end - at) >= n && memcmp(at, a, n) == 0) {
            memcpy(to, b, m);
            to += m;
            at += n;
        } else {
            *to++ = *at++;
        }
    }
    return to;
}

/* re.sub(r"/' [0-9]/", r"/'[0-9]/", text): the replacement is these literal characters. */
static char *replace_digit(const struct change *c)
{
    static const char by[] = "/'[0-9]/";
    char *to = c->to;
    for (const char *at = c->from; at < c->end;) {
        if (c->end - at >= 5 && memcmp(at, "/' ", 3) == 0 && at[3] >= '0' && at[3] <= '9' &&
            at[4] == '/') {
            memcpy(to, by, sizeof by - 1);
            to += sizeof by - 1;
            at += 5;
        } else {
            *to++ = *at++;
        }
    }
    return to;
}

/* The end of the text [from, at) without its trailing white space. */
static const char *trim_end(const char *from, const char *at)
{
    while (at > from) {
        const char *before = at - 1;
        while (before > from && ((unsigned char)*before & 0xc0) == 0x80)
            before--;
        if (space(before, at) != (size_t)(at - before))
            break;
        at = before;
    }
    return at;
}

/* re.sub of OPEN\s*([^CLOSE]*?)\s*CLOSE with OPEN\1CLOSE: white space just inside OPEN and the next
 * CLOSE is removed; an OPEN without a CLOSE is not changed. */
static char *trim_between(const struct change *c, char open, char close)
{
    char *to = c->to;
    bool closes = true; /* there may be a CLOSE in the rest of the text */
    for (const char *at = c->from; at < c->end;) {
        bool opens = closes && *at == open;
        const char *last = opens ? memchr(at + 1, close, (size_t)(c->end - at - 1)) : NULL;
        *to++ = *at++;
        if (!last) {
            closes = closes && !opens;
            continue;
        }
        for (size_t n; (n = space(at, last)) > 0;)
            at += n;
        size_t kept = (size_t)(trim_end(at, last) - at);
        memcpy(to, at, kept);
        to += kept;
        *to++ = close;
        at = last + 1;
    }
    return to;
}

int fm_wikitext_detokenise(char **text, size_t *size, struct fm_err *err)
{
    static const struct {
        const char *a, *b; /* b NULL: trim_between(a[0], a[1]); a NULL: replace_digit */
    } step[] = {
        {"s '", "s'"},       {NULL, NULL},     {" @-@ ", "-"}, {" @,@ ", ","},
        {" @.@ ", "."},      {" : ", ": "},    {" ; ", "; "},  {" . ", ". "},
        {" ! ", "! "},       {" ? ", "? "},    {" , ", ", "},  {"()", NULL},
        {"[]", NULL},        {"{}", NULL},     {"\"\"", NULL}, {"''", NULL},
        {"= = = =", "===="}, {"= = =", "==="}, {"= =", "=="},  {" \xc2\xb0 ", "\xc2\xb0"},
        {" \n", "\n"},       {"\n ", "\n"},    {" N ", " 1 "}, {" 's", "'s"},
    };
    /* Only replace_digit makes a text longer: 5 bytes become 8. */
    char *other = fm_alloc(*size / 5 * 8 + 8, 1, "a page", err);
    char *own = other ? fm_alloc(*size / 5 * 8 + 8, 1, "a page", err) : NULL;
    if (!own) {
        free(other);
        return err->code;
    }
    memcpy(own, *text, *size);
    for (size_t i = 0; i < sizeof step / sizeof step[0]; i++) {
        struct change c = {own, own + *size, other};
        char *end = !step[i].a  ? replace_digit(&c)
                    : step[i].b ? replace(&c, step[i].a, step[i].b)
                                : trim_between(&c, step[i].a[0], step[i].a[1]);
        *size = (size_t)(end - other);
        other = own;
        own = c.to;
    }
    free(other);
    free(*text);
    own[*size] = '\0';
    *text = own;
    return FM_OK;
}
