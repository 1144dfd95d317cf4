/*
 * The estimate is computed from shapes: bytes of the checkpoint that are read, sweeps, FLOPs,
 * memory and temporary disk space.  Only the forecast of the time measures the machine
 * (forecast.c).  A run makes the same estimate first, so that it can fail early if memory or disk
 * space is too small.
 */
#include "lib/learn/estimate.h"

#include <assert.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file/file.h"
#include "formats/quant/quant.h"
#include "lib/base/isa.h"
#include "lib/base/mem.h"
#include "lib/base/units.h"
#include "lib/block/cost.h"
#include "lib/block/experts.h"
#include "lib/block/mlp.h"
#include "lib/engine/layer.h"

uint64_t fm_estimate_merged(const struct fm_config *c)
{
    return (uint64_t)c->E * (uint64_t)c->I * fm_expert_channel_params(c->expert, c->H) *
           sizeof(float);
}

uint64_t fm_estimate_process(const struct fm_model *model)
{
    bool compiled = fm_model_ops(model)->operand == FM_BF16 && !fm_isa_amx();
    return FM_PROCESS_BYTES + FM_ENGINE_BYTES + (compiled ? FM_COMPILED_BYTES : 0);
}

uint64_t fm_estimate_boundaries(const struct fm_model *model, int batches, int rows, int cut,
                                int lanes, uint64_t memory)
{
    uint64_t taken = fm_estimate_process(model) + fm_model_resident_bytes(model) +
                     fm_sweep_scratch_bytes(fm_model_config(model), batches, rows, cut, lanes);
    return memory > taken ? memory - taken : 0;
}

/*
 * FLOPs of one token.  All layers: the parts that no mask changes (attention, routers, dense
 * layers, shared experts).  A layer with experts: K experts at full width, of which the product
 * with down, or its transpose in the backward, is one part of rows + 1.
 */
static double fixed_flops(const struct fm_config *c, int first, int T)
{
    double sum = 0;
    for (int l = first; l < c->L; l++) {
        struct fm_flops f = fm_cost_layer(c, l, T);
        sum += f.products + f.others;
    }
    return sum;
}

static double experts_flops(const struct fm_config *c)
{
    return c->K * fm_cost_expert(c);
}

/*
 * A lane's forward, and the gradients at the layers' inputs, down to the lowest layer with experts.
 * There only the gradient at h is computed, because scores and masks need nothing below it.  The
 * gradients at h have full width, because masks learn from those of masked channels, unless the
 * sweep is narrow.  Scores take the gradients of the experts' weights, too.
 */
static double lanes_flops(const struct fm_config *c, const struct fm_estimate_sweep *s)
{
    double experts = experts_flops(c), down = experts / (c->expert->rows + 1);
    double head = fm_cost_lm_head(c), mixed = c->shared_mix ? 2.0 * c->H : 0;
    double forward = s->lanes * (fixed_flops(c, s->draft ? c->moe[0] : 0, s->T) + head) +
                     c->M * experts * (1 + (s->lanes - 1) * s->kept);
    double back =
        head + fixed_flops(c, c->moe[0] + 1, s->T) + c->M * down * (s->narrow ? s->kept : 1) +
        (c->M - 1) * (mixed + (experts - down) * s->kept) + (s->scores ? c->M * experts : 0);
    return (forward + s->backward * back) * (double)s->rows;
}

/*
 * What a backward computes again in layers whose inner values were not kept: attention and router;
 * with a norm of the layer's output, experts and MLP, too; and the products with gate_up, which are
 * kept only for scores and with `gate_up`.  With `kept`, only what is saved if inner values are
 * kept.
 */
static double again_flops(const struct fm_config *c, const struct fm_estimate_sweep *s, bool kept)
{
    double experts = experts_flops(c), part = (double)c->expert->rows / (c->expert->rows + 1),
           sum = 0;
    bool gate_up = !kept || s->scores || s->gate_up;
    for (int l = c->moe[0]; l < c->L; l++) {
        struct fm_flops f = fm_cost_layer(c, l, s->T);
        bool has = fm_config_moe(c, l) >= 0;
        double mlp = fm_mlp_flops(c, l), moe = has ? experts : 0;
        double mixed = has && c->shared_mix ? 2.0 * c->H : 0;
        sum += f.products + f.others - mlp;
        if (fm_config_output_norms(c, l) & FM_NORMS_MLP)
            sum += mlp + moe * s->kept;
        if (gate_up)
            sum += moe * part * (s->narrow ? s->kept : 1) +
                   (l > c->moe[0] ? (mlp - mixed) * 2 / 3 : 0);
    }
    return s->backward * sum * (double)s->rows;
}

/* Bytes of the layers' inner values in all lanes with gradients, in blocks of `rows` tokens. */
static uint64_t inner_bytes(const struct fm_config *c, const struct fm_estimate_sweep *s, int rows)
{
    uint64_t blocks = (s->rows + (uint64_t)rows - 1) / (uint64_t)rows;
    return blocks * (uint64_t)s->backward * (uint64_t)c->L *
           fm_layer_cache_bytes(c, rows, s->scores || s->gate_up);
}

static void add_kind(struct fm_estimate *estimate, double flops,
                     const struct fm_estimate_sweep *sweep)
{
    int sequences = (int)(sweep->rows / (uint64_t)sweep->T), leaves = sweep->leaves;
    int micro = fm_sweep_micro(sequences, sweep->T);
    assert(estimate->kinds < FM_ESTIMATE_KINDS);
    estimate->flops += flops;
    estimate->kind[estimate->kinds].flops = flops;
    estimate->kind[estimate->kinds++].leaves =
        leaves ? leaves : fm_sweep_leaves(sequences / micro, micro * sweep->T, 0);
}

/* The lowest layer that a backward pass reaches: the first one with experts, or the first one that
 * shares the slot if those before it stay in memory. */
static int lowest_layer(const struct fm_model *model)
{
    int first = fm_model_config(model)->moe[0], stay = fm_model_pinned(model);
    return first > stay ? first : stay;
}

/* Bytes that all sweeps read.  Resident layers are read once.  Where a sweep turns, the layer in
 * the shared slot is still in memory, also for the first sweep after a backward pass that went down
 * to the first layer of the slot. */
static uint64_t bytes_read(const struct fm_estimate *estimate, const struct fm_model *model,
                           const struct fm_estimate_sweep *sweep)
{
    int L = fm_model_config(model)->L, stay = fm_model_pinned(model), low = lowest_layer(model);
    uint64_t count = sweep->count, read = count * fm_model_layers_bytes(model, stay, L);
    uint64_t once = fm_model_nonlayer_bytes(model) + fm_model_layers_bytes(model, 0, stay);
    if (L - stay <= 1)
        return estimate->read == 0 ? once + read / count : 0;
    uint64_t first = fm_model_layers_bytes(model, stay, stay + 1);
    if (sweep->backward)
        read += count * fm_model_layers_bytes(model, low, L - 1);
    if (sweep->backward && low == stay)
        read -= (count - 1) * first;
    return estimate->read == 0 ? once + read : read - (estimate->turned ? first : 0);
}

void fm_estimate_add(struct fm_estimate *estimate, const struct fm_model *model,
                     const struct fm_estimate_sweep *sweep, uint64_t memory)
{
    const struct fm_config *c = fm_model_config(model);
    if (sweep->count == 0)
        return;
    uint64_t boundary = sweep->rows * (uint64_t)c->H * sizeof(float);
    uint64_t boundaries = boundary * ((uint64_t)(sweep->lanes - sweep->backward) +
                                      (uint64_t)sweep->backward * ((uint64_t)c->L + 1));
    int rows = sweep->rows > INT_MAX ? INT_MAX : (int)sweep->rows;
    rows = rows < FM_SWEEP_BLOCK_TOKENS ? rows : FM_SWEEP_BLOCK_TOKENS;
    int sequences = (int)(sweep->rows / (uint64_t)sweep->T);
    int micro = fm_sweep_micro(sequences, sweep->T), batches = sequences / micro;
    uint64_t merged = (uint64_t)sweep->merged * fm_estimate_merged(c);
    uint64_t space = fm_estimate_boundaries(model, batches, micro * sweep->T, 0, sweep->lanes,
                                            memory > merged ? memory - merged : 0);
    uint64_t spill = boundaries > space ? boundaries - space : 0;
    uint64_t inner = inner_bytes(c, sweep, rows);
    uint64_t left = space - (boundaries - spill), kept = inner < left ? inner : left;
    uint64_t resident = fm_estimate_process(model) + boundaries - spill + kept +
                        fm_model_resident_bytes(model) + merged +
                        fm_sweep_scratch_bytes(c, batches, micro * sweep->T, 0, sweep->lanes);
    estimate->memory = resident > estimate->memory ? resident : estimate->memory;
    estimate->spill = spill > estimate->spill ? spill : estimate->spill;
    estimate->sweeps += sweep->count;
    estimate->tokens += sweep->count * sweep->rows * (uint64_t)sweep->lanes;
    double count = (double)sweep->count, useful = count * lanes_flops(c, sweep);
    double again = count * again_flops(c, sweep, false);
    if (inner > 0)
        again -= count * again_flops(c, sweep, true) * ((double)kept / (double)inner);
    estimate->useful += useful;
    add_kind(estimate, useful + again, sweep);
    uint64_t read = bytes_read(estimate, model, sweep);
    estimate->read += read;
    /* Before quality is measured, layers of codes that are decoded are read again. */
    estimate->turned =
        sweep->backward > 0 && lowest_layer(model) == fm_model_pinned(model) && !c->scheme.storage;
    fm_storage_names(estimate->storage, &c->scheme, c->schemes);
    estimate->longest = c->T_exact;
    estimate->exact = c->exact;
    fm_model_bytes(model, &estimate->stored, &estimate->written);
    double bytes = fm_dtype_bits(fm_model_dtype(model)) / 8.0; /* of a value as it is written */
    if (estimate->stored > 0)
        estimate->values +=
            (double)read * (double)estimate->written / (double)estimate->stored / bytes;
}

void fm_estimate_add_draft(struct fm_estimate *estimate, const struct fm_model *draft,
                           const struct fm_estimate_sweep *sweep)
{
    struct fm_config c = *fm_model_config(draft);
    int l = fm_extra_twin_layer(&c);
    uint64_t read = fm_model_nonlayer_bytes(draft) + fm_model_layers_bytes(draft, l, l + 1);
    double joint = 4.0 * c.H * c.H * (double)sweep->rows;
    assert(sweep->draft && sweep->lanes == 1);
    if (sweep->count == 0)
        return;
    c.moe[0] = (int16_t)l; /* the only layer of the sweep */
    c.M = 1;
    c.L = l + 1;
    double useful = (double)sweep->count * (lanes_flops(&c, sweep) + joint);
    estimate->useful += useful;
    add_kind(estimate, useful + (double)sweep->count * again_flops(&c, sweep, false), sweep);
    if (estimate->drafts)
        return; /* its weights stay in memory */
    estimate->drafts = true;
    estimate->read += read;
    estimate->values += (double)read * 8 / fm_dtype_bits(fm_model_dtype(draft));
}

/* Add sweeps of `each`, in parts of `part` tokens. */
static void add_parts(struct fm_estimate *estimate, const struct fm_model *model,
                      const struct fm_estimate_sweep *each, uint64_t part, uint64_t memory)
{
    struct fm_estimate_sweep sweep = *each;
    sweep.count = each->count * (each->rows / part);
    sweep.rows = part;
    fm_estimate_add(estimate, model, &sweep, memory);
    sweep.rows = each->rows % part;
    sweep.count = sweep.rows ? each->count : 0;
    fm_estimate_add(estimate, model, &sweep, memory);
}

void fm_estimate_add_masks(struct fm_estimate *estimate, const struct fm_model *model,
                           const struct fm_estimate_sweep *each, uint64_t masks, uint64_t group,
                           uint64_t part, uint64_t memory)
{
    uint64_t rest = masks % group;
    struct fm_estimate_sweep sweep = *each;
    sweep.count = each->count * (masks / group);
    sweep.lanes = each->lanes + (int)group;
    add_parts(estimate, model, &sweep, part, memory);
    sweep.count = rest ? each->count : 0;
    sweep.lanes = each->lanes + (int)rest;
    add_parts(estimate, model, &sweep, part, memory);
}

void fm_estimate_suggest(struct fm_estimate *estimate, double flops, const char *fmt, ...)
{
    assert(estimate->changes < FM_ESTIMATE_CHANGES);
    struct fm_estimate_change *to = &estimate->change[estimate->changes++];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(to->options, sizeof to->options, fmt, ap);
    va_end(ap);
    to->flops = flops;
}

/* Limit each model to the layers that fit into its present memory minus `excess`. */
static void limit(struct fm_model *const *model, uint64_t excess)
{
    for (; *model; model++) {
        uint64_t has = fm_model_resident_bytes(*model);
        fm_model_limit(*model, has > excess ? has - excess : 0);
    }
}

void fm_estimate_fit(struct fm_estimate *estimate, struct fm_model *const *model, uint64_t memory,
                     fm_estimate_maker *make, void *self)
{
    make(estimate, self, memory);
    if (estimate->memory > memory) {
        limit(model, estimate->memory - memory);
        make(estimate, self, memory);
    }
    if (estimate->memory > memory) {
        limit(model, UINT64_MAX);
        make(estimate, self, memory);
    }
    /* A run never takes less memory under a larger limit, so this ends at the smallest limit that
     * it stays within. */
    struct fm_estimate more = *estimate;
    uint64_t least = memory;
    while (more.memory > least) {
        least = more.memory;
        make(&more, self, least);
    }
    estimate->least = least > memory ? least : 0;
}

/* Whether `e`, the plan for a limit of `memory`, is as good as `best`, with `more` operations. */
static bool is_enough(const struct fm_estimate *e, uint64_t memory, const struct fm_estimate *best,
                      double more)
{
    return e->memory <= memory && e->spill <= best->spill && e->read <= best->read &&
           e->flops <= best->flops * (1 + more);
}

uint64_t fm_estimate_enough(fm_estimate_maker *make, void *self, uint64_t memory, double more)
{
    struct fm_estimate best, other;
    make(&best, self, memory);
    /* More memory never makes a plan worse, so the limits can be bisected, here to one per cent. */
    uint64_t low = 0, high = best.memory < memory ? best.memory : memory;
    make(&other, self, high);
    if (!is_enough(&other, high, &best, more))
        return memory;
    while (high - low > high / 100 + 1) {
        uint64_t middle = low + (high - low) / 2;
        make(&other, self, middle);
        if (is_enough(&other, middle, &best, more))
            high = middle;
        else
            low = middle;
    }
    return high;
}

int fm_estimate_fits(const struct fm_estimate *estimate, const struct fm_run_options *run,
                     struct fm_err *err)
{
    return estimate->least ? fm_run_memory(run, estimate->least, err) : FM_OK;
}

/* Bytes of a state file of at most `most` bytes that exist already. */
static uint64_t kept_state(const char *path, uint64_t most)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return 0;
    return (uint64_t)st.st_size < most ? (uint64_t)st.st_size : most;
}

/* Something that a run writes. */
struct need {
    const char *path, *what;
    uint64_t bytes;
};

/* FM_ECREATE if the state, which exists until the output is complete, and `other` are on one
 * filesystem and do not fit together. */
static int check_beside_state(const struct need *state, const struct need *other,
                              struct fm_err *err)
{
    char takes[32], has[32];
    uint64_t space, bytes = state->bytes + other->bytes;
    if (!fm_file_share_space(state->path, other->path))
        return FM_OK;
    if (fm_file_free_space(state->path, &space, err))
        return err->code;
    if (space >= bytes)
        return FM_OK;
    fm_units_bytes(takes, bytes);
    fm_units_bytes(has, space);
    return fm_fail(err, FM_ECREATE,
                   "%s: the %s and the %s take %s, but only %s are free on that disk; put one of "
                   "them on another",
                   state->path, state->what, other->what, takes, has);
}

int fm_estimate_check(const struct fm_estimate *estimate, const struct fm_run_options *run,
                      uint64_t copied, struct fm_err *err)
{
    const struct need output = {run->outputs.path, "output", estimate->disk + copied};
    const struct need temp = {fm_file_temp_directory(), "temporary files", estimate->spill};
    struct need state = {run->outputs.state, "state file with its next version", 0};
    char needed[32], has[32];
    uint64_t space = 0;
    bool writes = fm_comm_rank(run->machine.comm) == 0;
    bool saves = writes && estimate->state > 0;
    if (saves)
        state.bytes = 2 * estimate->state - kept_state(state.path, estimate->state);
    if (fm_estimate_fits(estimate, run, err) ||
        (writes && fm_run_space(output.path, output.what, output.bytes, &space, err)) ||
        (saves && (fm_run_space(state.path, state.what, state.bytes, &space, err) ||
                   check_beside_state(&state, &output, err))))
        return err->code;
    if (temp.bytes == 0)
        return FM_OK;
    if (fm_file_free_space(temp.path, &space, err))
        return err->code;
    if (space >= temp.bytes)
        return saves ? check_beside_state(&state, &temp, err) : FM_OK;
    fm_units_bytes(needed, temp.bytes);
    fm_units_bytes(has, space);
    return fm_fail(err, FM_EIO,
                   "temporary files take %s, but only %s are free in '%s'; give more --memory, or "
                   "point TMPDIR at another disk",
                   needed, has, temp.path);
}
