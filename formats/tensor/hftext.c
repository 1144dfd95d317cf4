/*
 * A multimodal checkpoint contains a complete text model: its config.json in text_config, its
 * tensors under a prefix.  Callers that open the directory see that model, under the names that the
 * text class uses, and the other tensors as unknown ones.  The text class itself also saves tensors
 * under the prefix if it loaded them from such a checkpoint.  The wrapper's other keys are kept in
 * the text model's config.json, so that an export can be multimodal again.
 */
#include "formats/tensor/hftext.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"

/* "model.language_model.layers" ends with "model.layers": a name is cut, not copied. */
#define PREFIX "model.language_model."
#define CUT (sizeof PREFIX - sizeof "model.")
/* In other checkpoints, the prefix of all names of the text part. */
#define OUTER "language_model."
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
static const char *const shared[] = {"quantization_config", "compression_config",
                                     "tie_word_embeddings", "dtype",
                                     "torch_dtype",         "transformers_version"};

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

int fm_hftext_wrap(char **whole, const char *config, size_t size, struct fm_err *err)
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
    if (!cJSON_GetObjectItemCaseSensitive(text, "quantization_config"))
        cJSON_DeleteItemFromObjectCaseSensitive(wrapper, "quantization_config");
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

/* Bytes to cut from the start of a name. */
static size_t cut_of(const char *name)
{
    static const char *const outer[] = {OUTER "model.", OUTER "lm_head."};
    for (size_t i = 0; i < sizeof outer / sizeof *outer; i++)
        if (strncmp(name, outer[i], strlen(outer[i])) == 0)
            return sizeof OUTER - 1;
    return strncmp(name, PREFIX, sizeof PREFIX - 1) == 0 ? CUT : 0;
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
