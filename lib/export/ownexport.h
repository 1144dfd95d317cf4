/*
 * An export that --force may replace: the files of its directory that belong to it, which
 * fm-export.json lists.
 */
#ifndef FM_OWNEXPORT_H
#define FM_OWNEXPORT_H

#include <cjson/cJSON.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

struct fm_ownexport {
    cJSON *json; /* fm-export.json; NULL if missing or unreadable */
    struct fm_outdir_listed listed;
};

/* Read the directory `path`, which need not exist.  FM_ENOMEM, FM_EIO. */
int fm_ownexport_open(struct fm_ownexport *r, const char *path, struct fm_err *err);
void fm_ownexport_close(struct fm_ownexport *r); /* zeroed struct is fine */

/* Check, before any work, whether an export into `path` is possible.  FM_ECREATE for an existing
 * directory without `force`, or with `force` if it has files that do not belong to an export;
 * FM_ENOMEM, FM_EIO. */
int fm_ownexport_check(const char *path, bool force, struct fm_err *err);

#endif
