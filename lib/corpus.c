#include "lib/corpus.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/documents.h"
#include "formats/text.h"
#include "formats/unicode.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/command.h"

#define BATCH 1024             /* documents encoded together */
#define BATCH_BYTES (4u << 20) /* or so many bytes */

struct item {
    char *record, *text;
    size_t size, n;
    uint64_t line;
    int32_t *ids;
    struct fm_err err;
};

struct encoding {
    struct fm_documents documents;
    const char *field;
    struct fm_tokenizer *tokenizer; /* NULL: a command encodes */
    struct fm_encoder **spare;      /* those that no thread uses */
    int spares;
    pthread_mutex_t lock;
    struct item *item;
    int items;
    int out; /* the temporary file */
    uint64_t at;
};

/* --- one batch --- */

static struct fm_encoder *borrow(struct encoding *e, struct fm_err *err)
{
    struct fm_encoder *encoder = NULL;
    pthread_mutex_lock(&e->lock);
    if (e->spares > 0)
        encoder = e->spare[--e->spares];
    pthread_mutex_unlock(&e->lock);
    if (!encoder)
        fm_encoder_new(&encoder, e->tokenizer, err);
    return encoder;
}

static void give_back(struct encoding *e, struct fm_encoder *encoder)
{
    pthread_mutex_lock(&e->lock);
    if (e->spares < FM_THREADS_MAX)
        e->spare[e->spares++] = encoder;
    else
        fm_encoder_free(encoder);
    pthread_mutex_unlock(&e->lock);
}

static void encode_text(struct encoding *e, struct item *it, size_t length)
{
    const int32_t *ids;
    struct fm_encoder *encoder = borrow(e, &it->err);
    if (encoder && fm_encoder_run(encoder, it->text, length, &ids, &it->n, &it->err) == FM_OK) {
        it->ids = fm_alloc(it->n, sizeof *ids, "the tokens of a document", &it->err);
        if (it->ids)
            memcpy(it->ids, ids, it->n * sizeof *ids);
    }
    if (encoder)
        give_back(e, encoder);
}

/* The text of a document and, where we encode, its ids. */
static void take_item(void *arg, int i)
{
    struct encoding *e = arg;
    struct item *it = &e->item[i];
    size_t length = 0;
    it->text = fm_alloc(it->size + 1, 1, "a document", &it->err);
    if (!it->text || fm_documents_text(&e->documents, e->field, it->record, it->size, it->text,
                                       &length, &it->err) != FM_OK)
        return;
    size_t valid = fm_unicode_check(it->text, length);
    if (valid < length)
        fm_fail(&it->err, FM_EFORMAT, "byte %zu of the text is not UTF-8", valid);
    else if (e->tokenizer)
        encode_text(e, it, length);
}

static int write_out(struct encoding *e, const void *bytes, size_t size, struct fm_err *err)
{
    int rc = fm_file_temp_write(e->out, e->at, bytes, size, err);
    e->at += size;
    return rc;
}

/* A document for a command: a JSON string on a line. */
static int write_line(struct encoding *e, const struct item *it, struct fm_err *err)
{
    struct fm_text line = {0};
    fm_text_quote(&line, it->text);
    fm_text_add(&line, "\n", 1);
    int rc = line.failed ? fm_fail(err, FM_ENOMEM, "no memory for a document")
                         : write_out(e, line.data, line.size, err);
    free(line.data);
    return rc;
}

static void drop_items(struct encoding *e)
{
    for (int i = 0; i < e->items; i++) {
        free(e->item[i].record);
        free(e->item[i].text);
        free(e->item[i].ids);
        e->item[i] = (struct item){0};
    }
    e->items = 0;
}

/* In the order of the documents: the first that failed is the error. */
static int write_items(struct encoding *e, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; rc == FM_OK && i < e->items; i++) {
        const struct item *it = &e->item[i];
        if (it->err.code != FM_OK) {
            *err = it->err;
            rc = fm_within(err, "%s: line %" PRIu64, e->documents.file.path, it->line);
        } else {
            rc = e->tokenizer ? write_out(e, it->ids, it->n * sizeof *it->ids, err)
                              : write_line(e, it, err);
        }
    }
    return rc;
}

static int read_items(struct encoding *e, bool *end, struct fm_err *err)
{
    size_t bytes = 0;
    while (e->items < BATCH && bytes < BATCH_BYTES) {
        struct item *it = &e->item[e->items];
        const char *record;
        int rc = fm_documents_next(&e->documents, &record, &it->size, &it->line, err);
        if (rc != FM_OK)
            return fm_within(err, "%s", e->documents.file.path);
        *end = record == NULL;
        if (*end)
            return FM_OK;
        it->record = fm_alloc(it->size + 1, 1, "a document", err);
        if (!it->record)
            return FM_ENOMEM;
        memcpy(it->record, record, it->size);
        bytes += it->size;
        e->items++;
    }
    return FM_OK;
}

static int encode_all(struct encoding *e, struct fm_corpus *c, const struct fm_run_options *run,
                      uint64_t enough, struct fm_err *err)
{
    bool end = false;
    int rc = FM_OK;
    while (rc == FM_OK && !end) {
        if (run->stop && *run->stop)
            return fm_fail(err, FM_ESAVED, "interrupted while encoding '%s'",
                           e->documents.file.path);
        rc = read_items(e, &end, err);
        if (rc == FM_OK)
            fm_pool_for(e->items, take_item, e);
        if (rc == FM_OK)
            rc = write_items(e, err);
        c->documents += (uint64_t)e->items;
        drop_items(e);
        fm_run_report(run, "text", e->documents.at - (e->documents.have - e->documents.used),
                      e->documents.file.size, "bytes");
        end = end || (enough && e->tokenizer && e->at / sizeof(int32_t) >= enough);
    }
    return rc;
}

/* --- all of it --- */

static int open_tokenizer(struct encoding *e, struct fm_corpus *c, const struct fm_run_options *run,
                          struct fm_err *err)
{
    struct fm_text path = {0};
    if (run->tokenizer)
        fm_text_printf(&path, "%s", run->tokenizer);
    else
        fm_text_printf(&path, "%s/tokenizer.json", run->model);
    int rc = path.failed ? fm_fail(err, FM_ENOMEM, "no memory for a path")
                         : fm_tokenizer_open(&e->tokenizer, path.data, err);
    free(path.data);
    if (rc != FM_OK)
        return rc;
    const int32_t *front, *back;
    fm_tokenizer_template(e->tokenizer, &front, &c->fronts, &back, &c->backs);
    memcpy(c->front, front, (size_t)c->fronts * sizeof *front);
    memcpy(c->back, back, (size_t)c->backs * sizeof *back);
    c->tokenizer = fm_tokenizer_digest(e->tokenizer);
    return FM_OK;
}

static void release(struct encoding *e)
{
    drop_items(e);
    while (e->spares > 0)
        fm_encoder_free(e->spare[--e->spares]);
    free(e->spare);
    free(e->item);
    fm_documents_close(&e->documents);
    fm_tokenizer_close(e->tokenizer);
    pthread_mutex_destroy(&e->lock);
    if (e->out >= 0)
        close(e->out);
}

static int prepare(struct encoding *e, struct fm_corpus *c, const struct fm_run_options *run,
                   const char *path, struct fm_err *err)
{
    int rc = run->tokenizer_cmd ? FM_OK : open_tokenizer(e, c, run, err);
    if (rc == FM_OK)
        rc = fm_documents_open(&e->documents, path, run->split_blank_lines, err);
    e->item = rc == FM_OK ? fm_alloc(BATCH, sizeof *e->item, "documents", err) : NULL;
    e->spare = rc == FM_OK ? fm_alloc(FM_THREADS_MAX, sizeof(void *), "encoders", err) : NULL;
    if (rc == FM_OK && (!e->item || !e->spare))
        rc = FM_ENOMEM;
    return rc == FM_OK ? fm_file_temp(&e->out, err) : rc;
}

/* The temporary file becomes the token file. */
static int hand_over(struct encoding *e, struct fm_tokens *t, const char *path, struct fm_err *err)
{
    *t = (struct fm_tokens){.file = {.fd = e->out, .size = e->at},
                            .format = FM_CORPUS_FORMAT,
                            .count = e->at / sizeof(int32_t),
                            .width = sizeof(int32_t),
                            .is_signed = 1};
    e->out = -1;
    t->file.path = fm_strdup(path, err);
    if (t->file.path && t->count > 0)
        return FM_OK;
    int rc =
        t->file.path ? fm_fail(err, FM_EFORMAT, "%s: there is no text in it", path) : FM_ENOMEM;
    fm_tokens_close(t);
    return rc;
}

int fm_corpus_encode(struct fm_corpus *c, struct fm_tokens *t, const struct fm_run_options *run,
                     const char *path, uint64_t enough, struct fm_err *err)
{
    struct encoding e = {.field = run->text_field ? run->text_field : "text",
                         .out = -1,
                         .documents.file.fd = -1,
                         .lock = PTHREAD_MUTEX_INITIALIZER};
    *c = (struct fm_corpus){0};
    int rc = prepare(&e, c, run, path, err);
    if (rc == FM_OK)
        rc = encode_all(&e, c, run, enough, err);
    if (rc == FM_OK && run->tokenizer_cmd) {
        c->command = true;
        c->tokenizer = fm_digest_of(run->tokenizer_cmd, strlen(run->tokenizer_cmd));
        rc = fm_command_tokens(run->tokenizer_cmd, &e.out, &e.at, c->documents, err);
    }
    if (rc == FM_OK)
        rc = hand_over(&e, t, path, err);
    release(&e);
    return rc;
}
