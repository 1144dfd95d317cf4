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
 *     wikitext   lm-eval's task of this name, of a text of documents: each is detokenised
 *                (lib/bench/wikitext.h) and predicted whole, its first token from the tokenizer's
 *                bos_token, or eos_token if the tokenizer has no bos_token; documents longer than
 * the window in windows one after another, the first token of each from the last one before it. The
 * last window of such a document is as long as the others: it begins before what is left to
 * predict. Losses are also given by the words and bytes of the documents.
 */
#ifndef FM_CONVENTION_H
#define FM_CONVENTION_H

#include "lib/data/calib.h"
#include "lib/learn/quality.h"
#include "lib/model/model.h"
#include "lib/run/run.h"

enum fm_convention { FM_CONVENTION_PAPERS, FM_CONVENTION_LLAMA, FM_CONVENTION_WIKITEXT };
#define FM_CONVENTIONS 3

/* What to measure beside the losses: files of formats/text/klbase.h, which are of convention
 * llama.cpp. */
struct fm_bench_how {
    enum fm_convention convention;
    const char *kl_base_out; /* NULL, or the file to write of the original */
    const char *kl_base;     /* NULL, or the file to compare with, whose tokens are measured on */
    int kl_chunks;           /* the first ones of either; 0: all */
};

/* "papers", "llama.cpp", "wikitext"; NULL past the last. */
const char *fm_convention_name(enum fm_convention convention);

/* The tokens to measure on, open. */
struct fm_bench_text {
    struct fm_calib train, held;
    struct fm_quality_detail detail; /* but for spread */
    struct fm_klbase base;           /* where detail.kl_base is this */
    struct fm_window *window;        /* where detail.window is this */
    struct fm_words words;           /* of convention wikitext */
    struct fm_klbase_shape out;      /* of the file to write, if any */
};

/*
 * Open what run->inputs says to measure on for a model: its evaluation tokens or text, else the
 * last sequences of its calibration data (fm_quality_open); or the tokens of how->kl_base.  Close
 * in any case.  FM_EUSAGE where run->inputs.seq_len leaves nothing to predict, and where the model
 * has fewer positions than the windows of how->kl_base; FM_ECONFIG where that is of another
 * vocabulary.
 */
int fm_bench_text_open(struct fm_bench_text *text, const struct fm_bench_how *how,
                       const struct fm_run_options *run, const struct fm_config *config,
                       struct fm_err *err);
void fm_bench_text_close(struct fm_bench_text *text);

/* Tokens that are predicted. */
uint64_t fm_bench_text_tokens(const struct fm_bench_text *text);

/*
 * Begin the file how->kl_base_out of a text that is open, with its tokens; text->detail then has
 * it.  *out is zeroed before, and stays so where there is no such file.  fm_bench_text_end_out ends
 * it in any case: rc is that of the measuring, and the file appears only where it is FM_OK.
 */
int fm_bench_text_begin_out(struct fm_klbase_writer *out, struct fm_bench_text *text,
                            const struct fm_bench_how *how, const struct fm_run_options *run,
                            struct fm_err *err);
int fm_bench_text_end_out(struct fm_klbase_writer *out, int rc, struct fm_err *err);

/* Bytes of memory for the values of each, where so many masks are measured, at the most. */
uint64_t fm_bench_text_values(const struct fm_bench_text *text, int masks);

#endif
