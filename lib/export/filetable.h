/*
 * The files of an export with their sizes and digests: the key "files" of fm-export.json, which
 * lists every file of the directory except itself.  The digest of README.md, the model card, is
 * that of the part between its marks (card.h), because its owner may edit the rest.
 *
 *     "files": {
 *       "README.md": {"bytes": 2100, "digest": "32 hex digits"}
 *     }
 */
#ifndef FM_FILETABLE_H
#define FM_FILETABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "lib/base/err.h"
#include "lib/run/taskgroup.h"

#define FM_EXPORT_FILES "files" /* the key */
#define FM_FILETABLE_NAME 256

struct fm_filetable_entry {
    char name[FM_FILETABLE_NAME];
    uint64_t bytes;
    struct fm_digest digest; /* of all bytes of the file; of the card: card.h */
};

struct fm_filetable {
    struct fm_filetable_entry *entry; /* sorted by name, no name twice */
    size_t entries;
};

/* Read the table of an fm-export.json.  FM_EFORMAT, naming the entry, if it is missing or has an
 * invalid entry.  Release it even after a failure. */
int fm_filetable_read(struct fm_filetable *t, const cJSON *json, struct fm_err *err);
void fm_filetable_release(struct fm_filetable *t); /* zeroed struct is fine */

/* Sort the entries by name, after filling them without fm_filetable_read. */
void fm_filetable_sort(struct fm_filetable *t);

/* The entry with that name, or NULL. */
struct fm_filetable_entry *fm_filetable_find(const struct fm_filetable *t, const char *name);

/* Put the table into the text of an fm-export.json (formats/json/jsonedit.h), in place of an
 * older one or after the last key.  Its length does not depend on the digests. */
int fm_filetable_write(const struct fm_filetable *t, char **text, size_t *size, struct fm_err *err);

/* The digest of a file, read once from beginning to end, unless `tasks` are stopped; with `tell`,
 * the bytes read count as progress of the tasks. */
int fm_filetable_hash(struct fm_digest *digest, const struct fm_file *file,
                      struct fm_taskgroup *tasks, bool tell, struct fm_err *err);

/*
 * An export that --force may replace: the files of its directory that belong to it, which
 * fm-export.json lists.
 */
struct fm_filetable_own {
    cJSON *json; /* fm-export.json; NULL if missing or unreadable */
    struct fm_outdir_listed listed;
};

/* Read the directory `path`, which need not exist.  FM_ENOMEM, FM_EIO. */
int fm_filetable_own_open(struct fm_filetable_own *r, const char *path, struct fm_err *err);
void fm_filetable_own_close(struct fm_filetable_own *r); /* zeroed struct is fine */

/* Check, before any work, whether an export into `path` is possible.  FM_ECREATE for an existing
 * directory without `force`, or with `force` if it has files that do not belong to an export;
 * FM_ENOMEM, FM_EIO. */
int fm_filetable_own_check(const char *path, bool force, struct fm_err *err);

#endif
