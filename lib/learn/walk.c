/*
 * Greedy, by measurement: the cost of lowering an expert is the sum over the channels it would
 * lose of the mean square of what each is worth to the loss.  Signed sums would cancel, squares do
 * not.  Costs are measured again at every budget, because what a channel is worth changes as
 * others go; between two budgets the cheapest moves per channel are taken first.
 */
#include "lib/learn/walk.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/learn/maskgrad.h"

/* The cheapest way down for one expert: to which action, at what cost per channel. */
struct move {
    int from, to; /* actions; to < 0: none left */
    double cost;
};

static struct move cheapest_move(const double *squares, const struct fm_actions *actions, int from)
{
    struct move best = {from, -1, 0};
    double sum = 0;
    for (int a = from; a > 0; a--) {
        sum += squares[a];
        double cost = sum / (double)(actions->width[from] - actions->width[a - 1]);
        if (best.to < 0 || cost < best.cost)
            best = (struct move){from, a - 1, cost};
    }
    return best;
}

/* Apply the cheapest moves, one by one, ties to the first expert. */
static void apply_moves(uint32_t *widths, struct move *move, const double *squares,
                        const struct fm_actions *actions, int X, uint64_t removed, uint64_t target)
{
    while (removed < target) {
        int best = -1;
        for (int x = 0; x < X; x++) {
            if (move[x].to >= 0 && (best < 0 || move[x].cost < move[best].cost))
                best = x;
        }
        if (best < 0)
            return;
        uint32_t width = actions->width[move[best].to];
        removed += widths[best] - width;
        widths[best] = width;
        move[best] =
            cheapest_move(squares + (size_t)best * (size_t)actions->count, actions, move[best].to);
    }
}

int fm_walk_lower(uint32_t *widths, const double *squares, const struct fm_actions *actions, int X,
                  uint64_t target, struct fm_err *err)
{
    struct move *move = fm_alloc((size_t)X, sizeof *move, "moves", err);
    if (!move)
        return FM_ENOMEM;
    uint64_t removed = 0;
    for (int x = 0; x < X; x++) {
        int from = fm_actions_find(actions, widths[x]);
        assert(from >= 0);
        move[x] = cheapest_move(squares + (size_t)x * (size_t)actions->count, actions, from);
        removed += actions->width[actions->count - 1] - widths[x];
    }
    apply_moves(widths, move, squares, actions, X, removed, target);
    free(move);
    return FM_OK;
}

/* One sweep at `widths`: fills grad->total. */
static int measure_squares(const struct fm_walk *w, struct fm_maskgrad *grad,
                           const uint32_t *widths, uint64_t at, struct fm_err *err)
{
    struct fm_task *task = w->task;
    int W = w->sequences, T = task->calib.T, rc = FM_ENOMEM;
    struct fm_lane lane[2] = {{.teacher = -1, .ce = 1},
                              {.widths = widths, .backward = true, .teacher = 0, .ce = 1, .kl = 1}};
    struct fm_sweep *sweep = NULL;
    int32_t *ids = fm_alloc((size_t)W * (size_t)T, sizeof *ids, "sequences", err);
    struct fm_batch *batch = fm_alloc((size_t)W, sizeof *batch, "batches", err);
    struct fm_measure *measure = fm_alloc(2 * (size_t)W, sizeof *measure, "measures", err);
    if (!ids || !batch || !measure)
        goto out;
    for (int i = 0; i < W; i++)
        batch[i] = (struct fm_batch){ids + (size_t)i * (size_t)T, 1, T};
    rc = fm_task_draw(task, ids, at, W, err);
    if (!rc)
        rc = fm_task_sweep(&sweep, task, W, T, 2, err);
    if (!rc)
        rc = fm_maskgrad_init(grad, task->ops, w->actions, task->config, 1, sweep, err);
    if (!rc) {
        grad->squares = true;
        fm_maskgrad_begin(grad, W);
        struct fm_visitor visitor = fm_maskgrad_visitor(grad);
        rc = fm_sweep_run(sweep, batch, W, lane, 2, &visitor, measure, NULL, err);
    }
out:
    fm_sweep_free(sweep);
    free(ids);
    free(batch);
    free(measure);
    return rc;
}

/* Groups of tied experts are lowered as one expert with the sum of their costs. */
static int lower_groups(const struct fm_walk *w, uint32_t *widths, double *squares,
                        const struct fm_masks *masks, uint64_t target, struct fm_err *err)
{
    int size = fm_granularity_size(w->granularity, masks->M, masks->E), X = masks->M * masks->E;
    fm_granularity_gather(widths, (size_t)X, size);
    fm_granularity_sum(squares, squares, (size_t)X, size, w->actions->count);
    int rc = fm_walk_lower(widths, squares, w->actions, X / size,
                           (target + (uint64_t)size - 1) / (uint64_t)size, err);
    fm_granularity_spread(widths, (size_t)X, size);
    return rc;
}

int fm_walk_step(const struct fm_walk *w, struct fm_masks *masks, bool *done, struct fm_err *err)
{
    uint64_t n = fm_masks_channels(masks), removed = masks->mask[masks->count - 1].removed;
    uint64_t targets = fm_decimal_targets(w->step, w->until), i = 1;
    int X = masks->M * masks->E, rc = FM_OK;
    while (i <= targets && removed >= fm_decimal_target(w->step, w->until, i, n))
        i++;
    *done = i > targets || removed == (uint64_t)X * (w->actions->width[w->actions->count - 1] -
                                                     w->actions->width[0]);
    if (*done)
        return FM_OK;
    struct fm_maskgrad grad = {0};
    uint32_t *widths = fm_alloc((size_t)X, sizeof *widths, "widths", err);
    if (!widths)
        return FM_ENOMEM;
    memcpy(widths, fm_masks_widths(masks, masks->count - 1), (size_t)X * sizeof *widths);
    rc = measure_squares(w, &grad, widths, (i - 1) * (uint64_t)w->sequences, err);
    if (!rc)
        rc = lower_groups(w, widths, grad.total, masks, fm_decimal_target(w->step, w->until, i, n),
                          err);
    if (!rc)
        rc = fm_masks_append(masks, widths, FM_METHOD_WALK, (int)i, err);
    fm_maskgrad_release(&grad);
    free(widths);
    return rc;
}
