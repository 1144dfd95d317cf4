/* Test inputs and temporary files: which files may be opened, and that reads are complete. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "formats/file/file.h"
#include "formats/file/spool.h"
#include "tests/unit/child.h"
#include "tests/unit/test.h"

static void open_is(const char *path, int code, const char *text)
{
    struct fm_file f;
    struct fm_err err = {0};
    int rc = fm_file_open(&f, path, &err);
    if (rc != code || (text && !strstr(err.text, text)))
        fail_msg("%s: %d \"%s\"", path, rc, err.text);
    fm_file_close(&f);
}

TEST(inputs_are_regular_files)
{
    alarm(20); /* a FIFO that blocks must not hang the run */
    const char *plain = scratch_write("plain", "abc", 3);
    open_is(plain, FM_OK, NULL);
    open_is(scratch("absent"), FM_ENOENT, "cannot open '");
    open_is("/tmp", FM_EFORMAT, "is a directory; a regular file is needed");
    open_is("/dev/null", FM_EFORMAT, "is a device");
    scratch_check(mkfifo(scratch("fifo"), 0600) == 0, "mkfifo");
    open_is(scratch("fifo"), FM_EFORMAT, "is a FIFO");
    scratch_check(symlink("loop", scratch("loop")) == 0, "symlink");
    open_is(scratch("loop"), FM_EFORMAT, "symbolic link");
    scratch_check(symlink("plain", scratch("link")) == 0, "symlink");
    open_is(scratch("link"), FM_OK, NULL);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", scratch("socket"));
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    scratch_check(s >= 0 && bind(s, (struct sockaddr *)&a, sizeof a) == 0, "bind");
    open_is(scratch("socket"), FM_EFORMAT, "is a socket");
    close(s);
    alarm(0);
}

TEST(names_at_a_directory_are_single_components)
{
    struct fm_file f;
    int dir = -1;
    scratch_write("plain", "abc", 3);
    assert_ok(fm_file_open_directory(&dir, scratch_root, &err));
    static const char *const bad[] = {"", ".", "..", "../plain", "a/b", "/etc/passwd", "plain/"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(fm_file_open_at(&f, dir, bad[i], true, &err), FM_EFORMAT);
    assert_ok(fm_file_open_at(&f, dir, "plain", false, &err));
    assert_int_equal(f.size, 3);
    fm_file_close(&f);
    assert_ok(fm_file_open_at(&f, dir, "link", true, &err));
    assert_int_equal(f.size, 3);
    fm_file_close(&f);
    assert_int_equal(fm_file_open_at(&f, dir, "link", false, &err), FM_EFORMAT);
    close(dir);
    assert_int_equal(fm_file_open_directory(&dir, scratch("plain"), &err), FM_ENOENT);
}

/* Every name once, hidden ones too, whatever the order in which they were made; each list begins
 * with the first name. */
TEST(a_directory_is_listed_in_order_of_names)
{
    enum { NAMES = 64 };
    struct fm_file_list list;
    int fd;
    scratch_mkdir("many");
    assert_ok(fm_file_open_directory(&fd, scratch("many"), &err));
    assert_ok(fm_file_list(&list, fd, "many", &err));
    assert_int_equal(list.count, 0);
    fm_file_list_release(&list);
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s%03d", i % 7 ? "" : ".", i * 37 % NAMES);
        scratch_put("many", name, "x");
    }
    for (int again = 0; again < 2; again++) {
        assert_ok(fm_file_list(&list, fd, "many", &err));
        assert_int_equal(list.count, NAMES);
        for (size_t i = 1; i < list.count; i++)
            assert_true(strcmp(list.name[i - 1], list.name[i]) < 0);
        assert_true(list.name[0][0] == '.' && strcmp(list.name[0], "..") > 0);
        fm_file_list_release(&list);
    }
    close(fd);
    assert_fails(fm_file_list(&list, fd, "many", &err), FM_EIO, "cannot list 'many'");
    assert_null(list.name);
}

TEST(reads_are_whole_or_refused)
{
    struct fm_file f;
    char b[8] = {0}, *text = NULL;
    size_t size = 0;
    const char *path = scratch_write("digits", "0123456789", 10);
    assert_ok(fm_file_open(&f, path, &err));
    assert_ok(fm_file_read(&f, 3, b, 7, &err));
    assert_memory_equal(b, "3456789", 7);
    assert_ok(fm_file_read(&f, 10, b, 0, &err));
    assert_fails(fm_file_read(&f, 4, b, 7, &err), FM_EFORMAT,
                 "ends at byte 10, but 7 bytes at 4 are needed");
    assert_int_equal(fm_file_read(&f, UINT64_MAX - 2, b, 7, &err), FM_EFORMAT);
    assert_int_equal(fm_file_read(&f, INT64_MAX, b, 1, &err), FM_EFORMAT);
    assert_fails(fm_file_slurp(&f, 9, &text, &size, &err), FM_EFORMAT, "has 10 bytes (limit 9)");
    assert_ok(fm_file_slurp(&f, 10, &text, &size, &err));
    assert_string_equal(text, "0123456789");
    assert_int_equal(size, 10);
    free(text);
    assert_ok(fm_file_unchanged(&f, &err));
    scratch_check(truncate(path, 5) == 0, "truncate");
    assert_fails(fm_file_read(&f, 3, b, 7, &err), FM_EIO,
                 "became shorter while it was read (5 of 10 bytes)");
    assert_int_equal(fm_file_unchanged(&f, &err), FM_EIO);
    fm_file_close(&f);
    fm_file_close(&f);
}

TEST(same_size_and_other_time_is_a_change)
{
    struct fm_file f;
    const char *path = scratch_write("time", "x", 1);
    assert_ok(fm_file_open(&f, path, &err));
    struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    scratch_check(utimensat(AT_FDCWD, path, t, 0) == 0, "utimensat");
    assert_int_equal(fm_file_unchanged(&f, &err), FM_EIO);
    fm_file_close(&f);
}

static uint64_t stdin_bytes; /* the expected size; 0: a pipe, not checked */

static int read_stdin(void)
{
    struct fm_file f;
    struct fm_err err = {0};
    char b[6] = {0};
    int rc = fm_spool_open(&f, "-", &err);
    if (rc != FM_OK)
        return rc;
    if (stdin_bytes && f.size != stdin_bytes)
        return 101;
    if (f.size < 200000 || fm_file_read(&f, f.size - 5, b, 5, &err) != FM_OK || strcmp(b, "tail\n"))
        return 100;
    fm_file_close(&f);
    return FM_OK;
}

static void *feed(void *arg)
{
    int fd = *(int *)arg;
    char part[997];
    memset(part, 'x', sizeof part);
    for (int i = 0; i < 300; i++) {
        ssize_t put = write(fd, part, sizeof part);
        (void)put;
        if (i % 100 == 0)
            usleep(2000);
    }
    ssize_t put = write(fd, "tail\n", 5);
    (void)put;
    close(fd);
    return NULL;
}

TEST(standard_input_may_be_a_pipe_or_a_file)
{
    int p[2];
    pthread_t thread;
    for (int nonblock = 0; nonblock < 2; nonblock++) {
        scratch_check(pipe2(p, O_CLOEXEC) == 0, "pipe");
        if (nonblock)
            fcntl(p[0], F_SETFL, O_NONBLOCK);
        pthread_create(&thread, NULL, feed, &p[1]);
        assert_int_equal(in_child(read_stdin, p[0], -2), FM_OK);
        pthread_join(thread, NULL);
        close(p[0]);
    }
    char *big = calloc(1, 200010);
    memcpy(big + 200005, "tail\n", 5);
    int fd = open(scratch_write("big", big, 200010), O_RDONLY);
    free(big);
    stdin_bytes = 200010;
    assert_int_equal(in_child(read_stdin, fd, -2), FM_OK);
    lseek(fd, 7, SEEK_SET); /* a line was read already: the rest is copied */
    stdin_bytes = 200003;
    assert_int_equal(in_child(read_stdin, fd, -2), FM_OK);
    stdin_bytes = 0;
    close(fd);
    assert_int_equal(in_child(read_stdin, -1, -2), FM_EUSAGE);
    fd = open("/tmp", O_RDONLY);
    assert_int_equal(in_child(read_stdin, fd, -2), FM_EFORMAT);
    close(fd);
    fd = open("/dev/zero", O_RDONLY);
    assert_int_equal(in_child(read_stdin, fd, -2), FM_EUSAGE);
    close(fd);
}

TEST(a_terminal_is_refused)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || !isatty(terminal)) {
        print_message("no pseudo-terminal is available\n");
        skip();
    }
    assert_int_equal(in_child(read_stdin, terminal, -2), FM_EUSAGE);
    close(terminal);
}

static int open_with_standard_closed(void)
{
    struct fm_file f;
    struct fm_output o;
    struct fm_err err = {0};
    int fd = -1;
    close(0);
    close(1);
    if (fm_file_open(&f, scratch("plain"), &err) != FM_OK || f.fd < 3)
        return 100;
    if (fm_output_open(&o, scratch("high"), true, false, &err) != FM_OK || o.fd < 3)
        return 101;
    if (fm_file_temp(&fd, &err) != FM_OK || fd < 3)
        return 102;
    fm_output_abandon(&o);
    return FM_OK;
}

TEST(files_never_take_the_place_of_standard_streams)
{
    scratch_write("plain", "abc", 3);
    assert_int_equal(in_child(open_with_standard_closed, -2, -2), FM_OK);
}

TEST(temporary_files_keep_what_they_are_given)
{
    int fd = -1;
    char b[4];
    uint64_t room = 0;
    assert_ok(fm_file_temp(&fd, &err));
    assert_ok(fm_file_temp_write(fd, 1000, "abcd", 4, &err));
    assert_ok(fm_file_temp_read(fd, 1000, b, 4, &err));
    assert_memory_equal(b, "abcd", 4);
    assert_int_equal(fm_file_temp_read(fd, 1001, b, 4, &err), FM_EIO);
    close(fd);
    setenv("TMPDIR", "/nonexistent", 1);
    assert_fails(fm_file_temp(&fd, &err), FM_ECREATE, "set TMPDIR");
    setenv("TMPDIR", scratch_root, 1);
    assert_ok(fm_file_temp(&fd, &err));
    close(fd);
    unsetenv("TMPDIR");
    assert_ok(fm_file_free_space(scratch("not-yet"), &room, &err));
    assert_true(room > 0);
    assert_ok(fm_file_free_space("not-yet", &room, &err));
    assert_ok(fm_file_free_space(scratch("not-yet//"), &room, &err));
    assert_int_equal(fm_file_free_space("/nonexistent/x", &room, &err), FM_ENOENT);
}

int main(void)
{
    scratch(""); /* children share the directory */
    return tests_run(NULL, NULL);
}
