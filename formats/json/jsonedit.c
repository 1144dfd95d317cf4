/*
 * The text is edited, not parsed and printed again: numbers keep their spelling, keys their order,
 * and unknown keys every byte, so a diff of config.json shows exactly what an export changed.
 */
#include "formats/json/jsonedit.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"

#define KEY_BYTES_MAX 1024

/* ---- keys of the outermost object ---- */

/* The part that an edit replaces, as offsets into the text: the value of its key, or the whole
 * member; 0, 0: the key is absent. */
struct span {
    size_t from, to;
};

/* The object as found by one pass, as offsets into the text. */
struct object {
    size_t first, first_end; /* white space in front of the first key */
    size_t last;             /* end of the last value */
    bool empty;              /* no member is left */
    struct span *span;       /* place of each edit */
};

static size_t skip_space(const char *text, size_t at, size_t size)
{
    while (at < size && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    return at;
}

static int walk(struct object *o, const char *text, size_t size, const struct fm_jsonedit *edit,
                int n, struct fm_err *err)
{
    struct fm_json j;
    fm_json_init(&j, text, size);
    int rc = fm_json_expect(&j, '{', err);
    if (rc)
        return rc;
    o->first = o->last = (size_t)(j.at - text);
    o->first_end = skip_space(text, o->first, size);
    o->empty = o->first_end < size && text[o->first_end] == '}';
    if (o->empty)
        return FM_OK;
    o->empty = true;
    size_t cut = o->last; /* end of the members removed at the beginning */
    bool more;
    do {
        char name[KEY_BYTES_MAX];
        size_t before = o->last;
        if ((rc = fm_json_string(&j, name, sizeof name, err)) ||
            (rc = fm_json_expect(&j, ':', err)))
            return rc;
        size_t from = skip_space(text, (size_t)(j.at - text), size);
        if ((rc = fm_json_skip(&j, err)))
            return rc;
        o->last = (size_t)(j.at - text);
        more = fm_json_accept(&j, ',');
        int i = 0;
        while (i < n && strcmp(name, edit[i].key) != 0)
            i++;
        if (i < n && o->span[i].to)
            return fm_fail(err, FM_EFORMAT, "JSON: key '%s' appears twice", name);
        if (i < n && edit[i].value) {
            o->span[i] = (struct span){from, o->last};
        } else if (i < n) {
            /* Remove the comma before it, or the one after it if no member remains before it. */
            size_t end = o->empty && more ? (size_t)(j.at - text) : o->last;
            o->span[i] = (struct span){o->empty ? cut : before, end};
            cut = end;
        }
        o->empty = o->empty && i < n && !edit[i].value;
    } while (more);
    return fm_json_expect(&j, '}', err);
}

static void put(char **to, const char *bytes, size_t size)
{
    memcpy(*to, bytes, size);
    *to += size;
}

/* The edit whose span is the first in the text at or after `at`, or n. */
static int next_value(const struct object *o, int n, size_t at)
{
    int next = n;
    for (int i = 0; i < n; i++)
        if (o->span[i].to && o->span[i].from >= at &&
            (next == n || o->span[i].from < o->span[next].from))
            next = i;
    return next;
}

/* The text with its edits, into memory that is large enough; returns its end. */
static char *write_edited(char *to, const struct object *o, const char *text, size_t size,
                          const struct fm_jsonedit *edit, int n)
{
    size_t at = 0;
    for (int i; (i = next_value(o, n, at)) < n; at = o->span[i].to) {
        put(&to, text + at, o->span[i].from - at);
        if (edit[i].value)
            put(&to, edit[i].value, strlen(edit[i].value));
    }
    put(&to, text + at, o->last - at);
    bool comma = !o->empty;
    for (int i = 0; i < n; i++) {
        if (o->span[i].to || !edit[i].value)
            continue;
        put(&to, ",", comma);
        put(&to, text + o->first, o->first_end - o->first);
        put(&to, "\"", 1);
        put(&to, edit[i].key, strlen(edit[i].key));
        put(&to, "\": ", 3);
        put(&to, edit[i].value, strlen(edit[i].value));
        comma = true;
    }
    put(&to, text + o->last, size - o->last);
    *to = '\0';
    return to;
}

int fm_jsonedit_set(char **text, size_t *size, const struct fm_jsonedit *edit, int n,
                    struct fm_err *err)
{
    struct object o = {.span = fm_alloc((size_t)n + 1, sizeof *o.span, "edits of a text", err)};
    if (!o.span)
        return err->code;
    char *made = NULL;
    int rc = walk(&o, *text, *size, edit, n, err);
    if (rc)
        goto out;
    size_t bytes = *size + 1;
    for (int i = 0; i < n; i++)
        bytes += strlen(edit[i].key) + (edit[i].value ? strlen(edit[i].value) : 0) + 5 +
                 (o.first_end - o.first);
    made = fm_alloc(bytes, 1, "a JSON text", err);
    if (!made) {
        rc = err->code;
        goto out;
    }
    *size = (size_t)(write_edited(made, &o, *text, *size, edit, n) - made);
    assert(*size < bytes);
    free(*text);
    *text = made;
out:
    free(o.span);
    return rc;
}

/* ---- members at any depth ---- */

struct pruning {
    struct fm_json j;
    const char *text;
    char *to;      /* where the next kept byte is written */
    size_t copied; /* bytes of the text that were copied or removed */
    fm_jsonedit_stays stays;
    void *self;
};

/* Keep the text up to `from` and remove it from there to `end`. */
static void take_out(struct pruning *p, size_t from, size_t end)
{
    assert(p->copied <= from && from <= end); /* members are removed in the order of the text */
    put(&p->to, p->text + p->copied, from - p->copied);
    p->copied = end;
}

static int prune_value(struct pruning *p, int depth, struct fm_err *err);

static int prune_array(struct pruning *p, int depth, struct fm_err *err)
{
    if (fm_json_accept(&p->j, ']'))
        return FM_OK;
    do {
        int rc = prune_value(p, depth, err);
        if (rc)
            return rc;
    } while (fm_json_accept(&p->j, ','));
    return fm_json_expect(&p->j, ']', err);
}

static int prune_object(struct pruning *p, int depth, struct fm_err *err)
{
    char name[KEY_BYTES_MAX];
    /* Start of the text to remove if the next member is removed. */
    size_t begin = (size_t)(p->j.at - p->text);
    bool none = true, more; /* none: no member is kept so far */
    if (fm_json_accept(&p->j, '}'))
        return FM_OK;
    do {
        int rc = fm_json_string(&p->j, name, sizeof name, err);
        if (!rc)
            rc = fm_json_expect(&p->j, ':', err);
        bool stays = !rc && p->stays(p->self, name, depth);
        if (!rc)
            rc = stays ? prune_value(p, depth, err) : fm_json_skip(&p->j, err);
        if (rc)
            return rc;
        size_t end = (size_t)(p->j.at - p->text);
        more = fm_json_accept(&p->j, ',');
        /* Remove the comma before it, or the one after it if no member remains before it. */
        if (!stays && none && more)
            end = (size_t)(p->j.at - p->text);
        if (!stays)
            take_out(p, begin, end);
        none = none && !stays;
        begin = end;
    } while (more);
    return fm_json_expect(&p->j, '}', err);
}

static int prune_value(struct pruning *p, int depth, struct fm_err *err)
{
    if (depth >= FM_JSON_DEPTH_MAX)
        return fm_json_skip(&p->j, err); /* which refuses deeper nesting */
    if (fm_json_accept(&p->j, '{'))
        return prune_object(p, depth + 1, err);
    if (fm_json_accept(&p->j, '['))
        return prune_array(p, depth + 1, err);
    return fm_json_skip(&p->j, err);
}

int fm_jsonedit_prune(char **text, size_t *size, fm_jsonedit_stays stays, void *self,
                      struct fm_err *err)
{
    int rc = fm_json_check(*text, *size, err);
    char *made = rc ? NULL : fm_alloc(*size + 1, 1, "a JSON text", err);
    if (!made)
        return err->code;
    struct pruning p = {.text = *text, .to = made, .stays = stays, .self = self};
    fm_json_init(&p.j, *text, *size);
    rc = prune_value(&p, 0, err);
    if (rc) {
        free(made);
        return rc;
    }
    put(&p.to, *text + p.copied, *size - p.copied);
    *p.to = '\0';
    *size = (size_t)(p.to - made);
    free(*text);
    *text = made;
    return FM_OK;
}
