/*
 * A stage stream for golden/odd-mixtral from the data in golden/given/: scores, widths of seven
 * masks, and optionally an adapter.  No value depends on how a machine rounds.
 */
#ifndef FM_TESTS_GIVEN_H
#define FM_TESTS_GIVEN_H

#include "formats/tensor/carry.h"
#include "lib/masks/methods.h"
#include "lib/model/model.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "tests/unit/golden.h"
#include "tests/unit/scratch.h"

#define GIVEN_MODEL "golden/odd-mixtral"
#define GIVEN_INPUTS "golden/given/odd-mixtral.safetensors"
static const int16_t given_moe[] = {0, 1, 2}; /* every layer has experts */
enum { GIVEN_L = 3, GIVEN_E = 5, GIVEN_I = 37, GIVEN_H = 48, GIVEN_BUDGETS = 7 };

#define GIVEN_TRY(call)                                                                            \
    do {                                                                                           \
        struct fm_err given_err = {0};                                                             \
        if ((call) != FM_OK)                                                                       \
            golden_die(&given_err);                                                                \
    } while (0)

static inline void given_ranking(struct fm_ranking *r)
{
    struct golden g;
    golden_open(&g, GIVEN_INPUTS);
    GIVEN_TRY(fm_ranking_init(r, GIVEN_L, 0, GIVEN_E, GIVEN_I, &given_err));
    double *scores = golden_read(&g, "scores", FM_F64, NULL);
    int64_t *tokens = golden_read(&g, "tokens", FM_I64, NULL);
    memcpy(r->scores, scores, sizeof(double) * GIVEN_L * GIVEN_E * GIVEN_I);
    memcpy(r->tokens, tokens, sizeof(int64_t) * GIVEN_L * GIVEN_E);
    free(scores);
    free(tokens);
    GIVEN_TRY(fm_ranking_sort(r, &given_err));
    golden_close(&g);
}

static inline void given_adapter(struct fm_adapter *a)
{
    struct golden g;
    golden_open(&g, GIVEN_INPUTS);
    int32_t *widths = golden_read(&g, "adapter.widths", FM_I32, NULL);
    size_t n;
    float *values = golden_read(&g, "adapter.values", FM_F32, &n);
    GIVEN_TRY(fm_adapter_init(a, GIVEN_L, GIVEN_E, GIVEN_H, 3, 6, (uint32_t *)(void *)widths,
                              &given_err));
    memcpy(a->values, values, n * sizeof *values);
    free(widths);
    free(values);
    golden_close(&g);
}

/* (budgets, L, E); the first is the full mask. */
static inline uint32_t *given_widths(void)
{
    static uint32_t widths[GIVEN_BUDGETS * GIVEN_L * GIVEN_E];
    struct golden g;
    size_t n;
    golden_open(&g, GIVEN_INPUTS);
    int32_t *read = golden_read(&g, "widths", FM_I32, &n);
    scratch_check(n == sizeof widths / sizeof *widths, GIVEN_INPUTS);
    memcpy(widths, read, sizeof widths);
    free(read);
    golden_close(&g);
    return widths;
}

static inline cJSON *given_options(const char *key, const char *value)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, key, value);
    return o;
}

static inline void given_rank(const char *to, const struct fm_hfdir *dir,
                              const struct fm_config *config)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_ranking r = {0};
    struct fm_reading_sums sums;
    cJSON *model = NULL, *manifest = NULL;
    void *data;
    size_t size;
    given_ranking(&r);
    GIVEN_TRY(fm_ranking_pack(&r, given_moe, GIVEN_L, &data, &size, &given_err));
    struct fm_model *weights = NULL;
    GIVEN_TRY(fm_model_open_dir(&weights, dir, 0, &given_err));
    GIVEN_TRY(fm_model_sums(weights, &sums, NULL, &given_err));
    fm_model_close(weights);
    GIVEN_TRY(fm_stage_model_identity(&model, dir, config, FM_F16, &sums, &given_err));
    manifest = fm_stage_manifest(FM_STAGE_RANK, NULL, model, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-rank"), "options", given_options("order", "score"));
    struct fm_stage_member m = {FM_MEMBER_RANKING, data, size};
    GIVEN_TRY(fm_stage_write(&(struct fm_run_options){.outputs.path = to, .outputs.force = true},
                             FM_STAGE_RANK, manifest, NULL, dir, &m, 1, &given_err));
    free(data);
    fm_ranking_release(&r);
}

static inline void given_train(const char *to, const char *from, const struct fm_hfdir *dir,
                               const struct fm_config *config)
{
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    struct fm_bundle in = {0};
    struct fm_masks masks;
    struct fm_actions actions;
    cJSON *manifest = NULL;
    void *data;
    size_t size;
    const uint32_t *widths = given_widths();
    GIVEN_TRY(fm_stage_open(&in, from, FM_MEMBER_RANKING, &given_err));
    GIVEN_TRY(fm_actions_parse(&actions, "0.1,0.4,0.7,1", GIVEN_I, 1, &given_err));
    fm_masks_init(&masks, GIVEN_L, GIVEN_E, GIVEN_I);
    GIVEN_TRY(fm_masks_full(&masks, &fm_method_learned, &given_err));
    for (int b = 1; b < GIVEN_BUDGETS; b++)
        GIVEN_TRY(fm_masks_append(&masks, widths + b * GIVEN_L * GIVEN_E, &fm_method_learned, b,
                                  &given_err));
    manifest = fm_stage_manifest(FM_STAGE_TRAIN, &in, NULL, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-train"), "options",
                given_options("budget_step", "0.03"));
    GIVEN_TRY(fm_budgets_pack(&masks, &actions, config, fm_stage_tensor_bytes(dir, config), FM_F16,
                              manifest, &data, &size, &given_err));
    struct fm_stage_member m = {FM_MEMBER_MASKS, data, size};
    GIVEN_TRY(fm_stage_write(&(struct fm_run_options){.outputs.path = to, .outputs.force = true},
                             FM_STAGE_TRAIN, manifest, &in, NULL, &m, 1, &given_err));
    free(data);
    fm_masks_release(&masks);
    fm_bundle_close(&in);
}

static inline void given_recover(const char *to, const char *from)
{
    char dropped[FM_STAGE_DROPPED_BYTES] = "";
    struct fm_bundle in = {0};
    struct fm_adapter a = {0};
    cJSON *manifest = NULL;
    void *data;
    size_t size;
    given_adapter(&a);
    GIVEN_TRY(fm_stage_open(&in, from, FM_MEMBER_MASKS, &given_err));
    GIVEN_TRY(fm_lorafile_pack(&a, given_moe, &data, &size, &given_err));
    manifest = fm_stage_manifest(FM_STAGE_RECOVER, &in, NULL, dropped);
    fm_json_add(fm_stage_history(manifest, "fm-recover"), "options",
                given_options("strategy", "single"));
    cJSON *note = cJSON_AddObjectToObject(manifest, "adapter");
    cJSON_AddNumberToObject(note, "rank", 3);
    cJSON_AddNumberToObject(note, "alpha", 6);
    cJSON_AddNumberToObject(note, "budget_index", 5);
    cJSON_AddStringToObject(note, "strategy", "single");
    struct fm_stage_member m = {FM_MEMBER_ADAPTER, data, size};
    GIVEN_TRY(fm_stage_write(&(struct fm_run_options){.outputs.path = to, .outputs.force = true},
                             FM_STAGE_RECOVER, manifest, &in, NULL, &m, 1, &given_err));
    free(data);
    fm_adapter_release(&a);
    fm_bundle_close(&in);
}

/* Write the stream with masks, and optionally the adapter, to scratch(name). */
static inline const char *given_stage(const char *name, bool adapter)
{
    static char path[512];
    struct fm_hfdir dir = {0};
    struct fm_config config;
    GIVEN_TRY(fm_hfdir_open(&dir, GIVEN_MODEL, &given_err));
    GIVEN_TRY(fm_carry_list(&dir, NULL, &given_err));
    GIVEN_TRY(fm_config_parse(&config, dir.config, dir.config_bytes, &given_err));
    given_rank(scratch("given.rank"), &dir, &config);
    snprintf(path, sizeof path, "%s", scratch(name));
    if (adapter) {
        given_train(scratch("given.train"), scratch("given.rank"), &dir, &config);
        given_recover(path, scratch("given.train"));
    } else {
        given_train(path, scratch("given.rank"), &dir, &config);
    }
    fm_config_release(&config);
    fm_hfdir_close(&dir);
    return path;
}

#endif
