/*
 * Rotary angles: what config.json says of them, in either spelling, and what they are.
 */
#ifndef FM_ROPE_H
#define FM_ROPE_H

#include "lib/block/block.h"

/* Where config.json says nothing, and which types besides "default" the family has. */
struct fm_rope_options {
    double theta;
    bool longrope;
};

struct fm_rope {
    double theta;
    float scale;                       /* of cos and sin */
    float factor[FM_HEAD_DIM_MAX / 2]; /* (C/2) what divides each frequency */
};

/* The default rotation. */
void fm_rope_plain(struct fm_rope *rope, double theta);

/* Also sets config->longrope, and T_max where longrope ends earlier; C is known. */
int fm_rope_read(struct fm_rope *rope, struct fm_config *config,
                 const struct fm_rope_options *options, const struct fm_keys *keys,
                 struct fm_err *err);

/* cos, sin (T, C/2) of the angles, computed as transformers does: frequency and angle in float32.
 */
void fm_rope_fill(float *cos, float *sin, const struct fm_rope *rope, int C, int T);

#endif
