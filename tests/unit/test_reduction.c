/* Sums over micro-batches have the bits of one process that adds from left to right, for any number
 * of ranks and any sizes.  Ranks are threads here, and processes under MPI (test_ranks.sh). */
#include "lib/engine/reduction.h"
#include "lib/engine/sweeping.h"
#include "tests/unit/ranks.h"
#include "tests/unit/test.h"

enum { ROWS = FM_SWEEP_BLOCK_TOKENS / 2 }; /* of a micro-batch: two are a leaf */

struct shape {
    enum fm_dtype dtype;
    int batches, lanes, sums;
    size_t values, n; /* capacity, and the number that is summed */
    double share;
};

/* Terms whose sum depends on their order. */
static double term(const struct shape *s, size_t contribution, size_t i)
{
    uint64_t x = (contribution + 1) * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    double v = (double)(x % 2000003) - 1000001;
    v *= x % 7 == 0 ? 1e6 : 1e-3;
    return s->dtype == FM_F32 ? (double)(float)v : v;
}

static double read_value(const struct shape *s, const void *sum, size_t i)
{
    return s->dtype == FM_F32 ? (double)((const float *)sum)[i] : ((const double *)sum)[i];
}

static void write_value(const struct shape *s, void *sum, size_t i, double v)
{
    if (s->dtype == FM_F32)
        ((float *)sum)[i] = (float)v;
    else
        ((double *)sum)[i] = v;
}

/* The result of one process: the definition, in plain C. */
static double expected(const struct shape *s, int sum, size_t i)
{
    double total = (double)sum + 0.5;
    for (int c = 0; c < s->batches * s->lanes; c++) {
        double t = c % s->sums == sum ? term(s, (size_t)c, i) : 0;
        if (c % s->sums == sum)
            total = s->dtype == FM_F32 ? (double)((float)total + (float)s->share * (float)t)
                                       : total + s->share * t;
    }
    return total;
}

/* The parts of a sweep that a reduction uses: which rank has which micro-batches. */
static void share_out(struct fm_sweep *sweep, int *share, struct fm_comm *comm,
                      const struct shape *s)
{
    int leaves = (s->batches + 1) / 2;
    *sweep = (struct fm_sweep){.options = {.comm = comm},
                               .batches = s->batches,
                               .rows = ROWS,
                               .together = fm_sweep_together(s->batches, ROWS, 0),
                               .share = share};
    for (int r = 0; r < fm_comm_size(comm); r++) {
        int first, count;
        fm_comm_share(comm, r, leaves, &first, &count);
        share[r] = 2 * first < s->batches ? 2 * first : s->batches;
    }
    share[fm_comm_size(comm)] = s->batches;
}

/* Add this rank's contributions, which sets the slot to zeros. */
static void contribute(struct fm_reduction *f, const struct fm_sweep *sweep, const struct shape *s)
{
    int rank = fm_comm_rank(sweep->options.comm);
    size_t half = s->n / 2, width = s->dtype == FM_F32 ? 4 : 8;
    void *slot = calloc(s->n + 1, width);
    RANKS_CHECK(slot);
    fm_reduction_layer(f);
    for (int c = sweep->share[rank] * s->lanes; c < sweep->share[rank + 1] * s->lanes; c++) {
        for (size_t i = 0; i < s->n; i++)
            write_value(s, slot, i, term(s, (size_t)c, i));
        fm_reduction_add(f, slot, 0, s->n);
        for (size_t i = 0; i < s->n; i += s->n - half)
            RANKS_CHECK(read_value(s, slot, i) == 0);
    }
    free(slot);
}

/* Check every sum: all its values if `whole`, otherwise those that this rank owns. */
static void check_sums(const struct fm_reduction *f, const struct fm_comm *comm,
                       const struct shape *s, bool whole)
{
    size_t first = 0, count = s->n, width = s->dtype == FM_F32 ? 4 : 8;
    if (!whole)
        fm_comm_slice(comm, fm_comm_rank(comm), s->n, &first, &count);
    for (int k = 0; k < s->sums; k++) {
        const char *sum = (const char *)f->sum + (size_t)k * s->values * width;
        for (size_t i = first; i < first + count; i++)
            RANKS_CHECK(read_value(s, sum, i) == expected(s, k, i));
        for (size_t i = s->n; i < s->values; i++) /* values that are not summed are unchanged */
            RANKS_CHECK(read_value(s, sum, i) == k + 0.5);
    }
}

static void reduce(struct fm_comm *comm, const struct shape *s)
{
    int share[RANKS_MAX + 1];
    struct fm_sweep sweep;
    struct fm_reduction f;
    struct fm_err err = {0};
    share_out(&sweep, share, comm, s);
    RANKS_CHECK(fm_reduction_init(&f, &sweep, fm_ops_ref(), s->dtype, s->sums, s->values, s->lanes,
                                  &err) == FM_OK);
    for (int round = 0; round < (s->n > 10000 ? 1 : 2);
         round++) { /* no value is left from the first run */
        for (size_t i = 0; i < (size_t)s->sums * s->values; i++)
            write_value(s, f.sum, i, (double)(i / s->values) + 0.5);
        fm_reduction_begin(&f, s->share);
        contribute(&f, &sweep, s);
        RANKS_CHECK(fm_reduction_end(&f, s->n, &err) == FM_OK);
        check_sums(&f, comm, s, false);
        RANKS_CHECK(fm_reduction_whole(&f, s->n, &err) == FM_OK);
        check_sums(&f, comm, s, true);
    }
    fm_reduction_release(&f);
}

static void sums_have_the_bits_of_one_process(struct fm_comm *comm)
{
    static const struct shape shapes[] = {
        {FM_F64, 9, 1, 1, 100, 100, 1},      /* five leaves, the last one half full */
        {FM_F32, 9, 1, 1, 100, 37, 0.125},   /* fewer than the capacity */
        {FM_F64, 10, 3, 3, 50, 50, 1.0 / 3}, /* a sum for each lane */
        {FM_F32, 7, 3, 1, 1000, 1000, 1},    /* lanes one after another in one sum */
        {FM_F64, 1, 2, 2, 33, 33, 1},        /* one leaf: most ranks have no work */
        {FM_F32, 40, 1, 1, 5, 5, 1},         /* fewer values than a vector: one owner */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        reduce(comm, &shapes[i]);
}

/* More than fits in one message. */
static void long_sums_are_sent_in_pieces(struct fm_comm *comm)
{
    const struct shape s = {FM_F64, 130, 1, 1, 66001, 66001, 1};
    reduce(comm, &s);
}

static ranks_body *const bodies[] = {sums_have_the_bits_of_one_process,
                                     long_sums_are_sent_in_pieces};

TEST(one_process_and_threads_give_the_same_sums)
{
    static const int sizes[] = {2, 3, 5, 8};
    sums_have_the_bits_of_one_process(NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        ranks_of_threads(sizes[i], bodies, 1, NULL);
    ranks_of_threads(2, bodies + 1, 1, NULL);
}

int main(void)
{
    return fm_wire_linked ? ranks_of_wire(bodies, 2, NULL) : tests_run(NULL, NULL);
}
