/*
 * Which files and keys of a checkpoint an export leaves out.  The lists below come from the sources
 * of the loaders: transformers, vLLM, SGLang, ModelScope, sentence-transformers and peft.
 */
#include "lib/export/trust.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "formats/tensor/hftext.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/printable.h"

/* Keys that make a program run code or load another model, as patterns of fnmatch(3). */
static const char *const loading[] = {
    "auto_map",                 /* classes of a Python file here or in another repository */
    "custom_pipelines",         /* transformers: the same for pipeline() */
    "custom_generate",          /* transformers: the same for generate() */
    "trust_remote_code",        /* as an argument of from_pretrained() */
    "*attn_implementation*",    /* transformers: attention from a kernel on the hub */
    "*experts_implementation*", /* transformers: the same for experts */
    "kernel_config",            /* transformers: the same for any layer */
    "transformers_weights",     /* transformers: another file of weights */
    "*name_or_path",            /* another model: a base, a verifier, an audio tokenizer; and the
                                   repository where from_config() looks for classes */
    "speculators_config",       /* vLLM: serve the model named here */
    "audio_tokenizer",          /* transformers: a class and a model for it */
    "plugins",                  /* ModelScope: install and import these packages */
    "allow_remote",             /* ModelScope: import Python files of the directory */
    NULL};

/* Files that are code, or whose purpose is to name code or another model. */
static const char *const code[] = {
    "*.py", "*.pyc", "*.pyd", "*.so", "*.pkl", "adapter_config.json", "modules.json", NULL};

/* In these files keys may be words of the vocabulary; no program reads them as settings. */
static const char *const vocabulary[] = {"tokenizer.json", "vocab.json", "added_tokens.json",
                                         "tekken.json", NULL};

/* ModelScope's configuration.json names classes under many keys, but not under these two. */
static const char *const modelscope[] = {"framework", "task", NULL};

static bool is_one_of(const char *const *pattern, const char *name)
{
    for (; *pattern; pattern++)
        if (fnmatch(*pattern, name, 0) == 0)
            return true;
    return false;
}

/* ---- notes ---- */

/* Add a name once. */
static int note(struct fm_exportplan *p, enum fm_code_fate fate, const char *file, const char *key,
                struct fm_err *err)
{
    struct fm_planned_code *c = &p->code;
    struct fm_code_item new = {.fate = fate};
    snprintf(new.name, sizeof new.name, "%s%s%.64s", file, key ? ": " : "", key ? key : "");
    fm_printable(new.name, false); /* a key is any text, perhaps cut within a character */
    for (size_t i = 0; i < c->items; i++)
        if (c->item[i].fate == fate && strcmp(c->item[i].name, new.name) == 0)
            return FM_OK;
    if (c->items == FM_CODES_MAX)
        return fm_fail(err, FM_ECONFIG,
                       "%s: more than %d files and keys of the checkpoint would be left out or are "
                       "code; remove them from the checkpoint",
                       p->from->bundle.file.path, FM_CODES_MAX);
    if (FM_GROW(c->item, c->capacity, c->items + 1, "the list of code", err))
        return err->code;
    c->item[c->items++] = new;
    return FM_OK;
}

/* Note a file that is code, or a key that loads code: kept with --allow-code, otherwise left out.
 */
static int note_code(struct fm_exportplan *p, const char *file, const char *key, struct fm_err *err)
{
    bool kept = p->options.allow_code;
    if (!kept &&
        (strncmp(file, "tokenization_", 13) == 0 ||
         (key && strcmp(file, "tokenizer_config.json") == 0 && strcmp(key, "auto_map") == 0)))
        p->code.tokenizer = true;
    return note(p, kept ? FM_CODE_KEPT : FM_CODE_LEFT, file, key, err);
}

/* ---- keys ---- */

struct reading {
    struct fm_exportplan *plan;
    const char *file;
    bool listed;                    /* for config.json: keep only the keys that the family
                                       defines */
    const struct fm_jsonedit *edit; /* the keys that the layout sets */
    int edits;
    struct fm_err *err; /* for notes; the first error */
    int rc;
};

/* True if programs that read this key load code or another model. */
static bool loads(const struct reading *r, const char *key, int depth)
{
    if (depth == 1 && strcmp(r->file, "configuration.json") == 0 && !is_one_of(modelscope, key))
        return true;
    return is_one_of(loading, key);
}

static bool stays(void *self, const char *key, int depth)
{
    struct reading *r = self;
    bool allowed = r->plan->options.allow_code, is_code = loads(r, key, depth);
    if (depth == 1 && fm_names_among(r->edit, (size_t)r->edits, sizeof *r->edit, key) &&
        (!is_code || allowed))
        return true; /* replaced by the layout's value */
    if (is_code) {
        if (!r->rc)
            r->rc = note_code(r->plan, r->file, key, r->err);
        return allowed;
    }
    if (depth > 1 || !r->listed || allowed || strcmp(key, FM_HFTEXT_WRAPPER) == 0 ||
        fm_families_knows(r->plan->from->config.family, key) ||
        fm_names_index(r->plan->options.keep_config, key) >= 0)
        return true;
    if (!r->rc)
        r->rc = note(r->plan, FM_CODE_UNKNOWN, key, NULL, r->err);
    return false;
}

int fm_trust_config(struct fm_exportplan *p, char **text, size_t *size,
                    const struct fm_jsonedit *edit, int n, struct fm_err *err)
{
    struct reading r = {.plan = p,
                        .file = "config.json",
                        .listed = p->options.layout->modeling,
                        .edit = edit,
                        .edits = n,
                        .err = err};
    int rc = fm_jsonedit_prune(text, size, stays, &r, err);
    return rc ? rc : r.rc;
}

/* ---- options ---- */

int fm_trust_check(const struct fm_export_options *o, struct fm_err *err)
{
    if (!o->keep_config[0])
        return FM_OK;
    if (o->allow_code)
        return fm_fail(err, FM_EUSAGE, "--keep-config: --allow-code keeps all keys; omit it");
    for (const char *const *key = o->keep_config; *key; key++)
        if (is_one_of(loading, *key))
            return fm_fail(err, FM_EUSAGE,
                           "--keep-config %.64s: this key makes programs load code or another "
                           "model; use --allow-code if you trust the checkpoint's author",
                           *key);
    return FM_OK;
}

int fm_trust_check_keys(const struct fm_exportplan *p, struct fm_err *err)
{
    static const char letters[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    const char *const *key = p->options.keep_config;
    cJSON *json = NULL;
    if (!*key)
        return FM_OK;
    int rc = fm_json_tree(&json, p->from->config_text, p->from->config_bytes, err);
    for (; *key && !rc; key++)
        if (strspn(*key, letters) != strlen(*key) || !cJSON_GetObjectItemCaseSensitive(json, *key))
            rc = fm_fail(
                err, FM_EUSAGE,
                "--keep-config %.64s: config.json of the checkpoint has no such key; omit it",
                *key);
    cJSON_Delete(json);
    return rc;
}

/* ---- files ---- */

static int add_as_it_is(struct fm_exportplan *p, const char *name, const struct fm_member *m,
                        struct fm_err *err)
{
    int rc = fm_planned_add_file(p, name, NULL, m->size, m->size, false, err);
    if (!rc)
        p->file[p->files - 1].carried = m;
    return rc;
}

/* Copy a file without the keys that load code; if it cannot be parsed, leave it out. */
static int add_json(struct fm_exportplan *p, const char *name, const struct fm_member *m,
                    struct fm_err *err)
{
    void *data = NULL;
    size_t size = 0;
    int rc = fm_bundle_read(&p->from->bundle, m, &data, &size, err);
    if (rc)
        return rc;
    char *text = data;
    struct fm_err unread = {0};
    struct reading r = {.plan = p, .file = name, .err = err};
    rc = fm_jsonedit_prune(&text, &size, stays, &r, &unread);
    bool unreadable = rc == FM_EFORMAT, left = unreadable && !p->options.allow_code;
    if (unreadable)
        rc = note_code(p, name, "cannot be read as JSON", err);
    else if (rc)
        *err = unread;
    else
        rc = r.rc;
    if (!rc && !left && size != m->size)
        return fm_planned_add_file(p, name, text, size, size, false, err);
    free(text);
    return rc || left ? rc : add_as_it_is(p, name, m, err);
}

int fm_trust_begin(struct fm_exportplan *p, struct fm_err *err)
{
    p->code.items = 0;
    p->code.tokenizer = false;
    return p->options.layout->modeling ? note(p, FM_CODE_OURS, FM_EXPORT_MODELING, NULL, err)
                                       : FM_OK;
}

int fm_trust_carried(struct fm_exportplan *p, const struct fm_member *m, struct fm_err *err)
{
    const char *name = m->name + strlen(FM_MEMBER_CARRIED);
    assert(strncmp(m->name, FM_MEMBER_CARRIED, strlen(FM_MEMBER_CARRIED)) == 0);
    if (is_one_of(code, name)) {
        int rc = note_code(p, name, NULL, err);
        return rc || !p->options.allow_code ? rc : add_as_it_is(p, name, m, err);
    }
    if (fm_ends_with(name, ".json") && !is_one_of(vocabulary, name))
        return add_json(p, name, m, err);
    return add_as_it_is(p, name, m, err);
}

/* ---- messages ---- */

bool fm_trust_names(const struct fm_exportplan *p, enum fm_code_fate fate, size_t *next,
                    char text[FM_CODE_NAMES_BYTES])
{
    size_t at = 0;
    text[0] = '\0';
    for (; *next < p->code.items; ++*next) {
        const struct fm_code_item *item = &p->code.item[*next];
        if (item->fate != fate)
            continue;
        if (at + strlen(item->name) + 3 > FM_CODE_NAMES_BYTES)
            break;
        at += (size_t)snprintf(text + at, FM_CODE_NAMES_BYTES - at, "%s%s", at ? ", " : "",
                               item->name);
    }
    return at > 0;
}

void fm_trust_tell(const struct fm_exportplan *p, const struct fm_run_options *run)
{
    char names[FM_CODE_NAMES_BYTES];
    for (size_t next = 0; fm_trust_names(p, FM_CODE_LEFT, &next, names);)
        fm_run_warn(run,
                    "left out, because it is code of the checkpoint's author or makes programs "
                    "load code or another model: %s%s",
                    names,
                    p->code.tokenizer
                        ? "; AutoTokenizer may fail without it (--allow-code keeps it)"
                        : "; --allow-code keeps it");
    for (size_t next = 0; fm_trust_names(p, FM_CODE_UNKNOWN, &next, names);)
        fm_run_warn(run,
                    "keys of config.json that %s models are not known to need are left out: %s; "
                    "--keep-config KEY keeps one",
                    p->from->config.family->class_name, names);
    for (size_t next = 0; fm_trust_names(p, FM_CODE_KEPT, &next, names);)
        fm_run_warn(run,
                    "the export contains code of the checkpoint's author, or makes programs load "
                    "code or another model: %s",
                    names);
}
