/*
 * The digests are compared first, which is fast; the weights are read only if they agree.  The
 * input's manifest represents the input: it has the digests of all members and their history.
 */
#include "lib/stage/uptodate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/bundle/partname.h"
#include "formats/file/text.h"
#include "formats/json/json.h"
#include "lib/base/clock.h"
#include "lib/base/units.h"
#include "lib/model/model.h"
#include "lib/stage/stage.h"

#define KEY "inputs"
#define MEMORY ((uint64_t)64 << 20) /* keeps no layers: weights are only summed */

static const cJSON *last_entry(const struct fm_bundle *b)
{
    const cJSON *history = cJSON_GetObjectItemCaseSensitive(b->manifest, "history");
    return cJSON_GetArrayItem(history, cJSON_GetArraySize(history) - 1);
}

static bool says(const cJSON *entry, const char *key, const char *text)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, key));
    return value && strcmp(value, text) == 0;
}

/* Open the output of an earlier run, in one file or in parts; false if it is missing or cannot
 * be read. */
static bool open_output(struct fm_bundle *b, const char *path)
{
    struct fm_err none = {0};
    char *first = access(path, F_OK) == 0 ? NULL : fm_partname_find(path, &none);
    const char *there = first ? first : path;
    *b = (struct fm_bundle){0};
    bool open = access(there, F_OK) == 0 && !fm_stage_open(b, there, NULL, &none);
    free(first);
    return open;
}

bool fm_uptodate_is_own(const char *path, const char *tool)
{
    struct fm_bundle b = {0};
    bool own = path && strcmp(path, "-") != 0 && open_output(&b, path) &&
               says(last_entry(&b), "tool", tool) && cJSON_HasObjectItem(last_entry(&b), KEY);
    fm_bundle_close(&b);
    return own;
}

static void add_digest(struct fm_text *t, const char *what, const struct fm_digest *digest)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, digest);
    fm_text_printf(t, "%s %s\n", what, hex);
}

static int add_carried(struct fm_text *t, const struct fm_hfdir *dir, struct fm_err *err)
{
    for (size_t i = 0; i < dir->carried_count; i++) {
        const struct fm_carried *c = &dir->carried[i];
        char *data = NULL;
        size_t size;
        int rc = fm_hfdir_carry(dir, c, &data, &size, err);
        if (rc)
            return rc;
        struct fm_digest digest = fm_digest_of(data, size);
        fm_text_add(t, c->name, strlen(c->name));
        add_digest(t, "", &digest);
        free(data);
    }
    return FM_OK;
}

static int digest_inputs(char hex[FM_DIGEST_HEX], const struct fm_uptodate_inputs *inputs,
                         struct fm_err *err)
{
    struct fm_text t = {0};
    struct fm_digest digest;
    int rc = FM_OK;
    fm_text_printf(&t, "%s %s %s\n", inputs->tool, FM_VERSION, inputs->text ? inputs->text : "");
    if (inputs->params)
        add_digest(&t, "params", inputs->params);
    if (inputs->in) {
        char *manifest = fm_json_print(inputs->in->manifest);
        digest = fm_digest_of(manifest ? manifest : "", manifest ? strlen(manifest) : 0);
        t.failed = t.failed || !manifest;
        free(manifest);
        add_digest(&t, "stream", &digest);
    }
    if (inputs->carries)
        rc = add_carried(&t, inputs->dir, err);
    if (!rc && t.failed)
        rc = fm_fail(err, FM_ENOMEM, "no memory for the digest of the inputs");
    if (!rc) {
        digest = fm_digest_of(t.data, t.size);
        fm_digest_hex(hex, &digest);
    }
    free(t.data);
    return rc;
}

/* True if the checkpoint still has the weights that `b` was made from. */
static bool same_weights(const struct fm_bundle *b, const struct fm_run_options *run,
                         const struct fm_hfdir *dir)
{
    struct fm_weightsum made, sums;
    struct fm_model *model = NULL;
    struct fm_err none = {0};
    char bytes[32];
    uint64_t stored, written;
    bool same = !fm_stage_model_check(b, dir, &none) && !fm_stage_weights_read(&made, b, &none) &&
                !fm_model_open_dir(&model, dir, MEMORY, &none);
    if (same) {
        fm_model_bytes(model, &stored, &written);
        fm_units_bytes(bytes, stored);
        fm_run_note(run, "'%s' has these inputs and options; reading %s of weights again",
                    run->outputs.path, bytes);
    }
    same = same && !fm_model_sums(model, &sums, run->stop, &none) && sums.L == made.L &&
           memcmp(sums.sum, made.sum, ((size_t)made.L + 1) * sizeof *made.sum) == 0;
    fm_model_close(model);
    return same;
}

static bool is_current(const struct fm_uptodate *uptodate, const struct fm_run_options *run,
                       const struct fm_uptodate_inputs *inputs)
{
    struct fm_bundle b = {0};
    bool is = open_output(&b, run->outputs.path) && says(last_entry(&b), "tool", inputs->tool) &&
              says(last_entry(&b), KEY, uptodate->inputs) && same_weights(&b, run, inputs->dir);
    fm_bundle_close(&b);
    return is;
}

int fm_uptodate_check(struct fm_uptodate *uptodate, const struct fm_run_options *run,
                      const struct fm_uptodate_inputs *inputs, struct fm_err *err)
{
    *uptodate = (struct fm_uptodate){0};
    if (!run->outputs.if_changed)
        return FM_OK;
    double began = fm_clock_now();
    int rc = digest_inputs(uptodate->inputs, inputs, err);
    if (!rc && fm_comm_rank(run->machine.comm) == 0)
        uptodate->is = is_current(uptodate, run, inputs);
    uptodate->seconds = fm_clock_now() - began;
    rc = fm_comm_agree(run->machine.comm, rc, err);
    return rc ? rc : fm_comm_tell(run->machine.comm, &uptodate->is, sizeof uptodate->is, err);
}

void fm_uptodate_record(cJSON *entry, const struct fm_uptodate *uptodate)
{
    if (uptodate->inputs[0])
        fm_json_add_string(entry, KEY, uptodate->inputs);
}
