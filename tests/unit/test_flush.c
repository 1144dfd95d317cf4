/*
 * Test that data is on disk before its name is: the order of these system calls matters only after
 * a power cut.  Also test what remains if one of them fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include "formats/file/file.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

#define MARK "mark.json" /* for directories that may be replaced */

/* The calls so far, "fsync .file.fm, close .file.fm, ...", and which of the next calls of fsync and
 * of close fails (1: the next one, 0: none). */
static char calls[2048];
static int fsync_fails, close_fails;
/* If not NULL, a user makes this file when directories are exchanged, and no later exchange works.
 */
static const char *user_makes;
static bool exchange_fails;
static struct fm_err failure; /* of the last commit */

/* Append the last component of the path, without the part that makes a temporary's name unique. */
static void add_name(const char *path)
{
    const char *name = strrchr(path, '/');
    size_t used = strlen(calls);
    name = name ? name + 1 : path;
    size_t n = strlen(name);
    for (const char *number = name; (number = strstr(number, ".fm-")) != NULL; number++)
        n = (size_t)(number - name) + 3;
    const char *partial = strstr(name, ".partial-");
    if (partial)
        n = (size_t)(partial - name) + 8;
    snprintf(calls + used, sizeof calls - used, " %.*s", (int)n, name);
}

static void add_call(const char *call, const char *first, const char *second)
{
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof calls - used, "%s%s", used ? ", " : "", call);
    add_name(first);
    if (second)
        add_name(second);
}

static void add_call_of(const char *call, int fd)
{
    char link[64], path[512] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) > 0)
        add_call(call, path, NULL);
}

static bool is_file(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

/* These four replace the C library's. */
int fsync(int fd)
{
    add_call_of("fsync", fd);
    if (!fsync_fails || --fsync_fails > 0)
        return (int)syscall(SYS_fsync, fd);
    errno = EIO;
    return -1;
}

int close(int fd)
{
    bool file = is_file(fd);
    if (file)
        add_call_of("close", fd);
    int rc = (int)syscall(SYS_close, fd); /* Linux closes it in any case */
    if (!file || !close_fails || --close_fails > 0)
        return rc;
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to)
{
    add_call("rename", from, to);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    add_call("rename", from, to);
    bool fails = exchange_fails && (flags & RENAME_EXCHANGE);
    int rc = fails ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (rc == 0 && user_makes && (flags & RENAME_EXCHANGE)) {
        char name[2048];
        snprintf(name, sizeof name, "%s/%s", from, user_makes);
        close(open(name, O_WRONLY | O_CREAT | O_EXCL, 0644));
        exchange_fails = true;
    }
    if (fails)
        errno = EIO;
    return rc;
}

static int put_file(const char *path, bool force, const char *text)
{
    struct fm_output o;
    struct fm_err err = {0};
    assert_ok(fm_output_open(&o, path, true, force, &err));
    assert_ok(fm_output_write(&o, text, strlen(text), &err));
    calls[0] = '\0';
    return fm_output_commit(&o, &failure);
}

TEST(a_file_is_on_the_disk_before_it_has_its_name)
{
    scratch_mkdir("files");
    for (int force = 0; force < 2; force++) {
        assert_int_equal(put_file(scratch("files/one"), force, "text"), FM_OK);
        assert_string_equal(
            calls, "fsync .one.fm, close .one.fm, rename .one.fm one, fsync files, close one");
    }
}

static bool is_listed(const void *self, const char *name)
{
    (void)self;
    (void)name;
    return true;
}
static const struct fm_outdir_listed all_listed = {MARK, is_listed, NULL};

static int put_directory(const char *path, bool force, int failing_fsync)
{
    struct fm_outdir d;
    struct fm_output o;
    struct fm_err err = {0};
    assert_ok(fm_outdir_open(&d, path, force ? &all_listed : NULL, &err));
    calls[0] = '\0';
    assert_ok(fm_outdir_file(&d, &o, MARK, &err));
    assert_ok(fm_output_write(&o, "{}", 2, &err));
    assert_ok(fm_output_commit(&o, &err));
    fsync_fails = failing_fsync;
    return fm_outdir_commit(&d, &failure);
}

TEST(a_directory_is_on_the_disk_before_it_has_its_name)
{
    scratch_mkdir("dirs");
    for (int force = 0; force < 2; force++) {
        assert_int_equal(put_directory(scratch("dirs/model"), force, 0), FM_OK);
        assert_string_equal(calls,
                            "fsync ." MARK ".fm, close ." MARK ".fm, rename ." MARK ".fm " MARK
                            ", fsync .model.partial, rename .model.partial model, "
                            "fsync dirs");
    }
}

static void assert_contents(const char *path, const char *text)
{
    char read[16] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(read, 1, sizeof read - 1, f), strlen(text));
    fclose(f);
    assert_string_equal(read, text);
}

/* A lost write may be reported by fsync on a disk, and by close on a network file system. */
TEST(a_lost_write_gets_no_name)
{
    scratch_mkdir("lost");
    const char *path = scratch_write("lost/old", "old", 3);
    for (int closing = 0; closing < 2; closing++)
        for (int force = 0; force < 2; force++) {
            *(closing ? &close_fails : &fsync_fails) = 1;
            assert_int_equal(put_file(force ? path : scratch("lost/new"), force, "new"), FM_EIO);
            assert_null(strstr(calls, "rename"));
            assert_int_equal(scratch_entries(scratch("lost")), 1);
        }
    assert_contents(path, "old");
    assert_int_equal(put_directory(scratch("lost/model"), false, 1), FM_EIO);
    assert_int_equal(scratch_entries(scratch("lost")), 1);
}

/* An output whose name a power cut may remove is not reported as written. */
TEST(a_name_that_is_not_on_the_disk_is_an_error)
{
    scratch_mkdir("names");
    fsync_fails = 2;
    assert_int_equal(put_file(scratch("names/one"), false, "text"), FM_EIO);
    assert_int_equal(scratch_entries(scratch("names")), 0);
    assert_int_equal(put_directory(scratch("names/model"), false, 2), FM_EIO);
}

/* The old file is gone by then, so if the new one were removed, there would be no file. */
TEST(what_replaced_a_file_stays)
{
    scratch_mkdir("stays");
    assert_int_equal(put_file(scratch("stays/one"), false, "old"), FM_OK);
    fsync_fails = 2;
    assert_int_equal(put_file(scratch("stays/one"), true, "new"), FM_EIO);
    assert_non_null(strstr(failure.text, "is complete and is kept"));
    assert_contents(scratch("stays/one"), "new");
    assert_int_equal(scratch_entries(scratch("stays")), 1);
}

static void put_parts(const char *text, bool force, int failing_fsync, int want)
{
    struct fm_outdir d;
    struct fm_output o;
    struct fm_err err = {0};
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", scratch("parts/first"));
    snprintf(second, sizeof second, "%s", scratch("parts/second"));
    char *const name[] = {first, second};
    assert_ok(fm_outdir_spread_open(&d, scratch("parts/all"), name, 2, force, &err));
    for (int i = 0; i < 2; i++) {
        assert_ok(fm_outdir_file(&d, &o, i ? "second" : "first", &err));
        assert_ok(fm_output_write(&o, text, strlen(text), &err));
        assert_ok(fm_output_commit(&o, &err));
    }
    fsync_fails = failing_fsync;
    assert_int_equal(fm_outdir_spread(&d, name, 2, force, &failure), want);
}

TEST(what_replaced_parts_stays)
{
    scratch_mkdir("parts");
    put_parts("lost", false, 2, FM_EIO);
    assert_int_equal(scratch_entries(scratch("parts")), 0);
    put_parts("old", false, 0, FM_OK);
    put_parts("new", true, 2, FM_EIO); /* of the old parts' second names: they are put back */
    assert_non_null(strstr(failure.text, "is as it was"));
    assert_contents(scratch("parts/first"), "old");
    assert_contents(scratch("parts/second"), "old");
    assert_int_equal(scratch_entries(scratch("parts")), 2);
    put_parts("new", true, 3, FM_EIO); /* of the directory, after the renames */
    assert_non_null(strstr(failure.text, "is complete and is kept"));
    assert_contents(scratch("parts/first"), "new");
    assert_contents(scratch("parts/second"), "new");
    assert_int_equal(scratch_entries(scratch("parts")), 2);
}

static bool is_ours(const void *self, const char *name)
{
    (void)self;
    return strcmp(name, "notes.txt") != 0;
}

/* A user's file appeared in the old directory at the last moment, and the exchange cannot be
 * undone: the directory must not keep the name of a temporary, because the next run removes
 * temporaries. */
TEST(a_directory_with_a_users_file_is_no_temporary)
{
    static const struct fm_outdir_listed ours = {MARK, is_ours, NULL};
    struct fm_outdir d;
    struct fm_output o;
    scratch_mkdir("kept");
    assert_int_equal(put_directory(scratch("kept/model"), false, 0), FM_OK);
    for (int again = 0; again < 2; again++) {
        assert_ok(fm_outdir_open(&d, scratch("kept/model"), &ours, &err));
        assert_ok(fm_outdir_file(&d, &o, MARK, &err));
        assert_ok(fm_output_write(&o, "[]", 2, &err));
        assert_ok(fm_output_commit(&o, &err));
        user_makes = again ? NULL : "notes.txt";
        exchange_fails = false;
        assert_int_equal(fm_outdir_commit(&d, &failure), again ? FM_OK : FM_ECREATE);
        if (!again)
            assert_non_null(strstr(failure.text, "your files are in 'model.replaced-1' now"));
        assert_contents(scratch("kept/model/" MARK), "[]");
        assert_contents(scratch("kept/model.replaced-1/" MARK), "{}");
        assert_contents(scratch("kept/model.replaced-1/notes.txt"), "");
        assert_int_equal(scratch_entries(scratch("kept")), 2);
    }
}

/* Paths so long that two do not fit into a sentence: the name of the directory with the user's
 * files is printed in full, even if it is of maximum length and keeps the temporary's name. */
TEST(the_users_files_are_named_in_a_long_path)
{
    static const struct fm_outdir_listed ours = {MARK, is_ours, NULL};
    static const size_t length[2] = {200, 250}; /* the second leaves no room for .replaced-1 */
    struct fm_outdir d;
    struct fm_output o;
    for (int i = 0; i < 2; i++) {
        char path[2048], want[320];
        int n = snprintf(path, sizeof path, "%s", scratch("long"));
        mkdir(path, 0777);
        for (int depth = 0; depth < 4; depth++) {
            n += snprintf(path + n, sizeof path - (size_t)n, "/%0199d", depth);
            mkdir(path, 0777);
        }
        snprintf(path + n, sizeof path - (size_t)n, "/%0*d", (int)length[i], 7);
        assert_int_equal(put_directory(path, false, 0), FM_OK);
        assert_ok(fm_outdir_open(&d, path, &ours, &err));
        assert_ok(fm_outdir_file(&d, &o, MARK, &err));
        assert_ok(fm_output_write(&o, "[]", 2, &err));
        assert_ok(fm_output_commit(&o, &err));
        user_makes = "notes.txt";
        exchange_fails = false;
        snprintf(want, sizeof want, "your files are in '%s%s' now",
                 i ? strrchr(d.temp, '/') + 1 : path + n + 1, i ? "" : ".replaced-1");
        assert_int_equal(fm_outdir_commit(&d, &failure), FM_ECREATE);
        assert_non_null(strstr(failure.text, want));
        assert_true(i == 0 || strstr(failure.text, "; rename it, because the next run removes it"));
    }
}

TEST_MAIN(NULL, NULL)
