/*
 * Each known pattern is a function that returns the length of the next word, written branch by
 * branch as its regular expression is.  Classes of characters come from one table of all code
 * points.  It is written by hand because a general engine may take exponential time on a
 * stranger's text, and would be slower on everybody else's.
 */
#include "formats/text/pretoken.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "formats/text/unicode.h"

#define QWEN2(digits)                                                                              \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                           \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

enum fm_pretoken fm_pretoken_named(const char *pattern)
{
    if (strcmp(pattern, QWEN2("\\p{N}")) == 0)
        return FM_PRETOKEN_QWEN2;
    if (strcmp(pattern, QWEN2("\\p{N}{1,3}")) == 0)
        return FM_PRETOKEN_LLAMA3;
    if (strcmp(pattern,
               "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|"
               "\\s+") == 0)
        return FM_PRETOKEN_GPT2;
    return FM_PRETOKEN_NONE;
}

/* A text with the classes of its characters; size ends it. */
struct scan {
    const char *text;
    size_t size;
    const unsigned char *class;
};

/* Class and length of the character at `at`; 0, 0 at the end. */
static int class_at(const struct scan *s, size_t at, size_t *next)
{
    int bytes = 0;
    *next = at;
    if (at == s->size)
        return 0;
    uint32_t c = fm_unicode_at(s->text + at, &bytes);
    *next = at + (size_t)bytes;
    return s->class[c] & (FM_LETTER | FM_NUMBER | FM_SPACE | FM_NEWLINE);
}

/* Past all characters from `at` that have one of these classes. */
static size_t skip(const struct scan *s, size_t at, int classes)
{
    size_t next;
    while (class_at(s, at, &next) & classes)
        at = next;
    return at;
}

/* Past characters that are neither letters, numbers nor white space. */
static size_t skip_signs(const struct scan *s, size_t at)
{
    for (size_t next;
         at < s->size && !(class_at(s, at, &next) & (FM_LETTER | FM_NUMBER | FM_SPACE));)
        at = next;
    return at;
}

/* 's 't 're 've 'm 'll 'd: its length, or 0.  Without regard to case U+017F is an s too. */
static size_t contraction(const struct scan *s, bool any_case)
{
    unsigned char c[3] = {0};
    if (s->size < 2 || s->text[0] != '\'')
        return 0;
    memcpy(c, s->text, s->size < 3 ? s->size : 3);
    if (any_case && c[1] == 0xc5 && c[2] == 0xbf)
        return 3;
    for (int i = 1; i < 3 && any_case; i++)
        c[i] |= c[i] >= 'A' && c[i] <= 'Z' ? 0x20 : 0;
    if (strchr("stmd", c[1]) && c[1])
        return 2;
    bool two = (c[1] == 'r' && c[2] == 'e') || (c[1] == 'v' && c[2] == 'e') ||
               (c[1] == 'l' && c[2] == 'l');
    return two ? 3 : 0;
}

/* \s+(?!\S)|\s+: all of a run at the end, else all but its last character. */
static size_t spaces(const struct scan *s)
{
    size_t at = 0, last = 0, next;
    while (class_at(s, at, &next) & FM_SPACE) {
        last = at;
        at = next;
    }
    return at == s->size || last == 0 ? at : last;
}

static size_t next_gpt2(const struct scan *s)
{
    size_t first, n = contraction(s, false);
    if (n)
        return n;
    size_t begin = s->text[0] == ' ' ? 1 : 0;
    int class = class_at(s, begin, &first);
    if (class & FM_LETTER)
        return skip(s, first, FM_LETTER);
    if (class & FM_NUMBER)
        return skip(s, first, FM_NUMBER);
    if (first > begin && !(class & FM_SPACE))
        return skip_signs(s, first);
    return spaces(s);
}

static size_t numbers(const struct scan *s, size_t at, int most)
{
    size_t next;
    for (int i = 1; i < most && (class_at(s, at, &next) & FM_NUMBER); i++)
        at = next;
    return at;
}

/* \s*[\r\n]+: past the last line end of the run of white space, or 0. */
static size_t line_end(const struct scan *s)
{
    size_t end = 0, next;
    int class;
    for (size_t at = 0; (class = class_at(s, at, &next)) & FM_SPACE; at = next)
        if (class & FM_NEWLINE)
            end = next;
    return end;
}

static size_t next_qwen2(const struct scan *s, int digits)
{
    size_t first, second, n = contraction(s, true);
    if (n)
        return n;
    int class = class_at(s, 0, &first), behind = class_at(s, first, &second);
    if (class & FM_LETTER)
        return skip(s, first, FM_LETTER);
    if (class & FM_NUMBER)
        return numbers(s, first, digits);
    if (!(class & FM_NEWLINE) && (behind & FM_LETTER))
        return skip(s, second, FM_LETTER);
    if (!(class & FM_SPACE))
        return skip(s, skip_signs(s, first), FM_NEWLINE);
    if (s->text[0] == ' ' && second > first && !(behind & (FM_NUMBER | FM_SPACE)))
        return skip(s, skip_signs(s, second), FM_NEWLINE);
    n = line_end(s);
    return n ? n : spaces(s);
}

size_t fm_pretoken_next(enum fm_pretoken kind, const char *text, size_t size)
{
    struct scan s = {text, size, fm_unicode_classes()};
    assert(size > 0);
    if (kind == FM_PRETOKEN_GPT2)
        return next_gpt2(&s);
    if (kind == FM_PRETOKEN_NONE)
        return size;
    return next_qwen2(&s, kind == FM_PRETOKEN_LLAMA3 ? 3 : 1);
}
