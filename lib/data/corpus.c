/*
 * Documents are processed in batches: read one after another, encoded in parallel, and their ids
 * written in order.  The error returned belongs to the first document that fails, whichever thread
 * finds an error first.  Ids go to an unlinked file, which is then read like any token file.  A
 * tokenizer command gets the same documents as lines of JSON.
 */
#include "lib/data/corpus.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/bundle/bundle.h"
#include "formats/file/text.h"
#include "formats/text/documents.h"
#include "formats/text/unicode.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/data/command.h"

#define BATCH 1024             /* documents encoded together */
#define BATCH_BYTES (4u << 20) /* or this many bytes */

struct item {
    char *record, *text;
    size_t size, n, dropped;
    uint64_t line, bytes;
    int32_t *ids;
    struct fm_err err;
};

struct encoding {
    const struct fm_run_options *run;
    struct fm_documents documents;
    struct fm_tokenizer *tokenizer; /* NULL if a command encodes */
    int32_t separator;              /* -1: none */
    struct fm_encoder **spare;      /* encoders not in use */
    int spares;
    pthread_mutex_t lock;
    struct item *item;
    int items;
    bool end, full;          /* no more documents; enough tokens */
    uint64_t enough, seen;   /* tokens to stop at, or 0; documents encoded */
    uint64_t bytes, dropped; /* of these documents; fm_encoder_dropped */
    struct fm_err late;      /* the error after the items that were read */
    struct fm_text lines;    /* for a command */
    int out;                 /* the temporary file */
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
    if (encoder && !fm_encoder_run(encoder, it->text, length, &ids, &it->n, &it->err)) {
        size_t n = it->n;
        it->dropped = fm_encoder_dropped(encoder);
        it->ids = fm_alloc(n + 1, sizeof *ids, "the tokens of a document", &it->err);
        if (it->ids && n > 0) {
            memcpy(it->ids, ids, n * sizeof *ids);
            /* Separators of chat templates may be followed by a line feed. */
            if (e->separator >= 0 && ids[n - 1] != e->separator &&
                !(n > 1 && ids[n - 2] == e->separator))
                it->ids[it->n++] = e->separator;
        }
    }
    if (encoder)
        give_back(e, encoder);
}

/* Read the text of a document and, unless a command is used, encode it. */
static void encode_item(void *arg, int i)
{
    struct encoding *e = arg;
    struct item *it = &e->item[i];
    size_t length = 0;
    it->text = fm_alloc(it->size + 1, 1, "a document", &it->err);
    if (!it->text ||
        fm_documents_text(&e->documents, it->record, it->size, it->text, &length, &it->err))
        return;
    size_t valid = fm_unicode_check(it->text, length);
    if (valid < length)
        fm_fail(&it->err, FM_EFORMAT, "byte %zu of the text is not UTF-8", valid);
    it->bytes = length;
    if (e->tokenizer && !it->err.code)
        encode_text(e, it, length);
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

/* Read and encode up to one batch; an error after its first document is returned by the next
 * call. */
static int read_items(struct encoding *e, struct fm_err *err)
{
    size_t bytes = 0;
    int rc = FM_OK;
    if (e->run->stop && *e->run->stop)
        return fm_fail(err, FM_ESAVED, "interrupted while encoding '%s'", e->documents.file.path);
    if (e->late.code) {
        *err = e->late;
        return err->code;
    }
    while (!rc && !e->end && e->items < BATCH && bytes < BATCH_BYTES) {
        struct item *it = &e->item[e->items];
        const char *record;
        rc = fm_documents_next(&e->documents, &record, &it->size, &it->line, &e->late);
        e->end = !rc && record == NULL;
        if (rc || e->end)
            break;
        it->record = fm_alloc(it->size + 1, 1, "a document", err);
        if (!it->record)
            return FM_ENOMEM;
        memcpy(it->record, record, it->size);
        bytes += it->size;
        e->items++;
    }
    if (rc && e->items == 0) {
        *err = e->late;
        return rc;
    }
    fm_pool_for(e->items, encode_item, e);
    fm_run_report(e->run, "text", e->documents.at - (e->documents.have - e->documents.used),
                  e->documents.file.size, "bytes");
    return FM_OK;
}

static int name_line(const struct encoding *e, const struct item *it, struct fm_err *err)
{
    *err = it->err;
    return fm_within(err, "%s: line %" PRIu64, e->documents.file.path, it->line);
}

/* Write ids in the order of documents, so that the first failure is reported. */
static int write_items(struct encoding *e, struct fm_err *err)
{
    assert(e->tokenizer); /* a command writes its ids itself */
    for (int i = 0; i < e->items && !e->full; i++) {
        const struct item *it = &e->item[i];
        if (it->err.code)
            return name_line(e, it, err);
        int rc = fm_file_temp_write(e->out, e->at, it->ids, it->n * sizeof *it->ids, err);
        if (rc)
            return rc;
        e->at += it->n * sizeof *it->ids;
        e->seen++;
        e->bytes += it->bytes;
        e->dropped += it->dropped;
        e->full = e->enough && e->at / sizeof *it->ids >= e->enough;
    }
    return FM_OK;
}

static int encode_all(struct encoding *e, struct fm_err *err)
{
    int rc = FM_OK;
    while (!rc && !e->end && !e->full) {
        rc = read_items(e, err);
        if (!rc)
            rc = write_items(e, err);
        drop_items(e);
    }
    return rc;
}

/* --- by a command --- */

/* Make the lines of a batch, up to the first invalid document, whose error is reported after
 * them. */
static uint64_t quote_items(struct encoding *e)
{
    int n = 0;
    e->lines.size = 0;
    for (; n < e->items && !e->item[n].err.code; n++) {
        fm_text_quote(&e->lines, e->item[n].text);
        fm_text_add(&e->lines, "\n", 1);
    }
    if (n < e->items)
        name_line(e, &e->item[n], &e->late);
    return (uint64_t)n;
}

/* The next batch for the command: fm_command_feed. */
static int feed_lines(void *self, const char **lines, size_t *size, uint64_t *count,
                      struct fm_err *err)
{
    struct encoding *e = self;
    *lines = NULL;
    *size = *count = 0;
    if (e->end && !e->late.code)
        return FM_OK;
    int rc = read_items(e, err);
    if (!rc)
        *count = quote_items(e);
    drop_items(e);
    if (!rc && e->lines.failed)
        rc = fm_fail(err, FM_ENOMEM, "no memory for documents");
    if (!rc) {
        *lines = *count ? e->lines.data : "";
        *size = e->lines.size;
    }
    return rc;
}

static int run_command(struct encoding *e, struct fm_err *err)
{
    const struct fm_command command = {.command = e->run->inputs.tokenizer_cmd,
                                       .feed = feed_lines,
                                       .self = e,
                                       .enough = e->enough,
                                       .silence = FM_COMMAND_SILENCE,
                                       .stop = e->run->stop};
    return fm_command_tokens(&command, e->out, &e->at, &e->seen, err);
}

/* --- all of it --- */

/* Open the tokenizer.json of a bundle, a copy of the checkpoint's. */
static int open_carried(struct fm_tokenizer **t, const char *path, struct fm_err *err)
{
    struct fm_bundle b;
    void *text = NULL;
    size_t size = 0;
    if (!path || strcmp(path, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "text needs a tokenizer file; give --tokenizer FILE");
    int rc = fm_bundle_open(&b, path, err);
    if (rc)
        return rc;
    const struct fm_member *m = fm_bundle_find(&b, FM_MEMBER_CARRIED "tokenizer.json");
    if (!m || m->size > FM_TOKENIZER_BYTES_MAX)
        rc = fm_fail(err, FM_EUSAGE, "'%s' has no tokenizer.json; give --tokenizer FILE", path);
    if (!rc)
        rc = fm_bundle_read(&b, m, &text, &size, err);
    if (!rc && (rc = fm_tokenizer_parse(t, text, size, err)))
        fm_within(err, "%s: %s", path, m->name);
    free(text);
    fm_bundle_close(&b);
    return rc;
}

static int open_file(struct fm_tokenizer **t, const struct fm_run_options *run, struct fm_err *err)
{
    if (run->inputs.tokenizer)
        return fm_tokenizer_open(t, run->inputs.tokenizer, err);
    char *path = fm_file_join(run->inputs.model, "tokenizer.json", err);
    int rc = path ? fm_tokenizer_open(t, path, err) : err->code;
    free(path);
    if (rc == FM_ENOENT)
        return fm_fail(err, FM_ENOENT,
                       "'%s' has no tokenizer.json to encode text with; give tokens with --tokens, "
                       "a command with --tokenizer-cmd, or --tokenizer FILE, which transformers "
                       "writes for many SentencePiece and tiktoken models "
                       "(AutoTokenizer.from_pretrained, then save_pretrained)",
                       run->inputs.model);
    return rc;
}

static int open_tokenizer(struct encoding *e, struct fm_corpus *c, struct fm_err *err)
{
    const struct fm_run_options *run = e->run;
    int rc = run->inputs.tokenizer || run->inputs.model
                 ? open_file(&e->tokenizer, run, err)
                 : open_carried(&e->tokenizer, run->inputs.stream, err);
    if (rc)
        return rc;
    const int32_t *front, *back;
    fm_tokenizer_template(e->tokenizer, &front, &c->fronts, &back, &c->backs);
    memcpy(c->front, front, (size_t)c->fronts * sizeof *front);
    memcpy(c->back, back, (size_t)c->backs * sizeof *back);
    c->tokenizer = fm_tokenizer_digest(e->tokenizer);
    c->last = fm_tokenizer_last(e->tokenizer);
    rc = fm_separator_choose(&c->separator, e->tokenizer, run, err);
    e->separator = c->separator.id;
    return rc;
}

static void release(struct encoding *e)
{
    drop_items(e);
    while (e->spares > 0)
        fm_encoder_free(e->spare[--e->spares]);
    free(e->spare);
    free(e->item);
    free(e->lines.data);
    fm_documents_close(&e->documents);
    fm_tokenizer_close(e->tokenizer);
    pthread_mutex_destroy(&e->lock);
    if (e->out >= 0)
        close(e->out);
}

static int prepare(struct encoding *e, struct fm_corpus *c, const char *path, struct fm_err *err)
{
    if (e->run->inputs.tokenizer_cmd && e->run->inputs.tokenizer)
        return fm_fail(err, FM_EUSAGE,
                       "--tokenizer and --tokenizer-cmd cannot be combined; give one");
    if (e->run->inputs.tokenizer_cmd && e->run->inputs.separator)
        return fm_fail(
            err, FM_EUSAGE,
            "--separator has no effect with --tokenizer-cmd, whose ids are taken as they "
            "are; omit it, and let the command print the separator");
    if ((!e->run->inputs.tokenizer_cmd && open_tokenizer(e, c, err)) ||
        fm_documents_open(&e->documents, path, e->run->inputs.text_field, err))
        return err->code;
    const struct fm_documents *d = &e->documents;
    if (d->recognised)
        fm_run_note(e->run, "%s: its lines are JSON objects; the text is their field '%s'",
                    d->file.path, d->field);
    if (d->doubtful)
        fm_run_warn(
            e->run,
            "%s begins like JSON, but its first line is not an object with the field '%s'; it "
            "is read as plain text, braces included",
            d->file.path, d->field);
    e->item = fm_alloc(BATCH, sizeof *e->item, "documents", err);
    e->spare = fm_alloc(FM_THREADS_MAX, sizeof(void *), "encoders", err);
    return e->item && e->spare ? fm_file_temp(&e->out, err) : err->code;
}

/* Open the temporary file as the token file. */
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
        t->file.path
            ? fm_fail(
                  err, FM_EFORMAT,
                  "%s: it has no text; give plain text or JSON lines, as a file or through a pipe",
                  path)
            : FM_ENOMEM;
    fm_tokens_close(t);
    return rc;
}

int fm_corpus_encode(struct fm_corpus *c, struct fm_tokens *t, const struct fm_run_options *run,
                     const char *path, uint64_t enough, struct fm_err *err)
{
    struct encoding e = {.run = run,
                         .enough = enough,
                         .separator = -1,
                         .out = -1,
                         .documents.file.fd = -1,
                         .lock = PTHREAD_MUTEX_INITIALIZER};
    const char *command = run->inputs.tokenizer_cmd;
    int rc = FM_OK;
    *c = (struct fm_corpus){.command = command != NULL, .separator.id = -1};
    if (command)
        c->tokenizer = fm_digest_of(command, strlen(command));
    if (prepare(&e, c, path, err) || (command ? run_command(&e, err) : encode_all(&e, err)) ||
        fm_file_unchanged(&e.documents.file, err) || hand_over(&e, t, e.documents.file.path, err))
        rc = err->code;
    c->documents = e.seen;
    c->dropped = e.dropped;
    if (!rc && e.dropped > 0)
        fm_run_warn(run,
                    "%s: %" PRIu64 " of %" PRIu64 " bytes of text were dropped: the tokenizer's "
                    "vocabulary lacks them and has no token for unknown characters",
                    e.documents.file.path, e.dropped, e.bytes);
    release(&e);
    return rc;
}
