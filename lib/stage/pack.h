/*
 * Makes a bundle from a stage stream and a checkpoint.  No other code changes the order of channels
 * on disk.
 *
 * A bundle is a stage stream (ranking, masks, perhaps an adapter) together with the weights of the
 * checkpoint that it was made from.
 *
 * Weights are copied expert by expert in the dtype in which they are stored: rows of gate and up
 * and columns of down are permuted, interleaved and transposed as bytes; so are codes and their
 * scales, in whole channel groups (lib/model/packed.h).  Only weights that the adapter changes,
 * and the values of codes that are not kept, are computed in float32 and rounded once; all other
 * bytes are the checkpoint's.  Member digests and golden segment checksums are computed, and values
 * are checked for NaN and Inf, in the same pass.  Only a few experts per thread are in memory at a
 * time.
 *
 * For a file the checkpoint is read once and segments.safetensors is filled in afterwards; for
 * standard output it is read twice.  The bytes are the same in both cases and for any number of
 * threads.
 */
#ifndef FM_PACK_H
#define FM_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/quant/quant.h"
#include "lib/family/extra.h"
#include "lib/model/packed.h"
#include "lib/run/run.h"

/* Options of a bundle in addition to those of every tool. */
struct fm_pack_options {
    enum fm_weights_as weights;
    uint64_t part_bytes; /* maximum size of a file; 0: one file */
};

/* Largest file that the Hugging Face Hub recommends; it refuses files of more than 500 GB. */
#define FM_PACK_FILE_BYTES ((uint64_t)200 * 1000 * 1000 * 1000)

/* Report of fm_pack; with --dry-run, what it would write. */
struct fm_pack_report {
    uint64_t bytes_in;      /* the checkpoint's weights as they are stored */
    uint64_t bytes_weights; /* the weights in the bundle */
    uint64_t bytes_values;  /* the weights as values, which the bundle has if codes are not kept */
    char storage[FM_STORAGE_NAMES];       /* of the checkpoint, "fp8"; "": unquantised */
    bool kept;                            /* the bundle keeps the codes */
    char why_not[FM_PACKED_WHY];          /* the reason, if the checkpoint's codes are not kept */
    uint64_t bytes_out;                   /* the bundle */
    uint64_t bytes_largest;               /* size of the largest file */
    int parts;                            /* number of files */
    char part_first[256], part_last[256]; /* names of parts, without directories; "": one file */
    uint64_t bytes_memory;                /* estimate of the peak */
    uint64_t bytes_free;                  /* on the output's file system; 0 for standard output */
    int passes; /* passes over the checkpoint: 1, or 2 to standard output */
    int layers, experts, budgets, segments;
    struct fm_extra extra; /* extra tensors, copied unchanged */
    bool adapter;          /* an adapter is merged */
    uint64_t merged;       /* weights that the adapter changed */
    double seconds;
};

/*
 * Uses run->inputs.model and .stream ("-": standard input), run->outputs, threads, progress and
 * stop; no tokens.  With part_bytes the output is, unless one file holds everything, several files
 * of at most that many bytes, named as in formats/bundle/partname.h; not for standard output.  An
 * existing bundle of the output's name in a different number of files is removed when the new one
 * is complete. FM_ECONFIG if the stage stream comes from another checkpoint, or if codes are to be
 * kept but cannot be; FM_EFORMAT for broken input, or, naming the tensor, for NaN or Inf in a
 * weight; FM_ECREATE if the output exists or does not fit.
 */
int fm_pack(const struct fm_run_options *run, const struct fm_pack_options *options,
            struct fm_pack_report *report, struct fm_err *err);

/* Counts of fm_pack_compare, and its callback for differences. */
struct fm_pack_compared {
    uint64_t items,
        bytes; /* number of the bundle's tensors that were compared; bytes of the checkpoint */
    void (*differs)(void *self, const char *item, const char *what);
    void *self;
};

/*
 * Check whether fm_pack would make the bundle run->inputs.stream from the checkpoint
 * run->inputs.model.  The weights are packed again without writing them, and their checksums are
 * compared with the bundle's; each tensor of the bundle that differs is reported.  FM_ECONFIG if
 * the bundle was made from another checkpoint.
 */
int fm_pack_compare(const struct fm_run_options *run, struct fm_pack_compared *compared,
                    struct fm_err *err);

/* Read and check everything except the weights; write nothing. */
int fm_pack_plan(const struct fm_run_options *run, const struct fm_pack_options *options,
                 struct fm_pack_report *report, struct fm_err *err);

#endif
