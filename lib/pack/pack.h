/*
 * This room, lib/pack: the bundle, made of a stage stream and a checkpoint.  It is the only place
 * where weights are reordered for good.  In reading order: this header, packing.h, pack.c (what is
 * written, in which order), packweights.c (how an expert's bytes are made).
 *
 * Make a bundle: a stage stream (ranking, masks, perhaps an adapter) and the
 * checkpoint it was made from become one stream that carries the weights.
 *
 * Weights pass expert by expert in the dtype they are stored in: rows of gate and
 * up and columns of down are permuted, interleaved and transposed as bytes; codes and their
 * scales too, in whole channel groups (lib/model/packed.h).  Only
 * channels under the adapter's mask go through float32, and are rounded once; all
 * other bytes are the checkpoint's.  Member digests, golden segment checksums and
 * the search for NaN and Inf happen in the same pass.  A few experts per thread
 * are in memory at a time.
 *
 * To a file the weights pass once and segments.safetensors is filled in
 * afterwards; to standard output the checkpoint is read twice.  The bytes are the
 * same, and the same for any number of threads.
 */
#ifndef FM_PACK_H
#define FM_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/family/extra.h"
#include "lib/model/packed.h"
#include "lib/run/run.h"
#include "lib/stage/uptodate.h"

/* What may be asked of a bundle beside what every tool is asked. */
struct fm_pack_options {
    enum fm_weights_as weights;
    uint64_t part_bytes; /* most bytes of a file; 0: one file */
};

/* Hubs take files of at most this many bytes gladly (the Hugging Face Hub, which refuses more than
 * 500 GB). */
#define FM_PACK_FILE_BYTES ((uint64_t)200 * 1000 * 1000 * 1000)

/* What fm_pack would do (--dry-run) or did. */
struct fm_pack_report {
    uint64_t bytes_in;      /* weights of the checkpoint as they are stored */
    uint64_t bytes_weights; /* the same as the bundle has them */
    uint64_t bytes_values;  /* the same as values: what the bundle has where codes are not kept */
    char storage[16];       /* of the checkpoint, "fp8"; "": plain numbers */
    bool kept;              /* the bundle has the codes */
    char why_not[192];      /* a sentence, where codes that the checkpoint has are not kept */
    uint64_t bytes_out;     /* the bundle */
    uint64_t bytes_largest; /* of its files, the largest */
    int parts;              /* how many these are */
    uint64_t bytes_memory;  /* buffers at the peak */
    uint64_t bytes_free;    /* on the output's file system; 0 for standard output */
    int passes;             /* over the checkpoint: 1, or 2 to standard output */
    int layers, experts, budgets, segments;
    struct fm_extra extra; /* tensors of no decoder layer, kept as they are */
    bool adapter;          /* one is merged */
    uint64_t merged;       /* weights that the adapter changed */
    double seconds;
    struct fm_uptodate uptodate; /* of --if-changed; where it is, nothing was written */
};

/*
 * Uses run->inputs.model, input (a stage stream, "-" for standard input), output, force, threads,
 * progress and stop; no tokens.
 * With part_bytes the output is files of at most that many bytes, named as
 * formats/bundle/partname.h says, unless one holds all of it; not standard output. FM_ECONFIG where
 * the stage stream comes from another checkpoint, and where codes are to be kept and cannot be;
 * FM_EFORMAT for broken input and for NaN or Inf in a weight, by name; FM_ECREATE where the output
 * exists or does not fit.
 */
int fm_pack(const struct fm_run_options *run, const struct fm_pack_options *options,
            struct fm_pack_report *report, struct fm_err *err);

/* What fm_pack_compare looked at, and what it calls for each difference. */
struct fm_pack_compared {
    uint64_t items, bytes; /* tensors and experts' tensors; bytes of the checkpoint */
    void (*differs)(void *self, const char *item, const char *what);
    void *self;
};

/*
 * Is the bundle run->inputs.stream what fm_pack makes of the checkpoint run->inputs.model?  Its
 * weights are made again, all but written, and their checksums compared with the bundle's; each
 * tensor of the bundle that differs is reported.  FM_ECONFIG where the checkpoint is another one.
 */
int fm_pack_compare(const struct fm_run_options *run, struct fm_pack_compared *compared,
                    struct fm_err *err);

/* Everything but the weights is read and checked, nothing is written. */
int fm_pack_plan(const struct fm_run_options *run, const struct fm_pack_options *options,
                 struct fm_pack_report *report, struct fm_err *err);

#endif
