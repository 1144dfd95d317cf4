/*
 * Which tokens of which windows a perplexity averages over.  Three conventions are in use, and
 * their numbers differ by 50 % and more for the same model and text, so a number is always printed
 * with the name of its convention:
 *
 *     papers     GPTQ's and SparseGPT's "wikitext2 PPL": the text is tokenised once and cut into
 *                windows of 2048 tokens (or as many as the model has positions); every token of a
 *                window except the first is predicted.
 *     llama.cpp  llama-perplexity: windows of 512; the first token is replaced by the one that the
 *                tokenizer's template begins with, if any; the tokens after the middle one are
 *                predicted (tools/perplexity/perplexity.cpp).
 *     wikitext   lm-eval's task of this name, for a text of documents: each document is detokenised
 *                (lib/bench/wikitext.h) and every token of it is predicted, the first one from the
 *                tokenizer's bos_token, or eos_token if the tokenizer has no bos_token.  A document
 *                longer than the window is cut into windows, and the first token of each is
 *                predicted from the last one before it.  The last window is as long as the others,
 *                so it begins before the tokens that are left to predict.  Losses are also given
 *                per word and per byte of the documents.
 */
#ifndef FM_CONVENTION_H
#define FM_CONVENTION_H

#include "lib/data/calib.h"
#include "lib/learn/quality.h"
#include "lib/run/run.h"

enum fm_convention { FM_CONVENTION_PAPERS, FM_CONVENTION_LLAMA, FM_CONVENTION_WIKITEXT };
#define FM_CONVENTIONS 3

/* What to measure: the convention, and files of base logits (formats/text/klbase.h), which require
 * convention llama.cpp. */
struct fm_bench_how {
    enum fm_convention convention;
    const char *kl_base_out; /* NULL, or the file to write from the original */
    const char *kl_base;     /* NULL, or the file to compare with, which also gives the tokens */
    int kl_chunks;           /* use at most this many windows of either; 0: all */
};

/* "papers", "llama.cpp", "wikitext"; NULL after the last. */
const char *fm_convention_name(enum fm_convention convention);

/* The tokens to measure on, opened. */
struct fm_bench_text {
    struct fm_calib train, held;
    struct fm_quality_detail detail; /* without spread, base and base_spread */
    struct fm_klbase base;           /* detail.kl_base points to it, if it is used */
    struct fm_window *window;        /* detail.window points to it, if it is used */
    struct fm_words words;           /* of convention wikitext */
    struct fm_klbase_shape out;      /* of the file to write */
};

/*
 * Open the tokens that run->inputs gives for a model: its evaluation tokens or text, else the last
 * sequences of its calibration data (fm_quality_open); or the tokens of how->kl_base.  Close it
 * even after a failure.  FM_EUSAGE if run->inputs.seq_len leaves nothing to predict, or if the
 * model has fewer positions than the windows of how->kl_base; FM_ECONFIG if that file has a
 * different vocabulary.
 */
int fm_bench_text_open(struct fm_bench_text *text, const struct fm_bench_how *how,
                       const struct fm_run_options *run, const struct fm_config *config,
                       struct fm_err *err);
void fm_bench_text_close(struct fm_bench_text *text);

/* Number of tokens that are predicted. */
uint64_t fm_bench_text_tokens(const struct fm_bench_text *text);

/*
 * Begin the file how->kl_base_out of an open text, with its tokens, and set text->detail to use it.
 * *out is zeroed by the caller, and unchanged if there is no such file.  Call fm_bench_text_end_out
 * even after a failure, with the result of measuring as rc: the file appears only if it is FM_OK.
 */
int fm_bench_text_begin_out(struct fm_klbase_writer *out, struct fm_bench_text *text,
                            const struct fm_bench_how *how, const struct fm_run_options *run,
                            struct fm_err *err);
int fm_bench_text_end_out(struct fm_klbase_writer *out, int rc, struct fm_err *err);

/* Upper bound of the memory for the values of each position, in bytes, when this many masks are
 * measured. */
uint64_t fm_bench_text_values(const struct fm_bench_text *text, int masks);

#endif
