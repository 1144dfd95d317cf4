/*
 * PyTorch for comparison with our kernels: formats/runtime/torch_experts.py in a separate process,
 * which computes the layer of a measurement (lib/bench/kernelcase.h) on request.  For comparison
 * with the engine there is formats/runtime/torch_loops.py, which processes a whole checkpoint.
 * Private to lib/bench.
 *
 * The process receives the layer's numbers over a socket and keeps a copy of them, which doubles
 * the memory for the weights. fm_pytorch_why gives the reason for a missing figure in one sentence.
 * After an error of the process no further request is sent.
 */
#ifndef FM_PYTORCH_H
#define FM_PYTORCH_H

#include <stdatomic.h>
#include <stdbool.h>

#include "lib/base/err.h"

#define FM_PYTORCH_SILENCE 600 /* seconds */

struct fm_kernelcase;
struct fm_pytorch;

/* Start `python` (found in PATH), let it import torch, and send it the layer, which must be filled;
 * give up after `silence` seconds without an answer, or once *stop (may be NULL) is set.  FM_ENOENT
 * if there is no such program or no torch, FM_ESAVED once *stop is set, FM_EIO if it fails
 * otherwise; *p is NULL then. */
int fm_pytorch_open(struct fm_pytorch **p, const char *python, const struct fm_kernelcase *c,
                    int silence, const atomic_int *stop, struct fm_err *err);
void fm_pytorch_close(struct fm_pytorch *p); /* ends the process; NULL is fine */

/* "2.15.0" */
const char *fm_pytorch_version(const struct fm_pytorch *p);

/* Seconds of one run of the kernel "torch-loop" or "torch-grouped" at c->budget, with cold caches;
 * the first rows of c->out are its result.  0: it cannot run this case, or the process has
 * failed. */
double fm_pytorch_run(struct fm_pytorch *p, const struct fm_kernelcase *c, const char *kernel,
                      int tokens);

/* The error of the process, else the reason for the first case that it could not run, else "". */
const char *fm_pytorch_why(const struct fm_pytorch *p);

/* The speed of an autograd loop over transformers' model of a checkpoint. */
struct fm_pytorch_row {
    const char *what, *precision; /* "rank" or "train"; "bf16" or "f32" */
    char experts[32];             /* transformers' name of its fastest expert implementation */
    double tokens_second;         /* 0: not measured */
    char why[FM_ERR_TEXT_BYTES];  /* why it was not measured */
};

struct fm_pytorch_loops {
    char version[64];
    int rows;
    struct fm_pytorch_row row[2];
};

/* Loops over the checkpoint `model` and the rows of `tokens`, a .npy, in `precision` ("bf16" or
 * "f32"; borrowed by the result), on as many threads as the pool has: ranking and, if requested,
 * steps of training.  No other precision is tried: on a CPU without bfloat16 products PyTorch
 * emulates them, which takes hours.  Errors as in fm_pytorch_open. */
int fm_pytorch_loops(struct fm_pytorch_loops *loops, const char *python, const char *model,
                     const char *tokens, const char *precision, bool train, int silence,
                     const atomic_int *stop, struct fm_err *err);

#endif
