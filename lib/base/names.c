/* A record's address is the address of its first member, so one comparison serves every kind of
 * record. */
#include "lib/base/names.h"

#include <assert.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

static const char *name_of(const void *record)
{
    return *(const char *const *)record;
}

static int compare(const void *a, const void *b)
{
    return strcmp(name_of(a), name_of(b));
}

void fm_names_sort(void *records, size_t count, size_t size)
{
    const char *at = records;
    size_t i = 1;
    for (; i < count && compare(at, at + size) <= 0; i++)
        at += size;
    if (i < count) /* not sorted yet */
        qsort(records, count, size, compare);
}

void *fm_names_find(const void *records, size_t count, size_t size, const char *name)
{
    /* A name is itself a record of the smallest kind. */
    return count > 0 ? bsearch(&name, records, count, size, compare) : NULL;
}

void *fm_names_among(const void *records, size_t count, size_t size, const char *name)
{
    return lfind(&name, records, &count, size, compare);
}

const char *fm_names_twin(const void *records, size_t count, size_t size)
{
    const char *at = records;
    for (size_t i = 1; i < count; i++, at += size) {
        int order = compare(at, at + size);
        assert(order <= 0); /* sorted */
        if (order == 0)
            return name_of(at);
    }
    return NULL;
}

int fm_names_distinct(const void *records, size_t count, size_t size, int code, const char *what,
                      const char *fault, struct fm_err *err)
{
    const char *at = records, **name = fm_alloc(count, sizeof *name, "a list of names", err);
    if (!name)
        return err->code;
    for (size_t i = 0; i < count; i++, at += size)
        name[i] = name_of(at);
    fm_names_sort(name, count, sizeof *name);
    const char *twin = fm_names_twin(name, count, sizeof *name);
    free(name);
    return twin ? fm_fail(err, code, "%s '%s' %s", what, twin, fault) : FM_OK;
}

int fm_names_index(const char *const *list, const char *name)
{
    for (int i = 0; list[i]; i++)
        if (strcmp(list[i], name) == 0)
            return i;
    return -1;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

int fm_names_distance(const char *a, const char *b)
{
    int row[32];
    size_t n = strlen(a), m = strlen(b);
    if (n > 31 || m > 31)
        return 99;
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int corner = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int swap = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            row[j] = least(swap, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[m];
}
