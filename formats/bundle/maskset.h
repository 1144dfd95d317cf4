/*
 * The mask set: widths u32 (B, M, E), little-endian, as one zstd frame with content size and
 * checksum.  The reader accepts exactly that: one frame, with the size that the manifest implies, a
 * window of at most 8 MiB, no dictionary, and nothing after it.
 */
#ifndef FM_MASKSET_H
#define FM_MASKSET_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_MASKSET_BYTES_MAX ((size_t)64 << 20) /* decompressed: 1000 budgets of 16,000 experts */

/* Compress: *frame (malloc) of *size bytes.  The same widths and the same library give the same
 * bytes. */
int fm_maskset_pack(const uint32_t *widths, size_t count, void **frame, size_t *size,
                    struct fm_err *err);
/* FM_EFORMAT unless, by its header, the frame holds `count` widths; for callers that then
 * allocate them. */
int fm_maskset_check(const void *frame, size_t size, size_t count, struct fm_err *err);
/* Decompress into exactly `count` widths. */
int fm_maskset_unpack(uint32_t *widths, size_t count, const void *frame, size_t size,
                      struct fm_err *err);

#endif
