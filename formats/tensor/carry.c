/*
 * The list names the files that are carried, not those that are left out: users keep calibration
 * data, keys and notes next to their weights, and links in an untrusted checkpoint may lead
 * anywhere.
 */
#include "formats/tensor/carry.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file/genuine.h"
#include "formats/tensor/hfcache.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

static const char *const wanted[] = {
    /* configs */
    "config.json", "*_config.json", "configuration.json", "params.json",
    /* tokenizers */
    "tokenizer.*", "*_tokenizer.model", "tekken.json", "vocab.*", "merges.txt", "added_tokens.json",
    "special_tokens_map.json", "spiece.model", "sentencepiece*.model", "*.tiktoken",
    "tiktoken.model", "*.spm",
    /* chat templates */
    "*.jinja", "chat_template.json",
    /* code */
    "*.py", NULL};

/* In any case. */
static const char *const documents[] = {
    "*licen[sc]e*", "*notice*",       "copying*",         "*copyright*",
    "*use_policy*", "*use-policy*",   "*acceptable_use*", "*acceptable-use*",
    "eula*",        "*terms_of_use*", "*terms-of-use*",   "*agreement*",
    "authors*",     "patents*",       "readme*",          NULL};

static bool matches(const char *const *pattern, const char *name, int flags)
{
    for (; pattern && *pattern; pattern++)
        if (fnmatch(*pattern, name, flags) == 0)
            return true;
    return false;
}

/* Note the name of what is not carried, unless it is hidden or weights. */
static int leave(struct fm_hfdir *dir, const char *name, bool directory, struct fm_err *err)
{
    char text[NAME_MAX + 2];
    if (name[0] == '.' || (!directory && fm_carried_is_weights(name)))
        return FM_OK;
    if (dir->left_count == FM_CARRIED_MAX) {
        dir->left_more++;
        return FM_OK;
    }
    snprintf(text, sizeof text, "%s%s", name, directory ? "/" : "");
    char **to = &dir->left[dir->left_count];
    dir->left_count += (*to = fm_strdup(text, err)) != NULL;
    return *to ? FM_OK : err->code;
}

/* FM_ECONFIG if the link `name` leads to a file outside the checkpoint. */
static int check_link(const struct fm_hfdir *dir, const char *name, struct fm_err *err)
{
    char link[PATH_MAX], target[PATH_MAX], home[PATH_MAX];
    int n = snprintf(link, sizeof link, "%s/%s", dir->path, name);
    if (n < 0 || (size_t)n >= sizeof link || !realpath(link, target) || !realpath(dir->path, home))
        return fm_fail_errno(err, "cannot follow the link '%s'", name);
    const char *slash = strrchr(target, '/');
    size_t folder = (size_t)(slash - target);
    if ((strlen(home) == folder && memcmp(target, home, folder) == 0) ||
        fm_hfcache_is_own_blob(target, home))
        return FM_OK;
    fm_fail(err, FM_ECONFIG, "'%s' is a link to '%s', outside the checkpoint", name, target);
    return fm_advise(err, FM_ADVISE_CARRY);
}

/* FM_EIO if a tool may have read the file in another state. */
static int check_state(const struct fm_hfdir *dir, const char *name, const struct stat *now,
                       struct fm_err *err)
{
    for (size_t i = 0; i < FM_HFDIR_READ; i++) {
        const struct stat *then = &dir->read[i];
        if (strcmp(name, fm_hfdir_read[i]) == 0 &&
            (then->st_dev != now->st_dev || then->st_ino != now->st_ino ||
             then->st_size != now->st_size || then->st_mtim.tv_sec != now->st_mtim.tv_sec ||
             then->st_mtim.tv_nsec != now->st_mtim.tv_nsec))
            return fm_fail(err, FM_EIO, "'%s' was changed while it was read; run the command again",
                           name);
    }
    return FM_OK;
}

/* Read the bytes that the stream will have: of config.json, the text that the model was read
 * from. */
static int read_text(struct fm_carried *c, const struct fm_hfdir *dir, struct fm_err *err)
{
    struct fm_file f = {0};
    size_t size = 0;
    if (strcmp(c->name, "config.json") == 0)
        return (c->text = fm_strdup(dir->config, err)) ? FM_OK : err->code;
    int rc = fm_file_open_at(&f, dir->fd, c->name, true, err);
    if (!rc && f.size != c->size)
        rc = fm_fail(err, FM_EIO, "'%s' was changed while it was read; run the command again",
                     c->name);
    if (!rc)
        rc = fm_file_slurp(&f, (size_t)c->size, &c->text, &size, err);
    fm_file_close(&f);
    if (!rc && fm_genuine_text(c->text, size, false, err))
        rc = fm_within(err, "%s", c->name);
    return rc;
}

static int add(struct fm_hfdir *dir, const char *name, const char *const *pattern,
               struct fm_carried_sum *sum, struct fm_err *err)
{
    struct stat link, st;
    bool asked = matches(pattern, name, 0);
    bool taken = !fm_carried_refuse(name) &&
                 (asked || matches(wanted, name, 0) || matches(documents, name, FNM_CASEFOLD));
    if (fstatat(dir->fd, name, &link, AT_SYMLINK_NOFOLLOW) != 0 ||
        fstatat(dir->fd, name, &st, 0) != 0)
        return taken ? fm_fail_errno(err, "cannot examine '%s'", name)
                     : leave(dir, name, false, err);
    if (!taken || !S_ISREG(st.st_mode))
        return leave(dir, name, S_ISDIR(st.st_mode), err);
    if (S_ISLNK(link.st_mode) && !asked && check_link(dir, name, err))
        return err->code;
    bool config = strcmp(name, "config.json") == 0;
    uint64_t size = config ? dir->config_bytes : (uint64_t)st.st_size;
    if (fm_carried_add(sum, name, size, err) || check_state(dir, name, &st, err))
        return err->code;
    struct fm_carried *c = &dir->carried[dir->carried_count];
    if (!(c->name = fm_strdup(name, err)))
        return err->code;
    c->size = size;
    dir->carried_count++;
    return read_text(c, dir, err);
}

/* A pattern that matches no file is an error; otherwise exports, perhaps days later, would lack the
 * file. */
static int check_patterns(const struct fm_hfdir *dir, const char *const *pattern,
                          struct fm_err *err)
{
    for (; pattern && *pattern; pattern++) {
        bool found = false;
        for (size_t i = 0; i < dir->carried_count && !found; i++)
            found = fnmatch(*pattern, dir->carried[i].name, 0) == 0;
        if (!found)
            return fm_fail(err, FM_EUSAGE, "'%s' has no file '%s' that can be copied", dir->path,
                           *pattern);
    }
    return FM_OK;
}

int fm_carry_list(struct fm_hfdir *dir, const char *const *pattern, struct fm_err *err)
{
    struct fm_carried_sum sum = {0};
    int rc = FM_OK;
    dir->carried = fm_alloc(FM_CARRIED_MAX, sizeof *dir->carried, "the carried files", err);
    if (!dir->carried)
        return err->code;
    struct fm_file_list list;
    if (fm_file_list(&list, dir->fd, dir->path, err))
        return err->code;
    for (size_t i = 0; i < list.count && !rc; i++)
        rc = add(dir, list.name[i], pattern, &sum, err);
    fm_file_list_release(&list);
    fm_names_sort(dir->carried, dir->carried_count, sizeof *dir->carried);
    fm_names_sort(dir->left, dir->left_count, sizeof *dir->left);
    if (!rc)
        return check_patterns(dir, pattern, err);
    return fm_within(err, "%s", dir->path);
}
