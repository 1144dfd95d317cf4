/*
 * Facts that a manifest states twice.  The history of a stream is written by the tools and cannot
 * be computed again from the members; but if it repeats the value of another key or member, the two
 * must agree.
 */
#include "lib/masks/methods.h"
#include "lib/verify/verify_contents.h"

#include <string.h>

#include "formats/json/json.h"
#include "lib/stage/ranking.h"

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

static void check_adapter(struct fm_bundle_job *j)
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
    const char *method = cJSON_GetStringValue(get(part_of(j, tool, "options"), "method"));
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

void fm_verify_claims(struct fm_bundle_job *j)
{
    const cJSON *trained = part_of(j, "fm-train", "options");
    check_adapter(j);
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
