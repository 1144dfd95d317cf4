/*
 * A sequence is stored as an input and an index, so shuffling and mixing permute small integers and
 * never copy tokens.  All ids are read once at the start, checked against the vocabulary and
 * hashed, so that the manifest records exactly which tokens were used.  Sequences that are held out
 * for measuring come from the end.
 */
#include "lib/data/calib.h"

#include <assert.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

#define SEQ_LEN_DEFAULT 2048
#define PIECE_TOKENS 65536 /* ids hashed at a time; at least one sequence */

/* Released models round the size of their vocabulary up to a multiple of at most 256, or reserve a
 * few per cent: 2.3 % of DeepSeek-V2's 102,400 ids have no token, 1.8 % of Phi-2's, 0.2 % of
 * Qwen3's.  Five times as much is another model's tokenizer. */
#define UNUSED_MAX(V) ((V) / 8 > 256 ? (V) / 8 : 256)
/* Among so many ids of a text there are large ones: the largest of 4,096 was at least 47 % of the
 * vocabulary in 735 parts of 190 texts (SmolLM2's tokenizer), and 53 % in 401 parts of 170 texts
 * (Mistral's, 131,072 ids). */
#define TOKENS_OF_ALL_KINDS 4096

/* Open inputs, and the position of each sequence in them. */
struct fm_calib_files {
    struct fm_tokens tokens[FM_INPUTS_MAX];
    uint64_t stride[FM_INPUTS_MAX]; /* tokens from one sequence to the next */
    int count;
    uint32_t V;
    uint8_t *input;  /* (sequences): the input of sequence i; NULL: input 0 */
    uint32_t *place; /* (sequences): its index in that input; NULL: i */
};

/*
 * Interleaves inputs of sequences by weight, in the same order on every machine.
 *
 * Sequence i of a mixture comes from the input that is furthest below its share: the one with the
 * largest w (i + 1) - W taken, where w is its weight, W the sum of all weights, and `taken` counts
 * its sequences among the first i; ties go to the earlier input.  Weights are whole millionths, so
 * this is integer arithmetic, and in any prefix of the mixture the inputs are in proportion (two
 * inputs: to within one sequence).  The mixture ends before the first sequence whose input is
 * used up.
 */
struct mixture {
    int inputs;
    uint64_t weight[FM_INPUTS_MAX]; /* millionths, above 0 */
    uint64_t all[FM_INPUTS_MAX];    /* number of sequences of each input */
    uint64_t taken[FM_INPUTS_MAX];  /* 0 at the start */
};

/* State while inputs are opened. */
struct reading {
    const struct fm_run_options *run;
    const struct fm_config *config;
    bool eval;
    struct mixture mix;
    struct fm_calib_files *files;
    struct fm_corpus corpus[FM_INPUTS_MAX];
    struct fm_hasher *hasher[FM_INPUTS_MAX], *all;
    uint64_t read[FM_INPUTS_MAX];            /* ids of each input */
    int32_t largest[FM_INPUTS_MAX];          /* of these */
    char kind[FM_INPUTS_MAX][FM_KIND_BYTES]; /* names of kinds, if there are several */
};

static int open_tokens(struct fm_tokens *t, const char *path, const struct reading *r,
                       struct fm_err *err)
{
    if (strcmp(path, "-") == 0 && access(path, F_OK) != 0)
        return fm_fail(
            err, FM_EUSAGE,
            "tokens cannot be read from standard input; name a file, or give text with %s -",
            r->eval ? "--eval-text" : "--text");
    return fm_tokens_open(t, path, err);
}

/* Check that standard input has only one reader: text, evaluation data or the stage stream. */
static int check_standard_input(const struct fm_run_options *run, struct fm_err *err)
{
    bool stage = run->inputs.stream && strcmp(run->inputs.stream, "-") == 0;
    int times = 0;
    for (int i = 0; run->inputs.eval_texts[i]; i++)
        times += strcmp(run->inputs.eval_texts[i], "-") == 0;
    for (int i = 0; run->inputs.texts[i].path; i++)
        times += strcmp(run->inputs.texts[i].path, "-") == 0;
    if (times > 0 && stage)
        return fm_fail(err, FM_EUSAGE,
                       "a text (--text or --eval-text) and the stage stream are both read from "
                       "standard input; name a file for one of them");
    return times > 1 ? fm_fail(err, FM_EUSAGE,
                               "two texts (--text or --eval-text) are read from standard input; "
                               "name a file for one of them")
                     : FM_OK;
}

/* The largest number of tokens to take, and the option that sets it; 0: no limit. */
static uint64_t limit_of(const struct reading *r, const char **option)
{
    uint64_t asked = r->eval ? r->run->inputs.max_eval_tokens : r->run->inputs.max_tokens;
    *option = r->eval ? "--max-eval-tokens" : "--max-tokens";
    return asked || !r->eval ? asked : FM_EVAL_TOKENS;
}

/* Open a text as tokens.  Without a shuffle, no input contributes more tokens than the limit of the
 * mixture, so the rest of the text is not encoded. */
static int open_text(struct reading *r, int s, const char *path, struct fm_err *err)
{
    const char *option;
    int rc = check_standard_input(r->run, err);
    return rc ? rc
              : fm_corpus_encode(&r->corpus[s], &r->files->tokens[s], r->run, path,
                                 r->run->inputs.shuffle && !r->eval ? 0 : limit_of(r, &option),
                                 err);
}

static int add_source(struct reading *r, const struct fm_source *source, bool text,
                      struct fm_err *err)
{
    int s = r->mix.inputs;
    const char *path = source->path;
    if (s == FM_INPUTS_MAX)
        return fm_fail(err, FM_EUSAGE, "more than %d files of tokens or text to %s", FM_INPUTS_MAX,
                       r->eval ? "measure on" : "calibrate on");
    r->mix.weight[s] = source->weight ? source->weight : FM_WEIGHT_ONE;
    int rc = text ? open_text(r, s, path, err) : open_tokens(&r->files->tokens[s], path, r, err);
    if (!rc)
        r->files->count = ++r->mix.inputs;
    return rc;
}

static int open_kind(struct reading *r, const char *path, bool text, struct fm_err *err)
{
    char name[FM_KIND_BYTES];
    int s = r->mix.inputs;
    fm_inputs_kind(name, path);
    for (int k = 0; k < s; k++)
        if (strcmp(r->kind[k], name) == 0)
            return fm_fail(
                err, FM_EUSAGE,
                "two kinds of text to measure on have the name '%s'; rename one of the files",
                name);
    int rc = add_source(r, &(struct fm_source){.path = path}, text, err);
    if (!rc)
        memcpy(r->kind[s], name, sizeof name);
    return rc;
}

static int open_kinds(struct reading *r, struct fm_err *err)
{
    const struct fm_inputs *in = &r->run->inputs;
    int rc = FM_OK;
    for (int i = 0; !rc && in->eval_tokens[i]; i++)
        rc = open_kind(r, in->eval_tokens[i], false, err);
    for (int i = 0; !rc && in->eval_texts[i]; i++)
        rc = open_kind(r, in->eval_texts[i], true, err);
    if (r->mix.inputs == 1)
        r->kind[0][0] = '\0'; /* a single kind has no name */
    return rc;
}

static int open_sources(struct reading *r, struct fm_err *err)
{
    const struct fm_run_options *run = r->run;
    if (r->eval)
        return open_kinds(r, err);
    int rc = FM_OK;
    for (int i = 0; !rc && run->inputs.tokens[i].path; i++)
        rc = add_source(r, &run->inputs.tokens[i], false, err);
    for (int i = 0; !rc && run->inputs.texts[i].path; i++)
        rc = add_source(r, &run->inputs.texts[i], true, err);
    return rc;
}

/* Choose the tokens per sequence: the option, or the default. */
static int choose_T(int *T, const struct reading *r, struct fm_err *err)
{
    const struct fm_run_options *run = r->run;
    const struct fm_config *config = r->config;
    uint64_t most = SEQ_LEN_DEFAULT;
    const struct fm_tokens *t = r->files->tokens;
    const char *narrow = t->file.path;
    if (most > (uint64_t)config->T_exact)
        most = (uint64_t)config->T_exact;
    for (int s = 0; s < r->mix.inputs; s++)
        if (t[s].rows > 0 && most > t[s].cols) {
            most = t[s].cols;
            narrow = t[s].file.path;
        }
    *T = run->inputs.seq_len ? run->inputs.seq_len : (int)most;
    if (*T > config->T_exact)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d is more than the model's positions (%d%s%s)",
                       *T, config->T_exact, config->exact ? ", " : "",
                       config->exact ? config->exact : "");
    if (run->inputs.seq_len && *T < 2)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d: a sequence has at least 2 tokens", *T);
    if (*T < 2)
        return fm_fail(err, FM_EFORMAT,
                       "%s: sequences of %d tokens are too short to predict a token", narrow, *T);
    return FM_OK;
}

/* Count the whole sequences of T tokens in the file. */
static int count_sequences(uint64_t *count, const struct fm_tokens *t, int T, struct fm_err *err)
{
    bool rows = t->rows > 0;
    *count = rows ? (t->cols >= (uint64_t)T ? t->rows : 0) : t->count / (uint64_t)T;
    if (*count == 0)
        return fm_fail(err, FM_EFORMAT,
                       "%s: %" PRIu64 " tokens%s are fewer than one sequence of %d; use a smaller "
                       "--seq-len",
                       t->file.path, rows ? t->cols : t->count, rows ? " in a row" : "", T);
    if (*count > INT_MAX)
        return fm_fail(err, FM_ECONFIG, "%s: %" PRIu64 " sequences (limit %d); use --max-tokens",
                       t->file.path, *count, INT_MAX);
    return FM_OK;
}

/* The input of the next sequence, which is counted as taken; -1: the mixture has ended.  Products
 * fit into 128-bit integers. */
static int next_input(struct mixture *m)
{
    uint64_t i = 0, sum = 0;
    assert(m->inputs > 0 && m->inputs <= FM_INPUTS_MAX);
    for (int s = 0; s < m->inputs; s++) {
        i += m->taken[s];
        sum += m->weight[s];
    }
    int best = 0;
    __int128 most = 0;
    for (int s = 0; s < m->inputs; s++) {
        __int128 deficit = (__int128)m->weight[s] * (i + 1) - (__int128)sum * m->taken[s];
        if (s > 0 && deficit <= most)
            continue;
        best = s;
        most = deficit;
    }
    if (m->taken[best] == m->all[best])
        return -1;
    m->taken[best]++;
    return best;
}

/* Warn if the mixture ends because one input is used up and more than half of all sequences are
 * unused. */
static void warn_of_rest(const struct reading *r, const struct mixture *m, uint64_t n)
{
    uint64_t all = 0;
    const char *ended = NULL;
    for (int s = 0; s < m->inputs; s++) {
        all += m->all[s];
        if (m->taken[s] == m->all[s])
            ended = r->files->tokens[s].file.path;
    }
    if (m->inputs > 1 && ended && n < all / 2 && r->eval)
        fm_run_warn(r->run,
                    "'%s' is the shortest kind of text, and all kinds get the same number of "
                    "sequences: %" PRIu64 " of %" PRIu64 " are used",
                    ended, n, all);
    else if (m->inputs > 1 && ended && n < all / 2)
        fm_run_warn(r->run,
                    "the mixture ends with '%s': %" PRIu64 " of %" PRIu64
                    " sequences are used; its weight may be too large",
                    ended, n, all);
}

/* Set the number of sequences of the mixture, limited by --max-tokens or --max-eval-tokens. */
static int count_mixture(struct fm_calib *c, const struct reading *r, struct fm_err *err)
{
    struct mixture dry = r->mix;
    const char *option;
    uint64_t most = INT_MAX, n = 0, limit = limit_of(r, &option);
    if (limit > 0) {
        bool asked = !r->eval || r->run->inputs.max_eval_tokens;
        most = limit / (uint64_t)c->T;
        most += most == 0 && !asked; /* a sequence may be longer than the default */
        if (most == 0)
            return fm_fail(err, FM_EUSAGE, "%s %" PRIu64 " is less than a sequence of %d", option,
                           limit, c->T);
        most = most < INT_MAX ? most : INT_MAX;
    }
    while (n < most && next_input(&dry) >= 0)
        n++;
    if (r->eval && n > (uint64_t)dry.inputs)
        n -= n % (uint64_t)dry.inputs; /* the same number for each kind */
    c->count = (int)n;
    if (n < most)
        warn_of_rest(r, &dry, n);
    return FM_OK;
}

/* The input of the next sequence.  Each input gives as many sequences as in the mixture, but kinds
 * are not interleaved. */
static int next_kind(struct mixture *m, const struct mixture *whole)
{
    int s = 0;
    while (m->taken[s] == whole->taken[s])
        s++;
    assert(s < m->inputs);
    m->taken[s]++;
    return s;
}

/* Make a permutation of each input if shuffling is on and, for a mixture, the order of inputs. */
static int place_sequences(struct fm_calib *c, struct reading *r, struct fm_err *err)
{
    struct fm_calib_files *f = r->files;
    bool shuffle = !r->eval && r->run->inputs.shuffle;
    uint32_t *order[FM_INPUTS_MAX] = {NULL};
    size_t n = (size_t)c->count;
    int rc = FM_OK;
    if (!shuffle && r->mix.inputs == 1) {
        r->mix.taken[0] = n;
        return FM_OK;
    }
    f->input = fm_alloc(n, sizeof *f->input, "the order of sequences", err);
    f->place = fm_alloc(n, sizeof *f->place, "the order of sequences", err);
    rc = f->input && f->place ? FM_OK : FM_ENOMEM;
    for (int s = 0; !rc && shuffle && s < r->mix.inputs; s++) {
        order[s] = fm_alloc((size_t)r->mix.all[s], sizeof **order, "the order of sequences", err);
        rc = order[s] ? FM_OK : FM_ENOMEM;
        if (order[s])
            fm_rng_permutation(order[s], (uint32_t)r->mix.all[s], r->run->inputs.seed,
                               FM_STREAM_SHUFFLE, (uint32_t)s);
    }
    struct mixture kinds = r->mix;
    for (size_t i = 0; r->eval && i < n; i++)
        next_input(&kinds);
    if (!rc && r->eval && n < (size_t)r->mix.inputs)
        rc = fm_fail(err, FM_EUSAGE,
                     "--max-eval-tokens leaves only %zu of the %d kinds of text; raise it", n,
                     r->mix.inputs);
    for (size_t i = 0; !rc && i < n; i++) {
        int s = r->eval ? next_kind(&r->mix, &kinds) : next_input(&r->mix);
        uint64_t at = r->mix.taken[s] - 1;
        f->input[i] = (uint8_t)s;
        f->place[i] = order[s] ? order[s][at] : (uint32_t)at;
    }
    for (int s = 0; s < r->mix.inputs; s++)
        free(order[s]);
    return rc;
}

/* --- reading --- */

/* Changed files are detected, except for the temporary file with the tokens of a text. */
static int check_unchanged(const struct fm_calib_files *f, struct fm_err *err)
{
    int rc = FM_OK;
    for (int s = 0; !rc && s < f->count; s++)
        if (strcmp(f->tokens[s].format, FM_CORPUS_FORMAT) != 0)
            rc = fm_file_unchanged(&f->tokens[s].file, err);
    return rc;
}

int fm_calib_read(const struct fm_calib *c, int first, int n, int32_t *ids, struct fm_err *err)
{
    const struct fm_calib_files *f = c->files;
    uint64_t T = (uint64_t)c->T;
    assert(first >= 0 && n >= 0 && n <= c->count - first);
    if (c->ids) {
        memcpy(ids, c->ids + (size_t)first * T, (size_t)n * T * sizeof *ids);
        return FM_OK;
    }
    int rc = check_unchanged(f, err);
    if (!rc && !f->place && f->stride[0] == T)
        return fm_tokens_read(f->tokens, (uint64_t)first * T, ids, (uint64_t)n * T, f->V, err);
    for (int i = 0; !rc && i < n; i++) {
        int s = f->place ? f->input[first + i] : 0;
        uint64_t place = f->place ? f->place[first + i] : (uint64_t)(first + i);
        rc = fm_tokens_read(&f->tokens[s], place * f->stride[s], ids + (size_t)i * T, T, f->V, err);
    }
    return rc;
}

/* Warn of a tokenizer that has far fewer ids than the model, or more: it may be another model's. */
static void warn_of_tokenizer(const struct reading *r, int s)
{
    const struct fm_corpus *c = &r->corpus[s];
    int V = r->config->V, ids = c->last + 1;
    if (c->documents > 0 && !c->command && (ids > V || V - ids > UNUSED_MAX(V)))
        fm_run_warn(
            r->run,
            "%s: the tokenizer has %d ids, but the model's vocabulary is %d; check that it is "
            "the model's tokenizer",
            r->files->tokens[s].file.path, ids, V);
}

/* Warn of ids that were made elsewhere, if all of many are in the first tenth of the vocabulary. */
static void warn_of_ids(const struct reading *r, int s)
{
    const struct fm_corpus *c = &r->corpus[s];
    int V = r->config->V;
    if ((c->documents == 0 || c->command) && r->read[s] >= TOKENS_OF_ALL_KINDS &&
        r->largest[s] < V / 10)
        fm_run_warn(r->run,
                    "%s: the largest of %" PRIu64 " ids is %" PRId32
                    ", but the model's vocabulary is "
                    "%d; check that they come from the model's tokenizer",
                    r->files->tokens[s].file.path, r->read[s], r->largest[s], V);
}

static void note_sequence(struct reading *r, int s, const int32_t *ids, size_t T)
{
    fm_hasher_add(r->hasher[s], ids, T * sizeof *ids);
    r->read[s] += T;
    for (size_t i = 0; i < T; i++)
        r->largest[s] = ids[i] > r->largest[s] ? ids[i] : r->largest[s];
}

/* Read everything once: check every id, and add it to `all` and, if r is not NULL, to the hasher of
 * its input. */
static int hash_sequences(const struct fm_calib *c, struct fm_hasher *all, struct reading *r,
                          const atomic_int *stop, struct fm_err *err)
{
    size_t T = (size_t)c->T;
    int most = T < PIECE_TOKENS ? (int)(PIECE_TOKENS / T) : 1, rc = FM_OK;
    int32_t *ids = fm_alloc((size_t)most * T, sizeof *ids, "tokens", err);
    if (!ids)
        return FM_ENOMEM;
    for (int at = 0, n; !rc && at < c->count; at += n) {
        n = c->count - at < most ? c->count - at : most;
        rc = stop && *stop ? fm_fail(err, FM_ESAVED, "interrupted while reading tokens")
                           : fm_calib_read(c, at, n, ids, err);
        if (!rc)
            fm_hasher_add(all, ids, (size_t)n * T * sizeof *ids);
        for (int i = 0; !rc && r && i < n; i++)
            note_sequence(r, c->files->place ? c->files->input[at + i] : 0, ids + (size_t)i * T, T);
    }
    free(ids);
    return rc;
}

static void describe_sources(struct fm_calib *c, const struct reading *r)
{
    c->inputs = r->mix.inputs;
    for (int s = 0; s < c->inputs; s++) {
        c->input[s] = (struct fm_calib_input){.format = r->files->tokens[s].format,
                                              .rows = r->files->tokens[s].rows > 0,
                                              .weight = r->mix.weight[s],
                                              .tokens = r->files->tokens[s].count,
                                              .corpus = r->corpus[s],
                                              .sequences = r->mix.taken[s],
                                              .digest = fm_hasher_done(r->hasher[s])};
        snprintf(c->input[s].kind, sizeof c->input[s].kind, "%s", r->kind[s]);
    }
}

static int read_all(struct fm_calib *c, struct reading *r, struct fm_err *err)
{
    struct fm_calib_files *f = r->files;
    int rc = choose_T(&c->T, r, err);
    r->all = fm_hasher_new();
    bool allocated = r->all != NULL;
    for (int s = 0; !rc && s < f->count; s++) {
        warn_of_tokenizer(r, s);
        rc = count_sequences(&r->mix.all[s], &f->tokens[s], c->T, err);
        f->stride[s] = f->tokens[s].rows > 0 ? f->tokens[s].cols : (uint64_t)c->T;
        r->hasher[s] = fm_hasher_new();
        allocated = allocated && r->hasher[s];
    }
    if (rc)
        return rc;
    if (!allocated)
        return fm_fail(err, FM_ENOMEM, "no memory for a digest");
    if (count_mixture(c, r, err) || place_sequences(c, r, err) ||
        hash_sequences(c, r->all, r, r->run->stop, err))
        return err->code;
    c->digest = fm_hasher_done(r->all);
    for (int s = 0; s < f->count; s++)
        warn_of_ids(r, s);
    describe_sources(c, r);
    return FM_OK;
}

int fm_calib_open(struct fm_calib *c, const struct fm_run_options *run,
                  const struct fm_config *config, bool eval, struct fm_err *err)
{
    *c = (struct fm_calib){0};
    struct reading *r = fm_alloc(1, sizeof *r, "sources of tokens", err);
    c->files = fm_alloc(1, sizeof *c->files, "sources of tokens", err);
    int rc = r && c->files ? FM_OK : FM_ENOMEM;
    if (!rc) {
        *r = (struct reading){.run = run, .config = config, .eval = eval, .files = c->files};
        c->files->V = (uint32_t)config->V;
        rc = open_sources(r, err);
    }
    if (!rc)
        rc = read_all(c, r, err);
    for (int s = 0; r && s < FM_INPUTS_MAX; s++)
        fm_hasher_free(r->hasher[s]);
    if (r)
        fm_hasher_free(r->all);
    free(r);
    if (rc)
        fm_calib_close(c);
    return rc;
}

const struct fm_corpus *fm_calib_text(const struct fm_calib *c)
{
    for (int s = 0; s < c->inputs; s++)
        if (c->input[s].corpus.documents > 0)
            return &c->input[s].corpus;
    return NULL;
}

void fm_calib_close(struct fm_calib *c)
{
    for (int s = 0; c->files && s < c->files->count; s++)
        fm_tokens_close(&c->files->tokens[s]);
    if (c->files) {
        free(c->files->input);
        free(c->files->place);
    }
    free(c->files);
    free(c->ids);
    *c = (struct fm_calib){0};
}

/* Recompute the digest, for the sequences that remain after the last ones were held out. */
static int digest_again(struct fm_calib *c, struct fm_err *err)
{
    struct fm_hasher *h = fm_hasher_new();
    int rc = h ? hash_sequences(c, h, NULL, NULL, err)
               : fm_fail(err, FM_ENOMEM, "no memory for a digest");
    if (!rc)
        c->digest = fm_hasher_done(h);
    fm_hasher_free(h);
    return rc;
}

int fm_calib_hold_out(struct fm_calib *c, struct fm_calib *held, int sequences, struct fm_err *err)
{
    int n = sequences <= c->count / 2 ? sequences : c->count / 2;
    *held = (struct fm_calib){0};
    if (n < 1)
        return fm_fail(err, FM_EFORMAT,
                       "%d sequence cannot be split into training and held-out ones; use "
                       "--eval-tokens, more tokens or a smaller --seq-len",
                       c->count);
    held->ids = fm_alloc((size_t)n, (size_t)c->T * sizeof *held->ids, "held-out tokens", err);
    if (!held->ids)
        return err->code;
    held->T = c->T;
    held->count = n;
    int rc = fm_calib_read(c, c->count - n, n, held->ids, err);
    if (rc) {
        fm_calib_close(held);
        return rc;
    }
    held->digest = fm_digest_of(held->ids, (size_t)n * (size_t)c->T * sizeof *held->ids);
    c->count -= n;
    return digest_again(c, err);
}
