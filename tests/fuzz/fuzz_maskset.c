/*
 * Fuzz the mask decoder.  The first two bytes are the count, the rest the frame.
 */
#include <stdint.h>
#include <stdlib.h>
#include <zstd.h>

#include "formats/bundle/maskset.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t count = (size_t)data[0] << 8 | data[1];
    uint32_t *widths =
        malloc(count * sizeof *widths + 1); /* + 1: never empty; an overrun is detected */
    struct fm_err err = {0};
    int code = fm_maskset_unpack(widths, count, data + 2, size - 2, &err);
    if (code != FM_OK && (code != err.code || !err.text[0]))
        abort();
    free(widths);
    return 0;
}

/* Mutate the widths, and compress them again, so that the frame's checksum is right. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    static ZSTD_CCtx *ctx;
    static uint8_t widths[4 * 1024];
    struct fm_err err = {0};
    size_t count = size < 2 ? 0 : (size_t)data[0] << 8 | data[1];
    if (capacity < 2 || fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    if (!ctx)
        ctx = ZSTD_createCCtx();
    must(ctx != NULL);
    if (4 * count > sizeof widths || size < 2 ||
        fm_maskset_unpack((uint32_t *)(void *)widths, count, data + 2, size - 2, &err))
        count = 0;
    size_t bytes = LLVMFuzzerMutate(widths, 4 * count, sizeof widths) / 4 * 4;
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_compressionLevel, (int)fuzz_draw(&seed, 4));
    size_t frame = ZSTD_compress2(ctx, data + 2, capacity - 2, widths, bytes);
    if (ZSTD_isError(frame))
        return size < 2 ? size : 2;
    data[0] = (uint8_t)(bytes / 4 >> 8);
    data[1] = (uint8_t)(bytes / 4);
    return 2 + frame;
}

FUZZ_MAIN
