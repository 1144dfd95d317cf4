/*
 * Reads the licence of a model card from the few forms of YAML that cards use: a word, or a list
 * on several lines or in brackets, with either kind of line ending, and comments.  A value in any
 * other form is left out.
 */
#include "lib/export/frontmatter.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A part of a card, [at, end). */
struct span {
    const char *at, *end;
};

static struct span trim(struct span s)
{
    while (s.at < s.end && (*s.at == ' ' || *s.at == '\t'))
        s.at++;
    while (s.end > s.at && strchr(" \t\r", s.end[-1]))
        s.end--;
    return s;
}

/* Leave out a comment: a # at the start or after white space, outside of quotes. */
static struct span uncomment(struct span s)
{
    char quote = '\0';
    for (const char *at = s.at; at < s.end; at++) {
        if (quote ? *at == quote : *at == '"' || *at == '\'')
            quote = quote ? '\0' : *at;
        else if (!quote && *at == '#' && (at == s.at || at[-1] == ' ' || at[-1] == '\t'))
            s.end = at;
    }
    return trim(s);
}

/* The line at *next, without its end; *next is advanced past it. */
static struct span take_line(const char **next)
{
    struct span line = {*next, *next + strcspn(*next, "\n")};
    *next = line.end + (*line.end == '\n');
    return line;
}

static bool is_fence(struct span line)
{
    line = trim(line);
    return line.end - line.at == 3 && memcmp(line.at, "---", 3) == 0;
}

/* Text being built; once a part does not fit, nothing more is added. */
struct list {
    char *text;
    size_t capacity, used;
    bool failed;
    int words;
};

static void add(struct list *l, const char *before, struct span s, const char *after)
{
    size_t left = l->capacity - l->used;
    int n = snprintf(l->text + l->used, left, "%s%.*s%s", before, (int)(s.end - s.at), s.at, after);
    l->failed |= n < 0 || (size_t)n >= left;
    l->used += l->failed ? 0 : (size_t)n;
}

/* One word, in quotes or not. */
static void add_word(struct list *l, const char *before, struct span s)
{
    s = trim(s);
    if (s.end - s.at >= 2 && (*s.at == '"' || *s.at == '\'') && s.end[-1] == *s.at) {
        s.at++;
        s.end--;
    }
    size_t n = (size_t)(s.end - s.at);
    if (n == 0 || strspn(s.at, FM_FRONTMATTER_LETTERS ":") < n)
        l->failed = true;
    else if (!l->failed)
        add(l, before, s, "\n");
    l->words++;
}

/* [a, b] */
static void add_flow(struct list *l, struct span s)
{
    s.at++;
    s.end--;
    while (s.at <= s.end && !l->failed) {
        const char *comma = memchr(s.at, ',', (size_t)(s.end - s.at));
        add_word(l, "- ", (struct span){s.at, comma ? comma : s.end});
        s.at = comma ? comma + 1 : s.end + 1;
    }
}

/* A word on each of the next lines, after "- ". */
static void add_block(struct list *l, const char *next)
{
    while (*next && !l->failed) {
        struct span line = uncomment(take_line(&next));
        if (line.at == line.end && *next)
            continue;
        if (line.end - line.at < 2 || line.at[0] != '-' || line.at[1] != ' ')
            break;
        add_word(l, "- ", (struct span){line.at + 2, line.end});
    }
    l->failed |= l->words == 0;
}

static void add_value(struct list *l, const char *key, struct span value, const char *next)
{
    struct span name = {key, key + strlen(key)};
    bool flow = value.end - value.at >= 2 && *value.at == '[' && value.end[-1] == ']';
    bool list = flow || value.at == value.end;
    add(l, "", name, list ? ":\n" : ": ");
    if (flow)
        add_flow(l, value);
    else if (list)
        add_block(l, next);
    else
        add_word(l, "", value);
}

bool fm_frontmatter_repeat(char *text, size_t capacity, const char *card, const char *key)
{
    size_t size = strlen(key), before = strlen(text);
    assert(before < capacity);
    if (strncmp(card, "\xef\xbb\xbf", 3) == 0)
        card += 3;
    if (!is_fence(take_line(&card)))
        return false;
    while (*card) {
        struct span line = take_line(&card);
        if (is_fence(line))
            return false;
        if ((size_t)(line.end - line.at) <= size || memcmp(line.at, key, size) != 0 ||
            line.at[size] != ':')
            continue;
        struct list l = {.text = text, .capacity = capacity, .used = before};
        add_value(&l, key, uncomment((struct span){line.at + size + 1, line.end}), card);
        if (l.failed)
            text[before] = '\0';
        return !l.failed;
    }
    return false;
}
