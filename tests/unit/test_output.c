/* Output files and directories are complete or do not exist, whatever fails or interrupts a run. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "formats/file/file.h"
#include "lib/base/pool.h"
#include "tests/unit/child.h"
#include "tests/unit/test.h"

#define MARK "mark.json" /* for directories that may be replaced */

static const char *contents(const char *path)
{
    static char text[64];
    memset(text, 0, sizeof text);
    FILE *f = fopen(path, "rb");
    if (!f)
        return "(absent)";
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    return text;
}

TEST(outputs_appear_whole_or_not_at_all)
{
    struct fm_output o;
    scratch_mkdir("out");
    const char *path = scratch("out/file");
    assert_ok(fm_output_open(&o, path, true, false, &err));
    assert_non_null(strstr(o.temp, "/out/.file.fm-"));
    assert_true(o.seekable);
    assert_ok(fm_output_reserve(&o, 100000, &err));
    assert_ok(fm_output_write(&o, "hello", 5, &err));
    assert_int_equal(o.at, 5);
    assert_ok(fm_output_write_at(&o, 7, "there", 5, &err));
    assert_ok(fm_output_write_at(&o, 5, ", ", 2, &err));
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(fm_output_commit(&o, &err));
    assert_string_equal(contents(path), "hello, there");
    fm_output_abandon(&o);
    assert_int_equal(scratch_entries(scratch("out")), 1);
    path = scratch("out/file");
    assert_fails(fm_output_open(&o, path, true, false, &err), FM_ECREATE, "exists");
    assert_int_equal(err.advice, FM_ADVISE_REPLACE);
    assert_ok(fm_output_open(&o, path, true, true, &err));
    assert_ok(fm_output_write(&o, "new", 3, &err));
    fm_output_abandon(&o);
    assert_string_equal(contents(path), "hello, there");
    assert_ok(fm_output_open(&o, path, true, true, &err));
    assert_ok(fm_output_write(&o, "new", 3, &err));
    assert_ok(fm_output_commit(&o, &err));
    assert_string_equal(contents(path), "new");
    assert_int_equal(scratch_entries(scratch("out")), 1);
}

TEST(an_output_that_came_meanwhile_stays)
{
    struct fm_output o;
    scratch_mkdir("race");
    assert_ok(fm_output_open(&o, scratch("race/file"), true, false, &err));
    scratch_write("race/file", "theirs", 6);
    assert_int_equal(fm_output_commit(&o, &err), FM_ECREATE);
    assert_string_equal(contents(scratch("race/file")), "theirs");
    assert_int_equal(scratch_entries(scratch("race")), 1);
}

TEST(invalid_output_names_are_refused)
{
    struct fm_output o;
    char longest[600];
    assert_fails(fm_output_open(&o, scratch("nowhere/file"), true, false, &err), FM_ECREATE,
                 "its directory does not exist");
    assert_fails(fm_output_open(&o, "/dev/null", true, true, &err), FM_ECREATE,
                 "is not a regular file");
    scratch_write("target", "t", 1);
    scratch_check(symlink("target", scratch("alias")) == 0, "symlink");
    assert_int_equal(fm_output_open(&o, scratch("alias"), true, true, &err), FM_ECREATE);
    assert_int_equal(fm_output_open(&o, "", true, true, &err), FM_ECREATE);
    assert_int_equal(fm_output_open(&o, "/", true, true, &err), FM_ECREATE);
    assert_int_equal(fm_output_open(&o, "..", true, true, &err), FM_ECREATE);
    memset(longest, 'n', sizeof longest);
    memcpy(longest, "/tmp/", 5);
    longest[5 + 256] = 0;
    assert_int_equal(fm_output_open(&o, longest, true, false, &err), FM_ECREATE);
    longest[5 + 255] = 0;
    assert_ok(fm_output_open(&o, longest, true, false, &err));
    fm_output_abandon(&o);
    fm_output_abandon(&(struct fm_output){0});
}

/* Every name except those of a user's files. */
static bool is_listed(const void *self, const char *name)
{
    (void)self;
    return strncmp(name, "my-", 3) != 0;
}
static const struct fm_outdir_listed force = {MARK, is_listed, NULL};

/* Before anything is written, fm_output_check must give the error that opening the output would. */
TEST(a_check_in_advance_creates_nothing)
{
    scratch_mkdir("ahead");
    assert_ok(fm_output_check(scratch("ahead/file"), false, &err));
    assert_ok(fm_outdir_check(scratch("ahead/dir/"), NULL, &err));
    assert_int_equal(scratch_entries(scratch("ahead")), 0);
    scratch_write("ahead/file", "x", 1);
    assert_int_equal(fm_output_check(scratch("ahead/file"), false, &err), FM_ECREATE);
    assert_ok(fm_output_check(scratch("ahead/file"), true, &err));
    assert_int_equal(fm_output_check(scratch("ahead/file/in"), true, &err), FM_ECREATE);
    assert_int_equal(fm_output_check(scratch("ahead/new/"), true, &err), FM_ECREATE);
    assert_int_equal(fm_output_check(scratch("nowhere/file"), true, &err), FM_ECREATE);
    assert_int_equal(fm_outdir_check(scratch("nowhere/dir"), &force, &err), FM_ECREATE);
    assert_int_equal(fm_outdir_check(scratch("ahead"), NULL, &err), FM_ECREATE);
    assert_int_equal(fm_outdir_check(scratch("ahead/file"), &force, &err), FM_ECREATE);
    assert_fails(fm_outdir_check(scratch("ahead"), &force, &err), FM_ECREATE, "is not an export");
}

static int write_stdout(void)
{
    struct fm_output o;
    struct fm_err err = {0};
    char block[4096] = {0};
    signal(SIGPIPE, SIG_IGN);
    int rc = fm_output_open(&o, "-", true, false, &err);
    for (int i = 0; i < 64 && rc == FM_OK; i++)
        rc = fm_output_write(&o, block, sizeof block, &err);
    if (rc == FM_OK)
        return fm_output_commit(&o, &err);
    fm_output_abandon(&o);
    return rc;
}

TEST(standard_output_fails_with_its_reason)
{
    int p[2];
    fflush(stdout);
    scratch_check(pipe(p) == 0, "pipe");
    close(p[0]);
    assert_int_equal(in_child(write_stdout, -2, p[1]), FM_EPIPE);
    close(p[1]);
    assert_int_equal(in_child(write_stdout, -2, -1), FM_EUSAGE);
    int fd = open("/dev/full", O_WRONLY);
    assert_int_equal(in_child(write_stdout, -2, fd), FM_EIO);
    close(fd);
    fd = open("/dev/null", O_WRONLY);
    assert_int_equal(in_child(write_stdout, -2, fd), FM_OK);
    close(fd);
    fd = open(scratch("stdout"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(in_child(write_stdout, -2, fd), FM_OK);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 64 * 4096);
    close(fd);
}

TEST(a_terminal_is_refused)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || !isatty(terminal)) {
        print_message("no pseudo-terminal is available\n");
        skip();
    }
    assert_int_equal(in_child(write_stdout, -2, terminal), FM_EUSAGE);
    close(terminal);
}

static int write_limited(void)
{
    struct rlimit r = {10000, 10000};
    struct fm_output o;
    struct fm_err err = {0};
    char block[4096] = {0};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &r);
    int rc = fm_output_open(&o, scratch("limited"), true, false, &err);
    for (int i = 0; i < 4 && rc == FM_OK; i++)
        rc = fm_output_write(&o, block, sizeof block, &err);
    fm_output_abandon(&o);
    return rc == FM_EIO && strstr(err.text, "File too large") ? FM_OK : 100;
}

TEST(a_file_too_large_is_an_error_and_leaves_no_file)
{
    assert_int_equal(in_child(write_limited, -2, -2), FM_OK);
    assert_int_equal(access(scratch("limited"), F_OK), -1);
}

/* Needs the right to mount; otherwise skipped. */
TEST(a_full_disk_is_named_with_its_room)
{
    struct fm_output o;
    static char block[65536];
    scratch_mkdir("full");
    char dir[256];
    snprintf(dir, sizeof dir, "%s", scratch("full"));
    if (mount("tmpfs", dir, "tmpfs", 0, "size=256k") != 0)
        skip();
    int reserve = FM_OK, rc = FM_OK;
    char first[FM_ERR_TEXT_BYTES], second[FM_ERR_TEXT_BYTES];
    rc = fm_output_open(&o, scratch("full/file"), true, false, &err);
    if (rc == FM_OK)
        reserve = fm_output_reserve(&o, 1 << 20, &err);
    memcpy(first, err.text, sizeof first);
    for (int i = 0; i < 8 && rc == FM_OK; i++)
        rc = fm_output_write(&o, block, sizeof block, &err);
    memcpy(second, err.text, sizeof second);
    fm_output_abandon(&o);
    int left = scratch_entries(dir);
    umount(dir);
    assert_int_equal(reserve, FM_EIO);
    assert_non_null(strstr(first, "no space left for 1048576 bytes (262144 free)"));
    assert_int_equal(rc, FM_EIO);
    assert_non_null(strstr(second, "no space left for"));
    assert_int_equal(left, 0);
}

static void put(struct fm_outdir *d, const char *name, const char *text)
{
    struct fm_output o;
    struct fm_err err = {0};
    assert_ok(fm_outdir_file(d, &o, name, &err));
    assert_ok(fm_output_write(&o, text, strlen(text), &err));
    assert_ok(fm_output_commit(&o, &err));
}

/* Temporaries of a process killed by SIGKILL are removed; those that a process has locked, and
 * files with similar names, are kept. */
TEST(the_next_run_removes_what_a_killed_one_left)
{
    struct fm_output o, other;
    struct fm_outdir d;
    char file[64], partial[64], weights[80];
    scratch_mkdir("left");
    assert_ok(fm_output_open(&o, scratch("left/file"), true, false, &err));
    const char *host = strstr(o.temp, ".fm-") + 4; /* 8 digits */
    snprintf(file, sizeof file, "left/.file.fm-%.8s-12-0123abcd", host);
    snprintf(partial, sizeof partial, "left/.file.partial-%.8s-12-0123abcd", host);
    snprintf(weights, sizeof weights, "%s/weights", partial);
    fm_output_abandon(&o);
    scratch_write(file, "left", 4);
    scratch_write("left/.file.fm-12-notes", "stays", 5);
    scratch_write("left/.file.fm-00000000-12-0123abcd", "of another machine, stays", 25);
    scratch_write("left/.other.fm-12-0123abcd", "stays", 5);
    scratch_mkdir(partial);
    scratch_write(weights, "left", 4);
    assert_ok(fm_output_open(&other, scratch("left/file"), true, false, &err));
    assert_int_equal(access(scratch(file), F_OK), -1);
    assert_ok(fm_output_open(&o, scratch("left/file"), true, false, &err));
    assert_int_equal(access(other.temp, F_OK), 0);
    fm_output_abandon(&o);
    fm_output_abandon(&other);
    assert_int_equal(scratch_entries(scratch("left")), 4);
    assert_ok(fm_outdir_open(&d, scratch("left/file"), NULL, &err));
    fm_outdir_abandon(&d);
    assert_int_equal(scratch_entries(scratch("left")), 3);
}

TEST(directories_appear_whole_or_not_at_all)
{
    struct fm_outdir d;
    struct fm_output o;
    scratch_mkdir("dirs");
    char path[256];
    snprintf(path, sizeof path, "%s", scratch("dirs/model//"));
    assert_ok(fm_outdir_open(&d, path, NULL, &err));
    put(&d, MARK, "{}");
    put(&d, "weights", "1");
    assert_int_equal(access(path, F_OK), -1);
    assert_ok(fm_outdir_commit(&d, &err));
    assert_int_equal(scratch_entries(path), 2);
    assert_int_equal(scratch_entries(scratch("dirs")), 1);
    assert_int_equal(fm_outdir_open(&d, path, NULL, &err), FM_ECREATE);
    assert_ok(fm_outdir_open(&d, path, &force, &err));
    put(&d, "only", "2");
    assert_ok(fm_outdir_file(&d, &o, "half", &err));
    fm_output_abandon(&o);
    assert_ok(fm_outdir_commit(&d, &err));
    assert_int_equal(scratch_entries(path), 1);
    assert_int_equal(scratch_entries(scratch("dirs")), 1);
    assert_fails(fm_outdir_open(&d, path, &force, &err), FM_ECREATE, "is not an export");
    assert_ok(fm_outdir_open(&d, scratch("dirs/other"), NULL, &err));
    assert_ok(fm_outdir_file(&d, &o, "half", &err));
    fm_output_abandon(&o);
    fm_outdir_abandon(&d);
    fm_outdir_abandon(&d);
    assert_int_equal(scratch_entries(scratch("dirs")), 1);
}

TEST(a_directory_with_directories_is_never_replaced)
{
    struct fm_outdir d;
    scratch_mkdir("home");
    scratch_write("home/" MARK, "{}", 2);
    scratch_mkdir("home/photos");
    assert_int_equal(fm_outdir_open(&d, scratch("home"), &force, &err), FM_ECREATE);
    scratch_mkdir("links"); /* a link to a file is not a file of ours */
    scratch_write("links/" MARK, "{}", 2);
    scratch_check(symlink(MARK, scratch("links/weights")) == 0, "symlink");
    assert_int_equal(fm_outdir_open(&d, scratch("links"), &force, &err), FM_ECREATE);
    scratch_mkdir("empty");
    assert_ok(fm_outdir_open(&d, scratch("empty"), &force, &err));
    put(&d, "config.json", "{}");
    assert_ok(fm_outdir_commit(&d, &err));
    assert_int_equal(scratch_entries(scratch("empty")), 1);
    assert_int_equal(fm_outdir_open(&d, scratch_write("plain", "abc", 3), &force, &err),
                     FM_ECREATE);
}

TEST(files_that_are_not_of_an_export_stay)
{
    struct fm_outdir d;
    scratch_mkdir("mixed");
    scratch_write("mixed/" MARK, "{}", 2);
    scratch_write("mixed/weights", "1", 1);
    scratch_write("mixed/my-adapter", "mine", 4);
    assert_fails(fm_outdir_open(&d, scratch("mixed"), &force, &err), FM_ECREATE, "'my-adapter'");
    assert_int_equal(scratch_entries(scratch("mixed")), 3);
    /* The file appears while the new directory is being written. */
    scratch_check(unlink(scratch("mixed/my-adapter")) == 0, "unlink");
    assert_ok(fm_outdir_open(&d, scratch("mixed"), &force, &err));
    put(&d, "only", "2");
    scratch_write("mixed/my-adapter", "mine", 4);
    assert_int_equal(fm_outdir_commit(&d, &err), FM_ECREATE);
    assert_int_equal(scratch_entries(scratch("mixed")), 3);
    scratch_check(unlink(scratch("mixed/my-adapter")) == 0, "unlink");
    assert_ok(fm_outdir_open(&d, scratch("mixed"), &force, &err));
    put(&d, "only", "2");
    assert_ok(fm_outdir_commit(&d, &err));
    assert_int_equal(scratch_entries(scratch("mixed")), 1);
}

/* Two runs with --force: the later one does not replace the result of the other, and its error
 * does not mention files of an export. */
TEST(the_result_of_another_run_stays)
{
    struct fm_outdir first, second;
    scratch_mkdir("two");
    for (int there = 0; there < 2; there++) { /* over nothing, then over an export */
        assert_ok(fm_outdir_open(&first, scratch("two/dir"), &force, &err));
        assert_ok(fm_outdir_open(&second, scratch("two/dir"), &force, &err));
        put(&first, MARK, "first");
        put(&first, "of-the-first", "1");
        put(&second, MARK, "second");
        assert_ok(fm_outdir_commit(&first, &err));
        assert_fails(fm_outdir_commit(&second, &err), FM_ECREATE,
                     there ? "another process has replaced '" : "another process has made '");
        assert_int_equal(scratch_entries(scratch("two")), 1);
        assert_int_equal(access(scratch("two/dir/of-the-first"), F_OK), 0);
        scratch_check(unlink(scratch("two/dir/of-the-first")) == 0, "unlink");
    }
}

TEST(a_checkpoint_is_never_replaced)
{
    struct fm_outdir d;
    scratch_mkdir("checkpoint");
    scratch_write("checkpoint/config.json", "{}", 2);
    scratch_write("checkpoint/model.safetensors", "{}", 2);
    assert_int_equal(fm_outdir_open(&d, scratch("checkpoint"), &force, &err), FM_ECREATE);
    assert_int_equal(scratch_entries(scratch("checkpoint")), 2);
    scratch_write("checkpoint/" MARK, "{}", 2);
    assert_ok(fm_outdir_open(&d, scratch("checkpoint"), &force, &err));
    fm_outdir_abandon(&d);
}

static void on_signal(int signal_number)
{
    (void)signal_number;
    fm_file_remove_temporaries();
    _exit(FM_OK);
}

static int be_killed(void)
{
    struct fm_output o[3];
    struct fm_outdir d;
    struct fm_err err = {0};
    signal(SIGTERM, on_signal);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "killed/file%d", i);
        if (fm_output_open(&o[i], scratch(name), true, false, &err) != FM_OK)
            return 100;
    }
    if (fm_output_commit(&o[1], &err) != FM_OK ||
        fm_outdir_open(&d, scratch("killed/dir"), NULL, &err))
        return 101;
    for (int i = 0; i < 300; i++) { /* more names than one buffer holds */
        struct fm_output in;
        char name[64];
        snprintf(name, sizeof name, "a-file-with-a-rather-long-name-%d", i);
        if (fm_outdir_file(&d, &in, name, &err) != FM_OK)
            return 102;
        if (i == 299)
            break;
        fm_output_abandon(&in);
        scratch_check(mknodat(d.fd, name, S_IFREG | 0600, 0) == 0, name);
    }
    raise(SIGTERM);
    return 103;
}

/* The number of descriptors that take_descriptors leaves unused. */
static int spare;

static void take_descriptors(void)
{
    int taken[64], n = 0;
    const struct rlimit few = {32, 32};
    setrlimit(RLIMIT_NOFILE, &few);
    while ((taken[n] = dup(STDERR_FILENO)) >= 0)
        n++;
    for (int i = 0; i < spare && n > 0; i++)
        close(taken[--n]);
}

static int export_with_few(void)
{
    struct fm_outdir d;
    struct fm_output o;
    struct fm_err err = {0};
    take_descriptors();
    if (fm_outdir_open(&d, scratch("few/dir"), &force, &err))
        return err.code;
    int rc = fm_outdir_file(&d, &o, MARK, &err);
    if (!rc)
        rc = fm_output_end(&o, fm_output_write(&o, "abc", 3, &err), &err);
    if (!rc)
        return fm_outdir_commit(&d, &err);
    fm_outdir_abandon(&d);
    return rc;
}

static int be_killed_with_few(void)
{
    struct fm_outdir d;
    struct fm_output o;
    struct fm_err err = {0};
    signal(SIGTERM, on_signal);
    if (fm_outdir_open(&d, scratch("few/dir"), &force, &err) || fm_outdir_file(&d, &o, MARK, &err))
        return 100;
    take_descriptors();
    raise(SIGTERM);
    return 101;
}

TEST(without_descriptors_nothing_is_left)
{
    int rc = FM_EIO;
    scratch_mkdir("few");
    for (spare = 0; spare < 8 && rc; spare++) { /* until it succeeds */
        rc = in_child(export_with_few, -2, -2);
        assert_int_equal(scratch_entries(scratch("few")), rc ? 0 : 1);
    }
    assert_int_equal(rc, FM_OK);
    assert_in_range(spare, 4, 7);
    for (spare = 0; spare < 8; spare++) {
        in_child(export_with_few, -2, -2);
        assert_int_equal(scratch_entries(scratch("few")), 1);
        assert_int_equal(access(scratch("few/dir/" MARK), F_OK), 0);
    }
    spare = 0;
    assert_int_equal(in_child(be_killed_with_few, -2, -2), FM_OK);
    assert_int_equal(scratch_entries(scratch("few")), 1);
}

static int be_out_of_memory(void)
{
    struct fm_output o;
    struct fm_outdir d;
    struct fm_err err = {0};
    if (fm_output_open(&o, scratch("starved/file"), true, false, &err) != FM_OK ||
        fm_outdir_open(&d, scratch("starved/dir"), NULL, &err) != FM_OK)
        return 100;
    fm_scratch((size_t)1 << 46);
    return 101;
}

TEST(a_loop_without_memory_leaves_nothing)
{
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* the sanitizer ends the process at such a size */
#endif
    scratch_mkdir("starved");
    assert_int_equal(in_child(be_out_of_memory, -2, -2), FM_ENOMEM);
    assert_int_equal(scratch_entries(scratch("starved")), 0);
}

TEST(a_signal_removes_what_is_temporary)
{
    scratch_mkdir("killed");
    assert_int_equal(in_child(be_killed, -2, -2), FM_OK);
    assert_int_equal(scratch_entries(scratch("killed")), 1);
    assert_int_equal(access(scratch("killed/file1"), F_OK), 0);
}

/* A second signal may remove temporaries on another thread while outputs are being written. */
static int go_on_after_removal(void)
{
    struct fm_output file, inside, more;
    struct fm_outdir dir, other;
    struct fm_err err = {0};
    if (fm_output_open(&file, scratch("late/file"), true, false, &err) != FM_OK ||
        fm_outdir_open(&dir, scratch("late/dir"), NULL, &err) != FM_OK ||
        fm_outdir_file(&dir, &inside, "config.json", &err) != FM_OK)
        return 100;
    fm_file_remove_temporaries();
    return fm_output_commit(&file, &err) == FM_ESAVED &&
                   fm_output_commit(&inside, &err) == FM_ESAVED &&
                   fm_outdir_file(&dir, &inside, "more", &err) == FM_ESAVED &&
                   fm_outdir_commit(&dir, &err) == FM_ESAVED &&
                   fm_output_open(&more, scratch("late/more"), true, false, &err) == FM_ESAVED &&
                   fm_outdir_open(&other, scratch("late/other"), NULL, &err) == FM_ESAVED
               ? FM_OK
               : 101;
}

TEST(nothing_appears_once_temporaries_are_removed)
{
    scratch_mkdir("late");
    assert_int_equal(in_child(go_on_after_removal, -2, -2), FM_OK);
    assert_int_equal(scratch_entries(scratch("late")), 0);
}

TEST(entries_of_the_table_of_temporaries_are_reused)
{
    struct fm_output o[64], more;
    char name[32];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 64; i++) {
            snprintf(name, sizeof name, "many%d", i);
            assert_ok(fm_output_open(&o[i], scratch(name), true, false, &err));
        }
        assert_int_equal(fm_output_open(&more, scratch("one-more"), true, false, &err), FM_EBUG);
        for (int i = 0; i < 64; i++)
            fm_output_abandon(&o[i]);
    }
}

int main(void)
{
    scratch(""); /* children share the directory */
    return tests_run(NULL, NULL);
}
