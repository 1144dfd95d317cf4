/*
 * Every offset in the file follows from the three numbers of its head, so these are checked against
 * the file's length first, and no later offset can be outside it.
 */
#include "formats/text/klbase.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define MAGIC "_logits_"
#define MAGIC_BYTES 8
#define HEAD_BYTES (MAGIC_BYTES + 3 * (uint64_t)sizeof(int32_t))
#define SPAN 16.0f      /* nats that a row keeps below its largest logit */
#define CODES 65535.0f  /* the largest code */
#define ABOVE_ONE 1e-3f /* rounding may leave a log-probability this far above 0 */

int fm_klbase_rows(int32_t n_ctx)
{
    return n_ctx - 1 - n_ctx / 2;
}

size_t fm_klbase_row_bytes(int32_t vocabulary)
{
    size_t even = ((size_t)vocabulary + 1) / 2 * 2;
    return 2 * sizeof(float) + even * sizeof(uint16_t);
}

static uint64_t rows_at(const struct fm_klbase_shape *s)
{
    return HEAD_BYTES + (uint64_t)s->chunks * (uint64_t)s->n_ctx * sizeof(int32_t);
}

static uint64_t row_at(const struct fm_klbase_shape *s, int32_t chunk, int i)
{
    int rows = fm_klbase_rows(s->n_ctx);
    assert(chunk >= 0 && chunk < s->chunks && i >= 0 && i < rows);
    return rows_at(s) + ((uint64_t)chunk * (uint64_t)rows + (uint64_t)i) *
                            (uint64_t)fm_klbase_row_bytes(s->vocabulary);
}

static uint64_t tokens_at(const struct fm_klbase_shape *s, int32_t chunk)
{
    assert(chunk >= 0 && chunk < s->chunks);
    return HEAD_BYTES + (uint64_t)chunk * (uint64_t)s->n_ctx * sizeof(int32_t);
}

/* At most 2^31 tokens with a row of 2^32 bytes for half of them: no overflow. */
uint64_t fm_klbase_bytes(const struct fm_klbase_shape *s)
{
    return rows_at(s) + (uint64_t)s->chunks * (uint64_t)fm_klbase_rows(s->n_ctx) *
                            (uint64_t)fm_klbase_row_bytes(s->vocabulary);
}

int fm_klbase_check(const struct fm_klbase_shape *s, struct fm_err *err)
{
    if (s->n_ctx < 3)
        return fm_fail(err, FM_EUSAGE,
                       "a context of %" PRId32 " tokens is too short for a base-logits file (at "
                       "least 3)",
                       s->n_ctx);
    if (s->vocabulary < 1)
        return fm_fail(err, FM_EUSAGE,
                       "a base-logits file needs a vocabulary of at least 1 token, not %" PRId32,
                       s->vocabulary);
    if (s->chunks < 1 || s->chunks > INT32_MAX / s->n_ctx)
        return fm_fail(err, FM_EUSAGE,
                       "a base-logits file has 1 to %" PRId32 " chunks of %" PRId32
                       " tokens, not %" PRId32,
                       INT32_MAX / s->n_ctx, s->n_ctx, s->chunks);
    return FM_OK;
}

void fm_klbase_encode(void *row, const float *logits, int32_t vocabulary)
{
    size_t V = (size_t)vocabulary;
    float most = logits[0], least = logits[0];
    double sum = 0;
    for (size_t i = 1; i < V; i++) {
        most = logits[i] > most ? logits[i] : most;
        least = logits[i] < least ? logits[i] : least;
    }
    least = least > most - SPAN ? least : most - SPAN;
    for (size_t i = 0; i < V; i++)
        sum += expf(logits[i] - most);
    const float wide = (float)log(sum);
    const float head[2] = {(most - least) / CODES, least - most - wide};
    const float inverse = head[0] > 0 ? 1 / head[0] : 0;
    memset(row, 0, fm_klbase_row_bytes(vocabulary));
    memcpy(row, head, sizeof head);
    uint16_t *code = (uint16_t *)((float *)row + 2);
    for (size_t i = 0; i < V; i++)
        if (logits[i] > least)
            code[i] = (uint16_t)fminf(rintf(inverse * (logits[i] - least)), CODES);
}

int fm_klbase_create(struct fm_klbase_writer *w, const char *path, bool force,
                     const struct fm_klbase_shape *shape, struct fm_err *err)
{
    const int32_t head[3] = {shape->n_ctx, shape->vocabulary, shape->chunks};
    w->shape = *shape;
    if (fm_output_open(&w->out, path, true, force, err) ||
        fm_output_reserve(&w->out, fm_klbase_bytes(shape), err) ||
        fm_output_write_at(&w->out, 0, MAGIC, MAGIC_BYTES, err))
        return err->code;
    return fm_output_write_at(&w->out, MAGIC_BYTES, head, sizeof head, err);
}

int fm_klbase_put_tokens(struct fm_klbase_writer *w, int32_t chunk, const int32_t *ids,
                         struct fm_err *err)
{
    return fm_output_write_at(&w->out, tokens_at(&w->shape, chunk), ids,
                              (size_t)w->shape.n_ctx * sizeof *ids, err);
}

int fm_klbase_put_row(struct fm_klbase_writer *w, int32_t chunk, int i, const void *row,
                      struct fm_err *err)
{
    return fm_output_write_at(&w->out, row_at(&w->shape, chunk, i), row,
                              fm_klbase_row_bytes(w->shape.vocabulary), err);
}

static int read_head(struct fm_klbase *b, struct fm_err *err)
{
    char magic[MAGIC_BYTES];
    int32_t head[3];
    if (b->file.size < HEAD_BYTES)
        return fm_fail(err, FM_EFORMAT,
                       "%" PRIu64 " bytes are too few for a base-logits file (%" PRIu64 ")",
                       b->file.size, HEAD_BYTES);
    if (fm_file_read(&b->file, 0, magic, sizeof magic, err) ||
        fm_file_read(&b->file, sizeof magic, head, sizeof head, err))
        return err->code;
    if (memcmp(magic, MAGIC, sizeof magic) != 0)
        return fm_fail(err, FM_EFORMAT,
                       "does not begin with " MAGIC ": it is not a base-logits file of llama.cpp");
    b->shape = (struct fm_klbase_shape){head[0], head[1], head[2]};
    if (fm_klbase_check(&b->shape, err))
        return err->code = FM_EFORMAT;
    uint64_t want = fm_klbase_bytes(&b->shape);
    if (b->file.size != want)
        return fm_fail(err, FM_EFORMAT,
                       "%" PRId32 " chunks of %" PRId32 " tokens with a vocabulary of %" PRId32
                       " take %" PRIu64 " bytes; the file has %" PRIu64 "%s",
                       b->shape.chunks, b->shape.n_ctx, b->shape.vocabulary, want, b->file.size,
                       b->file.size < want ? " and is cut off; copy it again or recreate it" : "");
    return FM_OK;
}

int fm_klbase_open(struct fm_klbase *b, const char *path, struct fm_err *err)
{
    *b = (struct fm_klbase){.file = {.fd = -1}};
    int rc = fm_file_open(&b->file, path, err);
    if (rc)
        return rc;
    rc = read_head(b, err);
    if (rc) {
        fm_within(err, "%s", path);
        fm_klbase_close(b);
    }
    return rc;
}

void fm_klbase_close(struct fm_klbase *b)
{
    fm_file_close(&b->file);
    *b = (struct fm_klbase){.file = {.fd = -1}};
}

int fm_klbase_tokens(const struct fm_klbase *b, int32_t chunk, int32_t *ids, struct fm_err *err)
{
    size_t n = (size_t)b->shape.n_ctx;
    int rc = fm_file_read(&b->file, tokens_at(&b->shape, chunk), ids, n * sizeof *ids, err);
    for (size_t i = 0; !rc && i < n; i++)
        if (ids[i] < 0 || ids[i] >= b->shape.vocabulary)
            rc = fm_fail(err, FM_EFORMAT,
                         "%s: token %zu of chunk %" PRId32 " is %" PRId32 " (vocabulary %" PRId32
                         ")",
                         b->file.path, i, chunk, ids[i], b->shape.vocabulary);
    return rc;
}

int fm_klbase_logprobs(const struct fm_klbase *b, int32_t chunk, int i, float *logprob, void *row,
                       struct fm_err *err)
{
    float head[2];
    int rc = fm_file_read(&b->file, row_at(&b->shape, chunk, i), row,
                          fm_klbase_row_bytes(b->shape.vocabulary), err);
    if (rc)
        return rc;
    memcpy(head, row, sizeof head);
    /* !(x <= y) is also true for NaN. */
    if (!isfinite(head[0]) || !(head[0] >= 0) || !isfinite(head[1]) ||
        !(head[0] * CODES + head[1] <= ABOVE_ONE))
        return fm_fail(err, FM_EFORMAT,
                       "%s: row %d of chunk %" PRId32
                       " goes from %g in steps of %g, which are not log-probabilities",
                       b->file.path, i, chunk, (double)head[1], (double)head[0]);
    const uint16_t *code = (const uint16_t *)((const float *)row + 2);
    for (int32_t k = 0; k < b->shape.vocabulary; k++)
        logprob[k] = head[0] * (float)code[k] + head[1];
    return FM_OK;
}
