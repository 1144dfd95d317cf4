/*
 * A scratch directory for measurements, with a unique name; it is removed with its contents.
 */
#ifndef FM_WORKDIR_H
#define FM_WORKDIR_H

#include "lib/base/err.h"

struct fm_workdir {
    char path[4096];
};

/* A new directory inside `dir` (NULL: TMPDIR or /var/tmp). */
int fm_workdir_open(struct fm_workdir *w, const char *dir, struct fm_err *err);
void fm_workdir_close(struct fm_workdir *w);

/* Write dir/name to path (4096 bytes) and return it. */
const char *fm_workdir_at(const struct fm_workdir *w, const char *name, char *path);

#endif
