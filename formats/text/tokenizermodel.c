/*
 * The "model" of a tokenizer.json.  Vocabulary and merges, which are large, go straight from the
 * text into the encoder's tables.
 */
#include <string.h>

#include "formats/json/jsonparts.h"
#include "formats/text/tokenizerparts.h"

#define WORD_MAX FM_TOKENIZER_WORD_MAX

int fm_tokenizer_refuse(struct fm_err *err, const char *what, const char *name)
{
    fm_fail(err, FM_ECONFIG, "%s '%.200s' is not supported", what, name);
    return fm_advise(err, FM_ADVISE_OTHER_TOKENIZER);
}

static int read_vocabulary(struct fm_bpe *bpe, struct fm_json j, struct fm_err *err)
{
    char word[WORD_MAX];
    int rc = fm_json_expect(&j, '{', err);
    if (rc || fm_json_accept(&j, '}'))
        return rc ? rc : fm_bpe_index(bpe, err);
    do {
        uint64_t id = 0;
        if ((rc = fm_json_text(&j, word, sizeof word, err)) ||
            (rc = fm_json_expect(&j, ':', err)) || (rc = fm_json_uint(&j, &id, err)) ||
            (rc = fm_bpe_add(bpe, word, strlen(word), id, err)))
            return rc;
    } while (fm_json_accept(&j, ','));
    rc = fm_json_expect(&j, '}', err);
    return rc ? rc : fm_bpe_index(bpe, err);
}

/* Add the merge of a line "left right"; skip a comment line. */
static int add_line(struct fm_bpe *bpe, char *line, struct fm_err *err)
{
    char *space = strchr(line, ' ');
    if (strncmp(line, "#version", 8) == 0)
        return FM_OK;
    if (!space || strchr(space + 1, ' '))
        return fm_fail(err, FM_EFORMAT, "merge %zu is '%.80s', not two tokens", bpe->merges, line);
    return fm_bpe_add_merge(bpe, line, (size_t)(space - line), space + 1, strlen(space + 1), err);
}

static int add_pair(struct fm_bpe *bpe, struct fm_json *j, char *left, char *right,
                    struct fm_err *err)
{
    if (fm_json_text(j, left, WORD_MAX, err) || fm_json_expect(j, ',', err) ||
        fm_json_text(j, right, WORD_MAX, err) || fm_json_expect(j, ']', err))
        return err->code;
    return fm_bpe_add_merge(bpe, left, strlen(left), right, strlen(right), err);
}

static int read_merges(struct fm_bpe *bpe, struct fm_json j, struct fm_err *err)
{
    char left[2 * WORD_MAX], right[WORD_MAX];
    int rc = fm_json_expect(&j, '[', err);
    if (rc || fm_json_accept(&j, ']'))
        return rc;
    do {
        if (fm_json_accept(&j, '['))
            rc = add_pair(bpe, &j, left, right, err);
        else if (!(rc = fm_json_text(&j, left, sizeof left, err)))
            rc = add_line(bpe, left, err);
    } while (!rc && fm_json_accept(&j, ','));
    return rc ? rc : fm_json_expect(&j, ']', err);
}

static int read_bool(bool *value, const struct fm_jsonpart *p, struct fm_err *err)
{
    *value = !fm_jsonparts_is_null(p) && fm_jsonparts_is_word(p, "true");
    return fm_jsonparts_is_null(p) || *value || fm_jsonparts_is_word(p, "false")
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "the model's %s is neither true nor false", p->key);
}

static int read_unknown(struct fm_tokenizer *t, const struct fm_json *whole,
                        const struct fm_jsonpart *p, struct fm_err *err)
{
    char word[WORD_MAX];
    t->bpe.unknown = -1;
    if (fm_jsonparts_is_null(p))
        return FM_OK;
    struct fm_json j = fm_jsonparts_window(whole, p);
    int rc = fm_json_text(&j, word, sizeof word, err);
    if (!rc && (t->bpe.unknown = fm_bpe_find(&t->bpe, word, strlen(word))) < 0)
        rc = fm_fail(err, FM_EFORMAT, "unk_token '%.80s' is not in the vocabulary", word);
    return rc;
}

enum { TYPE, DROPOUT, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, VOCAB, MERGES, MODEL_PARTS };

static int check_model(const struct fm_jsonpart *p, struct fm_err *err)
{
    if (p[TYPE].begin && !fm_jsonparts_is_word(&p[TYPE], "\"BPE\"")) {
        char name[64];
        struct fm_json j;
        fm_json_init(&j, p[TYPE].begin, (size_t)(p[TYPE].end - p[TYPE].begin));
        return !fm_json_string(&j, name, sizeof name, err) ? fm_tokenizer_refuse(err, "model", name)
                                                           : err->code;
    }
    if (!fm_jsonparts_is_null(&p[DROPOUT]) && !fm_jsonparts_is_word(&p[DROPOUT], "0.0") &&
        !fm_jsonparts_is_word(&p[DROPOUT], "0"))
        return fm_tokenizer_refuse(err, "model", "BPE with dropout");
    for (int i = PREFIX; i <= SUFFIX; i++)
        if (!fm_jsonparts_is_null(&p[i]) && !fm_jsonparts_is_word(&p[i], "\"\""))
            return fm_tokenizer_refuse(err, "BPE with", p[i].key);
    if (!p[VOCAB].begin || !p[MERGES].begin)
        return fm_fail(err, FM_EFORMAT, "the model has no %s", p[VOCAB].begin ? "merges" : "vocab");
    return FM_OK;
}

int fm_tokenizer_read_model(struct fm_tokenizer *t, struct fm_json whole, struct fm_err *err)
{
    struct fm_jsonpart p[MODEL_PARTS] = {{.key = "type"},
                                         {.key = "dropout"},
                                         {.key = "unk_token"},
                                         {.key = "continuing_subword_prefix"},
                                         {.key = "end_of_word_suffix"},
                                         {.key = "fuse_unk"},
                                         {.key = "byte_fallback"},
                                         {.key = "ignore_merges"},
                                         {.key = "vocab"},
                                         {.key = "merges"}};
    struct fm_json j = whole;
    j.text_keys = true; /* the keys of the vocabulary are token texts */
    if (fm_jsonparts_read(&j, p, MODEL_PARTS, "the model", err) || check_model(p, err) ||
        read_bool(&t->bpe.fuse_unknown, &p[FUSE], err) ||
        read_bool(&t->bpe.byte_fallback, &p[FALLBACK], err) ||
        read_bool(&t->bpe.ignore_merges, &p[IGNORE], err) ||
        read_vocabulary(&t->bpe, fm_jsonparts_window(&whole, &p[VOCAB]), err) ||
        read_unknown(t, &whole, &p[UNK], err) ||
        read_merges(&t->bpe, fm_jsonparts_window(&whole, &p[MERGES]), err))
        return err->code;
    return fm_bpe_finish(&t->bpe, err);
}
