/*
 * This room, lib/publish: signatures of bundles and exports, which it reads and does not change. In
 * reading order: files (the files of a directory and their SHA-256), sign (signatures).
 *
 * The files of a directory at any depth, or one file, and their SHA-256 digests.  Files that a hub
 * and its client keep beside a repository's files are ignored: at the top, `.cache` and names that
 * begin with `.git`.  A link is followed only if the directory is a snapshot in a Hugging Face
 * cache and the link leads to a blob of the same repository.
 */
#ifndef FM_FILES_H
#define FM_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/sign/sha256.h"
#include "lib/run/run.h"

struct fm_files_entry {
    char *name; /* path relative to the directory; "." for a single file */
    uint64_t bytes;
    struct fm_sha256 digest; /* valid once the file has been hashed */
    bool hash;               /* to be hashed; set by fm_files_list */
};

struct fm_files {
    const char *path; /* borrowed */
    bool directory;
    struct fm_files_entry *entry; /* sorted by the bytes of their names */
    size_t entries;
    char **ignored; /* at the top of the directory, sorted */
    size_t ignored_count;
    uint64_t links; /* entries that are links */
    /* the rest is private */
    size_t capacity, ignored_capacity;
};

struct fm_files_rule {
    const char *const *without; /* names at the top that are not listed; ends with NULL */
    /* True if a name at the top that would be ignored must be listed.  NULL: never. */
    bool (*wants)(const void *self, const char *name);
    const void *self;
    /* A file that must not be in the directory (a private key), or 0. */
    uint64_t dev, ino;
};

/*
 * List the files at `path`, which f borrows.  FM_ENOENT, FM_EPERM.  FM_EFORMAT for a path that is
 * neither a file nor a directory, a name that cannot be signed (formats/sign/oms.h), too many
 * files, or too deep a directory.  FM_ECONFIG for a link that must not be followed.  FM_EUSAGE if
 * the directory has the private key, and for one part of a bundle.  Call
 * fm_files_release in every case.
 */
int fm_files_list(struct fm_files *f, const char *path, const struct fm_files_rule *rule,
                  struct fm_err *err);
/* FM_EUSAGE if the name is that of one part of a bundle: parts are not signed separately. */
int fm_files_no_part(const char *path, struct fm_err *err);
void fm_files_release(struct fm_files *f); /* zeroed struct is fine */

/* Hash the entries that have `hash` set, in parallel, each read once; f->entry[i].bytes becomes the
 * bytes read.  `run` provides progress reports and the request to stop.  FM_EIO if a file changes
 * while it is read, FM_ESAVED. */
int fm_files_hash(struct fm_files *f, const struct fm_run_options *run, struct fm_err *err);

/* Bytes of the entries that have `hash` set. */
uint64_t fm_files_bytes(const struct fm_files *f);

#endif
