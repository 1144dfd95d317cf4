#include "formats/json/jsonedit.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"

/* What a walk over the object finds, as offsets into the text. */
struct spans {
    size_t first, first_end; /* white space in front of the first key */
    size_t from, to;         /* value of the key looked for; 0, 0: it is not there */
    size_t last;             /* end of the last value */
    bool empty;
};

static size_t skip_space(const char *text, size_t at, size_t size)
{
    while (at < size && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    return at;
}

static int walk(struct spans *s, const char *text, size_t size, const char *key, struct fm_err *err)
{
    struct fm_json j;
    fm_json_init(&j, text, size);
    int rc = fm_json_expect(&j, '{', err);
    if (rc != FM_OK)
        return rc;
    s->first = s->last = (size_t)(j.at - text);
    s->first_end = skip_space(text, s->first, size);
    s->empty = s->first_end < size && text[s->first_end] == '}';
    if (s->empty)
        return FM_OK;
    do {
        char name[1024];
        rc = fm_json_string(&j, name, sizeof name, err);
        if (rc == FM_OK)
            rc = fm_json_expect(&j, ':', err);
        if (rc != FM_OK)
            return rc;
        size_t from = skip_space(text, (size_t)(j.at - text), size);
        rc = fm_json_skip(&j, err);
        if (rc != FM_OK)
            return rc;
        s->last = (size_t)(j.at - text);
        if (strcmp(name, key) == 0) {
            s->from = from;
            s->to = s->last;
        }
    } while (fm_json_accept(&j, ','));
    return fm_json_expect(&j, '}', err);
}

/* text[from, to) becomes the `n` pieces, one after another. */
static int splice(char **text, size_t *size, size_t from, size_t to, const char *const *piece,
                  const size_t *bytes, int n, struct fm_err *err)
{
    size_t added = 0;
    for (int i = 0; i < n; i++)
        added += bytes[i];
    char *made = fm_alloc(*size - (to - from) + added + 1, 1, "a JSON text", err);
    if (!made)
        return err->code;
    char *at = made;
    memcpy(at, *text, from);
    at += from;
    for (int i = 0; i < n; i++) {
        memcpy(at, piece[i], bytes[i]);
        at += bytes[i];
    }
    memcpy(at, *text + to, *size - to);
    *size = *size - (to - from) + added;
    free(*text);
    *text = made;
    return FM_OK;
}

int fm_jsonedit_set(char **text, size_t *size, const char *key, const char *value,
                    struct fm_err *err)
{
    struct spans s = {0};
    int rc = walk(&s, *text, *size, key, err);
    if (rc != FM_OK)
        return rc;
    size_t len = strlen(value);
    if (s.to)
        return splice(text, size, s.from, s.to, &value, &len, 1, err);
    const char *piece[6] = {s.empty ? "" : ",", *text + s.first, "\"", key, "\": ", value};
    size_t bytes[6] = {s.empty ? 0 : 1, s.first_end - s.first, 1, strlen(key), 3, len};
    return splice(text, size, s.last, s.last, piece, bytes, 6, err);
}
