/*
 * This room, lib/data: calibration tokens from files of ids, from texts that our tokenizer or the
 * user's program encodes, and from mixtures of both; and the record of where they came from.  In
 * reading order: calib, corpus, separator, command, provenance.
 *
 * Calibration sequences, from one input or several.  Sequence i of a 1-D token file is tokens [i T,
 * (i + 1) T), and an incomplete sequence at the end is dropped; sequence i of a 2-D file is row i
 * cut to T.  Sequences are in file order unless shuffled (seeded, each input separately).  Several
 * inputs are interleaved by weight (struct mixture in calib.c).  Texts are encoded
 * (lib/data/corpus.h) and then treated as one-dimensional token files.
 *
 * The files stay open and sequences are read when they are needed, so memory does not grow with the
 * number of tokens; a mixture or a shuffle takes five bytes per sequence.  All ids are read once at
 * the start, checked against the vocabulary and hashed.
 */
#ifndef FM_CALIB_H
#define FM_CALIB_H

#include <stdint.h>

#include "formats/file/digest.h"
#include "lib/data/corpus.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

/* What the manifest records about an input. */
struct fm_calib_input {
    const char *format;       /* fm_tokens.format */
    bool rows;                /* a sequence is a row; else documents follow one another */
    uint64_t weight;          /* millionths */
    uint64_t tokens;          /* number in the file; of a text, those that were encoded */
    uint64_t sequences;       /* number taken from it, including held-out ones */
    struct fm_digest digest;  /* of their ids as little-endian int32 */
    struct fm_corpus corpus;  /* of an input that is a text */
    char kind[FM_KIND_BYTES]; /* name of its kind, if it is one of several kinds of evaluation
                                 data; else "" */
};

struct fm_calib_files;

struct fm_calib {
    int T;                   /* tokens per sequence */
    int count;               /* sequences */
    int32_t *ids;            /* (count, T) if they are in memory; else NULL */
    struct fm_digest digest; /* of all ids as little-endian int32, in the order in which they are
                                used */
    struct fm_calib_files *files;
    int inputs;
    struct fm_calib_input input[FM_INPUTS_MAX];
};

/* The first of its inputs that is a text, or NULL. */
const struct fm_corpus *fm_calib_text(const struct fm_calib *calib);

/*
 * Open run->inputs.tokens and run->inputs.texts (eval: run->inputs.eval_tokens and eval_texts) for
 * a model.  T = run->inputs.seq_len or its default. run->inputs.shuffle permutes all sequences of
 * each file, then run->inputs.max_tokens keeps the first whole sequences of the mixture.  Neither
 * applies to evaluation tokens, of which the first run->inputs.max_eval_tokens (0: FM_EVAL_TOKENS)
 * are kept.  If there are several evaluation files, each is a kind.  All kinds have the same number
 * of sequences, and the sequences of a kind are contiguous; a kind is named after its file, without
 * directory or last extension.  FM_EFORMAT if a file has less than one sequence; FM_EUSAGE if
 * seq_len is less than 2 or more than the model's positions, a weight is invalid, or max_tokens is
 * less than a sequence.
 */
int fm_calib_open(struct fm_calib *calib, const struct fm_run_options *run,
                  const struct fm_config *config, bool eval, struct fm_err *err);
void fm_calib_close(struct fm_calib *calib);

/* Read sequences [first, first + n) into ids (n, T).  FM_EIO if a file changed after it was
 * opened. */
int fm_calib_read(const struct fm_calib *calib, int first, int n, int32_t *ids, struct fm_err *err);

/* Move the last `sequences` of calib to *held, or the last half of calib if it has fewer than twice
 * as many.  Held-out sequences are not trained on; quality is measured on them.  The digests of
 * both are recomputed, and each is closed separately.  FM_EFORMAT if calib has only one
 * sequence. */
int fm_calib_hold_out(struct fm_calib *calib, struct fm_calib *held, int sequences,
                      struct fm_err *err);

#endif
