/*
 * The thread pool and each thread's scratch memory.
 *
 * fm_pool_for splits a loop into n tasks that threads take in order of index.  Calls nest: a task
 * may call fm_pool_for, and idle threads help with any open loop, so an outer loop over batches and
 * an inner one over tiles together use every core.
 *
 * Results do not depend on the number of threads because of one rule: what a task computes depends
 * on its index and its data, never on the thread, the number of threads or the order.  Each task
 * writes to its own memory; sums over tasks are computed afterwards, in order of index.
 */
#ifndef FM_BASE_POOL_H
#define FM_BASE_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lib/base/err.h"

#define FM_THREADS_MAX 1024

/*
 * Start `threads` - 1 threads in addition to the calling one (0: one thread per available CPU).
 * Call it once per process; before that, and after fm_pool_stop, loops run on the calling thread
 * only.  FM_EUSAGE over FM_THREADS_MAX, FM_ENOMEM.
 */
int fm_pool_start(int threads, struct fm_err *err);
void fm_pool_stop(void);

/* Number of threads that work on loops, including the caller. */
int fm_pool_threads(void);

/* Run task(arg, i) for every i in [0, n); return when all are done. */
void fm_pool_for(int n, void (*task)(void *arg, int i), void *arg);

/*
 * Stopping a run early.  After this call the calling thread, and the tasks of the loops that it
 * opens, belong to a run that ends once *stop is not 0; NULL: the run cannot be stopped.  Returns
 * the previous pointer. fm_pool_ending() is true once *stop is not 0: the results of the calling
 * thread will be discarded, and tasks may skip their work. *stop keeps its value until the run has
 * ended, so the thread that opened a loop can find out afterwards whether tasks were skipped.
 */
const atomic_int *fm_pool_heed(const atomic_int *stop);
bool fm_pool_ending(void);

/*
 * For measuring: a label says what a thread is doing.  A task inherits the label of the thread that
 * opened its loop; a thread that waits for tasks is idle; every other thread starts with 0.
 */
enum { FM_POOL_IDLE = -2, FM_POOL_READING = -1 };

/* Set the calling thread's label; returns the previous one. */
int fm_pool_label(int label);

/* `changed`, unless NULL, is called by every thread whose label is about to change.  Call this
 * while all other threads are idle. */
void fm_pool_watch(void (*changed)(int from));

/*
 * Scratch of the calling thread: a stack that keeps its memory between uses.
 *
 *     struct fm_mark mark = fm_scratch_mark();
 *     float *tile = fm_scratch(bytes);
 *     ...
 *     fm_scratch_release(mark);
 *
 * Blocks are FM_ALIGN-aligned and not zeroed.  When the machine is out of memory the process ends
 * with FM_ENOMEM and one sentence (lib/base/fatal.h), and temporary files are removed.  The memory
 * plan of a run includes an upper bound on its scratch.
 */
struct fm_mark {
    size_t chunk, used;
};
struct fm_mark fm_scratch_mark(void);
void *fm_scratch(size_t bytes);
/* If the calling thread's stack is empty, replace its chunks with one that has room for `bytes`,
 * unless it is already one such chunk.  Without this call the stack could hold the chunks of an
 * earlier use in addition to those of the next. */
void fm_scratch_reserve(size_t bytes);
static inline float *fm_scratch_floats(size_t n)
{
    return fm_scratch(n * sizeof(float));
}
void fm_scratch_release(struct fm_mark mark);

#endif
