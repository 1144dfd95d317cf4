/*
 * Synthetic checkpoints, tokens and stage streams for benchmarks: a Mixtral of any shape with
 * random weights, or a model of another family by its name, in the form of a
 * user's checkpoint.  A function of the seed.
 */
#ifndef FM_SYNTH_H
#define FM_SYNTH_H

#include <stdint.h>

#include "lib/base/dtype.h"
#include "lib/run/run.h"

struct fm_synth {
    int H, I, E, K, L, V, T; /* letters of kernels/ops/kernels.h */
    int Q, G, C;             /* heads, their width */
    enum fm_dtype dtype;     /* BF16, F16 or F32 */
    int dense;               /* layers before those L, without experts */
    const char *keys;        /* of config.json, where it is not a Mixtral: struct fm_shape */
    uint64_t seed;
};

/* "H,I,E,K,L,V,T": seven numbers; heads are as wide as 64 or what divides H, four query heads
 * share a key head where that goes.  Or the name of a model (lib/bench/shapes.h): layers of its
 * shape, as many as `layers` says, or two, a vocabulary of 4096 and sequences of 512.  FM_EUSAGE
 * says what is wrong. */
int fm_synth_parse(struct fm_synth *s, const char *shape, int layers, struct fm_err *err);

/* Bytes of its tensors. */
uint64_t fm_synth_bytes(const struct fm_synth *s);

/* Make the directory `path`: config.json and model.safetensors.  FM_ECREATE where it exists. */
int fm_synth_model(const struct fm_synth *s, const char *path, const struct fm_run_options *run,
                   struct fm_err *err);

/* A .npy of (sequences, T) int32 below V. */
int fm_synth_tokens(const struct fm_synth *s, int sequences, const char *path, struct fm_err *err);

/* A stage stream as fm-train would write it for the checkpoint `model`: random scores, masks at
 * every tenth by saliency, nothing measured. */
int fm_synth_stage(const char *model, const char *path, uint64_t seed, const atomic_int *stop,
                   struct fm_err *err);

#endif
