/* The portable tile: plain loops over the lanes of a panel; and the choice of a tile. */
#include "kernels/clip/clip_tile.h"

#include <string.h>

static void pack_rows(void *panel, const void *src, int64_t ld, int lanes, int terms, int type)
{
    float *to = panel, row[FM_CLIP_DEPTH];
    for (int l = 0; l < FM_CLIP_LANES; l++) {
        if (l < lanes)
            fm_dtype_to_f32(row, (const char *)src + l * ld, fm_clip_dtype(type), (size_t)terms);
        else
            memset(row, 0, sizeof row);
        for (int k = 0; k < terms; k++)
            to[k * FM_CLIP_LANES + l] = row[k];
    }
}

static void pack_columns(void *panel, const void *src, int64_t ld, int lanes, int terms, int type)
{
    for (int k = 0; k < terms; k++) {
        float *to = (float *)panel + (size_t)k * FM_CLIP_LANES;
        fm_dtype_to_f32(to, (const char *)src + k * ld, fm_clip_dtype(type), (size_t)lanes);
        memset(to + lanes, 0, (size_t)(FM_CLIP_LANES - lanes) * sizeof *to);
    }
}

static void product(float *c, int ldc, const void *const *x, int rows, const void *panel, int terms,
                    bool first, const struct fm_clip_ahead *ahead)
{
    (void)ahead;
    for (int r = 0; r < rows; r++) {
        const float *restrict a = x[r], *restrict b = panel;
        float *restrict to = c + (size_t)r * ldc, sum[FM_CLIP_LANES] = {0};
        for (int k = 0; k < terms; k++)
            for (int l = 0; l < FM_CLIP_LANES; l++)
                sum[l] += a[k] * b[k * FM_CLIP_LANES + l];
        for (int l = 0; l < FM_CLIP_LANES; l++)
            to[l] = first ? sum[l] : to[l] + sum[l];
    }
}

const struct fm_clip_tile *fm_clip_tile_portable(void)
{
    static const struct fm_clip_tile tile = {"portable", false, pack_rows, pack_columns,
                                             product,    NULL,  NULL};
    return &tile;
}

const struct fm_clip_tile *fm_clip_tile_choose(int32_t path, int32_t type)
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
