/*
 * Users refer to a model by its name on the hub, and `hf download` puts its files here:
 *
 *     ROOT/models--ORG--NAME/refs/main            the current revision, as text
 *     ROOT/models--ORG--NAME/snapshots/REVISION   links to the files, a checkpoint directory
 *
 * Nothing is downloaded here.  If the path is not a checkpoint directory but a common mistake (the
 * cache itself, an interrupted download, weights of another format), the error says what to do.
 */
#include "formats/tensor/hfcache.h"

#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/file/file.h"
#include "formats/file/text.h"
#include "lib/base/names.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
#define WORD "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
#define REVISION_BYTES 128

bool fm_hfcache_is_name(const char *name)
{
    const char *slash = strchr(name, '/');
    size_t n = strspn(name, LETTERS "/");
    return slash && slash > name && slash[1] && !strchr(slash + 1, '/') && name[n] == '\0' &&
           name[0] != '.';
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* The home directory that begins a path, ~ or ~USER, as os.path.expanduser gives it; *rest is what
 * follows.  NULL if the path begins otherwise or the user is unknown; the path is then used as it
 * is. */
static const char *find_home(const char *path, const char **rest)
{
    char user[256];
    const struct passwd *p;
    size_t n = strcspn(path, "/");
    if (path[0] != '~' || n > sizeof user)
        return NULL;
    snprintf(user, sizeof user, "%.*s", (int)n - 1, path + 1);
    *rest = path + n;
    if (n == 1 && getenv("HOME"))
        return getenv("HOME");
    p = n == 1 ? getpwuid(getuid()) : getpwnam(user);
    return p ? p->pw_dir : NULL;
}

/* The value of the variable $NAME or ${NAME} that a text begins with, and the text after it; NULL
 * if it begins with none, or with an unset one, as for os.path.expandvars. */
static const char *find_variable(const char *text, const char **rest)
{
    char name[256];
    bool braces = text[0] == '$' && text[1] == '{';
    const char *from = text + 1 + braces;
    size_t n = text[0] != '$' ? 0 : braces ? strcspn(from, "}") : strspn(from, WORD);
    if (n == 0 || n >= sizeof name || (braces && from[n] != '}'))
        return NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, from);
    *rest = from + n + braces;
    return getenv(name);
}

/* Write a path with ~ and variables expanded, as huggingface_hub does, and then `end`. */
static void expand(char root[PATH_MAX], const char *path, const char *end)
{
    struct fm_text out = {0};
    const char *rest = path, *home = find_home(path, &rest);
    if (home) {
        size_t n = strlen(home);
        while (n > 0 && home[n - 1] == '/')
            n--;
        fm_text_add(&out, home, n);
    } else {
        rest = path;
    }
    while (*rest) {
        const char *next = rest + 1, *value = find_variable(rest, &next);
        if (!value)
            next = rest + 1;
        fm_text_add(&out, value ? value : rest, value ? strlen(value) : 1);
        rest = next;
    }
    snprintf(root, PATH_MAX, "%.*s%s", (int)out.size, out.data ? out.data : "", end);
    free(out.data);
}

/* The cache directory, in huggingface_hub's order of search. */
static void find_root(char root[PATH_MAX])
{
    static const struct {
        const char *name, *end;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *at = variable(places[i].name);
        if (at) {
            expand(root, at, places[i].end);
            return;
        }
    }
    expand(root, "~/.cache", "/huggingface/hub");
}

/* The revision in refs/main.  *found: the file exists and holds one valid path component. */
static int read_revision(char revision[REVISION_BYTES], bool *found, const char *repository,
                         struct fm_err *err)
{
    struct fm_err none = {0};
    char *text;
    size_t size;
    *found = false;
    int rc = fm_file_slurp_in(repository, "refs/main", REVISION_BYTES - 1, &text, &size, &none);
    if (rc == FM_ENOENT)
        return FM_OK;
    if (rc)
        return fm_fail(err, rc, "%s", none.text);
    memcpy(revision, text, size + 1);
    free(text);
    revision[strcspn(revision, "\r\n")] = '\0';
    *found = revision[0] && revision[0] != '.' && strspn(revision, LETTERS) == strlen(revision);
    return FM_OK;
}

int fm_hfcache_find(char *path, size_t size, const char *name, struct fm_err *err)
{
    char root[PATH_MAX], repository[PATH_MAX], revision[REVISION_BYTES];
    struct stat st;
    int slash = (int)strcspn(name, "/");
    find_root(root);
    int n = snprintf(repository, sizeof repository, "%s/models--%.*s--%s", root, slash, name,
                     name + slash + 1);
    bool found = false;
    if (n < (int)sizeof repository && read_revision(revision, &found, repository, err))
        return err->code;
    if (found) {
        n = snprintf(path, size, "%s/snapshots/%s", repository, revision);
        found = n > 0 && (size_t)n < size && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    }
    if (found)
        return FM_OK;
    return fm_fail(err, FM_ENOENT,
                   "'%s' is neither a directory nor in the Hugging Face cache '%s'; fetch it with: "
                   "hf download %s",
                   name, root, name);
}

/* Cut a path at its last slash and return the part after it. */
static char *cut_last(char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return NULL;
    *slash = '\0';
    return slash + 1;
}

/* If `path` ends in models--NAME/snapshots/REVISION, cut off the last two components; else false.
 */
static bool cut_snapshot(char *path)
{
    const char *name;
    if (!cut_last(path) || !(name = cut_last(path)) || strcmp(name, "snapshots") != 0)
        return false;
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, "models--", 8) == 0;
}

bool fm_hfcache_is_own_blob(const char *target, const char *home)
{
    char folder[PATH_MAX], repository[PATH_MAX];
    const char *name;
    return (size_t)snprintf(folder, sizeof folder, "%s", target) < sizeof folder &&
           (size_t)snprintf(repository, sizeof repository, "%s", home) < sizeof repository &&
           cut_last(folder) && (name = cut_last(folder)) && strcmp(name, "blobs") == 0 &&
           cut_snapshot(repository) && strcmp(folder, repository) == 0;
}

/* What a directory holds, by the names of its entries. */
enum { REPOSITORIES = 1, HUB = 2, SHARDS = 4, PYTORCH = 8, GGUF = 16 };

static int find_kinds(int *kinds, int dir, struct fm_err *err)
{
    static const struct {
        const char *begin, *end;
        int kind;
    } name[] = {{"models--", "", REPOSITORIES},
                {"hub", "", HUB},
                {"model-", ".safetensors", SHARDS},
                {"", ".bin", PYTORCH},
                {"", ".pth", PYTORCH},
                {"", ".pt", PYTORCH},
                {"", ".gguf", GGUF}};
    struct fm_file_list list;
    *kinds = 0;
    int rc = fm_file_list(&list, dir, ".", err);
    for (size_t k = 0; k < list.count; k++)
        for (size_t i = 0; i < sizeof name / sizeof *name; i++)
            if (strncmp(list.name[k], name[i].begin, strlen(name[i].begin)) == 0 &&
                fm_ends_with(list.name[k], name[i].end))
                *kinds |= name[i].kind;
    fm_file_list_release(&list);
    return rc;
}

static bool is_there(int dir, const char *name)
{
    struct stat st;
    return fstatat(dir, name, &st, 0) == 0;
}

int fm_hfcache_explain_directory(int dir, int rc, struct fm_err *err)
{
    if (is_there(dir, "snapshots"))
        return fm_fail(err, FM_ENOENT,
                       "is a repository in a Hugging Face cache; give its ORG/NAME, or the "
                       "directory snapshots/REVISION in it");
    int kinds;
    if (find_kinds(&kinds, dir, err))
        return err->code;
    if (kinds & REPOSITORIES)
        return fm_fail(err, FM_ENOENT,
                       "is a Hugging Face cache; give a model's ORG/NAME, with HF_HUB_CACHE set to "
                       "this directory");
    if (is_there(dir, "hub") && (kinds & HUB))
        return fm_fail(err, FM_ENOENT,
                       "is a Hugging Face home directory; give a model's ORG/NAME, with HF_HOME "
                       "set to this directory");
    return rc;
}

int fm_hfcache_explain_weights(int dir, struct fm_err *err)
{
    int kinds;
    if (find_kinds(&kinds, dir, err))
        return err->code;
    if (kinds & SHARDS)
        return fm_fail(err, FM_ENOENT,
                       "has shards but no model.safetensors.index.json, which lists them; hf "
                       "download fetches what is missing");
    if (kinds & PYTORCH)
        return fm_fail(
            err, FM_ENOENT,
            "has weights in PyTorch's format and no safetensors; load it with transformers "
            "and save it with save_pretrained()");
    if (kinds & GGUF)
        return fm_fail(err, FM_ENOENT,
                       "has GGUF files and no safetensors; give the checkpoint they were made "
                       "from");
    return fm_fail(err, FM_ENOENT,
                   "neither model.safetensors nor model.safetensors.index.json was found; "
                   "hf download fetches them");
}
