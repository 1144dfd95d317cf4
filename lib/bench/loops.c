/*
 * Loops in generated texts, found by comparing the end of a text with itself, shifted by each
 * possible length of a unit.
 */
#include "lib/bench/loops.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "formats/json/json.h"
#include "formats/text/documents.h"
#include "formats/text/unicode.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/printable.h"

#define GRAM 4

struct word {
    uint32_t at, size;
};

/* ---- one text ---- */

static uint64_t characters(const char *text, size_t size)
{
    uint64_t n = 0;
    for (size_t i = 0; i < size; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* Split at white space; *words receives the array, which the caller frees. */
static int split(struct word **words, size_t *n, const char *text, size_t size, struct fm_err *err)
{
    const uint16_t *classes = fm_unicode_classes();
    size_t capacity = 0;
    bool within = false;
    *words = NULL;
    *n = 0;
    for (size_t i = 0; i < size;) {
        int bytes;
        bool space = classes[fm_unicode_at(text + i, &bytes)] & FM_SPACE;
        if (!space && !within) {
            if (FM_GROW(*words, capacity, *n + 1, "words", err))
                return err->code;
            (*words)[(*n)++] = (struct word){.at = (uint32_t)i};
        }
        if (!space)
            (*words)[*n - 1].size += (uint32_t)bytes;
        within = !space;
        i += (size_t)bytes;
    }
    return FM_OK;
}

/* Whether a word equals another or, as the last of a text that was cut, is its beginning. */
static bool repeats(const char *text, const struct word *a, const struct word *of, bool last)
{
    return (last ? a->size <= of->size : a->size == of->size) &&
           memcmp(text + a->at, text + of->at, a->size) == 0;
}

/* Note what repeats from byte `from` on, if it is enough units over enough characters. */
static void note(struct fm_loop *loop, const char *text, size_t size, size_t from, size_t unit,
                 uint64_t units, size_t unit_bytes)
{
    assert(from <= size && unit + unit_bytes <= size);
    uint64_t n = characters(text + from, size - from);
    if (units >= FM_LOOPS_REPEATS && n >= FM_LOOPS_LENGTH)
        *loop = (struct fm_loop){units, n, unit, unit_bytes};
}

/* Words: the smallest unit of p words such that word i is word i - p from some word on. */
static void find_words(struct fm_loop *loop, const char *text, size_t size, const struct word *w,
                       size_t n)
{
    for (size_t p = 1; p <= FM_LOOPS_WORDS && p < n && !loop->repeats; p++) {
        size_t i = n;
        while (i > p && repeats(text, &w[i - 1], &w[i - 1 - p], i == n))
            i--;
        size_t begin = i - p, units = (n - begin) / p;
        if (units > 1) /* the last unit but one: it is not cut */
            note(loop, text, size, w[begin].at, w[n - 2 * p].at, units,
                 w[n - p].at - w[n - 2 * p].at);
    }
}

/* Characters, white space included: the same with bytes, for units that begin with a character. */
static void find_characters(struct fm_loop *loop, const char *text, size_t size)
{
    size_t p = 0;
    for (int c = 1; c <= FM_LOOPS_UNIT && p < size && !loop->repeats; c++) {
        do
            p++;
        while (p < size && ((unsigned char)text[size - p] & 0xc0) == 0x80);
        size_t i = size;
        while (i > p && text[i - 1] == text[i - 1 - p])
            i--;
        if (i < size)
            note(loop, text, size, i - p, size - p, (size - (i - p)) / p, p);
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The share of different sequences of four words, told apart by 64 bits of XXH3. */
static int count_different(double *different, const char *text, const struct word *w, size_t n,
                           struct fm_err *err)
{
    *different = -1;
    if (n < GRAM)
        return FM_OK;
    size_t grams = n - GRAM + 1, distinct = 1;
    uint64_t *sum = fm_alloc(grams, sizeof *sum, "sequences of words", err);
    if (!sum)
        return err->code;
    for (size_t i = 0; i < grams; i++)
        for (size_t k = i; k < i + GRAM; k++)
            sum[i] = XXH3_64bits_withSeed(text + w[k].at, w[k].size, sum[i]);
    qsort(sum, grams, sizeof *sum, compare);
    for (size_t i = 1; i < grams; i++)
        distinct += sum[i] != sum[i - 1];
    *different = (double)distinct / (double)grams;
    free(sum);
    return FM_OK;
}

int fm_loops_find(struct fm_loop *loop, double *different, uint64_t *words, const char *text,
                  size_t size, struct fm_err *err)
{
    struct word *w = NULL;
    size_t n = 0;
    *loop = (struct fm_loop){0};
    int rc = split(&w, &n, text, size, err);
    if (!rc)
        rc = count_different(different, text, w, n, err);
    if (!rc)
        find_words(loop, text, size, w, n);
    if (!rc)
        find_characters(loop, text, size);
    *words = n;
    free(w);
    return rc;
}

/* ---- a file ---- */

/* Keep the loop if it is one of the longest. */
static void keep(struct fm_loops *l, const struct fm_loop *loop, uint64_t line, const char *text)
{
    struct fm_loops_example example = {line, l->texts, *loop, ""};
    int at = l->shown < FM_LOOPS_SHOWN ? l->shown++ : FM_LOOPS_SHOWN;
    snprintf(example.unit, sizeof example.unit, "%.*s", (int)loop->unit_bytes, text + loop->unit);
    fm_printable(example.unit, false);
    for (; at > 0 && l->worst[at - 1].loop.characters < loop->characters; at--)
        if (at < FM_LOOPS_SHOWN)
            l->worst[at] = l->worst[at - 1];
    if (at < FM_LOOPS_SHOWN)
        l->worst[at] = example;
}

/* Count a text; `reason`: why generating ended, or NULL. */
static int add_text(struct fm_loops *l, uint64_t line, const char *text, const char *reason,
                    struct fm_err *err)
{
    static const char *const own[] = {"stop", "eos", "word", "end_turn", "tool_calls", NULL};
    struct fm_loop loop;
    double different;
    uint64_t words;
    size_t size = strlen(text);
    if (size > FM_LOOPS_TEXT_MAX)
        return fm_fail(err, FM_EFORMAT, "a text of %zu bytes; at most %d", size, FM_LOOPS_TEXT_MAX);
    if (fm_loops_find(&loop, &different, &words, text, size, err))
        return err->code;
    l->texts++;
    l->empty += words == 0;
    l->words += words;
    l->told += reason != NULL;
    l->ended += reason && fm_names_index(own, reason) >= 0;
    l->long_enough += different >= 0;
    l->different += different >= 0 ? different : 0;
    l->looping += loop.repeats > 0;
    if (loop.repeats > 0)
        keep(l, &loop, line, text);
    return FM_OK;
}

static int add_choices(struct fm_loops *l, uint64_t line, const cJSON *choices, struct fm_err *err)
{
    const cJSON *one;
    cJSON_ArrayForEach(one, choices)
    {
        const cJSON *message = cJSON_GetObjectItemCaseSensitive(one, "message");
        const char *text = fm_json_string_value(one, "text");
        text = text ? text : fm_json_string_value(message, "content");
        if (!text && !message)
            return fm_fail(err, FM_EFORMAT, "a choice has neither 'text' nor 'message'");
        /* A message without content calls a tool. */
        if (add_text(l, line, text ? text : "", fm_json_string_value(one, "finish_reason"), err))
            return err->code;
    }
    return FM_OK;
}

static int add_row(struct fm_loops *l, uint64_t line, const cJSON *row, struct fm_err *err)
{
    static const char *const keys[] = {"content", "text", "generated_text"};
    const cJSON *response = cJSON_GetObjectItemCaseSensitive(row, "response");
    const cJSON *body = cJSON_GetObjectItemCaseSensitive(response, "body");
    row = cJSON_IsObject(body) ? body : row;
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(row, "choices");
    if (cJSON_IsArray(choices))
        return add_choices(l, line, choices, err);
    if (fm_json_value(row, "error")) {
        l->failed++;
        return FM_OK;
    }
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = fm_json_string_value(row, keys[i]),
                   *reason = fm_json_string_value(row, "finish_reason");
        if (text)
            return add_text(l, line, text, reason ? reason : fm_json_string_value(row, "stop_type"),
                            err);
    }
    return fm_fail(err, FM_EFORMAT,
                   "no generated text: neither 'choices' nor a string 'content', 'text' or "
                   "'generated_text'");
}

int fm_loops_read(struct fm_loops *l, const char *path, struct fm_err *err)
{
    struct fm_documents d;
    const char *record = NULL;
    size_t size;
    uint64_t line;
    *l = (struct fm_loops){0};
    int rc = fm_documents_open(&d, path, "text", err);
    if (rc)
        return rc;
    d.rows = true; /* whatever the first line is: if it is not an object, that is the error */
    while (!rc && !(rc = fm_documents_next(&d, &record, &size, &line, err)) && record) {
        cJSON *row = NULL;
        rc = fm_json_tree(&row, record, size, err);
        if (rc == FM_EFORMAT)
            fm_within(err, "not one JSON object");
        if (!rc)
            rc = add_row(l, line, row, err);
        if (rc == FM_EFORMAT)
            fm_within(err, "%s: line %" PRIu64, d.file.path, line);
        cJSON_Delete(row);
    }
    if (!rc && l->texts + l->failed == 0)
        rc = fm_fail(err, FM_EFORMAT, "%s: no generated texts", d.file.path);
    fm_documents_close(&d);
    return rc;
}
