/*
 * Measurements write gigabytes of files.  All of these are in one directory with a unique name,
 * which is removed with its contents at the end.
 */
#include "tests/measure/workdir.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int fm_workdir_open(struct fm_workdir *w, const char *dir, struct fm_err *err)
{
    if (!dir)
        dir = getenv("TMPDIR");
    if (!dir || !*dir)
        dir = "/var/tmp";
    int n = snprintf(w->path, sizeof w->path, "%s/fm-bench.XXXXXX", dir);
    if (n >= (int)sizeof w->path - 64)
        return fm_fail(err, FM_EUSAGE, "the directory's name has %d bytes (limit %zu)", n,
                       sizeof w->path - 64);
    if (!mkdtemp(w->path))
        return fm_fail_errno(err, "cannot make a directory in '%s'", dir);
    return FM_OK;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)at;
    if (type == FTW_DP)
        rmdir(path);
    else
        unlink(path);
    return 0;
}

void fm_workdir_close(struct fm_workdir *w)
{
    if (w->path[0])
        nftw(w->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    w->path[0] = '\0';
}

const char *fm_workdir_at(const struct fm_workdir *w, const char *name, char *path)
{
    snprintf(path, sizeof w->path, "%.4000s/%.64s", w->path, name);
    return path;
}
