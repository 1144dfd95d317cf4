/*
 * Groups of channels (usually of one channel) are sorted by score, ties by the lower index, so
 * there is exactly one order for given scores, which the reader checks.  Every tensor must exist
 * with its shape before memory is allocated for the sizes that the manifest states.  Scores must be
 * finite and not negative, and orders must be permutations.
 */
#include "lib/stage/ranking.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/stage/stage.h"
#include "lib/stage/stbytes.h"

/* The number of experts in all ranked layers. */
static int experts_of(const struct fm_ranking *r)
{
    return (r->M + r->ahead) * r->E;
}

int fm_ranking_init(struct fm_ranking *r, int M, int ahead, int E, int I, struct fm_err *err)
{
    assert(M > 0 && (ahead == 0 || ahead == 1) && E > 0 && I > 0);
    *r = (struct fm_ranking){.M = M, .ahead = ahead, .E = E, .I = I, .group = 1};
    size_t experts = (size_t)experts_of(r), channels;
    if (!fm_mul(&channels, experts, (size_t)I))
        return fm_fail(err, FM_ENOMEM, "no memory for %zu x %d scores", experts, I);
    r->scores = fm_alloc(channels, sizeof *r->scores, "channel scores", err);
    r->order = fm_alloc(channels, sizeof *r->order, "channel order", err);
    r->tokens = fm_alloc(experts, sizeof *r->tokens, "token counts", err);
    if (r->scores && r->order && r->tokens)
        return FM_OK;
    fm_ranking_release(r);
    return err->code;
}

void fm_ranking_release(struct fm_ranking *r)
{
    free(r->scores);
    free(r->order);
    free(r->tokens);
    *r = (struct fm_ranking){0};
}

void fm_ranking_keep_order(struct fm_ranking *r)
{
    free(r->scores);
    r->scores = NULL;
}

/* The order of groups: higher score first, ties to the lower index. */
static bool goes_before(const double *scores, int32_t a, int32_t b)
{
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

static int compare_groups(const void *a, const void *b, void *scores)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return goes_before(scores, x, y) ? -1 : goes_before(scores, y, x);
}

void fm_ranking_original(struct fm_ranking *r)
{
    for (int i = 0; i < experts_of(r); i++)
        for (int j = 0; j < r->I; j++)
            r->order[(size_t)i * (size_t)r->I + (size_t)j] = j;
}

/* sums (I / group): the score of each group, added up in the order of its channels. */
static void add_groups(double *sums, const double *scores, int I, int group)
{
    for (int g = 0; g < I / group; g++) {
        sums[g] = 0;
        for (int j = 0; j < group; j++)
            sums[g] += scores[g * group + j];
    }
}

int fm_ranking_sort(struct fm_ranking *r, struct fm_err *err)
{
    assert(r->scores && r->I % r->group == 0);
    int groups = r->I / r->group;
    double *sums = fm_alloc((size_t)groups, sizeof *sums, "scores of channel groups", err);
    int32_t *first = fm_alloc((size_t)groups, sizeof *first, "channel groups", err);
    for (int i = 0; sums && first && i < experts_of(r); i++) {
        int32_t *order = r->order + (size_t)i * (size_t)r->I;
        add_groups(sums, r->scores + (size_t)i * (size_t)r->I, r->I, r->group);
        for (int g = 0; g < groups; g++)
            first[g] = g;
        qsort_r(first, (size_t)groups, sizeof *first, compare_groups, sums);
        for (int j = 0; j < r->I; j++)
            order[j] = first[j / r->group] * r->group + j % r->group;
    }
    int rc = sums && first ? FM_OK : err->code;
    free(sums);
    free(first);
    return rc;
}

/* The sum is a double, because the counts in a file may be too large for an integer sum; it is
 * exact below 2^53. */
double fm_ranking_slots(const struct fm_ranking *r, int m)
{
    assert(m >= 0 && m < r->M + r->ahead);
    double slots = 0;
    for (int e = 0; e < r->E; e++)
        slots += (double)r->tokens[m * r->E + e];
    return slots;
}

enum fm_reach fm_ranking_reach(const struct fm_ranking *r, int m, int e, double slots)
{
    double tokens = (double)r->tokens[m * r->E + e];
    if (tokens == 0)
        return FM_REACH_NONE;
    return tokens * 10 * r->E < slots ? FM_REACH_STARVED : FM_REACH_ENOUGH;
}

#define TENSORS 3 /* of a layer in ranking.safetensors */

static const char *const metadata[] = {"fm.kind", "ranking", NULL};

/* The number of layer m, of which those of the decoder are in moe. */
static int layer_of(int m, int M, const int16_t *moe, int L)
{
    return m < M ? moe[m] : L;
}

static int list_tensors(struct fm_stbytes *s, const struct fm_ranking *r, const int16_t *moe, int L,
                        struct fm_err *err)
{
    const uint64_t shape[2] = {(uint64_t)r->E, (uint64_t)r->I};
    size_t experts = (size_t)r->E, channels = experts * (size_t)r->I;
    if (fm_stbytes_init(s, TENSORS * (size_t)(r->M + r->ahead), err))
        return err->code;
    for (int m = 0; m < r->M + r->ahead; m++) {
        size_t at = (size_t)m * channels;
        int l = layer_of(m, r->M, moe, L);
        fm_stbytes_add(s, FM_F64, 2, shape, r->scores ? r->scores + at : NULL, "layers.%d.scores",
                       l);
        fm_stbytes_add(s, FM_I32, 2, shape, r->order ? r->order + at : NULL, "layers.%d.order", l);
        fm_stbytes_add(s, FM_I64, 1, shape, r->tokens ? r->tokens + (size_t)m * experts : NULL,
                       "layers.%d.tokens", l);
    }
    return FM_OK;
}

int fm_ranking_size(const struct fm_ranking *r, const int16_t *moe, int L, size_t *size,
                    struct fm_err *err)
{
    struct fm_stbytes s = {0};
    int rc = list_tensors(&s, r, moe, L, err);
    if (!rc)
        rc = fm_stbytes_size(&s, metadata, size, err);
    fm_stbytes_release(&s);
    return rc;
}

int fm_ranking_pack(const struct fm_ranking *r, const int16_t *moe, int L, void **data,
                    size_t *size, struct fm_err *err)
{
    struct fm_stbytes s = {0};
    int rc = list_tensors(&s, r, moe, L, err);
    if (!rc)
        rc = fm_stbytes_pack(&s, metadata, data, size, err);
    fm_stbytes_release(&s);
    return rc;
}

/* The data of one layer in the file: not checked yet, and possibly not aligned. */
struct layer_tensors {
    const void *scores, *order, *tokens;
};

/* Find the tensors of a layer. */
static int find_layer(struct layer_tensors *t, const struct fm_stmember *m, int l, int E, int I,
                      struct fm_err *err)
{
    const uint64_t shape[2] = {(uint64_t)E, (uint64_t)I};
    *t = (struct layer_tensors){0};
    t->scores = fm_stmember_get(m, FM_F64, 2, shape, err, "layers.%d.scores", l);
    if (t->scores)
        t->order = fm_stmember_get(m, FM_I32, 2, shape, err, "layers.%d.order", l);
    if (t->scores && t->order)
        t->tokens = fm_stmember_get(m, FM_I64, 1, shape, err, "layers.%d.tokens", l);
    return t->scores && t->order && t->tokens ? FM_OK : err->code;
}

/* Check that every tensor exists, before memory is allocated for the manifest's sizes.  *ahead is
 * set to whether a layer for multi-token prediction is ranked, which the manifest must have. */
static int check_tensors(int *ahead, const struct fm_stmember *member,
                         const struct fm_stage_model *model, struct fm_err *err)
{
    struct layer_tensors t;
    size_t need = TENSORS * (size_t)model->M;
    *ahead = fm_extra_layers(&model->extra) > 0 && member->st.count == need + TENSORS;
    if (!*ahead && member->st.count != need)
        return fm_fail(err, FM_EFORMAT, "has %zu tensors where %d layers need %zu",
                       member->st.count, model->M, need);
    for (int m = 0; m < model->M + *ahead; m++)
        if (find_layer(&t, member, layer_of(m, model->M, model->moe, model->L), model->E, model->I,
                       err))
            return err->code;
    return FM_OK;
}

static int check_scores(const double *scores, int I, struct fm_err *err)
{
    for (int j = 0; j < I; j++)
        if (!(scores[j] >= 0 && isfinite(scores[j])))
            return fm_fail(err, FM_EFORMAT, "the score of channel %d is %g", j, scores[j]);
    return FM_OK;
}

/* Check that an order is a permutation; `seen` (I) is scratch. */
static int check_permutation(const int32_t *order, int I, char *seen, struct fm_err *err)
{
    assert(I > 0);
    memset(seen, 0, (size_t)I);
    for (int j = 0; j < I; j++) {
        if (order[j] < 0 || order[j] >= I)
            return fm_fail(err, FM_EFORMAT, "rank %d is channel %d of %d", j, order[j], I);
        if (seen[order[j]]++)
            return fm_fail(err, FM_EFORMAT,
                           "channel %d appears twice: the order is not a permutation", order[j]);
    }
    return FM_OK;
}

/* Check that an order follows from the scores; `sums` (I) is scratch. */
static int check_order(const double *scores, const int32_t *order, int I, int group, double *sums,
                       struct fm_err *err)
{
    add_groups(sums, scores, I, group);
    for (int j = 0; j < I; j++)
        if (order[j] % group != j % group || order[j] / group != order[j - j % group] / group)
            return fm_fail(err, FM_EFORMAT,
                           "rank %d is channel %d, which splits a group of %d channels", j,
                           order[j], group);
    for (int j = group; j < I; j += group) {
        int32_t before = order[j - group] / group, after = order[j] / group;
        if (!goes_before(sums, before, after))
            return fm_fail(err, FM_EFORMAT,
                           "rank %d (channel %d, score %.17g) comes before channel %d (%.17g)",
                           j - group, order[j - group], sums[before], order[j], sums[after]);
    }
    return FM_OK;
}

static int check_original(const int32_t *order, int I, struct fm_err *err)
{
    for (int j = 0; j < I; j++)
        if (order[j] != j)
            return fm_fail(err, FM_EFORMAT, "rank %d is channel %d; the order should be original",
                           j, order[j]);
    return FM_OK;
}

static int check_values(const struct fm_ranking *r, const struct fm_stage_model *model,
                        bool original, struct fm_err *err)
{
    char *seen = fm_alloc((size_t)r->I, 1, "channels", err);
    double *sums = fm_alloc((size_t)r->I, sizeof *sums, "scores of channel groups", err);
    int rc = seen && sums ? FM_OK : err->code;
    for (int i = 0; i < experts_of(r) && !rc; i++) {
        size_t at = (size_t)i * (size_t)r->I;
        if (r->tokens[i] < 0)
            rc = fm_fail(err, FM_EFORMAT, "negative token count");
        else if (!(rc = check_scores(r->scores + at, r->I, err)) &&
                 !(rc = check_permutation(r->order + at, r->I, seen, err)))
            rc = original ? check_original(r->order + at, r->I, err)
                          : check_order(r->scores + at, r->order + at, r->I, r->group, sums, err);
        if (rc)
            fm_within(err, "layer %d, expert %d", layer_of(i / r->E, r->M, model->moe, model->L),
                      i % r->E);
    }
    free(seen);
    free(sums);
    return rc;
}

const cJSON *fm_ranking_options(const struct fm_bundle *b)
{
    return cJSON_GetObjectItemCaseSensitive(fm_stage_history_of(b, "fm-rank"), "options");
}

const char *fm_ranking_criterion(const struct fm_bundle *b)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(fm_ranking_options(b), "criterion");
    return !item ? FM_RANKING_CRITERION : cJSON_IsString(item) ? item->valuestring : "";
}

int fm_ranking_group(int *group, const struct fm_bundle *b, int I, struct fm_err *err)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(fm_ranking_options(b), "channel_group");
    double n = value ? (cJSON_IsNumber(value) ? value->valuedouble : 0) : 1;
    *group = n >= 1 && n <= I ? (int)n : 0;
    if (*group && (double)*group == n && I % *group == 0)
        return FM_OK;
    return fm_fail(
        err, FM_EFORMAT,
        "%s: channel_group in fm-rank's history is %g; it must divide %d, the number of channels",
        b->file.path, n, I);
}

static bool is_original(const struct fm_bundle *b)
{
    const cJSON *options = fm_ranking_options(b);
    const char *order = fm_json_string_value(options, "order");
    return order && strcmp(order, "original") == 0;
}

static int copy_values(struct fm_ranking *r, const struct fm_stage_model *model,
                       const struct fm_stmember *member, struct fm_err *err)
{
    size_t experts = (size_t)r->E, channels = experts * (size_t)r->I;
    for (int m = 0; m < r->M + r->ahead; m++) {
        struct layer_tensors t;
        if (find_layer(&t, member, layer_of(m, r->M, model->moe, model->L), r->E, r->I, err))
            return err->code;
        memcpy(r->scores + (size_t)m * channels, t.scores, channels * sizeof *r->scores);
        memcpy(r->order + (size_t)m * channels, t.order, channels * sizeof *r->order);
        memcpy(r->tokens + (size_t)m * experts, t.tokens, experts * sizeof *r->tokens);
    }
    return FM_OK;
}

int fm_ranking_open(struct fm_ranking *r, const struct fm_bundle *b, struct fm_err *err)
{
    struct fm_stage_model model;
    struct fm_stmember m;
    *r = (struct fm_ranking){0};
    if (fm_stage_model_read(&model, b, err) ||
        fm_stmember_open(&m, b, FM_MEMBER_RANKING, "ranking", err))
        return err->code;
    int rc = FM_OK, ahead;
    if (check_tensors(&ahead, &m, &model, err) ||
        fm_ranking_init(r, model.M, ahead, model.E, model.I, err) ||
        copy_values(r, &model, &m, err) || fm_ranking_group(&r->group, b, model.I, err) ||
        check_values(r, &model, is_original(b), err)) {
        rc = err->code;
        fm_within(err, "%s: %s", b->file.path, FM_MEMBER_RANKING);
        fm_ranking_release(r);
    }
    fm_stmember_close(&m);
    return rc;
}
