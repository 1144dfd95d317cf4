/*
 * A multimodal checkpoint contains a complete text model: its config.json in text_config, its
 * tensors under one of a few prefixes, whatever the wrapper is called.  Callers that open the
 * directory see that model, under the names that the text class uses, and the other tensors as
 * unknown ones.  The text class itself also saves tensors under the prefix if it loaded them from
 * such a checkpoint.  The wrapper's other keys are kept in the text model's config.json, so that an
 * export can be multimodal again.
 *
 * The lists of quantization_config have names of modules, which servers compare with their own, so
 * they are renamed where tensors are.  An expression that would match other modules under the new
 * names is replaced by the names of those that it matched.
 */
#include "formats/tensor/hftext.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/modules.h"
#include "lib/base/names.h"

/* The first is the usual one.  The last is before all names of the text part; the others replace
 * "model.", and the output head has no prefix.  MODEL itself stands for none. */
static const char *const prefix[] = {"model.language_model.", "model.llm.", "language_model."};
enum { PREFIXES = sizeof prefix / sizeof *prefix, OUTER = PREFIXES - 1 };
#define MODEL "model."
#define MODEL_BYTES (sizeof MODEL - 1)
#define LAYERS "model.layers."

#define QUANT_KEY "quantization_config"
#define TEXT_KEY "text_config"
#define TYPE_KEY "model_type"
#define SIZE_KEY "hidden_size" /* a text_config without model_type is a model's if it has this */
#define PREFIX_KEY "fm_prefix" /* of FM_HFTEXT_WRAPPER: the prefix, if it is not the usual one */

/* text_config of a wrapper, or NULL. */
static cJSON *find_text(const cJSON *config)
{
    cJSON *text = cJSON_GetObjectItemCaseSensitive(config, TEXT_KEY);
    const char *whole = fm_json_string_value(config, TYPE_KEY);
    bool typed = fm_json_has(text, TYPE_KEY);
    bool is = whole && *whole &&
              (typed ? fm_json_string_value(text, TYPE_KEY) != NULL : fm_json_has(text, SIZE_KEY));
    return is ? text : NULL;
}

/* Whether the text part of wrapper X has the model_type X_text. */
static bool is_own(const cJSON *text, const cJSON *config)
{
    const char *whole = fm_json_string_value(config, TYPE_KEY),
               *part = fm_json_string_value(text, TYPE_KEY);
    size_t n = whole ? strlen(whole) : 0;
    return part && whole && strncmp(part, whole, n) == 0 && strcmp(part + n, "_text") == 0;
}

/* Add a model_type to a text part without one. */
static void add_type(cJSON *text, const cJSON *config)
{
    char own[128];
    if (fm_json_has(text, TYPE_KEY))
        return;
    snprintf(own, sizeof own, "%.100s_text", fm_json_string_value(config, TYPE_KEY));
    fm_json_add_string(text, TYPE_KEY, own);
}

/* The name of a wrapper's own text class from the wrapper's: XForConditionalGeneration becomes
 * XForCausalLM. */
static void add_class(cJSON *text, const cJSON *config)
{
    static const char wrapper[] = "ForConditionalGeneration", plain[] = "ForCausalLM";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "architectures");
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    const char *end = name ? strstr(name, wrapper) : NULL;
    char own[128];
    if (!is_own(text, config) || !end || strcmp(end, wrapper) != 0 ||
        (size_t)(end - name) + sizeof plain > sizeof own)
        return;
    memcpy(own, name, (size_t)(end - name));
    memcpy(own + (end - name), plain, sizeof plain);
    cJSON_DeleteItemFromObjectCaseSensitive(text, "architectures");
    fm_json_add_string(fm_json_add_array(text, "architectures"), NULL, own);
}

/* The keys that the wrapper sets for all of its parts.  Programs differ in which they read if the
 * text part has another value of the first ones; but the wrapper's classes in transformers save
 * TIED_KEY as true by default, and use an output head that the checkpoint has. */
#define EQUAL_KEYS 3
#define TIED_KEY "tie_word_embeddings"
static const char *const shared[] = {QUANT_KEY, "compression_config", TIED_KEY,
                                     "dtype",   "torch_dtype",        "transformers_version"};

static int check_shared(const cJSON *text, const cJSON *config, struct fm_err *err)
{
    for (size_t i = 0; i < EQUAL_KEYS; i++) {
        const cJSON *whole = fm_json_value(config, shared[i]);
        const cJSON *own = fm_json_value(text, shared[i]);
        bool head = cJSON_IsTrue(whole) && cJSON_IsFalse(own) && strcmp(shared[i], TIED_KEY) == 0;
        if (whole && own && !head && !cJSON_Compare(whole, own, true))
            return fm_fail(err, FM_ECONFIG,
                           "config.json: %s of text_config differs from %s outside it, and "
                           "programs differ in which they read; keep one of them",
                           shared[i], shared[i]);
    }
    return FM_OK;
}

/* Copy keys that the wrapper sets for all of its parts, unless the text part sets them. */
static void add_shared(cJSON *text, const cJSON *config)
{
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++) {
        const char *key = shared[i];
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(config, key);
        if (!value || fm_json_value(text, key))
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(text, key);
        fm_json_add(text, key, cJSON_Duplicate(value, true));
    }
}

/* The next number in the text, or NULL; it ends at *end. */
static const char *next_number(const char **end, const char *at)
{
    for (; *at && !strchr("-0123456789", *at); at++)
        if (*at == '"')
            for (at++; *at != '"'; at++)
                at += *at == '\\';
    *end = at + strspn(at, "-+.0123456789eE");
    return *at ? at : NULL;
}

/* Numbers are printed as they are spelled in the text that the tree was read from: programs read 2
 * and 2.0 as different types.  False if there is no memory. */
static bool keep_spelling(cJSON *tree, const char **text)
{
    for (cJSON *v = tree; v; v = v->next) {
        const char *number;
        if (v->child && !keep_spelling(v->child, text))
            return false;
        if (!cJSON_IsNumber(v) || !(number = next_number(text, *text)))
            continue;
        size_t n = (size_t)(*text - number);
        char *own = cJSON_malloc(n + 1);
        if (!own)
            return false;
        memcpy(own, number, n);
        own[n] = '\0';
        v->type = cJSON_Raw;
        v->valuestring = own;
    }
    return true;
}

int fm_hftext_config(char **text, const char *config, size_t size, struct fm_err *err)
{
    struct fm_err broken = {0};
    cJSON *json = NULL;
    *text = NULL;
    if (fm_json_tree(&json, config, size, &broken))
        return FM_OK;
    cJSON *part = find_text(json);
    if (part && check_shared(part, json, err)) {
        cJSON_Delete(json);
        return err->code;
    }
    if (part && !keep_spelling(json, &config)) {
        cJSON_Delete(json);
        return fm_fail(err, FM_ENOMEM, "no memory for config.json");
    }
    if (!part) {
        cJSON_Delete(json);
        return FM_OK;
    }
    add_type(part, json);
    add_class(part, json);
    add_shared(part, json);
    cJSON_DetachItemViaPointer(json, part);
    cJSON_DeleteItemFromObjectCaseSensitive(json, PREFIX_KEY); /* not the checkpoint's to say */
    cJSON_DeleteItemFromObjectCaseSensitive(part, FM_HFTEXT_WRAPPER);
    fm_json_add(part, FM_HFTEXT_WRAPPER, json);
    *text = fm_json_print(part);
    cJSON_Delete(part);
    return *text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

const char *fm_hftext_wrapped(const char *config, size_t size)
{
    struct fm_err broken = {0};
    cJSON *json = NULL;
    int i = 0;
    bool read = !fm_json_tree(&json, config, size, &broken);
    const cJSON *wrapper = cJSON_GetObjectItemCaseSensitive(json, FM_HFTEXT_WRAPPER);
    bool has = read && cJSON_IsObject(wrapper);
    const char *own = fm_json_string_value(wrapper, PREFIX_KEY);
    bool plain = own && strcmp(own, MODEL) == 0;
    while (own && i < PREFIXES && strcmp(own, prefix[i]) != 0)
        i++;
    cJSON_Delete(json);
    return !has ? NULL : plain ? MODEL : prefix[i % PREFIXES];
}

int fm_hftext_wrap(char **whole, const char *config, size_t size, bool rounded, struct fm_err *err)
{
    cJSON *text = NULL;
    *whole = NULL;
    int rc = fm_json_tree(&text, config, size, err);
    if (rc)
        return rc;
    if (!keep_spelling(text, &config)) {
        cJSON_Delete(text);
        return fm_fail(err, FM_ENOMEM, "no memory for config.json");
    }
    cJSON *wrapper = cJSON_DetachItemFromObjectCaseSensitive(text, FM_HFTEXT_WRAPPER);
    if (!cJSON_IsObject(wrapper)) {
        cJSON_Delete(wrapper);
        cJSON_Delete(text);
        return fm_fail(err, FM_EFORMAT, "key '" FM_HFTEXT_WRAPPER "' is not an object");
    }
    if (is_own(text, wrapper)) /* its class has the wrapper's name */
        cJSON_DeleteItemFromObjectCaseSensitive(text, "architectures");
    cJSON_DeleteItemFromObjectCaseSensitive(wrapper, PREFIX_KEY);
    cJSON *was = cJSON_DetachItemFromObjectCaseSensitive(wrapper, TEXT_KEY);
    cJSON *own = cJSON_DetachItemFromObjectCaseSensitive(text, QUANT_KEY);
    cJSON *old = cJSON_DetachItemFromObjectCaseSensitive(was, QUANT_KEY);
    if (!own || rounded)
        cJSON_DeleteItemFromObjectCaseSensitive(wrapper, QUANT_KEY);
    if (own && rounded) {
        fm_json_add(wrapper, QUANT_KEY, own);
        own = NULL;
    } else if (own && !fm_json_has(wrapper, QUANT_KEY)) {
        fm_json_add(text, QUANT_KEY, old ? old : own);
        *(old ? &old : &own) = NULL;
    }
    cJSON_Delete(own);
    cJSON_Delete(old);
    cJSON_Delete(was);
    fm_json_add(wrapper, TEXT_KEY, text);
    *whole = fm_json_print(wrapper);
    cJSON_Delete(wrapper);
    return *whole ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

int fm_hftext_name(char whole[FM_ST_NAME_BYTES_MAX + 1], const char *name, const char *before,
                   struct fm_err *err)
{
    bool all = strcmp(before, prefix[OUTER]) == 0;
    bool inner = !all && strncmp(name, MODEL, MODEL_BYTES) == 0;
    int n = snprintf(whole, FM_ST_NAME_BYTES_MAX + 1, "%s%s", all || inner ? before : "",
                     name + (inner ? MODEL_BYTES : 0));
    return n <= FM_ST_NAME_BYTES_MAX
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "tensor '%.80s...' has too long a name for the wrapper",
                         name);
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Index of the prefix that the name of a tensor or module has, or -1. */
static int prefix_of(const char *name)
{
    static const char *const outer[] = {"model", "lm_head"}; /* what may follow the last prefix */
    int i = 0;
    while (i < PREFIXES && !starts(name, prefix[i]))
        i++;
    if (i < OUTER)
        return i;
    for (size_t k = 0; i == OUTER && k < sizeof outer / sizeof *outer; k++) {
        const char *child = name + strlen(prefix[OUTER]), *after = child + strlen(outer[k]);
        if (starts(child, outer[k]) && (*after == '.' || *after == '\0'))
            return OUTER;
    }
    return -1;
}

/* Cut the prefix from a name, in place; return the name's new beginning. */
static char *cut_name(char *name)
{
    int i = prefix_of(name);
    if (i < 0)
        return name;
    name += strlen(prefix[i]) - (i == OUTER ? 0 : MODEL_BYTES);
    return i == OUTER ? name : memcpy(name, MODEL, MODEL_BYTES);
}

void fm_hftext_cut(struct fm_safetensors *st)
{
    bool cut = false;
    for (size_t i = 0; i < st->count; i++) {
        char *name = (char *)st->tensor[i].name; /* in a buffer of the directory */
        st->tensor[i].name = cut_name(name);
        cut |= st->tensor[i].name != name;
    }
    if (cut)
        fm_names_sort(st->tensor, st->count, sizeof *st->tensor);
}

/* ---- names of modules ---- */

struct renaming {
    const char *const *tensor; /* names before they are cut */
    size_t tensors;
    int prefix; /* index of the tensors' prefix; -1: none */
    bool changed;
    int patterns; /* entries compared with the modules of all tensors */
    size_t names; /* that replace them */
};

static bool is_pattern(const char *entry)
{
    return starts(entry, "re:") || strchr(entry, '*');
}

/* Length of "." or "\." at the start of a text. */
static size_t dot_of(const char *text)
{
    return text[0] == '.' ? 1 : text[0] == '\\' && text[1] == '.' ? 2 : 0;
}

/* If text[0..at) ends with "model" and a dot, their length. */
static size_t inner_of(const char *text, const char *at)
{
    static const char model[] = "model";
    size_t n = sizeof model - 1, before = (size_t)(at - text);
    size_t dot = before > 1 && at[-1] == '.' ? 1 + (at[-2] == '\\') : 0;
    return dot > 0 && before >= n + dot && memcmp(at - dot - n, model, n) == 0 ? n + dot : 0;
}

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Cut a pattern or expression in place, as cut_name cuts names, wherever the word of a prefix is
 * spelled out. */
static bool cut_word(char *text, const char *word, bool outermost)
{
    bool changed = false;
    for (char *at = text; (at = strstr(at, word));) {
        const char *end = at + strlen(word);
        size_t dot = dot_of(end), inner = inner_of(text, at);
        bool outer = outermost &&
                     (starts(end + dot, "lm_head") ||
                      (starts(end + dot, "model") && dot_of(end + dot + sizeof "model" - 1) > 0));
        const char *start = at - inner;
        if (dot == 0 || !(inner || outer) || (start > text && is_word(start[-1]))) {
            at++;
            continue;
        }
        memmove(at, end + dot, strlen(end + dot) + 1);
        changed = true;
    }
    return changed;
}

/* Cut an entry of a list, or a key, in place. */
static bool cut_entry(char *text)
{
    if (is_pattern(text)) {
        bool usual = cut_word(text, "language_model", true);
        return cut_word(text, "llm", false) || usual;
    }
    const char *cut = cut_name(text);
    bool changed = cut != text;
    memmove(text, cut, strlen(cut) + 1);
    return changed;
}

/* Read the module of tensor i, under its old name; false if an earlier one has the same. */
static bool take_module(char module[FM_ST_NAME_BYTES_MAX + 1], const struct renaming *r, size_t i)
{
    const char *name = r->tensor[i], *end = strrchr(name, '.');
    size_t n = end ? (size_t)(end - name) : 0;
    bool same = i > 0 && strncmp(r->tensor[i - 1], name, n + 1) == 0 &&
                !strchr(r->tensor[i - 1] + n + 1, '.');
    snprintf(module, FM_ST_NAME_BYTES_MAX + 1, "%.*s", (int)n, name);
    return n > 0 && !same;
}

/* A list of the new names of the modules that `old` matches; NULL if `renamed` matches just those.
 */
static cJSON *expand(struct renaming *r, const char *old, const char *renamed)
{
    struct fm_modules before, after;
    char module[FM_ST_NAME_BYTES_MAX + 1];
    bool same = true;
    cJSON *list = NULL;
    if (!fm_modules_read(&before, old))
        return NULL;
    if (fm_modules_read(&after, renamed)) {
        list = cJSON_CreateArray();
        for (size_t i = 0; i < r->tensors; i++) {
            if (!take_module(module, r, i))
                continue;
            bool is = fm_modules_match(&before, module);
            const char *cut = prefix_of(r->tensor[i]) < 0 ? module : cut_name(module);
            same = same && is == fm_modules_match(&after, cut);
            if (is && r->names <= FM_JSON_VALUES_MAX) {
                fm_json_add_string(list, NULL, cut);
                r->names++;
            }
        }
        fm_modules_release(&after);
    }
    fm_modules_release(&before);
    if (!same)
        return list;
    cJSON_Delete(list);
    return NULL;
}

/* Rename an entry of a list and add it to `list`, or the names that replace it. */
static int rename_entry(struct renaming *r, cJSON *list, cJSON *entry, struct fm_err *err)
{
    char *old = fm_strdup(entry->valuestring, err);
    if (!old) {
        cJSON_Delete(entry);
        return err->code;
    }
    r->changed |= cut_entry(entry->valuestring);
    bool whole = is_pattern(old) || strstr(entry->valuestring, "language_model");
    cJSON *names = NULL;
    if (whole && r->prefix >= 0 && ++r->patterns <= FM_PATTERNS_MAX)
        names = expand(r, old, entry->valuestring);
    free(old);
    if (r->patterns > FM_PATTERNS_MAX || r->names > FM_JSON_VALUES_MAX) {
        cJSON_Delete(names);
        cJSON_Delete(entry);
        return fm_fail(err, FM_ECONFIG,
                       "config.json: quantization_config has more than %d patterns and regular "
                       "expressions, or they match more than %d modules",
                       FM_PATTERNS_MAX, FM_JSON_VALUES_MAX);
    }
    if (!names) {
        fm_json_add(list, NULL, entry);
        return FM_OK;
    }
    cJSON_Delete(entry);
    r->changed = true;
    for (cJSON *name; (name = cJSON_DetachItemFromArray(names, 0));)
        fm_json_add(list, NULL, name);
    bool complete = fm_json_is_whole(names);
    cJSON_Delete(names);
    return complete ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for the names of modules");
}

/* Rename the strings of all lists in a tree, and the keys of all objects. */
static int rename_all(struct renaming *r, cJSON *tree, struct fm_err *err)
{
    int rc = FM_OK;
    cJSON *list = cJSON_IsArray(tree) ? cJSON_CreateArray() : NULL;
    if (!list && cJSON_IsArray(tree))
        return fm_fail(err, FM_ENOMEM, "no memory for the names of modules");
    for (cJSON *v; list && !rc && (v = cJSON_DetachItemFromArray(tree, 0));) {
        rc = cJSON_IsString(v) ? rename_entry(r, list, v, err) : rename_all(r, v, err);
        if (!cJSON_IsString(v))
            fm_json_add(list, NULL, v);
    }
    if (list) {
        cJSON *was = tree->child;
        tree->child = list->child;
        list->child = was;
        cJSON_Delete(list);
        return rc;
    }
    for (cJSON *v = tree->child; v && !rc; v = v->next) {
        r->changed |= v->string && cut_entry(v->string);
        rc = rename_all(r, v, err);
    }
    return rc;
}

int fm_hftext_modules(char **text, const char *config, size_t size, const char *const *tensor,
                      size_t tensors, struct fm_err *err)
{
    struct fm_err broken = {0};
    struct renaming r = {.tensor = tensor, .tensors = tensors, .prefix = -1};
    cJSON *json = NULL;
    *text = NULL;
    bool plain = false;
    for (size_t i = 0; i < tensors && r.prefix < 0; i++) {
        r.prefix = prefix_of(tensor[i]);
        plain |= starts(tensor[i], LAYERS);
    }
    if (fm_json_tree(&json, config, size, &broken))
        return FM_OK;
    cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, QUANT_KEY);
    cJSON *wrapper = cJSON_GetObjectItemCaseSensitive(json, FM_HFTEXT_WRAPPER);
    int rc =
        keep_spelling(json, &config) ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
    cJSON *old = !rc && quant ? cJSON_Duplicate(quant, true) : NULL;
    if (old)
        rc = rename_all(&r, quant, err);
    if (!rc && r.changed && wrapper && !fm_json_has(wrapper, QUANT_KEY)) {
        cJSON_DeleteItemFromObjectCaseSensitive(wrapper, TEXT_KEY);
        fm_json_add(fm_json_add_object(wrapper, TEXT_KEY), QUANT_KEY, old);
        old = NULL;
    }
    /* An export has the key already, and its tensors may have other names. */
    bool known = fm_json_has(wrapper, PREFIX_KEY);
    if (!rc && wrapper && !known && (r.prefix > 0 || (r.prefix < 0 && plain))) {
        fm_json_add_string(wrapper, PREFIX_KEY, r.prefix > 0 ? prefix[r.prefix] : MODEL);
        r.changed = true;
    }
    if (!rc && r.changed && !(*text = fm_json_print(json)))
        rc = fm_fail(err, FM_ENOMEM, "no memory for config.json");
    cJSON_Delete(old);
    cJSON_Delete(json);
    return rc;
}
