/*
 * Rotary angles: reading their parameters from config.json, in the form of transformers 4 or 5, and
 * computing them.
 */
#ifndef FM_ROPE_H
#define FM_ROPE_H

#include "lib/block/block.h"

/* Defaults for missing keys, and variants that a family supports. */
struct fm_rope_options {
    double theta;
    bool longrope;  /* supported in addition to the type "default" */
    bool yarn;      /* likewise */
    bool llama3;    /* likewise */
    double partial; /* partial_rotary_factor if config.json has none; 0: it is not read, and all
                       elements are rotated */
    const char *dims_key; /* key of the number of rotated elements, used if config.json lacks that
                             factor; NULL: none */
    bool pairs;
    const char *layer_type; /* the type of layer whose object in rope_parameters is read; NULL:
                               rope_parameters itself has the rotation of all layers */
    bool proportional; /* with layer_type: the only type of that object is "proportional", in which
                          partial_rotary_factor is the share of pairs that are rotated, and their
                          frequencies are those of all pairs of a head */
    double partial_object; /* default partial_rotary_factor of that object */
    const char *theta_key; /* with layer_type: a key that other programs read instead; it must
                              have the same value, as must partial_rotary_factor; NULL: none */
};

struct fm_rope {
    double theta;
    int R;       /* elements of a head that are rotated, even */
    bool pairs;  /* elements 2 i and 2 i + 1 form a pair; else i and i + R/2 */
    float scale; /* factor of cos and sin */
    double m;    /* from YaRN's mscale_all_dim: blocks that support it multiply scores by m^2;
                    without YaRN 1 */
    float factor[FM_HEAD_DIM_MAX / 2]; /* (R/2) factor by which each frequency is divided; INFINITY
                                          if the pair is not rotated */
};

/* The default rotation of R elements, in pairs (i, i + R/2). */
void fm_rope_plain(struct fm_rope *rope, double theta, int R);

/* Read the rotation; FM_ECONFIG if keys of config.json contradict each other.  `width` is the width
 * of a head, or of its rotated part for blocks that have one, at most FM_HEAD_DIM_MAX.  If the
 * range of longrope's short factors ends before max_position_embeddings, T_max is the end of that
 * range, and config->exact gives the reason. */
int fm_rope_read(struct fm_rope *rope, struct fm_config *config, int width,
                 const struct fm_rope_options *options, const struct fm_keys *keys,
                 struct fm_err *err);

/* FM_ECONFIG if partial_rotary_factor, in config.json, rope_scaling or rope_parameters, is less
 * than 1, for a model whose code in transformers does not support that. */
int fm_rope_whole(const struct fm_keys *keys, struct fm_err *err);

/* Fill cos and sin (T, R/2), computed as in transformers: frequency and angle in float32. */
void fm_rope_fill(float *cos, float *sin, const struct fm_rope *rope, int T);

#endif
