/* Tensor parallelism: which channels of an expert a rank has. */
#include "kernels/clip/clip.h"

#include <stdbool.h>
#include <string.h>

static bool makes_sense(int32_t c, int32_t g, int32_t tp, int32_t rank)
{
    return c >= 0 && g > 0 && tp > 0 && rank >= 0 && rank < tp;
}

int32_t fm_clip_shard_width(int32_t k, int32_t g, int32_t tp, int32_t rank)
{
    if (!makes_sense(k, g, tp, rank))
        return 0;
    int64_t round = (int64_t)g * tp, whole = k / round, rest = k % round - (int64_t)g * rank;
    rest = rest < 0 ? 0 : rest > g ? g : rest;
    return (int32_t)(whole * g + rest);
}

int32_t fm_clip_shard_channel(int32_t c, int32_t g, int32_t tp, int32_t rank)
{
    if (!makes_sense(c, g, tp, rank))
        return -1;
    int64_t channel = ((int64_t)(c / g) * tp + rank) * g + c % g;
    return channel > INT32_MAX ? -1 : (int32_t)channel;
}

void fm_clip_shard_copy(void *shard_gate_up, void *shard_down, const void *gate_up,
                        const void *down, int32_t cap, uint64_t row_bytes, int32_t g, int32_t tp,
                        int32_t rank)
{
    int32_t width = fm_clip_shard_width(cap, g, tp, rank);
    for (int64_t c = 0; c < width; c += g) { /* block by block: rows of a block are contiguous */
        uint64_t to = (uint64_t)c * row_bytes;
        uint64_t from = (uint64_t)fm_clip_shard_channel((int32_t)c, g, tp, rank) * row_bytes;
        uint64_t size = (uint64_t)(width - c < g ? width - c : g) * row_bytes;
        memcpy((char *)shard_gate_up + 2 * to, (const char *)gate_up + 2 * from, 2 * size);
        memcpy((char *)shard_down + to, (const char *)down + from, size);
    }
}
