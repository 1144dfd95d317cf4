/*
 * Opening a bundle compares three descriptions of its structure:
 *
 *     tar headers   list_members, check_places   name, size and offset of each member, in order
 *     manifest      check_members                the same, and the digest of most members
 *     CHECKSUMS     check_sums                   the digest of every member, also of the manifest
 *
 * All three must agree before a member can be read.  Digests of data are checked when a member is
 * read, so that a caller that needs one member does not have to read all of them.
 */
#include "formats/bundle/bundle.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/bundle/archive.h"
#include "formats/bundle/partname.h"
#include "formats/bundle/place.h"
#include "formats/file/carried.h"
#include "formats/file/genuine.h"
#include "formats/file/spool.h"
#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/trace.h"

#define CHECKSUM_PREFIX_BYTES 34 /* 32 digits and two spaces */

static const struct {
    const char *name;
    bool prefix;
} places[FM_PLACES] = {
    [FM_PLACE_MANIFEST] = {FM_MEMBER_MANIFEST, false},
    [FM_PLACE_BUILD] = {FM_MEMBER_BUILD, false},
    [FM_PLACE_CARRIED] = {FM_MEMBER_CARRIED, true},
    [FM_PLACE_RANKING] = {FM_MEMBER_RANKING, false},
    [FM_PLACE_MASKS] = {FM_MEMBER_MASKS, false},
    [FM_PLACE_ADAPTER] = {FM_MEMBER_ADAPTER, false},
    [FM_PLACE_SEGMENTS] = {FM_MEMBER_SEGMENTS, false},
    [FM_PLACE_WEIGHTS] = {FM_MEMBER_WEIGHTS, true},
    [FM_PLACE_CHECKSUMS] = {FM_MEMBER_CHECKSUMS, false},
    [FM_PLACE_PAD] = {FM_MEMBER_PAD, true},
    [FM_PLACE_PART_SUMS] = {FM_MEMBER_PART_SUMS, true},
};

int fm_place_of(const char *name)
{
    for (int i = 0; i < FM_PLACES; i++) {
        size_t len = strlen(places[i].name);
        if (places[i].prefix ? strncmp(name, places[i].name, len) == 0 && name[len]
                             : strcmp(name, places[i].name) == 0)
            return i;
    }
    return -1;
}

bool fm_place_listed(int place)
{
    return place != FM_PLACE_MANIFEST && place != FM_PLACE_WEIGHTS && place != FM_PLACE_PAD &&
           place != FM_PLACE_CHECKSUMS;
}

bool fm_place_summed(int place)
{
    return place != FM_PLACE_PAD && place != FM_PLACE_CHECKSUMS && place != FM_PLACE_PART_SUMS;
}

/* One entry of the manifest's member list. */
struct listing {
    const char *name; /* points into the manifest's tree */
    uint64_t size, offset;
    bool digested;
    struct fm_digest digest;
};

const struct fm_member *fm_bundle_find(const struct fm_bundle *b, const char *name)
{
    return fm_names_among(b->member, b->members, sizeof *b->member, name);
}

/* Append the members of the archive at the beginning of `file`, which begins at offset `base` of
 * the bundle. */
static int list_members(struct fm_bundle *b, const struct fm_file *file, uint64_t base, bool prefix,
                        uint64_t *end, struct fm_err *err)
{
    struct fm_archive_member *found = NULL;
    size_t n = 0, room = b->members;
    if (fm_archive_list(&found, &n, FM_BUNDLE_MEMBERS_MAX - b->members, file, prefix, end, err))
        return err->code;
    if (n && FM_GROW(b->member, room, b->members + n, "bundle members", err)) {
        fm_archive_release(found, n);
        return err->code;
    }
    for (size_t i = 0; i < n; i++)
        b->member[b->members++] = (struct fm_member){
            .name = found[i].name, .size = found[i].size, .offset = base + found[i].offset};
    free(found); /* the names stay valid */
    return FM_OK;
}

/* ---- parts ---- */

/* Read "parts" of the manifest, which is absent in a single file. */
static int read_parts(struct fm_bundle *b, struct fm_err *err)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "parts"), *entry;
    int64_t n = array ? cJSON_GetArraySize(array) : 0, size = 0, least = FM_ARCHIVE_END_BYTES;
    if (!array)
        return FM_OK;
    if (!cJSON_IsArray(array) || n < 2 || n > FM_PARTS_MAX)
        return fm_fail(err, FM_EFORMAT, "key 'parts' is not an array of 2 to %d parts",
                       FM_PARTS_MAX);
    b->part = fm_alloc((size_t)n, sizeof *b->part, "the list of parts", err);
    if (!b->part)
        return err->code;
    cJSON_ArrayForEach(entry, array)
    {
        if (!cJSON_IsObject(entry) ||
            fm_json_get_int(entry, "size", least, INT64_C(1) << 43, &size, err) ||
            size % FM_ARCHIVE_BLOCK)
            return fm_fail(err, FM_EFORMAT,
                           "the size of part %d is missing, out of range or not a multiple of 512",
                           b->parts + 1);
        b->part[b->parts++] = (uint64_t)size;
    }
    return FM_OK;
}

/* Set *together if the file has all parts, one after another; false if it has only the first. */
static int place_parts(const struct fm_bundle *b, bool *together, struct fm_err *err)
{
    uint64_t all = 0;
    int number, parts;
    for (int k = 0; k < b->parts; k++) /* FM_PARTS_MAX sizes up to 2^43 fit */
        all += b->part[k];
    *together = b->file.size == all;
    if (*together)
        return FM_OK;
    if (b->file.size > b->part[0] && b->file.size < all)
        return fm_fail(err, FM_EFORMAT,
                       "has %" PRIu64 " of the %" PRIu64
                       " bytes of its %d parts: it is cut off; copy it again",
                       b->file.size, all, b->parts);
    if (b->file.size != b->part[0])
        return fm_fail(err, FM_EFORMAT,
                       "is %" PRIu64 " bytes, but its manifest says that part 1 is %" PRIu64
                       ", and all parts together %" PRIu64,
                       b->file.size, b->part[0], all);
    if (!fm_partname_parse(b->file.path, &number, &parts))
        return fm_fail(
            err, FM_EFORMAT,
            "is part 1 of %d, and the others are found by the file's name, which must end "
            "in -00001-of-%05d.fm; or give all parts concatenated",
            b->parts, b->parts);
    if (number != 1 || parts != b->parts)
        return fm_fail(
            err, FM_EFORMAT,
            "is part 1 of %d according to its manifest, but part %d of %d according to its name",
            b->parts, number, parts);
    return FM_OK;
}

/* The part number in the name of the member that ends a part; 0 for other names. */
static int number_of_name(const char *name)
{
    size_t len = strlen(FM_MEMBER_PART_SUMS);
    if (strlen(name) != len + 5 || strncmp(name, FM_MEMBER_PART_SUMS, len) != 0 ||
        strspn(name + len, "0123456789") != 5)
        return 0;
    return atoi(name + len);
}

/* Append the members of part k, counted from 0; `file` is its own file, or the part's bytes in a
 * file that has all parts. */
static int list_part(struct fm_bundle *b, const struct fm_file *file, int k, uint64_t base,
                     struct fm_err *err)
{
    assert(k > 0 && k < b->parts);
    uint64_t end = 0;
    size_t first = b->members;
    if (list_members(b, file, base, false, &end, err) || fm_archive_check_last(file, end, err))
        return err->code;
    int number = b->members > first ? number_of_name(b->member[b->members - 1].name) : 0;
    if (!number)
        return fm_fail(err, FM_EFORMAT, "is not part %d of a bundle: it does not end with %s%05d",
                       k + 1, FM_MEMBER_PART_SUMS, k + 1);
    if (number != k + 1)
        return fm_fail(err, FM_EFORMAT, "is part %d, but part %d is needed here", number, k + 1);
    if (file->size != b->part[k])
        return fm_fail(err, FM_EFORMAT,
                       "is %" PRIu64 " bytes, but the manifest in part 1 says %" PRIu64
                       ": it belongs to another bundle",
                       file->size, b->part[k]);
    return FM_OK;
}

static int open_part(struct fm_bundle *b, int k, uint64_t base, struct fm_err *err)
{
    struct fm_file file = {.fd = -1};
    char *name = fm_partname_other(b->file.path, k + 1, err);
    if (!name)
        return err->code;
    int rc = fm_file_open(&file, name, err);
    if (rc == FM_ENOENT) {
        rc = err->code = FM_EFORMAT;
        fm_within(err, "part %d of %d is missing", k + 1, b->parts);
    } else if (rc) {
        fm_within(err, "part %d of %d", k + 1, b->parts);
    } else if ((rc = list_part(b, &file, k, base, err))) {
        fm_within(err, "%s", name);
    }
    free(name);
    if (!rc)
        return fm_file_append(&b->file, &file, err);
    fm_file_close(&file);
    return rc;
}

/* Append the members of all parts after the first. */
static int list_parts(struct fm_bundle *b, struct fm_err *err)
{
    bool together = false;
    uint64_t base = b->part ? b->part[0] : 0;
    int rc = place_parts(b, &together, err);
    for (int k = 1; k < b->parts && !rc; base += b->part[k++]) {
        struct fm_file view = b->file;
        view.begin += base;
        view.size = b->part[k];
        rc = !together ? open_part(b, k, base, err) : list_part(b, &view, k, base, err);
        if (rc && together)
            fm_within(err, "part %d", k + 1);
    }
    return rc;
}

/* ---- names of the members ---- */

/* Check that member i, a pad, is shorter than FM_BUNDLE_ALIGN and zero. */
static int check_pad(const struct fm_bundle *b, size_t i, struct fm_err *err)
{
    char bytes[FM_BUNDLE_ALIGN];
    const struct fm_member *m = &b->member[i];
    if (m->size >= FM_BUNDLE_ALIGN)
        return fm_fail(err, FM_EFORMAT, "pad '%s' is %" PRIu64 " bytes (limit %d)", m->name,
                       m->size, FM_BUNDLE_ALIGN - 1);
    if (fm_file_read(&b->file, m->offset, bytes, (size_t)m->size, err))
        return err->code;
    for (size_t k = 0; k < m->size; k++)
        if (bytes[k])
            return fm_fail(err, FM_EFORMAT, "pad '%s' is not zero at byte %zu", m->name, k);
    return FM_OK;
}

/* Refuse a file that the packer would not have carried, because exports would contain it. */
static int check_carried(const struct fm_member *m, const struct fm_member *before,
                         struct fm_carried_sum *sum, struct fm_err *err)
{
    if (fm_carried_add(sum, m->name + strlen(FM_MEMBER_CARRIED), m->size, err)) {
        err->code = FM_EFORMAT;
        return fm_within(err, "member '%s'", m->name);
    }
    assert(sum->files <= 1 || before); /* the file that was added before */
    if (sum->files > 1 && strcmp(m->name, before->name) <= 0)
        return fm_fail(err, FM_EFORMAT, "member '%s' comes after '%s': they are not in order",
                       m->name, before->name);
    return FM_OK;
}

/* Check that names are known and in order, and the bytes of pads among the first `whole` members.
 */
static int check_places(const struct fm_bundle *b, size_t whole, struct fm_err *err)
{
    struct fm_carried_sum carried = {0};
    const struct fm_member *before = NULL;
    int last = -1, part = 1;
    for (size_t i = 0; i < b->members; i++) {
        int place = fm_place_of(b->member[i].name);
        if (place < 0)
            return fm_fail(err, FM_EFORMAT, "member '%s' is unknown", b->member[i].name);
        if (place == FM_PLACE_PAD) {
            if (i < whole && check_pad(b, i, err))
                return err->code;
            continue;
        }
        if (place == FM_PLACE_CHECKSUMS && b->parts) /* each part ends with its own checksums */
            continue;
        if (place == FM_PLACE_PART_SUMS) {
            if (++part > b->parts || number_of_name(b->member[i].name) != part)
                return fm_fail(err, FM_EFORMAT, "member '%s' does not belong here",
                               b->member[i].name);
            continue;
        }
        if (place < last)
            return fm_fail(err, FM_EFORMAT, "member '%s' comes after '%s...'", b->member[i].name,
                           places[last].name);
        if (place == FM_PLACE_CARRIED && check_carried(&b->member[i], before, &carried, err))
            return err->code;
        before = &b->member[i];
        last = place;
    }
    return FM_OK;
}

static int check_ends(const struct fm_bundle *b, bool prefix, struct fm_err *err)
{
    if (b->members == 0)
        return fm_fail(err, FM_EFORMAT,
                       prefix ? "too short to hold a manifest" : "an empty archive");
    const struct fm_member *at = fm_bundle_find(b, FM_MEMBER_MANIFEST);
    if (at && at != b->member)
        return fm_fail(err, FM_EFORMAT, "%s is member %d of the stream; it must be the first",
                       FM_MEMBER_MANIFEST, (int)(at - b->member) + 1);
    int number = number_of_name(b->member[b->members - 1].name);
    if (!at && number)
        return fm_fail(err, FM_EFORMAT,
                       "is part %d of a bundle; give the first part, whose name ends in "
                       "-00001-of-00003.fm or the like",
                       number);
    if (!at)
        return fm_fail(err, FM_EFORMAT,
                       "the first member is '%s', not %s: not a stream of the fm suite",
                       b->member[0].name, FM_MEMBER_MANIFEST);
    const char *last = b->member[b->members - 1].name;
    if (!prefix && strcmp(last, FM_MEMBER_CHECKSUMS) != 0)
        return fm_fail(err, FM_EFORMAT, "ends with '%s' and not with %s: the stream was cut off",
                       last, FM_MEMBER_CHECKSUMS);
    return FM_OK;
}

int fm_bundle_check_schema(const cJSON *json, struct fm_err *err)
{
    int64_t value = 0;
    if (fm_json_get_int(json, "schema", INT32_MIN, INT32_MAX, &value, err))
        return err->code;
    if (value == FM_BUNDLE_SCHEMA)
        return FM_OK;
    return fm_fail(err, FM_EFORMAT,
                   "schema is %" PRId64 ", and this program reads schema %d only; use the version "
                   "of the fm suite that wrote it",
                   value, FM_BUNDLE_SCHEMA);
}

const char *const fm_bundle_stages[] = {"rank", "train", "recover", "pack", NULL};

static int check_title(const cJSON *manifest, struct fm_err *err)
{
    const char *suite, *stage;
    if (!cJSON_IsObject(manifest))
        return fm_fail(err, FM_EFORMAT, "is not an object");
    if (fm_bundle_check_schema(manifest, err) ||
        fm_json_get_string(manifest, "suite", &suite, err) ||
        fm_json_get_string(manifest, "stage", &stage, err))
        return err->code;
    if (strcmp(suite, "fm") != 0)
        return fm_fail(err, FM_EFORMAT, "suite is '%s', not 'fm'", suite);
    return fm_names_index(fm_bundle_stages, stage) >= 0
               ? FM_OK
               : fm_fail(err, FM_EFORMAT, "stage '%s' is unknown", stage);
}

static int read_digest(struct listing *l, const cJSON *entry, struct fm_err *err)
{
    bool wanted = fm_place_listed(fm_place_of(l->name));
    const char *hex = NULL;
    l->digested = cJSON_GetObjectItemCaseSensitive(entry, "digest") != NULL;
    if (l->digested && !wanted)
        return fm_fail(err, FM_EFORMAT, "'%s' has a digest, which only %s may state", l->name,
                       FM_MEMBER_CHECKSUMS);
    if (!wanted)
        return FM_OK;
    if (!l->digested)
        return fm_fail(err, FM_EFORMAT, "'%s' has no digest", l->name);
    if (fm_json_get_string(entry, "digest", &hex, err))
        return fm_within(err, "'%s'", l->name);
    if (!fm_digest_parse(&l->digest, hex, strlen(hex)))
        return fm_fail(err, FM_EFORMAT,
                       "the digest of '%s' is not 32 lower-case hexadecimal digits ('%.40s')",
                       l->name, hex);
    return FM_OK;
}

static int read_listing(struct listing *l, const cJSON *entry, struct fm_err *err)
{
    if (!cJSON_IsObject(entry))
        return fm_fail(err, FM_EFORMAT, "is not an object");
    if (fm_json_get_string(entry, "name", &l->name, err) ||
        fm_json_get_uint(entry, "size", 0, &l->size, err) ||
        fm_json_get_uint(entry, "offset", 0, &l->offset, err))
        return err->code;
    return read_digest(l, entry, err);
}

static int fail_names(const struct fm_bundle *b, const struct listing *list, size_t n, size_t i,
                      struct fm_err *err)
{
    if (i < n && !fm_bundle_find(b, list[i].name))
        return fm_fail(err, FM_EFORMAT, "the manifest lists '%s', which the stream does not have",
                       list[i].name);
    for (size_t k = 0; k < n && i < b->members; k++)
        if (strcmp(list[k].name, b->member[i].name) == 0)
            return fm_fail(err, FM_EFORMAT, "found member '%s' where the manifest has '%s'",
                           b->member[i].name, i < n ? list[i].name : "nothing");
    return fm_fail(err, FM_EFORMAT, "member '%s' is not in the manifest",
                   i < b->members ? b->member[i].name : "?");
}

static int fail_offset(const struct fm_bundle *b, const struct listing *l, uint64_t real,
                       struct fm_err *err)
{
    if (l->offset >= b->file.size || l->size > b->file.size - l->offset)
        return fm_fail(err, FM_EFORMAT,
                       "the manifest's offset of '%s' (%" PRIu64 ") is outside the stream (%" PRIu64
                       " bytes)",
                       l->name, l->offset, b->file.size);
    for (size_t i = 0; i < b->members; i++) {
        const struct fm_member *m = &b->member[i];
        if (strcmp(m->name, l->name) != 0 && l->offset >= m->offset &&
            l->offset - m->offset < m->size)
            return fm_fail(err, FM_EFORMAT,
                           "the manifest's offset of '%s' (%" PRIu64 ") is inside member '%s'",
                           l->name, l->offset, m->name);
    }
    return fm_fail(err, FM_EFORMAT,
                   "'%s' begins at byte %" PRIu64 ", but the manifest says %" PRIu64, l->name, real,
                   l->offset);
}

static int match(struct fm_bundle *b, const struct listing *list, size_t n, bool prefix,
                 struct fm_err *err)
{
    size_t both = n < b->members ? n : b->members;
    for (size_t i = 0; i < both; i++) {
        struct fm_member *m = &b->member[i];
        if (strcmp(m->name, list[i].name) != 0)
            return fail_names(b, list, n, i, err);
        if (m->size != list[i].size)
            return fm_fail(err, FM_EFORMAT,
                           "'%s' is %" PRIu64 " bytes, but the manifest says %" PRIu64, m->name,
                           m->size, list[i].size);
        if (m->offset != list[i].offset)
            return fail_offset(b, &list[i], m->offset, err);
        m->listed = m->known = list[i].digested;
        m->digest = list[i].digest;
    }
    if (b->members > n || (b->members < n && !prefix))
        return fail_names(b, list, n, both, err);
    return FM_OK;
}

static int check_members(struct fm_bundle *b, bool prefix, struct fm_err *err)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "members"), *entry;
    if (!cJSON_IsArray(array))
        return fm_fail(err, FM_EFORMAT, "key 'members' is missing or not an array");
    size_t n = 0, max = (size_t)cJSON_GetArraySize(array);
    struct listing *list = fm_alloc(max, sizeof *list, "the member list", err);
    if (!list)
        return err->code;
    int rc = FM_OK;
    for (entry = array->child; entry && !rc; entry = entry->next, n++)
        if ((rc = read_listing(&list[n], entry, err)))
            fm_within(err, "member %zu", n + 1);
    if (!rc)
        rc = match(b, list, n, prefix, err);
    free(list);
    return rc;
}

static int read_text(const struct fm_bundle *b, const struct fm_member *m, uint64_t limit,
                     char **text, struct fm_err *err)
{
    *text = NULL;
    if (m->size > limit)
        return fm_fail(err, FM_EFORMAT, "'%s' is %" PRIu64 " bytes (limit %" PRIu64 ")", m->name,
                       m->size, limit);
    *text = malloc((size_t)m->size + 1);
    if (!*text)
        return fm_fail(err, FM_ENOMEM, "no memory for '%s' (%" PRIu64 " bytes)", m->name, m->size);
    (*text)[m->size] = '\0';
    int rc = fm_file_read(&b->file, m->offset, *text, (size_t)m->size, err);
    if (rc) {
        free(*text);
        *text = NULL;
    }
    return rc;
}

/* Read one line: digest, two spaces, the name, newline. */
static int read_sum(struct fm_member *m, const char **at, const char *end, struct fm_err *err)
{
    struct fm_digest digest;
    const char *line = *at;
    size_t name = strlen(m->name);
    if (line == end)
        return fm_fail(err, FM_EFORMAT, "has no line for '%s'", m->name);
    if ((size_t)(end - line) < CHECKSUM_PREFIX_BYTES + 1 ||
        !fm_digest_parse(&digest, line, FM_DIGEST_HEX - 1) || memcmp(line + 32, "  ", 2) != 0)
        return fm_fail(err, FM_EFORMAT,
                       "the line for '%s' does not begin with 32 hexadecimal digits and two spaces",
                       m->name);
    line += CHECKSUM_PREFIX_BYTES;
    if ((size_t)(end - line) < name + 1 || memcmp(line, m->name, name) != 0 || line[name] != '\n')
        return fm_fail(err, FM_EFORMAT, "another name where '%s' was expected", m->name);
    if (m->listed && !fm_digest_equal(&digest, &m->digest))
        return fm_fail(err, FM_EFORMAT, "its digest of '%s' differs from the manifest's", m->name);
    m->digest = digest;
    m->known = true;
    *at = line + name + 1;
    return FM_OK;
}

/* Check the checksums in member `sums` for the members from `first` up to it. */
static int check_lines(struct fm_bundle *b, size_t first, size_t sums, struct fm_err *err)
{
    assert(first <= sums && sums < b->members);
    struct fm_member *m = &b->member[sums];
    char *text;
    uint64_t limit = (uint64_t)b->members * (CHECKSUM_PREFIX_BYTES + 101);
    if (read_text(b, m, limit, &text, err))
        return err->code;
    const char *at = text, *end = text + m->size;
    int rc = FM_OK;
    struct fm_digest digest = fm_digest_of(text, (size_t)m->size);
    if (m->listed && !fm_digest_equal(&digest, &m->digest))
        rc = fm_fail(err, FM_EFORMAT,
                     "'%s' does not match the manifest in part 1: the part belongs to another "
                     "bundle, or is damaged",
                     m->name);
    bool other = rc != FM_OK;
    for (size_t i = first; i < sums && !rc; i++)
        if (fm_place_summed(fm_place_of(b->member[i].name)))
            rc = read_sum(&b->member[i], &at, end, err);
    if (!rc && at != end)
        rc = fm_fail(err, FM_EFORMAT, "has more lines than the stream has members");
    if (rc && !other)
        fm_within(err, "%s", m->name);
    if (rc && b->file.mores && m->offset >= b->file.own)
        fm_within(err, "%s", fm_file_path_at(&b->file, m->offset));
    free(text);
    return rc;
}

static int check_sums(struct fm_bundle *b, const char *manifest, struct fm_err *err)
{
    int rc = FM_OK;
    size_t first = 0;
    for (size_t i = 0; i < b->members && !rc; i++) {
        int place = fm_place_of(b->member[i].name);
        if (place != FM_PLACE_CHECKSUMS && place != FM_PLACE_PART_SUMS)
            continue;
        rc = check_lines(b, first, i, err);
        first = i + 1;
        if (rc || place != FM_PLACE_CHECKSUMS)
            continue;
        struct fm_digest digest = fm_digest_of(manifest, (size_t)b->member[0].size);
        if (!fm_digest_equal(&digest, &b->member[0].digest))
            rc = fm_fail(err, FM_EFORMAT, "%s does not match its digest in %s", FM_MEMBER_MANIFEST,
                         FM_MEMBER_CHECKSUMS);
    }
    return rc; /* a truncated stream has no CHECKSUMS */
}

/* Check that no name is in two parts. */
static int check_distinct(const struct fm_bundle *b, struct fm_err *err)
{
    return fm_names_distinct(b->member, b->members, sizeof *b->member, FM_EFORMAT, "the member",
                             "is in two parts", err);
}

/* Read the manifest and the parts that it lists; the first archive ends at `end`. */
static int check_manifest(struct fm_bundle *b, char **text, bool prefix, uint64_t end,
                          struct fm_err *err)
{
    if (read_text(b, &b->member[0], FM_BUNDLE_MANIFEST_BYTES_MAX, text, err))
        return err->code;
    if (fm_json_tree(&b->manifest, *text, (size_t)b->member[0].size, err) ||
        check_title(b->manifest, err) || read_parts(b, err))
        return fm_within(err, "%s", FM_MEMBER_MANIFEST);
    if (!b->parts && fm_archive_check_last(&b->file, end, err))
        return err->code;
    if (b->parts && end != b->part[0] && (!prefix || end < b->file.size))
        return fm_fail(err, FM_EFORMAT,
                       "part 1 ends at byte %" PRIu64 ", but the manifest says %" PRIu64, end,
                       b->part[0]);
    if (b->parts && !prefix && (list_parts(b, err) || check_distinct(b, err)))
        return err->code;
    return check_members(b, prefix, err) ? fm_within(err, "%s", FM_MEMBER_MANIFEST) : FM_OK;
}

/* True if each member begins after the one before it, with room for its header. */
static bool is_ascending(const struct fm_bundle *b)
{
    uint64_t at = 0;
    for (size_t i = 0; i < b->members; i++) {
        const struct fm_member *m = &b->member[i];
        if (m->offset % FM_ARCHIVE_BLOCK || m->offset < at + FM_ARCHIVE_BLOCK)
            return false;
        at = m->offset + fm_archive_padded(m->size);
    }
    return true;
}

bool fm_bundle_sane(const struct fm_bundle *b)
{
    for (size_t i = 0; i < b->members; i++) {
        const struct fm_member *m = &b->member[i];
        if (m->offset > b->file.size || m->size > b->file.size - m->offset ||
            (m->listed && !m->known))
            return false;
    }
    return b->members > 0 && is_ascending(b) && cJSON_IsObject(b->manifest) &&
           strcmp(b->member[0].name, FM_MEMBER_MANIFEST) == 0;
}

/* Check the structure of a bundle; takes ownership of b->file. */
static int check_all(struct fm_bundle *b, bool prefix, struct fm_err *err)
{
    char *text = NULL;
    uint64_t end = 0;
    int rc = b->file.size ? fm_genuine_file(&b->file, false, err)
                          : fm_fail(err, FM_EFORMAT,
                                    "is empty; give a file that another tool of the suite wrote");
    if (rc || list_members(b, &b->file, 0, prefix, &end, err) || check_ends(b, prefix, err) ||
        check_manifest(b, &text, prefix, end, err) || check_places(b, b->members, err) ||
        check_sums(b, text, err))
        rc = fm_within(err, "%s", b->file.path);
    free(text);
    if (rc)
        fm_bundle_close(b);
    assert(!FM_DEBUGGING || rc || fm_bundle_sane(b));
    return rc;
}

/* Open the input, with a special error for a directory: users pass the checkpoint, or an export, by
 * mistake. */
static int open_input(struct fm_bundle *b, const char *path, struct fm_err *err)
{
    struct stat st;
    *b = (struct fm_bundle){0};
    if (strcmp(path, "-") != 0 && stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return fm_fail(
            err, FM_EFORMAT,
            "'%s' is a directory; a bundle or stage stream is one file, which fm-pack or "
            "another tool of the suite wrote",
            path);
    int rc = fm_spool_open(&b->file, path, err);
    struct fm_err listing = {0};
    char *first = rc == FM_ENOENT ? fm_partname_find(path, &listing) : NULL;
    if (rc == FM_ENOENT && !first) {
        *err = listing;
        rc = listing.code;
    }
    if (first && strcmp(first, path) != 0)
        rc = fm_fail(err, rc, "'%s' does not exist, but its parts do; give the first of them, '%s'",
                     path, first);
    free(first);
    return rc;
}

int fm_bundle_open(struct fm_bundle *b, const char *path, struct fm_err *err)
{
    return open_input(b, path, err) ? err->code : check_all(b, false, err);
}

int fm_bundle_open_prefix(struct fm_bundle *b, const char *path, struct fm_err *err)
{
    return open_input(b, path, err) ? err->code : check_all(b, true, err);
}

int fm_bundle_open_file(struct fm_bundle *b, const struct fm_file *file, bool prefix,
                        struct fm_err *err)
{
    *b = (struct fm_bundle){0};
    return fm_file_share(&b->file, file, err) ? err->code : check_all(b, prefix, err);
}

int fm_bundle_expect(struct fm_bundle *b, struct fm_err *err)
{
    assert(!FM_DEBUGGING || fm_bundle_sane(b));
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(b->manifest, "members"), *entry;
    size_t n = (size_t)cJSON_GetArraySize(array), at = 0, whole = b->members;
    if (n > FM_BUNDLE_MEMBERS_MAX)
        return fm_fail(err, FM_EFORMAT, "%s: more than %d members", b->file.path,
                       FM_BUNDLE_MEMBERS_MAX);
    if (n <= b->members)
        return FM_OK;
    size_t room = b->members;
    if (FM_GROW(b->member, room, n, "bundle members", err))
        return err->code;
    cJSON_ArrayForEach(entry, array)
    {
        struct listing l = {0};
        if (at++ < b->members)
            continue;
        if (read_listing(&l, entry, err))
            return fm_within(err, "%s: member %zu", FM_MEMBER_MANIFEST, at);
        if (!fm_archive_name_ok(l.name))
            return fm_fail(err, FM_EFORMAT, "%s: the name '%s' is not accepted", FM_MEMBER_MANIFEST,
                           l.name);
        char *name = fm_strdup(l.name, err);
        if (!name)
            return err->code;
        b->member[b->members++] =
            (struct fm_member){name, l.size, l.offset, l.digested, l.digested, l.digest};
    }
    if (!is_ascending(b))
        return fm_fail(err, FM_EFORMAT, "%s: its offsets are not in ascending order",
                       FM_MEMBER_MANIFEST);
    return check_places(b, whole, err) || check_distinct(b, err) ? err->code : FM_OK;
}

void fm_bundle_close(struct fm_bundle *b)
{
    for (size_t i = 0; i < b->members; i++)
        free(b->member[i].name);
    free(b->member);
    free(b->part);
    cJSON_Delete(b->manifest);
    fm_file_close(&b->file);
    *b = (struct fm_bundle){0};
}

int fm_bundle_read(const struct fm_bundle *b, const struct fm_member *m, void **data, size_t *size,
                   struct fm_err *err)
{
    char *bytes;
    if (read_text(b, m, FM_ARCHIVE_SIZE_MAX, &bytes, err))
        return fm_within(err, "%s", b->file.path);
    struct fm_digest digest = fm_digest_of(bytes, (size_t)m->size);
    if (m->known && !fm_digest_equal(&digest, &m->digest)) {
        free(bytes);
        return fm_fail(err, FM_EFORMAT, "%s: the bytes of '%s' do not match their digest",
                       b->file.path, m->name);
    }
    *data = bytes;
    *size = (size_t)m->size;
    return FM_OK;
}
