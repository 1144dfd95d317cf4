/*
 * Stage streams of golden/odd-mixtral for tests: a ranking, a family of masks and an adapter made
 * by simple formulas, and each stage's stream written to the scratch directory.  An `edit` may
 * corrupt what is written; NULL changes nothing.  The model is open between stages_open_model and
 * stages_close_model, the setup and the teardown of a group.
 */
#ifndef FM_TESTS_STAGES_H
#define FM_TESTS_STAGES_H

#include "formats/bundle/maskset.h"
#include "formats/tensor/carry.h"
#include "lib/data/provenance.h"
#include "lib/masks/methods.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

#define STAGES_MODEL "golden/odd-mixtral"

static struct fm_hfdir stages_dir;
static struct fm_config stages_config;

static inline int stages_open_model(void **unused)
{
    (void)unused;
    struct fm_err err = {0};
    if (fm_hfdir_open(&stages_dir, STAGES_MODEL, &err) || fm_carry_list(&stages_dir, NULL, &err) ||
        fm_config_parse(&stages_config, stages_dir.config, stages_dir.config_bytes, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static inline int stages_close_model(void **unused)
{
    (void)unused;
    fm_config_release(&stages_config);
    fm_hfdir_close(&stages_dir);
    return 0;
}

static inline void stages_expect(int code, const struct fm_err *err, int wanted, const char *why)
{
    if (code != wanted || !strstr(err->text, why))
        fail_msg("wanted %d with '%s', got %d: %s", wanted, why, code, err->text);
}

/* Scores with ties, and one expert without tokens. */
static inline struct fm_ranking stages_ranking(void)
{
    struct fm_ranking r;
    struct fm_err err = {0};
    assert_ok(fm_ranking_init(&r, stages_config.M, 0, stages_config.E, stages_config.I, &err));
    for (int i = 0; i < stages_config.M * stages_config.E * stages_config.I; i++)
        r.scores[i] = i / stages_config.I == 3 ? 0 : (double)(i * 7919 % 101) / 3;
    for (int i = 0; i < stages_config.M * stages_config.E; i++)
        r.tokens[i] = i == 3 ? 0 : 100 + i;
    assert_ok(fm_ranking_sort(&r, &err));
    return r;
}

static inline cJSON *stages_options(const char *key, const char *value)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, key, value);
    return o;
}

/* The sums of the weights are 0, because no test of a stage reads them. */
static inline cJSON *stages_identity(void)
{
    cJSON *model = NULL;
    const struct fm_reading_sums sums = {.L = stages_config.L};
    struct fm_err err = {0};
    assert_ok(fm_stage_model_identity(&model, &stages_dir, &stages_config, FM_F16, &sums, &err));
    return model;
}

static inline const char *stages_write(const char *name, enum fm_stage stage,
                                       const struct fm_bundle *in, cJSON *manifest,
                                       const char *member, const void *data, size_t size)
{
    const char *path = scratch(name);
    struct fm_err err = {0};
    assert_ok(fm_stage_write(&(struct fm_run_options){.outputs.path = path, .outputs.force = true},
                             stage, manifest, in, in ? NULL : &stages_dir,
                             &(struct fm_stage_member){member, data, size}, 1, &err));
    return path;
}

static inline const char *stages_write_rank(const char *name, const struct fm_ranking *r,
                                            const char *order)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    cJSON *model, *manifest, *entry;
    struct fm_calib calib = {.T = 16, .count = 4};
    void *data;
    size_t size;
    model = stages_identity();
    manifest = fm_stage_manifest(FM_STAGE_RANK, NULL, model, dropped);
    entry = fm_stage_history(manifest, "fm-rank");
    cJSON *options = stages_options("order", order);
    if (r->group > 1)
        cJSON_AddNumberToObject(options, "channel_group", r->group);
    fm_json_add(entry, "options", options);
    fm_provenance_tokens(entry, &calib);
    assert_ok(fm_ranking_pack(r, stages_config.moe, stages_config.L, &data, &size, &err));
    const char *path =
        stages_write(name, FM_STAGE_RANK, NULL, manifest, FM_MEMBER_RANKING, data, size);
    free(data);
    return path;
}

static inline struct fm_actions stages_actions(void)
{
    struct fm_actions a;
    struct fm_err err = {0};
    assert_ok(fm_actions_parse(&a, "0.1,0.4,0.7,1", stages_config.I, 1, &err));
    return a;
}

/* The full mask, then masks that each narrow one more expert. */
static inline struct fm_masks stages_family(const struct fm_actions *actions, int masks)
{
    struct fm_masks f;
    struct fm_err err = {0};
    uint32_t widths[64];
    fm_masks_init(&f, stages_config.M, stages_config.E, stages_config.I);
    assert_ok(fm_masks_full(&f, &fm_method_learned, &err));
    memcpy(widths, fm_masks_widths(&f, 0),
           sizeof *widths * (size_t)(stages_config.M * stages_config.E));
    for (int b = 1; b < masks; b++) {
        widths[b * 4 % (stages_config.M * stages_config.E)] = actions->width[b % 3];
        assert_ok(fm_masks_append(&f, widths, &fm_method_saliency, b, &err));
        f.mask[b].quality = (struct fm_quality){1.5 + b, 0.25 * b, 1.0 / (b + 2), 321, b > 1, {0}};
    }
    return f;
}

/* Write masks into a stream; `edit` may corrupt the manifest and widths first. */
static inline const char *stages_write_train(const char *name, const struct fm_bundle *in,
                                             void (*edit)(cJSON *manifest, uint32_t *widths),
                                             char dropped[FM_STAGE_DROPPED_BYTES])
{
    struct fm_actions actions = stages_actions();
    struct fm_masks f = stages_family(&actions, 4);
    struct fm_err err = {0};
    cJSON *manifest;
    void *frame;
    size_t size;
    manifest = fm_stage_manifest(FM_STAGE_TRAIN, in, NULL, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-train"), "options",
                stages_options("method", "learned"));
    assert_ok(fm_budgets_pack(&f, &actions, &stages_config,
                              fm_stage_tensor_bytes(&stages_dir, &stages_config), FM_F16, manifest,
                              &frame, &size, &err));
    free(frame);
    if (edit)
        edit(manifest, f.widths);
    assert_ok(fm_maskset_pack(f.widths, (size_t)(f.count * stages_config.M * stages_config.E),
                              &frame, &size, &err));
    const char *path =
        stages_write(name, FM_STAGE_TRAIN, in, manifest, FM_MEMBER_MASKS, frame, size);
    free(frame);
    fm_masks_release(&f);
    return path;
}

static inline const char *stages_write_recover(const char *name, const struct fm_bundle *in,
                                               const struct fm_adapter *a,
                                               void (*edit)(char *bytes))
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    cJSON *manifest;
    void *data;
    size_t size;
    manifest = fm_stage_manifest(FM_STAGE_RECOVER, in, NULL, dropped);
    assert_string_equal(dropped, "");
    fm_json_add(fm_stage_history(manifest, "fm-recover"), "options",
                stages_options("strategy", "single"));
    cJSON_AddItemToObject(manifest, "adapter", stages_options("strategy", "single"));
    assert_ok(fm_lorafile_pack(a, stages_config.moe, &data, &size, &err));
    if (edit)
        edit(data);
    const char *path =
        stages_write(name, FM_STAGE_RECOVER, in, manifest, FM_MEMBER_ADAPTER, data, size);
    free(data);
    return path;
}

static inline struct fm_bundle stages_open(const char *path)
{
    struct fm_bundle b;
    struct fm_err err = {0};
    assert_ok(fm_stage_open(&b, path, NULL, &err));
    return b;
}

static inline struct fm_bundle stages_open_rank(void)
{
    struct fm_ranking r = stages_ranking();
    struct fm_bundle b = stages_open(stages_write_rank("rank", &r, "score"));
    fm_ranking_release(&r);
    return b;
}

static inline struct fm_adapter stages_adapter(void)
{
    struct fm_adapter a;
    struct fm_err err = {0};
    uint32_t widths[64];
    for (int i = 0; i < stages_config.M * stages_config.E; i++)
        widths[i] = (uint32_t)(1 + i * 5 % stages_config.I);
    assert_ok(fm_adapter_init(&a, stages_config.M, stages_config.E, stages_config.H, 3, 6.5f,
                              widths, &err));
    fm_adapter_start(&a, 11);
    return a;
}

#endif
