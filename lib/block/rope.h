/*
 * Rotary angles: what config.json says of them, in either spelling, and what they are.
 */
#ifndef FM_ROPE_H
#define FM_ROPE_H

#include "lib/block/block.h"

/* Where config.json says nothing, and what the family has. */
struct fm_rope_options {
    double theta;
    bool longrope;  /* besides the type "default" */
    bool yarn;      /* the same */
    double partial; /* partial_rotary_factor where config.json has none; 0: it is not read, and
                       all elements are rotated */
    const char *dims_key; /* key of the number of rotated elements that replaces that factor;
                             NULL: there is none */
    bool pairs;
};

struct fm_rope {
    double theta;
    int R;                             /* elements of a head that are rotated, even */
    bool pairs;                        /* (2 i, 2 i + 1) turn together; else (i, i + R/2) */
    float scale;                       /* of cos and sin */
    double m;                          /* YaRN's mscale_all_dim: blocks that obey it multiply scores
                                          with m^2; else 1 */
    float factor[FM_HEAD_DIM_MAX / 2]; /* (R/2) what divides each frequency */
};

/* The default rotation, of R elements, by halves. */
void fm_rope_plain(struct fm_rope *rope, double theta, int R);

/* Heads, or what of each is rotated where the block says so, are `width` wide, at most
 * FM_HEAD_DIM_MAX.  Where longrope ends earlier, T_max is that, and config->exact says it. */
int fm_rope_read(struct fm_rope *rope, struct fm_config *config, int width,
                 const struct fm_rope_options *options, const struct fm_keys *keys,
                 struct fm_err *err);

/* FM_ECONFIG where partial_rotary_factor says less than 1, in config.json or in rope_parameters, of
 * a model whose code in transformers stops there. */
int fm_rope_whole(const struct fm_keys *keys, struct fm_err *err);

/* cos, sin (T, R/2) of the angles, computed as transformers does: frequency and angle in float32.
 */
void fm_rope_fill(float *cos, float *sin, const struct fm_rope *rope, int T);

#endif
