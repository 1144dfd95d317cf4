/*
 * The reader of tokenizer.json.  The vocabulary and the merges, which are large, go straight into
 * the model; the small components become trees.  Every key that affects ids is checked, and an
 * unsupported value is an error that names it.  Normalisation is here because added tokens are
 * normalised when they are read.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/text/tokenizerparts.h"
#include "formats/text/unicode.h"
#include "lib/base/mem.h"

#define WORD_MAX FM_TOKENIZER_WORD_MAX

/* FM_ECONFIG: "normalizer 'Lowercase' is not supported; ...". */
static int refuse(struct fm_err *err, const char *what, const char *name)
{
    fm_fail(err, FM_ECONFIG, "%s '%.200s' is not supported", what, name);
    return fm_advise(err, FM_ADVISE_OTHER_TOKENIZER);
}

/* --- members of an object by their position in its text, for those too large for a tree --- */

struct part {
    const char *key;
    const char *begin, *end; /* NULL if the member is absent */
};

/* Read the object at j and record the position of each member.  FM_EFORMAT for a member that occurs
 * twice, FM_ECONFIG for one that is not among `part`; `where` names the object. */
static int read_parts(struct fm_json *j, struct part *part, int parts, const char *where,
                      struct fm_err *err)
{
    char key[256];
    int rc = fm_json_expect(j, '{', err);
    if (rc || fm_json_accept(j, '}'))
        return rc;
    do {
        int i = 0;
        if ((rc = fm_json_string(j, key, sizeof key, err)) || (rc = fm_json_expect(j, ':', err)))
            return rc;
        while (i < parts && strcmp(part[i].key, key) != 0)
            i++;
        if (i == parts)
            return fm_fail(err, FM_ECONFIG, "%s has a key '%.200s' that is not supported", where,
                           key);
        if (part[i].begin)
            return fm_fail(err, FM_EFORMAT, "%s has '%s' twice", where, key);
        part[i].begin = j->at;
        if ((rc = fm_json_skip(j, err)))
            return rc;
        part[i].end = j->at;
    } while (fm_json_accept(j, ','));
    return fm_json_expect(j, '}', err);
}

/* A scanner for the text of a member, which must exist; errors give positions in the whole text. */
static struct fm_json window_of(const struct fm_json *whole, const struct part *p)
{
    struct fm_json j;
    fm_json_init(&j, p->begin, (size_t)(p->end - p->begin));
    j.base = whole->base + (uint64_t)(p->begin - whole->begin);
    return j;
}

/* True if the text of the member is this word. */
static bool is_word(const struct part *p, const char *word)
{
    const char *s = p->begin, *end = p->end;
    while (s < end && strchr(" \t\r\n", *s))
        s++;
    while (end > s && strchr(" \t\r\n", end[-1]))
        end--;
    return (size_t)(end - s) == strlen(word) && memcmp(s, word, (size_t)(end - s)) == 0;
}

/* True if the member is absent or null. */
static bool is_null(const struct part *p)
{
    return !p->begin || is_word(p, "null");
}

/* Parse an object or array as a tree; NULL if it is null or absent. */
static int tree_of(cJSON **tree, const struct part *p, struct fm_err *err)
{
    *tree = NULL;
    if (is_null(p))
        return FM_OK;
    int rc = fm_json_tree(tree, p->begin, (size_t)(p->end - p->begin), err);
    return rc ? fm_within(err, "%s", p->key) : FM_OK;
}

/* --- the model --- */

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

static int read_bool(bool *value, const struct part *p, struct fm_err *err)
{
    *value = !is_null(p) && is_word(p, "true");
    return is_null(p) || *value || is_word(p, "false")
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "the model's %s is neither true nor false", p->key);
}

static int read_unknown(struct fm_tokenizer *t, const struct fm_json *whole, const struct part *p,
                        struct fm_err *err)
{
    char word[WORD_MAX];
    t->bpe.unknown = -1;
    if (is_null(p))
        return FM_OK;
    struct fm_json j = window_of(whole, p);
    int rc = fm_json_text(&j, word, sizeof word, err);
    if (!rc && (t->bpe.unknown = fm_bpe_find(&t->bpe, word, strlen(word))) < 0)
        rc = fm_fail(err, FM_EFORMAT, "unk_token '%.80s' is not in the vocabulary", word);
    return rc;
}

enum { TYPE, DROPOUT, UNK, PREFIX, SUFFIX, FUSE, FALLBACK, IGNORE, VOCAB, MERGES, MODEL_PARTS };

static int check_model(const struct part *p, struct fm_err *err)
{
    if (p[TYPE].begin && !is_word(&p[TYPE], "\"BPE\"")) {
        char name[64];
        struct fm_json j;
        fm_json_init(&j, p[TYPE].begin, (size_t)(p[TYPE].end - p[TYPE].begin));
        return !fm_json_string(&j, name, sizeof name, err) ? refuse(err, "model", name) : err->code;
    }
    if (!is_null(&p[DROPOUT]) && !is_word(&p[DROPOUT], "0.0") && !is_word(&p[DROPOUT], "0"))
        return refuse(err, "model", "BPE with dropout");
    for (int i = PREFIX; i <= SUFFIX; i++)
        if (!is_null(&p[i]) && !is_word(&p[i], "\"\""))
            return refuse(err, "BPE with", p[i].key);
    if (!p[VOCAB].begin || !p[MERGES].begin)
        return fm_fail(err, FM_EFORMAT, "the model has no %s", p[VOCAB].begin ? "merges" : "vocab");
    return FM_OK;
}

/* Fill *t from the "model", a member of `whole`. */
static int read_model(struct fm_tokenizer *t, struct fm_json whole, struct fm_err *err)
{
    struct part p[MODEL_PARTS] = {{.key = "type"},
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
    if (read_parts(&j, p, MODEL_PARTS, "the model", err) || check_model(p, err) ||
        read_bool(&t->bpe.fuse_unknown, &p[FUSE], err) ||
        read_bool(&t->bpe.byte_fallback, &p[FALLBACK], err) ||
        read_bool(&t->bpe.ignore_merges, &p[IGNORE], err) ||
        read_vocabulary(&t->bpe, window_of(&whole, &p[VOCAB]), err) ||
        read_unknown(t, &whole, &p[UNK], err) ||
        read_merges(&t->bpe, window_of(&whole, &p[MERGES]), err))
        return err->code;
    return fm_bpe_finish(&t->bpe, err);
}

/* --- normalisation --- */

void fm_tokenizer_replace(struct fm_text *out, const char *text, size_t size, const char *from,
                          const char *to)
{
    size_t n = strlen(from), done = 0;
    for (const char *hit; size > done && (hit = memmem(text + done, size - done, from, n));) {
        fm_text_add(out, text + done, (size_t)(hit - text) - done);
        fm_text_add(out, to, strlen(to));
        done = (size_t)(hit - text) + n;
    }
    fm_text_add(out, text + done, size - done);
}

static void apply_step(const struct fm_normal *step, struct fm_text *out, const char *text,
                       size_t size)
{
    if (step->kind == FM_NORMAL_NFC) {
        fm_unicode_nfc(out, text, size);
    } else if (step->kind == FM_NORMAL_PREPEND) {
        if (size > 0)
            fm_text_add(out, step->to, strlen(step->to));
        fm_text_add(out, text, size);
    } else {
        fm_tokenizer_replace(out, text, size, step->from, step->to);
    }
}

void fm_tokenizer_normalise(const struct fm_tokenizer *t, struct fm_text *out,
                            struct fm_text *other, const char *text, size_t size)
{
    if (t->normals == 0)
        fm_text_add(out, text, size);
    for (int i = 0; i < t->normals; i++) {
        bool last = i == t->normals - 1;
        /* The buffers alternate, so that the last step writes to *out. */
        struct fm_text *to = (t->normals - 1 - i) % 2 == 0 ? out : other;
        to->size = 0;
        apply_step(&t->normal[i], to, text, size);
        if (!last) {
            text = to->data ? to->data : "";
            size = to->size;
        }
        out->failed = out->failed || to->failed;
    }
}

/* --- helpers --- */

/* The component's "type", or "". */
static const char *type_of(const cJSON *component)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(component, "type");
    return cJSON_IsString(type) ? type->valuestring : "";
}

static int check_keys(const cJSON *component, const char *keys, struct fm_err *err)
{
    for (const cJSON *k = component->child; k; k = k->next) {
        size_t n = strlen(k->string);
        bool found = false;
        for (const char *at = keys; !found && at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
            found = strncmp(at, k->string, n) == 0 && (at[n] == '|' || at[n] == '\0');
        if (!found)
            return fm_fail(err, FM_ECONFIG, "%s has a key '%.200s' that is not supported",
                           *type_of(component) ? type_of(component) : "an added token", k->string);
    }
    return FM_OK;
}

static bool flag(const cJSON *object, const char *key, bool otherwise)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsBool(v) ? cJSON_IsTrue(v) : otherwise;
}

/* Copy a short string that is not empty. */
static int copy_short(char *dst, size_t capacity, const cJSON *object, const char *key,
                      struct fm_err *err)
{
    const char *s;
    int rc = fm_json_get_string(object, key, &s, err);
    if (rc)
        return rc;
    if (!*s || strlen(s) >= capacity)
        return fm_fail(err, FM_ECONFIG, "%s with a %s of %zu bytes is not supported (1 to %zu)",
                       type_of(object), key, strlen(s), capacity - 1);
    snprintf(dst, capacity, "%s", s);
    return FM_OK;
}

/* --- normaliser --- */

static int read_replace(struct fm_normal *step, const cJSON *o, struct fm_err *err)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(o, "pattern");
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(o, "content");
    if (!cJSON_IsObject(pattern) ||
        !cJSON_IsString(cJSON_GetObjectItemCaseSensitive(pattern, "String")))
        return refuse(err, "a normalizer", "Replace of a regular expression");
    step->kind = FM_NORMAL_REPLACE;
    int rc = copy_short(step->from, sizeof step->from, pattern, "String", err);
    if (rc)
        return rc;
    if (!cJSON_IsString(content) || strlen(content->valuestring) >= sizeof step->to)
        return refuse(err, "a normalizer", "Replace with a long text");
    snprintf(step->to, sizeof step->to, "%s", content->valuestring);
    return check_keys(o, "type|pattern|content", err);
}

static int read_normalizer(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    const char *type = type_of(o);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(o, "normalizers");
    int rc = FM_OK;
    if (strcmp(type, "Sequence") == 0 && cJSON_IsArray(inner)) {
        if ((rc = check_keys(o, "type|normalizers", err)))
            return rc;
        for (const cJSON *n = inner->child; !rc && n; n = n->next)
            rc = strcmp(type_of(n), "Sequence")
                     ? read_normalizer(t, n, err)
                     : refuse(err, "normalizer", "Sequence in a Sequence");
        return rc;
    }
    if (t->normals == FM_NORMAL_STEPS_MAX)
        return fm_fail(err, FM_ECONFIG, "more than %d normalizers are not supported",
                       FM_NORMAL_STEPS_MAX);
    struct fm_normal *step = &t->normal[t->normals++];
    if (strcmp(type, "NFC") == 0) {
        step->kind = FM_NORMAL_NFC;
        return check_keys(o, "type", err);
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(step, o, err);
    if (strcmp(type, "Prepend") != 0)
        return refuse(err, "normalizer", type);
    step->kind = FM_NORMAL_PREPEND;
    rc = check_keys(o, "type|prepend", err);
    return rc ? rc : copy_short(step->to, sizeof step->to, o, "prepend", err);
}

/* --- pre-tokenizer --- */

static int read_metaspace(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    static const char *const schemes[] = {NULL, "always", "first", "never"};
    const cJSON *scheme = cJSON_GetObjectItemCaseSensitive(o, "prepend_scheme");
    bool prefix = flag(o, "add_prefix_space", true);
    const char *name = cJSON_IsString(scheme) ? scheme->valuestring : prefix ? "always" : "never";
    int rc = check_keys(o, "type|replacement|prepend_scheme|split|add_prefix_space|str_rep", err);
    if (!rc)
        rc = copy_short(t->replacement, sizeof t->replacement, o, "replacement", err);
    if (rc)
        return rc;
    for (int i = 1; i < 4; i++)
        if (strcmp(schemes[i], name) == 0)
            t->metaspace = (enum fm_metaspace)i;
    t->metaspace_split = flag(o, "split", true);
    if (t->metaspace == FM_METASPACE_NONE)
        return refuse(err, "Metaspace prepend_scheme", name);
    if (!prefix && t->metaspace != FM_METASPACE_NEVER)
        return refuse(err, "Metaspace without add_prefix_space but with prepend_scheme", name);
    return FM_OK;
}

static int add_pretoken(struct fm_tokenizer *t, const char *pattern, struct fm_err *err)
{
    if (t->pretokens == FM_PRETOKENS_MAX)
        return fm_fail(err, FM_ECONFIG, "more than %d pre-tokenizers are not supported",
                       FM_PRETOKENS_MAX);
    return fm_pretoken_parse(&t->pretoken[t->pretokens++], pattern)
               ? FM_OK
               : refuse(err, "Split pattern", pattern);
}

/*
 * "Isolated": matches of the pattern, and the text between them, are pieces.  "Removed" with
 * "invert" keeps only the matches, which is the same if matches cover every text.
 */
static int read_split(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(o, "pattern");
    const char *regex = fm_json_string_value(pattern, "Regex");
    const char *behavior = fm_json_string_value(o, "behavior");
    const char *name = behavior ? behavior : "none";
    bool invert = flag(o, "invert", false);
    int rc = check_keys(o, "type|pattern|behavior|invert", err);
    if (rc)
        return rc;
    if (!regex)
        return refuse(err, "pre_tokenizer", "Split of a plain string");
    if ((rc = add_pretoken(t, regex, err)))
        return rc;
    bool covers = t->pretoken[t->pretokens - 1].kind < FM_PRETOKEN_DEEPSEEK; /* any text, wholly */
    if (invert && strcmp(name, "Removed") == 0 && covers)
        return FM_OK;
    if (strcmp(name, "Isolated") != 0)
        return refuse(err, "Split behavior", name);
    return invert ? refuse(err, "pre_tokenizer", "Split with invert") : FM_OK;
}

/* `first`: there is no pre-tokenizer before it. */
static int read_byte_level(struct fm_tokenizer *t, const cJSON *o, bool first, struct fm_err *err)
{
    int rc = check_keys(o, "type|add_prefix_space|trim_offsets|use_regex", err);
    t->bpe.byte_level = true;
    t->prefix_space = flag(o, "add_prefix_space", true);
    if (!rc && !first && t->prefix_space)
        rc = refuse(err, "pre_tokenizer", "ByteLevel with add_prefix_space after others");
    return rc || !flag(o, "use_regex", true) ? rc : add_pretoken(t, FM_PRETOKEN_BYTE_LEVEL, err);
}

static int read_digits(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    int rc = check_keys(o, "type|individual_digits", err);
    if (rc)
        return rc;
    return flag(o, "individual_digits", false) ? add_pretoken(t, FM_PRETOKEN_DIGITS, err)
                                               : refuse(err, "pre_tokenizer", "Digits in runs");
}

/* Read Splits and Digits, then ByteLevel. */
static int read_sequence(struct fm_tokenizer *t, const cJSON *o, const cJSON *inner,
                         struct fm_err *err)
{
    int rc = check_keys(o, "type|pretokenizers", err);
    for (const cJSON *p = inner->child; !rc && p; p = p->next) {
        const char *type = type_of(p);
        if (t->bpe.byte_level)
            return refuse(err, "a pre_tokenizer after ByteLevel", type);
        if (strcmp(type, "Split") == 0)
            rc = read_split(t, p, err);
        else if (strcmp(type, "Digits") == 0)
            rc = read_digits(t, p, err);
        else if (strcmp(type, "ByteLevel") == 0)
            rc = read_byte_level(t, p, p == inner->child, err);
        else
            rc = refuse(err, "pre_tokenizer in a Sequence", type);
    }
    if (!rc && !t->bpe.byte_level)
        rc = refuse(err, "pre_tokenizer", "Sequence without ByteLevel");
    return rc;
}

static int read_pre_tokenizer(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    const char *type = type_of(o);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(o, "pretokenizers");
    if (strcmp(type, "Metaspace") == 0 && t->normals > 0)
        return refuse(err, "a normalizer before pre_tokenizer", type);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(t, o, err);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(t, o, true, err);
    if (strcmp(type, "Sequence") == 0 && cJSON_IsArray(inner))
        return read_sequence(t, o, inner, err);
    return refuse(err, "pre_tokenizer", type);
}

/* --- post-processor --- */

static int read_template_ids(struct fm_tokenizer *t, const cJSON *name, const cJSON *known,
                             bool suffix, struct fm_err *err)
{
    const char *id = cJSON_IsString(name) ? name->valuestring : "";
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(known, id);
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(token, "ids");
    int *n = suffix ? &t->backs : &t->fronts;
    if (!cJSON_IsArray(ids))
        return fm_fail(err, FM_EFORMAT, "the template has '%.80s', which is not one of its tokens",
                       id);
    for (const cJSON *v = ids->child; v; v = v->next) {
        if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < INT32_MAX) ||
            v->valuedouble != (double)(int32_t)v->valuedouble)
            return fm_fail(err, FM_EFORMAT, "the template's token '%.80s' has an invalid id", id);
        if (*n == FM_TEMPLATE_MAX)
            return fm_fail(err, FM_ECONFIG, "a template of more than %d tokens is not supported",
                           FM_TEMPLATE_MAX);
        (suffix ? t->back : t->front)[(*n)++] = (int32_t)v->valuedouble;
    }
    return FM_OK;
}

static int read_template(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    const cJSON *single = cJSON_GetObjectItemCaseSensitive(o, "single");
    const cJSON *known = cJSON_GetObjectItemCaseSensitive(o, "special_tokens");
    bool suffix = false;
    int rc = check_keys(o, "type|single|pair|special_tokens", err);
    if (!rc && (t->fronts || t->backs))
        rc = refuse(err, "post_processor", "two templates");
    for (const cJSON *p = cJSON_IsArray(single) ? single->child : NULL; !rc && p; p = p->next) {
        const cJSON *special = cJSON_GetObjectItemCaseSensitive(p, "SpecialToken");
        if (special)
            rc = read_template_ids(t, cJSON_GetObjectItemCaseSensitive(special, "id"), known,
                                   suffix, err);
        else if (suffix || !cJSON_GetObjectItemCaseSensitive(p, "Sequence"))
            rc = fm_fail(err, FM_EFORMAT, "the template must have exactly one Sequence");
        else
            suffix = true;
    }
    return rc || suffix ? rc : refuse(err, "post_processor", "a template without a text");
}

static int read_post_processor(struct fm_tokenizer *t, const cJSON *o, struct fm_err *err)
{
    const char *type = type_of(o);
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(o, "processors");
    if (strcmp(type, "ByteLevel") == 0) /* changes only offsets */
        return check_keys(o, "type|add_prefix_space|trim_offsets|use_regex", err);
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, o, err);
    if (strcmp(type, "Sequence") != 0 || !cJSON_IsArray(inner))
        return refuse(err, "post_processor", type);
    int rc = check_keys(o, "type|processors", err);
    for (const cJSON *p = inner->child; !rc && p; p = p->next)
        rc = strcmp(type_of(p), "Sequence")
                 ? read_post_processor(t, p, err)
                 : refuse(err, "post_processor", "Sequence in a Sequence");
    return rc;
}

/* --- added tokens --- */

static int read_added(struct fm_added *a, const cJSON *o, struct fm_err *err)
{
    const char *content;
    int64_t id = 0;
    int rc = cJSON_IsObject(o)
                 ? fm_json_get_string(o, "content", &content, err)
                 : fm_fail(err, FM_EFORMAT, "added_tokens has an entry that is not an object");
    if (!rc)
        rc = fm_json_get_int(o, "id", 0, INT32_MAX - 1, &id, err);
    if (!rc)
        rc = check_keys(o, "id|content|single_word|lstrip|rstrip|normalized|special", err);
    if (rc)
        return rc;
    if (!*content || strlen(content) >= WORD_MAX)
        return fm_fail(err, FM_EFORMAT, "an added token has %zu bytes (limit %d)", strlen(content),
                       WORD_MAX - 1);
    *a = (struct fm_added){.content = fm_strdup(content, err),
                           .size = strlen(content),
                           .id = (int32_t)id,
                           .single_word = flag(o, "single_word", false),
                           .lstrip = flag(o, "lstrip", false),
                           .rstrip = flag(o, "rstrip", false),
                           .normalized = flag(o, "normalized", true),
                           .special = flag(o, "special", false)};
    return a->content ? FM_OK : FM_ENOMEM;
}

/* Check that the id is the one that Hugging Face's tokenizers would give: the vocabulary's, or the
 * next one after all ids so far. */
static int check_id(const struct fm_tokenizer *t, const struct fm_added *a, int32_t *next,
                    struct fm_err *err)
{
    int32_t have = fm_bpe_find(&t->bpe, a->content, a->size);
    int32_t id = have >= 0 ? have : *next;
    if (a->id != id)
        return fm_fail(err, FM_EFORMAT, "added token '%.80s' has id %" PRId32 ", not %" PRId32,
                       a->content, a->id, id);
    if (id >= *next)
        *next = id + 1;
    return FM_OK;
}

static int by_content(const void *a, const void *b)
{
    const struct fm_added *x = a, *y = b;
    size_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->content, y->content, n);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* Order: by first byte, then the longest first, then special tokens first, then as in the file. */
static int by_length(const void *a, const void *b)
{
    const struct fm_added *x = a, *y = b;
    unsigned char p = (unsigned char)x->content[0], q = (unsigned char)y->content[0];
    if (p != q)
        return p < q ? -1 : 1;
    if (x->size != y->size)
        return x->size > y->size ? -1 : 1;
    if (x->special != y->special)
        return x->special ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

static void index_matcher(struct fm_matcher *m)
{
    int at = 0;
    if (m->count > 0)
        qsort(m->token, (size_t)m->count, sizeof *m->token, by_length);
    for (int b = 0; b <= 256; b++) {
        while (b > 0 && at < m->count && (unsigned char)m->token[at].content[0] < b)
            at++;
        m->first[b] = at;
    }
}

/* Normalise the content of a normalized token, which is searched for in normalised text. */
static int normalise_content(const struct fm_tokenizer *t, struct fm_added *a, struct fm_err *err)
{
    struct fm_text out = {0}, other = {0};
    fm_tokenizer_normalise(t, &out, &other, a->content, a->size);
    free(other.data);
    if (out.failed || out.size == 0) {
        free(out.data);
        return out.failed ? fm_fail(err, FM_ENOMEM, "no memory for an added token")
                          : refuse(err, "an added token that is normalized to nothing", a->content);
    }
    free(a->content);
    a->content = out.data;
    a->size = out.size;
    return FM_OK;
}

static int place_added(struct fm_tokenizer *t, struct fm_added *a, struct fm_err *err)
{
    struct fm_matcher *m = a->normalized ? &t->normalized : &t->raw;
    int rc = a->normalized ? normalise_content(t, a, err) : FM_OK;
    if (rc)
        return rc;
    m->token[m->count++] = *a;
    a->content = NULL;
    return FM_OK;
}

/* Read the added tokens of an array of n, check each and put it into its matcher. */
static int read_all_added(struct fm_tokenizer *t, const cJSON *list, struct fm_added *all, int n,
                          struct fm_err *err)
{
    const cJSON *o = list->child;
    int32_t next = (int32_t)t->bpe.entries;
    int rc = FM_OK;
    for (int i = 0; !rc && i < n; i++, o = o->next) {
        if (!(rc = read_added(&all[i], o, err)))
            rc = check_id(t, &all[i], &next, err);
        all[i].place = i;
        t->last = all[i].id > t->last ? all[i].id : t->last;
    }
    if (rc)
        return rc;
    qsort(all, (size_t)n, sizeof *all, by_content);
    for (int i = 1; i < n; i++)
        if (by_content(&all[i - 1], &all[i]) == 0)
            return fm_fail(err, FM_EFORMAT, "added token '%.80s' appears twice", all[i].content);
    for (int i = 0; !rc && i < n; i++)
        rc = place_added(t, &all[i], err);
    return rc;
}

static int read_added_tokens(struct fm_tokenizer *t, const cJSON *list, struct fm_err *err)
{
    int n = list ? cJSON_GetArraySize(list) : 0, rc = FM_OK;
    if (list && !cJSON_IsArray(list))
        return fm_fail(err, FM_EFORMAT, "added_tokens is not an array");
    struct fm_added *all = fm_alloc((size_t)n + 1, sizeof *all, "added tokens", err);
    t->raw.token = fm_alloc((size_t)n + 1, sizeof *all, "added tokens", err);
    t->normalized.token = fm_alloc((size_t)n + 1, sizeof *all, "added tokens", err);
    if (!all || !t->raw.token || !t->normalized.token)
        rc = FM_ENOMEM;
    else if (n > 0)
        rc = read_all_added(t, list, all, n, err);
    for (int i = 0; all && i < n; i++)
        free(all[i].content);
    free(all);
    index_matcher(&t->raw);
    index_matcher(&t->normalized);
    return rc;
}

/* --- the whole file --- */

enum { VERSION, TRUNCATION, PADDING, ADDED, NORMALIZER, PRE, POST, DECODER, MODEL, PARTS };

static int check_whole(const struct part *p, struct fm_err *err)
{
    if (!p[MODEL].begin)
        return fm_fail(err, FM_EFORMAT, "key 'model' is missing");
    if (p[VERSION].begin && !is_word(&p[VERSION], "\"1.0\""))
        return fm_fail(err, FM_EFORMAT, "version is not \"1.0\"");
    for (int i = TRUNCATION; i <= PADDING; i++)
        if (!is_null(&p[i]))
            return fm_fail(err, FM_ECONFIG, "%s is not supported; set it to null", p[i].key);
    return FM_OK;
}

static int read_component(struct fm_tokenizer *t, const struct part *p,
                          int (*take)(struct fm_tokenizer *, const cJSON *, struct fm_err *),
                          struct fm_err *err)
{
    cJSON *tree;
    int rc = tree_of(&tree, p, err);
    if (!rc && tree)
        rc = take(t, tree, err);
    cJSON_Delete(tree);
    return rc;
}

int fm_tokenizer_read(struct fm_tokenizer *t, const char *text, size_t size, struct fm_err *err)
{
    struct part p[PARTS] = {
        {.key = "version"},        {.key = "truncation"}, {.key = "padding"},
        {.key = "added_tokens"},   {.key = "normalizer"}, {.key = "pre_tokenizer"},
        {.key = "post_processor"}, {.key = "decoder"},    {.key = "model"}};
    struct fm_json j;
    fm_json_init(&j, text, size);
    j.text_keys = true; /* the keys of the vocabulary are token texts */
    int rc = FM_OK;
    if (read_parts(&j, p, PARTS, "it", err) || fm_json_end(&j, err) || check_whole(p, err) ||
        read_component(t, &p[NORMALIZER], read_normalizer, err) ||
        read_component(t, &p[PRE], read_pre_tokenizer, err) ||
        read_component(t, &p[POST], read_post_processor, err))
        rc = err->code;
    fm_json_init(&j, text, size);
    if (!rc)
        rc = read_model(t, window_of(&j, &p[MODEL]), err);
    if (rc)
        return rc;
    t->last = t->bpe.last;
    rc = is_null(&p[ADDED]) ? read_added_tokens(t, NULL, err)
                            : read_component(t, &p[ADDED], read_added_tokens, err);
    for (int i = 0; !rc && i < t->fronts + t->backs; i++) {
        int32_t id = i < t->fronts ? t->front[i] : t->back[i - t->fronts];
        if (id > t->last)
            rc = fm_fail(err, FM_EFORMAT,
                         "the template has id %" PRId32 ", but the largest token id is %" PRId32,
                         id, t->last);
    }
    return rc;
}
