/* Private to kernels/clip: the choice of a tile. */
#ifndef FM_KERNELS_CLIP_CHOOSE_H
#define FM_KERNELS_CLIP_CHOOSE_H

#include "kernels/clip/clip_tile.h"

/* The best tile for a weight type, or the one named by a path; NULL if not available. */
const struct fm_clip_tile *fm_clip_choose(int32_t path, int32_t type);

#endif
