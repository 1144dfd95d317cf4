/*
 * A file like tokenizer.json has a vocabulary of megabytes and a few small settings.  One pass
 * of the scanner records where each member begins and ends; small members become trees, large ones
 * are scanned in place.
 */
#include "formats/json/jsonparts.h"

#include <string.h>

int fm_jsonparts_read(struct fm_json *j, struct fm_jsonpart *part, int parts, const char *where,
                      struct fm_err *err)
{
    char key[256];
    int rc = fm_json_expect(j, '{', err);
    if (rc || fm_json_accept(j, '}'))
        return rc;
    do {
        int i = 0;
        if ((rc = fm_json_string(j, key, sizeof key, err)) || (rc = fm_json_expect(j, ':', err)))
            return rc;
        while (i < parts && strcmp(part[i].key, key) != 0)
            i++;
        if (i == parts)
            return fm_fail(err, FM_ECONFIG, "%s has a key '%.200s' that is not supported", where,
                           key);
        if (part[i].begin)
            return fm_fail(err, FM_EFORMAT, "%s has '%s' twice", where, key);
        part[i].begin = j->at;
        if ((rc = fm_json_skip(j, err)))
            return rc;
        part[i].end = j->at;
    } while (fm_json_accept(j, ','));
    return fm_json_expect(j, '}', err);
}

struct fm_json fm_jsonparts_window(const struct fm_json *whole, const struct fm_jsonpart *p)
{
    struct fm_json j;
    fm_json_init(&j, p->begin, (size_t)(p->end - p->begin));
    j.base = whole->base + (uint64_t)(p->begin - whole->begin);
    return j;
}

bool fm_jsonparts_is_word(const struct fm_jsonpart *p, const char *word)
{
    const char *s = p->begin, *end = p->end;
    while (s < end && strchr(" \t\r\n", *s))
        s++;
    while (end > s && strchr(" \t\r\n", end[-1]))
        end--;
    return (size_t)(end - s) == strlen(word) && memcmp(s, word, (size_t)(end - s)) == 0;
}

bool fm_jsonparts_is_null(const struct fm_jsonpart *p)
{
    return !p->begin || fm_jsonparts_is_word(p, "null");
}

int fm_jsonparts_tree(cJSON **tree, const struct fm_jsonpart *p, struct fm_err *err)
{
    *tree = NULL;
    if (fm_jsonparts_is_null(p))
        return FM_OK;
    int rc = fm_json_tree(tree, p->begin, (size_t)(p->end - p->begin), err);
    return !rc ? FM_OK : fm_within(err, "%s", p->key);
}
