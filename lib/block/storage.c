/*
 * A channel group is a common multiple of the block sizes, so that no block of a plane, and no byte
 * of codes, contains both channels that are kept and channels that are removed.
 */
#include "lib/block/storage.h"

#include "lib/block/block.h"

/* The least common multiple of a and b, at most FM_CHANNELS_MAX + 1; a if b is 0. */
static int64_t both(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    int64_t multiple = b ? a / x * b : a;
    return multiple <= FM_CHANNELS_MAX ? multiple : FM_CHANNELS_MAX + 1;
}

void fm_storage_planes(struct fm_plane plane[FM_PLANES], const struct fm_config *c)
{
    int bits = fm_storage_bits(c->storage);
    plane[0] = (struct fm_plane){"", bits, fm_dtype_bits(c->storage->codes) / bits, 1, 1};
    plane[1] = (struct fm_plane){"_scale", 0, 1, c->block_rows, c->block_columns};
}

int fm_storage_group(const struct fm_config *c)
{
    struct fm_plane plane[FM_PLANES];
    int64_t group = 1;
    if (!c->storage)
        return 1;
    fm_storage_planes(plane, c);
    for (int i = 0; i < FM_PLANES && group <= FM_CHANNELS_MAX; i++) {
        group = both(group, plane[i].block_rows);
        group = both(group, (int64_t)plane[i].block_columns * plane[i].whole);
    }
    return (int)group;
}
