/* Hostile tars must be refused with a sentence that gives the reason. Most are a good tar with a
 * few bytes changed. */
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>

#include "formats/bundle/archive.h"
#include "tests/unit/test.h"

#define TAR_BYTES_MAX (1 << 20)

struct tar {
    char *bytes;
    size_t size;
};

static void add_bytes(struct tar *t, const void *src, size_t size)
{
    assert_true(size <= TAR_BYTES_MAX - t->size);
    memcpy(t->bytes + t->size, src, size);
    t->size += size;
}

static void add_zeros(struct tar *t, size_t size)
{
    assert_true(size <= TAR_BYTES_MAX - t->size);
    memset(t->bytes + t->size, 0, size);
    t->size += size;
}

static void add_member(struct tar *t, const char *name, const char *data)
{
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t size;
    struct fm_err err = {0};
    assert_ok(fm_archive_header(header, &size, name, strlen(data), &err));
    add_bytes(t, header, size);
    add_bytes(t, data, strlen(data));
    add_zeros(t, (size_t)(fm_archive_padded(strlen(data)) - strlen(data)));
}

/* one.txt at 0, dir/two at 1024, end blocks at 2048. */
static struct tar good_tar(void)
{
    struct tar t = {malloc(TAR_BYTES_MAX), 0};
    assert_non_null(t.bytes);
    add_member(&t, "one.txt", "hello");
    add_member(&t, "dir/two", "world!");
    add_zeros(&t, FM_ARCHIVE_END_BYTES);
    return t;
}

static void fix_checksum(struct tar *t, size_t header)
{
    char *h = t->bytes + header;
    unsigned sum = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)h[i];
    snprintf(h + 148, 8, "%06o", sum);
    h[155] = ' ';
}

static FILE *spill(const struct tar *t, struct fm_file *file)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(t->bytes, 1, t->size, f), t->size);
    assert_int_equal(fflush(f), 0);
    *file = (struct fm_file){.fd = fileno(f), .size = t->size, .path = (char *)"test.tar"};
    return f;
}

/* An accepted archive means the same to other readers: libarchive lists the same members, at the
 * same offsets, and no others. */
static void expect_agreement(const struct fm_file *file, const struct fm_archive_member *member,
                             size_t members)
{
    struct archive *tar = archive_read_new();
    struct archive_entry *entry;
    assert_non_null(tar);
    assert_int_equal(lseek(file->fd, 0, SEEK_SET), 0);
    assert_int_equal(archive_read_support_format_tar(tar), ARCHIVE_OK);
    assert_int_equal(archive_read_open_fd(tar, file->fd, 4096), ARCHIVE_OK);
    for (size_t i = 0; i < members; i++) {
        assert_int_equal(archive_read_next_header(tar, &entry), ARCHIVE_OK);
        assert_string_equal(archive_entry_pathname(entry), member[i].name);
        assert_int_equal(archive_entry_size(entry), member[i].size);
        assert_int_equal(archive_entry_filetype(entry), AE_IFREG);
        assert_null(archive_entry_hardlink(entry));
        assert_null(archive_entry_symlink(entry));
        assert_int_equal((uint64_t)archive_read_header_position(tar) +
                             fm_archive_header_bytes(member[i].size),
                         member[i].offset);
    }
    assert_int_equal(archive_read_next_header(tar, &entry), ARCHIVE_EOF);
    archive_read_free(tar);
}

/* Read a file that one archive fills completely. */
static int list_file(struct fm_archive_member **member, size_t *members, size_t limit,
                     const struct fm_file *file, bool prefix, struct fm_err *err)
{
    uint64_t end;
    *member = NULL;
    *members = 0;
    int rc = fm_archive_list(member, members, limit, file, prefix, &end, err);
    if (rc || !(rc = fm_archive_check_last(file, end, err)))
        return rc;
    fm_archive_release(*member, *members);
    return rc;
}

static int list(const struct tar *t, bool prefix, size_t limit, struct fm_archive_member **member,
                size_t *members, struct fm_err *err)
{
    struct fm_file file;
    FILE *f = spill(t, &file);
    int code = list_file(member, members, limit, &file, prefix, err);
    if (!code && !prefix)
        expect_agreement(&file, *member, *members);
    fclose(f);
    return code;
}

static void expect_refusal(struct tar *t, const char *why)
{
    struct fm_archive_member *member;
    size_t members;
    struct fm_err err = {0};
    assert_fails(list(t, false, 10, &member, &members, &err), FM_EFORMAT, why);
    free(t->bytes);
}

/* Expect a refusal of the good tar with these bytes in a header, whose checksum is corrected. */
static void expect_edit_refused(size_t header, size_t at, const void *bytes, size_t size,
                                const char *why)
{
    struct tar t = good_tar();
    if (at == 0)
        memset(t.bytes + header, 0, 100);
    memcpy(t.bytes + header + at, bytes, size);
    fix_checksum(&t, header);
    expect_refusal(&t, why);
}

TEST(a_good_tar_is_listed)
{
    struct tar t = good_tar();
    struct fm_archive_member *member;
    size_t members;
    assert_ok(list(&t, false, 2, &member, &members, &err));
    assert_int_equal(members, 2);
    assert_string_equal(member[0].name, "one.txt");
    assert_int_equal(member[0].size, 5);
    assert_int_equal(member[0].offset, 512);
    assert_string_equal(member[1].name, "dir/two");
    assert_int_equal(member[1].offset, 1536);
    fm_archive_release(member, members);
    free(t.bytes);
}

TEST(types_other_than_files_are_refused)
{
    expect_edit_refused(0, 156, "1", 1, "hard link");
    expect_edit_refused(0, 156, "2", 1, "symbolic link");
    expect_edit_refused(0, 156, "3", 1, "device");
    expect_edit_refused(0, 156, "5", 1, "directory");
    expect_edit_refused(0, 156, "6", 1, "pipe");
    expect_edit_refused(1024, 156, "g", 1, "global pax");
    expect_edit_refused(0, 156, "L", 1, "long name");
    expect_edit_refused(0, 156, "K", 1, "long name");
    expect_edit_refused(0, 156, "S", 1, "sparse");
    expect_edit_refused(0, 156, "Z", 1, "unknown");
    expect_edit_refused(0, 156, "7", 1, "unknown");
    expect_edit_refused(0, 156, "\0", 1, "old-style");
}

TEST(unsafe_names_are_refused)
{
    static const char *const names[] = {"../evil",  "/etc/passwd", "a//b", "a/../b", "a/",
                                        "./a",      "a/.",         "..",   "a b",    "a\nb",
                                        "a\x1b[2J", "caf\xc3\xa9", "a\\b", "~",      "*"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        assert_false(fm_archive_name_ok(names[i]));
        expect_edit_refused(1024, 0, names[i], strlen(names[i]) + 1, "not accepted");
    }
    expect_edit_refused(1024, 0, "\0b", 2, "after its end");
    expect_edit_refused(1024, 0, "a\0b", 4, "after its end");
    expect_edit_refused(1024, 0, "", 1, "not accepted");
    expect_edit_refused(1024, 345, "evil", 4, "prefix");
    assert_true(fm_archive_name_ok("..a/b..c/.pad"));
    char name[102];
    memset(name, 'n', 101);
    name[101] = 0;
    assert_false(fm_archive_name_ok(name));
    name[100] = 0;
    assert_true(fm_archive_name_ok(name));
}

TEST(numbers_that_are_not_plain_octal_are_refused)
{
    expect_edit_refused(0, 124, "\x80\0\0\0\0\0\0\0\0\0\0\5", 12, "size is not an octal");
    expect_edit_refused(0, 124, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfb", 12,
                        "size is not an octal");
    expect_edit_refused(0, 124, "          5 ", 12, "size is not an octal");
    expect_edit_refused(0, 124, "0000000005x ", 12, "size is not an octal");
    expect_edit_refused(0, 124, "00000000009 ", 12, "size is not an octal");
    expect_edit_refused(0, 124, "-0000000005 ", 12, "size is not an octal");
    expect_edit_refused(0, 100, "00000644", 8, "mode is not an octal");
    expect_edit_refused(0, 108, "\0\0\0\0\0\0\0\0", 8, "user id is not an octal");
}

TEST(header_fields_with_other_values_are_refused)
{
    expect_edit_refused(0, 100, "006755 ", 7, "mode is 6755");
    expect_edit_refused(0, 100, "000600 ", 7, "mode is 600");
    expect_edit_refused(0, 108, "001750 ", 7, "user id is 1750");
    expect_edit_refused(0, 116, "001750 ", 7, "group id is 1750");
    expect_edit_refused(0, 136, "00000000001 ", 12, "time is 1");
    expect_edit_refused(0, 157, "x", 1, "link name");
    expect_edit_refused(0, 265, "root", 4, "user name");
    expect_edit_refused(0, 297, "root", 4, "group name");
    expect_edit_refused(0, 329, "000001 ", 7, "device");
    expect_edit_refused(0, 337, "000001 ", 7, "device");
    expect_edit_refused(0, 511, "x", 1, "end of the header");
    expect_edit_refused(0, 257, "ustar  ", 8, "ustar");
    expect_edit_refused(0, 257, "\0\0\0\0\0\0\0", 8, "ustar");
}

TEST(a_wrong_checksum_is_refused)
{
    struct tar t = good_tar();
    t.bytes[150] ^= 1;
    expect_refusal(&t, "checksum");
    t = good_tar();
    t.bytes[0] ^= 1;
    expect_refusal(&t, "checksum");
    t = good_tar();
    t.bytes[154] = ' '; /* the NUL between digits and space */
    expect_refusal(&t, "checksum");
}

TEST(wrong_sizes_are_refused)
{
    expect_edit_refused(1024, 124, "00000004000 ", 12, "the file ends");
    expect_edit_refused(1024, 124, "77777777777 ", 12, "the file ends");
    expect_edit_refused(1024, 124, "777777777777", 12, "no pax size");
    expect_edit_refused(0, 124, "00000000004 ", 12, "padding");
    /* One block more: the first zero block becomes data, and only the second is left. */
    expect_edit_refused(1024, 124, "00000001001 ", 12, "second zero block");
}

TEST(duplicate_names_are_refused)
{
    struct tar t = good_tar();
    t.size -= FM_ARCHIVE_END_BYTES;
    add_member(&t, "one.txt", "other");
    add_zeros(&t, FM_ARCHIVE_END_BYTES);
    expect_refusal(&t, "'one.txt' appears twice");
}

TEST(wrong_ends_are_refused)
{
    struct tar t = good_tar();
    t.size -= FM_ARCHIVE_END_BYTES;
    expect_refusal(&t, "zero blocks that end");
    t = good_tar();
    t.size -= 512;
    expect_refusal(&t, "second zero block");
    t = good_tar();
    t.size -= 1;
    expect_refusal(&t, "second zero block");
    t = good_tar();
    add_zeros(&t, 1);
    expect_refusal(&t, "1 bytes after the end");
    t = good_tar();
    add_zeros(&t, 512);
    expect_refusal(&t, "512 bytes after the end");
    t = good_tar();
    add_bytes(&t, t.bytes, t.size); /* a second archive */
    expect_refusal(&t, "after the end");
    t = good_tar();
    memset(t.bytes + 1024, 0, 512); /* in the middle */
    expect_refusal(&t, "a single zero block");
    t = good_tar();
    t.size = 0;
    expect_refusal(&t, "zero blocks that end");
}

TEST(more_members_than_the_limit_are_refused)
{
    struct tar t = good_tar();
    char name[16];
    t.size = 0;
    for (int i = 0; i < 11; i++) {
        snprintf(name, sizeof name, "m%d", i);
        add_member(&t, name, "");
    }
    add_zeros(&t, FM_ARCHIVE_END_BYTES);
    expect_refusal(&t, "more than 10 members");
}

TEST(every_truncation_is_refused)
{
    struct tar t = good_tar();
    for (size_t size = 0; size < t.size; size += 31) {
        struct tar cut = good_tar();
        cut.size = size;
        expect_refusal(&cut, "");
    }
    free(t.bytes);
}

/* Flips inside the data (5 and 6 bytes) pass, because only CHECKSUMS covers it; all others are
 * refused. */
TEST(every_flip_outside_data_is_refused)
{
    struct tar t = good_tar();
    for (size_t i = 0; i < t.size; i++) {
        bool data = (i >= 512 && i < 517) || (i >= 1536 && i < 1542);
        struct fm_archive_member *member;
        size_t members;
        t.bytes[i] ^= 0x20;
        int code = list(&t, false, 10, &member, &members, &err);
        if (code != (data ? FM_OK : FM_EFORMAT))
            fail_msg("byte %zu: %d %s", i, code, err.text);
        fm_archive_release(member, members);
        t.bytes[i] ^= 0x20;
    }
    free(t.bytes);
}

/* Make a sparse file, so that 8 GiB take no disk space. */
static FILE *big_file(struct fm_file *file, uint64_t size, const char *edit, size_t edit_at)
{
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t header_bytes;
    struct fm_err err = {0};
    assert_ok(fm_archive_header(header, &header_bytes, "weights/x", size, &err));
    if (edit)
        memcpy(header + edit_at, edit, strlen(edit));
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(header, 1, header_bytes, f), header_bytes);
    assert_int_equal(fflush(f), 0);
    uint64_t end = header_bytes + fm_archive_padded(size) + FM_ARCHIVE_END_BYTES;
    assert_int_equal(ftruncate(fileno(f), (off_t)end), 0);
    *file = (struct fm_file){.fd = fileno(f), .size = end, .path = (char *)"big.tar"};
    return f;
}

TEST(members_of_8_gib_or_more_have_a_pax_size)
{
    static const uint64_t sizes[] = {FM_ARCHIVE_PLAIN_MAX, FM_ARCHIVE_PLAIN_MAX + 1,
                                     FM_ARCHIVE_SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct fm_file file;
        struct fm_archive_member *member;
        size_t members;
        FILE *f = big_file(&file, sizes[i], NULL, 0);
        assert_ok(list_file(&member, &members, 10, &file, false, &err));
        assert_int_equal(members, 1);
        assert_true(member[0].size == sizes[i]);
        assert_true(member[0].offset == fm_archive_header_bytes(sizes[i]));
        assert_true(member[0].offset == (i == 0 ? 512 : 1536));
        expect_agreement(&file, member, members);
        fm_archive_release(member, members);
        fclose(f);
    }
}

TEST(other_pax_records_are_refused)
{
    static const struct {
        const char *edit;
        size_t at;
        const char *why;
    } cases[] = {
        {"19 path", 512, "key 'path'"},
        {"19 Size", 512, "key 'Size'"},
        {"99 size", 512, "well-formed"},
        {"0", 512, "well-formed"},
        {"x9", 512, "its length"},
        {" 9", 512, "its length"},
        {"19 size=0", 512, "well-formed"},
        {"19 size=-", 512, "well-formed"},
        {"19 size=8589934593", 512, "two sizes"},
        {"x", 600, "padding of the pax"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fm_file file;
        struct fm_archive_member *member;
        size_t members;
        FILE *f = big_file(&file, FM_ARCHIVE_PLAIN_MAX + 1, cases[i].edit, cases[i].at);
        assert_fails(list_file(&member, &members, 10, &file, false, &err), FM_EFORMAT,
                     cases[i].why);
        fclose(f);
    }
}

TEST(a_small_member_may_not_have_a_pax_header)
{
    struct tar t = good_tar();
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t size;
    assert_ok(fm_archive_header(header, &size, "big", FM_ARCHIVE_PLAIN_MAX + 1, &err));
    t.size = 0;
    add_bytes(&t, header, 1024);
    add_member(&t, "one.txt", "hello");
    add_zeros(&t, FM_ARCHIVE_END_BYTES);
    memset(t.bytes + 512, 0, 512);
    memcpy(t.bytes + 512, "9 size=5\n", 9);
    memcpy(t.bytes + 124, "00000000011 ", 12);
    fix_checksum(&t, 0);
    expect_refusal(&t, "a pax size of 5");
}

TEST(two_pax_headers_in_a_row_are_refused)
{
    struct tar t = good_tar();
    char header[FM_ARCHIVE_HEADER_MAX];
    size_t size;
    assert_ok(fm_archive_header(header, &size, "big", FM_ARCHIVE_PLAIN_MAX + 1, &err));
    t.size = 0;
    add_bytes(&t, header, 1024);
    add_bytes(&t, header, size);
    add_zeros(&t, FM_ARCHIVE_END_BYTES);
    expect_refusal(&t, "followed by a pax header");
}

TEST(the_beginning_of_a_tar_lists_what_is_whole)
{
    struct tar t = good_tar();
    size_t whole = t.size;
    for (size_t size = 512; size <= whole; size++) {
        struct fm_archive_member *member;
        size_t members;
        t.size = size;
        if (list(&t, true, 10, &member, &members, &err))
            fail_msg("%zu bytes: %s", size, err.text);
        /* A member counts only if its padding is complete. */
        assert_int_equal(members, size >= 2048 ? 2 : size >= 1024 ? 1 : 0);
        fm_archive_release(member, members);
    }
    free(t.bytes);
}

TEST_MAIN(NULL, NULL)
