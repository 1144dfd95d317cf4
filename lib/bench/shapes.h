/* Shapes of well-known models, for measurements without their weights. */
#ifndef FM_SHAPES_H
#define FM_SHAPES_H

#include <stddef.h>

/* Letters of kernels/ops/kernels.h; L counts decoder layers with experts, without the dense
 * ones. */
struct fm_shape {
    const char *name;
    int H, I, E, K, L;
    int Q, G, C; /* G == 0 means latent attention */
    /* For models made by `engine`: the number of leading layers without experts, and keys of
     * config.json that the letters do not cover; 0 and NULL: a Mixtral. */
    int dense;
    const char *keys;
};

/* NULL: no such name. */
const struct fm_shape *fm_shapes_find(const char *name);

/* "mixtral-8x7b, phi-3.5-moe, ...": all names, truncated to `size` bytes; returns text. */
const char *fm_shapes_names(char *text, size_t size);

#endif
