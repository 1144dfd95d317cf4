/*
 * Widths are in masks.zst, and a summary of each mask is in the manifest for people and scripts.
 * The two could disagree, so the reader recomputes every summary from the widths and refuses a
 * difference.  One reader serves the tools, which stop at the first fault, and fm-verify, which
 * reports all of them.
 */
#include "lib/masks/methods.h"
#include "lib/stage/budgets.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/maskset.h"
#include "formats/json/json.h"
#include "formats/quant/quant.h"
#include "lib/base/mem.h"
#include "lib/base/trace.h"
#include "lib/model/stored.h"
#include "lib/stage/volumes.h"
#include "lib/stage/stage.h"

#define STEPS_MAX 1000000 /* limit of fm-train's --steps */
#define RATIOS_BYTES (FM_ACTIONS_MAX * FM_DECIMAL_TEXT + sizeof ",1")

static void measure_widths(struct fm_budget *s, const uint32_t *widths, int experts)
{
    assert(experts > 0);
    uint64_t sum = 0;
    s->width_min = s->width_max = widths[0];
    for (int i = 0; i < experts; i++) {
        sum += widths[i];
        if (widths[i] < s->width_min)
            s->width_min = widths[i];
        if (widths[i] > s->width_max)
            s->width_max = widths[i];
    }
    s->width_mean = (double)sum / experts;
}

/* Set a key, replacing the value from the input's manifest. */
static cJSON *renew(cJSON *manifest, const char *key, cJSON *item)
{
    cJSON_DeleteItemFromObjectCaseSensitive(manifest, key);
    return fm_json_add(manifest, key, item);
}

static void add_actions(cJSON *manifest, const struct fm_actions *actions)
{
    char text[FM_DECIMAL_TEXT];
    cJSON *object = renew(manifest, "actions", cJSON_CreateObject());
    cJSON *ratios = fm_json_add_array(object, "ratios");
    cJSON *widths = fm_json_add_array(object, "widths");
    for (int a = 0; a < actions->count; a++) {
        fm_decimal_print(text, &actions->ratio[a]);
        fm_json_add_string(ratios, NULL, text);
        fm_json_add_uint(widths, NULL, actions->width[a]);
    }
    fm_json_add_uint(object, "multiple", actions->multiple);
}

void fm_budgets_add_kinds(cJSON *quality, const struct fm_kinds *kinds, const double *kind)
{
    cJSON *o = kinds && kinds->count ? fm_json_add_object(quality, "kinds") : NULL;
    for (int k = 0; o && k < kinds->count; k++)
        fm_json_add_double(o, kinds->name[k], kind[k]);
}

cJSON *fm_budgets_quality(const struct fm_quality *q, const struct fm_kinds *kinds)
{
    if (q->positions == 0)
        return cJSON_CreateNull();
    cJSON *o = cJSON_CreateObject();
    fm_json_add_double(o, "ce", q->ce);
    fm_json_add_double(o, "kl", q->kl);
    fm_json_add_double(o, "agree", q->agree);
    fm_json_add_uint(o, "positions", (uint64_t)q->positions);
    fm_json_add_bool(o, "recovered", q->recovered);
    fm_budgets_add_kinds(o, kinds, q->kind);
    return o;
}

static void add_budget(cJSON *budgets, int index, const struct fm_mask *mask,
                       const struct fm_budget *s, const struct fm_kinds *kinds)
{
    cJSON *object = fm_json_add_object(budgets, NULL);
    fm_json_add_uint(object, "index", (uint64_t)index);
    fm_json_add_uint(object, "removed", mask->removed);
    fm_json_add_double(object, "budget", s->budget);
    fm_json_add_string(object, "method", mask->method->name);
    fm_json_add_uint(object, "step", (uint64_t)mask->step);
    cJSON *widths = fm_json_add_object(object, "widths");
    fm_json_add_uint(widths, "min", s->width_min);
    fm_json_add_double(widths, "mean", s->width_mean);
    fm_json_add_uint(widths, "max", s->width_max);
    fm_json_add_uint(object, "bytes", s->bytes);
    fm_json_add_uint(object, "params", s->params);
    fm_json_add_uint(object, "params_active", s->params_active);
    fm_json_add(object, "quality", fm_budgets_quality(&mask->quality, kinds));
}

int fm_budgets_pack(const struct fm_masks *masks, const struct fm_actions *actions,
                    const struct fm_config *config, uint64_t full_bytes, enum fm_dtype dtype,
                    cJSON *manifest, void **frame, size_t *size, struct fm_err *err)
{
    assert(!FM_DEBUGGING || fm_masks_sane(masks));
    assert(masks->M == config->M && masks->E == config->E && masks->I == config->I);
    uint64_t channel_bytes =
        fm_expert_channel_params(config->expert, config->H) * (uint64_t)fm_dtype_bits(dtype) / 8;
    int experts = masks->M * masks->E;
    add_actions(manifest, actions);
    cJSON *budgets = renew(manifest, "budgets", cJSON_CreateArray());
    for (int b = 0; b < masks->count; b++) {
        const uint32_t *widths = fm_masks_widths(masks, b);
        struct fm_budget s = {.budget = fm_masks_budget(masks, b),
                              .bytes = full_bytes - masks->mask[b].removed * channel_bytes,
                              .params = fm_config_params(config, widths),
                              .params_active = fm_config_params_active(config, widths)};
        measure_widths(&s, widths, experts);
        add_budget(budgets, b, &masks->mask[b], &s, &masks->kinds);
    }
    return fm_maskset_pack(masks->widths, (size_t)masks->count * (size_t)experts, frame, size, err);
}

/* Write the ratios as one text, in the form of the command line.  If widths were rounded, the
 * ratio 1 may have been merged into a smaller one; it is added again, and has the same width. */
static int join_ratios(char text[RATIOS_BYTES], const cJSON *actions, struct fm_err *err)
{
    const cJSON *ratios = cJSON_GetObjectItemCaseSensitive(actions, "ratios"), *ratio;
    size_t at = 0;
    if (!cJSON_IsArray(ratios) || !ratios->child)
        return fm_fail(err, FM_EFORMAT, "key 'ratios' is missing or empty");
    cJSON_ArrayForEach(ratio, ratios)
    {
        const char *one = cJSON_GetStringValue(ratio);
        size_t len = one ? strlen(one) : 0;
        if (len == 0 || len >= FM_DECIMAL_TEXT || strspn(one, "0123456789.") != len ||
            at + len + 1 + sizeof ",1" > RATIOS_BYTES)
            return fm_fail(err, FM_EFORMAT,
                           "key 'ratios' has an entry that is not a decimal, or too many");
        memcpy(text + at, one, len);
        at += len;
        text[at++] = ',';
    }
    text[at - 1] = '\0';
    if (strcmp(ratios->child->prev->valuestring, "1") != 0)
        memcpy(text + at - 1, ",1", sizeof ",1");
    return FM_OK;
}

/* Read the action set, and check that its widths follow from its ratios. */
static int read_actions(struct fm_actions *actions, const cJSON *manifest, int I,
                        struct fm_err *err)
{
    char text[RATIOS_BYTES];
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(manifest, "actions");
    const cJSON *widths = cJSON_GetObjectItemCaseSensitive(object, "widths"), *width;
    int64_t multiple = 0;
    if (!cJSON_IsObject(object) || !cJSON_IsArray(widths))
        return fm_fail(err, FM_EFORMAT, "key 'actions' or its 'widths' is missing");
    if (fm_json_get_int(object, "multiple", 1, I, &multiple, err) || join_ratios(text, object, err))
        return fm_within(err, "actions");
    if (fm_actions_parse(actions, text, I, (uint32_t)multiple, err)) {
        err->code = FM_EFORMAT; /* not FM_EUSAGE: the text comes from a file */
        return fm_within(err, "actions");
    }
    actions->merged = 0;
    if (cJSON_GetArraySize(widths) != actions->count)
        return fm_fail(err, FM_EFORMAT, "actions: %d widths, but the ratios give %d",
                       cJSON_GetArraySize(widths), actions->count);
    int a = 0;
    cJSON_ArrayForEach(width, widths)
    {
        if (!cJSON_IsNumber(width) || width->valuedouble != actions->width[a])
            return fm_fail(err, FM_EFORMAT, "actions: width %d is not %u, which its ratio gives", a,
                           actions->width[a]);
        a++;
    }
    return FM_OK;
}

/* Read the losses on each kind of text.  All budgets with figures must have the same kinds; the
 * first one sets *kinds. */
static int read_kinds(struct fm_kinds *kinds, bool first, struct fm_quality *q,
                      const cJSON *quality, struct fm_err *err)
{
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(quality, "kinds"), *item;
    int n = 0;
    if (first)
        kinds->count = 0;
    if (object && !cJSON_IsObject(object))
        return fm_fail(err, FM_EFORMAT, "key 'kinds' is not an object");
    cJSON_ArrayForEach(item, object)
    {
        size_t length = strlen(item->string);
        if (n == FM_KINDS_MAX || length == 0 || length >= sizeof kinds->name[0] ||
            strspn(item->string, FM_KIND_CHARACTERS) != length)
            return fm_fail(err, FM_EFORMAT,
                           "key 'kinds' has more than %d names, or one that is not 1 to %zu "
                           "letters, digits, '.', '_' and '-'",
                           FM_KINDS_MAX, sizeof kinds->name[0] - 1);
        if (first)
            snprintf(kinds->name[kinds->count++], sizeof kinds->name[0], "%s", item->string);
        if (n >= kinds->count || strcmp(kinds->name[n], item->string) != 0)
            return fm_fail(err, FM_EFORMAT,
                           "the names in key 'kinds' are not those of an earlier budget");
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= 1e6))
            return fm_fail(err, FM_EFORMAT,
                           "key 'kinds' has a loss that is not a number from 0 to 1e6");
        q->kind[n++] = item->valuedouble;
    }
    return n == kinds->count
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "key 'kinds' has only %d of %d names", n, kinds->count);
}

static int read_quality(struct fm_masks *masks, struct fm_quality *q, const cJSON *budget,
                        struct fm_err *err)
{
    const cJSON *object = fm_json_value(budget, "quality");
    *q = (struct fm_quality){.ce = NAN, .kl = NAN, .agree = NAN};
    if (!object) {
        *q = (struct fm_quality){0};
        return FM_OK;
    }
    if (!cJSON_IsObject(object))
        return fm_fail(err, FM_EFORMAT, "key 'quality' is not an object");
    if (fm_json_get_int(object, "positions", 1, FM_JSON_INTEGER_MAX, &q->positions, err) ||
        fm_json_opt_double(object, "ce", 0, 1e6, &q->ce, err) ||
        fm_json_opt_double(object, "kl", -1e-3, 1e6, &q->kl, err) ||
        fm_json_opt_double(object, "agree", 0, 1, &q->agree, err) ||
        fm_json_opt_bool(object, "recovered", &q->recovered, err))
        return err->code;
    if (isnan(q->ce) || isnan(q->kl) || isnan(q->agree))
        return fm_fail(err, FM_EFORMAT, "key 'quality' has no ce, kl or agree");
    int before = 0;
    while (before < masks->count && masks->mask[before].quality.positions == 0)
        before++;
    return read_kinds(&masks->kinds, before == masks->count, q, object, err);
}

static int read_sizes(struct fm_budget *s, const cJSON *budget, struct fm_err *err)
{
    const cJSON *widths = cJSON_GetObjectItemCaseSensitive(budget, "widths");
    int64_t min = 0, max = 0;
    s->budget = s->width_mean = NAN;
    if (fm_json_get_int(widths, "min", 0, UINT32_MAX, &min, err) ||
        fm_json_get_int(widths, "max", 0, UINT32_MAX, &max, err) ||
        fm_json_opt_double(widths, "mean", 0, UINT32_MAX, &s->width_mean, err) ||
        fm_json_opt_double(budget, "budget", 0, 1, &s->budget, err) ||
        fm_json_get_uint(budget, "bytes", 0, &s->bytes, err) ||
        fm_json_get_uint(budget, "params", 0, &s->params, err) ||
        fm_json_get_uint(budget, "params_active", 0, &s->params_active, err))
        return err->code;
    s->width_min = (uint32_t)min;
    s->width_max = (uint32_t)max;
    return FM_OK;
}

static int read_mask(struct fm_masks *masks, struct fm_mask *mask, struct fm_budget *s,
                     const cJSON *budget, int index, struct fm_err *err)
{
    uint64_t channels = fm_masks_channels(masks);
    int64_t at = -1, removed = 0, step = 0;
    const char *method;
    if (!cJSON_IsObject(budget))
        return fm_fail(err, FM_EFORMAT, "is not an object");
    if (fm_json_get_int(budget, "index", 0, INT32_MAX, &at, err) ||
        fm_json_get_int(budget, "removed", 0, (int64_t)channels, &removed, err) ||
        fm_json_get_int(budget, "step", 0, INT32_MAX, &step, err) ||
        fm_json_get_string(budget, "method", &method, err) || read_sizes(s, budget, err) ||
        read_quality(masks, &mask->quality, budget, err))
        return err->code;
    if (at != index)
        return fm_fail(err, FM_EFORMAT, "index is %" PRId64, at);
    mask->method = fm_methods_find(method);
    if (!mask->method)
        return fm_fail(err, FM_EFORMAT, "method '%.40s' is unknown", method);
    mask->removed = (uint64_t)removed;
    mask->step = (int)step;
    return FM_OK;
}

/* State of the reader of budgets. */
struct reading {
    const struct fm_stage_model *model;
    struct fm_config config;
    uint64_t bytes;      /* of all tensors of the full model; 0: unknown, because the segment
                            checksums are malformed */
    uint64_t bytes_most; /* upper bound of `bytes`: size of the shards times the growth of decoded
                            codes */
    int64_t steps_most;  /* upper bound of the steps of training */
    struct fm_budgets_notes *notes; /* NULL: reading ends at the first fault */
    const uint32_t *widths;         /* of all masks */
    uint64_t before;                /* number of channels removed by the previous budget */
    int b;
};

static uint64_t channel_bytes(const struct reading *r)
{
    return r->model->channel_params * (uint64_t)fm_dtype_bits(r->model->dtype) / 8;
}

static uint64_t expert_bytes(const struct reading *r)
{
    return (uint64_t)r->model->M * (uint64_t)r->model->E * (uint64_t)r->model->I * channel_bytes(r);
}

/* Check parameters and bytes, which follow from the widths. */
static int check_sizes(struct reading *r, const struct fm_mask *mask, const struct fm_budget *s,
                       const uint32_t *widths, struct fm_err *err)
{
    uint64_t params = fm_config_params(&r->config, widths);
    uint64_t active = fm_config_params_active(&r->config, widths);
    uint64_t removed = mask->removed * channel_bytes(r);
    if (s->params != params)
        return fm_fail(err, FM_EFORMAT,
                       "params is %" PRIu64 ", but its widths leave %" PRIu64 " of %" PRIu64,
                       s->params, params, r->model->params);
    if (s->params_active != active)
        return fm_fail(err, FM_EFORMAT,
                       "params_active is %" PRIu64 ", but its widths make it %" PRIu64,
                       s->params_active, active);
    if (r->bytes > r->bytes_most)
        return fm_fail(err, FM_EFORMAT,
                       "tensors have %" PRIu64 " bytes, but all shards of the checkpoint %" PRIu64,
                       r->bytes, r->bytes_most);
    if (r->bytes && s->bytes != r->bytes - removed)
        return fm_fail(err, FM_EFORMAT, "bytes is %" PRIu64 " where tensors have %" PRIu64,
                       s->bytes, r->bytes - removed);
    return FM_OK;
}

/* Check that the step of a mask is at most the last one that its method can reach. */
static int check_step(const struct reading *r, const struct fm_mask *mask, struct fm_err *err)
{
    int64_t most = mask->method->trains ? r->steps_most : mask->method->shapes ? FM_BUDGETS_MAX : 0;
    if (mask->step <= most)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "step is %d, but method %s ends at %" PRId64, mask->step,
                   mask->method->name, most);
}

/* Check that the manifest's summary of a mask follows from its widths. */
static int check_summary(const struct fm_budgets *f, struct reading *r, const struct fm_mask *mask,
                         const struct fm_budget *s, const uint32_t *widths, struct fm_err *err)
{
    struct fm_budget real = {0};
    uint64_t channels = fm_masks_channels(&f->masks);
    measure_widths(&real, widths, r->model->M * r->model->E);
    if (s->budget != (double)mask->removed / (double)channels)
        return fm_fail(err, FM_EFORMAT,
                       "budget is %.17g where %" PRIu64 " of %" PRIu64 " channels are removed",
                       s->budget, mask->removed, channels);
    if (s->width_min != real.width_min || s->width_max != real.width_max ||
        s->width_mean != real.width_mean)
        return fm_fail(err, FM_EFORMAT, "the summary of its widths does not match the mask");
    return check_sizes(r, mask, s, widths, err) ? err->code : check_step(r, mask, err);
}

static int check_widths(const struct fm_budgets *f, const int16_t *moe, const uint32_t *widths,
                        struct fm_err *err)
{
    const struct fm_masks *masks = &f->masks;
    int first = -1, bad = 0;
    for (int i = 0; i < masks->M * masks->E; i++)
        if (fm_actions_find(&f->actions, widths[i]) < 0) {
            first = bad++ ? first : i;
        }
    if (!bad)
        return FM_OK;
    fm_fail(err, FM_EFORMAT, "layer %d, expert %d: width %u is not in the action set",
            moe[first / masks->E], first % masks->E, widths[first]);
    return bad > 1 ? fm_within(err, "%d experts, the first", bad) : err->code;
}

static int check_removed(const struct fm_masks *masks, const struct fm_mask *mask,
                         const uint32_t *widths, struct fm_err *err)
{
    for (int i = 0; i < masks->M * masks->E; i++)
        if (widths[i] > (uint32_t)masks->I)
            return FM_OK; /* already reported, and the sum would be meaningless */
    uint64_t removed = fm_masks_removed(masks, widths);
    if (removed != mask->removed)
        return fm_fail(err, FM_EFORMAT,
                       "the widths remove %" PRIu64 " channels, but the manifest says %" PRIu64,
                       removed, mask->removed);
    return FM_OK;
}

static int check_growth(const struct fm_mask *mask, const uint64_t *before, struct fm_err *err)
{
    return !before || mask->removed > *before
               ? FM_OK
               : fm_fail(err, FM_EFORMAT,
                         "removes %" PRIu64 " channels, not more than the %" PRIu64 " before",
                         mask->removed, *before);
}

/* Report a fault of budget b: as the error or, if there are notes, as a note. */
static int note_fault(struct fm_budgets_notes *notes, int b, int rc, struct fm_err *err)
{
    if (!rc || rc == FM_ENOMEM)
        return rc;
    if (!notes)
        return fm_within(err, "budget %d", b);
    notes->found(notes->self, b, err->text);
    notes->count++;
    *err = (struct fm_err){0};
    return FM_OK;
}

static int read_budget(struct fm_budgets *f, struct reading *r, const cJSON *budget,
                       struct fm_err *err)
{
    struct fm_masks *masks = &f->masks;
    struct fm_mask mask = {0};
    struct fm_budget *s = &f->budget[r->b];
    int b = r->b++, known = r->notes ? r->notes->count : 0;
    const uint32_t *widths = r->widths + (size_t)b * (size_t)masks->M * (size_t)masks->E;
    int rc = read_mask(masks, &mask, s, budget, b, err);
    if (rc)
        return note_fault(r->notes, b, rc, err);
    if (note_fault(r->notes, b, check_widths(f, r->model->moe, widths, err), err) ||
        note_fault(r->notes, b, check_removed(masks, &mask, widths, err), err) ||
        note_fault(r->notes, b, check_summary(f, r, &mask, s, widths, err), err) ||
        note_fault(r->notes, b, check_growth(&mask, b > 0 ? &r->before : NULL, err), err))
        return err->code;
    r->before = mask.removed;
    if (r->notes && (r->notes->count > known || masks->count < b))
        return FM_OK;          /* after the first fault no mask is appended */
    assert(masks->count == b); /* no earlier budget had a fault */
    if (fm_masks_append(masks, widths, mask.method, mask.step, err))
        return err->code;
    masks->mask[b].quality = mask.quality;
    return FM_OK;
}

/* Decompress the widths of `count` masks; free() them.  The frame's header is checked before memory
 * is allocated. */
static int read_widths(uint32_t **widths, const struct fm_bundle *b, size_t count,
                       struct fm_err *err)
{
    const struct fm_member *m = fm_bundle_find(b, FM_MEMBER_MASKS);
    void *frame;
    size_t size;
    *widths = NULL;
    if (!m)
        return fm_fail(err, FM_EFORMAT, "has no '%s'", FM_MEMBER_MASKS);
    if (fm_bundle_read(b, m, &frame, &size, err))
        return err->code;
    int rc = fm_maskset_check(frame, size, count, err);
    if (!rc && !(*widths = fm_alloc(count, sizeof **widths, "masks", err)))
        rc = err->code;
    if (!rc)
        rc = fm_maskset_unpack(*widths, count, frame, size, err);
    free(frame);
    return rc;
}

static int read_budgets(struct fm_budgets *f, const struct fm_bundle *b, struct reading *r,
                        uint32_t **widths, struct fm_err *err)
{
    const struct fm_stage_model *model = r->model;
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "budgets"), *budget;
    size_t experts = (size_t)model->M * (size_t)model->E;
    int count = cJSON_GetArraySize(array);
    if (!cJSON_IsArray(array) || count < 1 || count > FM_BUDGETS_MAX)
        return fm_fail(err, FM_EFORMAT,
                       "key 'budgets' is missing, or does not have 1 to %d entries",
                       FM_BUDGETS_MAX);
    if (read_actions(&f->actions, b->manifest, model->I, err) ||
        read_widths(widths, b, (size_t)count * experts, err))
        return err->code;
    fm_masks_init(&f->masks, model->M, model->E, model->I);
    f->budget = fm_alloc((size_t)count, sizeof *f->budget, "budgets", err);
    if (!f->budget)
        return err->code;
    r->widths = *widths;
    cJSON_ArrayForEach(budget, array)
    {
        if (read_budget(f, r, budget, err))
            return err->code;
    }
    return r->notes && r->notes->count ? FM_EFORMAT : FM_OK;
}

/* Count the bytes of all tensors except extra ones: from the checksums or, before packing, from
 * shapes and the dtypes in the manifest. */
static int count_bytes(struct reading *r, const struct fm_bundle *b, struct fm_err *err)
{
    struct fm_segments seg = {0};
    if (fm_stage_shard_bytes(&r->bytes_most, b, err))
        return err->code;
    r->bytes_most *= fm_storage_growth(&r->config.scheme, r->config.schemes);
    if (!fm_bundle_find(b, FM_MEMBER_SEGMENTS)) {
        r->bytes = expert_bytes(r) + fm_nonexpert_bytes(&r->model->nonexpert);
        return FM_OK;
    }
    int rc = fm_segments_read(&seg, b, &r->config, err);
    for (size_t i = 0; i < seg.tensors && !rc; i++) {
        const struct fm_tensor *t = &seg.tensor[i].t;
        struct fm_stored s = {.tensor = t};
        fm_stored_see(&s, &r->config, FM_NAMING_STOCK);
        uint64_t values = seg.packed.storage ? fm_stored_bytes(&s) : t->size;
        if (s.extra)
            continue;
        if (!fm_add(&r->bytes, r->bytes, values))
            rc = fm_fail(err, FM_EFORMAT, "tensor '%s': its shape is too large", t->name);
    }
    if (!rc)
        r->bytes += expert_bytes(r);
    fm_segments_release(&seg);
    if (rc != FM_EFORMAT || !r->notes)
        return rc;
    *err = (struct fm_err){0}; /* fm-verify reports this fault with the member that has it */
    r->bytes = 0;
    return FM_OK;
}

/* Training takes at most twice the requested steps. */
static int64_t most_steps(const struct fm_bundle *b)
{
    const cJSON *train = fm_stage_history_of(b, "fm-train");
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(train, "options");
    int64_t steps = STEPS_MAX;
    struct fm_err unsaid = {0};
    fm_json_opt_int(options, "steps", 1, STEPS_MAX, &steps, &unsaid);
    return 2 * steps;
}

int fm_budgets_examine(struct fm_budgets *f, const struct fm_bundle *b,
                       struct fm_budgets_notes *notes, struct fm_err *err)
{
    struct fm_stage_model model;
    struct reading r = {.model = &model, .notes = notes};
    uint32_t *widths = NULL;
    *f = (struct fm_budgets){0};
    if (fm_stage_model_read(&model, b, err))
        return err->code;
    int rc = fm_stage_config_read(&r.config, b, err);
    if (!rc)
        rc = count_bytes(&r, b, err);
    r.steps_most = most_steps(b);
    if (!rc)
        rc = read_budgets(f, b, &r, &widths, err);
    if (rc) {
        if (err->code)
            fm_within(err, "%s", b->file.path);
        fm_budgets_release(f);
    }
    assert(!FM_DEBUGGING || rc || fm_masks_sane(&f->masks));
    free(widths);
    fm_config_release(&r.config);
    return rc;
}

int fm_budgets_open(struct fm_budgets *f, const struct fm_bundle *b, struct fm_err *err)
{
    return fm_budgets_examine(f, b, NULL, err);
}

void fm_budgets_release(struct fm_budgets *f)
{
    fm_masks_release(&f->masks);
    free(f->budget);
    *f = (struct fm_budgets){0};
}

uint32_t fm_budgets_bound(const struct fm_budgets *f, int i)
{
    const struct fm_actions *a = &f->actions;
    const struct fm_masks *m = &f->masks;
    if (i < a->count)
        return a->width[i];
    return fm_actions_uniform_export(m->mask[i - a->count].removed, m->M, m->E, m->I, a->multiple);
}
