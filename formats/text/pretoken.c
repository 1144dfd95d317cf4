/*
 * Each pattern of words is a function that returns the length of the next word, with one branch for
 * each alternative of its regular expression.  Classes of characters come from one table of all
 * code points.  The functions are written by hand because a general engine may take
 * exponential time on hostile text and is slower on ordinary text.  A pattern that is one class,
 * such as DeepSeek's for digits and scripts, is parsed into ranges and properties.
 */
#include "formats/text/pretoken.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "formats/text/unicode.h"

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORDS(letters, digits) CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" digits
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

/* Indexed by kind; a carriage return or line feed in the compared pattern may be a literal
 * character. */
static const char *const patterns[] = {
    [FM_PRETOKEN_GPT2] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                         "\\s+(?!\\S)|\\s+",
    [FM_PRETOKEN_QWEN2] = WORDS("\\p{L}", "\\p{N}") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
    [FM_PRETOKEN_LLAMA3] = WORDS("\\p{L}", "\\p{N}{1,3}") "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES,
    [FM_PRETOKEN_QWEN35] =
        WORDS("[\\p{L}\\p{M}]", "\\p{N}") "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES,
    [FM_PRETOKEN_O200K] = "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "?|"
                          "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION "?|"
                          "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
    [FM_PRETOKEN_DEEPSEEK] = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
                             "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
                             "[\\r\\n]*" SPACES,
    [FM_PRETOKEN_TAIL] = "\\s+$",
};

static bool same_pattern(const char *pattern, const char *known)
{
    for (; *pattern && *known; pattern++, known++) {
        char as = *pattern == '\r' ? 'r' : *pattern == '\n' ? 'n' : '\0';
        if (as && known[0] == '\\' && known[1] == as)
            known++;
        else if (*pattern != *known)
            return false;
    }
    return !*pattern && !*known;
}

/* --- one class --- */

/* Read a character of a class at *at; 0 if it is not a character that we support. */
static uint32_t class_point(const char **at)
{
    int bytes = 1;
    uint32_t c;
    if ((*at)[0] == '\\') {
        const char *escaped = (*at)[1] ? strchr("rn-[]\\^.$|", (*at)[1]) : NULL;
        *at += escaped ? 2 : 0;
        return !escaped ? 0 : *escaped == 'r' ? '\r' : *escaped == 'n' ? '\n' : (uint32_t)*escaped;
    }
    if (strchr("[]^-&", (*at)[0])) /* true for the final NUL too */
        return 0;
    c = fm_unicode_at(*at, &bytes);
    *at += bytes;
    return c;
}

static bool add_range(struct fm_pretoken *p, const char **at)
{
    uint32_t first = class_point(at), last = first;
    if (first && (*at)[0] == '-' && (*at)[1] != ']') {
        (*at)++;
        last = class_point(at);
    }
    if (!first || last < first || p->ranges == FM_PRETOKEN_RANGES_MAX)
        return false;
    p->range[2 * p->ranges] = first;
    p->range[2 * p->ranges++ + 1] = last;
    return true;
}

static bool add_property(struct fm_pretoken *p, const char **at)
{
    static const struct {
        char name;
        uint16_t bits;
    } known[] = {{'L', FM_LETTER}, {'N', FM_NUMBER}, {'M', FM_MARK}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char name[] = {'\\', 'p', '{', known[i].name, '}', '\0'};
        if (strncmp(*at, name, 5) == 0) {
            p->bits |= known[i].bits;
            *at += 5;
            return true;
        }
    }
    return false;
}

static int by_first(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static bool parse_run(struct fm_pretoken *p, const char *at)
{
    p->kind = FM_PRETOKEN_RUN;
    p->space = strncmp(at, "\\s?", 3) == 0;
    at += p->space ? 3 : 0;
    if (*at == '[') {
        for (at++; *at != ']';)
            if (!add_property(p, &at) && !add_range(p, &at))
                return false;
        at++;
    } else if (!add_property(p, &at)) {
        return false;
    }
    qsort(p->range, p->ranges, 2 * sizeof *p->range, by_first);
    for (uint32_t *last = p->range + 1, i = 1; i < p->ranges; i++, last += 2)
        last[2] = last[2] < last[0] ? last[0] : last[2]; /* ranges may overlap */
    p->most = *at == '+' ? UINT32_MAX : strcmp(at, "{1,3}") == 0 ? 3 : 1;
    return !*at || strcmp(at, "+") == 0 || p->most == 3;
}

bool fm_pretoken_parse(struct fm_pretoken *p, const char *pattern)
{
    *p = (struct fm_pretoken){.kind = FM_PRETOKEN_RUN, .bits = FM_DIGIT, .most = 1};
    if (strcmp(pattern, FM_PRETOKEN_DIGITS) == 0)
        return true;
    p->bits = 0;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (same_pattern(pattern, patterns[i])) {
            p->kind = (unsigned)i;
            return true;
        }
    if (strcmp(pattern, FM_PRETOKEN_BYTE_LEVEL) == 0) {
        p->kind = FM_PRETOKEN_GPT2;
        return true;
    }
    return parse_run(p, pattern);
}

/* --- scanning --- */

#define NO_SIGN (FM_LETTER | FM_NUMBER | FM_SPACE)

/* A text of `size` bytes, and the table of classes of all code points. */
struct scan {
    const char *text;
    size_t size;
    const uint16_t *class;
};

/* The classes of the character at `at`, and its end; 0 and `at` at the end of the text. */
static int class_at(const struct scan *s, size_t at, size_t *next)
{
    int bytes = 0;
    *next = at;
    if (at == s->size)
        return 0;
    uint32_t c = fm_unicode_at(s->text + at, &bytes);
    *next = at + (size_t)bytes;
    return s->class[c];
}

/* Skip all characters from `at` on that have one of these classes. */
static size_t skip(const struct scan *s, size_t at, int classes)
{
    size_t next;
    while (class_at(s, at, &next) & classes)
        at = next;
    return at;
}

/* Skip all characters from `at` on that have none of these classes. */
static size_t skip_others(const struct scan *s, size_t at, int classes)
{
    for (size_t next; at < s->size && !(class_at(s, at, &next) & classes);)
        at = next;
    return at;
}

/* The length of a match of 's 't 're 've 'm 'll 'd, or 0.  Ignoring case, U+017F counts as an s. */
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
        return skip_others(s, first, NO_SIGN);
    return spaces(s);
}

static size_t numbers(const struct scan *s, size_t at, int most)
{
    size_t next;
    for (int i = 1; i < most && (class_at(s, at, &next) & FM_NUMBER); i++)
        at = next;
    return at;
}

/* \s*[\r\n]+: the position after the last line end of the run of white space, or 0. */
static size_t line_end(const struct scan *s)
{
    size_t end = 0, next;
    int class;
    for (size_t at = 0; (class = class_at(s, at, &next)) & FM_SPACE; at = next)
        if (class & FM_NEWLINE)
            end = next;
    return end;
}

/* `letters`: the classes of characters of words. */
static size_t next_qwen2(const struct scan *s, int letters, int digits)
{
    size_t first, second, n = contraction(s, true);
    int others = letters | FM_NUMBER | FM_SPACE;
    if (n)
        return n;
    int class = class_at(s, 0, &first), following = class_at(s, first, &second);
    if (class & FM_LETTER)
        return skip(s, first, letters);
    if (class & FM_NUMBER)
        return numbers(s, first, digits);
    if (!(class & FM_NEWLINE) && ((class | following) & letters))
        return skip(s, first, letters);
    if (!(class & FM_SPACE))
        return skip(s, skip_others(s, first, others), FM_NEWLINE);
    if (s->text[0] == ' ' && second > first && !(following & (FM_NUMBER | FM_SPACE)))
        return skip(s, skip_others(s, second, others), FM_NEWLINE);
    n = line_end(s);
    return n ? n : spaces(s);
}

/* Skip characters of UPPER, or LOWER: all letters and marks except those of the other case.  *both
 * becomes the end of the last one that belongs to both. */
static size_t skip_case(const struct scan *s, size_t at, int other, size_t *both)
{
    size_t next;
    int class;
    while ((class = class_at(s, at, &next)) & (FM_LETTER | FM_MARK) && !(class & other)) {
        at = next;
        *both = class & (FM_UPPER | FM_LOWER) ? *both : at;
    }
    return at;
}

/* UPPER*LOWER+: its end, or 0.  If no LOWER follows, UPPER* backtracks to the end of the
 * last character that is in both classes. */
static size_t lower_word(const struct scan *s, size_t from)
{
    size_t both = 0, ignored, at = skip_case(s, from, FM_LOWER, &both);
    return class_at(s, at, &ignored) & FM_LOWER ? skip_case(s, at, FM_UPPER, &ignored) : both;
}

/* UPPER+LOWER* if lower_word did not match: its end, or 0. */
static size_t upper_word(const struct scan *s, size_t from)
{
    size_t ignored, at = skip_case(s, from, FM_LOWER, &ignored);
    return at > from ? at : 0;
}

static size_t next_o200k(const struct scan *s)
{
    size_t first, second;
    int class = class_at(s, 0, &first);
    bool front = !(class & (FM_NEWLINE | FM_LETTER | FM_NUMBER));
    size_t end = front ? lower_word(s, first) : 0;
    end = end ? end : lower_word(s, 0);
    end = end || !front ? end : upper_word(s, first);
    end = end ? end : upper_word(s, 0);
    if (end) {
        struct scan rest = {s->text + end, s->size - end, s->class};
        return end + contraction(&rest, true);
    }
    if (class & FM_NUMBER)
        return numbers(s, first, 3);
    if (s->text[0] == ' ' && first < s->size && !(class_at(s, first, &second) & NO_SIGN))
        first = second;
    else if (class & FM_SPACE)
        return line_end(s) ? line_end(s) : spaces(s);
    for (first = skip_others(s, first, NO_SIGN);
         first < s->size && strchr("\r\n/", s->text[first]);)
        first++;
    return first;
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The length of a match at the beginning of the text, 0: none. */
static size_t match_deepseek(const struct scan *s)
{
    size_t first, second, n = 1;
    int class = class_at(s, 0, &first), following = class_at(s, first, &second);
    if (class & FM_SIGN && s->size > 1 && s->text[0] > 0 && is_ascii_letter(s->text[1])) {
        while (n < s->size && is_ascii_letter(s->text[n]))
            n++;
        return n;
    }
    if (class & (FM_LETTER | FM_MARK))
        return skip(s, first, FM_LETTER | FM_MARK);
    if (!(class & (FM_NEWLINE | FM_SIGN)) && following & (FM_LETTER | FM_MARK))
        return skip(s, second, FM_LETTER | FM_MARK);
    if (class & FM_SIGN || (s->text[0] == ' ' && following & FM_SIGN))
        return skip(s, skip(s, first, FM_SIGN), FM_NEWLINE);
    n = line_end(s);
    return n ? n : spaces(s);
}

/* \s+$: a run of white space up to the end of the text or to its last line feed, or what is before
 * such a run. */
static size_t next_tail(const struct scan *s)
{
    size_t at = 0, next;
    while (at < s->size) {
        size_t begin = at, end = 0;
        for (; class_at(s, at, &next) & FM_SPACE; at = next)
            end = at > begin && s->text[at] == '\n' ? at : end;
        end = at == s->size && at > begin ? at : end;
        if (end)
            return begin > 0 ? begin : end;
        if (at < s->size)
            class_at(s, at, &at);
    }
    return s->size;
}

static bool is_of(const struct fm_pretoken *p, uint32_t c, int class)
{
    uint32_t low = 0, high = p->ranges;
    if (class & p->bits)
        return true;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (c > p->range[2 * middle + 1])
            low = middle + 1;
        else if (c < p->range[2 * middle])
            high = middle;
        else
            return true;
    }
    return false;
}

/* Skip as many characters of the class as a piece may have. */
static size_t run(const struct fm_pretoken *p, const struct scan *s, size_t at)
{
    int bytes;
    for (uint32_t n = 0; n < p->most && at < s->size; n++, at += (size_t)bytes) {
        uint32_t c = fm_unicode_at(s->text + at, &bytes);
        if (!is_of(p, c, s->class[c]))
            break;
    }
    return at;
}

static size_t match_run(const struct fm_pretoken *p, const struct scan *s)
{
    size_t first = 0, end;
    if (p->space && class_at(s, 0, &first) & FM_SPACE && (end = run(p, s, first)) > first)
        return end;
    return run(p, s, 0);
}

/* A match at the beginning, or the text before the first one. */
static size_t match_or_gap(const struct fm_pretoken *p, const struct scan *s)
{
    struct scan rest = *s;
    for (size_t next; rest.size > 0; rest.text += next, rest.size -= next) {
        size_t n = p->kind == FM_PRETOKEN_RUN ? match_run(p, &rest) : match_deepseek(&rest);
        if (n > 0)
            return rest.text > s->text ? (size_t)(rest.text - s->text) : n;
        class_at(&rest, 0, &next);
    }
    return s->size;
}

size_t fm_pretoken_next(const struct fm_pretoken *p, const char *text, size_t size)
{
    struct scan s = {text, size, fm_unicode_classes()};
    assert(size > 0);
    switch (p->kind) {
    case FM_PRETOKEN_GPT2:
        return next_gpt2(&s);
    case FM_PRETOKEN_QWEN2:
        return next_qwen2(&s, FM_LETTER, 1);
    case FM_PRETOKEN_LLAMA3:
        return next_qwen2(&s, FM_LETTER, 3);
    case FM_PRETOKEN_QWEN35:
        return next_qwen2(&s, FM_LETTER | FM_MARK, 1);
    case FM_PRETOKEN_O200K:
        return next_o200k(&s);
    case FM_PRETOKEN_TAIL:
        return next_tail(&s);
    case FM_PRETOKEN_DEEPSEEK:
    case FM_PRETOKEN_RUN:
        return match_or_gap(p, &s);
    }
    return size;
}
