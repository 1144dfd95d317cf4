/* Mask sets are read as they were written; frames that the tools would not write are refused. */
#include <zstd.h>

#include "formats/bundle/maskset.h"
#include "tests/unit/test.h"

#define COUNT 1155 /* 11 budgets, 3 layers, 35 experts */

static uint32_t widths[COUNT];

static void fill_widths(void)
{
    for (size_t i = 0; i < COUNT; i++)
        widths[i] = (uint32_t)(128 * (1 + i * i % 11));
}

static unsigned char *good_frame(size_t *size)
{
    void *frame;
    struct fm_err err = {0};
    fill_widths();
    assert_ok(fm_maskset_pack(widths, COUNT, &frame, size, &err));
    return frame;
}

static void expect_refusal(const void *frame, size_t size, size_t count, const char *why)
{
    /* Exactly as many widths as requested, so that sanitizers detect an overflow. */
    uint32_t *back = malloc(count * sizeof *back);
    struct fm_err err = {0};
    assert_non_null(back);
    assert_fails(fm_maskset_unpack(back, count, frame, size, &err), FM_EFORMAT, why);
    free(back);
}

TEST(masks_read_back_and_the_bytes_are_always_the_same)
{
    size_t size, again_size;
    uint32_t back[COUNT];
    unsigned char *frame = good_frame(&size), *again = good_frame(&again_size);
    assert_int_equal(size, again_size);
    assert_memory_equal(frame, again, size);
    assert_ok(fm_maskset_check(frame, size, COUNT, &err));
    assert_ok(fm_maskset_unpack(back, COUNT, frame, size, &err));
    assert_memory_equal(back, widths, sizeof back);
    free(frame);
    free(again);
}

TEST(the_bytes_are_little_endian)
{
    const uint32_t one = 0x04030201;
    unsigned char raw[4];
    void *frame;
    size_t size;
    assert_ok(fm_maskset_pack(&one, 1, &frame, &size, &err));
    assert_int_equal(ZSTD_decompress(raw, 4, frame, size), 4);
    assert_memory_equal(raw, "\1\2\3\4", 4);
    free(frame);
}

TEST(another_count_than_the_manifests_is_refused)
{
    size_t size;
    unsigned char *frame = good_frame(&size);
    expect_refusal(frame, size, COUNT + 1, "masks: 4620 bytes where the manifest implies 4624");
    expect_refusal(frame, size, COUNT - 1, "the manifest implies 4616");
    assert_fails(fm_maskset_check(frame, size, SIZE_MAX / 2, &err), FM_EFORMAT, "too large");
    free(frame);
}

TEST(every_truncation_is_refused)
{
    size_t size;
    unsigned char *frame = good_frame(&size);
    for (size_t cut = 0; cut < size; cut++) {
        unsigned char *part = malloc(cut ? cut : 1); /* bytes after the cut cannot be read */
        assert_non_null(part);
        memcpy(part, frame, cut);
        expect_refusal(part, cut, COUNT, "masks: ");
        free(part);
    }
    free(frame);
}

/* zstd has a few reserved bits that decoders ignore. */
TEST(every_flipped_bit_is_refused_or_harmless)
{
    size_t size;
    unsigned char *frame = good_frame(&size);
    size_t harmless = 0;
    for (size_t bit = 0; bit < 8 * size; bit++) {
        uint32_t back[COUNT];
        frame[bit / 8] ^= (unsigned char)(1 << bit % 8);
        int code = fm_maskset_unpack(back, COUNT, frame, size, &err);
        if (code == FM_OK && memcmp(back, widths, sizeof back) == 0)
            harmless++;
        else if (code != FM_EFORMAT)
            fail_msg("bit %zu: %d %s", bit, code, err.text);
        frame[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    if (harmless > size / 4)
        fail_msg("%zu of %zu bits may be flipped", harmless, 8 * size);
    free(frame);
}

TEST(more_than_one_frame_is_refused)
{
    static const unsigned char skippable[] = {0x5e, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4};
    static const unsigned char legacy[] = {0x22, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0};
    size_t size;
    unsigned char *frame = good_frame(&size), *twice = malloc(2 * size + sizeof skippable);
    assert_non_null(twice);
    memcpy(twice, frame, size);
    memcpy(twice + size, frame, size);
    expect_refusal(twice, 2 * size, COUNT, "after the end of the zstd frame");
    expect_refusal(twice, size + 1, COUNT, "1 bytes after the end");
    memcpy(twice + size, skippable, sizeof skippable);
    expect_refusal(twice, size + sizeof skippable, COUNT, "12 bytes after the end");
    memcpy(twice, skippable, sizeof skippable);
    memcpy(twice + sizeof skippable, frame, size);
    expect_refusal(twice, size + sizeof skippable, COUNT, "skippable");
    expect_refusal(skippable, sizeof skippable, COUNT, "skippable");
    expect_refusal(legacy, sizeof legacy, COUNT, "not a zstd frame");
    free(twice);
    free(frame);
}

/* A frame of the widths, with parameters other than ours. */
static void *odd_frame(size_t *size, int content_size, int checksum)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    size_t capacity = ZSTD_compressBound(sizeof widths);
    void *frame = malloc(capacity);
    fill_widths();
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, content_size);
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, checksum);
    *size = ZSTD_compress2(ctx, frame, capacity, widths, sizeof widths);
    assert_false(ZSTD_isError(*size));
    ZSTD_freeCCtx(ctx);
    return frame;
}

TEST(frames_that_promise_too_little_or_too_much_are_refused)
{
    size_t size;
    void *frame = odd_frame(&size, 0, 1);
    expect_refusal(frame, size, COUNT, "does not state its content size");
    free(frame);
    frame = odd_frame(&size, 1, 0);
    expect_refusal(frame, size, COUNT, "no checksum");
    free(frame);
    /* Magic, descriptor, then: dictionary id 1; window 2^31 and size; size 2^62. */
    static const unsigned char dictionary[] = {0x28, 0xb5, 0x2f, 0xfd, 0x65, 1,
                                               0x0c, 0x11, 1,    0,    0};
    static const unsigned char window[] = {0x28, 0xb5, 0x2f, 0xfd, 0x84, 21 << 3, 0x0c,
                                           0x12, 0,    0,    1,    0,    0};
    static const unsigned char forged[] = {0x28, 0xb5, 0x2f, 0xfd, 0xe4, 0, 0, 0,
                                           0,    0,    0,    0,    0x40, 1, 0, 0};
    expect_refusal(dictionary, sizeof dictionary, COUNT, "dictionary");
    expect_refusal(window, sizeof window, COUNT, "window of 2147483648 bytes");
    expect_refusal(forged, sizeof forged, COUNT, "masks: 4611686018427387904 bytes");
}

/* 256 MiB of zeros in a few kilobytes: refused by the stated size, before anything is decoded;
 * and a frame with a false size, by its contents. */
TEST(bombs_are_refused)
{
    enum { STEP = 1 << 20, STEPS = 256 };
    static const char zeros[STEP];
    size_t capacity = 1 << 20;
    unsigned char *bomb = malloc(capacity);
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    ZSTD_outBuffer out = {bomb, capacity, 0};
    assert_true(bomb && ctx);
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, 1);
    ZSTD_CCtx_setParameter(ctx, ZSTD_c_windowLog, 20);
    ZSTD_CCtx_setPledgedSrcSize(ctx, (unsigned long long)STEP * STEPS);
    for (int i = 0; i < STEPS; i++) {
        ZSTD_inBuffer in = {zeros, sizeof zeros, 0};
        size_t left;
        do {
            left =
                ZSTD_compressStream2(ctx, &out, &in, i + 1 < STEPS ? ZSTD_e_continue : ZSTD_e_end);
            assert_false(ZSTD_isError(left));
        } while (i + 1 < STEPS ? in.pos < in.size : left != 0);
    }
    ZSTD_freeCCtx(ctx);
    expect_refusal(bomb, out.pos, COUNT, "masks: 268435456 bytes");
    assert_int_equal(bomb[4] >> 6, 2); /* the size is the four bytes after the window */
    const uint32_t lie = COUNT * 4;
    memcpy(bomb + 6, &lie, sizeof lie);
    expect_refusal(bomb, out.pos, COUNT, "masks: ");
    free(bomb);
}

TEST_MAIN(NULL, NULL)
