/*
 * Action sets: the ratios given by the user, and the widths that follow from them, in integers
 * (lib/masks/decimal.h).
 */
#ifndef FM_ACTIONS_H
#define FM_ACTIONS_H

#include <stdint.h>

#include "lib/base/err.h"
#include "lib/masks/decimal.h"

#define FM_ACTIONS_MAX 1024

struct fm_actions {
    int count;                               /* A, the number of actions */
    struct fm_decimal ratio[FM_ACTIONS_MAX]; /* increasing; the first may be 0; the last is 1 or has
                                                the same width as 1 */
    uint32_t width[FM_ACTIONS_MAX];          /* increasing; the last is I */
    uint32_t multiple;                       /* widths were rounded up to a multiple of this */
    int merged; /* ratios dropped because their width was already in the set */
};

/*
 * The action set of ratios, for experts of I channels: width = ceil(ratio I) rounded up to a
 * multiple of `multiple`, at most I.  Ratios increase and end with 1; an expert of ratio 0 has no
 * channels.  If several ratios have the same width the smallest is kept; the caller warns if
 * `merged` is not 0.  The second parses "0.1,0.4,0.7,1", of a stream.
 */
int fm_actions_set(struct fm_actions *actions, const struct fm_decimals *ratios, int I,
                   uint32_t multiple, struct fm_err *err);
int fm_actions_parse(struct fm_actions *actions, const char *text, int I, uint32_t multiple,
                     struct fm_err *err);

/* The action set of uniform pruning: the ratios 1 - i step that remove no more than `until`.
 * FM_EUSAGE if there are more than FM_ACTIONS_MAX. */
int fm_actions_steps(struct fm_actions *actions, const struct fm_decimal *step,
                     const struct fm_decimal *until, int I, uint32_t multiple, struct fm_err *err);

/* width rounded up to a multiple of `multiple`, at most I; and the least common multiple of a and
 * b, or UINT32_MAX if it does not fit in 32 bits (then every width is rounded up to I). */
uint32_t fm_actions_round(uint64_t width, uint32_t multiple, int I);
uint32_t fm_actions_both(uint32_t a, uint32_t b);

/* ceil((1 - removed / (M E I)) I) rounded up to multiple: uniform pruning at a budget. */
uint32_t fm_actions_uniform(uint64_t removed, int M, int E, int I, uint32_t multiple);

/* The width of the uniform export: fm_actions_uniform, also rounded up to a multiple of
 * FM_UNIFORM_MULTIPLE, at most I.  Stock runtimes require the rows of grouped products to be
 * multiples of 16 bytes long (otherwise torch's grouped_mm fails in the forward pass), and this
 * layout must load everywhere. */
#define FM_UNIFORM_MULTIPLE 8
uint32_t fm_actions_uniform_export(uint64_t removed, int M, int E, int I, uint32_t multiple);

/* Index of a width, -1 if it is not in the set. */
int fm_actions_find(const struct fm_actions *actions, uint32_t width);

#endif
