/*
 * A state file is saved like an output, by rename, so a run that is killed while it saves still has
 * the previous state.  It is valid only for the same run: its version and its digest of options and
 * inputs must match, and a digest of the arrays detects damage.  The interval between saves is
 * twenty times the cost of a save, between one second and twenty.
 */
#include "lib/state/journal.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"

#define KEY_TOOL "fm.state"
#define KEY_VERSION "fm.version"
#define KEY_PARAMS "fm.params"
#define KEY_DATA "fm.data"

int fm_journal_params(struct fm_digest *params, struct fm_err *err, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return fm_fail(err, FM_ENOMEM, "no memory for the parameters of the state file");
    *params = fm_digest_of(text, (size_t)n);
    free(text);
    return FM_OK;
}

static uint64_t bytes_of(const struct fm_journal_item *item)
{
    return item->count * (uint64_t)(fm_dtype_bits(item->dtype) / 8);
}

/* Pass the bytes of an item, in pieces, to `take`, which hashes or writes them. */
static int each_chunk(const struct fm_journal_item *item,
                      int (*take)(void *arg, const void *src, size_t size, struct fm_err *err),
                      void *arg, struct fm_err *err)
{
    uint64_t bytes = bytes_of(item);
    if (item->data)
        return take(arg, item->data, (size_t)bytes, err);
    const struct fm_store *store = item->store;
    assert(bytes == (uint64_t)store->record * store->count);
    char *spare = fm_alloc(store->record, 1, "a record of state", err);
    int rc = spare ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; !rc && i < store->count; i++) {
        void *record = NULL;
        rc = fm_store_get(store, i, 0, store->record, &record, spare, err);
        if (!rc)
            rc = take(arg, record, store->record, err);
    }
    free(spare);
    return rc;
}

static int hash_chunk(void *arg, const void *src, size_t size, struct fm_err *err)
{
    (void)err;
    fm_hasher_add(arg, src, size);
    return FM_OK;
}

static int write_chunk(void *arg, const void *src, size_t size, struct fm_err *err)
{
    return fm_output_write(arg, src, size, err);
}

static int hash_items(char hex[FM_DIGEST_HEX], const struct fm_journal_item *item, size_t items,
                      struct fm_err *err)
{
    struct fm_hasher *hasher = fm_hasher_new();
    if (!hasher)
        return fm_fail(err, FM_ENOMEM, "no memory for a digest");
    int rc = FM_OK;
    for (size_t i = 0; !rc && i < items; i++)
        rc = each_chunk(&item[i], hash_chunk, hasher, err);
    struct fm_digest digest = fm_hasher_done(hasher);
    fm_digest_hex(hex, &digest);
    fm_hasher_free(hasher);
    return rc;
}

static int write_items(struct fm_output *out, const struct fm_journal_item *item, size_t items,
                       const char *const *metadata, struct fm_err *err)
{
    struct fm_tensor tensor[FM_JOURNAL_ITEMS_MAX] = {{0}};
    char *header = NULL;
    uint64_t header_bytes, file_bytes;
    for (size_t i = 0; i < items; i++) {
        tensor[i] = (struct fm_tensor){.name = item[i].name, .dtype = item[i].dtype, .dims = 1};
        tensor[i].shape[0] = item[i].count;
    }
    int rc = FM_OK;
    if (fm_safetensors_plan(tensor, items, metadata, &header, &header_bytes, &file_bytes, err) ||
        fm_output_reserve(out, file_bytes, err) ||
        fm_output_write(out, header, (size_t)header_bytes, err))
        rc = err->code;
    for (size_t i = 0; !rc && i < items; i++) {
        const struct fm_journal_item *it =
            fm_names_among(item, items, sizeof *item, tensor[i].name);
        assert(it && tensor[i].offset == out->at && tensor[i].size == bytes_of(it));
        rc = each_chunk(it, write_chunk, out, err);
    }
    free(header);
    return rc;
}

bool fm_journal_is_own(const char *path, const char *tool)
{
    struct fm_journal j = {.file.fd = -1};
    struct fm_err unused = {0};
    if (fm_file_open(&j.file, path, &unused))
        return false;
    bool own = false;
    if (!fm_safetensors_open(&j.st, &j.file, 0, j.file.size, &unused)) {
        const char *has_tool = fm_safetensors_metadata(&j.st, KEY_TOOL);
        own = has_tool && strcmp(has_tool, tool) == 0;
        fm_safetensors_close(&j.st);
    }
    fm_file_close(&j.file);
    return own;
}

/* Replace an older state, but never a file that was created in the meantime. */
static int open_state(struct fm_output *out, const char *path, const char *tool, struct fm_err *err)
{
    struct stat st;
    bool own = fm_journal_is_own(path, tool);
    if (!own && lstat(path, &st) == 0)
        return fm_fail(err, FM_ECREATE,
                       "'%s' exists and is not a state file of %s; choose another name", path,
                       tool);
    return fm_output_open(out, path, true, own, err);
}

static int save(const char *path, const char *tool, const struct fm_digest *params,
                const struct fm_journal_item *item, size_t items, struct fm_err *err)
{
    assert(items <= FM_JOURNAL_ITEMS_MAX);
    char params_hex[FM_DIGEST_HEX], data_hex[FM_DIGEST_HEX];
    fm_digest_hex(params_hex, params);
    int rc = hash_items(data_hex, item, items, err);
    if (rc)
        return rc;
    const char *metadata[] = {KEY_TOOL,   tool,     KEY_VERSION, FM_VERSION, KEY_PARAMS,
                              params_hex, KEY_DATA, data_hex,    NULL};
    struct fm_output out;
    rc = open_state(&out, path, tool, err);
    if (rc)
        return fm_within(err, "state file");
    rc = fm_output_end(&out, write_items(&out, item, items, metadata, err), err);
    return rc ? fm_within(err, "state file '%s'", path) : FM_OK;
}

int fm_journal_save(struct fm_comm *comm, const char *path, const char *tool,
                    const struct fm_digest *params, const struct fm_journal_item *item,
                    size_t items, struct fm_err *err)
{
    int rc = fm_comm_rank(comm) == 0 ? save(path, tool, params, item, items, err) : FM_OK;
    return fm_comm_agree(comm, rc, err);
}

static int check_metadata(const struct fm_journal *j, const char *path, const char *tool,
                          const struct fm_digest *params, struct fm_err *err)
{
    const char *has_tool = fm_safetensors_metadata(&j->st, KEY_TOOL);
    const char *has_version = fm_safetensors_metadata(&j->st, KEY_VERSION);
    const char *has_params = fm_safetensors_metadata(&j->st, KEY_PARAMS);
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, params);
    if (!has_tool || !has_version || !has_params || !fm_safetensors_metadata(&j->st, KEY_DATA))
        return fm_fail(err, FM_EFORMAT, "'%s' is not a state file of this suite", path);
    if (strcmp(has_tool, tool) != 0)
        return fm_fail(err, FM_ECONFIG, "state file '%s' belongs to %s; this is %s", path, has_tool,
                       tool);
    if (strcmp(has_version, FM_VERSION) != 0)
        return fm_fail(
            err, FM_EFORMAT,
            "state file '%s' is of version %s of the fm suite, but this is %s; finish the run "
            "with that version, or remove the file to start anew",
            path, has_version, FM_VERSION);
    if (strcmp(has_params, hex) != 0)
        return fm_fail(err, FM_ECONFIG,
                       "state file '%s' belongs to a run with other inputs or options; repeat that "
                       "command, or remove the file to start anew",
                       path);
    return FM_OK;
}

/* List the lengths of the arrays, of which a valid file has at most FM_JOURNAL_ITEMS_MAX. */
static void list_counts(struct fm_journal *j)
{
    for (size_t i = 0; i < j->st.count && i < FM_JOURNAL_ITEMS_MAX; i++) {
        const struct fm_tensor *t = &j->st.tensor[i];
        if (strlen(t->name) > FM_JOURNAL_NAME)
            continue;
        snprintf(j->has[i].name, sizeof j->has[i].name, "%s", t->name);
        j->has[i].count = fm_tensor_count(t);
    }
}

static int open_file(struct fm_journal *j, const char *path, const char *tool,
                     const struct fm_digest *params, bool *found, struct fm_err *err)
{
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return FM_OK;
    int rc = fm_file_open(&j->file, path, err);
    if (rc)
        return rc;
    rc = fm_safetensors_open(&j->st, &j->file, 0, j->file.size, err);
    if (!rc) {
        rc = check_metadata(j, path, tool, params, err);
        if (rc)
            fm_safetensors_close(&j->st);
    }
    if (rc) {
        fm_file_close(&j->file);
        *j = (struct fm_journal){.file.fd = -1};
        return rc;
    }
    list_counts(j);
    *found = true;
    return FM_OK;
}

int fm_journal_open(struct fm_journal *j, struct fm_comm *comm, const char *path, const char *tool,
                    const struct fm_digest *params, bool *found, struct fm_err *err)
{
    int rc = FM_OK;
    *j = (struct fm_journal){.file.fd = -1};
    *found = false;
    if (!path)
        return FM_OK;
    if (fm_comm_rank(comm) == 0)
        rc = open_file(j, path, tool, params, found, err);
    rc = fm_comm_agree(comm, rc, err);
    if (!rc)
        rc = fm_comm_tell(comm, found, sizeof *found, err);
    if (!rc && *found)
        rc = fm_comm_tell(comm, j->has, sizeof j->has, err);
    j->comm = comm;
    return rc;
}

void fm_journal_close(struct fm_journal *j)
{
    if (!j->file.path) /* no file was found, or another rank opened it */
        return;
    fm_safetensors_close(&j->st);
    fm_file_close(&j->file);
    *j = (struct fm_journal){.file.fd = -1};
}

uint64_t fm_journal_count(const struct fm_journal *j, const char *name)
{
    for (size_t i = 0; i < FM_JOURNAL_ITEMS_MAX; i++)
        if (strcmp(j->has[i].name, name) == 0)
            return j->has[i].count;
    return 0;
}

static int read_store(const struct fm_journal *j, const struct fm_tensor *t,
                      const struct fm_store *store, struct fm_err *err)
{
    char *spare = fm_alloc(store->record, 1, "a record of state", err);
    int rc = spare ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; !rc && i < store->count; i++) {
        rc = fm_file_read(&j->file, t->offset + i * store->record, spare, store->record, err);
        if (!rc)
            rc = fm_store_put(store, i, 0, store->record, spare, err);
    }
    free(spare);
    return rc;
}

static int read_file(const struct fm_journal *j, const struct fm_journal_item *item, size_t items,
                     struct fm_err *err)
{
    if (j->st.count != items)
        return fm_fail(err, FM_EFORMAT, "state file '%s' has %zu arrays, not %zu", j->file.path,
                       j->st.count, items);
    int rc = FM_OK;
    for (size_t i = 0; !rc && i < items; i++) {
        const struct fm_tensor *t = fm_safetensors_find(&j->st, item[i].name);
        if (!t || t->dtype != item[i].dtype || fm_tensor_count(t) != item[i].count)
            return fm_fail(err, FM_EFORMAT,
                           "state file '%s': array '%s' is missing, or has another type or size",
                           j->file.path, item[i].name);
        if (!item[i].data)
            rc = read_store(j, t, item[i].store, err);
        else
            rc = fm_file_read(&j->file, t->offset, item[i].data, (size_t)t->size, err);
    }
    /* The arrays are already in place, but their digest says whether they may be used. */
    char hex[FM_DIGEST_HEX];
    if (!rc)
        rc = hash_items(hex, item, items, err);
    if (!rc && strcmp(hex, fm_safetensors_metadata(&j->st, KEY_DATA)) != 0)
        rc = fm_fail(err, FM_EFORMAT, "state file '%s' is damaged; remove it to start anew",
                     j->file.path);
    return rc;
}

/* Broadcast rank 0's records of a store. */
static int tell_store(struct fm_comm *comm, const struct fm_store *store, struct fm_err *err)
{
    char *spare = fm_alloc(store->record, 1, "a record of state", err);
    int rc = spare ? FM_OK : FM_ENOMEM;
    for (size_t i = 0; !rc && i < store->count; i++) {
        void *record = NULL;
        rc = fm_store_get(store, i, 0, store->record, &record, spare, err);
        if (!rc)
            rc = fm_comm_tell(comm, record, store->record, err);
        if (!rc)
            rc = fm_store_put(store, i, 0, store->record, record, err);
    }
    free(spare);
    return rc;
}

static int tell_items(struct fm_comm *comm, const struct fm_journal_item *item, size_t items,
                      struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; comm && !rc && i < items; i++) {
        if (!item[i].data)
            rc = tell_store(comm, item[i].store, err);
        else
            rc = fm_comm_tell(comm, item[i].data, (size_t)bytes_of(&item[i]), err);
    }
    return rc;
}

int fm_journal_read(const struct fm_journal *j, const struct fm_journal_item *item, size_t items,
                    struct fm_err *err)
{
    int rc = fm_comm_rank(j->comm) == 0 ? read_file(j, item, items, err) : FM_OK;
    rc = fm_comm_agree(j->comm, rc, err);
    return rc ? rc : tell_items(j->comm, item, items, err);
}

int fm_journal_remove(const char *path, const char *tool, struct fm_err *err)
{
    if (path && fm_journal_is_own(path, tool) && unlink(path) != 0 && errno != ENOENT)
        return fm_fail_errno(err, "cannot remove the state file '%s'", path);
    return FM_OK;
}

bool fm_journal_due(const struct fm_journal_clock *clock)
{
    assert(clock->cost >= 0);
    double wait = 20 * clock->cost;
    wait = wait < 1 ? 1 : wait > 20 ? 20 : wait;
    return fm_clock_now() - clock->saved >= wait;
}

void fm_journal_saved(struct fm_journal_clock *clock, double began)
{
    clock->saved = fm_clock_now();
    clock->cost = clock->saved - began;
}
