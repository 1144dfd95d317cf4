#include "lib/calib.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

#define SEQ_LEN_DEFAULT 2048

/* The sources while they are read. */
struct reading {
    const struct fm_run_options *run;
    const struct fm_config *config;
    bool eval;
    struct fm_mixture mix;
    struct fm_tokens tokens[FM_SOURCES_MAX];
    struct fm_corpus corpus[FM_SOURCES_MAX];
    uint32_t *order[FM_SOURCES_MAX]; /* shuffled sequences, or NULL */
    struct fm_hasher *hasher[FM_SOURCES_MAX];
};

/* The type of raw files does not speak of the others of a mixture. */
static int open_tokens(struct fm_tokens *t, const char *path, const struct reading *r,
                       struct fm_err *err)
{
    enum fm_token_type raw = r->run->token_dtype;
    bool alone = r->eval || (!r->run->also_tokens[0] && !r->run->texts[0]);
    struct fm_err mine = {0};
    if (raw == FM_TOKEN_AUTO || alone)
        return fm_tokens_open(t, path, raw, err);
    int rc = fm_tokens_open(t, path, FM_TOKEN_AUTO, &mine);
    if (rc == FM_EUSAGE)
        return fm_tokens_open(t, path, raw, err);
    if (rc != FM_OK)
        *err = mine;
    return rc;
}

/* Without a shuffle no source gives more than all that is wanted. */
static int open_text(struct reading *r, int s, const char *path, struct fm_err *err)
{
    if (strcmp(path, "-") == 0 && r->run->input && strcmp(r->run->input, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "--text - and the stage stream are both standard input");
    return fm_corpus_encode(&r->corpus[s], &r->tokens[s], r->run, path,
                            r->run->shuffle ? 0 : r->run->max_tokens, err);
}

static int add_source(struct reading *r, const char *spec, bool text, struct fm_err *err)
{
    int s = r->mix.sources, rc;
    size_t length = strlen(spec);
    if (s == FM_SOURCES_MAX)
        return fm_fail(err, FM_EUSAGE, "more than %d sources of tokens", FM_SOURCES_MAX);
    r->mix.weight[s] = FM_WEIGHT_ONE;
    if (!r->eval && (rc = fm_mixture_spec(spec, &length, &r->mix.weight[s], err)) != FM_OK)
        return rc;
    char *path = fm_strdup(spec, err);
    if (!path)
        return FM_ENOMEM;
    path[length] = '\0';
    rc = text ? open_text(r, s, path, err) : open_tokens(&r->tokens[s], path, r, err);
    r->mix.sources += rc == FM_OK;
    free(path);
    return rc;
}

static int open_sources(struct reading *r, struct fm_err *err)
{
    const struct fm_run_options *run = r->run;
    if (r->eval)
        return add_source(r, run->eval_tokens, false, err);
    int rc = run->tokens ? add_source(r, run->tokens, false, err) : FM_OK;
    for (int i = 0; rc == FM_OK && i < FM_SOURCES_MAX && run->also_tokens[i]; i++)
        rc = add_source(r, run->also_tokens[i], false, err);
    for (int i = 0; rc == FM_OK && i < FM_SOURCES_MAX && run->texts[i]; i++)
        rc = add_source(r, run->texts[i], true, err);
    return rc;
}

static void close_sources(struct reading *r)
{
    for (int s = 0; s < r->mix.sources; s++) {
        fm_tokens_close(&r->tokens[s]);
        fm_hasher_free(r->hasher[s]);
        free(r->order[s]);
    }
}

/* Tokens per sequence: what was asked for, or the default. */
static int choose_T(int *T, const struct reading *r, struct fm_err *err)
{
    const struct fm_run_options *run = r->run;
    const struct fm_config *config = r->config;
    uint64_t most = SEQ_LEN_DEFAULT;
    const char *narrow = r->tokens[0].file.path;
    if (most > (uint64_t)config->T_max)
        most = (uint64_t)config->T_max;
    for (int s = 0; s < r->mix.sources; s++)
        if (r->tokens[s].rows > 0 && most > r->tokens[s].cols) {
            most = r->tokens[s].cols;
            narrow = r->tokens[s].file.path;
        }
    *T = run->seq_len ? run->seq_len : (int)most;
    if (*T > config->T_max)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d is more than the model's positions (%d)", *T,
                       config->T_max);
    if (run->seq_len && *T < 2)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d: a sequence has at least 2 tokens", *T);
    if (*T < 2)
        return fm_fail(err, FM_EFORMAT, "%s: sequences of %d tokens predict nothing", narrow, *T);
    return FM_OK;
}

/* Whole sequences of T tokens in the file. */
static int count_sequences(uint64_t *count, const struct fm_tokens *t, int T, struct fm_err *err)
{
    bool rows = t->rows > 0;
    *count = rows ? (t->cols >= (uint64_t)T ? t->rows : 0) : t->count / (uint64_t)T;
    if (*count == 0)
        return fm_fail(err, FM_EFORMAT,
                       "%s: %" PRIu64 " tokens%s are not one sequence of %d; use a smaller "
                       "--seq-len",
                       t->file.path, rows ? t->cols : t->count, rows ? " in a row" : "", T);
    if (*count > INT_MAX)
        return fm_fail(err, FM_ECONFIG, "%s: %" PRIu64 " sequences (limit %d); use --max-tokens",
                       t->file.path, *count, INT_MAX);
    return FM_OK;
}

/* Sequences of the whole mixture, which --max-tokens may cut. */
static int count_mixture(struct fm_calib *c, const struct reading *r, struct fm_err *err)
{
    struct fm_mixture dry = r->mix;
    uint64_t most = INT_MAX, n = 0;
    if (!r->eval && r->run->max_tokens > 0) {
        most = r->run->max_tokens / (uint64_t)c->T;
        if (most == 0)
            return fm_fail(err, FM_EUSAGE, "--max-tokens %" PRIu64 " is less than a sequence of %d",
                           r->run->max_tokens, c->T);
        most = most < INT_MAX ? most : INT_MAX;
    }
    while (n < most && fm_mixture_next(&dry) >= 0)
        n++;
    c->count = (int)n;
    return FM_OK;
}

/* A permutation of each source, where the user asked for one. */
static int shuffle_sources(struct reading *r, struct fm_err *err)
{
    for (int s = 0; !r->eval && r->run->shuffle && s < r->mix.sources; s++) {
        size_t n = (size_t)r->mix.all[s];
        r->order[s] = fm_alloc(n, sizeof **r->order, "the order of sequences", err);
        if (!r->order[s])
            return FM_ENOMEM;
        fm_rng_permutation(r->order[s], (uint32_t)n, r->run->seed, FM_STREAM_SHUFFLE, (uint32_t)s);
    }
    return FM_OK;
}

static int read_sequences(struct fm_calib *c, struct reading *r, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; !rc && i < c->count; i++) {
        int s = fm_mixture_next(&r->mix);
        const struct fm_tokens *t = &r->tokens[s];
        uint64_t from = r->mix.taken[s] - 1;
        uint64_t stride = t->rows > 0 ? t->cols : (uint64_t)c->T;
        int32_t *ids = c->ids + (size_t)i * (size_t)c->T;
        from = r->order[s] ? r->order[s][from] : from;
        rc = fm_tokens_read(t, from * stride, ids, (uint64_t)c->T, (uint32_t)r->config->V, err);
        fm_hasher_add(r->hasher[s], ids, (size_t)c->T * sizeof *ids);
    }
    return rc;
}

static void describe_sources(struct fm_calib *c, const struct reading *r)
{
    c->sources = r->mix.sources;
    for (int s = 0; s < c->sources; s++)
        c->source[s] = (struct fm_calib_source){.format = r->tokens[s].format,
                                                .rows = r->tokens[s].rows > 0,
                                                .weight = r->mix.weight[s],
                                                .tokens = r->tokens[s].count,
                                                .corpus = r->corpus[s],
                                                .sequences = r->mix.taken[s],
                                                .digest = fm_hasher_done(r->hasher[s])};
}

static void make_digest(struct fm_calib *c)
{
    c->digest = fm_digest_of(c->ids, (size_t)c->count * (size_t)c->T * sizeof *c->ids);
}

static int read_all(struct fm_calib *c, struct reading *r, struct fm_err *err)
{
    int rc = choose_T(&c->T, r, err);
    for (int s = 0; rc == FM_OK && s < r->mix.sources; s++) {
        rc = count_sequences(&r->mix.all[s], &r->tokens[s], c->T, err);
        if (rc == FM_OK && !(r->hasher[s] = fm_hasher_new()))
            rc = fm_fail(err, FM_ENOMEM, "no memory for a digest");
    }
    if (rc == FM_OK)
        rc = count_mixture(c, r, err);
    if (rc == FM_OK)
        rc = shuffle_sources(r, err);
    if (rc != FM_OK)
        return rc;
    c->ids = fm_alloc((size_t)c->count, (size_t)c->T * sizeof *c->ids, "tokens", err);
    if (!c->ids)
        return FM_ENOMEM;
    if ((rc = read_sequences(c, r, err)) != FM_OK)
        return rc;
    describe_sources(c, r);
    make_digest(c);
    return FM_OK;
}

int fm_calib_open(struct fm_calib *c, const struct fm_run_options *run,
                  const struct fm_config *config, bool eval, struct fm_err *err)
{
    *c = (struct fm_calib){0};
    struct reading *r = fm_alloc(1, sizeof *r, "sources of tokens", err);
    if (!r)
        return FM_ENOMEM;
    r->run = run;
    r->config = config;
    r->eval = eval;
    int rc = open_sources(r, err);
    if (rc == FM_OK)
        rc = read_all(c, r, err);
    close_sources(r);
    free(r);
    if (rc)
        fm_calib_close(c);
    return rc;
}

void fm_calib_close(struct fm_calib *c)
{
    free(c->ids);
    *c = (struct fm_calib){0};
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
    c->count -= n;
    memcpy(held->ids, c->ids + (size_t)c->count * (size_t)c->T,
           (size_t)n * (size_t)c->T * sizeof *held->ids);
    make_digest(c);
    make_digest(held);
    return FM_OK;
}
