/*
 * Private to kernels/clip: threads of libfm_clip.  A pool of its own, because the library lives in
 * processes that have theirs (PyTorch, a server) and must not wait for them.
 */
#ifndef FM_KERNELS_CLIP_POOL_H
#define FM_KERNELS_CLIP_POOL_H

/* CPUs this process may use. */
int fm_clip_pool_cpus(void);

/* See to it that `threads` can work, the caller's counted; fewer where the system gives fewer. They
 * run where the caller may, or, where that is on fewer CPUs, where its process has bound its
 * others. */
void fm_clip_pool_want(int threads);

/*
 * task(arg, i, worker) for i in [0, n), by up to `threads` workers, 0 <= worker < threads, each
 * value in one thread at a time; returns when all are done.  Tasks are taken in order of i.
 * Allocates nothing.  While another caller's loop runs, this one runs on the caller alone.
 */
void fm_clip_pool_for(int threads, int n, void (*task)(void *arg, int i, int worker), void *arg);

#endif
