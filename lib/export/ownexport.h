/*
 * An export that --force may replace: which files of its directory are its own.  It lists them in
 * fm-export.json.
 */
#ifndef FM_OWNEXPORT_H
#define FM_OWNEXPORT_H

#include <cjson/cJSON.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

struct fm_ownexport {
    cJSON *json; /* fm-export.json; NULL: the directory has none that could be read */
    struct fm_outdir_listed listed;
};

/* Of the directory `path`, which need not be there.  FM_ENOMEM, FM_EIO. */
int fm_ownexport_open(struct fm_ownexport *r, const char *path, struct fm_err *err);
void fm_ownexport_close(struct fm_ownexport *r); /* zeroed struct is fine */

/* What is in the way of an export into `path`, before anything is made: a directory without
 * `force`, and with it what is not an export's.  FM_ECREATE, FM_ENOMEM, FM_EIO. */
int fm_ownexport_check(const char *path, bool force, struct fm_err *err);

#endif
