/*
 * The inputs of a run: a model, a stage stream, calibration and held-out data, and how they are
 * read.  Options that affect a result are recorded in the manifest's history; paths are not.
 */
#ifndef FM_INPUTS_H
#define FM_INPUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_INPUTS_MAX 16       /* limit of calibration files in one run */
#define FM_WEIGHT_ONE 1000000u /* a weight of 1 in FILE:WEIGHT */

/* Default number of tokens that quality is measured on. */
#define FM_EVAL_TOKENS 65536

/* A file to calibrate on, or a ranking to blend; path NULL: the end of a list. */
struct fm_source {
    const char *path;
    uint64_t weight; /* in millionths; 0: FM_WEIGHT_ONE */
};

struct fm_inputs {
    const char *model;  /* --model DIR */
    const char *stream; /* stage stream, "-": standard input, NULL: none */
    /* NULL follows the last of each. */
    struct fm_source tokens[FM_INPUTS_MAX + 1]; /* --tokens FILE[:WEIGHT] */
    struct fm_source texts[FM_INPUTS_MAX + 1];  /* --text FILE[:WEIGHT], used after these */
    const char *eval_tokens[FM_INPUTS_MAX + 1]; /* --eval-tokens FILE */
    const char *eval_texts[FM_INPUTS_MAX + 1];  /* --eval-text FILE, used after these */
    const char *text_field;    /* field with the text in JSONL rows; NULL: "text" */
    const char *tokenizer;     /* tokenizer.json; NULL: the model's own */
    const char *tokenizer_cmd; /* a command that encodes instead, or NULL */
    const char *separator;     /* NULL: "eos", else "none" or a token */
    int seq_len;               /* 0: min(2048, config->T_exact, columns of a 2-D file) */
    int batch;                 /* sequences per batch; 0: the tool's default */
    uint64_t max_tokens;       /* 0: no limit */
    uint64_t max_eval_tokens;  /* 0: FM_EVAL_TOKENS; stages choose less (lib/learn/quality.h) */
    bool shuffle;
    uint64_t seed;
};

/*
 * inputs->model may be ORG/NAME if no file has that name: it is replaced by the directory of that
 * checkpoint in the Hugging Face cache; that string is valid until the next call.  FM_ENOENT if the
 * cache does not have it.
 */
int fm_inputs_find_model(struct fm_inputs *inputs, struct fm_err *err);

/* True if there are tokens or a text to measure on in addition to the calibration data. */
bool fm_inputs_evaluate(const struct fm_inputs *inputs);

/* The first file of calibration data, for messages, or NULL. */
const char *fm_inputs_first(const struct fm_inputs *inputs);

/*
 * Parse "FILE" or "FILE:WEIGHT" from the command line; *length becomes the length of FILE.  A colon
 * without a number after it belongs to FILE.  FM_EUSAGE unless the weight is above 0, at most a
 * million, and has at most six decimals.
 */
int fm_inputs_parse(const char *spec, size_t *length, uint64_t *weight, struct fm_err *err);

/* Make the name of a kind of text from its file's name; characters that are not valid in tables
 * and keys become '_'. */
#define FM_KIND_BYTES 24
void fm_inputs_kind(char name[FM_KIND_BYTES], const char *path);

#endif
