/*
 * Private to kernels/clip: which rows pass through which expert at which width.
 *
 * Slots (t, j) are numbered t K + j.  Those with a width above 0 are sorted by expert, then by
 * width; a run of one expert and one width is a group, and the index of a slot in this order is its
 * position: its row in the inner activations and in the result of the second product.
 */
#ifndef FM_KERNELS_CLIP_PLAN_H
#define FM_KERNELS_CLIP_PLAN_H

#include "kernels/clip/clip.h"

struct fm_clip_group {
    int32_t expert, width;
    int32_t first, rows; /* positions */
    int32_t task0;       /* number of its first task, for clip_cpu.c */
};

/* The caller owns the arrays. */
struct fm_clip_plan {
    int32_t *count;              /* (E + 1) */
    int32_t *width;              /* (n K) by slot; 0: no channels */
    int32_t *position;           /* (n K) by slot; -1 if the width is 0 */
    int32_t *slot;               /* (n K) by position */
    struct fm_clip_group *group; /* (n K) */
    int32_t groups, positions;
};

/* The local expert of a slot of a call, by its index among all slots, or -1. */
int32_t fm_clip_plan_expert(const struct fm_clip_layer *layer, const struct fm_clip_call *call,
                            int64_t slot);

/* The row of widths of a token of a call whose budget is set, and the width of an expert in that
 * row, both clamped; *faults gains bits of enum fm_clip_fault. */
int32_t fm_clip_plan_budget(const struct fm_clip_layer *layer, const struct fm_clip_call *call,
                            int64_t token, int32_t *faults);
int32_t fm_clip_plan_width(const struct fm_clip_layer *layer, const int32_t *cap, int32_t budget,
                           int32_t expert, int32_t *faults);

/* Plan tokens [first, first + n) of a call whose budget is set; cap (E); returns bits of enum
 * fm_clip_fault. */
int32_t fm_clip_plan_make(struct fm_clip_plan *plan, const struct fm_clip_layer *layer,
                          const int32_t *cap, const struct fm_clip_call *call, int64_t first,
                          int32_t n);

#endif
