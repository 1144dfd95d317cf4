/*
 * The manifest is the first member and states the offset of every other one, so the whole stream
 * is laid out before its first byte is written: sizes are known, offsets follow from them, and the
 * manifest is printed at a size that its own offsets fit into.
 *
 * The digests of parts that are still being made are not known then.  In a file they are written
 * into the manifest at the end, over zeros of the same length.  A pipe cannot go back, so there
 * every digest that the manifest states must be known at the beginning (for that of
 * segments.safetensors, lib/stage/pack.c reads the weights twice).
 *
 * A slot is a member with its tar header h and its padding:
 *
 *     slot 0         1          2           3 (pad)   4 (aligned)          slots - 1
 *     +-+----------+-+--------+-+---------+-+-------+-+------------+     +-+-----------+-------+
 *     |h| manifest |h| build  |h| carried |h| zeros |h| ranking    | ... |h| CHECKSUMS | zeros |
 *     +-+----------+-+--------+-+---------+-+-------+-+------------+     +-+-----------+-------+
 *     ^ ^                                             ^                                ^
 *     | offset                                        offset, a multiple of 4096       file end
 *     header
 *
 * In a bundle in parts, slots and offsets continue from file to file: a file ends with its
 * checksums and two zero blocks, and the next one begins with the header of the next slot.  The
 * checksums of the first file are slot w->file[0].sums and have the manifest's digest; the manifest
 * has the digests of the other files' checksums.
 *
 * The states of a writer and their transitions:
 *
 *     laid out   --fm_bundle_begin-->   open   --fm_bundle_append...-->   filled
 *     filled     --fm_bundle_complete-->   complete (on the disk, still under the temporary name)
 *     complete   --fm_bundle_finish-->   under its name, and freed
 *     any state  --fm_bundle_abandon-->   all files removed, and freed
 *
 * Invariants, from the layout on:
 *   1. Slot 0 is the manifest, and the last slot of a file is its checksums.  Places never decrease
 *      from slot to slot, except at pads and checksums.  There is a pad directly before every
 *      aligned slot, and nowhere else.
 *   2. Slots are contiguous: the header of slot i + 1 begins where the padded data of slot i ends,
 *      or where the file of slot i ends.  The data of an aligned slot begins at a multiple of
 *      FM_BUNDLE_ALIGN in its file.
 *   3. The manifest has exactly slot[0].size bytes whenever it is printed, with digests or zeros;
 *      otherwise the offsets that it states would be wrong.
 *   4. Pipe: bytes are written in ascending order without a gap.  Slots before `next` are written
 *      whole, and slot `next`, if it is appended to, up to `filled`.
 *   5. File: slots may be filled in any order, each from its first byte to its last.  When all are
 *      full, the digest of every slot that the manifest or CHECKSUMS lists is known.
 *   6. Checksums have the size that was computed from the names at the layout.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/bundle/archive.h"
#include "formats/bundle/bundle.h"
#include "formats/bundle/partname.h"
#include "formats/bundle/place.h"
#include "formats/file/carried.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"

#define COPY_BYTES ((size_t)1 << 20)
#define PADDING_MAX FM_BUNDLE_ALIGN

/* One member of the stream, including the manifest, pads and CHECKSUMS. */
struct slot {
    char *name;
    uint64_t size;
    uint64_t header, offset;
    int place;   /* enum fm_member_place */
    size_t file; /* the file it is in */
    bool aligned;
    bool known; /* digest is set */
    struct fm_digest digest;
    const void *data;
    const struct fm_bundle *from;
    const struct fm_member *member;
    struct fm_hasher *hasher; /* of an appended part */
    uint64_t filled;
};

/* One of the files. */
struct file {
    struct fm_output out;
    char *path;          /* in parts */
    uint64_t begin, end; /* offsets in the concatenation of all files; its zero blocks come last */
    size_t sums;         /* slot of its checksums */
};

struct fm_bundle_writer {
    struct file *file;
    size_t files;
    struct fm_outdir dir; /* in parts: the directory in which they are made */
    bool force;
    cJSON *manifest;
    char *text; /* the manifest as laid out, slot[0].size bytes */
    struct slot *slot;
    size_t slots;
    size_t *slot_of; /* (parts) */
    size_t next;     /* first slot not yet written */
    char *copy;      /* COPY_BYTES */
    bool complete;   /* all bytes are on the disk */
};

static bool is_sums(const struct slot *s)
{
    return s->place == FM_PLACE_CHECKSUMS || s->place == FM_PLACE_PART_SUMS;
}

static bool is_appended(const struct slot *s)
{
    return !s->data && !s->from && s->place != FM_PLACE_MANIFEST && !is_sums(s) &&
           s->place != FM_PLACE_PAD;
}

/* True if the bundle is in several parts. */
static bool is_split(const struct fm_bundle_writer *w)
{
    return w->files > 1;
}

static int add_slot(struct fm_bundle_writer *w, const char *name, uint64_t size, struct fm_err *err)
{
    if (!fm_archive_name_ok(name))
        return fm_fail(err, FM_ECONFIG,
                       "cannot store a member named '%s': at most 100 letters, digits, '.', '_', "
                       "'-' and '/'",
                       name);
    if (size > FM_ARCHIVE_SIZE_MAX)
        return fm_fail(err, FM_ECONFIG, "cannot store '%s': %" PRIu64 " bytes (limit %llu)", name,
                       size, FM_ARCHIVE_SIZE_MAX);
    if (w->slots == FM_BUNDLE_MEMBERS_MAX)
        return fm_fail(err, FM_ECONFIG, "more than %d members", FM_BUNDLE_MEMBERS_MAX);
    struct slot *s = &w->slot[w->slots];
    int place = fm_place_of(name);
    assert(place >= 0);
    *s = (struct slot){.size = size, .place = place, .file = w->files ? w->files - 1 : 0};
    s->name = fm_strdup(name, err);
    if (!s->name)
        return err->code;
    w->slots++;
    return FM_OK;
}

/* Set the source of a slot: the part's bytes, the bundle that they are copied from, or
 * fm_bundle_append. */
static int bind_part(struct slot *s, const struct fm_part *part, struct fm_err *err)
{
    s->data = part->size == 0 && !part->from ? "" : part->data;
    s->from = part->from;
    s->member = part->member;
    s->aligned = part->aligned;
    if (s->from) {
        assert(!s->data && s->member && s->member->size == s->size);
        s->known = s->member->known;
        s->digest = s->member->digest;
    } else if (s->data) {
        s->known = true;
        s->digest = fm_digest_of(s->data, (size_t)s->size);
    } else if (!(s->hasher = fm_hasher_new())) {
        return fm_fail(err, FM_ENOMEM, "no memory to hash '%s'", s->name);
    }
    return FM_OK;
}

/* Bytes of a line of checksums. */
static uint64_t line_bytes(const char *name)
{
    return FM_DIGEST_HEX - 1 + 2 + strlen(name) + 1;
}

static uint64_t checksums_size(const struct fm_bundle_writer *w, size_t file)
{
    uint64_t size = 0;
    for (size_t i = 0; i < w->slots; i++)
        if (w->slot[i].file == file && fm_place_summed(w->slot[i].place))
            size += line_bytes(w->slot[i].name);
    return size;
}

/* End the last file with its checksums. */
static int end_file(struct fm_bundle_writer *w, struct fm_err *err)
{
    char name[32] = FM_MEMBER_CHECKSUMS;
    if (w->files > 1)
        snprintf(name, sizeof name, FM_MEMBER_PART_SUMS "%05zu", w->files);
    w->file[w->files - 1].sums = w->slots;
    return add_slot(w, name, checksums_size(w, w->files - 1), err);
}

#define ENTRY_BYTES 256 /* at least the bytes of an entry of the manifest without its name */

/* Upper bound on the bytes of the manifest, with its header and padding. */
static int head_bytes(uint64_t *bytes, const struct fm_bundle_writer *w, const struct fm_part *part,
                      size_t parts, struct fm_err *err)
{
    char *text = fm_json_print(w->manifest);
    if (!text)
        return fm_fail(err, FM_ENOMEM, "no memory for the manifest");
    *bytes = strlen(text) + 3 * ENTRY_BYTES;
    free(text);
    for (size_t i = 0; i < parts; i++) /* a pad, and the beginning of a new part */
        *bytes += 4 * ENTRY_BYTES + strlen(part[i].name);
    *bytes += 3 * FM_ARCHIVE_BLOCK;
    return FM_OK;
}

/* Header, padding and zero blocks around the lines of checksums. */
#define FILE_END_BYTES (2 * FM_ARCHIVE_BLOCK + FM_ARCHIVE_END_BYTES)

/* Before a part: start another file if this one would exceed `limit`. *used is the number of
 * bytes of the last file so far. */
static int begin_file_for(struct fm_bundle_writer *w, const struct fm_part *part, uint64_t limit,
                          uint64_t *used, struct fm_err *err)
{
    /* At most, with the pad and the line of checksums. */
    uint64_t needs = (part->aligned ? FM_ARCHIVE_BLOCK + FM_BUNDLE_ALIGN : 0) +
                     fm_archive_header_bytes(part->size) + fm_archive_padded(part->size) +
                     line_bytes(part->name);
    bool weights = fm_place_of(part->name) == FM_PLACE_WEIGHTS;
    if (limit && weights && *used + needs + FILE_END_BYTES > limit) {
        if (w->files == FM_PARTS_MAX)
            return fm_fail(err, FM_EUSAGE, "more than %d parts; use larger parts", FM_PARTS_MAX);
        if (end_file(w, err))
            return err->code;
        w->files++;
        *used = 0;
    }
    *used += needs;
    if (!limit || *used + FILE_END_BYTES <= limit)
        return FM_OK;
    return fm_fail(err, FM_EUSAGE,
                   "'%s' needs parts of at least %" PRIu64 " bytes, but the limit is %" PRIu64,
                   part->name, *used + FILE_END_BYTES, limit);
}

/* Every aligned part gets a pad, which may have no bytes, so that the number of pads does not
 * depend on offsets. */
static int add_parts(struct fm_bundle_writer *w, const struct fm_part *part, size_t parts,
                     uint64_t limit, struct fm_err *err)
{
    struct fm_carried_sum carried = {0};
    char pad[32];
    unsigned pads = 0;
    int last = FM_PLACE_MANIFEST;
    uint64_t used = 0;
    if (limit && head_bytes(&used, w, part, parts, err))
        return err->code;
    for (size_t i = 0; i < parts; i++) {
        if (begin_file_for(w, &part[i], limit, &used, err))
            return err->code;
        if (part[i].aligned) {
            snprintf(pad, sizeof pad, FM_MEMBER_PAD "%04u", pads++);
            if (add_slot(w, pad, 0, err))
                return err->code;
        }
        w->slot_of[i] = w->slots;
        if (add_slot(w, part[i].name, part[i].size, err) ||
            bind_part(&w->slot[w->slot_of[i]], &part[i], err))
            return err->code;
        int place = w->slot[w->slot_of[i]].place;
        /* invariant 1 */
        assert(place >= last && place > FM_PLACE_MANIFEST && place < FM_PLACE_CHECKSUMS);
        if (place == FM_PLACE_CARRIED &&
            fm_carried_add(&carried, part[i].name + strlen(FM_MEMBER_CARRIED), part[i].size, err))
            return err->code;
        last = place;
    }
    return end_file(w, err);
}

/* Set the offsets of all slots for a manifest of this size. */
static void place_slots(struct fm_bundle_writer *w, uint64_t manifest_size)
{
    uint64_t at = 0, begin = 0;
    w->slot[0].size = manifest_size;
    for (size_t i = 0; i < w->slots; i++) {
        struct slot *s = &w->slot[i];
        if (s->place == FM_PLACE_PAD) { /* the next slot is aligned */
            uint64_t data = at - begin + FM_ARCHIVE_BLOCK + fm_archive_header_bytes(s[1].size);
            s->size = (FM_BUNDLE_ALIGN - data % FM_BUNDLE_ALIGN) % FM_BUNDLE_ALIGN;
        }
        s->header = at;
        s->offset = at + fm_archive_header_bytes(s->size);
        at = s->offset + fm_archive_padded(s->size);
        assert(!s->aligned || s[-1].place == FM_PLACE_PAD);                /* invariant 1 */
        assert(!s->aligned || (s->offset - begin) % FM_BUNDLE_ALIGN == 0); /* invariant 2 */
        assert(i == 0 || s->file != s[-1].file ||
               s->header == s[-1].offset + fm_archive_padded(s[-1].size)); /* invariant 2 */
        if (!is_sums(s))
            continue;
        at += FM_ARCHIVE_END_BYTES;
        w->file[s->file].begin = begin;
        w->file[s->file].end = begin = at;
    }
}

static void add_entry(cJSON *members, const struct slot *s)
{
    char hex[FM_DIGEST_HEX];
    cJSON *entry = fm_json_add_object(members, NULL);
    fm_json_add_string(entry, "name", s->name);
    fm_json_add_uint(entry, "size", s->size);
    fm_json_add_uint(entry, "offset", s->offset);
    if (!fm_place_listed(s->place))
        return;
    fm_digest_hex(hex, &s->digest);
    fm_json_add_string(entry, "digest", hex);
}

/* Text of the manifest with the members as laid out; digests not yet known are zeros. */
static char *print_manifest(struct fm_bundle_writer *w)
{
    cJSON_DeleteItemFromObjectCaseSensitive(w->manifest, "parts");
    cJSON_DeleteItemFromObjectCaseSensitive(w->manifest, "members");
    cJSON *files = is_split(w) ? fm_json_add_array(w->manifest, "parts") : NULL;
    for (size_t i = 0; files && i < w->files; i++)
        fm_json_add_uint(fm_json_add_object(files, NULL), "size",
                         w->file[i].end - w->file[i].begin);
    cJSON *members = fm_json_add_array(w->manifest, "members");
    for (size_t i = 0; i < w->slots; i++)
        add_entry(members, &w->slot[i]);
    return fm_json_print(w->manifest);
}

/* The text of the manifest.  If it is shorter than `size` bytes, spaces are added before the last
 * newline. */
static char *print_padded(struct fm_bundle_writer *w, uint64_t size)
{
    char *text = print_manifest(w);
    size_t len = text ? strlen(text) : 0;
    if (!text || len >= size)
        return text;
    char *wide = realloc(text, (size_t)size + 1);
    if (!wide) {
        free(text);
        return NULL;
    }
    memset(wide + len - 1, ' ', (size_t)size - len);
    memcpy(wide + size - 1, "\n", 2);
    return wide;
}

/*
 * The manifest contains offsets that depend on its own length.  Its size grows until its text fits:
 * a longer manifest only makes the numbers in it a few digits longer.
 */
static int lay_out(struct fm_bundle_writer *w, struct fm_err *err)
{
    for (uint64_t size = 1;;) {
        place_slots(w, size);
        free(w->text);
        w->text = print_padded(w, size);
        if (!w->text)
            return fm_fail(err, FM_ENOMEM, "no memory for the manifest");
        uint64_t printed = strlen(w->text);
        if (printed > FM_BUNDLE_MANIFEST_BYTES_MAX)
            return fm_fail(err, FM_ECONFIG, "the manifest has %" PRIu64 " bytes (limit %u)",
                           printed, FM_BUNDLE_MANIFEST_BYTES_MAX);
        if (printed == size) /* invariant 3 */
            return FM_OK;
        size = printed;
    }
}

/* Make slots and layout; nothing is written.  Takes ownership of manifest. */
static int make_writer(struct fm_bundle_writer **out, cJSON *manifest, uint64_t limit,
                       const struct fm_part *part, size_t parts, struct fm_err *err)
{
    struct fm_bundle_writer *w = fm_alloc(1, sizeof *w, "a bundle writer", err);
    if (!w) {
        cJSON_Delete(manifest);
        return err->code;
    }
    size_t most = limit ? FM_PARTS_MAX : 1;
    w->manifest = manifest;
    w->slot = fm_alloc(2 * parts + 1 + most, sizeof *w->slot, "bundle members", err);
    w->slot_of = fm_alloc(parts, sizeof *w->slot_of, "bundle members", err);
    w->file = fm_alloc(most, sizeof *w->file, "bundle files", err);
    w->files = 1;
    for (size_t i = 0; w->file && i < most; i++)
        w->file[i].out.fd = -1;
    if (!w->slot || !w->slot_of || !w->file || add_slot(w, FM_MEMBER_MANIFEST, 0, err) ||
        add_parts(w, part, parts, limit, err) || lay_out(w, err)) {
        fm_bundle_abandon(w);
        return err->code;
    }
    for (size_t i = 0; limit && i < w->files; i++)
        assert(w->file[i].end - w->file[i].begin <= limit);
    *out = w;
    return FM_OK;
}

/* Write to the file that has the slot; offset counts from the beginning of the first file. */
static int put(struct fm_bundle_writer *w, const struct slot *s, uint64_t offset, const void *src,
               size_t size, struct fm_err *err)
{
    struct file *f = &w->file[s->file];
    if (f->out.seekable)
        return fm_output_write_at(&f->out, offset - f->begin, src, size, err);
    assert(f->out.at == offset); /* invariant 4 */
    return fm_output_write(&f->out, src, size, err);
}

static int put_header(struct fm_bundle_writer *w, const struct slot *s, struct fm_err *err)
{
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t size;
    if (fm_archive_header(header, &size, s->name, s->size, err))
        return err->code;
    return put(w, s, s->header, header, size, err);
}

static int put_padding(struct fm_bundle_writer *w, const struct slot *s, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_BLOCK];
    size_t pad = (size_t)(fm_archive_padded(s->size) - s->size);
    return pad ? put(w, s, s->offset + s->size, zeros, pad, err) : FM_OK;
}

static int copy_member(struct fm_bundle_writer *w, struct slot *s, struct fm_err *err)
{
    struct fm_hasher *hasher = fm_hasher_new();
    int rc = FM_OK;
    if (!w->copy)
        w->copy = malloc(COPY_BYTES);
    if (!hasher || !w->copy) {
        rc = fm_fail(err, FM_ENOMEM, "no memory to copy '%s'", s->name);
        goto out;
    }
    for (uint64_t at = 0; at < s->size; at += COPY_BYTES) {
        size_t part = s->size - at < COPY_BYTES ? (size_t)(s->size - at) : COPY_BYTES;
        if ((rc = fm_file_read(&s->from->file, s->member->offset + at, w->copy, part, err)) ||
            (rc = put(w, s, s->offset + at, w->copy, part, err)))
            goto out;
        fm_hasher_add(hasher, w->copy, part);
    }
    struct fm_digest digest = fm_hasher_done(hasher);
    if (s->known && !fm_digest_equal(&digest, &s->digest)) {
        rc = fm_fail(err, FM_EFORMAT, "%s: the bytes of '%s' do not match their digest",
                     s->from->file.path, s->member->name);
        goto out;
    }
    s->digest = digest;
    s->known = true;
out:
    fm_hasher_free(hasher);
    return rc;
}

/* Write a slot whose bytes are all known. */
static int put_slot(struct fm_bundle_writer *w, struct slot *s, struct fm_err *err)
{
    static const char zeros[PADDING_MAX];
    int rc = put_header(w, s, err);
    if (rc)
        return rc;
    if (s->place == FM_PLACE_PAD)
        rc = put(w, s, s->offset, zeros, (size_t)s->size, err);
    else if (s->from)
        rc = copy_member(w, s, err);
    else
        rc = put(w, s, s->offset, s->data, (size_t)s->size, err);
    return rc ? rc : put_padding(w, s, err);
}

/* To a pipe: write up to the next part whose bytes must be appended, including its header. */
static int go_on(struct fm_bundle_writer *w, struct fm_err *err)
{
    for (; w->next + 1 < w->slots; w->next++) {
        struct slot *s = &w->slot[w->next];
        if (is_appended(s))
            return put_header(w, s, err);
        if (put_slot(w, s, err))
            return err->code;
    }
    return FM_OK;
}

static int begin_pipe(struct fm_bundle_writer *w, struct fm_err *err)
{
    for (size_t i = 0; i < w->slots; i++)
        assert(w->slot[i].known || !fm_place_listed(w->slot[i].place));
    struct slot *s = &w->slot[0];
    s->data = w->text;
    s->digest = fm_digest_of(w->text, (size_t)s->size);
    s->known = true;
    return go_on(w, err);
}

static int begin_files(struct fm_bundle_writer *w, struct fm_err *err)
{
    for (size_t i = 0; i < w->files; i++)
        if (fm_output_reserve(&w->file[i].out, w->file[i].end - w->file[i].begin, err))
            return err->code;
    for (size_t i = 1; i < w->slots; i++) {
        struct slot *s = &w->slot[i];
        if (is_sums(s))
            continue;
        if (is_appended(s) ? put_header(w, s, err) || put_padding(w, s, err) : put_slot(w, s, err))
            return err->code;
    }
    return FM_OK;
}

/* Open the outputs of all parts, in a hidden temporary directory. */
static int open_parts(struct fm_bundle_writer *w, const char *path, bool force, struct fm_err *err)
{
    char *name[FM_PARTS_MAX];
    for (size_t i = 0; i < w->files; i++)
        if (!(name[i] = w->file[i].path = fm_partname(path, (int)i + 1, (int)w->files, err)))
            return err->code;
    w->force = force;
    int rc = fm_outdir_spread_open(&w->dir, path, name, w->files, force, err);
    for (size_t i = 0; i < w->files && !rc; i++)
        rc = fm_outdir_file(&w->dir, &w->file[i].out, basename(name[i]), err);
    return rc;
}

int fm_bundle_begin_parts(struct fm_bundle_writer **out, const char *path, uint64_t file_bytes,
                          bool force, cJSON *manifest, const struct fm_part *part, size_t parts,
                          struct fm_err *err)
{
    struct fm_bundle_writer *w = NULL;
    *out = NULL;
    if (make_writer(&w, manifest, file_bytes, part, parts, err))
        return err->code;
    assert(!is_split(w) || strcmp(path, "-") != 0);
    int rc = is_split(w) ? open_parts(w, path, force, err)
                         : fm_output_open(&w->file[0].out, path, true, force, err);
    if (!rc)
        rc = fm_bundle_writer_seekable(w) ? begin_files(w, err) : begin_pipe(w, err);
    if (rc)
        fm_bundle_abandon(w);
    else
        *out = w;
    return rc;
}

int fm_bundle_begin(struct fm_bundle_writer **out, const char *path, bool force, cJSON *manifest,
                    const struct fm_part *part, size_t parts, struct fm_err *err)
{
    return fm_bundle_begin_parts(out, path, 0, force, manifest, part, parts, err);
}

bool fm_bundle_writer_seekable(const struct fm_bundle_writer *w)
{
    return w->file[0].out.seekable;
}

int fm_bundle_append(struct fm_bundle_writer *w, size_t part, const void *src, size_t size,
                     struct fm_err *err)
{
    struct slot *s = &w->slot[w->slot_of[part]];
    assert(is_appended(s) && size <= s->size - s->filled);               /* invariant 5 */
    assert(fm_bundle_writer_seekable(w) || w->slot_of[part] == w->next); /* invariant 4 */
    fm_hasher_add(s->hasher, src, size);
    if (put(w, s, s->offset + s->filled, src, size, err))
        return err->code;
    s->filled += size;
    if (s->filled < s->size || fm_bundle_writer_seekable(w))
        return FM_OK;
    if (put_padding(w, s, err))
        return err->code;
    w->next++;
    return go_on(w, err);
}

static char *print_checksums(const struct fm_bundle_writer *w, const struct slot *sums)
{
    char *text = malloc((size_t)sums->size + 1), *at = text;
    for (size_t i = 0; text && i < w->slots; i++) {
        const struct slot *s = &w->slot[i];
        if (s->file != sums->file || !fm_place_summed(s->place))
            continue;
        assert(s->known); /* invariant 5 */
        fm_digest_hex(at, &s->digest);
        at += FM_DIGEST_HEX - 1;
        *at++ = ' ';
        *at++ = ' ';
        size_t len = strlen(s->name);
        memcpy(at, s->name, len);
        at += len;
        *at++ = '\n';
    }
    assert(!text || (uint64_t)(at - text) == sums->size); /* invariant 6 */
    return text;
}

/* Print the manifest again with every digest, at the size of the layout. */
static int finish_manifest(struct fm_bundle_writer *w, struct fm_err *err)
{
    struct slot *s = &w->slot[0];
    free(w->text);
    w->text = print_padded(w, s->size);
    if (!w->text)
        return fm_fail(err, FM_ENOMEM, "no memory for the manifest");
    assert(strlen(w->text) == s->size); /* invariant 3 */
    s->data = w->text;
    s->digest = fm_digest_of(w->text, (size_t)s->size);
    s->known = true;
    return put_slot(w, s, err);
}

/* Write the checksums of a file, and its end. */
static int write_end(struct fm_bundle_writer *w, const struct file *f, struct fm_err *err)
{
    static const char zeros[FM_ARCHIVE_END_BYTES];
    struct slot *sums = &w->slot[f->sums];
    char *text = print_checksums(w, sums);
    if (!text)
        return fm_fail(err, FM_ENOMEM, "no memory for %s", FM_MEMBER_CHECKSUMS);
    sums->data = text;
    sums->digest = fm_digest_of(text, (size_t)sums->size);
    sums->known = true;
    int rc = put_slot(w, sums, err);
    sums->data = NULL;
    free(text);
    return rc ? rc : put(w, sums, f->end - sizeof zeros, zeros, sizeof zeros, err);
}

/* The manifest has the digests of later files' checksums, and the checksums of the first file
 * have that of the manifest. */
static int write_ends(struct fm_bundle_writer *w, struct fm_err *err)
{
    int rc = FM_OK;
    for (size_t i = 1; i < w->files && !rc; i++)
        rc = write_end(w, &w->file[i], err);
    if (!rc && fm_bundle_writer_seekable(w))
        rc = finish_manifest(w, err);
    return rc ? rc : write_end(w, &w->file[0], err);
}

int fm_bundle_complete(struct fm_bundle_writer *w, struct fm_err *err)
{
    for (size_t i = 0; i < w->slots; i++) {
        struct slot *s = &w->slot[i];
        if (!is_appended(s))
            continue;
        assert(s->filled == s->size); /* invariant 5 */
        s->digest = fm_hasher_done(s->hasher);
        s->known = true;
    }
    int rc = write_ends(w, err);
    for (size_t i = 0; i < w->files && !rc; i++)
        rc = fm_output_flush(&w->file[i].out, err);
    w->complete = !rc;
    return rc;
}

int fm_bundle_finish(struct fm_bundle_writer *w, struct fm_err *err)
{
    int rc = w->complete ? FM_OK : fm_bundle_complete(w, err);
    for (size_t i = 0; i < w->files && !rc; i++)
        rc = fm_output_commit(&w->file[i].out, err);
    if (!rc && is_split(w)) {
        char *name[FM_PARTS_MAX];
        for (size_t i = 0; i < w->files; i++)
            name[i] = w->file[i].path;
        rc = fm_outdir_spread(&w->dir, name, w->files, w->force, err);
    }
    fm_bundle_abandon(w);
    return rc;
}

void fm_bundle_abandon(struct fm_bundle_writer *w)
{
    if (!w)
        return;
    for (size_t i = 0; w->file && i < w->files; i++) {
        fm_output_abandon(&w->file[i].out);
        free(w->file[i].path);
    }
    fm_outdir_abandon(&w->dir);
    for (size_t i = 0; i < w->slots; i++) {
        free(w->slot[i].name);
        fm_hasher_free(w->slot[i].hasher);
    }
    cJSON_Delete(w->manifest);
    free(w->slot);
    free(w->slot_of);
    free(w->file);
    free(w->text);
    free(w->copy);
    free(w);
}

int fm_bundle_size(struct fm_bundle_sizes *sizes, uint64_t file_bytes, const cJSON *manifest,
                   const struct fm_part *part, size_t parts, struct fm_err *err)
{
    cJSON *copy = cJSON_Duplicate(manifest, true);
    struct fm_bundle_writer *w = NULL;
    if (!copy)
        return fm_fail(err, FM_ENOMEM, "no memory for the manifest");
    if (make_writer(&w, copy, file_bytes, part, parts, err))
        return err->code;
    *sizes = (struct fm_bundle_sizes){.files = (int)w->files};
    for (size_t i = 0; i < w->files; i++) {
        uint64_t bytes = w->file[i].end - w->file[i].begin;
        sizes->all += bytes;
        sizes->largest = bytes > sizes->largest ? bytes : sizes->largest;
    }
    fm_bundle_abandon(w);
    return FM_OK;
}
