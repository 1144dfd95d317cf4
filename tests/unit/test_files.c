/* Test the list of a directory's files to sign: some names at the top are ignored, and links that
 * lead elsewhere are refused. */
#include "lib/publish/files.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static const char *const none[] = {NULL};

static void link_to(const char *target, const char *name)
{
    scratch_check(symlink(target, scratch(name)) == 0, "symlink");
}

/* Check the names of the entries and, after '|', of the ignored files. */
static void lists(const char *name, const struct fm_files_rule *rule, uint64_t links,
                  const char *want)
{
    struct fm_files f;
    struct fm_err err = {0};
    char got[1024] = "";
    const char *path = scratch(name);
    if (fm_files_list(&f, path, rule, &err) != FM_OK)
        fail_msg("%s: %s", name, err.text);
    for (size_t i = 0; i < f.entries + f.ignored_count; i++) {
        strcat(got, i ? " " : "");
        strcat(got, i == f.entries ? "| " : "");
        strcat(got, i < f.entries ? f.entry[i].name : f.ignored[i - f.entries]);
    }
    assert_string_equal(got, want);
    assert_int_equal(f.links, links);
    fm_files_release(&f);
}

static void refuses(const char *name, int code, const char *why)
{
    struct fm_files f;
    struct fm_err err = {0};
    assert_fails(fm_files_list(&f, scratch(name), &(struct fm_files_rule){.without = none}, &err),
                 code, why);
    fm_files_release(&f);
}

static bool wants_git(const void *self, const char *name)
{
    (void)self;
    return strcmp(name, ".git") == 0;
}

TEST(names_at_the_top_are_ignored)
{
    static const char *const without[] = {"model.sig", NULL};
    static const char *const made[] = {"d", "d/.git", "d/.cache", "d/a", "d/a/.git", "d/.cachet"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        scratch_mkdir(made[i]);
        scratch_put(made[i], "f", "x");
    }
    scratch_put("d", ".gitattributes", "x");
    scratch_put("d", "model.sig", "x");
    scratch_put("d/a", "model.sig", "x");
    scratch_put("d", "a-b", "x"); /* '-' sorts before '/' */
    lists("d", &(struct fm_files_rule){.without = without}, 0,
          ".cachet/f a-b a/.git/f a/f a/model.sig f | .cache .git .gitattributes");
    lists("d", &(struct fm_files_rule){.without = without, .wants = wants_git}, 0,
          ".cachet/f .git/f a-b a/.git/f a/f a/model.sig f | .cache .gitattributes");
    lists("d/a-b", &(struct fm_files_rule){.without = without}, 0, ".");
}

TEST(only_links_to_own_blobs_are_followed)
{
    static const char *const made[] = {"models--a--b",
                                       "models--a--b/blobs",
                                       "models--c--d",
                                       "models--c--d/blobs",
                                       "models--a--b/snapshots",
                                       "models--a--b/snapshots/01",
                                       "models--a--b/snapshots/01/s"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        scratch_mkdir(made[i]);
    scratch_put("models--a--b/blobs", "70", "x");
    scratch_put("models--c--d/blobs", "70", "x");
    link_to("../../blobs/70", "models--a--b/snapshots/01/f");
    link_to("../../../blobs/70", "models--a--b/snapshots/01/s/f");
    lists("models--a--b/snapshots/01", &(struct fm_files_rule){.without = none}, 2, "f s/f");
    link_to("../../../models--c--d/blobs/70", "models--a--b/snapshots/01/g");
    refuses("models--a--b/snapshots/01", FM_ECONFIG, "'g' is a link to '");
}

TEST(other_types_of_files_are_refused)
{
    scratch_mkdir("e");
    scratch_mkdir("e/sub");
    link_to(".", "e/sub/loop");
    refuses("e", FM_ECONFIG, "'sub/loop' is a link to '");
    scratch_check(unlink(scratch("e/sub/loop")) == 0, "unlink");
    scratch_check(mkfifo(scratch("e/sub/pipe"), 0600) == 0, "mkfifo");
    refuses("e", FM_EFORMAT, "'sub/pipe' is neither a file nor a directory");
    refuses("e/sub/pipe", FM_EFORMAT, "is neither a file nor a directory");
    refuses("absent", FM_ENOENT, "cannot examine");
}

/* Two files, one of them large, have the digests of the examples in FIPS 180-4. */
TEST(digests_are_read_from_the_files)
{
    struct fm_files f;
    char hex[FM_SHA256_HEX], *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    scratch_mkdir("h");
    scratch_put("h", "abc", "abc");
    scratch_write("h/million", million, 1000000);
    free(million);
    const char *path = scratch("h");
    const struct fm_run_options run = {0};
    assert_ok(fm_files_list(&f, path, &(struct fm_files_rule){.without = none}, &err));
    assert_int_equal(fm_files_bytes(&f), 1000003);
    assert_ok(fm_files_hash(&f, &run, &err));
    fm_sha256_hex(hex, &f.entry[0].digest);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    fm_sha256_hex(hex, &f.entry[1].digest);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    fm_files_release(&f);
}

TEST_MAIN(NULL, NULL)
