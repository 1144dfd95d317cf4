/*
 * Private to kernels/clip: threads of libfm_clip.  The library has its own pool because the program
 * that links it (PyTorch, a server) has one too, and neither may wait for the other.
 */
#ifndef FM_KERNELS_CLIP_POOL_H
#define FM_KERNELS_CLIP_POOL_H

/* Number of CPUs that the calling thread may use, 1 to 1024. */
int fm_clip_pool_cpus(void);

/* Start threads until there are `threads`, including the caller's; fewer if the system allows
 * fewer.  They run on the CPUs that the caller may use, or, if these are too few, on those to which
 * the process has bound its other threads. */
void fm_clip_pool_want(int threads);

/*
 * Run task(arg, i, worker) for i in [0, n), 0 <= worker < threads; no two threads use the same
 * `worker` at once.  Returns when all are done.  Tasks are taken in order of i.
 * Allocates nothing.  While another caller's loop runs, this one uses only the calling thread.
 */
void fm_clip_pool_for(int threads, int n, void (*task)(void *arg, int i, int worker), void *arg);

#endif
