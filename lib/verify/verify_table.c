/*
 * Checks an exported directory without its bundle: every file in the table of fm-export.json has
 * its size and digest, and config.json, the index and the headers of the weight files form a
 * model.  This detects changes made after an export was written.  Whether the export was correct
 * when it was written can only be checked against its bundle.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/names.h"
#include "lib/base/pool.h"
#include "lib/export/card.h"
#include "lib/export/filetable.h"
#include "lib/model/model.h"
#include "lib/verify/verifier.h"

/* Memory for a model that is only opened: no weight is read. */
#define MEMORY ((uint64_t)64 << 20)

struct job {
    struct fm_verifier *v;
    struct fm_verify_claim claim;
    struct fm_filetable table;
};

/* ---- files ---- */

/* Read the card, whose digest is that of the part between its marks. */
static int hash_card(struct fm_filetable_entry *now, const struct job *j, struct fm_err *err)
{
    char *card = NULL;
    size_t size = 0;
    int rc = fm_file_slurp_at(j->v->dir, now->name, FM_EXPORT_CARD_MAX, &card, &size, err);
    now->bytes = size;
    if (!rc)
        rc = fm_card_digest(&now->digest, card, size, err);
    free(card);
    return rc;
}

/* Set the size of a file, and its digest if it has the size that is listed. */
static int hash_file(struct fm_filetable_entry *now, struct job *j, struct fm_err *err)
{
    uint64_t listed = now->bytes;
    struct fm_file file;
    int rc = fm_file_open_at(&file, j->v->dir, now->name, true, err);
    if (rc)
        return rc;
    now->bytes = file.size;
    if (file.size == listed)
        rc = fm_filetable_hash(&now->digest, &file, &j->v->tasks, true, err);
    if (!rc && file.size == listed)
        rc = fm_file_unchanged(&file, err);
    fm_file_close(&file);
    return rc;
}

static void check_file(void *arg, int i)
{
    struct job *j = arg;
    struct fm_verifier *v = j->v;
    const struct fm_filetable_entry *was = &j->table.entry[i];
    struct fm_filetable_entry now = *was;
    bool card = strcmp(was->name, FM_EXPORT_CARD) == 0;
    struct fm_err err = {0};
    if (!fm_taskgroup_going(&v->tasks))
        return;
    int rc = card ? hash_card(&now, j, &err) : hash_file(&now, j, &err);
    bool read = !rc && (card || now.bytes == was->bytes);
    fm_verifier_count(v, 1, read ? now.bytes : 0);
    if (rc)
        fm_verifier_find(v, (size_t)i, fm_verifier_code(&err, FM_EDIFF), was->name, "%s", err.text);
    if (rc || !fm_taskgroup_going(&v->tasks))
        return;
    if (!read)
        fm_verifier_find(v, (size_t)i, FM_EDIFF, was->name, "has %llu bytes; %s lists %llu",
                         (unsigned long long)now.bytes, FM_EXPORT_JSON,
                         (unsigned long long)was->bytes);
    else if (!fm_digest_equal(&now.digest, &was->digest))
        fm_verifier_find(v, (size_t)i, FM_EDIFF, was->name, "differs%s from its digest in %s",
                         card ? ", between its marks," : "", FM_EXPORT_JSON);
}

static uint64_t bytes_listed(const struct fm_filetable *t)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < t->entries; i++)
        bytes += t->entry[i].bytes;
    return bytes;
}

static bool is_listed(const void *self, const char *name)
{
    const struct job *j = self;
    return strcmp(name, FM_EXPORT_JSON) == 0 || fm_filetable_find(&j->table, name);
}

/* Loaders select weights by file extension, whatever the index says, so an unlisted weight file is
 * a fault; any other unlisted file is only noted. */
static void meet_other(void *self, const char *name)
{
    struct job *j = self;
    if (fm_ends_with(name, ".safetensors"))
        fm_verifier_find(j->v, j->table.entries, FM_EDIFF, name, "is not listed in %s",
                         FM_EXPORT_JSON);
    else if (j->v->options->not_listed)
        j->v->options->not_listed(j->v->options->self, name);
}

/* ---- the files as a model ---- */

/* Open the files as a model or, if the tools do not read the layout as one, as a directory of
 * tensors. */
static int open_model(const struct job *j, struct fm_err *err)
{
    const struct fm_layout *form = j->claim.layout;
    const char *path = j->v->options->target;
    const char *server = fm_json_string_value(j->claim.json, "for");
    struct fm_err none = {0};
    struct fm_model *model = NULL;
    struct fm_hfdir dir;
    int rc;
    if (server && strcmp(server, fm_server_name(FM_SERVER_VLLM)) == 0)
        fm_layouts_vllm(&form, &none); /* else `form` is unchanged: for rounded experts */
    if (form->unread) {
        rc = fm_hfdir_open(&dir, path, err);
        if (!rc)
            fm_hfdir_close(&dir);
        return rc;
    }
    rc = fm_model_open(&model, path, MEMORY, err);
    if (!rc)
        fm_model_close(model);
    return rc;
}

/* If there are no findings yet, check that the files form a model. */
static void check_structure(struct job *j)
{
    struct fm_err broken = {0};
    if (j->v->report->failed)
        return;
    int rc = open_model(j, &broken);
    fm_verifier_count(j->v, 1, 0);
    if (rc)
        fm_verifier_find(j->v, 0, fm_verifier_code(&broken, FM_EFORMAT), "structure", "%s",
                         broken.text);
}

/* ---- entry points ---- */

static int open_claim(struct job *j, struct fm_err *err)
{
    int rc = fm_verify_claim(&j->claim, j->v, err);
    if (!rc && fm_filetable_read(&j->table, j->claim.json, err))
        rc = fm_within(err, "%s/%s", j->v->options->target, FM_EXPORT_JSON);
    return rc;
}

static void close_claim(struct job *j)
{
    fm_filetable_release(&j->table);
    fm_verify_claim_release(&j->claim);
}

int fm_verify_table(struct fm_verifier *v, struct fm_err *err)
{
    struct job j = {.v = v};
    v->report->kind = "export";
    int rc = open_claim(&j, err);
    if (rc)
        goto out;
    v->report->kind = j.claim.layout->name;
    v->report->index = (int)j.claim.index;
    v->report->budget = j.claim.budget;
    fm_taskgroup_init(&v->tasks, v->run, "verify", bytes_listed(&j.table));
    fm_pool_for((int)j.table.entries, check_file, &j);
    if (fm_taskgroup_end(&v->tasks, err) ||
        fm_verify_claim_others(v, is_listed, meet_other, &j, err)) {
        rc = err->code;
        goto out;
    }
    check_structure(&j);
    fm_verifier_count(v, 0, j.claim.size); /* fm-export.json */
out:
    close_claim(&j);
    return rc;
}

int fm_verify_table_listed(const char *directory, uint64_t *files, uint64_t *bytes,
                           struct fm_err *err)
{
    const struct fm_verify_options options = {.target = directory};
    struct fm_verifier v = {.options = &options, .dir = -1};
    struct job j = {.v = &v};
    int rc = fm_file_open_directory(&v.dir, directory, err);
    if (!rc)
        rc = open_claim(&j, err);
    *files = j.table.entries + 1;
    *bytes = bytes_listed(&j.table) + j.claim.size;
    close_claim(&j);
    if (v.dir >= 0)
        close(v.dir);
    return rc;
}
