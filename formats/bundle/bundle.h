/*
 * This room, formats/bundle: the container that all stages of the pipeline share.  It handles
 * members, their order, offsets and digests; lib/stage reads their contents.  In reading order:
 * archive (the tar subset), place.h (the order of members), partname (names of files), bundle.c
 * (reading), bundlewriter.c, maskset (the compressed widths).
 *
 * The bundle: one tar stream that every stage reads and writes.  fm-bundle(5) describes its bytes
 * and its manifest.
 *
 * Members, in order: manifest.json, build.json, the carried files under carried/,
 * ranking.safetensors, masks.zst, adapter.safetensors, segments.safetensors, weights/...,
 * CHECKSUMS.  A stage stream has the members that were made so far; only fm-pack's output has
 * segments and weights.  Members whose name starts with ".pad/" are zeros that put the next
 * member's data at a multiple of 4096.
 *
 * manifest.json is first and lists every member with its size, absolute offset and, except for
 * weights, pads, itself and CHECKSUMS, its digest; CHECKSUMS is last and has the digest of every
 * member before it except pads.  So a stream that ends early is always detected.
 *
 * A bundle in parts is several files, each a tar archive, cut between members under weights/.  The
 * first ends with CHECKSUMS, the k-th with CHECKSUMS-0000k; each of these has the digests of the
 * members in its file.  The manifest has the digest of each later file's checksums and the size
 * of each part, so that a part of a different bundle is detected.  Offsets count from the beginning
 * of the first part, as if the files were concatenated; a concatenation of all parts can also be
 * read.
 */
#ifndef FM_BUNDLE_H
#define FM_BUNDLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "formats/file/digest.h"
#include "formats/file/file.h"
#include "lib/base/err.h"

/* The schema of streams, bundles and exports (fm-bundle(5)), for writing and reading. */
#define FM_BUNDLE_SCHEMA 1
#define FM_BUNDLE_MEMBERS_MAX 65536
#define FM_BUNDLE_MANIFEST_BYTES_MAX (4u << 20)
#define FM_BUNDLE_ALIGN 4096

#define FM_MEMBER_MANIFEST "manifest.json"
#define FM_MEMBER_BUILD "build.json"
#define FM_MEMBER_CARRIED "carried/" /* prefix */
#define FM_MEMBER_RANKING "ranking.safetensors"
#define FM_MEMBER_MASKS "masks.zst"
#define FM_MEMBER_ADAPTER "adapter.safetensors"
#define FM_MEMBER_SEGMENTS "segments.safetensors"
#define FM_MEMBER_WEIGHTS "weights/" /* prefix */
#define FM_MEMBER_CHECKSUMS "CHECKSUMS"
#define FM_MEMBER_PART_SUMS "CHECKSUMS-" /* prefix; followed by "%05d", the number of the part */
#define FM_MEMBER_PAD ".pad/"            /* prefix */

/* Files under weights/ of a bundle or a native export: one for each decoder layer with experts, by
 * its number; one for all other tensors; and, only in a bundle, one for the extra tensors. */
#define FM_WEIGHTS_LAYER "layers-%05d.safetensors"
#define FM_WEIGHTS_REST "rest.safetensors"
#define FM_WEIGHTS_EXTRA "extra.safetensors"

struct fm_member {
    char *name;
    uint64_t size;
    uint64_t offset; /* offset of the data, absolute */
    bool listed;     /* the manifest has its digest */
    bool known;      /* digest is set: by the manifest or, for weights and manifest, by CHECKSUMS */
    struct fm_digest digest;
};

/* A bundle or stage stream, open for reading. */
struct fm_bundle {
    struct fm_file file;
    struct fm_member *member; /* in stream order, manifest.json first, CHECKSUMS last */
    size_t members;
    uint64_t *part; /* (parts) bytes of each file of a bundle in parts; NULL: it is one file */
    int parts;
    cJSON *manifest;
};

/*
 * Open and check the structure: the file is in the strict tar subset, manifest and members agree in
 * name, order, size and offset, pads are small and zero, and the end is complete.  Digests are
 * checked when a member is read; weights are not read.  "-" is standard input.  FM_EFORMAT names
 * the fault and its place.  For a bundle in parts `path` is the first part; the others are found by
 * its name, and FM_EFORMAT names a part that is missing, cut off, misnamed, or from a different
 * bundle.
 */
int fm_bundle_open(struct fm_bundle *b, const char *path, struct fm_err *err);
/*
 * As fm_bundle_open, for a stream that may be cut off: `member` has the complete members, of which
 * the manifest must be one.  That is enough to verify an export.  For a bundle in parts only the
 * first part is opened.
 */
int fm_bundle_open_prefix(struct fm_bundle *b, const char *path, struct fm_err *err);
/* fm_bundle_open or fm_bundle_open_prefix for an open file, which the caller keeps. */
int fm_bundle_open_file(struct fm_bundle *b, const struct fm_file *file, bool prefix,
                        struct fm_err *err);
/* For a prefix: append the members that the manifest lists after the complete ones, at the offsets
 * it states; their bytes are not examined.  FM_EFORMAT if no bundle could have them: names and
 * offsets must be in the order of fm_bundle_open. */
int fm_bundle_expect(struct fm_bundle *b, struct fm_err *err);
void fm_bundle_close(struct fm_bundle *b); /* zeroed struct is fine */
/* A sanity check for asserts, valid until fm_bundle_expect is called: the manifest is the first
 * member, members are in ascending order in the file, and listed ones have a digest. */
bool fm_bundle_sane(const struct fm_bundle *b);

/* The names of stages, in their order (enum fm_stage), and NULL. */
extern const char *const fm_bundle_stages[];

/* FM_EFORMAT unless the "schema" of a manifest or of an fm-export.json is FM_BUNDLE_SCHEMA. */
int fm_bundle_check_schema(const cJSON *json, struct fm_err *err);

const struct fm_member *fm_bundle_find(const struct fm_bundle *b, const char *name);

/* Read a whole member and check its digest (weights: that of CHECKSUMS); free() *data.  A NUL is
 * appended and not counted. */
int fm_bundle_read(const struct fm_bundle *b, const struct fm_member *m, void **data, size_t *size,
                   struct fm_err *err);

/* One member of a bundle to be written. */
struct fm_part {
    const char *name;
    uint64_t size;
    const void *data;             /* the bytes, or NULL: they are passed to fm_bundle_append */
    const struct fm_bundle *from; /* or the open bundle from which they are copied */
    const struct fm_member *member;
    bool aligned; /* data begins at a multiple of 4096 (weights and ranking) */
};

struct fm_bundle_writer;

/*
 * Lay out and begin to write.  `manifest` has everything except "members"; the writer adds that and
 * takes ownership of the tree, even on failure.  Parts are in bundle order without manifest.json,
 * pads and CHECKSUMS; their bytes are borrowed until finish, names and the array are copied.  Bytes
 * copied from an open bundle are checked against their digest.  For a pipe every part except
 * weights must have its bytes or its bundle (assert), because the manifest comes first and has
 * their digests.
 */
int fm_bundle_begin(struct fm_bundle_writer **w, const char *path, bool force, cJSON *manifest,
                    const struct fm_part *part, size_t parts, struct fm_err *err);
/*
 * Begin to write a bundle in parts: files of at most file_bytes with the names of partname.h, cut
 * before members under weights/; a single file called `path` if everything fits into one.
 * fm_bundle_finish renames all of them, the first one last.  FM_EUSAGE if a member does not fit,
 * FM_ECREATE if one of the files exists and not `force`.  Not for a pipe (assert).
 */
int fm_bundle_begin_parts(struct fm_bundle_writer **w, const char *path, uint64_t file_bytes,
                          bool force, cJSON *manifest, const struct fm_part *part, size_t parts,
                          struct fm_err *err);
/* True if parts may be appended in any order and by several threads, each part by one thread. */
bool fm_bundle_writer_seekable(const struct fm_bundle_writer *w);
/* Append the next `size` bytes of a part without data, and hash them.  For a pipe, part by part. */
int fm_bundle_append(struct fm_bundle_writer *w, size_t part, const void *src, size_t size,
                     struct fm_err *err);
/* Write checksums, manifest and end blocks, and fsync; every part must be complete (assert).  The
 * bundle is then whole but does not have its final name yet. */
int fm_bundle_complete(struct fm_bundle_writer *w, struct fm_err *err);
/* fm_bundle_complete, unless it was called, and the rename.  Releases w, on failure too. */
int fm_bundle_finish(struct fm_bundle_writer *w, struct fm_err *err);
void fm_bundle_abandon(struct fm_bundle_writer *w); /* NULL is fine */

/* For plans: the bytes of a bundle with these parts, the number of files of at most file_bytes (0:
 * one file), and the bytes of the largest. */
struct fm_bundle_sizes {
    uint64_t all, largest;
    int files;
};
int fm_bundle_size(struct fm_bundle_sizes *sizes, uint64_t file_bytes, const cJSON *manifest,
                   const struct fm_part *part, size_t parts, struct fm_err *err);

#endif
