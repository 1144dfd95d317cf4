/*
 * Launchers give standard input to only one rank and bind ranks to CPUs in various ways, and a
 * machine may have an older program under the same name.  These differences between ranks are
 * removed or refused here, before any file is opened.
 */
#include "lib/run/ranks.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "formats/file/spool.h"
#include "lib/base/mem.h"

#define PIECE ((size_t)1 << 20)

/* ---- the program ---- */

static int digest_program(char hex[FM_DIGEST_HEX], struct fm_err *err)
{
    char *program = NULL;
    size_t size = 0;
    int rc = fm_file_slurp_path("/proc/self/exe", SIZE_MAX - 1, &program, &size, err);
    struct fm_digest digest = fm_digest_of(program, size);
    fm_digest_hex(hex, &digest);
    free(program);
    return rc;
}

static int same_program(struct fm_comm *comm, struct fm_err *err)
{
    char hex[FM_DIGEST_HEX];
    int rc = fm_comm_agree(comm, digest_program(hex, err), err);
    const struct fm_comm_fact fact[] = {{"the version", FM_VERSION},
                                        {"the digest of the program", hex}};
    return rc ? rc : fm_comm_same(comm, fact, 2, err);
}

/* ---- standard input ---- */

static int tell_file(struct fm_comm *comm, int fd, uint64_t size, struct fm_err *err)
{
    char *piece = fm_alloc(1, PIECE, "a piece of standard input", err);
    bool reads = fm_comm_rank(comm) == 0;
    int rc = fm_comm_agree(comm, piece ? FM_OK : FM_ENOMEM, err);
    for (uint64_t at = 0, n; !rc && at < size; at += n) {
        n = size - at < PIECE ? size - at : PIECE;
        if (reads)
            rc = fm_file_temp_read(fd, at, piece, (size_t)n, err);
        if (!rc)
            rc = fm_comm_tell(comm, piece, (size_t)n, err);
        if (!rc && !reads)
            rc = fm_file_temp_write(fd, at, piece, (size_t)n, err);
    }
    free(piece);
    return fm_comm_agree(comm, rc, err);
}

static int share_input(struct fm_comm *comm, struct fm_err *err)
{
    struct fm_spool spool;
    int rc = fm_spool_begin(&spool, err);
    if (rc)
        return fm_comm_agree(comm, rc, err);
    if (fm_comm_rank(comm) == 0)
        rc = fm_spool_keep(&spool, UINT64_MAX, err);
    uint64_t size = spool.file.size;
    rc = fm_comm_agree(comm, rc, err);
    if (!rc)
        rc = fm_comm_tell(comm, &size, sizeof size, err);
    if (!rc)
        rc = tell_file(comm, spool.file.fd, size, err);
    if (!rc && (dup2(spool.file.fd, STDIN_FILENO) < 0 || lseek(STDIN_FILENO, 0, SEEK_SET) != 0))
        rc = fm_fail_errno(err, "cannot redirect standard input to a file");
    fm_spool_end(&spool);
    return fm_comm_agree(comm, rc, err);
}

bool fm_ranks_streams(const struct fm_inputs *in, bool stage)
{
    bool streams = stage && in->stream && strcmp(in->stream, "-") == 0;
    for (int i = 0; in->eval_texts[i]; i++)
        streams = streams || strcmp(in->eval_texts[i], "-") == 0;
    for (int i = 0; in->texts[i].path; i++)
        streams = streams || strcmp(in->texts[i].path, "-") == 0;
    return streams;
}

/* ---- CPUs ---- */

/* Bind this rank to its share of the CPUs that all ranks of the machine may use; shares are as even
 * as possible. */
static void take_part(const cpu_set_t *all, int nth, int beside)
{
    cpu_set_t own;
    int cpus = CPU_COUNT(all), seen = 0;
    int first = cpus < beside ? nth % cpus : cpus * nth / beside;
    int end = cpus < beside ? first + 1 : cpus * (nth + 1) / beside;
    CPU_ZERO(&own);
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, all))
            continue;
        if (seen >= first && seen < end)
            CPU_SET(i, &own);
        seen++;
    }
    sched_setaffinity(0, sizeof own, &own); /* if this fails, ranks share the CPUs */
}

static int divide_cpus(const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_comm *comm = run->machine.comm;
    int nth, beside = fm_comm_beside(comm, &nth), ranks = fm_comm_size(comm);
    cpu_set_t own, *all = fm_alloc((size_t)ranks, sizeof *all, "CPUs of ranks", err);
    bool same = true;
    CPU_ZERO(&own);
    int rc = fm_comm_agree(comm, all ? FM_OK : FM_ENOMEM, err);
    if (!rc && sched_getaffinity(0, sizeof own, &own) != 0)
        CPU_ZERO(&own); /* more CPUs than the set can hold: do not bind */
    if (!rc)
        rc = fm_comm_collect(comm, all, &own, sizeof own, err);
    for (int r = 0; !rc && r < ranks; r++)
        if (strcmp(fm_comm_host(comm, r), fm_comm_host(comm, fm_comm_rank(comm))) == 0)
            same = same && CPU_EQUAL(&all[r], &own);
    free(all);
    if (rc || CPU_COUNT(&own) == 0 || run->machine.threads > 0)
        return rc;
    if (same && beside > 1)
        take_part(&own, nth, beside);
    else if ((long)CPU_COUNT(&own) * beside < sysconf(_SC_NPROCESSORS_ONLN))
        fm_run_warn(run,
                    "the launcher binds this rank to %d of the %ld CPUs of %s; to use all, give "
                    "mpirun --bind-to none, or srun --cpus-per-task",
                    CPU_COUNT(&own), sysconf(_SC_NPROCESSORS_ONLN),
                    fm_comm_host(comm, fm_comm_rank(comm)));
    return FM_OK;
}

int fm_ranks_begin(const struct fm_run_options *run, bool streams, struct fm_err *err)
{
    if (!run->machine.comm)
        return FM_OK;
    int rc = same_program(run->machine.comm, err);
    if (!rc)
        rc = divide_cpus(run, err);
    return rc || !streams ? rc : share_input(run->machine.comm, err);
}
