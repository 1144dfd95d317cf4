/*
 * This room, formats/file: input and output of bytes.  Every open, read, write, lock and rename of
 * the suite is here, so the rules below hold everywhere; the bytes are not interpreted here.  In
 * reading order: file (inputs), output and outdir (both declared in this header), temporary (what a
 * signal handler removes), spool (standard input as a file), lock, digest, text, genuine (pointers
 * of git-lfs in the place of files), carried (which files travel with a checkpoint), sandbox (what
 * may be opened), cgroup (the memory limit of a job).
 *
 * Only this room opens files, so that no open can block on a FIFO or a device: file.c opens inputs;
 * output.c, outdir.c, temporary.c and lock.c outputs; cgroup.c files of the system; sandbox.c paths
 * for its rules.  The only exceptions are files in /proc; tests/rooms.py checks this.  Inputs are
 * read with pread, never mapped, and must be regular files (a pipe on "-" is spooled).  Outputs are
 * written to a temporary file in the target directory and appear under their name whole or not at
 * all: fsync, rename, fsync of the directory.
 */
#ifndef FM_FILE_H
#define FM_FILE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

/* An input. */
struct fm_file {
    int fd;
    uint64_t size;
    char *path; /* as given by the user, for messages */
    uint64_t dev, ino;
    int64_t mtime_ns; /* state at open; fm_file_unchanged compares with it */
    uint64_t begin;   /* offset in the file that counts as offset 0 */
    /* Files that continue this one, owned; the first `own` of the `size` bytes are this file's. */
    struct fm_file *more;
    size_t mores;
    uint64_t own;
};

/* FM_ENOENT, FM_EPERM, FM_EFORMAT (not a regular file).  Symlinks are followed; a FIFO or device
 * does not block. */
int fm_file_open(struct fm_file *f, const char *path, struct fm_err *err);
/* Open `name`, a single path component, inside the directory dirfd.  A symlink is followed only if
 * `follow` (Hugging Face caches link into ../../blobs). */
int fm_file_open_at(struct fm_file *f, int dirfd, const char *name, bool follow,
                    struct fm_err *err);
/* Take over fd, the result of an open(2) of `path`; if it is negative, fail with errno. fd is
 * closed on failure. */
int fm_file_adopt(struct fm_file *f, int fd, const char *path, struct fm_err *err);
/* A second handle on the same open file; closed separately. */
int fm_file_share(struct fm_file *f, const struct fm_file *from, struct fm_err *err);
/* Open a directory for fm_file_open_at; close(2) it.  FM_ENOENT, FM_EPERM. */
int fm_file_open_directory(int *fd, const char *path, struct fm_err *err);
/* FM_EIO if `path` is no longer that directory, because another was renamed over it. */
int fm_file_same_directory(int dirfd, const char *path, struct fm_err *err);
/* The names in a directory, in order of bytes, without "." and "..".  `path` is for errors. Release
 * the list; after an error it is empty. */
struct fm_file_list {
    char **name;
    size_t count;
};
int fm_file_list(struct fm_file_list *list, int dirfd, const char *path, struct fm_err *err);
void fm_file_list_release(struct fm_file_list *list);
void fm_file_close(struct fm_file *f); /* zeroed struct is fine, here and above */

/* Read exactly size bytes at offset.  A short file is FM_EFORMAT "ends at byte ..."; FM_EIO if it
 * was longer when it was opened.  EINTR-safe. */
int fm_file_read(const struct fm_file *all, uint64_t offset, void *dst, size_t size,
                 struct fm_err *err);
/* Ask the system to read these bytes ahead.  Returns after the request, or once *enough is set;
 * does nothing on systems without such a request. */
void fm_file_expect(const struct fm_file *all, uint64_t offset, uint64_t size,
                    const atomic_bool *enough);
/* Read the whole file, at most `limit` bytes, with a NUL appended; free() it. */
int fm_file_slurp(const struct fm_file *f, size_t limit, char **text, size_t *size,
                  struct fm_err *err);
/* Open and read a whole file as fm_file_slurp does: `path`, dir/name, or `name` in the open
 * directory dirfd. */
int fm_file_slurp_path(const char *path, size_t limit, char **text, size_t *size,
                       struct fm_err *err);
int fm_file_slurp_in(const char *dir, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err);
int fm_file_slurp_at(int dirfd, const char *name, size_t limit, char **text, size_t *size,
                     struct fm_err *err);
/* The path of the file that has the byte at `offset`, for messages. */
const char *fm_file_path_at(const struct fm_file *f, uint64_t offset);
/* Append `more`, to be read where f ends; takes ownership of it. */
int fm_file_append(struct fm_file *f, struct fm_file *more, struct fm_err *err);
/* FM_EIO if the size or mtime has changed since the open.  (If the name now refers to another file,
 * the old one is still readable and complete.) */
int fm_file_unchanged(const struct fm_file *f, struct fm_err *err);

/* dir/name; free() it.  NULL: FM_ENOMEM. */
char *fm_file_join(const char *dir, const char *name, struct fm_err *err);
/* The last component of a path: *length bytes, without the slashes that may follow. */
const char *fm_file_last(const char *path, size_t *length);
/* The directory of a path, "." for a path of one component; free() it.  NULL: FM_ENOMEM. */
char *fm_file_home(const char *path, struct fm_err *err);

/* fd, an open descriptor; or a copy, and fd is closed, if it has the number of standard input,
 * output or error: these may be closed, and what is written to them would go to that file.  A
 * negative fd is returned, with errno. */
int fm_file_above_standard(int fd);

/* An output file that does not have its final name yet. */
struct fm_output {
    int fd;
    char *path; /* final name; NULL: standard output */
    char *temp; /* temporary name in the same directory */
    bool seekable;
    bool small;  /* a stream that may block: bytes are written in pieces */
    uint64_t at; /* bytes written by fm_output_write */
    bool force;  /* the rest is private */
    bool inside; /* it belongs to a struct fm_outdir, which is temporary as a whole */
    int slot;
};

/* "-": standard output, refused (FM_EUSAGE) if it is a terminal and `binary`.  FM_ECREATE if path
 * exists and not `force`, if its directory does not exist, or if it is anything but a regular file
 * (a link or a device is never replaced).  The caller ignores SIGPIPE and SIGXFSZ, so a closed pipe
 * is FM_EPIPE and a file that is too large FM_EIO.  After a failure of any function below the
 * output must still be abandoned; after a failed open that does nothing. */
int fm_output_open(struct fm_output *o, const char *path, bool binary, bool force,
                   struct fm_err *err);
/* Returns what fm_output_open would return now for this file, which is not "-", for checks long
 * before the open; creates nothing. */
int fm_output_check(const char *path, bool force, struct fm_err *err);
/* FM_EUSAGE if standard output is a terminal, which would display binary data. */
int fm_output_check_screen(struct fm_err *err);
/* Reserve `size` bytes, so that a full disk is detected now (FM_EIO names the free space).  The
 * size of the file does not change.  Does nothing for standard output. */
int fm_output_reserve(struct fm_output *o, uint64_t size, struct fm_err *err);
/* FM_ESAVED if the process is asked to stop while it waits for the reader of a pipe. */
int fm_output_write(struct fm_output *o, const void *src, size_t size, struct fm_err *err);
/* Write at any offset of a seekable output; safe from several threads at once. */
int fm_output_write_at(struct fm_output *o, uint64_t offset, const void *src, size_t size,
                       struct fm_err *err);
/* Flush all written bytes to the disk; the file does not have its final name yet. */
int fm_output_flush(const struct fm_output *o, struct fm_err *err);
/* fsync, close, rename, fsync the directory: the output now exists.  If the last step fails, an
 * output opened with `force` is kept, because it may have replaced a file, and the error says so;
 * any other is removed. */
int fm_output_commit(struct fm_output *o, struct fm_err *err);
/* Commit if `rc` is FM_OK, else abandon.  Returns the first failure. */
int fm_output_end(struct fm_output *o, int rc, struct fm_err *err);
/* Write a text as a whole file. */
int fm_output_text(const char *path, const char *text, bool force, struct fm_err *err);
void fm_output_abandon(struct fm_output *o); /* removes the temporary; does nothing after commit */

/*
 * A directory that appears whole: made as .NAME.partial-HOST-PID-RAND, renamed by commit.  If
 * `force` is NULL, an existing directory is refused.  Else (borrowed) it is replaced if it is
 * empty, or if it is an export: it has the file `mark`, and otherwise only plain files for which
 * has() is true.  FM_ECREATE names a file that prevents this.
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
    uint64_t dev, ino;                    /* identity of the directory to replace, or 0 */
    int slot;
};
/* At fm_outdir_commit `path` must still be the directory that it was at open, else FM_ECREATE: if
 * another process has replaced it, the replacement is kept. */
int fm_outdir_open(struct fm_outdir *d, const char *path, const struct fm_outdir_listed *force,
                   struct fm_err *err);
/* Returns what fm_outdir_open would return now; creates nothing. */
int fm_outdir_check(const char *path, const struct fm_outdir_listed *force, struct fm_err *err);
/* Create a file inside; `name` is a single component.  Its fm_output_commit fsyncs and renames
 * it inside the temporary directory. */
int fm_outdir_file(struct fm_outdir *d, struct fm_output *o, const char *name, struct fm_err *err);
/* If the old directory cannot be removed and the exchange cannot be undone, the old one is renamed
 * to PATH.replaced-N, which the error names. */
int fm_outdir_commit(struct fm_outdir *d, struct fm_err *err);
void fm_outdir_abandon(struct fm_outdir *d);

/*
 * A set of files that appear together, under their own names in the directory of `path`.  The first
 * of them appears last, so a set whose first file exists is complete.  They are made in a hidden
 * directory named after `path`; leftovers of a killed process are removed.  Then call
 * fm_outdir_file, with the last component of each name, and fm_outdir_spread instead of
 * fm_outdir_commit.
 *
 * Files after the first are replaced without `force` if the first does not exist: such a set is
 * unreadable, and was left by a process that was killed between two renames.  With `force` the old
 * first file is removed before the new ones appear; after a failure, a complete old set is put
 * back. If the process is killed, the old files are in the hidden directory
 * .NAME.replaced-HOST-PID-RAND, and the next fm_outdir_spread_open or fm_outdir_spread_restore of
 * that path puts them back, unless the first file exists.
 */
void fm_outdir_spread_restore(const char *path);
int fm_outdir_spread_open(struct fm_outdir *d, const char *path, char *const *name, size_t names,
                          bool force, struct fm_err *err);
int fm_outdir_spread(struct fm_outdir *d, char *const *name, size_t names, bool force,
                     struct fm_err *err);

/* pwrite(2) until all bytes are written; the number written, with errno if it is less than size. */
size_t fm_file_write(int fd, uint64_t offset, const void *src, size_t size);

/* An unlinked temporary file in TMPDIR (or /var/tmp) for spilled data; close(2) frees it. */
int fm_file_temp(int *fd, struct fm_err *err);
/* pread/pwrite of exactly size bytes on a file of fm_file_temp. */
int fm_file_temp_read(int fd, uint64_t offset, void *dst, size_t size, struct fm_err *err);
int fm_file_temp_write(int fd, uint64_t offset, const void *src, size_t size, struct fm_err *err);

/* Bytes free for this user on the filesystem of `path` (of its directory if it does not exist). "-"
 * is standard output: UINT64_MAX if that is not a regular file. */
int fm_file_free_space(const char *path, uint64_t *bytes, struct fm_err *err);
/* True if both are known to be on one filesystem. */
bool fm_file_share_space(const char *a, const char *b);
/* The directory of temporary files: TMPDIR or /var/tmp. */
const char *fm_file_temp_directory(void);

/* Remove every temporary file and directory that is still open: for handlers of fatal signals
 * and for exit (async-signal-safe), on any thread.  Afterwards owners may still abandon them,
 * but nothing new can be opened or committed: FM_ESAVED. */
void fm_file_remove_temporaries(void);

#endif
