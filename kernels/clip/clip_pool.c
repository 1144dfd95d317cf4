/*
 * Helper threads are started once and shared by all layers of the process.  A call has a few short
 * loops, so a helper spins for a short time before it sleeps.  One caller at a time uses the
 * pool; others run their loops by themselves instead of waiting.  Helpers handle no signals, do not
 * survive a fork (the child starts its own), and are not bound to the single CPU to which an OpenMP
 * program bound the caller.
 */
#include "kernels/clip/clip_pool.h"

#include <assert.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum { SPINS = 4000 }; /* 10 to 100 microseconds; usually the next loop opens sooner */

/* The current loop.  Helpers enter it under `lock`; they take tasks and leave without it. */
struct loop {
    void (*task)(void *arg, int i, int worker);
    void *arg;
    int n, threads, entered; /* entered: helpers that joined, numbered from 1 */
    bool open;
    atomic_int next, inside; /* inside: helpers at work */
};

static struct {
    pthread_mutex_t owner; /* held by the caller of the current loop */
    pthread_mutex_t lock;
    pthread_cond_t opened;
    int asleep;
    atomic_int helpers;
    atomic_uint loops; /* number of loops opened so far */
    struct loop loop;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .opened = PTHREAD_COND_INITIALIZER};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

int fm_clip_pool_cpus(void)
{
    cpu_set_t set; /* too small if the kernel supports more CPUs: then count those online */
    bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    int cpus = known ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return cpus < 1 ? 1 : cpus > 1024 ? 1024 : cpus;
}

static void run_tasks(struct loop *l, int worker)
{
    int i;
    while ((i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < l->n)
        l->task(l->arg, i, worker);
}

/* Wait until a loop opens that this helper has not seen: first spinning, then asleep. */
static unsigned await_loop(unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool.loops, memory_order_acquire) != seen)
            break;
        relax();
    }
    pthread_mutex_lock(&pool.lock);
    while (atomic_load(&pool.loops) == seen) {
        pool.asleep++;
        pthread_cond_wait(&pool.opened, &pool.lock);
        pool.asleep--;
    }
    return atomic_load(&pool.loops); /* the caller unlocks */
}

static void *help(void *unused)
{
    unsigned seen = 0;
    (void)unused;
    for (;;) {
        struct loop *l = &pool.loop;
        seen = await_loop(seen);
        int worker = l->open && l->entered + 1 < l->threads ? ++l->entered : 0;
        if (worker)
            atomic_fetch_add(&l->inside, 1);
        pthread_mutex_unlock(&pool.lock);
        if (worker) {
            assert(worker < l->threads);
            run_tasks(l, worker);
            atomic_fetch_sub_explicit(&l->inside, 1, memory_order_release);
        }
    }
    return NULL;
}

/* A forked child has only the calling thread. */
static void forget_helpers(void)
{
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.opened, NULL);
    pool.asleep = 0;
    atomic_store(&pool.helpers, 0);
    pool.loop.open = false;
    atomic_store(&pool.loop.inside, 0);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_helpers);
}

/* Servers bind each OpenMP thread to a CPU, and a new thread inherits the binding of its
 * creator: all helpers would share one CPU.  If the caller may use fewer CPUs than `threads`, find
 * the other CPUs of threads that are bound to no more CPUs than the caller; false if the caller has
 * enough, or if there are no others. */
static bool find_other_cpus(cpu_set_t *others, int threads)
{
    cpu_set_t own, one;
    CPU_ZERO(others);
    if (sched_getaffinity(0, sizeof own, &own) != 0 || CPU_COUNT(&own) >= threads)
        return false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        int thread = atoi(d->d_name); /* 0, the caller, for . and .. */
        if (sched_getaffinity(thread, sizeof one, &one) == 0 && CPU_COUNT(&one) <= CPU_COUNT(&own))
            CPU_OR(others, others, &one);
    }
    if (tasks)
        closedir(tasks);
    CPU_AND(&one, others, &own);
    CPU_XOR(others, others, &one);
    return CPU_COUNT(others) > 0;
}

void fm_clip_pool_want(int threads)
{
    cpu_set_t others;
    bool bound = pool.helpers < threads - 1 && find_other_cpus(&others, threads);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    sigset_t all, old;
    pthread_once(&once, watch_forks);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are handled by the program's own threads */
    pthread_mutex_lock(&pool.lock);
    while (pool.helpers < threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, help, NULL) != 0)
            break;
        if (bound)
            pthread_setaffinity_np(thread, sizeof others, &others);
        pthread_detach(thread);
        pool.helpers++;
    }
    pthread_mutex_unlock(&pool.lock);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void run_serial(int n, void (*task)(void *arg, int i, int worker), void *arg)
{
    for (int i = 0; i < n; i++)
        task(arg, i, 0);
}

static void open_loop(int threads, int n, void (*task)(void *arg, int i, int worker), void *arg)
{
    struct loop *l = &pool.loop;
    pthread_mutex_lock(&pool.lock);
    assert(!l->open && atomic_load(&l->inside) == 0); /* no helper reads the loop before this one */
    l->task = task;
    l->arg = arg;
    l->n = n;
    l->threads = threads < n ? threads : n;
    l->entered = 0;
    l->open = true;
    atomic_store(&l->next, 0);
    atomic_fetch_add_explicit(&pool.loops, 1, memory_order_release);
    if (pool.asleep)
        pthread_cond_broadcast(&pool.opened);
    pthread_mutex_unlock(&pool.lock);
}

static void close_loop(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.loop.open = false;
    pthread_mutex_unlock(&pool.lock);
    /* No helper can enter now; wait for those that did. */
    for (int i = 0; atomic_load_explicit(&pool.loop.inside, memory_order_acquire) > 0; i++)
        if (i < SPINS)
            relax();
        else
            sched_yield();
}

void fm_clip_pool_for(int threads, int n, void (*task)(void *arg, int i, int worker), void *arg)
{
    if (threads < 2 || n < 2 || pthread_mutex_trylock(&pool.owner) != 0) {
        run_serial(n, task, arg);
        return;
    }
    if (pool.helpers > 0) {
        open_loop(threads, n, task, arg);
        run_tasks(&pool.loop, 0);
        close_loop();
    } else {
        run_serial(n, task, arg);
    }
    pthread_mutex_unlock(&pool.owner);
}
