/*
 * A multimodal checkpoint contains a complete text model: its config.json in text_config, its
 * tensors under a prefix.  Callers that open the directory see that model, under the names that the
 * text class uses, and the other tensors as unknown ones.  The text class itself also saves tensors
 * under the prefix if it loaded them from such a checkpoint.  The wrapper's other keys are kept in
 * the text model's config.json, so that an export can be multimodal again.
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

/* "model.language_model.layers" ends with "model.layers": a name is cut, not copied. */
#define PREFIX "model.language_model."
#define CUT (sizeof PREFIX - sizeof "model.")
/* In other checkpoints, the prefix of all names of the text part. */
#define OUTER "language_model."
#define QUANT_KEY "quantization_config"
#define SIZE_KEY "hidden_size" /* a text_config without model_type is a model's if it has this */

static const char *string_of(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

/* text_config of a wrapper, or NULL. */
static cJSON *find_text(const cJSON *config)
{
    cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    const char *whole = string_of(config, "model_type"), *part = string_of(text, "model_type");
    size_t n = whole ? strlen(whole) : 0;
    bool is = part && n > 0 && strncmp(part, whole, n) == 0 && strcmp(part + n, "_text") == 0;
    bool unsaid =
        n > 0 && cJSON_HasObjectItem(text, SIZE_KEY) && !cJSON_HasObjectItem(text, "model_type");
    return is || unsaid ? text : NULL;
}

/* Add a model_type to a text part without one. */
static void add_type(cJSON *text, const cJSON *config)
{
    char own[128];
    if (cJSON_HasObjectItem(text, "model_type"))
        return;
    snprintf(own, sizeof own, "%.100s_text", string_of(config, "model_type"));
    fm_json_add_string(text, "model_type", own);
}

/* The name of the text class from the wrapper's: XForConditionalGeneration becomes XForCausalLM. */
static void add_class(cJSON *text, const cJSON *config)
{
    static const char wrapper[] = "ForConditionalGeneration", plain[] = "ForCausalLM";
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(config, "architectures");
    const char *name = cJSON_GetStringValue(cJSON_GetArrayItem(list, 0));
    const char *end = name ? strstr(name, wrapper) : NULL;
    char own[128];
    if (!end || strcmp(end, wrapper) != 0 || (size_t)(end - name) + sizeof plain > sizeof own)
        return;
    memcpy(own, name, (size_t)(end - name));
    memcpy(own + (end - name), plain, sizeof plain);
    cJSON_DeleteItemFromObjectCaseSensitive(text, "architectures");
    fm_json_add_string(fm_json_add_array(text, "architectures"), NULL, own);
}

/* The keys that the wrapper sets for all of its parts.  Programs differ in which they read if the
 * text part has another value of the first ones. */
#define EQUAL_KEYS 3
static const char *const shared[] = {QUANT_KEY, "compression_config", "tie_word_embeddings",
                                     "dtype",   "torch_dtype",        "transformers_version"};

static int check_shared(const cJSON *text, const cJSON *config, struct fm_err *err)
{
    for (size_t i = 0; i < EQUAL_KEYS; i++) {
        const cJSON *whole = cJSON_GetObjectItemCaseSensitive(config, shared[i]);
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(text, shared[i]);
        if (whole && own && !cJSON_IsNull(whole) && !cJSON_IsNull(own) &&
            !cJSON_Compare(whole, own, true))
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
        const cJSON *own = cJSON_GetObjectItemCaseSensitive(text, key);
        if (!value || (own && !cJSON_IsNull(own)))
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
    cJSON_DeleteItemFromObjectCaseSensitive(part, FM_HFTEXT_WRAPPER);
    fm_json_add(part, FM_HFTEXT_WRAPPER, json);
    *text = fm_json_print(part);
    cJSON_Delete(part);
    return *text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

bool fm_hftext_wrapped(const char *config, size_t size)
{
    struct fm_err broken = {0};
    cJSON *json = NULL;
    bool has = !fm_json_tree(&json, config, size, &broken) &&
               cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(json, FM_HFTEXT_WRAPPER));
    cJSON_Delete(json);
    return has;
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
    cJSON_DeleteItemFromObjectCaseSensitive(text, "architectures"); /* the wrapper's are kept */
    cJSON_DeleteItemFromObjectCaseSensitive(wrapper, "text_config");
    cJSON *own = cJSON_GetObjectItemCaseSensitive(text, QUANT_KEY);
    if (!own || rounded)
        cJSON_DeleteItemFromObjectCaseSensitive(wrapper, QUANT_KEY);
    if (own && rounded)
        fm_json_add(wrapper, QUANT_KEY, cJSON_DetachItemViaPointer(text, own));
    else if (own && cJSON_HasObjectItem(wrapper, QUANT_KEY))
        cJSON_Delete(cJSON_DetachItemViaPointer(text, own));
    fm_json_add(wrapper, "text_config", text);
    *whole = fm_json_print(wrapper);
    cJSON_Delete(wrapper);
    return *whole ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
}

int fm_hftext_name(char whole[FM_ST_NAME_BYTES_MAX + 1], const char *name, bool outer,
                   struct fm_err *err)
{
    static const char own[] = "model.";
    bool has = !outer && strncmp(name, own, sizeof own - 1) == 0;
    int n = snprintf(whole, FM_ST_NAME_BYTES_MAX + 1, "%s%s",
                     outer ? OUTER
                     : has ? PREFIX
                           : "",
                     name + (has ? sizeof own - 1 : 0));
    return n <= FM_ST_NAME_BYTES_MAX
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "tensor '%.80s...' has too long a name for the wrapper",
                         name);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct fm_tensor *)a)->name, ((const struct fm_tensor *)b)->name);
}

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* Bytes to cut from the start of the name of a tensor or module. */
static size_t cut_of(const char *name)
{
    static const char *const outer[] = {OUTER "model", OUTER "lm_head"};
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++) {
        const char *after = name + strlen(outer[i]);
        if (starts(name, outer[i]) && (*after == '.' || *after == '\0'))
            return sizeof OUTER - 1;
    }
    return starts(name, PREFIX) ? CUT : 0;
}

void fm_hftext_cut(struct fm_safetensors *st)
{
    size_t cut = 0;
    for (size_t i = 0; i < st->count; i++) {
        size_t n = cut_of(st->tensor[i].name);
        st->tensor[i].name += n;
        cut += n;
    }
    if (cut > 0)
        qsort(st->tensor, st->count, sizeof *st->tensor, compare_names);
}

/* ---- names of modules ---- */

struct renaming {
    const char *const *tensor; /* names before they are cut */
    size_t tensors, cut;       /* cut: bytes of all names */
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

/* Cut a pattern or expression in place, as cut_of cuts names, wherever the prefix is spelled out.
 */
static bool cut_pattern(char *text)
{
    static const char word[] = "language_model";
    bool changed = false;
    for (char *at = text; (at = strstr(at, word));) {
        const char *end = at + sizeof word - 1;
        size_t dot = dot_of(end), inner = inner_of(text, at);
        bool outer = starts(end + dot, "lm_head") ||
                     (starts(end + dot, "model") && dot_of(end + dot + sizeof "model" - 1) > 0);
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
    if (is_pattern(text))
        return cut_pattern(text);
    size_t cut = cut_of(text);
    memmove(text, text + cut, strlen(text + cut) + 1);
    return cut > 0;
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

/* A list of the new names of the modules that `old` matches; NULL if `new` matches just those. */
static cJSON *expand(struct renaming *r, const char *old, const char *new)
{
    struct fm_modules before, after;
    char module[FM_ST_NAME_BYTES_MAX + 1];
    bool same = true;
    cJSON *list = NULL;
    if (!fm_modules_read(&before, old))
        return NULL;
    if (fm_modules_read(&after, new)) {
        list = cJSON_CreateArray();
        for (size_t i = 0; i < r->tensors; i++) {
            if (!take_module(module, r, i))
                continue;
            const char *cut = module + cut_of(r->tensor[i]);
            bool is = fm_modules_match(&before, module);
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
    if (whole && r->cut > 0 && ++r->patterns <= FM_PATTERNS_MAX)
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
    struct renaming r = {.tensor = tensor, .tensors = tensors};
    cJSON *json = NULL;
    *text = NULL;
    for (size_t i = 0; i < tensors; i++)
        r.cut += cut_of(tensor[i]);
    if (fm_json_tree(&json, config, size, &broken))
        return FM_OK;
    cJSON *quant = cJSON_GetObjectItemCaseSensitive(json, QUANT_KEY);
    cJSON *wrapper = cJSON_GetObjectItemCaseSensitive(json, FM_HFTEXT_WRAPPER);
    int rc =
        keep_spelling(json, &config) ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for config.json");
    cJSON *old = !rc && quant ? cJSON_Duplicate(quant, true) : NULL;
    if (old)
        rc = rename_all(&r, quant, err);
    if (!rc && r.changed && wrapper && !cJSON_HasObjectItem(wrapper, QUANT_KEY)) {
        fm_json_add(wrapper, QUANT_KEY, old);
        old = NULL;
    }
    if (!rc && r.changed && !(*text = fm_json_print(json)))
        rc = fm_fail(err, FM_ENOMEM, "no memory for config.json");
    cJSON_Delete(old);
    cJSON_Delete(json);
    return rc;
}
