/*
 * What was measured of an exported directory, written into it: fm-export.json gets "measured", the
 * model card a section and a model-index, the table of files the card's new digest, and
 * .eval_results/ an entry where the tokens are of a benchmark of the hub.  fm-verify(1) leaves
 * these out of what must be the bundle's.
 */
#ifndef FM_RECORD_H
#define FM_RECORD_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/file/digest.h"
#include "lib/masks/masks.h"
#include "lib/masks/spread.h"
#include "lib/run/run.h"

#define FM_EXPORT_MEASURED "measured" /* the key of fm-export.json */
#define FM_EXPORT_MEASURED_MAX ((size_t)1 << 20)

/* One member of the family: the directory itself, or one of a directory that has all. */
struct fm_record_member {
    double budget;
    struct fm_quality quality; /* kl and agree: of the original, where there is one */
    struct fm_spread spread;
};

/* What was measured. */
struct fm_record {
    char layout[16];
    char weights[16];           /* of fm-export.json: "keep", "bf16", a format; "": not said */
    uint64_t bytes;             /* of the files of tensors */
    int sequences, T;           /* held out */
    struct fm_kinds kinds;      /* of that text, in every quality */
    char digest[FM_DIGEST_HEX]; /* of their ids */
    const char *precision;      /* "f32" */
    bool whole;                 /* the layout has all members */
    bool compared;              /* there is an original, */
    bool base_file;             /* or a base-logits file in its place */
    int members, start;         /* measured, by rising budget; the one that it starts with, which of
                                   other layouts is the only one */
    struct fm_record_member *member;
    struct fm_quality original; /* ce and positions alone */
    struct fm_spread original_spread;
    const char *convention;  /* of the perplexity: "papers" (lib/bench/convention.h) */
    uint64_t tokens, values; /* measured; bytes of memory for the values of each, at the most */
    struct fm_words words;   /* of convention wikitext */
    uint64_t kl_base_bytes;  /* of the base-logits file that is written; 0: none */
};

/* Write the figures into the directory run->inputs.stream, in the place of those that an earlier
 * call wrote there, and of nothing else; each file appears whole, and fm-export.json last.  A
 * directory without a card gets none. */
int fm_record_write(const struct fm_run_options *run, const struct fm_record *result,
                    struct fm_err *err);

/* The text of an fm-export.json, malloced, without what was measured and the table of files: what
 * its bundle says of it. */
int fm_record_compared(char **text, size_t *size, struct fm_err *err);

/*
 * Of what the hub calls a benchmark: a data set whose eval.yaml lists tasks, and whose leaderboard
 * collects the entries that models have of them in .eval_results/.  Only its owner's eval.yaml says
 * what a task's score is, and that these tokens are its text only the user knows.
 */
struct fm_record_benchmark {
    char dataset[128], task[64]; /* "" : none */
    bool perplexity;             /* the score; else the cross-entropy */
};

/* "ORG/NAME:TASK"; FM_EUSAGE for what cannot be one. */
int fm_record_benchmark_parse(struct fm_record_benchmark *b, const char *text, struct fm_err *err);

/* Write .eval_results/fm-TASK.yaml into the directory, in the place of an older one. */
int fm_record_benchmark_write(const char *directory, const struct fm_record_benchmark *b,
                              const struct fm_record *result, struct fm_err *err);

#endif
