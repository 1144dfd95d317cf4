/*
 * Keeps the ranks in step.  Before any data is sent, each rank sends its status to all others: four
 * bytes, an error code or FM_OK.  So no rank ever waits for one that has stopped.  An agreement
 * costs one small all-gather; there are a few per layer.
 */
#include "lib/comm/comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"

#define HOST_BYTES 64
#define VALUE_BYTES 512
#define GRAIN 16 /* slices are multiples of this many values, so that they are whole vectors */

struct fm_comm {
    const struct fm_wire *wire;
    int rank, size;
    char (*host)[HOST_BYTES];
    int *codes;                       /* (size) a status, or another value, of each rank */
    struct fm_wire_part *send, *recv; /* (size) */
    int agreed;                       /* the result of the last agreement */
    struct fm_err over;               /* the error that ended all communication */
    struct fm_tally tally, *tallies;  /* (size), after fm_comm_share_tallies */
};

/* ---- the launcher ---- */

/* True if the environment variable is a number of processes above 1; a value that is not a number
 * was not set by a launcher. */
static bool is_many(const char *name)
{
    const char *value = getenv(name);
    bool number = value && *value && !value[strspn(value, "0123456789")];
    return number && strtol(value, NULL, 10) > 1;
}

static int refuse_many(const char *name, const struct fm_wire *wire, struct fm_err *err)
{
    bool slurm = strncmp(name, "SLURM", 5) == 0;
    if (!wire)
        return fm_fail(err, FM_EUSAGE,
                       "%s=%s means that a launcher started several processes, but this build has "
                       "no MPI, so each would do the whole run; build with 'make MPI=1', or start "
                       "one process",
                       name, getenv(name));
    return fm_fail(
        err, FM_EUSAGE,
        "%s=%s means that a launcher started several processes, but MPI has only one, so each "
        "would do the whole run; %s",
        name, getenv(name),
        slurm
            ? "start with 'srun --mpi=pmix', or with the mpirun of the MPI that this was built with"
            : "start with the mpirun of the MPI that this was built with");
}

static int check_launcher(const struct fm_wire *wire, const char **warning, struct fm_err *err)
{
    static const char *const says[] = {"SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (is_many(says[i]))
            return refuse_many(says[i], wire, err);
    if (warning && is_many("WORLD_SIZE"))
        *warning =
            "WORLD_SIZE says that this is one of several processes, but it was not started as "
            "a rank and does the whole run; start ranks with mpirun or srun";
    return FM_OK;
}

/* ---- begin and end ---- */

static void drop(struct fm_comm *c)
{
    free(c->host);
    free(c->codes);
    free(c->send);
    free(c->recv);
    free(c->tallies);
    free(c);
}

static int fill(struct fm_comm *c, struct fm_err *err)
{
    char host[HOST_BYTES] = "";
    size_t size = (size_t)c->size;
    c->host = fm_alloc(size, sizeof *c->host, "names of machines", err);
    c->codes = fm_alloc(size, sizeof *c->codes, "codes of ranks", err);
    c->send = fm_alloc(size, sizeof *c->send, "messages", err);
    c->recv = fm_alloc(size, sizeof *c->recv, "messages", err);
    if (!c->host || !c->codes || !c->send || !c->recv)
        return FM_ENOMEM;
    if (gethostname(host, sizeof host - 1) != 0 || !host[0])
        snprintf(host, sizeof host, "?");
    c->wire->collect(c->host, host, sizeof host);
    return FM_OK;
}

int fm_comm_open(struct fm_comm **comm, const struct fm_wire *wire, const char **warning,
                 struct fm_err *err)
{
    int rank = 0, size = 1;
    *comm = NULL;
    if (wire && wire->open(&rank, &size, err))
        return err->code;
    if (size == 1) {
        int rc = check_launcher(wire, warning, err);
        if (wire)
            wire->close();
        return rc;
    }
    struct fm_comm *c = fm_alloc(1, sizeof *c, "a communicator", err);
    if (!c)
        return err->code;
    c->wire = wire;
    c->rank = rank;
    c->size = size;
    if (fill(c, err)) {
        drop(c);
        return err->code;
    }
    *comm = c;
    return FM_OK;
}

int fm_comm_close(struct fm_comm *c, int code, struct fm_err *err)
{
    if (!c)
        return code;
    code = fm_comm_agree(c, code, err);
    c->wire->close();
    drop(c);
    return code;
}

/* ---- ranks and hosts ---- */

int fm_comm_rank(const struct fm_comm *c)
{
    return c ? c->rank : 0;
}

int fm_comm_size(const struct fm_comm *c)
{
    return c ? c->size : 1;
}

const char *fm_comm_host(const struct fm_comm *c, int rank)
{
    assert(c && rank >= 0 && rank < c->size);
    return c->host[rank];
}

int fm_comm_beside(const struct fm_comm *c, int *nth)
{
    int beside = 0;
    *nth = 0;
    for (int r = 0; c && r < c->size; r++) {
        if (strcmp(c->host[r], c->host[c->rank]) != 0)
            continue;
        *nth += r < c->rank;
        beside++;
    }
    return c ? beside : 1;
}

struct fm_tally *fm_comm_tally(struct fm_comm *c)
{
    static struct fm_tally unused;
    return c ? &c->tally : &unused;
}

int fm_comm_share_tallies(struct fm_comm *c, struct fm_err *err)
{
    if (!c)
        return FM_OK;
    if (!c->tallies)
        c->tallies = fm_alloc((size_t)c->size, sizeof *c->tallies, "counters of ranks", err);
    int rc = fm_comm_agree(c, c->tallies ? FM_OK : err->code, err);
    return rc ? rc : fm_comm_collect(c, c->tallies, &c->tally, sizeof c->tally, err);
}

const struct fm_tally *fm_comm_tallies(const struct fm_comm *c)
{
    return c ? c->tallies : NULL;
}

/* ceil(n rank / size), without overflow. */
static size_t begin_of(size_t n, int rank, int size)
{
    size_t r = (size_t)rank, s = (size_t)size;
    assert(rank >= 0 && rank <= size);
    return n / s * r + (n % s * r + s - 1) / s;
}

void fm_comm_share(const struct fm_comm *c, int rank, int n, int *first, int *count)
{
    int size = fm_comm_size(c);
    *first = (int)begin_of((size_t)n, rank, size);
    *count = (int)begin_of((size_t)n, rank + 1, size) - *first;
}

void fm_comm_slice(const struct fm_comm *c, int rank, size_t n, size_t *first, size_t *count)
{
    int size = fm_comm_size(c);
    size_t grains = (n + GRAIN - 1) / GRAIN;
    size_t a = begin_of(grains, rank, size) * GRAIN, b = begin_of(grains, rank + 1, size) * GRAIN;
    *first = a < n ? a : n;
    *count = (b < n ? b : n) - *first;
}

/* ---- agreement ---- */

/* The lowest rank with an error, else the lowest that was asked to stop, else -1. */
static int worst_of(const struct fm_comm *c)
{
    int worst = -1;
    for (int r = 0; r < c->size; r++) {
        if (c->codes[r] && c->codes[r] != FM_ESAVED)
            return r;
        worst = worst < 0 && c->codes[r] ? r : worst;
    }
    return worst;
}

/* All ranks exchange their error texts and use the text of rank `from`.  Errors are rare, so this
 * may be slow. */
static int take_error(struct fm_comm *c, int from, struct fm_err *err)
{
    struct fm_err *all = malloc((size_t)c->size * sizeof *all);
    if (!all)
        abort(); /* end the job, because the other ranks wait for our error text */
    c->wire->collect(all, err, sizeof *err);
    struct fm_err said = all[from];
    free(all);
    said.code = c->codes[from];
    *err = said;
    if (from > 0 && said.code != FM_ESAVED)
        fm_within(err, "rank %d on %s", from, c->host[from]);
    c->agreed = err->code;
    if (err->code != FM_ESAVED)
        c->over = *err;
    return err->code;
}

int fm_comm_agree(struct fm_comm *c, int rc, struct fm_err *err)
{
    /* All ranks return the error that they agreed on, so none waits for an answer here. */
    if (!c || (rc && rc == c->agreed))
        return rc;
    if (c->over.code) {
        *err = c->over;
        return err->code;
    }
    double began = fm_clock_now();
    c->wire->collect(c->codes, &rc, sizeof rc);
    int from = worst_of(c);
    c->agreed = FM_OK;
    if (from >= 0)
        take_error(c, from, err);
    c->tally.waiting += fm_clock_now() - began;
    return c->agreed;
}

int fm_comm_least(struct fm_comm *c, int *value, struct fm_err *err)
{
    if (!c)
        return FM_OK;
    int rc = fm_comm_agree(c, FM_OK, err), mine = *value;
    if (rc)
        return rc;
    c->wire->collect(c->codes, &mine, sizeof mine);
    for (int r = 0; r < c->size; r++)
        *value = c->codes[r] < *value ? c->codes[r] : *value;
    return FM_OK;
}

/* ---- bytes ---- */

int fm_comm_tell(struct fm_comm *c, void *data, size_t bytes, struct fm_err *err)
{
    int rc = fm_comm_agree(c, FM_OK, err);
    if (!c || rc)
        return rc;
    double began = fm_clock_now();
    c->wire->tell(data, bytes);
    c->tally.waiting += fm_clock_now() - began;
    return FM_OK;
}

int fm_comm_collect(struct fm_comm *c, void *all, const void *mine, size_t bytes,
                    struct fm_err *err)
{
    if (!c) {
        memcpy(all, mine, bytes);
        return FM_OK;
    }
    int rc = fm_comm_agree(c, FM_OK, err);
    if (rc)
        return rc;
    double began = fm_clock_now();
    c->wire->collect(all, mine, bytes);
    c->tally.waiting += fm_clock_now() - began;
    return FM_OK;
}

int fm_comm_exchange(struct fm_comm *c, const struct fm_wire_part *send,
                     const struct fm_wire_part *recv, struct fm_err *err)
{
    int rc = fm_comm_agree(c, FM_OK, err);
    if (!c || rc)
        return rc;
    double began = fm_clock_now();
    c->wire->exchange(send, recv);
    c->tally.waiting += fm_clock_now() - began;
    return FM_OK;
}

/* Send this rank's slice to rank 0, or to all. */
static int send_slices(struct fm_comm *c, char *data, size_t value, size_t n, bool all,
                       struct fm_err *err)
{
    if (!c)
        return FM_OK;
    for (int r = 0; r < c->size; r++) {
        size_t first, count, mine, own;
        fm_comm_slice(c, r, n, &first, &count);
        fm_comm_slice(c, c->rank, n, &mine, &own);
        bool to = (all || r == 0) && r != c->rank, from = (all || c->rank == 0) && r != c->rank;
        c->send[r] = (struct fm_wire_part){data + mine * value, to ? own * value : 0};
        c->recv[r] = (struct fm_wire_part){data + first * value, from ? count * value : 0};
    }
    return fm_comm_exchange(c, c->send, c->recv, err);
}

int fm_comm_gather(struct fm_comm *c, void *data, size_t value, size_t n, struct fm_err *err)
{
    return send_slices(c, data, value, n, false, err);
}

int fm_comm_spread(struct fm_comm *c, void *data, size_t value, size_t n, struct fm_err *err)
{
    return send_slices(c, data, value, n, true, err);
}

/* ---- facts that must be equal on all ranks ---- */

/* Copy the first word that differs, preceded by the word before it, which names it. */
static void cut_to_word(char *word, const char *value, size_t differs)
{
    const char *from = value + differs, *end = from + strcspn(from, " ");
    for (int spaces = 0; from > value; from--)
        if (from[-1] == ' ' && ++spaces == 2)
            break;
    snprintf(word, VALUE_BYTES, "%.*s", (int)(end - from), from);
}

static int fail_different(const struct fm_comm *c, const char *what, const char *mine,
                          const char *first, struct fm_err *err)
{
    char here[VALUE_BYTES], there[VALUE_BYTES];
    size_t differs = 0;
    while (mine[differs] && mine[differs] == first[differs])
        differs++;
    cut_to_word(here, mine, differs);
    cut_to_word(there, first, differs);
    return fm_fail(err, FM_ECONFIG,
                   "%s is %s, but rank 0 on %s has %s; it must be the same on all ranks", what,
                   here, c->host[0], there);
}

int fm_comm_same(struct fm_comm *c, const struct fm_comm_fact *fact, int facts, struct fm_err *err)
{
    char mine[FM_COMM_FACTS_MAX][VALUE_BYTES] = {""}, first[FM_COMM_FACTS_MAX][VALUE_BYTES];
    if (!c)
        return FM_OK;
    assert(facts <= FM_COMM_FACTS_MAX);
    for (int i = 0; i < facts; i++)
        snprintf(mine[i], VALUE_BYTES, "%s", fact[i].value);
    memcpy(first, mine, sizeof mine);
    int rc = fm_comm_tell(c, first, sizeof first, err);
    for (int i = 0; !rc && i < facts; i++)
        if (memcmp(mine[i], first[i], VALUE_BYTES) != 0)
            rc = fail_different(c, fact[i].what, mine[i], first[i], err);
    return fm_comm_agree(c, rc, err);
}
