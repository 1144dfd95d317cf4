/*
 * Readers ask for bytes at offsets, so data from a pipe is copied to a file first.
 */
#include "formats/file/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/spool.h"

/* All of standard input, in an unlinked temporary file. */
static int open_spooled(struct fm_file *f, struct fm_err *err)
{
    struct fm_spool s;
    int rc = fm_spool_begin(&s, err);
    if (!rc)
        rc = fm_spool_keep(&s, UINT64_MAX, err);
    if (!rc) {
        rc = fm_file_adopt(f, s.file.fd, s.file.path, err);
        s.file.fd = -1;
    }
    fm_spool_end(&s);
    return rc;
}

int fm_input_open(struct fm_file *f, const char *path, struct fm_err *err)
{
    if (strcmp(path, "-") != 0)
        return fm_file_open(f, path, err);
    struct stat st;
    *f = (struct fm_file){.fd = -1};
    if (fstat(STDIN_FILENO, &st) != 0 && errno != EBADF)
        return fm_fail_errno(err, "cannot examine standard input");
    if (fcntl(STDIN_FILENO, F_GETFD) < 0)
        return fm_fail(err, FM_EUSAGE, "standard input is closed; name an input file");
    if (isatty(STDIN_FILENO))
        return fm_fail(err, FM_EUSAGE,
                       "standard input is a terminal; name an input file or use a pipe");
    if (S_ISCHR(st.st_mode))
        return fm_fail(err, FM_EUSAGE,
                       "standard input is a device; name an input file or use a pipe");
    if (fm_spool_needed(path))
        return open_spooled(f, err);
    return fm_file_adopt(f, fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1),
                         "standard input", err);
}
