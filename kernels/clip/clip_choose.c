/* Chooses the tile: the best that lib/base/isa.h allows, or the one that the caller names. */
#include "kernels/clip/clip_choose.h"

const struct fm_clip_tile *fm_clip_choose(int32_t path, int32_t type)
{
    const struct fm_clip_tile *pair = type == FM_CLIP_BF16 ? fm_clip_tile_bf16() : NULL;
    switch (path) {
    case FM_CLIP_BEST:
        return pair                    ? pair
               : fm_clip_tile_avx512() ? fm_clip_tile_avx512()
               : fm_clip_tile_avx2()   ? fm_clip_tile_avx2()
                                       : fm_clip_tile_portable();
    case FM_CLIP_PORTABLE:
        return fm_clip_tile_portable();
    case FM_CLIP_AVX2:
        return fm_clip_tile_avx2();
    case FM_CLIP_AVX512:
        return fm_clip_tile_avx512();
    case FM_CLIP_AVX512_BF16:
        return pair;
    default:
        return NULL;
    }
}
