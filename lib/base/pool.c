/*
 * The pool is one list of open loops under one mutex.  Tasks are large (a tile, an expert, a
 * batch), so the cost of a lock per task is negligible, and a queue per thread would gain nothing.
 * Idle threads take from the newest loop, because an inner loop must end before its outer one can
 * go on.  A thread that waits for its own loop first takes all remaining tasks of that loop, and
 * then only tasks of loops that these tasks opened.  A task of any other loop could take longer
 * than the loop that the thread waits for, could wait for a lock that the thread holds, or could
 * need scratch in addition to the thread's.  There is no deadlock, because a thread waits only for
 * tasks that are running.
 *
 * Each thread has a scratch stack of chunks that double in size, so that after the first few tasks
 * no task requests memory from the system.  Large chunks use huge pages, for the reason given in
 * mem.c.
 *
 * OpenMP would be enough for plain loops.  But a loop inside a task could not use idle threads (a
 * nested team starts new threads), OpenMP's threads would receive signals, and the runtime ends the
 * process when it cannot create a thread.
 */
#include "lib/base/pool.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/base/fatal.h"
#include "lib/base/mem.h"
#include "lib/base/signals.h"
#include "lib/base/trace.h"

/* One open loop.  It lives on its caller's stack and in the list of open loops. */
struct loop {
    void (*task)(void *arg, int i);
    void *arg;
    int n;
    int next;    /* first index not yet taken */
    int running; /* tasks that were taken and have not finished */
    struct loop *older;
    const struct loop *parent; /* the loop whose task opened this one, or NULL */
    int label;
    const atomic_int *stop; /* the stop flag of its run */
};

/* `lock` guards the open loops, n_idle, n_waiting and stopping. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_came = PTHREAD_COND_INITIALIZER;
static pthread_cond_t task_ended =
    PTHREAD_COND_INITIALIZER; /* also signalled when a loop is opened */
static struct loop *loops;    /* newest first */
static pthread_t helpers[FM_THREADS_MAX];
static int n_helpers;
static int n_idle;
static int n_waiting; /* threads that wait for the end of a loop that they opened */
static bool stopping;
static _Thread_local const struct loop *inside; /* the loop whose task this thread runs */

static _Thread_local const atomic_int *heeded;

const atomic_int *fm_pool_heed(const atomic_int *stop)
{
    const atomic_int *before = heeded;
    heeded = stop;
    return before;
}

bool fm_pool_ending(void)
{
    return heeded && *heeded;
}

static _Thread_local int label;
static _Atomic(void (*)(int from)) watch;

int fm_pool_label(int next)
{
    int before = label;
    void (*changed)(int) =
        next == before ? NULL : atomic_load_explicit(&watch, memory_order_relaxed);
    if (changed)
        changed(before);
    label = next;
    return before;
}

void fm_pool_watch(void (*changed)(int from))
{
    atomic_store(&watch, changed);
}

/* Run the next task of a loop.  The lock is held before and after, but not during the task. */
static void run_one(struct loop *loop)
{
    const struct loop *before = inside;
    assert(loop->next < loop->n);
    int i = loop->next++;
    loop->running++;
    pthread_mutex_unlock(&lock);
    inside = loop;
    int outer = fm_pool_label(loop->label);
    const atomic_int *stop = fm_pool_heed(loop->stop);
    loop->task(loop->arg, i);
    assert(inside == loop); /* loops that the task opened have ended */
    fm_pool_heed(stop);
    fm_pool_label(outer);
    inside = before;
    pthread_mutex_lock(&lock);
    if (--loop->running == 0 && loop->next >= loop->n)
        pthread_cond_broadcast(&task_ended);
}

static bool descends(const struct loop *loop, const struct loop *from)
{
    while (loop && loop != from)
        loop = loop->parent;
    return loop == from;
}

/* The newest loop with untaken tasks that descends from `from` (any loop if NULL). */
static struct loop *open_loop(const struct loop *from)
{
    for (struct loop *l = loops; l; l = l->older)
        if (l->next < l->n && descends(l, from))
            return l;
    return NULL;
}

static void await(pthread_cond_t *event)
{
    int before = fm_pool_label(FM_POOL_IDLE);
    pthread_cond_wait(event, &lock);
    fm_pool_label(before);
}

static void *help(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        struct loop *l = open_loop(NULL);
        if (l) {
            run_one(l);
            continue;
        }
        n_idle++;
        await(&work_came);
        n_idle--;
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

int fm_pool_start(int threads, struct fm_err *err)
{
    assert(n_helpers == 0);
    if (threads == 0) {
        cpu_set_t set; /* too small if the kernel supports more CPUs: then count those online */
        bool known = sched_getaffinity(0, sizeof set, &set) == 0;
        threads = known ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
        if (threads > FM_THREADS_MAX)
            threads = FM_THREADS_MAX;
    }
    if (threads < 1 || threads > FM_THREADS_MAX)
        return fm_fail(err, FM_EUSAGE, "%d threads (limit %d)", threads, FM_THREADS_MAX);
    FM_TRACE(FM_TRACE_POOL, "%d threads", threads);
    stopping = false;
    while (n_helpers < threads - 1) {
        if (fm_signals_thread(&helpers[n_helpers], help, NULL) != 0) {
            fm_pool_stop();
            fm_fail(err, FM_ENOMEM, "cannot start thread %d of %d", n_helpers + 2, threads);
            return fm_advise(err, FM_ADVISE_FEWER_THREADS);
        }
        n_helpers++;
    }
    return FM_OK;
}

void fm_pool_stop(void)
{
    pthread_mutex_lock(&lock);
    assert(!loops); /* not called in a task, nor while another thread is in a loop */
    stopping = true;
    pthread_cond_broadcast(&work_came);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < n_helpers; i++)
        pthread_join(helpers[i], NULL);
    n_helpers = 0;
}

int fm_pool_threads(void)
{
    return n_helpers + 1;
}

/* Wait until no task of the loop is running.  All have been taken, so those that run are with other
 * threads, which wait only for loops below this one: there is no circle. */
static void wait_for(const struct loop *loop)
{
    assert(loop->next >= loop->n);
    while (loop->running > 0) {
        struct loop *l = open_loop(loop);
        if (l) {
            run_one(l);
            continue;
        }
        n_waiting++;
        await(&task_ended);
        n_waiting--;
    }
}

void fm_pool_for(int n, void (*task)(void *arg, int i), void *arg)
{
    FM_TRACE(FM_TRACE_POOL, "loop of %d tasks, %s", n, inside ? "in a task" : "outermost");
    if (n <= 1 || n_helpers == 0) {
        for (int i = 0; i < n; i++)
            task(arg, i);
        return;
    }
    struct loop loop = {
        .task = task, .arg = arg, .n = n, .parent = inside, .label = label, .stop = heeded};
    pthread_mutex_lock(&lock);
    loop.older = loops;
    loops = &loop;
    if (n_idle > 0)
        pthread_cond_broadcast(&work_came);
    if (n_waiting > 0)
        pthread_cond_broadcast(&task_ended);
    while (loop.next < loop.n)
        run_one(&loop);
    wait_for(&loop);
    struct loop **at = &loops; /* loops opened since may be in front of it */
    while (*at != &loop)
        at = &(*at)->older;
    *at = loop.older;
    pthread_mutex_unlock(&lock);
}

#define CHUNKS 24
#define CHUNK_BYTES_MIN ((size_t)1 << 20)
#define LARGE_PAGE ((size_t)2 << 20)
#define LARGE (2 * LARGE_PAGE)

/*
 * Chunk c is at least twice as large as chunk c - 1, so CHUNKS of them hold anything.  When the
 * stack is empty, several chunks are replaced with one that has room for the largest use so far, so
 * a thread keeps no more than it needs.
 *
 *     chunk 0 |#######  |   chunk 1 |##############    |   chunk 2 |####                  |
 *              filled[0]             filled[1]                      used
 *
 * A block that does not fit at the end of a chunk begins the next one; the rest stays unused until
 * the stack is released to before it.
 */
struct scratch {
    char *block[CHUNKS];
    size_t bytes[CHUNKS];
    size_t filled[CHUNKS]; /* bytes used of each chunk before the current one */
    size_t chunk, used;
    size_t peak; /* most bytes in use at once */
};

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static _Thread_local struct scratch *mine;

static void free_scratch(void *p)
{
    struct scratch *s = p;
    for (int c = 0; c < CHUNKS; c++)
        free(s->block[c]);
    free(s);
}

static _Noreturn void out_of_memory(size_t bytes)
{
    fm_fatal_memory("no memory for %zu bytes of scratch", bytes);
}

static void make_key(void)
{
    if (pthread_key_create(&scratch_key, free_scratch) != 0)
        out_of_memory(sizeof(struct scratch));
}

static struct scratch *scratch(void)
{
    if (mine)
        return mine;
    pthread_once(&scratch_once, make_key);
    mine = calloc(1, sizeof *mine);
    if (!mine || pthread_setspecific(scratch_key, mine) != 0)
        out_of_memory(sizeof *mine);
    return mine;
}

struct fm_mark fm_scratch_mark(void)
{
    struct scratch *s = scratch();
    return (struct fm_mark){s->chunk, s->used};
}

static void make_chunk(struct scratch *s, size_t c, size_t size)
{
    size_t align = size < LARGE ? FM_ALIGN : LARGE_PAGE;
    free(s->block[c]);
    size = (size + align - 1) / align * align;
    s->block[c] = aligned_alloc(align, size);
    if (!s->block[c])
        out_of_memory(size);
    if (align == LARGE_PAGE)
        madvise(s->block[c], size, MADV_HUGEPAGE);
    s->bytes[c] = size;
}

/* Replace all chunks with one of `size` bytes. */
static void join_chunks(struct scratch *s, size_t size)
{
    assert(s->chunk == 0 && s->used == 0); /* no block is in use */
    for (size_t c = 0; c < CHUNKS; c++) {
        free(s->block[c]);
        s->block[c] = NULL;
        s->bytes[c] = 0;
    }
    make_chunk(s, 0, size);
}

void fm_scratch_reserve(size_t bytes)
{
    struct scratch *s = scratch();
    size_t all = 0;
    for (size_t c = 0; c < CHUNKS; c++)
        all += s->bytes[c];
    if (s->chunk > 0 || s->used > 0 || (s->bytes[0] >= bytes && all == s->bytes[0]))
        return;
    s->peak = bytes > s->peak ? bytes : s->peak;
    join_chunks(s, s->peak + CHUNK_BYTES_MIN); /* room for rounding blocks up to FM_ALIGN */
}

void *fm_scratch(size_t bytes)
{
    struct scratch *s = scratch();
    if (bytes > SIZE_MAX / 4) /* the size of a chunk is doubled until it is large enough */
        out_of_memory(bytes);
    size_t want = (bytes + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    /* Add an eighth: pages that are not touched take no memory. */
    size_t room = s->peak + s->peak / 8;
    if (s->chunk == 0 && s->used == 0 && s->bytes[1] > 0)
        join_chunks(s, room / CHUNK_BYTES_MIN * CHUNK_BYTES_MIN + CHUNK_BYTES_MIN);
    while (s->bytes[s->chunk] < want || s->bytes[s->chunk] - want < s->used) {
        if (s->bytes[s->chunk] > 0 && s->used > 0) {
            s->filled[s->chunk++] = s->used;
            s->used = 0;
            assert(s->chunk < CHUNKS);
        }
        if (s->bytes[s->chunk] >= want)
            continue;
        size_t size = s->chunk ? 2 * s->bytes[s->chunk - 1] : CHUNK_BYTES_MIN;
        while (size < want)
            size *= 2;
        make_chunk(s, s->chunk, size);
    }
    void *p = s->block[s->chunk] + s->used;
    s->used += want;
    assert((uintptr_t)p % FM_ALIGN == 0 && s->used <= s->bytes[s->chunk]);
    size_t all = s->used;
    for (size_t c = 0; c < s->chunk; c++)
        all += s->filled[c];
    s->peak = all > s->peak ? all : s->peak;
    return p;
}

void fm_scratch_release(struct fm_mark mark)
{
    struct scratch *s = scratch();
    assert(mark.chunk < s->chunk || (mark.chunk == s->chunk && mark.used <= s->used));
    s->chunk = mark.chunk;
    s->used = mark.used;
}
