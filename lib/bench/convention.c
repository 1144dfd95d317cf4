/* The conventions are defined only here; other code receives the positions that count. */
#include "lib/bench/convention.h"

#include <limits.h>
#include <stdlib.h>

#include "lib/base/mem.h"
#include "lib/bench/wikitext.h"
#include "lib/engine/sweep.h"

#define LLAMA_WINDOW 512 /* llama-perplexity's default for -c */

const char *fm_convention_name(enum fm_convention convention)
{
    static const char *const name[FM_CONVENTIONS] = {"papers", "llama.cpp", "wikitext"};
    return convention < FM_CONVENTIONS ? name[convention] : NULL;
}

/* Set the first predicted token to the one after the middle of each window, and read the token that
 * replaces the first one. */
static int halve_windows(struct fm_bench_text *t, const struct fm_run_options *run,
                         const struct fm_config *config, struct fm_err *err)
{
    t->detail.from = t->held.T / 2;
    if (t->detail.from >= t->held.T - 1)
        return fm_fail(err, FM_EUSAGE,
                       "--seq-len %d: convention llama.cpp predicts the tokens after the middle "
                       "one, which needs at least 3",
                       t->held.T);
    return fm_corpus_front(&t->detail.fronted, &t->detail.front, run, config->V, err);
}

/* Open the tokens of a base-logits file. */
static int open_base(struct fm_bench_text *t, const struct fm_bench_how *how,
                     const struct fm_config *config, struct fm_err *err)
{
    int rc = fm_klbase_open(&t->base, how->kl_base, err);
    if (rc)
        return rc;
    t->detail.kl_base = &t->base;
    const struct fm_klbase_shape *s = &t->base.shape;
    if (s->vocabulary != config->V)
        return fm_fail(err, FM_ECONFIG,
                       "'%s' is for a vocabulary of %d tokens, but the model has %d; give the base "
                       "logits of its original",
                       how->kl_base, s->vocabulary, config->V);
    if (s->n_ctx > config->T_exact)
        return fm_fail(err, FM_EUSAGE,
                       "'%s' has windows of %d tokens, but the model takes at most %d%s%s",
                       how->kl_base, s->n_ctx, config->T_exact, config->exact ? ", " : "",
                       config->exact ? config->exact : "");
    int n = how->kl_chunks && how->kl_chunks < s->chunks ? how->kl_chunks : s->chunks;
    size_t T = (size_t)s->n_ctx, size = (size_t)n * T;
    t->held = (struct fm_calib){.T = s->n_ctx, .count = n};
    t->held.ids = fm_alloc(size, sizeof *t->held.ids, "tokens", err);
    rc = t->held.ids ? FM_OK : err->code;
    for (int i = 0; !rc && i < n; i++)
        rc = fm_klbase_tokens(&t->base, i, t->held.ids + (size_t)i * T, err);
    if (!rc)
        t->held.digest = fm_digest_of(t->held.ids, size * sizeof *t->held.ids);
    return rc;
}

static int change_page(char **text, size_t *size, uint64_t *words, struct fm_err *err)
{
    *words = fm_wikitext_words(*text, *size);
    return fm_wikitext_detokenise(text, size, err);
}

static int check_wikitext(const struct fm_inputs *in, const struct fm_config *config,
                          struct fm_err *err)
{
    static const char why[] = "--convention wikitext takes documents of one --eval-text";
    if (in->eval_tokens[0] || !in->eval_texts[0] || in->eval_texts[1])
        return fm_fail(err, FM_EUSAGE, "%s, a file of JSON lines; give one such file", why);
    if (in->tokenizer_cmd)
        return fm_fail(err, FM_EUSAGE,
                       "%s, and --tokenizer-cmd does not mark where a document ends; omit it", why);
    if (in->separator)
        return fm_fail(err, FM_EUSAGE, "%s, and no --separator; omit it", why);
    if (in->seq_len == 1 || in->seq_len > config->T_exact)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d: give 2 to %d%s%s", in->seq_len,
                       config->T_exact, config->exact ? ", " : "",
                       config->exact ? config->exact : "");
    return FM_OK;
}

/* Cut documents into windows of at most `most` predicted tokens; with `to` NULL only count them and
 * find the longest, in tokens.  The last window of a long document has full length, too. */
static int cut_pages(struct fm_bench_text *t, const struct fm_corpus_pages *p,
                     const struct fm_tokens *from, int most, int32_t *to, int V, struct fm_err *err)
{
    int n = 0, longest = 0;
    for (size_t i = 0; i < p->count; i++)
        for (uint64_t first = i ? p->end[i - 1] : 0, at = first; at < p->end[i]; n++) {
            bool begins = at == first;
            uint64_t left = p->end[i] - at;
            int size = left < (uint64_t)most ? (int)left : most;
            int length = begins ? size + 1 : most + 1;
            if (n == INT_MAX)
                return fm_fail(err, FM_EUSAGE, "the text has more than %d windows", n);
            longest = length > longest ? length : longest;
            at += (uint64_t)size;
            if (!to)
                continue;
            int32_t *ids = to + (size_t)n * (size_t)t->held.T;
            ids[0] = p->before;
            t->window[n] = (struct fm_window){length, length - 1 - size, !begins};
            int rc = fm_tokens_read(from, at - (uint64_t)(length - begins), ids + begins,
                                    (uint64_t)(length - begins), (uint32_t)V, err);
            if (rc)
                return rc;
        }
    t->held.count = n;
    t->held.T = longest;
    return FM_OK;
}

static int fill_windows(struct fm_bench_text *t, const struct fm_corpus_pages *p,
                        const struct fm_tokens *from, int most, int V, struct fm_err *err)
{
    if (p->before >= V)
        return fm_fail(err, FM_ECONFIG,
                       "the tokenizer begins texts with id %d, but the model's vocabulary is %d; "
                       "give the model's tokenizer",
                       (int)p->before, V);
    if (cut_pages(t, p, from, most, NULL, V, err))
        return err->code;
    size_t n = (size_t)t->held.count, row = (size_t)t->held.T * sizeof *t->held.ids;
    t->detail.window = t->window = fm_alloc(n, sizeof *t->window, "windows", err);
    t->held.ids = fm_alloc(n, row, "windows", err);
    if (!t->window || !t->held.ids || cut_pages(t, p, from, most, t->held.ids, V, err))
        return err->code;
    t->held.digest = fm_digest_of(t->held.ids, n * row);
    return FM_OK;
}

/* Open documents, cut into windows. */
static int open_pages(struct fm_bench_text *t, const struct fm_run_options *run,
                      const struct fm_config *config, struct fm_err *err)
{
    struct fm_corpus corpus;
    struct fm_corpus_pages pages = {.change = change_page};
    struct fm_tokens tokens = {.file = {.fd = -1}};
    const struct fm_inputs *in = &run->inputs;
    int most = in->seq_len ? in->seq_len : config->T_exact;
    if (check_wikitext(in, config, err))
        return err->code;
    int rc = fm_corpus_encode(&corpus, &tokens, run, in->eval_texts[0], in->max_eval_tokens, &pages,
                              err);
    if (!rc)
        rc = fill_windows(t, &pages, &tokens, most, config->V, err);
    t->words = (struct fm_words){pages.count, pages.words, pages.bytes};
    fm_tokens_close(&tokens);
    free(pages.end);
    return rc;
}

static int open_windows(struct fm_bench_text *t, const struct fm_bench_how *how,
                        const struct fm_run_options *run, const struct fm_config *config,
                        struct fm_err *err)
{
    int rc = how->convention == FM_CONVENTION_WIKITEXT ? open_pages(t, run, config, err)
             : how->kl_base                            ? open_base(t, how, config, err)
             : fm_inputs_evaluate(&run->inputs)
                 ? fm_calib_open(&t->held, run, config, true, err)
                 : fm_quality_open(&t->train, &t->held, run, config, err);
    if (!rc && how->convention == FM_CONVENTION_LLAMA)
        rc = halve_windows(t, run, config, err);
    if (rc || !how->kl_base_out)
        return rc;
    int n = how->kl_chunks && how->kl_chunks < t->held.count ? how->kl_chunks : t->held.count;
    t->out = (struct fm_klbase_shape){t->held.T, config->V, n};
    return fm_klbase_check(&t->out, err);
}

int fm_bench_text_open(struct fm_bench_text *t, const struct fm_bench_how *how,
                       const struct fm_run_options *run, const struct fm_config *config,
                       struct fm_err *err)
{
    struct fm_run_options own = *run;
    *t = (struct fm_bench_text){.base = {.file = {.fd = -1}}};
    if (how->convention == FM_CONVENTION_LLAMA && !own.inputs.seq_len)
        own.inputs.seq_len = config->T_exact < LLAMA_WINDOW ? config->T_exact : LLAMA_WINDOW;
    int rc = open_windows(t, how, &own, config, err);
    if (rc)
        fm_bench_text_close(t);
    return rc;
}

void fm_bench_text_close(struct fm_bench_text *t)
{
    fm_klbase_close(&t->base);
    fm_calib_close(&t->held);
    fm_calib_close(&t->train);
    free(t->window);
    t->window = NULL;
}

uint64_t fm_bench_text_tokens(const struct fm_bench_text *t)
{
    uint64_t tokens = (uint64_t)t->held.count * (uint64_t)(t->held.T - 1 - t->detail.from);
    for (int i = 0; t->window && i < t->held.count; i++)
        tokens -= (uint64_t)(t->held.T - t->window[i].length + t->window[i].from);
    return tokens;
}

uint64_t fm_bench_text_values(const struct fm_bench_text *t, int masks)
{
    return fm_quality_detail_bytes(fm_bench_text_tokens(t),
                                   masks < FM_LANES_MAX ? masks : FM_LANES_MAX - 1);
}

int fm_bench_text_begin_out(struct fm_klbase_writer *out, struct fm_bench_text *t,
                            const struct fm_bench_how *how, const struct fm_run_options *run,
                            struct fm_err *err)
{
    if (!how->kl_base_out)
        return FM_OK;
    int32_t *ids = fm_alloc((size_t)t->held.T, sizeof *ids, "tokens", err);
    int rc =
        ids ? fm_klbase_create(out, how->kl_base_out, run->outputs.force, &t->out, err) : err->code;
    for (int i = 0; !rc && i < t->out.chunks; i++) {
        rc = fm_calib_read(&t->held, i, 1, ids, err);
        if (!rc)
            rc = fm_klbase_put_tokens(out, i, ids, err);
    }
    free(ids);
    t->detail.kl_out = out;
    return rc;
}

int fm_bench_text_end_out(struct fm_klbase_writer *out, int rc, struct fm_err *err)
{
    return out->out.path ? fm_output_end(&out->out, rc, err) : rc;
}
