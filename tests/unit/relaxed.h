/* Relaxed JSON, which needs no escaped quotes in tests: "{hidden_size:8,types:['full']}" stands for
 * {"hidden_size":8,"types":["full"]}. */
#ifndef FM_TESTS_RELAXED_H
#define FM_TESTS_RELAXED_H

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "tests/unit/test.h"

/* Write the JSON text that `relaxed` stands for; returns text. */
static inline char *relaxed_json(char *text, size_t size, const char *relaxed)
{
    size_t at = 0;
    bool quoted = false;
    while (*relaxed) {
        size_t n =
            strspn(relaxed, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        bool key = !quoted && n && relaxed[n] == ':';
        n += !n;
        assert_in_range(at + n + 2, 0, size - 1);
        if (*relaxed == '\'' || *relaxed == '"') {
            quoted = !quoted;
            text[at++] = '"';
        } else {
            at += (size_t)sprintf(text + at, key ? "\"%.*s\"" : "%.*s", (int)n, relaxed);
        }
        relaxed += n;
    }
    text[at] = 0;
    return text;
}

#endif
