/*
 * The reader accepts only the header forms that the writer makes.  Every field of a header is
 * checked and every other form is refused, so all tar readers see the same members in an accepted
 * archive.
 */
#include "formats/bundle/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"
#include "lib/base/names.h"

#define NAME_BYTES 100
#define PAX_BYTES_MAX 64 /* "19 size=8589934592\n" and longer sizes */

/* POSIX.1-1988 ustar. */
struct ustar {
    char name[NAME_BYTES];
    char mode[8], uid[8], gid[8];
    char size[12], mtime[12];
    char checksum[8];
    char type;
    char linkname[100];
    char magic[6], version[2];
    char uname[32], gname[32];
    char devmajor[8], devminor[8];
    char prefix[155];
    char rest[12];
};
_Static_assert(sizeof(struct ustar) == FM_ARCHIVE_BLOCK, "a tar header is one block");

/* A position in one file. */
struct walk {
    const struct fm_file *file;
    bool prefix, whole; /* prefix: the file may be truncated; whole: the end was found */
    uint64_t at;        /* offset of the next byte to read, at most the size of the file: it moves
                           only over bytes that were read or are known to exist */
    struct fm_archive_member *member;
    size_t members, capacity, limit;
};

uint64_t fm_archive_padded(uint64_t size)
{
    assert(size <= FM_ARCHIVE_SIZE_MAX);
    return (size + FM_ARCHIVE_BLOCK - 1) / FM_ARCHIVE_BLOCK * FM_ARCHIVE_BLOCK;
}

uint64_t fm_archive_header_bytes(uint64_t size)
{
    return size > FM_ARCHIVE_PLAIN_MAX ? FM_ARCHIVE_HEADER_MAX : FM_ARCHIVE_BLOCK;
}

static bool character_ok(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
}

/* True for a valid component of a path. */
static bool component_ok(const char *part, size_t len)
{
    if (len == 0 || (len == 1 && part[0] == '.') || (len == 2 && memcmp(part, "..", 2) == 0))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!character_ok(part[i]))
            return false;
    return true;
}

bool fm_archive_name_ok(const char *name)
{
    if (strlen(name) > NAME_BYTES)
        return false;
    for (;;) {
        size_t len = strcspn(name, "/");
        if (!component_ok(name, len))
            return false;
        if (!name[len])
            return true;
        name += len + 1;
    }
}

static bool all_zero(const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

/* Parse octal digits from the first byte on, then spaces or NULs; `full`: digits may fill the
 * field. */
static bool parse_octal(uint64_t *value, const char *field, size_t width, bool full)
{
    assert(width <= 21); /* three bits a digit */
    size_t i = 0;
    *value = 0;
    for (; i < width && field[i] >= '0' && field[i] <= '7'; i++)
        *value = *value * 8 + (uint64_t)(field[i] - '0');
    if (i == 0 || (i == width && !full))
        return false;
    for (; i < width; i++)
        if (field[i] != ' ' && field[i] != '\0')
            return false;
    return true;
}

/* True if the checksum is right: the sum of all bytes, counting those of the checksum itself as
 * spaces; stored as six digits, NUL, space. */
static bool checksum_ok(const struct ustar *h)
{
    const unsigned char *bytes = (const unsigned char *)h;
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < sizeof *h; i++)
        if (i < offsetof(struct ustar, checksum) || i >= offsetof(struct ustar, type))
            sum += bytes[i];
    char expected[9];
    snprintf(expected, sizeof expected, "%06o%c ", sum & 0777777u, 0);
    return memcmp(h->checksum, expected, sizeof h->checksum) == 0;
}

static int check_number(const char *field, size_t width, const char *what, uint64_t only,
                        struct fm_err *err)
{
    uint64_t value;
    if (!parse_octal(&value, field, width, false))
        return fm_fail(err, FM_EFORMAT, "%s is not an octal number", what);
    if (value != only)
        return fm_fail(err, FM_EFORMAT, "%s is %" PRIo64 " where only %" PRIo64 " is accepted",
                       what, value, only);
    return FM_OK;
}

static int check_empty(const char *field, size_t width, const char *what, struct fm_err *err)
{
    if (!all_zero(field, width))
        return fm_fail(err, FM_EFORMAT, "%s is not empty", what);
    return FM_OK;
}

static int check_name(char name[NAME_BYTES + 1], const struct ustar *h, struct fm_err *err)
{
    memcpy(name, h->name, NAME_BYTES);
    name[NAME_BYTES] = '\0';
    size_t len = strlen(name);
    if (!all_zero(name + len, NAME_BYTES - len))
        return fm_fail(err, FM_EFORMAT, "the name has bytes after its end");
    if (!fm_archive_name_ok(name))
        return fm_fail(err, FM_EFORMAT,
                       "the name '%s' is not accepted (letters, digits, '.', '_', '-' and single "
                       "'/', no '..')",
                       name);
    return check_empty(h->prefix, sizeof h->prefix, "the name's prefix", err);
}

/* Check the fields that are the same in every accepted header. */
static int check_fixed(const struct ustar *h, struct fm_err *err)
{
    if (check_number(h->mode, sizeof h->mode, "the mode", 0644, err) ||
        check_number(h->uid, sizeof h->uid, "the user id", 0, err) ||
        check_number(h->gid, sizeof h->gid, "the group id", 0, err) ||
        check_number(h->mtime, sizeof h->mtime, "the time", 0, err) ||
        check_empty(h->linkname, sizeof h->linkname, "the link name", err) ||
        check_empty(h->uname, sizeof h->uname, "the user name", err) ||
        check_empty(h->gname, sizeof h->gname, "the group name", err) ||
        check_number(h->devmajor, sizeof h->devmajor, "the device number", 0, err) ||
        check_number(h->devminor, sizeof h->devminor, "the device number", 0, err))
        return err->code;
    return check_empty(h->rest, sizeof h->rest, "the end of the header", err);
}

static const char *describe_type(char type)
{
    switch (type) {
    case '\0':
        return "an old-style file";
    case '1':
        return "a hard link";
    case '2':
        return "a symbolic link";
    case '3':
    case '4':
    case '6':
        return "a device or pipe";
    case '5':
        return "a directory";
    case 'g':
        return "a global pax header";
    case 'x':
        return "a pax header";
    case 'L':
    case 'K':
        return "a GNU long name";
    case 'S':
        return "a sparse file";
    default:
        return "something unknown";
    }
}

static int parse_header(const struct ustar *h, char name[NAME_BYTES + 1], uint64_t *size,
                        struct fm_err *err)
{
    if (memcmp(h->magic, "ustar\0", 6) != 0 || memcmp(h->version, "00", 2) != 0)
        return fm_fail(err, FM_EFORMAT,
                       "is not in the ustar format; bundles and stage streams are ustar archives");
    if (!checksum_ok(h))
        return fm_fail(err, FM_EFORMAT, "the header checksum is wrong");
    if (h->type != '0' && h->type != 'x')
        return fm_fail(err, FM_EFORMAT, "is %s (type 0x%02x); only regular files are accepted",
                       describe_type(h->type), (unsigned char)h->type);
    if (check_name(name, h, err) || check_fixed(h, err))
        return err->code;
    if (!parse_octal(size, h->size, sizeof h->size, true))
        return fm_fail(err, FM_EFORMAT, "the size is not an octal number");
    return FM_OK;
}

/* Parse "LEN size=N\n": LEN counts the whole record, and N has no leading zeros, so there is one
 * valid record for each N, which can be generated and compared. */
static int parse_pax(const char *body, size_t len, uint64_t *size, struct fm_err *err)
{
    size_t digits = strspn(body, "0123456789");
    if (digits == 0 || body[digits] != ' ')
        return fm_fail(err, FM_EFORMAT, "the pax record does not begin with its length");
    const char *key = body + digits + 1;
    size_t key_len = strcspn(key, "=");
    if (key_len != 4 || memcmp(key, "size=", 5) != 0)
        return fm_fail(err, FM_EFORMAT, "the pax key '%.*s' is not accepted; only 'size' is",
                       (int)key_len, key);
    char expected[2 * PAX_BYTES_MAX];
    unsigned long long value = strtoull(key + 5, NULL, 10);
    int want = snprintf(expected, sizeof expected, "%zu size=%llu\n", len, value);
    if ((size_t)want != len || memcmp(expected, body, len) != 0)
        return fm_fail(err, FM_EFORMAT, "the pax header is not one well-formed 'size' record");
    if (value <= FM_ARCHIVE_PLAIN_MAX || value > FM_ARCHIVE_SIZE_MAX)
        return fm_fail(err, FM_EFORMAT, "a pax size of %llu (accepted: %llu to %llu)", value,
                       FM_ARCHIVE_PLAIN_MAX + 1, FM_ARCHIVE_SIZE_MAX);
    *size = value;
    return FM_OK;
}

static int read_block(struct walk *w, void *block, struct fm_err *err)
{
    if (fm_file_read(w->file, w->at, block, FM_ARCHIVE_BLOCK, err))
        return err->code;
    w->at += FM_ARCHIVE_BLOCK;
    return FM_OK;
}

static int read_pax(struct walk *w, uint64_t bytes, uint64_t *size, struct fm_err *err)
{
    char block[FM_ARCHIVE_BLOCK + 1] = ""; /* parse_pax() requires the NUL */
    if (bytes > PAX_BYTES_MAX)
        return fm_fail(err, FM_EFORMAT, "a pax header of %" PRIu64 " bytes (limit %d)", bytes,
                       PAX_BYTES_MAX);
    if (read_block(w, block, err))
        return err->code;
    if (!all_zero(block + bytes, FM_ARCHIVE_BLOCK - bytes))
        return fm_fail(err, FM_EFORMAT, "the padding of the pax header is not zero");
    return parse_pax(block, bytes, size, err);
}

/* Read the header at w->at, with its pax header if it has one; w->at moves to the data. */
static int read_header(struct walk *w, const struct ustar *first, char name[NAME_BYTES + 1],
                       uint64_t *size, struct fm_err *err)
{
    struct ustar h = *first;
    uint64_t wide = 0;
    w->at += FM_ARCHIVE_BLOCK;
    if (parse_header(&h, name, size, err))
        return err->code;
    if (h.type == 'x') {
        if (read_pax(w, *size, &wide, err) || read_block(w, &h, err) ||
            parse_header(&h, name, size, err))
            return err->code;
        if (h.type != '0')
            return fm_fail(err, FM_EFORMAT, "a pax header is followed by %s",
                           describe_type(h.type));
    }
    if (*size > FM_ARCHIVE_PLAIN_MAX && !wide)
        return fm_fail(err, FM_EFORMAT, "'%s' is %" PRIu64 " bytes and has no pax size", name,
                       *size);
    if (wide && wide != *size)
        return fm_fail(err, FM_EFORMAT,
                       "'%s' has two sizes, %" PRIu64 " and %" PRIu64 " in its pax header", name,
                       *size, wide);
    return FM_OK;
}

static int append(struct walk *w, const char *name, uint64_t size, struct fm_err *err)
{
    if (w->members == w->limit)
        return fm_fail(err, FM_EFORMAT, "more than %zu members", w->limit);
    if (FM_GROW(w->member, w->capacity, w->members + 1, "tar members", err))
        return err->code;
    char *copy = fm_strdup(name, err);
    if (!copy)
        return err->code;
    w->member[w->members++] = (struct fm_archive_member){copy, size, w->at};
    return FM_OK;
}

/* Skip data and padding. */
static int pass_data(struct walk *w, const char *name, uint64_t size, struct fm_err *err)
{
    char padding[FM_ARCHIVE_BLOCK];
    size_t pad = (size_t)(fm_archive_padded(size) - size);
    assert(w->at <= w->file->size);
    uint64_t left = w->file->size - w->at;
    if (left < size)
        return fm_fail(err, FM_EFORMAT,
                       "'%s' is %" PRIu64 " bytes, and the file ends after %" PRIu64
                       " of them: it is cut off; copy it again or recreate it",
                       name, size, left);
    if (left < size + pad)
        return fm_fail(err, FM_EFORMAT, "cut off at byte %" PRIu64 ", in the padding of '%s'",
                       w->file->size, name);
    if (pad && fm_file_read(w->file, w->at + size, padding, pad, err))
        return err->code;
    if (!all_zero(padding, pad))
        return fm_fail(err, FM_EFORMAT, "'%s': the padding after the data is not zero", name);
    w->at += size + pad;
    return FM_OK;
}

static int check_end(struct walk *w, struct fm_err *err)
{
    char block[FM_ARCHIVE_BLOCK];
    uint64_t left = w->file->size - w->at;
    if (left < FM_ARCHIVE_END_BYTES)
        return fm_fail(err, FM_EFORMAT,
                       "cut off at byte %" PRIu64 ": the second zero block is "
                       "missing",
                       w->file->size);
    if (fm_file_read(w->file, w->at + FM_ARCHIVE_BLOCK, block, sizeof block, err))
        return err->code;
    if (!all_zero(block, sizeof block))
        return fm_fail(err, FM_EFORMAT, "a single zero block at byte %" PRIu64, w->at);
    w->at += FM_ARCHIVE_END_BYTES;
    w->whole = true;
    return FM_OK;
}

int fm_archive_check_last(const struct fm_file *file, uint64_t end, struct fm_err *err)
{
    if (file->size <= end)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT, "%" PRIu64 " bytes after the end of the archive",
                   file->size - end);
}

/* Read one member; *end is set at the end of the archive. */
static int step(struct walk *w, bool *end, struct fm_err *err)
{
    char name[NAME_BYTES + 1];
    uint64_t header = w->at, size;
    struct ustar h;
    assert(w->at <= w->file->size);
    if (w->file->size - w->at < sizeof h) {
        *end = true;
        return w->prefix
                   ? FM_OK
                   : fm_fail(err, FM_EFORMAT,
                             "cut off at byte %" PRIu64 ": the zero blocks that end an archive "
                             "are missing",
                             w->file->size);
    }
    if (fm_file_read(w->file, w->at, &h, sizeof h, err))
        return err->code;
    if (all_zero((const char *)&h, sizeof h)) {
        *end = true;
        return w->prefix && w->file->size - w->at < FM_ARCHIVE_END_BYTES ? FM_OK
                                                                         : check_end(w, err);
    }
    if (w->prefix && h.type == 'x' && w->file->size - w->at < FM_ARCHIVE_HEADER_MAX) {
        *end = true;
        return FM_OK;
    }
    if (read_header(w, &h, name, &size, err))
        return fm_within(err, "tar header at byte %" PRIu64, header);
    *end = w->prefix && w->file->size - w->at < fm_archive_padded(size);
    if (*end)
        return FM_OK;
    if (append(w, name, size, err))
        return fm_within(err, "tar header at byte %" PRIu64, header);
    return pass_data(w, name, size, err);
}

int fm_archive_list(struct fm_archive_member **member, size_t *members, size_t limit,
                    const struct fm_file *file, bool prefix, uint64_t *end, struct fm_err *err)
{
    struct walk w = {.file = file, .prefix = prefix, .limit = limit};
    bool ended = false;
    int rc = FM_OK;
    while (!rc && !ended)
        rc = step(&w, &ended, err);
    if (!rc)
        rc = fm_names_distinct(w.member, w.members, sizeof *w.member, FM_EFORMAT, "the member",
                               "appears twice", err);
    if (rc) {
        fm_archive_release(w.member, w.members);
    } else {
        *member = w.member;
        *members = w.members;
        *end = w.whole ? w.at : file->size;
    }
    return rc;
}

void fm_archive_release(struct fm_archive_member *member, size_t members)
{
    for (size_t i = 0; member && i < members; i++)
        free(member[i].name);
    free(member);
}

static struct archive_entry *make_entry(const char *name, uint64_t size)
{
    struct archive_entry *entry = archive_entry_new();
    if (!entry)
        return NULL;
    archive_entry_set_pathname(entry, name);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_entry_set_mtime(entry, 0, 0);
    archive_entry_set_size(entry, (la_int64_t)size);
    return entry;
}

/* Receives the headers that libarchive writes; refuses data once `closed`. */
struct sink {
    char *header;
    size_t used;
    bool closed;
};

static la_ssize_t receive_header(struct archive *tar, void *self, const void *src, size_t size)
{
    struct sink *s = self;
    if (s->closed || size > FM_ARCHIVE_HEADER_MAX - s->used) {
        archive_set_error(tar, EIO, "only the header is wanted");
        return -1;
    }
    memcpy(s->header + s->used, src, size);
    s->used += size;
    return (la_ssize_t)size;
}

/* We write the data ourselves: the sink is closed after the header, so that libarchive cannot
 * fill the member with zeros when it is freed. */
int fm_archive_header(char header[FM_ARCHIVE_HEADER_MAX], size_t *header_bytes, const char *name,
                      uint64_t size, struct fm_err *err)
{
    assert(fm_archive_name_ok(name) && size <= FM_ARCHIVE_SIZE_MAX);
    int rc = FM_OK;
    struct sink sink = {.header = header};
    struct archive *tar = archive_write_new();
    struct archive_entry *entry = make_entry(name, size);
    if (!tar || !entry || archive_write_set_format_pax_restricted(tar) != ARCHIVE_OK ||
        archive_write_set_bytes_per_block(tar, 0) != ARCHIVE_OK ||
        archive_write_open(tar, &sink, NULL, receive_header, NULL) != ARCHIVE_OK ||
        archive_write_header(tar, entry) != ARCHIVE_OK)
        rc = fm_fail(err, FM_ENOMEM, "cannot make a tar header for '%s': %s", name,
                     tar && archive_error_string(tar) ? archive_error_string(tar) : "no memory");
    sink.closed = true;
    archive_write_free(tar);
    archive_entry_free(entry);
    assert(rc || sink.used == fm_archive_header_bytes(size));
    *header_bytes = sink.used;
    return rc;
}
