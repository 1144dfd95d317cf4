/* Stage streams of the odd golden model: what each stage adds reads back, what lies is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "formats/json.h"
#include "formats/maskset.h"
#include "lib/budgets.h"
#include "lib/lorafile.h"
#include "lib/ranking.h"
#include "lib/stage.h"
#include "tests/scratch.h"

#define MODEL "golden/odd-mixtral"

static struct fm_hfdir dir;
static struct fm_config config;

static int open_model(void **unused)
{
    (void)unused;
    struct fm_err err = {0};
    if (fm_hfdir_open(&dir, MODEL, &err) ||
        fm_config_parse(&config, dir.config, dir.config_bytes, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    return 0;
}

static int close_model(void **unused)
{
    (void)unused;
    fm_hfdir_close(&dir);
    return 0;
}

static void must(int code, const struct fm_err *err)
{
    if (code)
        fail_msg("%d: %s", code, err->text);
}

static void expect(int code, const struct fm_err *err, int wanted, const char *why)
{
    if (code != wanted || !strstr(err->text, why))
        fail_msg("wanted %d with '%s', got %d: %s", wanted, why, code, err->text);
}

/* Scores with ties, and one expert that no token reached. */
static struct fm_ranking new_ranking(void)
{
    struct fm_ranking r;
    struct fm_err err = {0};
    must(fm_ranking_init(&r, config.M, config.E, config.I, &err), &err);
    for (int i = 0; i < config.M * config.E * config.I; i++)
        r.scores[i] = i / config.I == 3 ? 0 : (double)(i * 7919 % 101) / 3;
    for (int i = 0; i < config.M * config.E; i++)
        r.tokens[i] = i == 3 ? 0 : 100 + i;
    fm_ranking_sort(&r);
    return r;
}

static cJSON *options_of(const char *key, const char *value)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, key, value);
    return o;
}

static const char *write_stream(const char *name, enum fm_stage stage, const struct fm_bundle *in,
                                cJSON *manifest, const char *member, const void *data, size_t size)
{
    const char *path = scratch(name);
    struct fm_err err = {0};
    must(fm_stage_write(path, true, stage, manifest, in, in ? NULL : &dir,
                        &(struct fm_stage_member){member, data, size}, 1, &err),
         &err);
    return path;
}

static const char *write_rank(const char *name, const struct fm_ranking *r, const char *order)
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    cJSON *model, *manifest;
    struct fm_calib calib = {.T = 16, .count = 4};
    void *data;
    size_t size;
    must(fm_stage_model_identity(&model, &dir, &config, FM_F16, &err), &err);
    must(fm_stage_manifest(&manifest, FM_STAGE_RANK, NULL, model, dropped, &err), &err);
    must(fm_stage_history(manifest, "fm-rank", options_of("order", order), fm_stage_tokens(&calib),
                          NULL, &err),
         &err);
    must(fm_ranking_pack(r, config.moe, &data, &size, &err), &err);
    const char *path =
        write_stream(name, FM_STAGE_RANK, NULL, manifest, FM_MEMBER_RANKING, data, size);
    free(data);
    return path;
}

static struct fm_actions new_actions(void)
{
    struct fm_actions a;
    struct fm_err err = {0};
    must(fm_actions_parse(&a, "0.1,0.4,0.7,1", config.I, 1, &err), &err);
    return a;
}

/* The full mask, then one expert more at the narrowest width each time. */
static struct fm_family new_family(const struct fm_actions *actions, int masks)
{
    struct fm_family f;
    struct fm_err err = {0};
    uint32_t widths[64];
    fm_family_init(&f, config.M, config.E, config.I);
    must(fm_family_full(&f, FM_METHOD_LEARNED, &err), &err);
    memcpy(widths, fm_family_widths(&f, 0), sizeof *widths * (size_t)(config.M * config.E));
    for (int b = 1; b < masks; b++) {
        widths[b * 4 % (config.M * config.E)] = actions->width[b % 3];
        must(fm_family_append(&f, widths, FM_METHOD_WALK, b, &err), &err);
        f.mask[b].quality = (struct fm_quality){1.5 + b, 0.25 * b, 1.0 / (b + 2), 321, b > 1};
    }
    return f;
}

static void edit_nothing(cJSON *manifest, uint32_t *widths)
{
    (void)manifest;
    (void)widths;
}

/* Masks from a stream; `edit` may spoil manifest and widths before they are written. */
static const char *write_train(const char *name, const struct fm_bundle *in,
                               void (*edit)(cJSON *manifest, uint32_t *widths),
                               char dropped[FM_STAGE_DROPPED_BYTES])
{
    struct fm_actions actions = new_actions();
    struct fm_family f = new_family(&actions, 4);
    struct fm_err err = {0};
    cJSON *manifest;
    void *frame;
    size_t size;
    must(fm_stage_manifest(&manifest, FM_STAGE_TRAIN, in, NULL, dropped, &err), &err);
    must(fm_stage_history(manifest, "fm-train", options_of("method", "learned"), NULL, NULL, &err),
         &err);
    must(fm_budgets_pack(&f, &actions, &config, fm_stage_tensor_bytes(&dir), FM_F16, manifest,
                         &frame, &size, &err),
         &err);
    free(frame);
    edit(manifest, f.widths);
    must(fm_maskset_pack(f.widths, (size_t)(f.count * config.M * config.E), &frame, &size, &err),
         &err);
    const char *path =
        write_stream(name, FM_STAGE_TRAIN, in, manifest, FM_MEMBER_MASKS, frame, size);
    free(frame);
    fm_family_release(&f);
    return path;
}

static const char *write_recover(const char *name, const struct fm_bundle *in,
                                 const struct fm_adapter *a, void (*edit)(char *bytes))
{
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    cJSON *manifest;
    void *data;
    size_t size;
    must(fm_stage_manifest(&manifest, FM_STAGE_RECOVER, in, NULL, dropped, &err), &err);
    assert_string_equal(dropped, "");
    must(fm_stage_history(manifest, "fm-recover", options_of("strategy", "single"), NULL, NULL,
                          &err),
         &err);
    cJSON_AddItemToObject(manifest, "adapter", options_of("strategy", "single"));
    must(fm_lorafile_pack(a, config.moe, &data, &size, &err), &err);
    if (edit)
        edit(data);
    const char *path =
        write_stream(name, FM_STAGE_RECOVER, in, manifest, FM_MEMBER_ADAPTER, data, size);
    free(data);
    return path;
}

static struct fm_bundle open_stream(const char *path)
{
    struct fm_bundle b;
    struct fm_err err = {0};
    must(fm_stage_open(&b, path, NULL, &err), &err);
    return b;
}

static void a_ranking_reads_back(void **unused)
{
    (void)unused;
    struct fm_ranking r = new_ranking(), back;
    struct fm_err err = {0};
    struct fm_bundle b = open_stream(write_rank("rank", &r, "score"));
    size_t channels = (size_t)(config.M * config.E * config.I);
    must(fm_ranking_open(&back, &b, &err), &err);
    assert_int_equal(back.I, config.I);
    assert_memory_equal(back.scores, r.scores, channels * sizeof *r.scores);
    assert_memory_equal(back.order, r.order, channels * sizeof *r.order);
    assert_memory_equal(back.tokens, r.tokens, (size_t)(config.M * config.E) * sizeof *r.tokens);
    for (int j = 0; j < config.I; j++) /* no scores: the order is kept */
        assert_int_equal(back.order[3 * config.I + j], j);
    fm_ranking_release(&back);
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

/* Layers 0 and 2 of three, and lists that name no layers or others. */
static void layers_with_experts_are_read_from_the_manifest(void **unused)
{
    (void)unused;
    const char *bad[] = {"[]", "[2,0]", "[0,0]", "[0,3]", "[-1]", "[0.5]", "[\"0\"]", "{}", "7"};
    struct fm_ranking r = new_ranking();
    struct fm_err err = {0};
    struct fm_bundle b = open_stream(write_rank("rank", &r, "score"));
    struct fm_stage_model m;
    cJSON *model = cJSON_GetObjectItemCaseSensitive(b.manifest, "model");
    must(fm_stage_model_read(&m, &b, &err), &err);
    assert_int_equal(m.M, config.L);
    assert_null(cJSON_GetObjectItemCaseSensitive(model, "moe_layers"));
    cJSON_AddItemToObject(model, "moe_layers", cJSON_Parse("[0,2]"));
    must(fm_stage_model_read(&m, &b, &err), &err);
    assert_int_equal(m.L, 3);
    assert_int_equal(m.M, 2);
    assert_int_equal(m.moe[0], 0);
    assert_int_equal(m.moe[1], 2);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cJSON_ReplaceItemInObjectCaseSensitive(model, "moe_layers", cJSON_Parse(bad[i]));
        assert_int_equal(fm_stage_model_read(&m, &b, &err), FM_EFORMAT);
        assert_non_null(strstr(err.text, "moe_layers"));
    }
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

static void a_stream_carries_the_checkpoints_small_files(void **unused)
{
    (void)unused;
    struct fm_ranking r = new_ranking();
    struct fm_err err = {0};
    struct fm_bundle b = open_stream(write_rank("rank", &r, "score"));
    const struct fm_member *m = fm_bundle_find(&b, "carried/config.json");
    void *text;
    size_t size;
    assert_non_null(m);
    must(fm_bundle_read(&b, m, &text, &size, &err), &err);
    assert_int_equal(size, dir.config_bytes);
    assert_memory_equal(text, dir.config, size);
    free(text);
    m = fm_bundle_find(&b, FM_MEMBER_BUILD);
    assert_non_null(m);
    must(fm_bundle_read(&b, m, &text, &size, &err), &err);
    assert_non_null(strstr(text, "\"zstd\""));
    free(text);
    fm_ranking_release(&r);
    fm_bundle_close(&b);
}

static void expect_ranking_refused(const struct fm_ranking *r, const char *order, const char *why)
{
    struct fm_ranking back;
    struct fm_err err = {0};
    struct fm_bundle b = open_stream(write_rank("bad", r, order));
    int code = fm_ranking_open(&back, &b, &err);
    fm_bundle_close(&b);
    expect(code, &err, FM_EFORMAT, why);
}

static void rankings_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    struct fm_ranking r = new_ranking();
    size_t at = (size_t)(config.E + 2) * (size_t)config.I; /* layer 1, expert 2 */
    int32_t first = r.order[at], second = r.order[at + 1];
    double score = r.scores[at];
    expect_ranking_refused(&r, "original", "should be original");
    r.order[at] = second;
    expect_ranking_refused(&r, "score", "layer 1, expert 2: channel");
    r.order[at] = config.I;
    expect_ranking_refused(&r, "score", "of 37");
    r.order[at] = -1;
    expect_ranking_refused(&r, "score", "rank 0 is channel -1");
    r.order[at] = second;
    r.order[at + 1] = first;
    expect_ranking_refused(&r, "score", "stands before");
    r.order[at] = first;
    r.order[at + 1] = second;
    r.scores[at] = NAN;
    expect_ranking_refused(&r, "score", "score of channel 0");
    r.scores[at] = INFINITY;
    expect_ranking_refused(&r, "score", "score of channel 0");
    r.scores[at] = -1;
    expect_ranking_refused(&r, "score", "score of channel 0 is -1");
    r.scores[at] = score;
    r.tokens[7] = -1;
    expect_ranking_refused(&r, "score", "layer 1, expert 2: negative token");
    r.tokens[7] = 1;
    r.M--;
    expect_ranking_refused(&r, "score", "6 tensors where 3 layers make 9");
    r.M++;
    r.I--;
    expect_ranking_refused(&r, "score", "as the manifest makes it");
    r.I++;
    fm_ranking_keep(&r);
    expect_ranking_refused(&r, "score", "stands before");
    struct fm_ranking back;
    struct fm_err err = {0};
    struct fm_bundle b = open_stream(write_rank("kept", &r, "original"));
    must(fm_ranking_open(&back, &b, &err), &err);
    fm_bundle_close(&b);
    fm_ranking_release(&back);
    fm_ranking_release(&r);
}

static struct fm_bundle rank_stream(void)
{
    struct fm_ranking r = new_ranking();
    struct fm_bundle b = open_stream(write_rank("rank", &r, "score"));
    fm_ranking_release(&r);
    return b;
}

static void a_family_reads_back(void **unused)
{
    (void)unused;
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    struct fm_bundle in = rank_stream();
    struct fm_bundle b = open_stream(write_train("train", &in, edit_nothing, dropped));
    struct fm_actions actions = new_actions();
    struct fm_family f = new_family(&actions, 4);
    struct fm_budgets back;
    must(fm_budgets_open(&back, &b, &err), &err);
    assert_int_equal(back.family.count, 4);
    assert_int_equal(back.actions.count, actions.count);
    assert_memory_equal(back.actions.width, actions.width, 4 * sizeof *actions.width);
    assert_memory_equal(back.family.widths, f.widths,
                        (size_t)(4 * config.M * config.E) * sizeof *f.widths);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(back.family.mask[i].removed, f.mask[i].removed);
        assert_int_equal(back.family.mask[i].method, f.mask[i].method);
        assert_true(back.family.mask[i].quality.ce == f.mask[i].quality.ce);
        assert_true(back.family.mask[i].quality.agree == f.mask[i].quality.agree);
        assert_int_equal(back.family.mask[i].quality.recovered, f.mask[i].quality.recovered);
        assert_true(back.budget[i].params == fm_config_params(&config, fm_family_widths(&f, i)));
    }
    assert_int_equal(back.budget[0].bytes, fm_stage_tensor_bytes(&dir));
    assert_non_null(fm_bundle_find(&b, FM_MEMBER_RANKING));
    fm_budgets_release(&back);
    fm_family_release(&f);
    fm_bundle_close(&b);
    fm_bundle_close(&in);
}

static cJSON *budget_of(cJSON *manifest, int b)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(manifest, "budgets"), b);
}

static void set_number(cJSON *object, const char *key, double value)
{
    assert_true(cJSON_ReplaceItemInObjectCaseSensitive(object, key, cJSON_CreateNumber(value)));
}

static void edit_removed(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 2), "removed", 3);
}
static void edit_width(cJSON *m, uint32_t *w)
{
    (void)m;
    w[2 * config.M * config.E + 7] -= 1;
}
static void edit_order(cJSON *m, uint32_t *w)
{
    int experts = config.M * config.E;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "budgets");
    cJSON *one = cJSON_DetachItemFromArray(a, 1), *three = cJSON_DetachItemFromArray(a, 2);
    cJSON_AddItemToArray(a, one);
    cJSON_AddItemToArray(a, three);
    set_number(budget_of(m, 1), "index", 1);
    set_number(one, "index", 2);
    for (int i = 0; i < experts; i++) {
        uint32_t t = w[experts + i];
        w[experts + i] = w[2 * experts + i];
        w[2 * experts + i] = t;
    }
}
static void edit_budget(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "budget", 0.5);
}
static void edit_params(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "params", 1);
}
static void edit_summary(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(cJSON_GetObjectItemCaseSensitive(budget_of(m, 1), "widths"), "min", 36);
}
static void edit_method(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_ReplaceItemInObjectCaseSensitive(budget_of(m, 1), "method", cJSON_CreateString("magic"));
}
static void edit_index(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(budget_of(m, 1), "index", 2);
}
static void edit_count(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_DeleteItemFromArray(cJSON_GetObjectItemCaseSensitive(m, "budgets"), 3);
}
static void edit_action(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "actions");
    cJSON_ReplaceItemInArray(cJSON_GetObjectItemCaseSensitive(a, "widths"), 0,
                             cJSON_CreateNumber(5));
}
static void edit_ratio(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON *a = cJSON_GetObjectItemCaseSensitive(m, "actions");
    cJSON_ReplaceItemInArray(cJSON_GetObjectItemCaseSensitive(a, "ratios"), 0,
                             cJSON_CreateString("1e-1"));
}
static void edit_agree(cJSON *m, uint32_t *w)
{
    (void)w;
    set_number(cJSON_GetObjectItemCaseSensitive(budget_of(m, 1), "quality"), "agree", 1.5);
}
static void edit_gone(cJSON *m, uint32_t *w)
{
    (void)w;
    cJSON_DeleteItemFromObjectCaseSensitive(m, "budgets");
}

static void families_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        void (*edit)(cJSON *manifest, uint32_t *widths);
        const char *why;
    } cases[] = {
        {edit_removed, "budget 2: the widths remove"},
        {edit_width, "budget 2: layer 1, expert 2: width 36 is not in the action set"},
        {edit_order, "budget 2: removes"},
        {edit_budget, "budget 1: budget is 0.5"},
        {edit_params, "budget 1: params is 1"},
        {edit_summary, "budget 1: the summary"},
        {edit_method, "'magic'"},
        {edit_index, "budget 1: index is 2"},
        {edit_count, "the manifest makes it"},
        {edit_action, "width 0 is not the 4"},
        {edit_ratio, "no decimal"},
        {edit_agree, "'agree' is 1.5"},
        {edit_gone, "'budgets' is missing"},
    };
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = rank_stream();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fm_budgets back;
        struct fm_err err = {0};
        struct fm_bundle b = open_stream(write_train("bad", &in, cases[i].edit, dropped));
        int code = fm_budgets_open(&back, &b, &err);
        fm_bundle_close(&b);
        expect(code, &err, FM_EFORMAT, cases[i].why);
    }
    fm_bundle_close(&in);
}

/* Rounded widths merge ratios up to 1 into a smaller one. */
static void merged_actions_read_back(void **unused)
{
    (void)unused;
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    struct fm_bundle in = rank_stream();
    struct fm_actions actions;
    cJSON *manifest;
    void *frame;
    size_t size;
    must(fm_actions_parse(&actions, FM_ACTIONS_TEN, config.I, 16, &err), &err);
    assert_int_equal(actions.count, 3);
    struct fm_family f = new_family(&actions, 2);
    must(fm_stage_manifest(&manifest, FM_STAGE_TRAIN, &in, NULL, dropped, &err), &err);
    must(fm_stage_history(manifest, "fm-train", cJSON_CreateObject(), NULL, NULL, &err), &err);
    must(fm_budgets_pack(&f, &actions, &config, fm_stage_tensor_bytes(&dir), FM_F16, manifest,
                         &frame, &size, &err),
         &err);
    struct fm_bundle b = open_stream(
        write_stream("merged", FM_STAGE_TRAIN, &in, manifest, FM_MEMBER_MASKS, frame, size));
    struct fm_budgets back;
    must(fm_budgets_open(&back, &b, &err), &err);
    assert_int_equal(back.actions.count, 3);
    assert_int_equal(back.actions.width[2], config.I);
    fm_budgets_release(&back);
    fm_family_release(&f);
    fm_bundle_close(&b);
    fm_bundle_close(&in);
    free(frame);
}

static struct fm_adapter new_adapter(void)
{
    struct fm_adapter a;
    struct fm_err err = {0};
    uint32_t widths[64];
    for (int i = 0; i < config.M * config.E; i++)
        widths[i] = (uint32_t)(1 + i * 5 % config.I);
    must(fm_adapter_init(&a, config.M, config.E, config.H, 3, 6.5f, widths, &err), &err);
    fm_adapter_start(&a, 11);
    return a;
}

static void an_adapter_reads_back(void **unused)
{
    (void)unused;
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    struct fm_bundle in = rank_stream();
    struct fm_bundle train = open_stream(write_train("train", &in, edit_nothing, dropped));
    struct fm_adapter a = new_adapter(), back;
    struct fm_bundle b = open_stream(write_recover("recover", &train, &a, NULL));
    must(fm_lorafile_open(&back, &b, &err), &err);
    size_t experts = (size_t)(config.M * config.E);
    assert_int_equal(back.r, 3);
    assert_true(back.alpha == 6.5f);
    assert_memory_equal(back.widths, a.widths, experts * sizeof *a.widths);
    assert_memory_equal(back.values, a.values, a.offset[experts] * sizeof *a.values);
    fm_adapter_release(&a);
    fm_adapter_release(&back);
    fm_bundle_close(&b);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
}

static void replace(char *bytes, const char *from, const char *to)
{
    char *at = memmem(bytes, 4096, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(to));
}
static void edit_rank(char *bytes)
{
    replace(bytes, "\"rank\":\"3\"", "\"rank\":\"4\"");
}
static void edit_alpha(char *bytes)
{
    replace(bytes, "\"alpha\":\"6.5\"", "\"alpha\":\"inf\"");
}
static void edit_kind(char *bytes)
{
    replace(bytes, "\"adapter\"", "\"adaptor\"");
}
static void edit_name(char *bytes)
{
    replace(bytes, "layers.0.experts.0.gate_B", "layers.0.experts.9.gate_B");
}
static void edit_value(char *bytes)
{
    uint64_t header;
    memcpy(&header, bytes, 8);
    memset(bytes + 8 + header, 0xff, 4);
}

static void adapters_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    static const struct {
        void (*edit)(char *bytes);
        const char *why;
    } cases[] = {
        {edit_rank, "as the manifest makes it"}, {edit_alpha, "metadata alpha is 'inf'"},
        {edit_kind, "fm.kind is 'adaptor'"},     {edit_name, "experts.0.gate_B' is missing"},
        {edit_value, "nan at element 0"},
    };
    char dropped[FM_STAGE_DROPPED_BYTES];
    struct fm_bundle in = rank_stream();
    struct fm_bundle train = open_stream(write_train("train", &in, edit_nothing, dropped));
    struct fm_adapter a = new_adapter();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fm_adapter back;
        struct fm_err err = {0};
        struct fm_bundle b = open_stream(write_recover("bad", &train, &a, cases[i].edit));
        int code = fm_lorafile_open(&back, &b, &err);
        fm_bundle_close(&b);
        expect(code, &err, FM_EFORMAT, cases[i].why);
    }
    fm_adapter_release(&a);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
}

static void training_again_drops_the_adapter_and_says_so(void **unused)
{
    (void)unused;
    char dropped[FM_STAGE_DROPPED_BYTES], again[FM_STAGE_DROPPED_BYTES];
    struct fm_err err = {0};
    struct fm_bundle in = rank_stream(), unread;
    struct fm_bundle train = open_stream(write_train("train", &in, edit_nothing, dropped));
    struct fm_adapter a = new_adapter();
    struct fm_bundle recover = open_stream(write_recover("recover", &train, &a, NULL));
    struct fm_bundle b = open_stream(write_train("again", &recover, edit_nothing, again));
    assert_string_equal(dropped, "");
    assert_non_null(strstr(again, FM_MEMBER_ADAPTER));
    assert_null(fm_bundle_find(&b, FM_MEMBER_ADAPTER));
    assert_null(cJSON_GetObjectItemCaseSensitive(b.manifest, "adapter"));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(b.manifest, "history")),
                     2);
    assert_non_null(fm_stage_history_of(&b, "fm-train"));
    assert_null(fm_stage_history_of(&b, "fm-recover"));
    /* And nothing is left of it: the bytes are those of training on the ranking. */
    assert_int_equal(b.file.size, train.file.size);
    assert_true(fm_digest_equal(&b.member[0].digest, &train.member[0].digest));
    expect(fm_stage_open(&unread, b.file.path, FM_MEMBER_ADAPTER, &err), &err, FM_ECONFIG,
           "run fm-recover on it first");
    fm_adapter_release(&a);
    fm_bundle_close(&b);
    fm_bundle_close(&recover);
    fm_bundle_close(&train);
    fm_bundle_close(&in);
}

static void another_checkpoint_is_refused_by_its_digests(void **unused)
{
    (void)unused;
    struct fm_err err = {0};
    struct fm_bundle b = rank_stream();
    must(fm_stage_model_check(&b, &dir, &err), &err);
    char was = dir.config[dir.config_bytes - 2];
    dir.config[dir.config_bytes - 2] = ' ';
    int code = fm_stage_model_check(&b, &dir, &err);
    dir.config[dir.config_bytes - 2] = was;
    expect(code, &err, FM_ECONFIG, "config.json has digest");
    dir.shard[1].st.header_digest[1] ^= 1;
    code = fm_stage_model_check(&b, &dir, &err);
    dir.shard[1].st.header_digest[1] ^= 1;
    expect(code, &err, FM_ECONFIG, "header digest");
    dir.shards--;
    code = fm_stage_model_check(&b, &dir, &err);
    dir.shards++;
    expect(code, &err, FM_ECONFIG, "1 shards");
    fm_bundle_close(&b);
}

static void a_config_of_another_model_is_refused(void **unused)
{
    (void)unused;
    struct fm_ranking r = new_ranking();
    struct fm_err err = {0};
    struct fm_bundle b;
    struct fm_hfdir was = dir;
    /* The identity is of an edited text, the carried file is as it is on disk. */
    char *edited = malloc(dir.config_bytes + 1);
    assert_non_null(edited);
    memcpy(edited, was.config, was.config_bytes);
    edited[was.config_bytes - 1] = ' ';
    dir.config = edited;
    const char *path = write_rank("spliced", &r, "score");
    dir = was;
    expect(fm_stage_open(&b, path, FM_MEMBER_RANKING, &err), &err, FM_EFORMAT,
           "carried/config.json: digest is");
    fm_ranking_release(&r);
    free(edited);
}

static void histories_that_cannot_be_are_refused(void **unused)
{
    (void)unused;
    static const char *const stages[] = {"train", "rank"};
    static const char *const histories[] = {
        "[{\"tool\": \"fm-rank\", \"options\": {}}]",
        "[{\"tool\": \"fm-rank\", \"options\": {}}, {\"tool\": \"fm-rank\", \"options\": {}}]"};
    static const char *const why[] = {"stage is 'train'", "cannot come here"};
    struct fm_err err = {0};
    for (int i = 0; i < 2; i++) {
        cJSON *model, *m = cJSON_CreateObject();
        struct fm_bundle_writer *w;
        struct fm_bundle b;
        fm_json_add_uint(m, "schema", 1);
        cJSON_AddStringToObject(m, "suite", "fm");
        cJSON_AddStringToObject(m, "stage", stages[i]);
        must(fm_stage_model_identity(&model, &dir, &config, FM_F16, &err), &err);
        cJSON_AddItemToObject(m, "model", model);
        cJSON_AddItemToObject(m, "history", cJSON_Parse(histories[i]));
        const char *path = scratch("bad");
        must(fm_bundle_begin(&w, path, true, m, NULL, 0, &err), &err);
        must(fm_bundle_finish(w, &err), &err);
        expect(fm_stage_open(&b, path, NULL, &err), &err, FM_EFORMAT, why[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ranking_reads_back),
        cmocka_unit_test(layers_with_experts_are_read_from_the_manifest),
        cmocka_unit_test(a_stream_carries_the_checkpoints_small_files),
        cmocka_unit_test(rankings_that_cannot_be_are_refused),
        cmocka_unit_test(a_family_reads_back),
        cmocka_unit_test(families_that_cannot_be_are_refused),
        cmocka_unit_test(merged_actions_read_back),
        cmocka_unit_test(an_adapter_reads_back),
        cmocka_unit_test(adapters_that_cannot_be_are_refused),
        cmocka_unit_test(training_again_drops_the_adapter_and_says_so),
        cmocka_unit_test(another_checkpoint_is_refused_by_its_digests),
        cmocka_unit_test(a_config_of_another_model_is_refused),
        cmocka_unit_test(histories_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
