/*
 * Digests prove that bytes are as they were written.  This file checks that what was written is
 * meaningful, using the readers that the tools use themselves (lib/stage), so that the tools accept
 * a bundle that verifies.  A member whose digest differs is not read: one fault should give one
 * line.
 */
#include "lib/verify/verify_contents.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "formats/json/json.h"
#include "lib/masks/methods.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/volumes.h"

static size_t place_of(const struct fm_bundle_job *j, const char *member)
{
    size_t place = 0;
    while (place < j->bundle.members && strcmp(j->bundle.member[place].name, member) != 0)
        place++;
    return place;
}

/* Add a finding for an error of a reader; errors of memory and disk end the check. */
static int note(struct fm_bundle_job *j, const char *member, int rc, struct fm_err *err)
{
    return rc ? fm_verifier_note(j->v, place_of(j, member), FM_EFORMAT, member, err) : FM_OK;
}

/* True if the member exists and its digest matches. */
static bool is_good(const struct fm_bundle_job *j, const char *name)
{
    const struct fm_member *m = fm_bundle_find(&j->bundle, name);
    return m && j->good[m - j->bundle.member];
}

static int compare_config(struct fm_bundle_job *j, const void *text, size_t size,
                          struct fm_err *err)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(j->bundle.manifest, "model");
    struct fm_digest digest = fm_digest_of(text, size);
    char hex[FM_DIGEST_HEX];
    const char *want;
    fm_digest_hex(hex, &digest);
    int rc = fm_json_get_string(model, "config", &want, err);
    if (rc)
        return rc;
    if (strcmp(hex, want) != 0)
        return fm_fail(err, FM_EFORMAT, "digest is %s, but the manifest's model has %s", hex, want);
    return fm_stage_model_fits(&j->bundle, &j->config, err);
}

static int check_config(struct fm_bundle_job *j, struct fm_err *err)
{
    static const char name[] = FM_MEMBER_CARRIED "config.json";
    void *text = NULL;
    size_t size;
    int rc = FM_OK;
    if (fm_bundle_read(&j->bundle, fm_bundle_find(&j->bundle, name), &text, &size, err) ||
        fm_config_parse(&j->config, text, size, err) ||
        note(j, name, compare_config(j, text, size, err), err))
        rc = err->code;
    free(text);
    fm_verifier_count(j->v, 1, 0);
    return rc;
}

static int check_ranking(struct fm_bundle_job *j, struct fm_err *err)
{
    struct fm_ranking r = {0};
    int rc = fm_ranking_open(&r, &j->bundle, err);
    fm_ranking_release(&r);
    fm_verifier_count(j->v, (uint64_t)j->config.M * (uint64_t)j->config.E, 0);
    return note(j, FM_MEMBER_RANKING, rc, err);
}

static void check_boundaries(struct fm_bundle_job *j, const struct fm_budgets *b)
{
    for (int i = 0; i < b->actions.count + b->masks.count; i++)
        if (fm_segments_at(&j->seg, fm_budgets_bound(b, i)) < 0)
            fm_verifier_find(j->v, 0, FM_EFORMAT, FM_MEMBER_SEGMENTS,
                             "width %" PRIu32 " of %s is not a boundary", fm_budgets_bound(b, i),
                             i < b->actions.count ? "the actions" : "a uniform export");
}

static void find_budget(void *self, int budget, const char *what)
{
    struct fm_bundle_job *j = self;
    char item[32];
    snprintf(item, sizeof item, FM_MEMBER_MASKS ": budget %d", budget);
    fm_verifier_find(j->v, place_of(j, FM_MEMBER_MASKS), FM_EFORMAT, item, "%s", what);
}

static int check_masks(struct fm_bundle_job *j, struct fm_err *err)
{
    struct fm_budgets_notes notes = {.found = find_budget, .self = j};
    int rc = fm_budgets_examine(&j->budgets, &j->bundle, &notes, err);
    j->masks = !rc;
    if (j->masks && j->segments)
        check_boundaries(j, &j->budgets);
    fm_verifier_count(j->v, (uint64_t)j->budgets.masks.count, 0);
    return note(j, FM_MEMBER_MASKS, notes.count && rc == FM_EFORMAT ? FM_OK : rc, err);
}

static int check_adapter(struct fm_bundle_job *j, struct fm_err *err)
{
    struct fm_adapter a = {0};
    int rc = fm_lorafile_open(&a, &j->bundle, err);
    if (!rc && j->masks)
        rc = fm_lorafile_check(&a, &j->bundle, &j->budgets.masks, err);
    fm_adapter_release(&a);
    fm_verifier_count(j->v, 1, 0);
    return note(j, FM_MEMBER_ADAPTER, rc, err);
}

/* Count the tensors outside the experts that the checksums list. */
static int count_nonexperts(const struct fm_bundle_job *j, struct fm_extra *extra,
                            struct fm_nonexpert *nonexpert, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 0; i < j->seg.tensors && !rc; i++) {
        const struct fm_tensor *t = &j->seg.tensor[i].t;
        if (!fm_extra_add(extra, &j->config, t))
            rc = fm_nonexpert_add(nonexpert, &j->config, t, j->seg.packed.storage, err);
    }
    return rc;
}

static int check_others(const struct fm_bundle_job *j, struct fm_err *err)
{
    struct fm_extra extra = {0};
    const struct fm_extra *said = &j->model.extra;
    struct fm_nonexpert nonexpert = {0};
    const struct fm_nonexpert *known = &j->model.nonexpert;
    uint64_t elements = 0, needed = fm_nonexpert_elements(&j->config);
    char have[FM_EXTRA_TEXT], want[FM_EXTRA_TEXT];
    int rc = count_nonexperts(j, &extra, &nonexpert, err);
    if (rc)
        return rc;
    fm_extra_print(have, &extra);
    fm_extra_print(want, said);
    if (extra.tensors != said->tensors || extra.bytes != said->bytes || extra.seen != said->seen)
        return fm_fail(err, FM_EFORMAT,
                       "has %" PRIu64 " tensors outside the decoder layers in %" PRIu64
                       " bytes (layers '%s'), but the manifest says %" PRIu64 " in %" PRIu64
                       " ('%s')",
                       extra.tensors, extra.bytes, have, said->tensors, said->bytes, want);
    for (int i = 0; i < FM_DTYPES; i++)
        elements += nonexpert.elements[i];
    if (elements != needed)
        return fm_fail(err, FM_EFORMAT,
                       "tensors outside the experts have %" PRIu64
                       " elements, but the model has %" PRIu64,
                       elements, needed);
    if (fm_nonexpert_equal(&nonexpert, known))
        return fm_extra_check(&extra, &j->config, err);
    if (nonexpert.unread_tensors == known->unread_tensors &&
        nonexpert.unread_bytes == known->unread_bytes)
        return fm_fail(err, FM_EFORMAT, "has tensors of types that the manifest does not list");
    return fm_fail(err, FM_EFORMAT,
                   "has %" PRIu64 " tensors in %" PRIu64 " bytes that the model does not use, but "
                   "the manifest says %" PRIu64 " in %" PRIu64,
                   nonexpert.unread_tensors, nonexpert.unread_bytes, known->unread_tensors,
                   known->unread_bytes);
}

static int read_segments(struct fm_bundle_job *j, struct fm_err *err)
{
    int rc = fm_segments_read(&j->seg, &j->bundle, &j->config, err);
    j->segments = !rc;
    if (!rc && j->seg.dtype != j->model.dtype)
        rc = fm_fail(err, FM_EFORMAT, "is for %s weights, but the manifest's model has %s",
                     fm_dtype_name(j->seg.dtype), fm_dtype_name(j->model.dtype));
    if (!rc)
        rc = check_others(j, err);
    return note(j, FM_MEMBER_SEGMENTS, rc, err);
}

/* Check that the members required at this stage exist. */
static void check_presence(struct fm_bundle_job *j)
{
    const char *stage = fm_json_string_value(j->bundle.manifest, "stage");
    bool packed = strcmp(stage, "pack") == 0;
    const char *const need[] = {FM_MEMBER_RANKING,
                                strcmp(stage, "rank") == 0 ? NULL : FM_MEMBER_MASKS,
                                packed ? FM_MEMBER_SEGMENTS : NULL,
                                packed ? FM_VOLUMES_REST : NULL,
                                packed && j->model.extra.tensors ? FM_VOLUMES_EXTRA : NULL,
                                strcmp(stage, "recover") == 0 ? FM_MEMBER_ADAPTER : NULL};
    for (size_t i = 0; i < sizeof need / sizeof *need; i++)
        if (need[i] && !fm_bundle_find(&j->bundle, need[i]))
            fm_verifier_find(j->v, 0, FM_EFORMAT, need[i], "is missing in a stream of fm-%s",
                             stage);
    if (fm_json_has(j->bundle.manifest, "adapter") &&
        !fm_bundle_find(&j->bundle, FM_MEMBER_ADAPTER))
        fm_verifier_find(j->v, 0, FM_EFORMAT, FM_MEMBER_ADAPTER,
                         "is missing, but the manifest has an adapter");
    if (!j->model.extra.tensors && fm_bundle_find(&j->bundle, FM_VOLUMES_EXTRA))
        fm_verifier_find(j->v, 0, FM_EFORMAT, FM_VOLUMES_EXTRA,
                         "exists, but the manifest lists no extra tensors");
    for (int m = 0; packed && m < j->config.M; m++) {
        char name[FM_VOLUMES_NAME_BYTES];
        fm_volumes_member(name, j->config.moe[m]);
        if (!fm_bundle_find(&j->bundle, name))
            fm_verifier_find(j->v, 0, FM_EFORMAT, name, "is missing");
    }
    j->v->report->kind = packed ? "bundle" : "stage";
}

/* ---- facts stated twice ---- */

/*
 * Facts that a manifest states twice.  The history of a stream is written by the tools and cannot
 * be computed again from the members; but if it repeats the value of another key or member, the two
 * must agree.
 */

#define MANIFEST FM_MEMBER_MANIFEST

static const cJSON *get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* "options" or "result" of a tool's entry; NULL if the history has no such entry. */
static const cJSON *part_of(const struct fm_bundle_job *j, const char *tool, const char *part)
{
    return get(fm_stage_history_of(&j->bundle, tool), part);
}

/* Report a number or string of the history that differs from its copy in `where`, if both exist. */
static void compare(struct fm_bundle_job *j, const char *tool, const char *key, const cJSON *said,
                    const cJSON *other, const char *where)
{
    if (!said || !other || cJSON_Compare(said, other, true))
        return;
    fm_verifier_find(j->v, 0, FM_EFORMAT, MANIFEST, "'%s' in %s's history differs from %s", key,
                     tool, where);
}

static void compare_count(struct fm_bundle_job *j, const char *tool, const char *key, int count,
                          const char *where)
{
    const cJSON *said = get(part_of(j, tool, "result"), key);
    if (said && !(cJSON_IsNumber(said) && said->valuedouble == count))
        fm_verifier_find(j->v, 0, FM_EFORMAT, MANIFEST,
                         "'%s' of %s's history is not %d, the number of %s", key, tool, count,
                         where);
}

/* What was trained; "train" is absent for an adapter of experts. */
static void check_train(struct fm_bundle_job *j, const cJSON *options, const cJSON *adapter)
{
    const cJSON *said = get(options, "train"), *other = get(adapter, "train");
    if (!options || !adapter || (!said && !other))
        return;
    if (said && other)
        compare(j, "fm-recover", "train", said, other, "'adapter'");
    else
        fm_verifier_find(j->v, 0, FM_EFORMAT, MANIFEST, "'train' is only in %s",
                         said ? "fm-recover's history" : "'adapter'");
}

static void compare_adapter(struct fm_bundle_job *j)
{
    static const char tool[] = "fm-recover";
    const cJSON *adapter = get(j->bundle.manifest, "adapter");
    const cJSON *options = part_of(j, tool, "options"), *result = part_of(j, tool, "result");
    compare(j, tool, "lora_rank", get(options, "lora_rank"), get(adapter, "rank"), "'adapter'");
    compare(j, tool, "lora_alpha", get(options, "lora_alpha"), get(adapter, "alpha"), "'adapter'");
    check_train(j, options, adapter);
    compare(j, tool, "strategy", get(options, "strategy"), get(adapter, "strategy"), "'adapter'");
    compare(j, tool, "mask", get(result, "mask"), get(adapter, "budget_index"), "'adapter'");
}

/* Check that all masks of a family were made by the method in fm-train's entry. */
static void check_method(struct fm_bundle_job *j)
{
    static const char tool[] = "fm-train";
    const char *method = fm_json_string_value(part_of(j, tool, "options"), "method");
    const struct fm_masks *masks = &j->budgets.masks;
    for (int b = 0; method && b < masks->count; b++) {
        const char *own = masks->mask[b].method->name;
        if (strcmp(method, own) == 0)
            continue;
        fm_verifier_find(j->v, 0, FM_EFORMAT, MANIFEST,
                         "budget %d: method is '%s', but fm-train's history records '%.32s'", b,
                         own, method);
    }
}

/* Check that all masks were measured on the same number of positions and by the same tool. */
static void check_quality(struct fm_bundle_job *j)
{
    const struct fm_masks *masks = &j->budgets.masks;
    const struct fm_quality *first = NULL;
    bool adapted = get(j->bundle.manifest, "adapter") != NULL;
    for (int b = 0; b < masks->count; b++) {
        const struct fm_quality *q = &masks->mask[b].quality;
        if (q->positions == 0)
            continue;
        first = first ? first : q;
        if (q->positions != first->positions || q->recovered != first->recovered)
            fm_verifier_find(
                j->v, 0, FM_EFORMAT, MANIFEST,
                "budget %d: quality was not measured on the same tokens by the same tool as before",
                b);
        if (q->recovered && !adapted)
            fm_verifier_find(
                j->v, 0, FM_EFORMAT, MANIFEST,
                "budget %d: quality was measured with an adapter, but the file has no adapter", b);
    }
}

/* Check that no mask splits a channel group of the ranking. */
static void check_group(struct fm_bundle_job *j)
{
    const struct fm_masks *masks = &j->budgets.masks;
    struct fm_err err = {0};
    int group;
    if (fm_ranking_group(&group, &j->bundle, masks->I, &err)) {
        fm_verifier_find(j->v, 0, FM_EFORMAT, MANIFEST, "%s", err.text);
        return;
    }
    for (int b = 0; b < masks->count; b++)
        for (int x = 0; x < masks->M * masks->E; x++)
            if (fm_masks_widths(masks, b)[x] % (uint32_t)group) {
                fm_verifier_find(
                    j->v, 0, FM_EFORMAT, MANIFEST,
                    "budget %d: a width of %u splits a group of %d channels (the size of "
                    "groups in fm-rank's history)",
                    b, fm_masks_widths(masks, b)[x], group);
                return;
            }
}

/* Check that facts stated twice agree: in two places of the manifest, or in the manifest and a
 * member. */
static void check_claims(struct fm_bundle_job *j)
{
    const cJSON *trained = part_of(j, "fm-train", "options");
    compare_adapter(j);
    if (j->masks) {
        compare(j, "fm-train", "width_multiple", get(trained, "width_multiple"),
                get(get(j->bundle.manifest, "actions"), "multiple"), "'actions'");
        compare_count(j, "fm-train", "masks", j->budgets.masks.count, "budgets");
        check_method(j);
        check_group(j);
        check_quality(j);
    }
    if (j->segments)
        compare_count(j, "fm-pack", "segments", (int)j->seg.S, "segments");
}

int fm_verify_contents(struct fm_bundle_job *j, struct fm_err *err)
{
    if (fm_stage_model_read(&j->model, &j->bundle, err) ||
        (is_good(j, FM_MEMBER_CARRIED "config.json") && check_config(j, err)))
        return err->code;
    if (!is_good(j, FM_MEMBER_CARRIED "config.json"))
        return FM_OK;
    check_presence(j);
    if ((is_good(j, FM_MEMBER_SEGMENTS) && read_segments(j, err)) ||
        (is_good(j, FM_MEMBER_RANKING) && check_ranking(j, err)) ||
        (is_good(j, FM_MEMBER_MASKS) && check_masks(j, err)) ||
        (is_good(j, FM_MEMBER_ADAPTER) && check_adapter(j, err)))
        return err->code;
    check_claims(j);
    return FM_OK;
}
