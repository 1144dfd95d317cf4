/*
 * One chunk of a call of the clipped FFN on a GPU: everything its kernels need, passed to them by
 * value, and the division of the caller's workspace.  Plain C, so that tests can fill one on the
 * host.
 */
#ifndef FM_CLIP_CUDA_JOB_H
#define FM_CLIP_CUDA_JOB_H

#include "kernels/clip/clip.h"
#include "kernels/clip/cuda/clip_cuda_tiles.h"

#define FM_CUDA_ROWS_MAX ((int64_t)1 << 24) /* most slots of a chunk */

struct fm_cuda_job {
    /* the layer */
    const void *gate_up, *down;
    const int64_t *row0;   /* (E) */
    const int32_t *cap;    /* (E) */
    const int32_t *widths; /* (B, E) */
    const void *budget;    /* one number of budget_type */
    int32_t *faults;       /* bits, or-ed in */
    int32_t budget_type, E, e0, B, H, type;
    int32_t channels_padded; /* columns of h: fm_cuda_padded(cap_max) */
    int32_t parts;           /* of the slots, in the routing (fm_cuda_parts) */
    int32_t ctas;            /* blocks that share the tiles */
    /* the call; its pointers are at the first token of the chunk */
    const void *hidden, *ids;
    const float *weights;
    const int32_t *budgets; /* or NULL */
    void *out;
    int64_t hidden_stride, out_stride;
    int32_t ids_type, n, K, slots; /* slots = n K */
    /* the workspace */
    struct fm_cuda_plan_totals *totals;
    int32_t *counts_call, *counts; /* (E) rows of each expert in the call, in the chunk */
    int32_t *offsets;              /* (E + 1) first sorted row of each expert */
    int32_t *group_counts;         /* (E) groups of each expert */
    int32_t *group_bases;          /* (E + 1) their running sums */
    int32_t *part_rows;      /* (parts, E) rows of each expert in a part; later its next row */
    int32_t *slot_expert;    /* (slots) local expert, or -1: contributes nothing */
    int32_t *slot_width;     /* (slots) */
    int32_t *slot_row;       /* (slots) sorted row */
    int32_t *slot_record;    /* (slots) index in records */
    int32_t *row_slot;       /* (slots) slot of a sorted row */
    int32_t *row_draft;      /* (slots) the same before rows are grouped by width */
    int32_t *active, *order; /* (slots) record of an active group, unsorted and sorted */
    int32_t *begin[2];       /* (slots + 1) first tile of each group, per product */
    struct fm_cuda_group *records; /* (slots) expert e's groups from offsets[e] on */
    struct fm_cuda_group *groups;  /* (slots) the active ones, in plan order */
    void *x;                       /* (slots, H) sorted rows of hidden */
    void *h;                       /* (slots, channels_padded) */
    float *y;                      /* (y_rows, H) partial results */
};

#define FM_CUDA_PART_SLOTS 256
#define FM_CUDA_PART_COUNTS ((int64_t)1 << 22) /* limit of parts x E */

/* Number of parts into which the slots are divided for routing in parallel; it never decreases as
 * the number of slots grows. */
static inline int32_t fm_cuda_parts(int64_t slots, int32_t E)
{
    int64_t parts = (slots + FM_CUDA_PART_SLOTS - 1) / FM_CUDA_PART_SLOTS;
    int64_t most = FM_CUDA_PART_COUNTS / E < 1 ? 1 : FM_CUDA_PART_COUNTS / E;
    return (int32_t)(parts < 1 ? 1 : parts < most ? parts : most);
}

/* An upper bound on the rows of y: one for each slot; in the small form, one for each split of each
 * slot. */
static inline int64_t fm_cuda_y_rows(int64_t slots, int32_t E, int32_t cap_max)
{
    int64_t small = (int64_t)E * FM_CUDA_SMALL_ROWS;
    int64_t splits = cap_max > 0 ? fm_cuda_splits(cap_max, 0) : 1;
    return slots + (small < slots ? small : slots) * (splits - 1);
}

/* Set `*at` to base + *used (NULL if base is NULL), and count the bytes, aligned. */
static inline void fm_cuda_carve(void **at, char *base, uint64_t *used, uint64_t bytes)
{
    *at = base ? base + *used : (void *)0;
    *used += (bytes + FM_CLIP_ALIGN - 1) / FM_CLIP_ALIGN * FM_CLIP_ALIGN;
}

/*
 * Point the workspace's fields of `job` into base (or set them to NULL if base is NULL), for
 * `slots` slots.  The job's E, H and channels_padded must be set; cap_max is the layer's.  Returns
 * the bytes needed; nothing overflows while slots <= FM_CUDA_ROWS_MAX, H <= 2^20 and cap_max <=
 * 2^24.
 */
static inline uint64_t fm_cuda_job_carve(struct fm_cuda_job *job, void *base, int64_t slots,
                                         int32_t cap_max)
{
    uint64_t used = 0, S = (uint64_t)slots, E = (uint64_t)job->E, H = (uint64_t)job->H;
    uint64_t word = sizeof(int32_t), group = sizeof(struct fm_cuda_group);
    struct {
        void **at;
        uint64_t bytes;
    } parts[] = {
        {(void **)&job->totals, sizeof *job->totals},
        {(void **)&job->counts_call, E * word},
        {(void **)&job->counts, E * word},
        {(void **)&job->offsets, (E + 1) * word},
        {(void **)&job->group_counts, E * word},
        {(void **)&job->group_bases, (E + 1) * word},
        {(void **)&job->part_rows, (uint64_t)fm_cuda_parts(slots, job->E) * E * word},
        {(void **)&job->slot_expert, S * word},
        {(void **)&job->slot_width, S * word},
        {(void **)&job->slot_row, S * word},
        {(void **)&job->slot_record, S * word},
        {(void **)&job->row_slot, S * word},
        {(void **)&job->row_draft, S * word},
        {(void **)&job->active, S * word},
        {(void **)&job->order, S * word},
        {(void **)&job->begin[0], (S + 1) * word},
        {(void **)&job->begin[1], (S + 1) * word},
        {(void **)&job->records, S * group},
        {(void **)&job->groups, S * group},
        {&job->x, S * H * 2}, /* 16-bit numbers */
        {&job->h, S * (uint64_t)job->channels_padded * 2},
        {(void **)&job->y, (uint64_t)fm_cuda_y_rows(slots, job->E, cap_max) * H * sizeof(float)},
    };
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        fm_cuda_carve(parts[i].at, (char *)base, &used, parts[i].bytes);
    return used;
}

#endif
