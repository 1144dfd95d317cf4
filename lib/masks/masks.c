/*
 * A family is an array of masks sorted by budget, and this file has the methods that make one
 * without gradients.  saliency: the concave hull of score against width gives the steps of each
 * expert, from the least to the greatest loss per channel; the steps of all experts are sorted and
 * taken in order, and a mask is appended whenever the next target is reached.
 */
#include "lib/masks/masks.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/rng.h"

/* More masks are useless; equal to FM_BUDGETS_MAX, the limit in lib/stage. */
#define MASKS_MAX 10000

void fm_masks_init(struct fm_masks *f, int M, int E, int I)
{
    assert(M > 0 && E > 0 && I > 0);
    *f = (struct fm_masks){.M = M, .E = E, .I = I};
}

void fm_masks_release(struct fm_masks *f)
{
    free(f->mask);
    free(f->widths);
    *f = (struct fm_masks){0};
}

static size_t experts_of(const struct fm_masks *f)
{
    return (size_t)f->M * (size_t)f->E;
}

const uint32_t *fm_masks_widths(const struct fm_masks *f, int b)
{
    assert(b >= 0 && b < f->count);
    return f->widths + (size_t)b * experts_of(f);
}

uint64_t fm_masks_channels(const struct fm_masks *f)
{
    return (uint64_t)experts_of(f) * (uint64_t)f->I;
}

double fm_masks_budget(const struct fm_masks *f, int b)
{
    assert(b >= 0 && b < f->count);
    return (double)f->mask[b].removed / (double)fm_masks_channels(f);
}

uint64_t fm_masks_removed(const struct fm_masks *f, const uint32_t *widths)
{
    uint64_t kept = 0;
    for (size_t x = 0; x < experts_of(f); x++)
        kept += widths[x];
    assert(kept <= fm_masks_channels(f));
    return fm_masks_channels(f) - kept;
}

static bool is_mask_sane(const struct fm_masks *f, int b)
{
    const struct fm_mask *mask = &f->mask[b];
    const struct fm_quality *q = &mask->quality;
    const uint32_t *widths = fm_masks_widths(f, b);
    for (size_t x = 0; x < experts_of(f); x++)
        if (widths[x] > (uint32_t)f->I)
            return false;
    return mask->removed == fm_masks_removed(f, widths) &&
           (b == 0 || mask->removed > f->mask[b - 1].removed) && mask->method && mask->step >= 0 &&
           q->positions >= 0 && isfinite(q->ce) && isfinite(q->kl) && isfinite(q->agree) &&
           f->kinds.count >= 0 && f->kinds.count <= FM_KINDS_MAX;
}

void fm_masks_gather(uint32_t *widths, const struct fm_masks *f, const int *number, int n)
{
    size_t X = (size_t)f->M * (size_t)f->E;
    for (int i = 0; i < n; i++)
        memcpy(widths + (size_t)i * X, fm_masks_widths(f, number[i]), X * sizeof *widths);
}

bool fm_masks_sane(const struct fm_masks *f)
{
    if (f->M < 1 || f->E < 1 || f->I < 1 || f->count < 0 || (size_t)f->count > f->mask_room ||
        (size_t)f->count > f->widths_room)
        return false;
    for (int b = 0; b < f->count; b++)
        if (!is_mask_sane(f, b))
            return false;
    return true;
}

int fm_masks_reserve(struct fm_masks *f, size_t masks, struct fm_err *err)
{
    size_t bytes;
    if (masks > MASKS_MAX)
        return fm_fail(err, FM_ECONFIG, "more than %d masks in a family", MASKS_MAX);
    if (!fm_mul(&bytes, experts_of(f), sizeof *f->widths))
        return fm_fail(err, FM_ENOMEM, "no memory for a mask of %d x %d experts", f->M, f->E);
    return FM_GROW(f->mask, f->mask_room, masks, "masks", err)
               ? err->code
               : fm_grow(&f->widths, &f->widths_room, masks, bytes, "masks", err);
}

int fm_masks_append(struct fm_masks *f, const uint32_t *widths, const struct fm_method *method,
                    int step, struct fm_err *err)
{
    uint64_t removed = fm_masks_removed(f, widths);
    assert(f->count == 0 || removed > f->mask[f->count - 1].removed);
    int rc = fm_masks_reserve(f, (size_t)f->count + 1, err);
    if (rc)
        return rc;
    f->mask[f->count] = (struct fm_mask){.removed = removed, .method = method, .step = step};
    memcpy(f->widths + (size_t)f->count * experts_of(f), widths, experts_of(f) * sizeof *widths);
    f->count++;
    return FM_OK;
}

int fm_masks_copy(struct fm_masks *f, const struct fm_masks *from, int b, struct fm_err *err)
{
    const struct fm_mask *mask = &from->mask[b];
    int rc = fm_masks_append(f, fm_masks_widths(from, b), mask->method, mask->step, err);
    if (!rc)
        f->mask[f->count - 1].quality = mask->quality;
    return rc;
}

int fm_masks_full(struct fm_masks *f, const struct fm_method *method, struct fm_err *err)
{
    assert(f->count == 0);
    int rc = fm_masks_reserve(f, (size_t)f->count + 1, err);
    if (rc)
        return rc;
    f->mask[0] = (struct fm_mask){.method = method};
    for (size_t x = 0; x < experts_of(f); x++)
        f->widths[x] = (uint32_t)f->I;
    f->count = 1;
    return FM_OK;
}

int fm_masks_append_grown(struct fm_masks *f, const uint32_t *widths,
                          const struct fm_method *method, int step, uint64_t grown, bool last,
                          struct fm_err *err)
{
    assert(f->count > 0);
    uint64_t removed = fm_masks_removed(f, widths), before = f->mask[f->count - 1].removed;
    bool add = removed > before && (last || removed - before >= grown);
    return add ? fm_masks_append(f, widths, method, step, err) : FM_OK;
}

int fm_masks_nearest(const struct fm_masks *f, const struct fm_decimal *budget)
{
    int best = -1;
    unsigned __int128 distance = 0;
    unsigned __int128 want = (unsigned __int128)budget->num * fm_masks_channels(f);
    for (int b = 0; b < f->count; b++) {
        unsigned __int128 has = (unsigned __int128)budget->den * f->mask[b].removed;
        unsigned __int128 d = has > want ? has - want : want - has;
        if (best < 0 || d < distance) {
            best = b;
            distance = d;
        }
    }
    return best;
}

void fm_masks_measured(bool *measured, const struct fm_masks *f, const struct fm_decimal *every,
                       const struct fm_decimal *step)
{
    bool all =
        (unsigned __int128)every->num * step->den <= (unsigned __int128)step->num * every->den;
    for (int b = 0; b < f->count; b++)
        measured[b] = all || b == 0 || b == f->count - 1;
    for (uint64_t num = every->num; !all && num < every->den; num += every->num)
        measured[fm_masks_nearest(f, &(struct fm_decimal){num, every->den})] = true;
}

static double between(double a, double b, double share)
{
    return a + (b - a) * share;
}

bool fm_masks_quality(struct fm_quality *q, const struct fm_masks *f, int b)
{
    assert(b >= 0 && b < f->count);
    int low = b, high = b;
    while (low >= 0 && f->mask[low].quality.positions == 0)
        low--;
    while (high < f->count && f->mask[high].quality.positions == 0)
        high++;
    bool known = low >= 0 && high < f->count;
    const struct fm_quality *a = &f->mask[known ? low : b].quality;
    const struct fm_quality *z = &f->mask[known ? high : b].quality;
    *q = *a;
    if (!known || low == high)
        return known;
    double share = (double)(f->mask[b].removed - f->mask[low].removed) /
                   (double)(f->mask[high].removed - f->mask[low].removed);
    struct fm_quality mean = {between(a->ce, z->ce, share),
                              between(a->kl, z->kl, share),
                              between(a->agree, z->agree, share),
                              0,
                              a->recovered,
                              {0}};
    for (int k = 0; k < f->kinds.count; k++)
        mean.kind[k] = between(a->kind[k], z->kind[k], share);
    *q = mean;
    return true;
}

int fm_masks_worst(double *lost, const struct fm_kinds *kinds, const double *kind,
                   const double *full)
{
    int worst = -1;
    for (int k = 0; k < kinds->count; k++)
        if (worst < 0 || kind[k] - full[k] > *lost) {
            *lost = kind[k] - full[k];
            worst = k;
        }
    return worst;
}

void fm_masks_lost(double *lost, const struct fm_actions *actions, const double *scores,
                   const int32_t *order, int M, int E, int I)
{
    int A = actions->count;
    for (size_t x = 0; x < (size_t)M * (size_t)E; x++) {
        const double *s = scores + x * (size_t)I;
        const int32_t *rank = order + x * (size_t)I;
        double sum = 0;
        int j = I;
        /* Summed from the smallest score up, for precision. */
        for (int a = A; a-- > 0;) {
            while (j > (int)actions->width[a])
                sum += s[rank[--j]];
            assert(j == (int)actions->width[a]); /* widths increase and are at most I */
            lost[x * (size_t)A + (size_t)a] = sum;
        }
    }
}

/* One step down the hull of a group of tied experts, or of a single expert. */
struct segment {
    double slope; /* score lost per channel */
    size_t group;
    uint32_t from, to; /* widths before and after */
};

static int compare_segments(const void *pa, const void *pb)
{
    const struct segment *a = pa, *b = pb;
    if (a->slope != b->slope)
        return a->slope < b->slope ? -1 : 1;
    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    return a->from > b->from ? -1 : a->from < b->from;
}

static double slope_between(const struct fm_actions *actions, const double *lost, int a, int b)
{
    assert(a < b); /* so width[a] < width[b] */
    return (lost[a] - lost[b]) / (double)(actions->width[b] - actions->width[a]);
}

/*
 * Build the upper hull of the points (width, -lost); returns the number of segments, which are
 * stored widest first.  A segment's slope is the score that its step loses per channel.  It grows
 * from wide to narrow, so an action below the hull (o) is stepped over:
 *
 *     -lost |                _ . - * I
 *           |        . - * '
 *           |      /     o
 *           |    *
 *           +----------------------- width
 */
static int build_hull(struct segment *segment, const struct fm_actions *actions, const double *lost,
                      size_t group)
{
    int top[FM_ACTIONS_MAX], n = 0;
    for (int a = actions->count; a-- > 0;) {
        while (n >= 2 && slope_between(actions, lost, a, top[n - 1]) <=
                             slope_between(actions, lost, top[n - 1], top[n - 2]))
            n--;
        top[n++] = a;
    }
    for (int i = 1; i < n; i++)
        segment[i - 1] = (struct segment){slope_between(actions, lost, top[i], top[i - 1]), group,
                                          actions->width[top[i - 1]], actions->width[top[i]]};
    assert(top[0] == actions->count - 1 && top[n - 1] == 0); /* from the widest to the narrowest */
    return n - 1;
}

/* Take the segments in order; at every target, append the widths so far as a mask. */
static int cut_segments(struct fm_masks *f, const struct segment *segment, size_t segments,
                        uint32_t *widths, int size, const struct fm_decimal *step,
                        const struct fm_decimal *until, struct fm_err *err)
{
    int rc = FM_OK;
    memcpy(widths, fm_masks_widths(f, 0), experts_of(f) * sizeof *widths);
    uint64_t removed = 0, targets = fm_decimal_targets(step, until), at = 1;
    for (size_t s = 0; s < segments && at <= targets && !rc; s++) {
        uint32_t *group = widths + segment[s].group * (size_t)size;
        assert(*group == segment[s].from);
        for (int e = 0; e < size; e++)
            group[e] = segment[s].to;
        removed += (uint64_t)size * (segment[s].from - segment[s].to);
        if (removed < fm_decimal_target(step, until, at, fm_masks_channels(f)))
            continue;
        rc = fm_masks_append(f, widths, f->mask[0].method, (int)at, err);
        while (at <= targets && removed >= fm_decimal_target(step, until, at, fm_masks_channels(f)))
            at++;
    }
    return rc;
}

int fm_masks_saliency(struct fm_masks *f, const struct fm_actions *actions, const double *scores,
                      const int32_t *order, const struct fm_decimal *step,
                      const struct fm_decimal *until, enum fm_granularity granularity,
                      struct fm_err *err)
{
    size_t n = experts_of(f), A = (size_t)actions->count, segments = 0;
    int rc = FM_ENOMEM, size = fm_granularity_size(granularity, f->M, f->E);
    double *lost = fm_alloc(n * A, sizeof *lost, "lost scores", err);
    struct segment *segment = fm_alloc(n * A, sizeof *segment, "hull segments", err);
    uint32_t *widths = fm_alloc(n, sizeof *widths, "widths", err);
    assert(f->count == 1 && f->mask[0].removed == 0); /* the full mask, which is extended */
    if (!lost || !segment || !widths)
        goto out;
    fm_masks_lost(lost, actions, scores, order, f->M, f->E, f->I);
    fm_granularity_sum(lost, lost, n, size, actions->count);
    for (size_t x = 0; x < n / (size_t)size; x++)
        segments += (size_t)build_hull(segment + segments, actions, lost + x * A, x);
    qsort(segment, segments, sizeof *segment, compare_segments);
    rc = cut_segments(f, segment, segments, widths, size, step, until, err);
out:
    free(lost);
    free(segment);
    free(widths);
    return rc;
}

int fm_masks_uniform(struct fm_masks *f, const struct fm_actions *actions,
                     const struct fm_decimal *until, struct fm_err *err)
{
    uint32_t *widths = fm_alloc(experts_of(f), sizeof *widths, "widths", err);
    if (!widths)
        return FM_ENOMEM;
    assert(f->count == 1 && f->mask[0].removed == 0);
    int rc = FM_OK;
    uint64_t most = fm_decimal_ceil(until, fm_masks_channels(f));
    for (int a = actions->count - 1; !rc && a-- > 0;) {
        for (size_t x = 0; x < experts_of(f); x++)
            widths[x] = actions->width[a];
        if (fm_masks_removed(f, widths) > most)
            break;
        rc = fm_masks_append(f, widths, f->mask[0].method, 0, err);
    }
    free(widths);
    return rc;
}

/* widths[i] = from[order[i]], order a permutation of n drawn for `round`. */
static void permute(uint32_t *widths, const uint32_t *from, uint32_t *order, uint32_t n,
                    uint64_t seed, uint32_t round)
{
    fm_rng_permutation(order, n, seed, FM_STREAM_CONTROL, round);
    for (uint32_t i = 0; i < n; i++)
        widths[i] = from[order[i]];
}

int fm_masks_shuffle(struct fm_masks *f, const struct fm_masks *from, bool global, uint64_t seed,
                     struct fm_err *err)
{
    assert(f->M == from->M && f->E == from->E && f->I == from->I && f->count == 0);
    uint32_t *widths = fm_alloc(experts_of(f), sizeof *widths, "widths", err);
    uint32_t *order = fm_alloc(experts_of(f), sizeof *order, "permutation", err);
    int rc = widths && order ? FM_OK : FM_ENOMEM;
    for (int b = 0; !rc && b < from->count; b++) {
        const uint32_t *before = fm_masks_widths(from, b);
        uint32_t E = (uint32_t)f->E, M = (uint32_t)f->M;
        if (global)
            permute(widths, before, order, M * E, seed, (uint32_t)b);
        for (uint32_t m = 0; !global && m < M; m++)
            permute(widths + m * E, before + m * E, order, E, seed, (uint32_t)b * M + m);
        rc = fm_masks_append(f, widths, from->mask[b].method, from->mask[b].step, err);
    }
    free(widths);
    free(order);
    return rc;
}

/* Budgets are printed with four decimals, and users copy what was printed. */
#define PRINTED 0.00005

/* A budget beyond the end of the family is an error: a request for 0.90 must not silently give
 * 0.30. */
int fm_masks_choose(int *index, const struct fm_masks *f, int first, int last,
                    const struct fm_masks_wish *wish, struct fm_err *err)
{
    assert(first >= 0 && first <= last && last < f->count);
    int best = first;
    for (int b = first + 1; b <= last; b++)
        if (fabs(fm_masks_budget(f, b) - wish->budget) <
            fabs(fm_masks_budget(f, best) - wish->budget))
            best = b;
    double end = fm_masks_budget(f, last), beyond = wish->budget - end;
    double gap = last > first ? end - fm_masks_budget(f, last - 1) : 0;
    *index = best;
    if (beyond > fmax(wish->step, gap) + PRINTED)
        return fm_fail(err, FM_EUSAGE,
                       "--budget %g is beyond the family's end, %.4f (%d members); give at most "
                       "that, or train a family with a higher --until",
                       wish->budget, end, last - first + 1);
    return FM_OK;
}

bool fm_masks_is_near(const struct fm_masks *f, int index, double budget)
{
    return fabs(fm_masks_budget(f, index) - budget) <= PRINTED;
}
