/*
 * Compares the quality of a family with controls: the same widths shuffled inside layers or over
 * the model, which have the same budget, and one width for all, which is rounded up.  All of them
 * are masks, which lib/learn/quality.h measures on the same held-out sequences in one call.
 */
#include "lib/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/hfdir.h"
#include "lib/base/mem.h"
#include "lib/engine/sweep.h"
#include "lib/learn/forecast.h"
#include "lib/learn/quality.h"

#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"

const char *fm_bench_kind_name(enum fm_bench_kind kind)
{
    static const char *const name[] = {"family", "uniform", "shuffle-layer", "shuffle-global"};
    return kind < FM_BENCH_KINDS ? name[kind] : NULL;
}

int fm_bench_held(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                  const struct fm_config *config, struct fm_err *err)
{
    return fm_inputs_evaluate(&run->inputs) ? fm_calib_open(held, run, config, true, err)
                                            : fm_quality_open(train, held, run, config, err);
}

uint64_t fm_bench_tokens(const struct fm_calib *held)
{
    return (uint64_t)held->count * (uint64_t)(held->T - 1);
}

uint64_t fm_bench_values(const struct fm_calib *held, int masks)
{
    return fm_quality_detail_bytes(fm_bench_tokens(held),
                                   masks < FM_LANES_MAX ? masks : FM_LANES_MAX - 1);
}

/* The subject of the measurement: the stream, and the model in the channel order of its masks. */
struct subject {
    struct fm_bundle bundle;
    struct fm_hfdir dir; /* the checkpoint, if the masks are from a stage stream */
    struct fm_budgets budgets;
    struct fm_ranking ranking;
    struct fm_adapter adapter;
    bool adapted;
    struct fm_model *model;
    struct fm_calib train, held;
    struct fm_quality_detail detail;
    struct fm_quality_subject measured; /* of the plan */
};

/* A bundle has its own weights, with the adapter in them; a stage stream needs --model. */
static int open_model(struct subject *s, const struct fm_run_options *run, struct fm_err *err)
{
    uint64_t memory = fm_machine_memory(&run->machine) / 2;
    const char *stage = fm_json_string_value(s->bundle.manifest, "stage");
    if (stage && strcmp(stage, "pack") == 0)
        return run->inputs.model ? fm_fail(err, FM_EUSAGE,
                                           "'%s' is a bundle and has its own weights; omit --model",
                                           run->inputs.stream)
                                 : fm_model_open(&s->model, run->inputs.stream, memory, err);
    if (!run->inputs.model)
        return fm_fail(err, FM_EUSAGE, "'%s' has no weights: give its checkpoint with --model",
                       run->inputs.stream);
    if (fm_hfdir_open(&s->dir, run->inputs.model, err) ||
        fm_stage_model_check(&s->bundle, &s->dir, err) ||
        fm_ranking_open(&s->ranking, &s->bundle, err))
        return err->code;
    s->adapted = fm_bundle_find(&s->bundle, FM_MEMBER_ADAPTER) != NULL;
    if (s->adapted && fm_lorafile_open(&s->adapter, &s->bundle, err))
        return err->code;
    if (fm_model_open_dir(&s->model, &s->dir, memory, err))
        return err->code;
    fm_model_rank(s->model, s->ranking.order);
    fm_model_keep_codes(s->model, fm_model_can_keep(s->model, s->ranking.group));
    return FM_OK;
}

static int open_subject(struct subject *s, const struct fm_run_options *run, struct fm_err *err)
{
    if (fm_stage_open(&s->bundle, run->inputs.stream, FM_MEMBER_MASKS, err) ||
        fm_budgets_open(&s->budgets, &s->bundle, err) || open_model(s, run, err))
        return err->code;
    const struct fm_config *config = fm_model_config(s->model);
    const struct fm_masks *f = &s->budgets.masks;
    if (config->M != f->M || config->E != f->E || config->I != f->I)
        return fm_fail(err, FM_ECONFIG,
                       "'%s' has masks for %d layers of %d experts of %d channels, but the model "
                       "has %d, %d and %d",
                       run->inputs.stream, f->M, f->E, f->I, config->M, config->E, config->I);
    return fm_bench_held(&s->train, &s->held, run, config, err);
}

const struct fm_decimals fm_bench_tenths = {
    .count = 10,
    .at = {
        {0, 1}, {1, 10}, {2, 10}, {3, 10}, {4, 10}, {5, 10}, {6, 10}, {7, 10}, {8, 10}, {9, 10}}};

int fm_bench_choose(int **mask, int *n, const struct fm_masks *f, const struct fm_decimals *budgets,
                    struct fm_err *err)
{
    const struct fm_decimals *list = budgets ? budgets : &fm_bench_tenths;
    *mask = fm_alloc((size_t)f->count, sizeof **mask, "the rows of the table", err);
    *n = 0;
    if (!*mask)
        return err->code;
    for (int i = 0; i < (list->all ? f->count : list->count); i++) {
        int nearest = list->all ? i : fm_masks_nearest(f, &list->at[i]);
        if (*n == 0 || (*mask)[*n - 1] < nearest)
            (*mask)[(*n)++] = nearest;
    }
    return FM_OK;
}

static int choose_rows(struct fm_bench_quality *q, const struct fm_masks *f,
                       const struct fm_decimals *budgets, struct fm_err *err)
{
    int *mask = NULL, rc = fm_bench_choose(&mask, &q->rows, f, budgets, err);
    if (!rc)
        q->row = fm_alloc((size_t)f->count, sizeof *q->row, "the rows of the table", err);
    for (int i = 0; q->row && i < q->rows; i++)
        q->row[i].mask = mask[i];
    free(mask);
    return q->row ? rc : err->code;
}

/* Bytes of all tensors after this many channels are removed, from the bytes per channel of the
 * family. */
static uint64_t bytes_without(const struct fm_budgets *b, uint64_t removed)
{
    int last = b->masks.count - 1;
    uint64_t all = b->masks.mask[last].removed, full = b->budget[0].bytes;
    return all == 0 ? full : full - (full - b->budget[last].bytes) / all * removed;
}

/* Fill widths (rows, kinds, M, E), and the rows' actual budgets and bytes. */
static int fill_widths(uint32_t *widths, struct fm_bench_quality *q, const struct subject *s,
                       uint64_t seed, struct fm_err *err)
{
    const struct fm_masks *f = &s->budgets.masks;
    struct fm_masks layer, global;
    size_t experts = (size_t)f->M * (size_t)f->E;
    fm_masks_init(&layer, f->M, f->E, f->I);
    fm_masks_init(&global, f->M, f->E, f->I);
    int rc = fm_masks_shuffle(&layer, f, false, seed, err);
    if (!rc)
        rc = fm_masks_shuffle(&global, f, true, seed, err);
    const struct fm_masks *from[FM_BENCH_KINDS] = {f, NULL, &layer, &global};
    for (int r = 0; !rc && r < q->rows; r++)
        for (int k = 0; k < FM_BENCH_KINDS; k++) {
            int mask = q->row[r].mask;
            uint32_t *w = widths + (size_t)(r * FM_BENCH_KINDS + k) * experts;
            uint32_t same = fm_actions_uniform(f->mask[mask].removed, f->M, f->E, f->I,
                                               s->budgets.actions.multiple);
            for (size_t i = 0; i < experts; i++)
                w[i] = from[k] ? fm_masks_widths(from[k], mask)[i] : same;
            uint64_t removed = fm_masks_removed(f, w);
            q->row[r].budget[k] = (double)removed / (double)fm_masks_channels(f);
            q->row[r].bytes[k] = bytes_without(&s->budgets, removed);
        }
    fm_masks_release(&layer);
    fm_masks_release(&global);
    return rc;
}

/* Estimate the cost of measuring the rows. */
static void plan(struct fm_estimate *estimate, const struct fm_bench_quality *q, struct subject *s,
                 const struct fm_run_options *run)
{
    double kept = 0;
    for (int r = 0; r < q->rows; r++)
        kept += 1 - fm_masks_budget(&s->budgets.masks, q->row[r].mask);
    s->measured = (struct fm_quality_subject){.model = s->model,
                                              .held = &s->held,
                                              .detail = &s->detail,
                                              .adapter = s->adapted ? &s->adapter : NULL,
                                              .masks = q->rows * FM_BENCH_KINDS,
                                              .kept = kept / q->rows};
    fm_quality_plan(estimate, &s->measured, run);
}

/* Set the differences of losses; row r and kind k are model r * FM_BENCH_KINDS + k, and the full
 * model is the last. */
static void pair_rows(struct fm_bench_quality *q, const struct fm_spread_sums *sums)
{
    for (int r = 0; r < q->rows; r++) {
        struct fm_bench_row *row = &q->row[r];
        int family = r * FM_BENCH_KINDS + FM_BENCH_FAMILY;
        for (int k = 0; k < FM_BENCH_KINDS; k++)
            row->change[k] =
                fm_spread_pair(sums, r * FM_BENCH_KINDS + k, sums,
                               k == FM_BENCH_FAMILY ? q->rows * FM_BENCH_KINDS : family);
        if (r > 0)
            row->step = fm_spread_pair(sums, family, sums, family - FM_BENCH_KINDS);
    }
}

static int measure(struct fm_bench_quality *q, struct subject *s, const struct fm_run_options *run,
                   struct fm_err *err)
{
    const struct fm_masks *f = &s->budgets.masks;
    int masks = q->rows * FM_BENCH_KINDS;
    size_t experts = (size_t)f->M * (size_t)f->E;
    uint32_t *widths = fm_alloc((size_t)masks * experts, sizeof *widths, "widths", err);
    struct fm_quality *quality = fm_alloc((size_t)masks, sizeof *quality, "measures", err);
    struct fm_spread *spread = fm_alloc((size_t)masks, sizeof *spread, "measures", err);
    struct fm_spread_sums sums = {0};
    s->detail.spread = spread;
    s->detail.sums = &sums;
    s->measured.widths = widths;
    int rc = widths && quality && spread ? FM_OK : err->code;
    if (!rc)
        rc = fill_widths(widths, q, s, run->inputs.seed, err);
    if (!rc)
        rc = fm_quality_measure(quality, &s->measured, run, err);
    bool merged = cJSON_GetObjectItemCaseSensitive(s->bundle.manifest, "adapter") != NULL;
    for (int i = 0; !rc && i < masks; i++) {
        quality[i].recovered = merged;
        quality[i].kl = fmax(quality[i].kl, 0); /* rounding may give less than 0 */
        q->row[i / FM_BENCH_KINDS].quality[i % FM_BENCH_KINDS] = quality[i];
        q->row[i / FM_BENCH_KINDS].spread[i % FM_BENCH_KINDS] = spread[i];
    }
    if (!rc)
        pair_rows(q, &sums);
    fm_spread_sums_release(&sums);
    free(spread);
    free(widths);
    free(quality);
    return rc;
}

int fm_bench_quality(const struct fm_run_options *run, const struct fm_decimals *budgets,
                     struct fm_estimate *estimate, struct fm_bench_quality *result,
                     struct fm_err *err)
{
    struct subject s = {0};
    struct fm_estimate own, *cost = estimate ? estimate : &own;
    const struct fm_ops *ops;
    int rc;
    *result = (struct fm_bench_quality){0};
    if (open_subject(&s, run, err) || choose_rows(result, &s.budgets.masks, budgets, err) ||
        fm_machine_ops(&ops, &run->machine, fm_model_dtype(s.model), err)) {
        rc = err->code;
        goto out;
    }
    fm_model_use(s.model, ops);
    plan(cost, result, &s, run);
    cost->precision = fm_machine_precision(ops);
    rc = fm_estimate_fits(cost, run, err);
    if (rc)
        goto out;
    result->sequences = s.held.count;
    result->T = s.held.T;
    result->tokens = fm_bench_tokens(&s.held);
    result->values = fm_bench_values(&s.held, result->rows * FM_BENCH_KINDS);
    fm_quality_kinds(&result->kinds, &s.held);
    result->reference = run->inputs.model ? FM_BENCH_ORIGINAL : FM_BENCH_BUNDLE;
    rc = estimate ? fm_forecast_make(estimate, &run->machine, ops, err)
                  : measure(result, &s, run, err);
out:
    fm_calib_close(&s.held);
    fm_calib_close(&s.train);
    fm_model_close(s.model);
    if (s.adapted)
        fm_adapter_release(&s.adapter);
    fm_ranking_release(&s.ranking);
    fm_budgets_release(&s.budgets);
    fm_hfdir_close(&s.dir);
    fm_bundle_close(&s.bundle);
    return rc;
}

void fm_bench_quality_release(struct fm_bench_quality *result)
{
    free(result->row);
    *result = (struct fm_bench_quality){0};
}
