#include "lib/calib.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

#define SEQ_LEN_DEFAULT 2048

/* Tokens per sequence: what was asked for, or the default. */
static int choose_T(int *T, const struct fm_run_options *run, const struct fm_config *config,
                    const struct fm_tokens *tokens, struct fm_err *err)
{
    uint64_t most = SEQ_LEN_DEFAULT;
    if (most > (uint64_t)config->T_max)
        most = (uint64_t)config->T_max;
    if (tokens->rows > 0 && most > tokens->cols)
        most = tokens->cols;
    *T = run->seq_len ? run->seq_len : (int)most;
    if (*T > config->T_max)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d is more than the model's positions (%d)", *T,
                       config->T_max);
    if (run->seq_len && *T < 2)
        return fm_fail(err, FM_EUSAGE, "--seq-len %d: a sequence has at least 2 tokens", *T);
    if (*T < 2)
        return fm_fail(err, FM_EFORMAT, "%s: sequences of %d tokens predict nothing",
                       tokens->file.path, *T);
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

static int read_sequences(struct fm_calib *c, const struct fm_tokens *t, const uint32_t *order,
                          const struct fm_config *config, struct fm_err *err)
{
    uint64_t stride = t->rows > 0 ? t->cols : (uint64_t)c->T;
    int rc = FM_OK;
    for (int i = 0; !rc && i < c->count; i++) {
        uint64_t from = order ? order[i] : (uint64_t)i;
        rc = fm_tokens_read(t, from * stride, c->ids + (size_t)i * (size_t)c->T, (uint64_t)c->T,
                            (uint32_t)config->V, err);
    }
    return rc;
}

static void make_digest(struct fm_calib *c)
{
    c->digest = fm_digest_of(c->ids, (size_t)c->count * (size_t)c->T * sizeof *c->ids);
}

int fm_calib_open(struct fm_calib *c, const struct fm_run_options *run,
                  const struct fm_config *config, bool eval, struct fm_err *err)
{
    struct fm_tokens t = {0};
    uint64_t all = 0, used = 0;
    uint32_t *order = NULL;
    *c = (struct fm_calib){0};
    int rc = fm_tokens_open(&t, eval ? run->eval_tokens : run->tokens, run->token_dtype, err);
    if (rc)
        return rc;
    rc = choose_T(&c->T, run, config, &t, err);
    if (!rc)
        rc = count_sequences(&all, &t, c->T, err);
    if (rc)
        goto out;
    used = all;
    if (!eval && run->max_tokens > 0 && run->max_tokens / (uint64_t)c->T < all)
        used = run->max_tokens / (uint64_t)c->T;
    if (used == 0) {
        rc = fm_fail(err, FM_EUSAGE, "--max-tokens %" PRIu64 " is less than a sequence of %d",
                     run->max_tokens, c->T);
        goto out;
    }
    if (!eval && run->shuffle) {
        order = fm_alloc((size_t)all, sizeof *order, "the order of sequences", err);
        rc = order ? FM_OK : err->code;
        if (order)
            fm_rng_permutation(order, (uint32_t)all, run->seed, FM_STREAM_SHUFFLE, 0);
    }
    c->count = (int)used;
    c->ids = rc ? NULL : fm_alloc((size_t)used, (size_t)c->T * sizeof *c->ids, "tokens", err);
    rc = c->ids ? read_sequences(c, &t, order, config, err) : err->code;
    if (!rc)
        make_digest(c);
out:
    free(order);
    fm_tokens_close(&t);
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
