/* A line of /proc/self/cgroup is "hierarchy:controllers:group"; version 2 leaves controllers empty.
 * A limit applies to a group and all its descendants. */
#include "formats/file/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number in a file; UINT64_MAX if the file does not exist or says "max". */
static uint64_t read_limit(const char *path)
{
    uint64_t limit = UINT64_MAX;
    FILE *f = fopen(path, "re");
    if (f && fscanf(f, "%" SCNu64, &limit) != 1)
        limit = UINT64_MAX;
    if (f)
        fclose(f);
    return limit;
}

/* The lowest limit of `group` under `mount` and of its ancestors. */
static uint64_t least_limit(const char *mount, char *group, const char *name)
{
    uint64_t least = UINT64_MAX;
    for (;;) {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s%s/%s", mount, group, name);
        uint64_t limit = read_limit(path);
        least = limit < least ? limit : least;
        char *last = strrchr(group, '/');
        if (!last)
            return least;
        *last = '\0';
    }
}

uint64_t fm_cgroup_memory(const char *groups, const char *root)
{
    char line[PATH_MAX], mount[PATH_MAX];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(groups, "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        bool second = kinds[1] == '\0', first = strcmp(kinds + 1, "memory") == 0;
        if (!first && !second)
            continue;
        snprintf(mount, sizeof mount, "%s%s", root, first ? "/memory" : "");
        uint64_t limit = least_limit(mount, group, first ? "memory.limit_in_bytes" : "memory.max");
        least = limit < least ? limit : least;
    }
    if (f)
        fclose(f);
    return least;
}
