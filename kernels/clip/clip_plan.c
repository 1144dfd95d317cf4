/*
 * Inverts the routing: tokens name experts, but products need the tokens of each expert.  A
 * counting sort orders slots by expert, and heapsort (in place, O(n log n) in the worst case)
 * orders them by width inside an expert, because tokens may have their own budgets.  All orders
 * follow from the input only, so the bits of a row do not depend on threads.
 */
#include "kernels/clip/clip_plan.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/clip/clip_tile.h"
#include "lib/base/dtype.h"

static int32_t clamp_budget(double value, int32_t B, int32_t *faults)
{
    if (value > -0.5 && value < B - 0.5)
        return (int32_t)floor(value + 0.5);
    *faults |= FM_CLIP_FAULT_BUDGET;
    return value >= B - 0.5 ? B - 1 : 0; /* NaN becomes 0 */
}

int32_t fm_clip_plan_budget(const struct fm_clip_layer *l, const struct fm_clip_call *c,
                            int64_t token, int32_t *faults)
{
    float value;
    if (c->budgets)
        return clamp_budget(c->budgets[token], l->B, faults);
    switch (c->budget_type) {
    case FM_CLIP_I32:
        return clamp_budget(*(const int32_t *)c->budget, l->B, faults);
    case FM_CLIP_I64:
        return clamp_budget((double)*(const int64_t *)c->budget, l->B, faults);
    default:
        fm_dtype_to_f32(&value, c->budget, fm_clip_dtype(c->budget_type), 1);
        return clamp_budget(value, l->B, faults);
    }
}

int32_t fm_clip_plan_expert(const struct fm_clip_layer *l, const struct fm_clip_call *c,
                            int64_t slot)
{
    int64_t id = c->ids_type == FM_CLIP_I32 ? ((const int32_t *)c->ids)[slot]
                                            : ((const int64_t *)c->ids)[slot];
    return id >= l->e0 && id < (int64_t)l->e0 + l->E ? (int32_t)(id - l->e0) : -1;
}

int32_t fm_clip_plan_width(const struct fm_clip_layer *l, const int32_t *cap, int32_t budget,
                           int32_t expert, int32_t *faults)
{
    int32_t k = l->widths[(int64_t)budget * l->E + expert];
    if (k >= 0 && k <= cap[expert])
        return k;
    *faults |= FM_CLIP_FAULT_WIDTH;
    return k < 0 ? 0 : cap[expert];
}

/* Set the width and the expert (for now in `position`) of each slot, and count the slots of each
 * expert. */
static int32_t find_widths(struct fm_clip_plan *p, const struct fm_clip_layer *l,
                           const int32_t *cap, const struct fm_clip_call *c, int64_t first,
                           int32_t n)
{
    /* A server may write the budget during the call: one read serves all tokens. */
    int32_t faults = 0, all = c->budgets ? 0 : fm_clip_plan_budget(l, c, first, &faults);
    memset(p->count, 0, ((size_t)l->E + 1) * sizeof *p->count);
    for (int32_t t = 0; t < n; t++) {
        int32_t b = c->budgets ? fm_clip_plan_budget(l, c, first + t, &faults) : all;
        for (int32_t s = t * c->K; s < (t + 1) * c->K; s++) {
            int32_t e = fm_clip_plan_expert(l, c, first * c->K + s);
            int32_t k = e < 0 ? 0 : fm_clip_plan_width(l, cap, b, e, &faults);
            p->width[s] = k;
            p->position[s] = k > 0 ? e : -1;
            if (k > 0)
                p->count[e + 1]++;
        }
    }
    return faults;
}

static int before(const struct fm_clip_plan *p, int32_t a, int32_t b)
{
    return p->width[a] != p->width[b] ? p->width[a] < p->width[b] : a < b;
}

static void sift(const struct fm_clip_plan *p, int32_t *slot, int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && before(p, slot[child], slot[child + 1]))
            child++;
        if (!before(p, slot[root], slot[child]))
            return;
        int32_t swap = slot[root];
        slot[root] = slot[child];
        slot[child] = swap;
    }
}

/* Sort the slots of one expert by width and, at equal widths, by slot. */
static void sort_by_width(const struct fm_clip_plan *p, int32_t *slot, int32_t n)
{
    for (int32_t i = n / 2 - 1; i >= 0; i--)
        sift(p, slot, i, n);
    for (int32_t i = n - 1; i > 0; i--) {
        int32_t swap = slot[0];
        slot[0] = slot[i];
        slot[i] = swap;
        sift(p, slot, 0, i);
    }
}

int32_t fm_clip_plan_make(struct fm_clip_plan *plan, const struct fm_clip_layer *layer,
                          const int32_t *cap, const struct fm_clip_call *call, int64_t first,
                          int32_t n)
{
    /*
     * Three tokens with K = 2, and two experts; slot 3 has width 0.  Until the end, position[]
     * holds the slot's expert; count[e] starts as e's first position and ends one past its last.
     *
     *     slot s        0  1  2  3  4  5
     *     expert        1  0  1  -  0  1
     *     slot[]        1  4 | 0  2  5        by position: expert 0, then expert 1
     *     count[]       0  2       ->  2  5
     *     position[]    2  0  3 -1  1  4      by slot, at the end
     */
    assert(n > 0 && n <= INT32_MAX / call->K);
    int32_t faults = find_widths(plan, layer, cap, call, first, n), slots = n * call->K;
    for (int32_t e = 0; e < layer->E; e++)
        plan->count[e + 1] += plan->count[e];
    plan->positions = plan->count[layer->E];
    for (int32_t s = 0; s < slots; s++)
        if (plan->position[s] >= 0)
            plan->slot[plan->count[plan->position[s]]++] = s;
    assert(plan->count[layer->E - 1] == plan->positions && plan->positions <= slots);
    plan->groups = 0;
    for (int32_t e = 0, begin = 0; e < layer->E; begin = plan->count[e++]) {
        if (call->budgets)
            sort_by_width(plan, plan->slot + begin, plan->count[e] - begin);
        for (int32_t i = begin; i < plan->count[e]; i++) {
            int32_t width = plan->width[plan->slot[i]];
            if (i == begin || plan->group[plan->groups - 1].width != width)
                plan->group[plan->groups++] = (struct fm_clip_group){e, width, i, 0, 0};
            plan->group[plan->groups - 1].rows++;
        }
    }
    for (int32_t i = 0; i < plan->positions; i++)
        plan->position[plan->slot[i]] = i;
    return faults;
}
