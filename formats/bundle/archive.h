/*
 * The tar subset of bundles.
 *
 * Tar readers often disagree about the members of a file, and attacks exploit that.  So the reader
 * here checks every byte of a header and refuses anything except this: regular files (type '0'),
 * ustar magic, octal numbers, mode 0644, uid, gid and mtime 0, no owner names, no links, names of
 * [A-Za-z0-9._/-]+ without empty, "." or ".." components, no duplicate names, padding of zeros, two
 * zero blocks and the end of the file right after them.  A pax header is accepted only for a member
 * of 8 GiB or more and may contain only its size.
 *
 * The writer uses libarchive's headers, in exactly that subset.
 */
#ifndef FM_ARCHIVE_H
#define FM_ARCHIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/file/file.h"
#include "lib/base/err.h"

#define FM_ARCHIVE_BLOCK 512
#define FM_ARCHIVE_HEADER_MAX 1536              /* pax header, its record, ustar header */
#define FM_ARCHIVE_PLAIN_MAX ((1ull << 33) - 1) /* larger members need a pax header */
#define FM_ARCHIVE_SIZE_MAX ((1ull << 36) - 1)  /* 12 octal digits, so pax and ustar agree */
#define FM_ARCHIVE_END_BYTES 1024

struct fm_archive_member {
    char *name;
    uint64_t size;
    uint64_t offset; /* offset of the data, absolute */
};

/*
 * List the members of a tar file in stream order, at most `limit`; free with fm_archive_release.
 * Reads headers and padding, not data.  FM_EFORMAT gives the fault and the member or the byte
 * offset.  With `prefix` the file may be cut off anywhere, and the complete members are listed.
 * *end is the end of the archive; another may follow in the file.
 */
int fm_archive_list(struct fm_archive_member **member, size_t *members, size_t limit,
                    const struct fm_file *file, bool prefix, uint64_t *end, struct fm_err *err);
/* Fail with FM_EFORMAT if the file does not end at `end`. */
int fm_archive_check_last(const struct fm_file *file, uint64_t end, struct fm_err *err);
void fm_archive_release(struct fm_archive_member *member, size_t members); /* NULL is fine */

/* True if our headers can contain the name: the characters above, at most 100 bytes. */
bool fm_archive_name_ok(const char *name);

/* The header of a member, 512 bytes, or 1536 from 8 GiB on.  Asserts that name and size are
 * valid. */
int fm_archive_header(char header[FM_ARCHIVE_HEADER_MAX], size_t *header_bytes, const char *name,
                      uint64_t size, struct fm_err *err);

/* Bytes of the header of a member of `size` bytes, and of its data with padding. */
uint64_t fm_archive_header_bytes(uint64_t size);
uint64_t fm_archive_padded(uint64_t size);

#endif
