/*
 * Rotary angles: what config.json says of them, in either spelling.
 */
#ifndef FM_ROPE_H
#define FM_ROPE_H

#include "lib/block/block.h"

/* Where config.json says nothing, and which types besides "default" the family has. */
struct fm_rope_options {
    double theta;
    bool longrope;
};

/* Sets rope_theta, rope_scale, rope_factor, longrope, and T_max where longrope ends earlier. */
int fm_rope_read(struct fm_config *config, const struct fm_rope_options *options,
                 const struct fm_keys *keys, struct fm_err *err);

#endif
