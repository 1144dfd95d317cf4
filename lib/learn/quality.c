/*
 * Reading the layers costs the same for one mask as for many, so masks are measured together in one
 * sweep, one lane each, with one teacher lane; the memory for boundaries limits their number.  Sums
 * are over the same tokens in the same order in every group, so a mask's figures do not depend on
 * the other masks of its group.
 *
 * Percentiles need the values of every token: 16 bytes for each token and lane of a group, which is
 * little compared with the 4 H bytes of a boundary.
 */
#include "lib/learn/quality.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/engine/sweep.h"
#include "lib/learn/estimate.h"

/* Tokens to measure on for `tokens` of calibration data. */
static uint64_t default_tokens(uint64_t tokens)
{
    uint64_t n = tokens / FM_QUALITY_SHARE;
    n = n > FM_QUALITY_TOKENS ? n : FM_QUALITY_TOKENS;
    return n < FM_EVAL_TOKENS ? n : FM_EVAL_TOKENS;
}

int fm_quality_held_out(int sequences, int T)
{
    uint64_t n = default_tokens((uint64_t)sequences * (uint64_t)T) / (uint64_t)T;
    return n < 2 ? 2 : n < FM_QUALITY_SEQUENCES ? (int)n : FM_QUALITY_SEQUENCES;
}

/* Open the files to measure on. */
static int open_eval(struct fm_calib *held, const struct fm_calib *train,
                     const struct fm_run_options *run, const struct fm_config *config,
                     struct fm_err *err)
{
    struct fm_run_options own = *run;
    uint64_t files = 0, T = (uint64_t)train->T;
    for (int i = 0; i < FM_INPUTS_MAX; i++)
        files += (uint64_t)(own.inputs.eval_tokens[i] != NULL) +
                 (uint64_t)(own.inputs.eval_texts[i] != NULL);
    uint64_t n = default_tokens((uint64_t)train->count * T);
    n = n > files * T ? n : files * T; /* a sequence of each kind */
    if (!own.inputs.max_eval_tokens)
        own.inputs.max_eval_tokens = n;
    return fm_calib_open(held, &own, config, true, err);
}

int fm_quality_open(struct fm_calib *train, struct fm_calib *held, const struct fm_run_options *run,
                    const struct fm_config *config, struct fm_err *err)
{
    int rc = fm_calib_open(train, run, config, false, err);
    if (rc)
        return rc;
    rc = fm_inputs_evaluate(&run->inputs)
             ? open_eval(held, train, run, config, err)
             : fm_calib_hold_out(train, held, fm_quality_held_out(train->count, train->T), err);
    if (!rc && (train->count < 1 || held->count < 1))
        rc = fm_fail(err, FM_EFORMAT,
                     "'%s' has too few sequences of %d tokens to train on and to measure on; give "
                     "more tokens, a smaller --seq-len, --eval-tokens or "
                     "--eval-text",
                     fm_inputs_first(&run->inputs), train->T);
    return rc;
}

/* Fewest masks in a group: with fewer, the teacher and the reading of layers would dominate the
 * time.  Boundaries that do not fit into memory are spilled. */
#define GROUP_MIN 16

/* Tokens of a part, counted in each lane: a sweep of so many takes many times as long as reading
 * the weights does. */
#define PART_TOKENS (1 << 17)

/* Number of masks whose boundaries, with those of the teacher, fit into `memory` bytes. */
static int masks_within(const struct fm_config *config, const struct fm_calib *held,
                        uint64_t memory)
{
    /* A lane keeps one boundary of every sequence; one lane is the teacher's. */
    uint64_t lane = (uint64_t)held->count * (uint64_t)held->T * (uint64_t)config->H * sizeof(float);
    uint64_t fit = memory / (lane ? lane : 1);
    return fit >= FM_LANES_MAX ? FM_LANES_MAX - 1 : fit <= GROUP_MIN ? GROUP_MIN : (int)fit - 1;
}

_Static_assert(FM_KINDS_MAX == FM_INPUTS_MAX, "a kind is an input");

void fm_quality_pack(double *values, int mask, const struct fm_quality *q)
{
    double *v = values + (size_t)mask * FM_QUALITY_VALUES;
    *v++ = q->ce;
    *v++ = q->kl;
    *v++ = q->agree;
    *v++ = (double)q->positions;
    memcpy(v, q->kind, sizeof q->kind);
}

struct fm_quality fm_quality_unpack(const double *values, int mask, bool recovered)
{
    const double *v = values + (size_t)mask * FM_QUALITY_VALUES;
    struct fm_quality q = {v[0], v[1], v[2], (int64_t)v[3], recovered, {0}};
    memcpy(q.kind, v + 4, sizeof q.kind);
    return q;
}

void fm_quality_kinds(struct fm_kinds *kinds, const struct fm_calib *held)
{
    *kinds = (struct fm_kinds){0};
    for (int s = 0; s < held->inputs && held->input[s].kind[0]; s++)
        snprintf(kinds->name[kinds->count++], sizeof kinds->name[0], "%s", held->input[s].kind);
}

/* The greatest common divisor of the kinds' numbers of sequences. */
static int common_count(const struct fm_calib *held)
{
    uint64_t a = (uint64_t)held->count;
    for (int s = 0; s < held->inputs; s++)
        for (uint64_t b = held->input[s].sequences, rest; b > 0; a = b, b = rest)
            rest = a % b;
    return (int)a;
}

/* The held-out sequences, in micro-batches of S sequences of one kind.  Measured tokens are
 * numbered consecutively; `sequence` and `first` hold the number of the first token of each
 * sequence and micro-batch.  Confidence intervals treat sequences as independent. */
struct held_out {
    const struct fm_calib *calib;
    const struct fm_quality_detail *detail; /* or NULL */
    int32_t *ids;
    struct fm_batch *batch;
    int S, T, batches, sequences;
    int masks;        /* number of masks that are measured */
    size_t *sequence; /* (sequences + 1) */
    size_t *first;    /* (batches + 1) */
};

/* Sequences of a micro-batch. */
static int sequences_together(const struct fm_calib *held)
{
    return fm_sweep_micro(common_count(held), held->T);
}

int fm_quality_batches(const struct fm_calib *held)
{
    return held->count / sequences_together(held);
}

int fm_quality_part(const struct fm_calib *held, int masks, int ranks)
{
    int rows = sequences_together(held) * held->T, batches = fm_quality_batches(held);
    int leaf = fm_sweep_together(batches, rows, 0);
    int64_t tokens = (int64_t)leaf * rows * (masks + 1);
    int64_t leaves = (PART_TOKENS + tokens - 1) / tokens;
    leaves = leaves > 2 * ranks ? leaves : 2 * ranks;
    return leaves * leaf < batches ? (int)(leaves * leaf) : batches;
}

static int read_held(struct held_out *h, const struct fm_quality_subject *s, struct fm_err *err)
{
    const struct fm_calib *held = s->held;
    int S = sequences_together(held);
    size_t T = (size_t)held->T, ids = (size_t)S * T, count = (size_t)held->count;
    *h = (struct held_out){.calib = held,
                           .detail = s->detail,
                           .masks = s->masks,
                           .S = S,
                           .T = held->T,
                           .batches = held->count / S,
                           .sequences = held->count};
    h->ids = fm_alloc(count, T * sizeof *h->ids, "tokens", err);
    h->batch = fm_alloc((size_t)h->batches, sizeof *h->batch, "batches", err);
    h->sequence = fm_alloc(count + 1, sizeof *h->sequence, "places of sequences", err);
    h->first = fm_alloc((size_t)h->batches + 1, sizeof *h->first, "places of batches", err);
    if (!h->ids || !h->batch || !h->sequence || !h->first)
        return err->code;
    for (int i = 0; i < h->batches; i++)
        h->batch[i] = (struct fm_batch){h->ids + (size_t)i * ids, S, held->T};
    for (size_t i = 0; i <= count; i++)
        h->sequence[i] = i * (T - 1);
    for (size_t i = 0; i <= (size_t)h->batches; i++)
        h->first[i] = h->sequence[i * (size_t)S];
    return fm_calib_read(held, 0, held->count, h->ids, err);
}

static void average(struct fm_quality *q, const struct fm_measure *measure, int from, int batches,
                    int lanes, int lane, bool recovered)
{
    struct fm_measure sum = {0};
    for (int b = from; b < from + batches; b++) {
        const struct fm_measure *m = &measure[(size_t)b * (size_t)lanes + (size_t)lane];
        sum.ce += m->ce;
        sum.kl += m->kl;
        sum.agree += m->agree;
        sum.n += m->n;
    }
    double n = (double)sum.n;
    *q = (struct fm_quality){sum.ce / n, sum.kl / n, (double)sum.agree / n, sum.n, recovered, {0}};
}

/* Average the loss of each kind; the batches of a kind are consecutive. */
static void average_kinds(struct fm_quality *q, const struct fm_measure *measure,
                          const struct held_out *h, int lanes, int lane)
{
    const struct fm_calib_input *input = h->calib->input;
    for (int s = 0, from = 0; s < h->calib->inputs && input[s].kind[0]; s++) {
        int batches = (int)input[s].sequences / h->S;
        struct fm_quality own;
        average(&own, measure, from, batches, lanes, lane, false);
        q->kind[s] = own.ce;
        from += batches;
    }
}

/* ---- values of every token ---- */

/* Slot 0 has the values of the reference, if there is one, with which the other slots are compared:
 * the full model, or another model. */
struct values {
    const struct held_out *h;
    int slots, shift; /* a lane's slot is lane + shift */
    bool compared;
    int V, near;            /* number of most probable tokens that are compared */
    struct fm_token *token; /* (slots, tokens of b) for each batch b, from first[b] * slots on */
    int32_t *top;           /* (tokens, FM_SPREAD_NEAR): most probable tokens of slot 0 */
    struct fm_token *one;   /* (tokens) of one slot */
    float *sorted;          /* (tokens) */
};

uint64_t fm_quality_detail_bytes(uint64_t tokens, int masks)
{
    uint64_t each = sizeof(struct fm_token);
    return tokens *
           (each * ((uint64_t)masks + 2) + FM_SPREAD_NEAR * sizeof(int32_t) + sizeof(float));
}

static int take_values(struct values *v, const struct held_out *h, int lanes, bool taught,
                       bool apart, int V, struct fm_err *err)
{
    size_t n = h->sequence[h->sequences];
    *v = (struct values){.h = h,
                         .slots = lanes + (apart ? 1 : 0),
                         .shift = apart ? 1 : 0,
                         .compared = taught || apart,
                         .V = V,
                         .near = V < FM_SPREAD_NEAR ? V : FM_SPREAD_NEAR};
    v->token = fm_alloc(n, (size_t)v->slots * sizeof *v->token, "values of tokens", err);
    v->top = fm_alloc(n, FM_SPREAD_NEAR * sizeof *v->top, "most probable tokens", err);
    v->one = fm_alloc(n, sizeof *v->one, "values of tokens", err);
    v->sorted = fm_alloc(n, sizeof *v->sorted, "values of tokens", err);
    return v->token && v->top && v->one && v->sorted ? FM_OK : err->code;
}

static void release_values(struct values *v)
{
    free(v->token);
    free(v->top);
    free(v->one);
    free(v->sorted);
}

static struct fm_token *tokens_of(const struct values *v, int batch, int slot)
{
    const size_t *first = v->h->first + batch;
    return v->token + first[0] * (size_t)v->slots + (size_t)slot * (first[1] - first[0]);
}

/* The indices of the `near` largest values, in descending order; ties go to the lower index. */
static void find_top(int32_t *top, const float *logits, int V, int near)
{
    int n = 0;
    for (int i = 0; i < V; i++) {
        if (n == near && !(logits[i] > logits[top[n - 1]]))
            continue;
        int at = n < near ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[top[at - 1]]; at--)
            top[at] = top[at - 1];
        top[at] = i;
    }
}

static uint8_t count_shared(const int32_t *a, const int32_t *b, int n)
{
    uint8_t shared = 0;
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            shared = (uint8_t)(shared + (a[i] == b[j]));
    return shared;
}

static void take_rows(void *self, const struct fm_head_rows *rows)
{
    struct values *v = self;
    const struct fm_batch *batch = &v->h->batch[rows->batch];
    int slot = rows->lane + v->shift;
    struct fm_token *own = tokens_of(v, rows->batch, slot), *other = tokens_of(v, rows->batch, 0);
    for (int i = 0; i < rows->n; i++) {
        if (rows->target[i] < 0)
            continue;
        int at = rows->first + i;
        size_t place = (size_t)(at / batch->T * (batch->T - 1) + at % batch->T);
        int32_t *top = v->top + (v->h->first[rows->batch] + place) * FM_SPREAD_NEAR;
        int32_t mine[FM_SPREAD_NEAR];
        const float *logits = rows->logits + (size_t)i * (size_t)v->V;
        own[place] = (struct fm_token){.ce = (float)rows->ce[i]};
        if (!v->compared)
            continue;
        find_top(slot == 0 ? top : mine, logits, v->V, v->near);
        if (slot == 0)
            continue;
        own[place].kl = (float)rows->kl[i];
        own[place].change = (float)(exp(-(double)own[place].ce) - exp(-(double)other[place].ce));
        own[place].near = count_shared(mine, top, v->near);
    }
}

/* Take the spread of a slot, and its sums as those of a model. */
static void sum_values(struct fm_spread *spread, int model, const struct values *v, int slot,
                       bool compared)
{
    const struct held_out *h = v->h;
    for (int b = 0; b < h->batches; b++)
        memcpy(v->one + h->first[b], tokens_of(v, b, slot),
               (h->first[b + 1] - h->first[b]) * sizeof *v->one);
    if (spread)
        fm_spread_of(spread, v->one, h->sequence, h->sequences, v->near, compared, v->sorted);
    if (h->detail->sums)
        fm_spread_sums_set(h->detail->sums, model, v->one);
}

/* A model of the subject, within `memory` bytes. */
struct subnets {
    const struct fm_quality_subject *s;
    struct fm_model *model;
    uint64_t memory;
    bool taught;                    /* the full model is lane 0 and the teacher */
    const struct fm_sweep *teacher; /* of another model, or NULL */
};

/* Progress of measuring: the layers of the original, if there is one, and of all groups of masks.
 */
struct watch {
    const struct fm_run_options *run;
    int layers, group, groups;
    double before, part; /* shares of the group's sequences: before the current sweep, and in it */
};

static void watch_group(const struct watch *w)
{
    uint64_t L = (uint64_t)w->layers;
    fm_run_report(w->run, "measure", (uint64_t)w->group * L, (uint64_t)w->groups * L, "layers");
}

static void watch_layers(void *self, double share)
{
    const struct watch *w = self;
    fm_run_within(w->run, (w->before + share * w->part) * w->layers);
}

/* Run the sweeps of a group, which are several if it is measured in parts. */
static int run_sweeps(struct fm_sweep *sweep, const struct held_out *h, const struct fm_lane *lane,
                      int lanes, struct fm_measure *measure, struct fm_quality_parts *parts,
                      struct watch *watch, struct fm_err *err)
{
    int ranks = fm_comm_size(watch->run->machine.comm), rc = FM_OK;
    int part = parts ? fm_quality_part(h->calib, lanes - 1, ranks) : h->batches;
    for (int at = parts ? parts->done : 0, n; !rc && at < h->batches; at += n) {
        n = h->batches - at < part ? h->batches - at : part;
        watch->before = (double)at / h->batches;
        watch->part = (double)n / h->batches;
        rc = fm_sweep_run(sweep, h->batch + at, n, lane, lanes, NULL,
                          measure + (size_t)at * (size_t)lanes, NULL, err);
        if (!rc && parts)
            parts->done = at + n;
        if (!rc && parts && at + n < h->batches)
            rc = parts->took(parts->self, err);
    }
    return rc;
}

/* Run one sweep over the masks from `first` on; fills spread (masks) unless it is NULL. */
static int measure_group(struct fm_quality *quality, struct fm_spread *spread,
                         struct fm_sweep *sweep, const struct held_out *h, struct values *values,
                         const struct subnets *subnets, int first, size_t experts, int masks,
                         struct watch *watch, struct fm_err *err)
{
    const struct fm_quality_subject *s = subnets->s;
    const struct fm_adapter *adapter = s->adapter;
    struct fm_lane lane[FM_LANES_MAX] = {{.teacher = -1, .ce = 1}};
    int own = subnets->taught ? 1 : 0, lanes = own + masks;
    assert(lanes <= FM_LANES_MAX);
    for (int i = 0; i < masks; i++) {
        size_t at = (size_t)(first + i) * experts;
        lane[own + i] = (struct fm_lane){.widths = s->widths ? s->widths + at : NULL,
                                         .closed = s->closed ? s->closed + at : NULL,
                                         .adapter = adapter,
                                         .round = adapter != NULL,
                                         .teacher = own - 1,
                                         .ce = 1,
                                         .kl = 1};
    }
    struct fm_quality_parts *parts = s->parts;
    struct fm_measure *own_measure = NULL, *measure = parts ? parts->measure : NULL;
    if (!parts)
        measure = own_measure =
            fm_alloc((size_t)h->batches * (size_t)lanes, sizeof *measure, "measures", err);
    if (!measure)
        return FM_ENOMEM;
    int rc = run_sweeps(sweep, h, lane, lanes, measure, parts, watch, err);
    for (int i = 0; !rc && i < masks; i++) {
        average(&quality[i], measure, 0, h->batches, lanes, own + i, adapter != NULL);
        average_kinds(&quality[i], measure, h, lanes, own + i);
    }
    for (int i = 0; !rc && h->detail && i < masks; i++)
        sum_values(spread ? &spread[i] : NULL, first + i, values, own + i + values->shift,
                   values->compared);
    if (!rc && h->detail && values->compared)
        sum_values(NULL, h->masks, values, 0, false);
    free(own_measure);
    return rc;
}

/* Make a sweep of `lanes` lanes over all held-out sequences and, if there is a detail, allocate
 * *values. */
static int new_sweep(struct fm_sweep **sweep, struct values *values, const struct subnets *subnets,
                     const struct held_out *h, int lanes, struct watch *watch, struct fm_err *err)
{
    int rows = h->S * h->T, heads = lanes + (subnets->teacher ? 1 : 0);
    uint64_t memory =
        fm_estimate_boundaries(subnets->model, h->batches, rows, 0, heads, subnets->memory);
    if (h->detail) {
        uint64_t taken = fm_quality_detail_bytes(h->sequence[h->sequences], lanes);
        memory = memory > taken ? memory - taken : 0;
        if (take_values(values, h, lanes, subnets->taught, subnets->teacher != NULL,
                        fm_model_config(subnets->model)->V, err))
            return err->code;
    }
    struct fm_sweep_options options = {.memory = memory,
                                       .rows = h->detail ? take_rows : NULL,
                                       .rows_self = values,
                                       .progress = watch_layers,
                                       .progress_self = watch,
                                       .stop = watch->run->stop,
                                       .comm = watch->run->machine.comm,
                                       .teacher = subnets->teacher};
    return fm_sweep_new(sweep, subnets->model, fm_model_ops(subnets->model), h->batches, rows, h->T,
                        lanes, &options, err);
}

/* Number of masks that one sweep measures within `memory` bytes, at least 1.  Values of `tokens`
 * tokens may take at most half of the memory that is left for boundaries. */
static int group_of(const struct fm_model *model, const struct fm_calib *held,
                    const struct fm_quality_detail *detail, size_t tokens, int masks,
                    uint64_t memory)
{
    int S = sequences_together(held);
    uint64_t space =
        fm_estimate_boundaries(model, held->count / S, S * held->T, 0, fm_pool_threads(), memory);
    int group = masks_within(fm_model_config(model), held, space);
    group = group < masks ? group : masks;
    while (detail && group > 1 && fm_quality_detail_bytes(tokens, group + 1) > space / 2)
        group--;
    return group;
}

int fm_quality_group(const struct fm_model *model, const struct fm_calib *held, uint64_t memory)
{
    return group_of(model, held, NULL, 0, INT_MAX, memory);
}

/* Measure masks in groups. */
static int measure_masks(struct fm_quality *quality, const struct subnets *subnets,
                         const struct held_out *h, struct watch *watch, struct fm_err *err)
{
    int masks = subnets->s->masks;
    const struct fm_config *config = fm_model_config(subnets->model);
    int before = watch->group;
    int group = group_of(subnets->model, h->calib, h->detail, h->sequence[h->sequences], masks,
                         subnets->memory);
    size_t experts = (size_t)config->M * (size_t)config->E;
    struct fm_sweep *sweep = NULL;
    struct values values = {0};
    struct fm_spread *spread = h->detail ? h->detail->spread : NULL;
    int rc = fm_comm_least(watch->run->machine.comm, &group, err);
    watch->layers = config->L;
    watch->groups = before + (masks + group - 1) / group;
    /* Round weights as in bundles and exports; an adapter is merged before experts are rounded. */
    const struct fm_adapter *a = subnets->s->adapter;
    bool merged = a && !a->router;
    fm_model_round(subnets->model, merged ? FM_MODEL_ROUND_REST : FM_MODEL_ROUND_ALL);
    assert(rc || !subnets->s->parts || group >= masks); /* parts have the measures of one group */
    if (!rc)
        rc = new_sweep(&sweep, &values, subnets, h, group + (subnets->taught ? 1 : 0), watch, err);
    for (int at = 0; !rc && at < masks; at += group) {
        int n = masks - at < group ? masks - at : group;
        watch->group = before + at / group;
        watch_group(watch);
        rc = measure_group(quality + at, spread ? spread + at : NULL, sweep, h, &values, subnets,
                           at, experts, n, watch, err);
    }
    fm_model_round(subnets->model, FM_MODEL_EXACT);
    release_values(&values);
    fm_sweep_free(sweep);
    return rc;
}

/* Measure the original, and keep its sweep as the teacher of the masks. */
static int measure_original(struct fm_quality_original *original, uint64_t memory,
                            const struct held_out *h, struct watch *watch, struct fm_err *err)
{
    const struct fm_quality_subject itself = {0};
    const struct subnets whole = {.s = &itself, .model = original->model, .memory = memory};
    struct values values = {0};
    struct fm_sweep *sweep = NULL;
    watch->layers = fm_model_config(original->model)->L;
    watch->groups = 2;
    watch_group(watch);
    int rc = new_sweep(&sweep, &values, &whole, h, 1, watch, err);
    if (!rc)
        rc = measure_group(&original->quality, h->detail ? &original->spread : NULL, sweep, h,
                           &values, &whole, 0, 0, 1, watch, err);
    release_values(&values);
    watch->group = 1;
    if (rc)
        fm_sweep_free(sweep);
    else
        original->sweep = sweep;
    return rc;
}

void fm_quality_original_release(struct fm_quality_original *original)
{
    fm_sweep_free(original->sweep);
    original->sweep = NULL;
}

int fm_quality_measure(struct fm_quality *quality, const struct fm_quality_subject *s,
                       const struct fm_run_options *run, struct fm_err *err)
{
    struct fm_quality_original *original = s->original;
    const struct fm_adapter *a = s->adapter && !s->adapter->router ? s->adapter : NULL;
    struct watch watch = {.run = run};
    struct held_out h;
    struct subnets subnets = {.s = s, .model = s->model, .taught = !original && !s->uncompared};
    uint64_t taken =
        a ? a->offset[a->M * a->E] * sizeof(float) + fm_estimate_merged(fm_model_config(s->model))
          : 0;
    assert(!s->detail || !run->machine.comm); /* no rank has the values of all tokens */
    subnets.memory = fm_machine_memory(&run->machine) / (original ? 2 : 1);
    subnets.memory = subnets.memory > taken ? subnets.memory - taken : 0;
    int rc = read_held(&h, s, err);
    if (!rc && s->detail && s->detail->sums)
        rc = fm_spread_sums_init(s->detail->sums, s->masks + 1, h.sequence, h.sequences, err);
    if (!rc && original) {
        fm_model_round(original->model, FM_MODEL_ROUND_ALL);
        if (!original->sweep)
            rc = measure_original(original, subnets.memory, &h, &watch, err);
        subnets.teacher = original->sweep;
    }
    if (!rc)
        rc = measure_masks(quality, &subnets, &h, &watch, err);
    if (original)
        fm_model_round(original->model, FM_MODEL_EXACT);
    free(h.sequence);
    free(h.first);
    free(h.batch);
    free(h.ids);
    return rc;
}

/* ---- memory and cost of a measurement ---- */

static size_t count_tokens(const struct fm_quality_subject *s)
{
    return (size_t)s->held->count * (size_t)(s->held->T - 1);
}

/* Add the sweeps over one of the models to *estimate, as fm_estimate_add_masks; return their
 * memory. */
static uint64_t add_sweeps(struct fm_estimate *estimate, const struct fm_quality_subject *s,
                           const struct fm_model *model, const struct fm_estimate_sweep *each,
                           int masks, int group, uint64_t memory)
{
    size_t tokens = count_tokens(s);
    uint64_t values = s->detail ? fm_quality_detail_bytes(tokens, each->lanes + group) : 0;
    uint64_t before = estimate->memory, read = estimate->read;
    estimate->memory = estimate->read = 0;
    fm_estimate_add_masks(estimate, model, each, (uint64_t)masks, (uint64_t)group, each->rows,
                          memory > values ? memory - values : 0);
    uint64_t own = estimate->memory + values;
    estimate->memory = before;
    estimate->read += read;
    return own;
}

static void make_plan(struct fm_estimate *estimate, void *self, uint64_t memory)
{
    const struct fm_quality_subject *s = self;
    const struct fm_adapter *a = s->adapter && !s->adapter->router ? s->adapter : NULL;
    uint64_t rows = (uint64_t)s->held->count * (uint64_t)s->held->T;
    uint64_t fixed = rows * sizeof(int32_t);
    if (s->original) {
        int S = sequences_together(s->held), tasks;
        const struct fm_config *c = fm_model_config(s->original->model);
        fixed += (uint64_t)fm_pool_threads() * (fm_sweep_head_bytes(c, S * s->held->T, 2, &tasks) -
                                                fm_sweep_head_bytes(c, S * s->held->T, 1, &tasks));
    }
    /* Boundaries take all that is left, so everything else is subtracted. */
    uint64_t left = memory > fixed ? memory - fixed : 0;
    uint64_t adapter = a ? a->offset[a->M * a->E] * sizeof(float) : 0;
    uint64_t merged = a ? fm_estimate_merged(fm_model_config(s->model)) : 0;
    uint64_t half = left / (s->original ? 2 : 1);
    uint64_t each = half > adapter ? half - adapter : 0;
    int taught = !s->original && !s->uncompared ? 1 : 0;
    int group = group_of(s->model, s->held, s->detail, count_tokens(s), s->masks,
                         each > merged ? each - merged : 0);
    struct fm_estimate_sweep sweep = {.count = 1,
                                      .rows = rows,
                                      .T = s->held->T,
                                      .lanes = taught,
                                      .merged = a ? 1 : 0,
                                      .kept = s->kept};
    *estimate = (struct fm_estimate){0};
    uint64_t sum =
        fixed + adapter + add_sweeps(estimate, s, s->model, &sweep, s->masks, group, each);
    struct fm_estimate before = *estimate;
    if (s->original)
        sum += add_sweeps(estimate, s, s->original->model, &sweep, 1, 1, each) -
               fm_estimate_process(s->original->model);
    if (s->original && s->original->planned)
        *estimate = before;
    estimate->memory = sum;
}

void fm_quality_plan(struct fm_estimate *estimate, struct fm_quality_subject *subject,
                     const struct fm_run_options *run)
{
    fm_estimate_fit(estimate,
                    (struct fm_model *[]){
                        subject->model, subject->original ? subject->original->model : NULL, NULL},
                    fm_machine_memory(&run->machine), make_plan, subject);
    if (subject->original)
        subject->original->planned = true;
}
