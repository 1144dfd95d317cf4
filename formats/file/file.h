/*
 * This room, formats/file: bytes in and out.  All that the suite opens, reads, writes, locks or
 * renames goes through here, so that the rules below hold everywhere; what the bytes mean is not
 * known here.  In reading order: file (inputs), output and outdir (both declared in this header),
 * temporary (what a signal handler removes), spool and input (standard input as a file), screen
 * (standard output as a terminal), lock, digest, text, carried (which files travel with a
 * checkpoint), cgroup (the system's, with a job's memory).
 *
 * Files: the only open(2) in the tree (file.c, and for what is written output.c,
 * outdir.c, temporary.c, lock.c, of the system's files cgroup.c; tests/rooms.py checks it), so that
 * no name leads to a FIFO or a device that the open would wait for.  Inputs are read with pread,
 * never mapped, and must be regular files (a pipe on "-" is spooled).  Outputs are written to a
 * temporary in the target directory and appear under their name whole or not at
 * all: fsync, rename, fsync of the directory.
 */
#ifndef FM_FILE_H
#define FM_FILE_H

#include <dirent.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* An input. */
struct fm_file {
    int fd;
    uint64_t size;
    char *path; /* as the user wrote it, for messages */
    uint64_t dev, ino;
    int64_t mtime_ns; /* at open; fm_file_unchanged compares */
};

/* FM_ENOENT, FM_EPERM, FM_EFORMAT (not a regular file).  Symlinks are followed; a FIFO or device
 * does not block. */
int fm_file_open(struct fm_file *f, const char *path, struct fm_err *err);
/* As above inside directory dirfd; `name` is a single path component.  A symlink is followed only
 * where `follow` (Hugging Face caches link into ../../blobs). */
int fm_file_open_at(struct fm_file *f, int dirfd, const char *name, bool follow,
                    struct fm_err *err);
/* Take over fd, the result of an open(2) of `path`; negative: what errno says.  Closed on failure.
 */
int fm_file_adopt(struct fm_file *f, int fd, const char *path, struct fm_err *err);
/* The same file once more, to be closed for itself. */
int fm_file_share(struct fm_file *f, const struct fm_file *from, struct fm_err *err);
/* A directory for fm_file_open_at; close(2) it.  FM_ENOENT, FM_EPERM. */
int fm_file_open_directory(int *fd, const char *path, struct fm_err *err);
/* FM_EIO where `path` is no longer that directory: another one was renamed over it. */
int fm_file_same_directory(int dirfd, const char *path, struct fm_err *err);
/* The entries of that directory, from the first one, whatever else reads it; closedir(3) it. */
int fm_file_entries(DIR **entries, int dirfd, struct fm_err *err);
void fm_file_close(struct fm_file *f); /* zeroed struct is fine */

/* Exactly size bytes at offset; a short file is FM_EFORMAT "ends at byte ...", one that was longer
 * when it was opened FM_EIO. EINTR-safe. */
int fm_file_read(const struct fm_file *f, uint64_t offset, void *dst, size_t size,
                 struct fm_err *err);
/* These bytes will be read soon: the system may fetch them now.  Returns when it was told, or once
 * *enough is set; says nothing where it cannot be told. */
void fm_file_expect(const struct fm_file *f, uint64_t offset, uint64_t size,
                    const atomic_bool *enough);
/* The whole file, at most `limit` bytes, NUL appended, free() it. */
int fm_file_slurp(const struct fm_file *f, size_t limit, char **text, size_t *size,
                  struct fm_err *err);
/* The same of the file dir/name, or of `name` in the open directory dirfd. */
int fm_file_slurp_in(const char *dir, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err);
int fm_file_slurp_at(int dirfd, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err);
/* FM_EIO if size or mtime are no longer those of the open.  (A file replaced under its name does
 * not matter: the old one stays readable and whole.) */
int fm_file_unchanged(const struct fm_file *f, struct fm_err *err);

/* dir/name; free() it.  NULL: FM_ENOMEM. */
char *fm_file_join(const char *dir, const char *name, struct fm_err *err);

/* An output file that is not there yet. */
struct fm_output {
    int fd;
    char *path; /* final name; NULL: standard output */
    char *temp; /* temporary name beside it */
    bool seekable;
    bool small;  /* a stream that may block: bytes go in pieces */
    uint64_t at; /* bytes written by fm_output_write */
    bool force;  /* the rest is private */
    bool inside; /* of a struct fm_outdir, which is temporary as a whole */
    int slot;
};

/* "-": standard output, refused (FM_EUSAGE) if it is a terminal and `binary`.  FM_ECREATE where
 * path exists and not `force`, where its directory is not there, and where it is anything but a
 * regular file (a link, a device: replacing that is never meant).  The caller ignores SIGPIPE and
 * SIGXFSZ, so that a reader gone is FM_EPIPE and a file too large FM_EIO.  After a failure of any
 * verb the output is still to be abandoned; after a failed open that does nothing. */
int fm_output_open(struct fm_output *o, const char *path, bool binary, bool force,
                   struct fm_err *err);
/* What that would say of a file now, long before it is opened; nothing is made. */
int fm_output_check(const char *path, bool force, struct fm_err *err);
/* Reserve `size` bytes, so that a full disk fails now (FM_EIO names the free space).  The size of
 * the file does not change; nothing happens to a pipe. */
int fm_output_reserve(struct fm_output *o, uint64_t size, struct fm_err *err);
/* FM_ESAVED where the process is asked to stop while a reader keeps it waiting. */
int fm_output_write(struct fm_output *o, const void *src, size_t size, struct fm_err *err);
/* Anywhere in a seekable output; safe from several threads at once. */
int fm_output_write_at(struct fm_output *o, uint64_t offset, const void *src, size_t size,
                       struct fm_err *err);
/* All bytes that were written are on the disk, still without a name. */
int fm_output_flush(const struct fm_output *o, struct fm_err *err);
/* fsync, close, rename, fsync the directory: the output now exists. */
int fm_output_commit(struct fm_output *o, struct fm_err *err);
/* The end: commit where what was written is whole (`rc` FM_OK), else abandon.  The first failure.
 */
int fm_output_end(struct fm_output *o, int rc, struct fm_err *err);
/* A whole text as a file. */
int fm_output_text(const char *path, const char *text, bool force, struct fm_err *err);
void fm_output_abandon(struct fm_output *o); /* remove the temporary; after commit: nothing */

/*
 * A directory that appears whole: made as .NAME.partial-PID-RAND, renamed by commit.  With `force`
 * (else NULL; borrowed) an existing one is replaced if it is empty, or if it is an export: it has
 * the file `mark` and plain files for which has() is true, no others and no directories; FM_ECREATE
 * names one that is in the way.
 */
struct fm_outdir_listed {
    const char *mark;
    bool (*has)(const void *self, const char *name);
    const void *self;
};
struct fm_outdir {
    int fd;
    char *path, *temp;
    const struct fm_outdir_listed *force; /* the rest is private */
    uint64_t dev, ino;                    /* what is to be replaced; 0: nothing is there */
    int slot;
};
/* `path` is that of d->path from open to commit, else FM_ECREATE: where another process replaced it
 * meanwhile, that one's stays. */
int fm_outdir_open(struct fm_outdir *d, const char *path, const struct fm_outdir_listed *force,
                   struct fm_err *err);
/* What that would say now; nothing is made. */
int fm_outdir_check(const char *path, const struct fm_outdir_listed *force, struct fm_err *err);
/* A file inside, `name` a single component; its fm_output_commit fsyncs and renames inside the
 * temporary directory. */
int fm_outdir_file(struct fm_outdir *d, struct fm_output *o, const char *name, struct fm_err *err);
int fm_outdir_commit(struct fm_outdir *d, struct fm_err *err);
void fm_outdir_abandon(struct fm_outdir *d);

/* An unlinked temporary file in TMPDIR (or /var/tmp) for spilled data; close(2) frees it. */
int fm_file_temp(int *fd, struct fm_err *err);
/* pread/pwrite of exactly size bytes on such a file. */
int fm_file_temp_read(int fd, uint64_t offset, void *dst, size_t size, struct fm_err *err);
int fm_file_temp_write(int fd, uint64_t offset, const void *src, size_t size, struct fm_err *err);

/* Bytes free for this user on the filesystem of `path` (its directory if it is not there).  "-" is
 * standard output: UINT64_MAX where that is not a regular file. */
int fm_file_free_space(const char *path, uint64_t *bytes, struct fm_err *err);
/* Where temporary files go: TMPDIR or /var/tmp. */
const char *fm_file_temp_directory(void);

/* Remove every temporary file and directory that is still open: for handlers of fatal signals and
 * for exit (async-signal-safe), on any thread.  Afterwards owners may still abandon them; nothing
 * new can be opened, and nothing committed: FM_ESAVED. */
void fm_file_remove_temporaries(void);

#endif
