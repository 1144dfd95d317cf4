/*
 * Values are running means over sweeps, since the masks of neighbouring budgets differ little.  The
 * scatter of new values around the mean estimates the noise of the mean; the distance of the mean
 * from the prediction by squares estimates noise plus true difference.  Their quotient gives the
 * weight (trust) of the values.
 *
 * An expert of width[a] loses range a in a step down and gains range a + 1 in a step up:
 *
 *     width[0]       width[1]       width[2]       width[3]            width[A-1] = I
 *        |   range 1    |   range 2    |   range 3    |      ...            |
 *        |<------------ kept --------->|                                     (a = 2)
 *                       |<--- down --->|<---- up ---->|
 *
 * One mask of exchange (lib/methods/exchange.c, step):
 *
 *     fm_stepcost_lower  the steps down that cost least, until the target is met
 *
 * and then two rounds of
 *
 *     fm_stepcost_draw   two masks around the current one, drawn at random
 *     one sweep          gradients at these masks: sums (2, X, 2, A)
 *     fm_stepcost_add    running means of value and square, ratio and trust
 *     fm_stepcost_pairs  a step down of one expert for a step up of another that gains more
 *     fm_stepcost_lower  again: a pair's two steps need not have the same number of channels
 *
 * Invariants:
 *   1. Every width is width[a] of some action a, before and after each function.
 *   2. In a drawn mask every expert has its width or the width of an adjacent action.
 *   3. fm_stepcost_lower never widens, and ends when at least `target` channels are removed, or
 *      every expert is at width[0].
 *   4. fm_stepcost_pairs names each expert at most once, a pair has two different experts, and
 *      both steps exist: the one that goes down is above width[0], the other below width[A-1].
 *   5. A value is NaN until both ends of its range have been measured in one sweep, and never
 *      NaN afterwards; trust is in [0, 1] and ratio above 0.
 */
#include "lib/masks/stepcost.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

#define KEEP 0.5 /* fraction of a running mean that is kept at every sweep */
/* A range that has not been measured is assumed to cost at least this multiple of the range above
 * it, because channels are ranked. */
#define DEEPER 1.2
/* The fraction of tokens that is assumed to be distributed evenly.  On three models trained on
 * real text (tests/measure/RESULTS.md), 0 gives a higher loss on distant kinds of text, and 0.5 on
 * the calibration's kind. */
#define TEMPER 0.2
#define SHARE_MIN 0.05 /* smallest share, relative to an even one, so that weights are bounded */

int fm_stepcost_init(struct fm_stepcost *w, const struct fm_actions *actions, int X,
                     struct fm_err *err)
{
    size_t n = (size_t)X * (size_t)actions->count;
    *w = (struct fm_stepcost){.actions = actions, .X = X};
    w->value = fm_alloc(4 * n + (size_t)X, sizeof *w->value, "costs of widths", err);
    if (!w->value)
        return FM_ENOMEM;
    w->square = w->value + n;
    w->weight = w->square + n;
    w->kept = w->weight + X;
    for (int x = 0; x < X; x++)
        w->weight[x] = 1;
    for (size_t i = 0; i < 2 * n; i++)
        w->value[i] = NAN; /* nothing is measured yet */
    w->scale[FM_STEPCOST_RATIO] = 1;
    return FM_OK;
}

void fm_stepcost_release(struct fm_stepcost *w)
{
    free(w->value);
    *w = (struct fm_stepcost){0};
}

void fm_stepcost_keep(struct fm_stepcost *w)
{
    size_t n = 2 * (size_t)w->X * (size_t)w->actions->count;
    memcpy(w->kept, w->value, n * sizeof *w->kept);
    memcpy(w->kept_scale, w->scale, sizeof w->scale);
}

void fm_stepcost_restore(struct fm_stepcost *w)
{
    size_t n = 2 * (size_t)w->X * (size_t)w->actions->count;
    memcpy(w->value, w->kept, n * sizeof *w->value);
    memcpy(w->scale, w->kept_scale, sizeof w->scale);
}

void fm_stepcost_temper(struct fm_stepcost *w, const int64_t *tokens, int E)
{
    assert(E > 0 && w->X % E == 0);
    for (int x = 0; x < w->X; x++) {
        double layer = 0;
        for (int e = x / E * E; e < x / E * E + E; e++)
            layer += (double)tokens[e];
        double share = layer > 0 ? (double)tokens[x] * E / layer : 1;
        w->weight[x] = 1 - TEMPER + TEMPER / (share > SHARE_MIN ? share : SHARE_MIN);
    }
}

static int action_of(const struct fm_stepcost *w, uint32_t width)
{
    int a = fm_actions_find(w->actions, width);
    assert(a >= 0); /* invariant 1 */
    return a;
}

void fm_stepcost_draw(const struct fm_stepcost *w, const uint32_t *widths, uint32_t *around,
                      uint64_t seed, uint64_t sweep)
{
    const int L = FM_STEPCOST_LANES, pairs = L * (L - 1);
    for (int x = 0; x < w->X; x++) {
        uint64_t at = sweep * (uint64_t)w->X + (uint64_t)x;
        int d = (int)fm_rng_below(seed, FM_STREAM_AROUND, at, (uint64_t)pairs);
        int down = d % L, up = (down + 1 + d / L) % L, a = action_of(w, widths[x]);
        for (int s = 0; s < L; s++) {
            int to = s == down && a > 0 ? a - 1 : s == up && a + 1 < w->actions->count ? a + 1 : a;
            assert(to >= a - 1 && to <= a + 1 && down != up); /* invariant 2 */
            around[s * w->X + x] = w->actions->width[to];
        }
    }
}

/* Set *square to the mean of range a's squares over the masks.  If both ends of the range were
 * measured, set *value to the mean of -dL/dm over them; else return false. */
static bool estimate(const struct fm_stepcost *w, int x, int a, const uint32_t *around,
                     const double *sums, double *value, double *square)
{
    size_t A = (size_t)w->actions->count;
    double end[2] = {0, 0};
    int count[2] = {0, 0};
    *square = 0;
    for (int s = 0; s < FM_STEPCOST_LANES; s++) {
        const double *dz = sums + (size_t)(s * w->X + x) * 2 * A;
        bool with = around[s * w->X + x] >= w->actions->width[a];
        end[with] += dz[a - 1] - dz[a];
        count[with]++;
        *square += dz[A + (size_t)a] / FM_STEPCOST_LANES;
    }
    if (count[0] == 0 || count[1] == 0)
        return false;
    *value = (end[0] / count[0] + end[1] / count[1]) / 2;
    return true;
}

static int compare_doubles(const void *pa, const void *pb)
{
    double a = *(const double *)pa, b = *(const double *)pb;
    return a < b ? -1 : a > b;
}

/* Compute the ratio of values to squares from the half of the next steps that has the smaller
 * squares: choices are made among these, and a few large squares would otherwise dominate the
 * ratio. */
static int update_ratio(struct fm_stepcost *w, const uint32_t *widths, struct fm_err *err)
{
    size_t A = (size_t)w->actions->count, n = 0;
    double *squares = fm_alloc(2 * (size_t)w->X, sizeof *squares, "squares", err);
    if (!squares)
        return FM_ENOMEM;
    double sum[2] = {0, 0}, median = INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int x = 0; x < w->X; x++) {
            int a = action_of(w, widths[x]);
            for (int r = a > 0 ? a : 1; r <= a + 1 && r < w->actions->count; r++) {
                size_t at = (size_t)x * A + (size_t)r;
                if (isnan(w->value[at]))
                    continue;
                if (pass == 0)
                    squares[n++] = w->square[at];
                else if (w->square[at] <= median) {
                    sum[0] += w->value[at];
                    sum[1] += w->square[at];
                }
            }
        }
        if (pass == 0 && n > 0) {
            qsort(squares, n, sizeof *squares, compare_doubles);
            median = squares[n / 2];
        }
    }
    free(squares);
    if (sum[0] > 0 && sum[1] > 0)
        w->scale[FM_STEPCOST_RATIO] = sum[0] / sum[1];
    return FM_OK;
}

static double blend(double before, double now)
{
    return isnan(before) ? now : KEEP * before + (1 - KEEP) * now;
}

int fm_stepcost_add(struct fm_stepcost *w, const uint32_t *widths, const uint32_t *around,
                    const double *sums, struct fm_err *err)
{
    double scatter = 0, spread = 0;
    for (int x = 0; x < w->X; x++) {
        for (int a = 1; a < w->actions->count; a++) {
            size_t at = (size_t)x * (size_t)w->actions->count + (size_t)a;
            double value, square, before = w->value[at];
            bool both = estimate(w, x, a, around, sums, &value, &square);
            w->square[at] = blend(w->square[at], square);
            if (!both)
                continue;
            w->value[at] = blend(before, value);
            if (isnan(before))
                continue;
            double off = w->value[at] - w->scale[FM_STEPCOST_RATIO] * w->square[at];
            scatter += (value - before) * (value - before);
            spread += off * off;
        }
    }
    /* The variance of a running mean is `part` times that of one value; the variance of a value
     * minus the mean before it is (1 + part) times that of the value. */
    double part = (1 - KEEP) / (1 + KEEP), noise = scatter * part / (1 + part);
    if (spread > 0)
        w->scale[FM_STEPCOST_TRUST] = noise < spread ? 1 - noise / spread : 0;
    assert(w->scale[FM_STEPCOST_TRUST] >= 0 && w->scale[FM_STEPCOST_TRUST] <= 1); /* invariant 5 */
    return update_ratio(w, widths, err);
}

/* The cost of a range per channel, shrunk towards the squares, before weighting. */
static double cost_of(const struct fm_stepcost *w, int x, int a)
{
    assert(a >= 1 && a < w->actions->count); /* range a ends at width[a] */
    size_t at = (size_t)x * (size_t)w->actions->count + (size_t)a;
    double channels = (double)(w->actions->width[a] - w->actions->width[a - 1]);
    double guess = w->scale[FM_STEPCOST_RATIO] * w->square[at];
    double trust = w->scale[FM_STEPCOST_TRUST], value = w->value[at];
    if (!isnan(value))
        return (guess + trust * (value - guess)) / channels;
    if (a + 1 == w->actions->count || isnan(w->value[at + 1]))
        return guess / channels;
    double above = DEEPER * cost_of(w, x, a + 1);
    return guess / channels > above ? guess / channels : above;
}

double fm_stepcost_of(const struct fm_stepcost *w, int x, int a)
{
    return w->weight[x] * cost_of(w, x, a);
}

static uint64_t removed_by(const struct fm_stepcost *w, const uint32_t *widths)
{
    uint64_t removed = 0;
    for (int x = 0; x < w->X; x++)
        removed += w->actions->width[w->actions->count - 1] - widths[x];
    return removed;
}

void fm_stepcost_lower(const struct fm_stepcost *w, uint32_t *widths, uint64_t target)
{
    uint64_t removed = removed_by(w, widths);
    while (removed < target) {
        int best = -1;
        double least = 0;
        for (int x = 0; x < w->X; x++) {
            int a = action_of(w, widths[x]);
            double cost = a > 0 ? fm_stepcost_of(w, x, a) : 0;
            if (a > 0 && (best < 0 || cost < least)) {
                best = x;
                least = cost;
            }
        }
        if (best < 0)
            return;
        uint32_t to = w->actions->width[action_of(w, widths[best]) - 1];
        assert(to < widths[best]); /* invariant 3 */
        removed += widths[best] - to;
        widths[best] = to;
    }
}

struct move {
    int x;
    double cost;
};

static int compare_moves(const void *pa, const void *pb)
{
    const struct move *a = pa, *b = pb;
    return a->cost != b->cost ? (a->cost < b->cost ? -1 : 1) : a->x - b->x;
}

int fm_stepcost_pairs(const struct fm_stepcost *w, const uint32_t *widths,
                      struct fm_stepcost_pair *pair, struct fm_err *err)
{
    size_t X = (size_t)w->X;
    struct move *down = fm_alloc(2 * X, sizeof *down, "moves", err), *up = down ? down + X : NULL;
    bool *taken = fm_alloc(X, sizeof *taken, "moves", err);
    int downs = 0, ups = 0, pairs = 0;
    for (int x = 0; down && taken && x < w->X; x++) {
        int a = action_of(w, widths[x]);
        taken[x] = false;
        if (a > 0)
            down[downs++] = (struct move){x, fm_stepcost_of(w, x, a)};
        if (a + 1 < w->actions->count)
            up[ups++] = (struct move){x, -fm_stepcost_of(w, x, a + 1)};
    }
    if (down && taken) {
        qsort(down, (size_t)downs, sizeof *down, compare_moves);
        qsort(up, (size_t)ups, sizeof *up, compare_moves);
    }
    for (int d = 0, u = 0; d < downs && u < ups && pairs < w->X / 2;) {
        if (taken[down[d].x]) {
            d++;
        } else if (taken[up[u].x] || up[u].x == down[d].x) {
            u++;
        } else if (-up[u].cost > down[d].cost) {
            pair[pairs++] = (struct fm_stepcost_pair){down[d].x, up[u].x};
            taken[down[d].x] = taken[up[u].x] = true;
        } else {
            break;
        }
    }
    int rc = down && taken ? FM_OK : FM_ENOMEM;
    free(down);
    free(taken);
    return rc ? -1 : pairs;
}

void fm_stepcost_exchange(const struct fm_stepcost *w, uint32_t *widths,
                          const struct fm_stepcost_pair *pair)
{
    assert(pair->down != pair->up); /* invariant 4 */
    assert(widths[pair->down] > w->actions->width[0]);
    assert(widths[pair->up] < w->actions->width[w->actions->count - 1]);
    widths[pair->down] = w->actions->width[action_of(w, widths[pair->down]) - 1];
    widths[pair->up] = w->actions->width[action_of(w, widths[pair->up]) + 1];
}
