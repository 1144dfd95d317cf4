/*
 * Synthetic checkpoints, tokens and stage streams for benchmarks: a Mixtral of any shape with
 * random weights, in the form of a user's checkpoint.  The same seed gives the same bytes.
 */
#ifndef FM_SYNTH_H
#define FM_SYNTH_H

#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/run/run.h"

struct fm_synth {
    int H, I, E, K, L, V, T; /* letters of kernels/ops/kernels.h */
    int Q, G, C;             /* number of heads, and their width */
    enum fm_dtype dtype;     /* BF16, F16 or F32 */
    uint64_t seed;
};

/* Parse "H,I,E,K,L,V,T": seven numbers.  The width of heads is the largest power of two up
 * to 64 that divides H, and four query heads share a key head if the numbers allow.  Or parse the
 * name of a model without latent attention (lib/bench/shapes.h): two layers of its shape, a
 * vocabulary of 4096 and sequences of 512.  `layers`, unless 0, replaces this number of layers.
 * FM_EUSAGE reports what is wrong. */
int fm_synth_parse(struct fm_synth *s, const char *shape, int layers, struct fm_err *err);

/* Bytes of the checkpoint's tensors. */
uint64_t fm_synth_bytes(const struct fm_synth *s);

/* Make the directory `path` with config.json and model.safetensors.  FM_ECREATE if it exists. */
int fm_synth_model(const struct fm_synth *s, const char *path, const struct fm_run_options *run,
                   struct fm_err *err);

/* Make a .npy of (sequences, T) int32 below V. */
int fm_synth_tokens(const struct fm_synth *s, int sequences, const char *path, struct fm_err *err);

/* Make a stage stream such as fm-train would write for the checkpoint `model`: random scores,
 * masks at every tenth up to 0.8 by saliency, no measurements. */
int fm_synth_stage(const char *model, const char *path, uint64_t seed, const atomic_int *stop,
                   struct fm_err *err);

#endif
