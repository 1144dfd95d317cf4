/*
 * The two parts of a comparison.  First calibrations run one after another with nothing else in
 * memory, so that time and peak memory are measured for each.  Then one model is open, and every
 * baseline's masks are measured on the same tokens against the same full model: channels are
 * removed in the baseline's own order, experts by closing them in the router.
 */
#include "lib/baseline/contest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/learn/quality.h"
#include "lib/baseline/channelcut.h"
#include "lib/baseline/expertdrop.h"
#include "lib/baseline/methods.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/stage.h"

const struct fm_contest_rule *fm_contest_rule(enum fm_baseline baseline)
{
    static const struct fm_contest_rule rule[FM_BASELINES] = {
        {.name = "reap"},
        {.name = "frequency"},
        {.name = "random"},
        {FM_CONTEST_CHANNELS, "activation", FM_CRITERION_ACTIVATION, FM_CUT_EXPERT, 0},
        {FM_CONTEST_CHANNELS, "contribution", FM_CRITERION_CONTRIBUTION, FM_CUT_EXPERT, 0},
        {FM_CONTEST_CHANNELS, "energy", FM_CRITERION_ENERGY, FM_CUT_LAYER, 0},
        {FM_CONTEST_CHANNELS, "fisher-expert", FM_CRITERION_FISHER, FM_CUT_EXPERT, 0},
        {FM_CONTEST_CHANNELS, "fisher-layer", FM_CRITERION_FISHER, FM_CUT_LAYER, 0},
        {FM_CONTEST_CHANNELS, "fisher-global", FM_CRITERION_FISHER, FM_CUT_GLOBAL, 0},
        {FM_CONTEST_CHANNELS, "winnow", FM_CRITERION_WINNOW, FM_CUT_MULTIPLE, 0},
        {.kind = FM_CONTEST_METHOD, .name = "uniform", .method = FM_METHOD_UNIFORM},
        {.kind = FM_CONTEST_METHOD, .name = "saliency", .method = FM_METHOD_SALIENCY},
        {.kind = FM_CONTEST_METHOD, .name = "exchange", .method = FM_METHOD_EXCHANGE},
        {.kind = FM_CONTEST_METHOD, .name = "learned", .method = FM_METHOD_LEARNED},
        {.kind = FM_CONTEST_METHOD, .name = "default", .method = FM_METHODS},
        {.kind = FM_CONTEST_BUNDLE, .name = "bundle"},
    };
    return &rule[baseline];
}

/* The method of a rule of kind FM_CONTEST_METHOD. */
static enum fm_method method_of(const struct fm_contest_rule *rule)
{
    return rule->method == FM_METHODS ? fm_methods_usual() : rule->method;
}

/* Write the path of a stream in the working directory to `path` (4096 bytes) and return it: the
 * ranking, or the masks of a method, recovered or not. */
static const char *ranking_at(const struct fm_contest *c, enum fm_criterion criterion, char *path)
{
    return fm_workdir_at(&c->work, fm_criterion_name(criterion), path);
}

static const char *masks_at(const struct fm_contest *c, enum fm_method method, bool recovered,
                            char *path)
{
    char name[64];
    snprintf(name, sizeof name, "masks-%s%s", fm_method_name(method),
             recovered ? "-recovered" : "");
    return fm_workdir_at(&c->work, name, path);
}

/* --- calibration --- */

static const struct fm_run_options *run_of(struct fm_contest *c)
{
    const struct fm_run_options *run = c->quiet.inputs.model ? &c->quiet : c->run;
    if (run == c->run) {
        c->quiet = *c->run;
        c->quiet.progress.warn = NULL;
        c->quiet.progress.note = NULL;
    }
    return run;
}

/* Make the stream ranked by a criterion, if it does not exist, and read its ranking for baselines
 * that cut by it. */
static int rank_by(struct fm_contest *c, enum fm_criterion criterion, struct fm_err *err)
{
    char path[4096];
    struct fm_bundle b = {0};
    ranking_at(c, criterion, path);
    if (c->ranked[criterion].seconds > 0)
        return FM_OK;
    int rc = FM_OK;
    if (fm_methods_rank(run_of(c), path, criterion, &c->ranked[criterion], err) ||
        fm_bundle_open(&b, path, err) || fm_ranking_open(&c->ranking[criterion], &b, err))
        rc = err->code;
    fm_bundle_close(&b);
    return rc;
}

static int train_by(struct fm_contest *c, enum fm_method method, struct fm_err *err)
{
    char from[4096], to[4096];
    if (c->trained[method].seconds > 0)
        return FM_OK;
    int rc = rank_by(c, FM_CRITERION_TAYLOR, err);
    if (!rc)
        rc = fm_methods_train(run_of(c), ranking_at(c, FM_CRITERION_TAYLOR, from),
                              masks_at(c, method, false, to), method, c->until, c->options->steps,
                              &c->trained[method], err);
    fm_spent_add(&c->trained[method], &c->ranked[FM_CRITERION_TAYLOR]);
    return rc;
}

static int recover_by(struct fm_contest *c, enum fm_method method, struct fm_err *err)
{
    char from[4096], to[4096];
    int rc = train_by(c, method, err);
    if (!rc)
        rc = fm_methods_recover(run_of(c), masks_at(c, method, false, from),
                                masks_at(c, method, true, to), c->options->steps,
                                &c->recovered[method], err);
    fm_spent_add(&c->recovered[method], &c->trained[method]);
    return rc;
}

static int score_experts(struct fm_contest *c, enum fm_baseline baseline, struct fm_spent *spent,
                         struct fm_err *err)
{
    size_t X = (size_t)c->config.M * (size_t)c->config.E;
    c->score[baseline] = fm_alloc(X, sizeof *c->score[baseline], "scores of experts", err);
    if (!c->score[baseline])
        return FM_ENOMEM;
    fm_spent_begin(spent);
    int rc = fm_expertdrop_score(c->score[baseline], run_of(c), baseline == FM_BASELINE_REAP, err);
    fm_spent_end(spent);
    return rc;
}

static int calibrate_row(struct fm_contest *c, struct fm_baseline_row *row, struct fm_err *err)
{
    const struct fm_contest_rule *rule = fm_contest_rule(row->baseline);
    struct fm_spent spent = {0};
    int rc = FM_OK;
    row->measured = row->baseline != FM_BASELINE_RANDOM && row->baseline != FM_BASELINE_BUNDLE;
    if (!row->measured)
        return FM_OK;
    if (rule->kind == FM_CONTEST_EXPERTS) {
        rc = score_experts(c, row->baseline, &spent, err);
    } else if (rule->kind == FM_CONTEST_CHANNELS) {
        rc = rank_by(c, rule->criterion, err);
        spent = c->ranked[rule->criterion];
    } else if (row->recovered) {
        rc = recover_by(c, method_of(rule), err);
        spent = c->recovered[method_of(rule)];
    } else {
        rc = train_by(c, method_of(rule), err);
        spent = c->trained[method_of(rule)];
    }
    row->seconds = spent.seconds;
    row->memory = spent.memory;
    return rc;
}

int fm_contest_calibrate(struct fm_contest *c, struct fm_err *err)
{
    int rc = FM_OK;
    for (int i = 0; !rc && i < c->table->rows; i++) {
        rc = calibrate_row(c, &c->table->row[i], err);
        if (rc)
            fm_within(err, "%s", fm_baseline_name(c->table->row[i].baseline));
    }
    return rc;
}

/* --- figures --- */

/* State of measuring: the current model, and the masks of the current row of the table. */
struct match {
    struct fm_contest *contest;
    struct fm_model *model;
    const struct fm_ops *ops;
    struct fm_calib held;
    int masks;        /* of the current row */
    int *cell;        /* (budgets FM_BASELINE_DRAWS) the cell of each mask */
    uint32_t *widths; /* (as many masks, M, E) */
    float *closed;    /* (as many masks, M, E) */
    struct fm_quality *quality;
};

static size_t experts_of(const struct match *s)
{
    return (size_t)s->contest->config.M * (size_t)s->contest->config.E;
}

/* The number of channels that the cell's dropped experts have in one layer. */
static uint64_t layer_channels(const struct match *s, int cell)
{
    return (uint64_t)s->contest->table->dropped[cell] * (uint64_t)s->contest->config.I;
}

/* Append a mask at full width to the row; return its widths. */
static uint32_t *add_mask(struct match *s, int cell)
{
    uint32_t *w = s->widths + (size_t)s->masks * experts_of(s);
    for (size_t x = 0; x < experts_of(s); x++)
        w[x] = (uint32_t)s->contest->config.I;
    s->cell[s->masks++] = cell;
    return w;
}

static double budget_of(const struct match *s, const uint32_t *widths)
{
    uint64_t kept = 0;
    for (size_t x = 0; x < experts_of(s); x++)
        kept += widths[x];
    return 1 - (double)kept / ((double)experts_of(s) * s->contest->config.I);
}

/* Average over the masks of each cell. */
static void settle(struct match *s, struct fm_baseline_row *row, bool experts)
{
    const struct fm_baseline_table *t = s->contest->table;
    for (int i = 0; i < s->masks; i++) {
        struct fm_baseline_cell *cell = &row->cell[s->cell[i]];
        const struct fm_quality *q = &s->quality[i];
        double share = row->baseline == FM_BASELINE_RANDOM ? 1.0 / FM_BASELINE_DRAWS : 1;
        cell->budget = experts ? (double)t->dropped[s->cell[i]] / t->experts
                               : budget_of(s, s->widths + (size_t)i * experts_of(s));
        cell->quality.ce += share * q->ce;
        cell->quality.kl += share * q->kl;
        cell->quality.agree += share * q->agree;
        cell->quality.positions = q->positions;
        cell->quality.recovered = q->recovered;
    }
}

/* FM_EUSAGE if measuring the masks that were added takes too much memory. */
static int plan(const struct match *s, const struct fm_adapter *adapter, struct fm_err *err)
{
    struct fm_estimate estimate;
    struct fm_quality_subject subject = {
        .model = s->model, .held = &s->held, .adapter = adapter, .masks = s->masks, .kept = 1};
    fm_model_use(s->model, s->ops);
    fm_quality_plan(&estimate, &subject, s->contest->run);
    return fm_estimate_fits(&estimate, s->contest->run, err);
}

/* Measure the masks that were added, in the order of channels `order` (NULL: the order in the
 * file). */
static int measure_row(struct match *s, struct fm_baseline_row *row, const int32_t *order,
                       const struct fm_adapter *adapter, struct fm_err *err)
{
    const struct fm_run_options *run = s->contest->run;
    bool experts = fm_contest_rule(row->baseline)->kind == FM_CONTEST_EXPERTS;
    if (s->masks == 0)
        return FM_OK;
    if (plan(s, adapter, err))
        return err->code;
    if (order)
        fm_model_rank(s->model, order);
    int rc = experts ? fm_quality_measure_closed(s->quality, s->model, s->ops, &s->held, s->widths,
                                                 s->closed, s->masks, run, err)
                     : fm_quality_measure(s->quality, s->model, s->ops, &s->held, NULL, s->widths,
                                          s->masks, adapter, run, err);
    if (order)
        fm_model_rank(s->model, NULL);
    if (!rc)
        settle(s, row, experts);
    return rc;
}

static int measure_experts(struct match *s, struct fm_baseline_row *row, struct fm_err *err)
{
    const struct fm_contest *c = s->contest;
    bool random = row->baseline == FM_BASELINE_RANDOM;
    double *drawn = fm_alloc(experts_of(s), sizeof *drawn, "scores of experts", err);
    if (!drawn)
        return FM_ENOMEM;
    for (int b = 0; b < c->table->budgets; b++)
        for (int n = 0; n < (random ? FM_BASELINE_DRAWS : 1); n++) {
            if (random)
                fm_expertdrop_draw(drawn, &c->config, c->run->inputs.seed, n);
            fm_expertdrop_close(s->closed + (size_t)s->masks * experts_of(s),
                                random ? drawn : c->score[row->baseline], &c->config,
                                c->table->dropped[b]);
            add_mask(s, b);
        }
    free(drawn);
    return measure_row(s, row, NULL, NULL, err);
}

/* winnow's multiple is 128; for narrow experts a quarter of the width, rounded down to a power of
 * two. */
static uint32_t multiple_of(int I)
{
    uint32_t multiple = 128;
    while (multiple > 1 && 4 * multiple > (uint32_t)I)
        multiple /= 2;
    return multiple;
}

static int measure_channels(struct match *s, struct fm_baseline_row *row, struct fm_err *err)
{
    const struct fm_contest_rule *rule = fm_contest_rule(row->baseline);
    const struct fm_ranking *ranking = &s->contest->ranking[rule->criterion];
    int rc = FM_OK;
    for (int b = 0; !rc && b < s->contest->table->budgets; b++) {
        uint32_t *w = add_mask(s, b);
        rc = rule->scope == FM_CUT_MULTIPLE
                 ? fm_channelcut_multiple(w, ranking, layer_channels(s, b), multiple_of(ranking->I),
                                          s->contest->config.K, err)
                 : fm_channelcut_widths(w, ranking, (enum fm_channelcut)rule->scope,
                                        layer_channels(s, b), err);
    }
    return rc ? rc : measure_row(s, row, ranking->order, NULL, err);
}

/* For each budget add the family's first mask that removes at least as much, if there is one. */
static void add_family(struct match *s, const struct fm_masks *f)
{
    for (int b = 0; b < s->contest->table->budgets; b++) {
        uint64_t removed = layer_channels(s, b) * (uint64_t)f->M;
        for (int i = 0; i < f->count; i++) {
            if (f->mask[i].removed < removed)
                continue;
            memcpy(add_mask(s, b), fm_masks_widths(f, i), experts_of(s) * sizeof(uint32_t));
            break;
        }
    }
}

static int check_family(const struct fm_contest *contest, const struct fm_masks *f,
                        const char *path, struct fm_err *err)
{
    const struct fm_config *c = &contest->config;
    return f->M == c->M && f->E == c->E && f->I == c->I
               ? FM_OK
               : fm_fail(err, FM_ECONFIG,
                         "'%s' has masks for %d layers of %d experts of %d channels, but the model "
                         "'%s' has %d, %d and %d",
                         path, f->M, f->E, f->I, contest->run->inputs.model, c->M, c->E, c->I);
}

/* Measure a stream with masks: in its ranking's order, with its adapter if it has one. */
static int measure_stream(struct match *s, struct fm_baseline_row *row, const struct fm_bundle *b,
                          const struct fm_masks *family, struct fm_err *err)
{
    struct fm_ranking ranking = {0};
    struct fm_adapter adapter = {0};
    bool adapted = fm_bundle_find(b, FM_MEMBER_ADAPTER) != NULL;
    add_family(s, family);
    int rc = FM_OK;
    if (fm_ranking_open(&ranking, b, err) || (adapted && fm_lorafile_open(&adapter, b, err)) ||
        measure_row(s, row, ranking.order, adapted ? &adapter : NULL, err))
        rc = err->code;
    if (adapted)
        fm_adapter_release(&adapter);
    fm_ranking_release(&ranking);
    return rc;
}

/* Measure a bundle, whose weights are ranked and include the adapter. */
static int measure_packed(struct match *s, struct fm_baseline_row *row, const char *path,
                          const struct fm_masks *family, struct fm_err *err)
{
    struct fm_model *checkpoint = s->model;
    uint64_t memory = fm_machine_memory(&s->contest->run->machine) / 2;
    fm_model_limit(checkpoint, memory); /* its layers are freed, and read again when needed */
    int rc = fm_model_open(&s->model, path, memory, err);
    add_family(s, family);
    if (!rc)
        rc = measure_row(s, row, NULL, NULL, err);
    fm_model_close(s->model);
    s->model = checkpoint;
    return rc;
}

/* Open a file with masks of the current model; the caller releases both, even after a failure. */
static int open_file(struct fm_bundle *b, struct fm_budgets *budgets, const struct fm_contest *c,
                     const char *path, struct fm_err *err)
{
    struct fm_hfdir dir = {0};
    int rc = FM_OK;
    if (fm_stage_open(b, path, FM_MEMBER_MASKS, err) ||
        fm_hfdir_open(&dir, c->run->inputs.model, err) || fm_stage_model_check(b, &dir, err) ||
        fm_budgets_open(budgets, b, err) || check_family(c, &budgets->masks, path, err))
        rc = err->code;
    fm_hfdir_close(&dir);
    return rc;
}

int fm_contest_check(const struct fm_contest *c, struct fm_err *err)
{
    struct fm_bundle b = {0};
    struct fm_budgets budgets = {0};
    if (!c->run->inputs.stream)
        return FM_OK;
    if (strcmp(c->run->inputs.stream, "-") == 0)
        return fm_fail(err, FM_EUSAGE, "the bundle is read more than once; name a file");
    int rc = open_file(&b, &budgets, c, c->run->inputs.stream, err);
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
    return rc;
}

static int measure_file(struct match *s, struct fm_baseline_row *row, const char *path,
                        struct fm_err *err)
{
    struct fm_bundle b = {0};
    struct fm_budgets budgets = {0};
    int rc = open_file(&b, &budgets, s->contest, path, err);
    const cJSON *stage = cJSON_GetObjectItemCaseSensitive(b.manifest, "stage");
    bool packed = cJSON_IsString(stage) && strcmp(stage->valuestring, "pack") == 0;
    if (!rc)
        rc = packed ? measure_packed(s, row, path, &budgets.masks, err)
                    : measure_stream(s, row, &b, &budgets.masks, err);
    fm_budgets_release(&budgets);
    fm_bundle_close(&b);
    return rc;
}

static int measure_any(struct match *s, struct fm_baseline_row *row, struct fm_err *err)
{
    const struct fm_contest_rule *rule = fm_contest_rule(row->baseline);
    char path[4096];
    s->masks = 0;
    switch (rule->kind) {
    case FM_CONTEST_EXPERTS:
        return measure_experts(s, row, err);
    case FM_CONTEST_CHANNELS:
        return measure_channels(s, row, err);
    case FM_CONTEST_METHOD:
        return measure_file(s, row, masks_at(s->contest, method_of(rule), row->recovered, path),
                            err);
    default:
        return measure_file(s, row, s->contest->run->inputs.stream, err);
    }
}

static int open_match(struct match *s, struct fm_err *err)
{
    struct fm_contest *c = s->contest;
    size_t masks = (size_t)c->table->budgets * FM_BASELINE_DRAWS, X = experts_of(s);
    s->cell = fm_alloc(masks, sizeof *s->cell, "masks", err);
    s->widths = fm_alloc(masks * X, sizeof *s->widths, "widths", err);
    s->closed = fm_alloc(masks * X, sizeof *s->closed, "closed experts", err);
    s->quality = fm_alloc(masks, sizeof *s->quality, "measures", err);
    if (!s->cell || !s->widths || !s->closed || !s->quality)
        return FM_ENOMEM;
    if (fm_model_open(&s->model, c->run->inputs.model, fm_machine_memory(&c->run->machine) / 2,
                      err) ||
        fm_machine_ops(&s->ops, &c->run->machine, fm_model_dtype(s->model), err))
        return err->code;
    return fm_calib_open(&s->held, c->run, &c->config, true, err);
}

int fm_contest_measure(struct fm_contest *c, struct fm_err *err)
{
    struct match s = {.contest = c};
    int rc = open_match(&s, err);
    if (!rc) {
        uint32_t *full = add_mask(&s, 0);
        rc = fm_quality_measure(&c->table->full, s.model, s.ops, &s.held, NULL, full, 1, NULL,
                                c->run, err);
    }
    for (int i = 0; !rc && i < c->table->rows; i++) {
        fm_run_report(c->run, "measure", (uint64_t)i, (uint64_t)c->table->rows, "rows");
        rc = measure_any(&s, &c->table->row[i], err);
        if (rc)
            fm_within(err, "%s", fm_baseline_name(c->table->row[i].baseline));
    }
    fm_run_report(c->run, "measure", (uint64_t)c->table->rows, (uint64_t)c->table->rows, "rows");
    fm_calib_close(&s.held);
    fm_model_close(s.model);
    free(s.cell);
    free(s.widths);
    free(s.closed);
    free(s.quality);
    return rc;
}
