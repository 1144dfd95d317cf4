#include "lib/command.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/documents.h"
#include "formats/json.h"
#include "lib/base/mem.h"

#define CHUNK 4096 /* ids written at a time */

/* What the shell says of the command: its status, or how it was stopped. */
static int run_command(const char *command, int in, int out, struct fm_err *err)
{
    int status = 0;
    if (lseek(in, 0, SEEK_SET) != 0)
        return fm_fail_errno(err, "cannot rewind a temporary file");
    pid_t child = fork();
    if (child < 0)
        return fm_fail_errno(err, "cannot start --tokenizer-cmd");
    if (child == 0) {
        signal(SIGPIPE, SIG_DFL);
        signal(SIGXFSZ, SIG_DFL);
        if (dup2(in, STDIN_FILENO) >= 0 && dup2(out, STDOUT_FILENO) >= 0)
            execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return fm_fail_errno(err, "cannot wait for --tokenizer-cmd");
    if (WIFSIGNALED(status))
        return fm_fail(err, FM_EFORMAT, "--tokenizer-cmd was stopped by signal %d",
                       WTERMSIG(status));
    return WEXITSTATUS(status) == 0
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "--tokenizer-cmd ended with status %d",
                         WEXITSTATUS(status));
}

struct writer {
    int fd;
    uint64_t size;
    int32_t ids[CHUNK];
    size_t n;
};

static int flush(struct writer *w, struct fm_err *err)
{
    int rc = fm_file_temp_write(w->fd, w->size, w->ids, w->n * sizeof *w->ids, err);
    w->size += w->n * sizeof *w->ids;
    w->n = 0;
    return rc;
}

static int take_ids(struct writer *w, const char *line, size_t size, struct fm_err *err)
{
    struct fm_json j;
    fm_json_init(&j, line, size);
    int rc = fm_json_expect(&j, '[', err);
    if (rc != FM_OK || fm_json_accept(&j, ']'))
        return rc == FM_OK ? fm_json_end(&j, err) : rc;
    do {
        uint64_t id = 0;
        if ((rc = fm_json_uint(&j, &id, err)) != FM_OK)
            return rc;
        if (id > INT32_MAX)
            return fm_fail(err, FM_EFORMAT, "id %" PRIu64 " is too large", id);
        w->ids[w->n++] = (int32_t)id;
        if (w->n == CHUNK && (rc = flush(w, err)) != FM_OK)
            return rc;
    } while (fm_json_accept(&j, ','));
    rc = fm_json_expect(&j, ']', err);
    return rc == FM_OK ? fm_json_end(&j, err) : rc;
}

static int read_output(struct writer *w, int fd, uint64_t lines, struct fm_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fm_fail_errno(err, "cannot look at the output of --tokenizer-cmd");
    struct fm_documents d = {.file = {.fd = fd, .size = (uint64_t)st.st_size}, .rows = true};
    d.file.path = fm_strdup("the output of --tokenizer-cmd", err);
    const char *line = NULL;
    uint64_t at = 0, seen = 0;
    size_t size = 0;
    int rc = d.file.path ? FM_OK : FM_ENOMEM;
    while (rc == FM_OK) {
        rc = fm_documents_next(&d, &line, &size, &at, err);
        if (rc != FM_OK || !line)
            break;
        seen++;
        if ((rc = take_ids(w, line, size, err)) != FM_OK)
            fm_within(err, "line %" PRIu64 " of the output of --tokenizer-cmd", at);
    }
    if (rc == FM_OK)
        rc = flush(w, err);
    if (rc == FM_OK && seen != lines)
        rc = fm_fail(err, FM_EFORMAT,
                     "--tokenizer-cmd gave %" PRIu64 " lines for %" PRIu64 " documents", seen,
                     lines);
    fm_documents_close(&d); /* closes fd */
    return rc;
}

int fm_command_tokens(const char *command, int *fd, uint64_t *size, uint64_t lines,
                      struct fm_err *err)
{
    int out = -1;
    struct writer *w = fm_alloc(1, sizeof *w, "ids", err);
    if (!w)
        return FM_ENOMEM;
    w->fd = -1;
    int rc = fm_file_temp(&out, err);
    if (rc == FM_OK)
        rc = fm_file_temp(&w->fd, err);
    if (rc == FM_OK)
        rc = run_command(command, *fd, out, err);
    if (rc == FM_OK) {
        rc = read_output(w, out, lines, err);
        out = -1;
    }
    if (out >= 0)
        close(out);
    if (rc == FM_OK) {
        close(*fd);
        *fd = w->fd;
        *size = w->size;
    } else if (w->fd >= 0) {
        close(w->fd);
    }
    free(w);
    return rc;
}
