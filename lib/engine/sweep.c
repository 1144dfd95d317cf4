/*
 * The sweep: a loop over layers, and in each a pool task for every block of micro-batches and lane.
 * Between layers an activation is a record of the store, so that too little memory costs time but
 * never prevents a run.
 *
 * In the backward the tasks of a layer finish in any order, but the sums of visitors must not
 * depend on that order.  So each micro-batch of each lane with a gradient has a turn, numbered by
 * micro-batch, then lane.  A turn is computed into a slot of the visitor's scratch and committed
 * from it, and commits happen one at a time in the order of turns.  There may be fewer slots than
 * turns: turn i uses slot i % slots, after turn i - slots has been committed.
 *
 *     turns     0   1   2 | 3   4   5   6   7   8 | 9  10  ...  batches * backs - 1
 *               committed | .   c   .   c   .   . | wait for their slots
 *                         ^ commits = 3           ^ commits + slots = 9, for 6 slots
 *
 *     c: computed, waits for its commit;  .: being computed, or not begun
 *
 * A turn goes from waiting (wait_for_slot) to computing (backward_one) to computed (commit_ready,
 * on entry) to committed (the loop in commit_ready, by a thread that found no other thread
 * committing).
 *
 * Invariants, in every layer of the backward:
 *   1. Turns [0, commits) are committed, each once, in this order; no other turn is.
 *   2. A turn that is computing or computed is in [commits, commits + slots), so no two of them
 *      share a slot.
 *   3. One thread commits at a time; it holds `committing`, and not the lock, while it does.
 *   4. A task needs at most `slots` turns at once, so the oldest turn that is not committed never
 *      waits, and the layer makes progress.
 *   5. When the tasks of the layer are done, all turns are committed, even after an error: then the
 *      visitor is no longer called, but turns are counted.
 *   6. A boundary has one record.  For lanes with a gradient the record of the last boundary is
 *      reused for the gradient, or it has one more record, after all others, with
 *      options.keep_last; it is read and written only by the tasks of its own block and lane.
 */
#include "lib/engine/sweep.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ops/scan.h"
#include "lib/base/clock.h"
#include "lib/base/mem.h"
#include "lib/base/pool.h"
#include "lib/base/trace.h"
#include "lib/block/cost.h"
#include "lib/block/norm.h"
#include "lib/engine/layer.h"
#include "lib/engine/sweeping.h"

#define MICRO_TOKENS 1024

int fm_sweep_micro(int batch, int T)
{
    int best = 1;
    for (int s = 2; s <= batch && (int64_t)s * T <= MICRO_TOKENS; s++)
        best = batch % s == 0 ? s : best;
    return best;
}

/* Floats of one micro-batch at a boundary. */
static size_t boundary_count(const struct fm_sweeping *r, int b)
{
    return (size_t)r->batch[b].S * (size_t)r->batch[b].T * (size_t)r->sweep->config->H;
}

static struct fm_pass pass_of(const struct fm_sweeping *r, int block, int lane)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_block *k = &s->block[block];
    const uint32_t *widths = r->lane[lane].widths;
    const float *closed = r->lane[lane].closed;
    struct fm_pass pass = {
        .ops = s->ops,
        .config = s->config,
        .l = r->l,
        .layer = fm_merge_find(r, lane),
        .widths = widths && r->m >= 0 ? widths + (size_t)r->m * (size_t)s->config->E : NULL,
        .closed = closed && r->m >= 0 ? closed + (size_t)r->m * (size_t)s->config->E : NULL,
        .cos = s->cos,
        .sin = s->sin,
        .positions = s->T,
        .S = k->count * r->batch[k->first].S,
        .T = r->batch[k->first].T,
        .parts = k->count,
    };
    fm_actcache_find(r, block, lane, &pass);
    return pass;
}

/* FM_ESAVED if the run is about to end: then tasks may have left values uncomputed, so results must
 * not be used. */
static int check_going(const struct fm_sweeping *r, struct fm_err *err)
{
    return fm_pool_ending() ? fm_fail(err, FM_ESAVED, "interrupted in layer %d", r->l) : FM_OK;
}

static int check_finite(const struct fm_sweeping *r, const float *x, int block, int lane,
                        const char *what, struct fm_err *err)
{
    int rc = check_going(r, err);
    if (rc)
        return rc;
    const struct fm_block *k = &r->sweep->block[block];
    size_t one = boundary_count(r, k->first), n = (size_t)k->count * one;
    assert(k->count > 0 && k->first + k->count <= r->batches);
    size_t bad = fm_dtype_nonfinite(x, FM_F32, n);
    if (bad == n)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "layer %d: %s of lane %d, batch %d, token %zu is not finite; check the weights",
                   r->l, what, lane, r->base + k->first + (int)(bad / one),
                   bad % one / (size_t)r->sweep->config->H);
}

static void embed_block(const struct fm_sweeping *r, int block, float *x)
{
    const struct fm_ops *op = r->sweep->ops;
    const struct fm_block *k = &r->sweep->block[block];
    size_t one = boundary_count(r, k->first);
    for (int i = 0; i < k->count; i++) {
        const struct fm_batch *batch = &r->batch[k->first + i];
        int n = batch->S * batch->T;
        op->embed(x + (size_t)i * one, batch->ids, r->nonlayer->embed, n, r->sweep->config->H);
        if (r->sweep->config->embed_scale != 1)
            op->scale(x + (size_t)i * one, r->sweep->config->embed_scale, (int64_t)one);
    }
}

/* Read the decoder's last boundary for sequence i of a block, without its last row.  *h points into
 * the store if the record is in memory, else to `spare`. */
static int read_decoded(void **h, const struct fm_sweeping *r, int block, int i, float *spare,
                        struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep, *decoder = s->options.draft->decoder;
    size_t row = (size_t)s->config->H * sizeof(float), T = (size_t)r->batch->T + 1;
    assert(decoder->together == s->together && decoder->block_of[s->block[block].first] == block);
    return fm_store_get(&decoder->store, (size_t)block, (size_t)i * T * row, (T - 1) * row, h,
                        spare, err);
}

/* The input of a layer for multi-token prediction, instead of the embeddings x. */
static int join_block(const struct fm_sweeping *r, int block, float *x, struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_config *c = s->config;
    const struct fm_model_joint *joint = s->options.draft->joint;
    int T = r->batch->T, sequences = s->block[block].count * r->batch->S, rc = FM_OK;
    size_t H = (size_t)c->H, one = (size_t)T * H;
    struct fm_mark mark = fm_scratch_mark();
    float *rstd = fm_scratch_floats((size_t)T), *spare = fm_scratch_floats(one);
    float *part[2] = {fm_scratch_floats(one), fm_scratch_floats(one)};
    float *both = fm_scratch_floats(2 * one);
    for (int i = 0; i < sequences && !rc; i++) {
        float *own = x + (size_t)i * one;
        void *h = NULL;
        rc = read_decoded(&h, r, block, i, spare, err);
        if (rc)
            break;
        fm_norm_forward(s->ops, c, part[0], rstd, own, joint->enorm, NULL, T, c->H);
        fm_norm_forward(s->ops, c, both, rstd, h, r->taught->norm, NULL, T, c->H);
        fm_norm_forward(s->ops, c, part[1], rstd, both, joint->hnorm, NULL, T, c->H);
        for (size_t t = 0; t < 2 * (size_t)T; t++)
            memcpy(both + t * H, part[t % 2] + t / 2 * H, H * sizeof *both);
        s->ops->gemm(false, true, T, c->H, 2 * c->H, 1, fm_f32(both), 2 * c->H, joint->proj,
                     2 * c->H, 0, own, c->H);
    }
    fm_scratch_release(mark);
    return rc;
}

/* Turn of batch b and the nth lane with a gradient: its place in the order of commits. */
static int turn_of(const struct fm_sweeping *r, int b, int nth)
{
    assert(b >= 0 && b < r->batches && nth >= 0 && nth < r->backs);
    return b * r->backs + nth;
}

/* The views of the block's micro-batches in a lane, in scratch; in the forward every micro-batch
 * and lane has a slot. */
static struct fm_expert_view *place_views(const struct fm_sweeping *r, int block, int lane,
                                          bool forward)
{
    const struct fm_block *k = &r->sweep->block[block];
    struct fm_expert_view *where = fm_scratch((size_t)k->count * sizeof *where);
    for (int i = 0, b = k->first; i < k->count; i++, b++)
        where[i] = (struct fm_expert_view){
            .layer = r->m,
            .lane = lane,
            .batch = r->base + b,
            .slot = forward ? b * r->lanes + lane : turn_of(r, b, r->nth[lane]) % r->sweep->slots};
    return where;
}

/* The visitor that is called for the layer's experts in the forward, or NULL. */
static const struct fm_visitor *forward_visitor(const struct fm_sweeping *r)
{
    return r->visitor && r->visitor->forward && r->m >= 0 ? r->visitor : NULL;
}

/* Forward of a block and lane. */
static int forward_one(const struct fm_sweeping *r, int task, struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    int block = task / r->lanes, lane = task % r->lanes;
    struct fm_pass pass = pass_of(r, block, lane);
    size_t in = fm_sweeping_record(r, block, lane, r->l);
    size_t out = fm_sweeping_record(r, block, lane, r->l + 1);
    size_t count = (size_t)pass.parts * boundary_count(r, s->block[block].first);
    size_t bytes = count * sizeof(float);
    float *spare = fm_scratch(bytes), *spare_out = fm_scratch(bytes);
    void *x = NULL;
    int rc = FM_OK;
    if (r->l == s->first) {
        x = fm_store_place(&s->store, in, spare);
        embed_block(r, block, x);
        if (s->options.draft)
            rc = join_block(r, block, x, err);
        if (!rc && in != out)
            rc = fm_store_put(&s->store, in, 0, bytes, x, err);
    } else {
        rc = fm_store_get(&s->store, in, 0, bytes, &x, spare, err);
    }
    if (rc)
        return rc;
    float *y = in == out ? x : fm_store_place(&s->store, out, spare_out);
    fm_layer_forward(&pass, y, x, s->routed + (size_t)task * (size_t)s->config->E,
                     forward_visitor(r), place_views(r, block, lane, true));
    rc = check_finite(r, y, block, lane, "an activation", err);
    return rc ? rc : fm_store_put(&s->store, out, 0, bytes, y, err);
}

static void forward_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    struct fm_mark mark = fm_scratch_mark();
    struct fm_err err = {0};
    if (check_going(r, &err) || forward_one(r, i, &err))
        fm_sweeping_fail(r, i, &err);
    else
        fm_sweeping_did_layer(r, i / r->lanes, i % r->lanes, false);
    fm_scratch_release(mark);
}

/* Backward of a block and lane through the layer. */
static int backward_one(const struct fm_sweeping *r, int block, int lane, struct fm_err *err)
{
    const struct fm_sweep *s = r->sweep;
    const struct fm_block *k = &s->block[block];
    struct fm_pass pass = pass_of(r, block, lane);
    size_t one = boundary_count(r, k->first), count = (size_t)k->count * one;
    size_t bytes = count * sizeof(float);
    size_t in = fm_sweeping_record(r, block, lane, r->l);
    size_t out = fm_sweeping_gradient(r, block, lane);
    float *spare = fm_scratch(bytes), *spare_out = fm_scratch(bytes);
    void *x = NULL, *dx = NULL;
    int rc = fm_store_get(&s->store, in, 0, bytes, &x, spare, err);
    if (!rc)
        rc = fm_store_get(&s->store, out, 0, bytes, &dx, spare_out, err);
    if (rc)
        return rc;
    float *tap = block == 0 && s->taps.lane == lane ? s->taps.dx : NULL;
    if (r->l == s->end - 1) {
        if (s->scale[lane] != 1) /* set by the visitor */
            s->ops->scale(dx, s->scale[lane], (int64_t)count);
        if (tap)
            memcpy(tap + (size_t)(r->l + 1) * one, dx, one * sizeof *tap);
    }
    bool wanted = r->l > r->lowest || tap || (r->visitor && r->visitor->router);
    fm_layer_backward(&pass, dx, wanted, x, r->m < 0 ? NULL : r->visitor,
                      place_views(r, block, lane, false));
    if (!wanted)
        return check_going(r, err);
    if (tap)
        memcpy(tap + (size_t)r->l * one, dx, one * sizeof *tap);
    rc = check_finite(r, dx, block, lane, "a gradient", err);
    return rc ? rc : fm_store_put(&s->store, out, 0, bytes, dx, err);
}

/*
 * Turn i may use its slot after the previous turn of that slot has been committed.  That turn and
 * all older ones belong to tasks that other threads took earlier, or to this task, and all of these
 * have slots; so the wait ends.
 */
static void wait_for_slot(struct fm_sweeping *r, int i)
{
    pthread_mutex_lock(&r->lock);
    while (i - r->commits >= r->sweep->slots)
        pthread_cond_wait(&r->committed, &r->lock);
    assert(i >= r->commits); /* invariant 2: below commits + slots, by the loop */
    pthread_mutex_unlock(&r->lock);
}

/* The block's turns are computed: commit what is next in order, one at a time, without holding the
 * lock. */
static void commit_ready(struct fm_sweeping *r, const struct fm_block *k, int nth)
{
    struct fm_sweep *s = r->sweep;
    const struct fm_visitor *v = r->visitor;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < k->count; i++)
        s->computed[turn_of(r, k->first + i, nth)] = true;
    bool mine = !r->committing;
    r->committing = true;
    while (mine && r->commits < r->batches * r->backs && s->computed[r->commits]) {
        int i = r->commits;
        assert(r->committing); /* invariant 3 */
        bool call = v && v->commit && r->m >= 0 && r->failed == INT_MAX;
        pthread_mutex_unlock(&r->lock);
        if (call)
            v->commit(v->self, r->m, r->base + i / r->backs, r->back[i % r->backs], i % s->slots);
        pthread_mutex_lock(&r->lock);
        assert(r->commits == i); /* invariant 1 */
        r->commits++;
        pthread_cond_broadcast(&r->committed);
    }
    if (mine)
        r->committing = false;
    pthread_mutex_unlock(&r->lock);
}

static void backward_task(void *arg, int i)
{
    struct fm_sweeping *r = arg;
    struct fm_err err = {0};
    int block = i / r->backs, nth = i % r->backs;
    const struct fm_block *k = &r->sweep->block[block];
    assert((k->count - 1) * r->backs < r->sweep->slots); /* invariant 4 */
    wait_for_slot(r, turn_of(r, k->first + k->count - 1, nth));
    struct fm_mark mark = fm_scratch_mark();
    if (check_going(r, &err) || backward_one(r, block, r->back[nth], &err))
        fm_sweeping_fail(r, i, &err);
    else
        fm_sweeping_did_layer(r, block, r->back[nth], true);
    fm_scratch_release(mark);
    commit_ready(r, k, nth);
}

/* Make layer l resident, with the merged copies of all adapters; `next` is the layer that is
 * entered after it, or -1. */
static int enter_layer(struct fm_sweeping *r, int l, int next, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    assert(l >= s->first && l < s->end);
    r->l = l;
    r->m = fm_config_moe(s->config, l);
    if (FM_DEBUGGING)
        fm_scan_layer(l);
    if (r->blocks == 0)
        return FM_OK;
    if (s->options.stop && *s->options.stop)
        return fm_fail(err, FM_ESAVED, "interrupted before layer %d", l);
    double began = fm_clock_now();
    int rc = fm_model_layer(s->model, l, next, &r->layer, err);
    fm_comm_tally(s->options.comm)->reading += fm_clock_now() - began;
    if (!rc)
        fm_merge_layer(r);
    return rc ? rc : check_going(r, err);
}

static void leave_layer(void)
{
    if (FM_DEBUGGING)
        fm_scan_layer(-1);
}

/* All tasks of the layer are done: commit the visitor's slots in order. */
static int commit_forward(struct fm_sweeping *r, const struct fm_visitor *v, struct fm_err *err)
{
    for (int b = 0; v->commit && b < r->batches; b++)
        for (int lane = 0; lane < r->lanes; lane++)
            v->commit(v->self, r->m, r->base + b, lane, b * r->lanes + lane);
    return v->layer_end ? v->layer_end(v->self, r->m, err) : FM_OK;
}

static int run_forward(struct fm_sweeping *r, int64_t *counts, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    int E = s->config->E, n = r->blocks * r->lanes;
    size_t M = (size_t)s->config->M;
    for (int l = s->first; l < s->end; l++) {
        if (enter_layer(r, l, l + 1 < s->end ? l + 1 : -1, err))
            return err->code;
        const struct fm_visitor *v = forward_visitor(r);
        if (v && v->layer_begin && v->layer_begin(v->self, r->m, err))
            return err->code;
        FM_TRACE(FM_TRACE_SWEEP, "layer %d of %d forward, %d tasks", l, s->config->L, n);
        fm_pool_for(n, forward_task, r);
        if (fm_sweeping_settle(r, err) || (v && commit_forward(r, v, err)))
            return err->code;
        for (int i = 0; counts && r->m >= 0 && i < n; i++)
            for (int e = 0; e < E; e++)
                counts[((size_t)(i % r->lanes) * M + (size_t)r->m) * (size_t)E + (size_t)e] +=
                    s->routed[(size_t)i * (size_t)E + (size_t)e];
        leave_layer();
    }
    return FM_OK;
}

static int run_backward(struct fm_sweeping *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    const struct fm_visitor *v = r->visitor;
    for (int l = s->end - 1; l >= r->lowest; l--) {
        if (enter_layer(r, l, l > r->lowest ? l - 1 : -1, err))
            return err->code;
        bool seen = v && r->m >= 0;
        if (seen && v->layer_begin && v->layer_begin(v->self, r->m, err))
            return err->code;
        r->commits = 0;
        memset(s->computed, 0, (size_t)r->batches * (size_t)r->backs * sizeof *s->computed);
        FM_TRACE(FM_TRACE_SWEEP, "layer %d of %d backward, %d tasks", l, s->config->L,
                 r->blocks * r->backs);
        fm_pool_for(r->blocks * r->backs, backward_task, r);
        assert(r->commits == r->batches * r->backs); /* invariant 5 */
        if (fm_sweeping_settle(r, err) ||
            (seen && v->layer_end && v->layer_end(v->self, r->m, err)))
            return err->code;
        leave_layer();
    }
    return v && v->end ? v->end(v->self, err) : FM_OK;
}

/* Find the lanes with a gradient and the lanes that are teachers. */
static void sort_lanes(struct fm_sweeping *r)
{
    for (int i = 0; i < r->lanes; i++) {
        int teacher = r->lane[i].teacher;
        assert(teacher < i);
        r->teaches[i] = false;
        r->nth[i] = r->lane[i].backward ? r->backs : -1;
        if (r->lane[i].backward)
            r->back[r->backs++] = i;
        if (teacher >= 0)
            r->teaches[teacher] = true;
    }
}

/* Set up records for the boundaries of this run; reuse the store of the last run if it is large
 * enough. */
static int prepare_store(struct fm_sweeping *r, struct fm_err *err)
{
    struct fm_sweep *s = r->sweep;
    size_t blocks = (size_t)r->blocks, row = (size_t)s->config->H * sizeof(float), bytes = 0;
    size_t below = (size_t)(s->end - s->first + s->options.keep_last);
    size_t want = blocks * ((size_t)r->lanes + (size_t)r->backs * below);
    if (want <= s->store.count)
        return FM_OK;
    if (!fm_mul(&bytes, (size_t)s->together * (size_t)s->rows, row))
        return fm_fail(err, FM_ENOMEM, "a boundary of %d tokens is too large", s->rows);
    fm_actcache_release(&s->cache);
    fm_store_release(&s->store);
    return fm_store_init(&s->store, s->ops, bytes, want, s->options.memory, err);
}

/* Forward and losses of this rank's blocks. */
static int measure_own(struct fm_sweeping *r, struct fm_measure *measure, int64_t *counts,
                       struct fm_err *err)
{
    struct fm_comm *comm = r->sweep->options.comm;
    if (r->blocks == 0) /* make only the visitor's calls that involve all ranks */
        return r->visitor && r->visitor->forward ? run_forward(r, counts, err) : FM_OK;
    if (fm_merge_prepare(r, err) || prepare_store(r, err))
        return err->code;
    fm_actcache_prepare(r);
    fm_sweeping_plan(r);
    double began = fm_clock_now();
    int rc = fm_model_nonlayer(r->sweep->model, &r->nonlayer, err);
    const struct fm_sweep_options *o = &r->sweep->options;
    const struct fm_sweep *other = o->draft ? o->draft->decoder : o->teacher;
    if (!rc && other)
        rc = fm_model_nonlayer(other->model, &r->taught, err);
    fm_comm_tally(comm)->reading += fm_clock_now() - began;
    if (!rc)
        rc = run_forward(r, counts, err);
    return rc ? rc : fm_lm_head_run(r, measure, err);
}

static int run_passes(struct fm_sweeping *r, struct fm_measure *measure, int64_t *counts,
                      struct fm_err *err)
{
    const struct fm_visitor *v = r->visitor;
    bool waits = v && v->losses; /* else ranks synchronise after the backward */
    if (measure_own(r, measure + (size_t)r->base * (size_t)r->lanes, counts, err) ||
        (waits && fm_sweeping_collect(r, measure, counts, err)))
        return err->code;
    if (waits)
        v->losses(v->self, measure, r->sweep->scale);
    if (r->backs > 0 && run_backward(r, err))
        return err->code;
    return waits ? FM_OK : fm_sweeping_collect(r, measure, counts, err);
}

/* Count the time that was spent neither waiting for ranks nor reading weights as computing. */
static void tally(const struct fm_sweeping *r, double seconds, const struct fm_tally *before)
{
    struct fm_tally *t = fm_comm_tally(r->sweep->options.comm);
    t->leaves += (uint64_t)r->blocks;
    t->computing += seconds - (t->waiting - before->waiting) - (t->reading - before->reading);
}

int fm_sweep_run(struct fm_sweep *s, const struct fm_batch *batch, int batches,
                 const struct fm_lane *lane, int lanes, const struct fm_visitor *visitor,
                 struct fm_measure *measure, int64_t *counts, struct fm_err *err)
{
    const struct fm_tally before = *fm_comm_tally(s->options.comm);
    double began = fm_clock_now();
    const struct fm_config *c = s->config;
    assert(batches > 0 && batches <= s->batches && lanes > 0 && lanes <= s->lanes);
    assert(!visitor || !visitor->forward || !lane[0].backward);
    struct fm_sweeping r = {.sweep = s,
                            .batch = batch,
                            .batches = batches,
                            .lane = lane,
                            .lanes = lanes,
                            .visitor = visitor,
                            .failed = INT_MAX,
                            .lock = PTHREAD_MUTEX_INITIALIZER,
                            .watching = PTHREAD_MUTEX_INITIALIZER,
                            .committed = PTHREAD_COND_INITIALIZER};
    sort_lanes(&r);
    fm_sweeping_share(&r);
    r.lowest = s->taps.dx || s->first > 0 ? s->first : c->moe[0];
    if (counts)
        memset(counts, 0, (size_t)lanes * (size_t)c->M * (size_t)c->E * sizeof *counts);
    for (int i = 0; i < lanes; i++)
        s->scale[i] = 1;
    const atomic_int *heeded = fm_pool_heed(s->options.stop);
    int rc = fm_comm_agree(s->options.comm, run_passes(&r, measure, counts, err), err);
    fm_pool_heed(heeded);
    tally(&r, fm_clock_now() - began, &before);
    pthread_mutex_destroy(&r.lock);
    pthread_mutex_destroy(&r.watching);
    pthread_cond_destroy(&r.committed);
    return rc;
}

/* Turns in flight: one block's turns in every lane, plus as many as other threads may take. */
int fm_sweep_turns(int batches, int rows, int cut, int lanes)
{
    size_t pairs = (size_t)batches * (size_t)lanes;
    size_t block = (size_t)fm_sweep_together(batches, rows, cut) * (size_t)lanes;
    size_t more = (size_t)(fm_pool_threads() + lanes - 2) / (size_t)lanes;
    size_t slots = block * (1 + more);
    return (int)(slots < pairs ? slots : pairs);
}

static int take_buffers(struct fm_sweep *s, struct fm_err *err)
{
    const struct fm_config *c = s->config;
    size_t pairs = (size_t)s->batches * (size_t)s->lanes;
    size_t chunks = (size_t)s->rows / FM_HEAD_ROWS + 1;
    size_t ranks = (size_t)fm_comm_size(s->options.comm);
    s->share = fm_alloc(ranks + 1, sizeof *s->share, "shares of ranks", err);
    s->block = fm_alloc((size_t)s->batches, sizeof *s->block, "blocks of batches", err);
    s->block_of = fm_alloc((size_t)s->batches, sizeof *s->block_of, "blocks of batches", err);
    s->routed = fm_alloc(pairs * (size_t)c->E, sizeof *s->routed, "token counts", err);
    s->partial = fm_alloc(pairs * chunks, sizeof *s->partial, "losses", err);
    s->scale = fm_alloc((size_t)s->lanes, sizeof *s->scale, "loss factors", err);
    s->computed = fm_alloc(pairs, sizeof *s->computed, "a commit list", err);
    s->merged = fm_alloc((size_t)s->lanes, sizeof *s->merged, "merged weights", err);
    bool all = s->share && s->block && s->block_of && s->routed && s->partial && s->scale &&
               s->computed && s->merged;
    return all ? FM_OK : err->code;
}

/* Compute the rotary angles of all positions. */
static int take_angles(struct fm_sweep *s, struct fm_err *err)
{
    const struct fm_attention *attention = s->config->attention;
    attention = attention->full ? attention->full : attention;
    size_t n = (size_t)s->T * (size_t)attention->angles(s->config);
    s->cos = fm_alloc(n, sizeof *s->cos, "rotary angles", err);
    s->sin = s->cos ? fm_alloc(n, sizeof *s->sin, "rotary angles", err) : NULL;
    if (!s->sin)
        return err->code;
    attention->fill_angles(s->cos, s->sin, s->config, s->T);
    return FM_OK;
}

int fm_sweep_new(struct fm_sweep **sweep, struct fm_model *model, const struct fm_ops *ops,
                 int batches, int rows, int T, int lanes, const struct fm_sweep_options *options,
                 struct fm_err *err)
{
    const struct fm_config *c = fm_model_config(model);
    assert(batches > 0 && rows >= T && T > 1 && lanes > 0 && lanes <= FM_LANES_MAX);
    *sweep = NULL;
    if (rows > INT_MAX / c->K || FM_SWEEP_BLOCK_TOKENS > INT_MAX / c->K ||
        batches > INT_MAX / lanes / (rows / FM_HEAD_ROWS + 1))
        return fm_fail(err, FM_EUSAGE, "%d batches of %d tokens are too many; use a smaller batch",
                       batches, rows);
    struct fm_sweep *s = fm_alloc(1, sizeof *s, "a sweep", err);
    if (!s)
        return err->code;
    *s = (struct fm_sweep){.model = model,
                           .ops = ops,
                           .config = c,
                           .options = *options,
                           .taps = {.lane = -1},
                           .batches = batches,
                           .rows = rows,
                           .T = T,
                           .lanes = lanes,
                           .first = options->draft ? fm_extra_twin_layer(c) : 0,
                           .end = options->draft ? fm_extra_twin_layer(c) + 1 : c->L,
                           .together = fm_sweep_together(batches, rows, options->cut)};
    s->slots = fm_sweep_turns(batches, rows, options->cut, lanes);
    int rc = take_buffers(s, err);
    if (!rc)
        rc = take_angles(s, err);
    if (rc) {
        fm_sweep_free(s);
        return rc;
    }
    fm_model_use(model, ops);
    *sweep = s;
    return FM_OK;
}

void fm_sweep_free(struct fm_sweep *s)
{
    if (!s)
        return;
    fm_merge_release(s);
    free(s->computed);
    free(s->scale);
    free(s->partial);
    free(s->routed);
    free(s->block_of);
    free(s->block);
    free(s->share);
    free(s->cos);
    free(s->sin);
    fm_actcache_release(&s->cache);
    fm_store_release(&s->store);
    free(s);
}

/*
 * Scratch of all threads, which keep what they needed in a layer or in the LM head.  A thread that
 * computes a block of micro-batches in one lane needs inner values, their gradients and the rows of
 * all experts; there are at most blocks * lanes such threads.  All threads compute experts; each
 * is assumed to need twice an even share of the rows.
 */
uint64_t fm_sweep_scratch_bytes(const struct fm_config *c, int batches, int rows, int cut,
                                int lanes)
{
    uint64_t block = (uint64_t)rows * (uint64_t)fm_sweep_together(batches, rows, cut);
    uint64_t share = 2 * block * (uint64_t)c->K / (uint64_t)c->E + 1;
    uint64_t blocks = (uint64_t)fm_sweep_leaves(batches, rows, cut) * (uint64_t)lanes;
    uint64_t threads = (uint64_t)fm_pool_threads(), sum = 0;
    uint64_t experts = share * fm_cost_row_floats(c) * sizeof(float);
    uint64_t inner = block * fm_cost_token_floats(c) * sizeof(float);
    int tasks;
    uint64_t logits = fm_sweep_head_bytes(c, rows, lanes, &tasks);
    uint64_t heads = (uint64_t)batches * (uint64_t)tasks;
    for (uint64_t i = 0; i < threads; i++) {
        uint64_t layer = experts + (i < blocks ? inner : 0), head = i < heads ? logits : 0;
        sum += layer > head ? layer : head;
    }
    return sum;
}

int fm_sweep_slots(const struct fm_sweep *s)
{
    return s->slots;
}

int fm_sweep_slots_forward(const struct fm_sweep *s)
{
    return s->batches * s->lanes;
}

void fm_sweep_tap(struct fm_sweep *s, const struct fm_sweep_taps *taps)
{
    s->taps = *taps;
}
