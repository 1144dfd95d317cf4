/*
 * The widths of a hundred masks differ little, so zstd at level 19 compresses megabytes to
 * kilobytes.  But kilobytes from an untrusted file could also claim to expand to gigabytes, so the
 * reader first checks the frame header against the manifest, and decompresses the frame into a
 * block of exactly the size that the manifest implies.
 */
#include "formats/bundle/maskset.h"

#include <assert.h>
#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <zstd.h>
#include <zstd_errors.h>

#include "lib/base/mem.h"

#define LEVEL 19
#define WINDOW_LOG_MAX 23 /* the library lowers it for smaller inputs */
#define WINDOW_BYTES_MAX (1u << WINDOW_LOG_MAX)

static int count_bytes(size_t *bytes, size_t count, struct fm_err *err)
{
    if (!fm_mul(bytes, count, sizeof(uint32_t)) || *bytes > FM_MASKSET_BYTES_MAX)
        return fm_fail(err, FM_EFORMAT, "a mask set of %zu widths is too large (limit %zu bytes)",
                       count, FM_MASKSET_BYTES_MAX);
    return FM_OK;
}

static int compress(ZSTD_CCtx *ctx, void *dst, size_t *size, size_t capacity, const void *src,
                    size_t bytes, struct fm_err *err)
{
    static const struct {
        ZSTD_cParameter name;
        int value;
    } parameter[] = {{ZSTD_c_compressionLevel, LEVEL},
                     {ZSTD_c_contentSizeFlag, 1},
                     {ZSTD_c_checksumFlag, 1},
                     {ZSTD_c_windowLog, WINDOW_LOG_MAX},
                     {ZSTD_c_nbWorkers, 0}};
    for (size_t i = 0; i < sizeof parameter / sizeof parameter[0]; i++) {
        size_t code = ZSTD_CCtx_setParameter(ctx, parameter[i].name, parameter[i].value);
        assert(!ZSTD_isError(code));
        (void)code;
    }
    *size = ZSTD_compress2(ctx, dst, capacity, src, bytes);
    if (ZSTD_isError(*size))
        return fm_fail(err, FM_ENOMEM, "cannot compress %zu bytes of masks: %s", bytes,
                       ZSTD_getErrorName(*size));
    return FM_OK;
}

int fm_maskset_pack(const uint32_t *widths, size_t count, void **frame, size_t *size,
                    struct fm_err *err)
{
    size_t bytes = 0;
    if (count_bytes(&bytes, count, err))
        return err->code;
    int rc = FM_ENOMEM;
    size_t capacity = ZSTD_compressBound(bytes);
    uint32_t *raw = fm_alloc(count, sizeof *raw, "masks", err);
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    void *dst = malloc(capacity);
    if (!raw)
        goto out;
    if (!ctx || !dst) {
        fm_fail(err, FM_ENOMEM, "no memory to compress %zu bytes of masks", bytes);
        goto out;
    }
    for (size_t i = 0; i < count; i++)
        raw[i] = htole32(widths[i]);
    rc = compress(ctx, dst, size, capacity, raw, bytes, err);
    if (rc)
        goto out;
    *frame = dst;
    dst = NULL;
out:
    ZSTD_freeCCtx(ctx);
    free(raw);
    free(dst);
    return rc;
}

static int check_magic(const uint8_t *frame, size_t size, struct fm_err *err)
{
    static const uint8_t magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    static const uint8_t skippable[3] = {0x2a, 0x4d, 0x18}; /* after 0x50 to 0x5f */
    if (size < 6)
        return fm_fail(err, FM_EFORMAT, "masks: %zu bytes are too few for a zstd frame", size);
    if ((frame[0] & 0xf0) == 0x50 && memcmp(frame + 1, skippable, sizeof skippable) == 0)
        return fm_fail(err, FM_EFORMAT,
                       "masks: begin with a skippable zstd frame; exactly one "
                       "frame of data is accepted");
    if (memcmp(frame, magic, sizeof magic) != 0)
        return fm_fail(err, FM_EFORMAT, "masks: not a zstd frame (begins with %02x%02x%02x%02x)",
                       frame[0], frame[1], frame[2], frame[3]);
    return FM_OK;
}

/*
 * The byte after the magic number is the frame header descriptor (RFC 8878, 3.1.1.1): the content
 * size is present if one of the top two bits or the single-segment bit is set, a checksum if bit 2
 * is set, a dictionary if one of the low two bits is set.  Unless single-segment, the next byte is
 * the window: 5 bits of exponent, 3 of mantissa.  The library's one-pass decoder ignores the
 * window, but other readers would allocate it.
 */
static int check_descriptor(const uint8_t *frame, struct fm_err *err)
{
    uint8_t flags = frame[4];
    bool single = flags & 0x20;
    if (!(flags & 0xc0) && !single)
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame does not state its content size");
    if (!(flags & 0x04))
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame has no checksum");
    if (flags & 0x18)
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame sets a reserved bit");
    if (flags & 0x03)
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame needs a dictionary");
    uint64_t base = 1024ull << (frame[5] >> 3);
    uint64_t window = base + base / 8 * (frame[5] & 7);
    if (!single && window > WINDOW_BYTES_MAX)
        return fm_fail(err, FM_EFORMAT,
                       "masks: the zstd frame needs a window of %llu bytes "
                       "(limit %u)",
                       (unsigned long long)window, WINDOW_BYTES_MAX);
    return FM_OK;
}

static int check_frame(const void *frame, size_t size, size_t bytes, struct fm_err *err)
{
    if (check_magic(frame, size, err) || check_descriptor(frame, err))
        return err->code;
    unsigned long long stated = ZSTD_getFrameContentSize(frame, size);
    if (stated == ZSTD_CONTENTSIZE_ERROR || stated == ZSTD_CONTENTSIZE_UNKNOWN)
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame header is broken");
    if (stated != bytes)
        return fm_fail(err, FM_EFORMAT, "masks: %llu bytes where the manifest implies %zu", stated,
                       bytes);
    size_t length = ZSTD_findFrameCompressedSize(frame, size);
    if (ZSTD_isError(length))
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame is broken or truncated (%zu bytes)",
                       size);
    if (length != size)
        return fm_fail(err, FM_EFORMAT, "masks: %zu bytes after the end of the zstd frame",
                       size - length);
    return FM_OK;
}

int fm_maskset_check(const void *frame, size_t size, size_t count, struct fm_err *err)
{
    size_t bytes = 0;
    return count_bytes(&bytes, count, err) ? err->code : check_frame(frame, size, bytes, err);
}

/* Decompress in one pass into a block of the expected size, so no frame header can make the decoder
 * allocate memory. */
int fm_maskset_unpack(uint32_t *widths, size_t count, const void *frame, size_t size,
                      struct fm_err *err)
{
    if (fm_maskset_check(frame, size, count, err))
        return err->code;
    size_t bytes = count * sizeof *widths;
    ZSTD_DCtx *ctx = ZSTD_createDCtx();
    if (!ctx)
        return fm_fail(err, FM_ENOMEM, "no memory to decompress masks");
    size_t done = ZSTD_decompressDCtx(ctx, widths, bytes, frame, size);
    ZSTD_freeDCtx(ctx);
    if (ZSTD_isError(done)) /* our own wording, because the library's changes with its version */
        return fm_fail(err, FM_EFORMAT, "masks: the zstd frame %s",
                       ZSTD_getErrorCode(done) == ZSTD_error_checksum_wrong
                           ? "does not match its checksum"
                           : "is broken");
    if (done != bytes)
        return fm_fail(err, FM_EFORMAT, "masks: end after %zu of %zu bytes", done, bytes);
    for (size_t i = 0; i < count; i++)
        widths[i] = le32toh(widths[i]);
    return FM_OK;
}
