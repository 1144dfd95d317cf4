/* Messages between ranks arrive in order, and an error on one rank is returned on all.  Ranks are
 * threads here, and processes under MPI (test_ranks.sh). */
#include <unistd.h>

#include "tests/unit/ranks.h"
#include "tests/unit/test.h"

static struct fm_err never; /* for calls that must not fail */

/* ---- pieces ---- */

static void every_piece_has_one_owner(struct fm_comm *comm)
{
    static const size_t sizes[] = {0, 1, 2, 5, 15, 16, 17, 48, 100, 1000003};
    int ranks = fm_comm_size(comm);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i], at = 0, first, count, widest;
        int done = 0, from, own, most;
        fm_comm_slice(comm, 0, n, &first, &widest);
        fm_comm_share(comm, 0, (int)n, &from, &most);
        for (int r = 0; r < ranks; r++) {
            fm_comm_slice(comm, r, n, &first, &count);
            RANKS_CHECK(first == at && count <= widest);
            RANKS_CHECK(first % 16 == 0 || first == n);
            at += count;
            fm_comm_share(comm, r, (int)n, &from, &own);
            RANKS_CHECK(from == done && own <= most && own >= most - 1);
            done += own;
        }
        RANKS_CHECK(at == n && done == (int)n);
    }
    /* Products do not overflow. */
    int from, own;
    fm_comm_share(comm, ranks - 1, INT32_MAX, &from, &own);
    RANKS_CHECK(from + own == INT32_MAX && own >= INT32_MAX / ranks);
}

static void ranks_on_the_same_host_are_counted(struct fm_comm *comm)
{
    char host[64] = "";
    int nth, rank = fm_comm_rank(comm);
    gethostname(host, sizeof host - 1);
    RANKS_CHECK(strcmp(fm_comm_host(comm, rank), host) == 0);
    RANKS_CHECK(fm_comm_beside(comm, &nth) == fm_comm_size(comm) && nth == rank);
}

/* ---- bytes ---- */

static unsigned char byte_of(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 31 + i * 7 + i / 251);
}

static unsigned char *bytes_of(int rank, size_t n)
{
    unsigned char *p = malloc(n + 1);
    RANKS_CHECK(p);
    for (size_t i = 0; i < n; i++)
        p[i] = byte_of(rank, i);
    return p;
}

static void rank_0_broadcasts_its_data(struct fm_comm *comm)
{
    static const size_t sizes[] = {0, 1, 4096, 3000001};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        unsigned char *data = bytes_of(fm_comm_rank(comm), sizes[k]);
        RANKS_CHECK(fm_comm_tell(comm, data, sizes[k], &never) == FM_OK);
        for (size_t i = 0; i < sizes[k]; i++)
            RANKS_CHECK(data[i] == byte_of(0, i));
        free(data);
    }
}

static void records_are_collected_in_order(struct fm_comm *comm)
{
    struct {
        int rank;
        double value;
    } mine = {fm_comm_rank(comm), 1.0 / (1 + fm_comm_rank(comm))}, all[RANKS_MAX];
    memset(all, 0, sizeof all);
    RANKS_CHECK(fm_comm_collect(comm, all, &mine, sizeof mine, &never) == FM_OK);
    for (int r = 0; r < fm_comm_size(comm); r++)
        RANKS_CHECK(all[r].rank == r && all[r].value == 1.0 / (1 + r));
}

/* A gather gives rank 0 the slices of all ranks and changes no other rank's data; a spread gives
 * them to every rank. */
static void slices_are_gathered_and_spread(struct fm_comm *comm)
{
    static const size_t sizes[] = {1, 7, 16, 33, 100003};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        for (int all = 0; all < 2; all++) {
            size_t n = sizes[k], first, count;
            int rank = fm_comm_rank(comm);
            uint64_t *data = malloc(n * sizeof *data);
            for (size_t i = 0; i < n; i++)
                data[i] = (uint64_t)rank << 32 | i;
            RANKS_CHECK((all ? fm_comm_spread : fm_comm_gather)(comm, data, sizeof *data, n,
                                                                &never) == FM_OK);
            for (int r = 0; r < fm_comm_size(comm); r++) {
                bool has = all || rank == 0;
                fm_comm_slice(comm, r, n, &first, &count);
                for (size_t i = first; i < first + count; i++)
                    RANKS_CHECK(data[i] == ((uint64_t)(has ? r : rank) << 32 | i));
            }
            free(data);
        }
    }
}

/* Sizes that differ by pair, some of them 0. */
static size_t size_between(int from, int to)
{
    return (from + to) % 3 == 0 ? 0 : (size_t)from * 5000 + (size_t)to * 70001 + 1;
}

static void pairs_exchange(struct fm_comm *comm)
{
    struct fm_wire_part send[RANKS_MAX], recv[RANKS_MAX];
    int ranks = fm_comm_size(comm), rank = fm_comm_rank(comm);
    for (int r = 0; r < ranks; r++) {
        size_t out = size_between(rank, r), in = size_between(r, rank);
        send[r] = (struct fm_wire_part){bytes_of(rank * RANKS_MAX + r, out), out};
        recv[r] = (struct fm_wire_part){calloc(in + 1, 1), in};
    }
    RANKS_CHECK(fm_comm_exchange(comm, send, recv, &never) == FM_OK);
    for (int r = 0; r < ranks; r++) {
        const unsigned char *in = recv[r].data;
        for (size_t i = 0; i < recv[r].size; i++)
            RANKS_CHECK(in[i] == byte_of(r * RANKS_MAX + rank, i));
        free(send[r].data);
        free(recv[r].data);
    }
}

static void all_ranks_get_the_least(struct fm_comm *comm)
{
    int value = 100 - fm_comm_rank(comm);
    RANKS_CHECK(fm_comm_least(comm, &value, &never) == FM_OK);
    RANKS_CHECK(value == 100 - fm_comm_size(comm) + 1);
}

/* ---- agreement ---- */

/* If one rank was stopped, all ranks return its status, and communication continues. */
static void a_stop_is_agreed_and_communication_continues(struct fm_comm *comm)
{
    struct fm_err err = {0};
    int rank = fm_comm_rank(comm), last = fm_comm_size(comm) - 1;
    int rc = rank == last ? fm_fail(&err, FM_ESAVED, "stopped by a signal") : FM_OK;
    RANKS_CHECK(fm_comm_agree(comm, rc, &err) == FM_ESAVED && err.code == FM_ESAVED);
    RANKS_CHECK(strcmp(err.text, "stopped by a signal") == 0);
    /* Outer callers agree on the same error again; it is not sent twice. */
    RANKS_CHECK(fm_comm_agree(comm, FM_ESAVED, &err) == FM_ESAVED);
    rank_0_broadcasts_its_data(comm);
}

/* Rank 0 fails while the others make other calls: they return its error. */
static void all_ranks_get_the_error_of_rank_0(struct fm_comm *comm)
{
    struct fm_err err = {0};
    char word[8] = "";
    int rc = fm_comm_rank(comm) == 0
                 ? fm_comm_agree(comm, fm_fail(&err, FM_EIO, "no such disk"), &err)
                 : fm_comm_tell(comm, word, sizeof word, &err);
    RANKS_CHECK(rc == FM_EIO && err.code == FM_EIO && strcmp(err.text, "no such disk") == 0);
    RANKS_CHECK(fm_comm_close(comm, rc, &err) == FM_EIO);
}

/* All ranks return the error of the lowest failing rank, which takes precedence over a stop, and
 * communication ends. */
static void the_error_of_the_lowest_ends_all(struct fm_comm *comm)
{
    struct fm_err err = {0};
    char want[FM_ERR_TEXT_BYTES], word[8] = "";
    int rank = fm_comm_rank(comm), ranks = fm_comm_size(comm), rc = FM_OK;
    if (rank == 0)
        rc = fm_fail(&err, FM_ESAVED, "stopped by a signal");
    if (rank > 0)
        rc = fm_fail(&err, rank == 1 ? FM_ECREATE : FM_EIO, "rank %d is out of disk", rank);
    RANKS_CHECK(fm_comm_agree(comm, rc, &err) == FM_ECREATE && err.code == FM_ECREATE);
    snprintf(want, sizeof want, "rank 1 on %s: rank 1 is out of disk", fm_comm_host(comm, 1));
    RANKS_CHECK(strcmp(err.text, want) == 0);
    /* After that, every call returns the error at once, without communication. */
    for (int i = 0; i <= rank && ranks > 1; i++) {
        struct fm_err again = {0};
        RANKS_CHECK(fm_comm_tell(comm, word, sizeof word, &again) == FM_ECREATE);
        RANKS_CHECK(strcmp(again.text, want) == 0);
    }
    RANKS_CHECK(fm_comm_close(comm, FM_ECREATE, &err) == FM_ECREATE);
}

static void facts_that_are_the_same_pass(struct fm_comm *comm)
{
    char rank[16];
    const struct fm_comm_fact fact[] = {{"the version", "1"}, {"the seed", ""}};
    RANKS_CHECK(fm_comm_same(comm, fact, 2, &never) == FM_OK);
    snprintf(rank, sizeof rank, "%d", fm_comm_rank(comm));
    const struct fm_comm_fact none[] = {{"the rank", rank}};
    RANKS_CHECK(fm_comm_same(comm, none, 0, &never) == FM_OK);
}

static void a_fact_that_differs_is_named(struct fm_comm *comm)
{
    struct fm_err err = {0};
    char want[FM_ERR_TEXT_BYTES];
    bool other = fm_comm_rank(comm) > 0;
    const struct fm_comm_fact fact[] = {
        {"the version", "1"},
        {"an option", other ? "lr 1 batch 80 steps 4" : "lr 1 batch 8 steps 3"}};
    snprintf(want, sizeof want,
             "rank 1 on %s: an option is batch 80, but rank 0 on %s has batch 8; it must be the "
             "same on all ranks",
             fm_comm_host(comm, 1), fm_comm_host(comm, 0));
    RANKS_CHECK(fm_comm_same(comm, fact, 2, &err) == FM_ECONFIG && err.code == FM_ECONFIG);
    RANKS_CHECK(strcmp(err.text, want) == 0);
    RANKS_CHECK(fm_comm_close(comm, FM_ECONFIG, &err) == FM_ECONFIG);
}

static ranks_body *const bodies[] = {
    every_piece_has_one_owner,      ranks_on_the_same_host_are_counted,
    rank_0_broadcasts_its_data,     records_are_collected_in_order,
    slices_are_gathered_and_spread, pairs_exchange,
    all_ranks_get_the_least,        a_stop_is_agreed_and_communication_continues,
    slices_are_gathered_and_spread, facts_that_are_the_same_pass,
};
enum { BODIES = sizeof bodies / sizeof *bodies };

TEST(ranks_on_threads)
{
    static const int sizes[] = {2, 3, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ranks_of_threads(sizes[i], bodies, BODIES, NULL);
}

/* ---- a single process ---- */

TEST(a_single_process_does_not_communicate)
{
    double all = 0, mine = 3;
    int value = 7, first, count, nth;
    char data[4] = "abc";
    assert_int_equal(fm_comm_rank(NULL), 0);
    assert_int_equal(fm_comm_size(NULL), 1);
    assert_int_equal(fm_comm_beside(NULL, &nth), 1);
    fm_comm_share(NULL, 0, 9, &first, &count);
    assert_true(first == 0 && count == 9);
    assert_int_equal(fm_comm_agree(NULL, FM_EIO, &err), FM_EIO);
    assert_ok(fm_comm_least(NULL, &value, &err));
    assert_int_equal(value, 7);
    assert_ok(fm_comm_tell(NULL, data, 4, &err));
    assert_ok(fm_comm_gather(NULL, data, 1, 4, &err));
    assert_ok(fm_comm_spread(NULL, data, 1, 4, &err));
    assert_string_equal(data, "abc");
    assert_ok(fm_comm_collect(NULL, &all, &mine, sizeof mine, &err));
    assert_true(all == 3);
    assert_ok(fm_comm_same(NULL, NULL, 0, &err));
    assert_int_equal(fm_comm_close(NULL, FM_ESAVED, &err), FM_ESAVED);
}

/* Call fm_comm_open in a single process, with a launcher's environment variable set if value is not
 * NULL. */
static int open_alone(const char *name, const char *value, const struct fm_wire *wire,
                      const char **warning, struct fm_err *err)
{
    struct fm_comm *comm = NULL;
    *err = (struct fm_err){0};
    if (value)
        setenv(name, value, 1);
    int rc = fm_comm_open(&comm, wire, warning, err);
    unsetenv(name);
    assert_null(comm);
    return rc;
}

TEST(a_single_process_of_several_is_refused)
{
    static const char *const names[] = {"SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"};
    const char *warning = NULL;
    ranks_wire.size = 1;
    pthread_barrier_init(&ranks_wire.all, NULL, 1);
    for (int i = 0; i < 3; i++) {
        for (int linked = 0; linked < 2; linked++) {
            const struct fm_wire *wire = linked ? &ranks_threads : NULL;
            assert_fails(open_alone(names[i], "2", wire, &warning, &err), FM_EUSAGE, names[i]);
            assert_true((strstr(err.text, "make MPI=1") != NULL) == !linked);
            assert_true((strstr(err.text, "--mpi=pmix") != NULL) == (linked && i == 0));
            assert_ok(open_alone(names[i], "1", wire, &warning, &err));
            assert_ok(open_alone(names[i], NULL, wire, &warning, &err));
        }
    }
    assert_null(warning);
    pthread_barrier_destroy(&ranks_wire.all);
}

/* A value that is not a number above 1 is ignored. */
TEST(other_values_are_ignored)
{
    static const char *const values[] = {"", "abc", "0", "-3", "1", "2x", " 2", "0x10", "1e9"};
    const char *warning = NULL;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_ok(open_alone("PMI_SIZE", values[i], NULL, &warning, &err));
    assert_int_equal(open_alone("PMI_SIZE", "99999999999999999999999", NULL, &warning, &err),
                     FM_EUSAGE);
    assert_null(warning);
}

TEST(a_hint_only_warns)
{
    const char *warning = NULL;
    assert_ok(open_alone("WORLD_SIZE", "2", NULL, &warning, &err));
    assert_non_null(strstr(warning, "WORLD_SIZE"));
}

TEST(errors_end_communication_on_all_ranks)
{
    static ranks_body *const ends[] = {all_ranks_get_the_error_of_rank_0,
                                       the_error_of_the_lowest_ends_all,
                                       a_fact_that_differs_is_named};
    for (int size = 2; size <= 5; size++)
        for (int i = 0; i < 3; i++)
            ranks_of_threads(size, NULL, 0, ends[i]);
}

int main(void)
{
    return fm_wire_linked ? ranks_of_wire(bodies, BODIES, the_error_of_the_lowest_ends_all)
                          : tests_run(NULL, NULL);
}
