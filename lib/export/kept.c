/* One ranking is in memory at a time, beside the order of the family's channels. */
#include "lib/export/kept.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/run/inputs.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

/* Scores that have different units give shares that cannot be compared. */
static int check_criterion(const struct fm_bundle *b, const struct fm_bundle *family,
                           struct fm_err *err)
{
    const char *own = fm_ranking_criterion(b), *other = fm_ranking_criterion(family);
    if (strcmp(own, other) == 0)
        return FM_OK;
    return fm_fail(
        err, FM_ECONFIG,
        "'%s' was ranked by %.64s, but the channels of '%s' by %.64s; rank with the same "
        "--criterion",
        b->file.path, own, family->file.path, other);
}

static int name_kind(struct fm_kinds *kinds, const char *path, struct fm_err *err)
{
    char name[FM_KIND_BYTES];
    assert(kinds->count < FM_KINDS_MAX);
    fm_inputs_kind(name, path);
    for (int k = 0; k < kinds->count; k++)
        if (strcmp(kinds->name[k], name) == 0)
            return fm_fail(err, FM_EUSAGE,
                           "two rankings have the name '%s'; rename one of the files", name);
    memcpy(kinds->name[kinds->count++], name, sizeof name);
    return FM_OK;
}

/* Add up the scores of the channels that every member keeps, for the kind k.  Returns the sum of
 * all scores. */
static double add_scores(struct fm_kept *kept, int k, const struct fm_masks *masks,
                         const int32_t *order, const double *scores, double *first)
{
    size_t X = (size_t)masks->M * (size_t)masks->E, I = (size_t)masks->I;
    double all = 0;
    for (size_t x = 0; x < X; x++) {
        first[0] = 0;
        for (size_t j = 0; j < I; j++)
            first[j + 1] = first[j] + scores[x * I + (size_t)order[x * I + j]];
        for (int row = 0; row < kept->rows; row++)
            kept->share[row][k] += first[fm_masks_widths(masks, row)[x]];
        all += first[I];
    }
    return all;
}

static int add_kind(struct fm_kept *kept, const struct fm_opened *o, const int32_t *order,
                    const struct fm_bundle *stream, struct fm_err *err)
{
    int k = kept->kinds.count - 1;
    const struct fm_masks *masks = &o->budgets.masks;
    struct fm_ranking r;
    if (fm_stage_model_same(stream, &o->bundle, err) || check_criterion(stream, &o->bundle, err) ||
        fm_ranking_open(&r, stream, err))
        return err->code;
    double *first = fm_alloc((size_t)masks->I + 1, sizeof *first, "sums of scores", err);
    double all = first ? add_scores(kept, k, masks, order, r.scores, first) : 0;
    int rc = first ? FM_OK : err->code;
    if (!rc && !(all > 0 && isfinite(all)))
        rc = fm_fail(err, FM_EFORMAT, "%s: the sum of its scores is %g, of which no share is known",
                     stream->file.path, all);
    for (int row = 0; row < kept->rows && !rc; row++)
        kept->share[row][k] /= all;
    free(first);
    fm_ranking_release(&r);
    return rc;
}

int fm_kept_fill(struct fm_kept *kept, const struct fm_opened *o, const char *const *ranking,
                 struct fm_err *err)
{
    struct fm_ranking own = {0};
    *kept = (struct fm_kept){.rows = o->budgets.masks.count};
    kept->share = fm_alloc((size_t)kept->rows, sizeof *kept->share, "shares of members", err);
    if (!kept->share || fm_ranking_open(&own, &o->bundle, err))
        return err->code;
    fm_ranking_keep_order(&own);
    int rc = FM_OK;
    for (int i = 0; ranking[i] && !rc; i++) {
        struct fm_bundle stream = {0};
        if (name_kind(&kept->kinds, ranking[i], err) ||
            fm_stage_open(&stream, ranking[i], FM_MEMBER_RANKING, err) ||
            add_kind(kept, o, own.order, &stream, err))
            rc = err->code;
        fm_bundle_close(&stream);
    }
    fm_ranking_release(&own);
    return rc;
}

void fm_kept_release(struct fm_kept *kept)
{
    free(kept->share);
    *kept = (struct fm_kept){0};
}

int fm_kept_least(const struct fm_kept *kept, int row)
{
    int least = 0;
    assert(row >= 0 && row < kept->rows && kept->kinds.count > 0);
    for (int k = 1; k < kept->kinds.count; k++)
        if (kept->share[row][k] < kept->share[row][least])
            least = k;
    return least;
}

void fm_kept_add(cJSON *budgets, const struct fm_kept *kept)
{
    cJSON *member;
    int row = 0;
    cJSON_ArrayForEach(member, budgets)
    {
        cJSON *coverage = fm_json_add_object(member, "coverage");
        for (int k = 0; k < kept->kinds.count; k++)
            fm_json_add_double(coverage, kept->kinds.name[k], kept->share[row][k]);
        fm_json_add_string(member, "least_covered", kept->kinds.name[fm_kept_least(kept, row)]);
        row++;
    }
}
