/*
 * Which tokens of which windows a perplexity is over.  Three conventions are in use, and their
 * numbers differ by half and more on one model and text, so a number is never printed without its
 * convention's name:
 *
 *     papers     GPTQ's and SparseGPT's "wikitext2 PPL": the text tokenised once, windows of 2048
 *                tokens (or as many as the model has positions) one after another, every token but
 *                a window's first is predicted.
 *     llama.cpp  llama-perplexity: windows of 512, in which the first token gives way to the one
 *                that the tokenizer's template begins with, if any; the tokens after the middle one
 *                are predicted (tools/perplexity/perplexity.cpp).
 */
#ifndef FM_CONVENTION_H
#define FM_CONVENTION_H

#include "lib/data/calib.h"
#include "lib/learn/quality.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

enum fm_convention { FM_CONVENTION_PAPERS, FM_CONVENTION_LLAMA };
#define FM_CONVENTIONS 2

/* "papers", "llama.cpp"; NULL past the last. */
const char *fm_convention_name(enum fm_convention convention);

/* The tokens to measure on, open. */
struct fm_bench_text {
    enum fm_convention convention;
    struct fm_calib train, held;
    struct fm_quality_detail detail; /* but for spread */
};

/*
 * Open what run->inputs says to measure on for a model: its evaluation tokens or text, else the
 * last sequences of its calibration data (fm_quality_open).  Close in any case.  FM_EUSAGE where
 * run->inputs.seq_len leaves nothing to predict.
 */
int fm_bench_text_open(struct fm_bench_text *text, enum fm_convention convention,
                       const struct fm_run_options *run, const struct fm_config *config,
                       struct fm_err *err);
void fm_bench_text_close(struct fm_bench_text *text);

/* Tokens that are predicted. */
uint64_t fm_bench_text_tokens(const struct fm_bench_text *text);

/* Bytes of memory for the values of each, where so many masks are measured, at the most. */
uint64_t fm_bench_text_values(const struct fm_bench_text *text, int masks);

#endif
