/* "-00001-of-00003" is inserted before the extension ".fm", or at the end of a name without it. */
#include "formats/bundle/partname.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "lib/base/mem.h"

#define ENDING ".fm"
#define INSERTED 15 /* "-00001-of-00003" */

/* The length of a path without its extension. */
static size_t stem_length(const char *path)
{
    size_t len = strlen(path), end = strlen(ENDING);
    bool ends = len > end && strcmp(path + len - end, ENDING) == 0 && path[len - end - 1] != '/';
    return ends ? len - end : len;
}

char *fm_partname(const char *path, int number, int parts, struct fm_err *err)
{
    size_t len = stem_length(path), size = strlen(path) + INSERTED + 1;
    assert(number >= 1 && number <= parts && parts <= FM_PARTS_MAX);
    char *name = fm_alloc(size, 1, "a file name", err);
    if (name)
        snprintf(name, size, "%.*s-%05d-of-%05d%s", (int)len, path, number, parts, path + len);
    return name;
}

/* The value of five digits; -1 for any other text. */
static int read_number(const char *at)
{
    int value = 0;
    for (int i = 0; i < 5; i++) {
        if (at[i] < '0' || at[i] > '9')
            return -1;
        value = 10 * value + (at[i] - '0');
    }
    return value;
}

bool fm_partname_parse(const char *path, int *number, int *parts)
{
    size_t len = stem_length(path);
    if (len <= INSERTED)
        return false;
    const char *at = path + len - INSERTED;
    if (at[0] != '-' || strncmp(at + 6, "-of-", 4) != 0)
        return false;
    *number = read_number(at + 1);
    *parts = read_number(at + 10);
    return *number >= 1 && *parts >= 1;
}

char *fm_partname_other(const char *path, int number, struct fm_err *err)
{
    int own, parts;
    assert(fm_partname_parse(path, &own, &parts) && number >= 1 && number <= FM_PARTS_MAX);
    char *name = fm_strdup(path, err), digits[16];
    if (!name)
        return NULL;
    snprintf(digits, sizeof digits, "%05d", number);
    memcpy(name + stem_length(path) - INSERTED + 1, digits, 5);
    return name;
}

char *fm_partname_find(const char *path, struct fm_err *err)
{
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    char *dir = slash ? strndup(path, (size_t)(last - path)) : strdup("."), *found = NULL;
    size_t len = stem_length(last), size = strlen(path) + INSERTED + 1;
    const char *first = last;
    int fd = -1, matches = 0, number, parts;
    struct fm_file_list list = {0};
    int rc = dir ? fm_file_open_directory(&fd, dir, err)
                 : fm_fail(err, FM_ENOMEM, "no memory for the name '%s'", path);
    if (!rc) {
        rc = fm_file_list(&list, fd, dir, err);
        close(fd);
    }
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.name[i];
        if (strncmp(name, last, len) != 0 || strlen(name) != strlen(last) + INSERTED ||
            strcmp(name + len + INSERTED, last + len) != 0 ||
            !fm_partname_parse(name, &number, &parts) || number != 1)
            continue;
        first = matches++ ? last : name;
    }
    if (!rc || rc == FM_ENOENT || rc == FM_EPERM) /* opening `path` reports the latter two */
        found = fm_alloc(size, 1, "a file name", err);
    if (found)
        snprintf(found, size, "%.*s%s", (int)(last - path), path, first);
    fm_file_list_release(&list);
    free(dir);
    return found;
}
