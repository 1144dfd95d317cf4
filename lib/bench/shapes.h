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
};

/* NULL: no such name. */
const struct fm_shape *fm_shapes_find(const char *name);

/* "mixtral-8x7b, phi-3.5-moe, ...": all names, truncated to `size` bytes; returns text. */
const char *fm_shapes_names(char *text, size_t size);

#endif
