/* Test which files are carried with a checkpoint, and which must not be, especially links to files
 * outside of it. */
#include "formats/tensor/carry.h"

#include <unistd.h>

#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static void link_to(const char *target, const char *dir, const char *name)
{
    scratch_check(symlink(target, scratch(scratch_inside(dir, name))) == 0, "symlink");
}

/* A checkpoint with config and weights under a fresh name. */
static const char *make(void)
{
    static const char json[] = "{\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}}";
    static char name[32];
    static int turn;
    snprintf(name, sizeof name, "model%d", turn++);
    scratch_mkdir(name);
    scratch_put(name, "config.json", "{}");
    scratch_safetensors(scratch_inside(name, "model.safetensors"), json, strlen(json), 6);
    return name;
}

static void list(struct fm_hfdir *dir, const char *name, const char *const *pattern)
{
    struct fm_err err = {0};
    assert_ok(fm_hfdir_open(dir, scratch(name), &err));
    assert_ok(fm_carry_list(dir, pattern, &err));
}

static void carries(const char *name, const char *const *pattern, const char *names)
{
    struct fm_hfdir dir;
    char got[1024] = "";
    list(&dir, name, pattern);
    for (size_t i = 0; i < dir.carried_count; i++) {
        strcat(got, i ? " " : "");
        strcat(got, dir.carried[i].name);
    }
    assert_string_equal(got, names);
    fm_hfdir_close(&dir);
}

static void leaves(const char *name, const char *const *pattern, const char *names)
{
    struct fm_hfdir dir;
    char got[1024] = "";
    list(&dir, name, pattern);
    for (size_t i = 0; i < dir.left_count; i++) {
        strcat(got, i ? " " : "");
        strcat(got, dir.left[i]);
    }
    assert_string_equal(got, names);
    assert_int_equal(dir.left_more, 0);
    fm_hfdir_close(&dir);
}

static void is_refused(const char *name, const char *const *pattern, int code, const char *text)
{
    struct fm_hfdir dir;
    struct fm_err err = {0};
    assert_ok(fm_hfdir_open(&dir, scratch(name), &err));
    assert_fails(fm_carry_list(&dir, pattern, &err), code, text);
    if (strstr(text, "outside the checkpoint"))
        assert_int_equal(err.advice, FM_ADVISE_CARRY);
    fm_hfdir_close(&dir);
}

TEST(carries_what_a_runtime_needs)
{
    const char *name = make();
    const char *const wanted[] = {"tokenizer.json",
                                  "README.md",
                                  "LICENSE.txt",
                                  "chat_template.jinja",
                                  "modeling_x.py",
                                  "generation_config.json",
                                  "merges.txt",
                                  "qwen.tiktoken",
                                  "tokenizer.model.v3",
                                  "Notice.txt.md",
                                  "NOTICE",
                                  "License.txt",
                                  "MODEL_LICENSE",
                                  "tiktoken.model",
                                  "LICENSE-MODEL",
                                  "THIRD_PARTY_NOTICES.md",
                                  "Copyright",
                                  "ACCEPTABLE_USE.md",
                                  "AUTHORS",
                                  "Community-Agreement.pdf",
                                  "EULA.txt",
                                  "PATENTS",
                                  "Terms_of_Use.md",
                                  "readme.txt",
                                  "Llama_Use_Policy.md",
                                  "source.spm",
                                  "x_tokenizer.model"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        scratch_put(name, wanted[i], "x");
    const char *const left[] = {"pytorch_model.bin",
                                "pytorch_model.bin.index.json",
                                "consolidated.00.pth",
                                "consolidated.params.json",
                                "model.gguf",
                                ".gitattributes",
                                "a b.txt",
                                "calib.npy",
                                "train.bin",
                                "id_rsa",
                                "notes.txt",
                                "tokens.npy"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        scratch_put(name, left[i], "x");
    scratch_check(mkfifo(scratch(scratch_inside(name, "tokenizer.fifo")), 0600) == 0, "mkfifo");
    scratch_mkdir(scratch_inside(name, "onnx"));
    carries(
        name, NULL,
        "ACCEPTABLE_USE.md AUTHORS Community-Agreement.pdf Copyright EULA.txt LICENSE-MODEL "
        "LICENSE.txt License.txt Llama_Use_Policy.md MODEL_LICENSE NOTICE Notice.txt.md PATENTS "
        "README.md THIRD_PARTY_NOTICES.md Terms_of_Use.md chat_template.jinja config.json "
        "generation_config.json merges.txt modeling_x.py qwen.tiktoken readme.txt source.spm "
        "tiktoken.model tokenizer.json tokenizer.model.v3 x_tokenizer.model");
    leaves(name, NULL, "a b.txt calib.npy id_rsa notes.txt onnx/ tokenizer.fifo tokens.npy");
    leaves(name, (const char *const[]){"notes.*", "calib.npy", NULL},
           "a b.txt id_rsa onnx/ tokenizer.fifo tokens.npy");
    is_refused(name, (const char *const[]){"*.doc", NULL}, FM_EUSAGE, "has no file '*.doc'");
    is_refused(name, (const char *const[]){"model.gguf", NULL}, FM_EUSAGE, "that can be copied");
}

TEST(gives_the_bytes_that_were_there)
{
    struct fm_hfdir dir;
    const char *name = make();
    scratch_put(name, "tokenizer.json", "{\"t\": 1}");
    scratch_put(name, "README.md", "");
    list(&dir, name, NULL);
    assert_int_equal(dir.carried[2].size, 8);
    assert_int_equal(dir.carried[0].size, 0);
    /* each file is read once: a change during the run, here of the same size, is not carried */
    scratch_put(name, "tokenizer.json", "{\"t\": 2}");
    scratch_put(name, "config.json", "[]");
    assert_string_equal(dir.carried[2].text, "{\"t\": 1}");
    assert_string_equal(dir.carried[1].text, "{}");
    assert_string_equal(dir.carried[0].text, "");
    fm_hfdir_close(&dir);
}

TEST(refuses_files_that_changed_since_the_checkpoint_was_opened)
{
    for (size_t i = 0; i < FM_HFDIR_READ; i++) {
        struct fm_hfdir dir;
        const char *name = make();
        scratch_put(name, fm_hfdir_read[i], "{}");
        assert_ok(fm_hfdir_open(&dir, scratch(name), &err));
        usleep(20000); /* the clock of file times has steps of up to 10 ms */
        scratch_put(name, fm_hfdir_read[i], "{ }");
        assert_fails(fm_carry_list(&dir, NULL, &err), FM_EIO, "was changed while it was read");
        fm_hfdir_close(&dir);
    }
}

TEST(carries_as_many_files_as_the_limit)
{
    const char *name = make();
    char file[32], names[2048] = "";
    for (int i = 0; i < FM_CARRIED_MAX - 1; i++) {
        snprintf(file, sizeof file, "LICENSE-%02d", i);
        scratch_put(name, file, "");
        strcat(strcat(names, file), " ");
    }
    struct fm_hfdir dir;
    list(&dir, name, NULL);
    assert_int_equal(dir.carried_count, FM_CARRIED_MAX);
    fm_hfdir_close(&dir);
    scratch_put(name, "README", "");
    is_refused(name, NULL, FM_ECONFIG, "one file too many");
    scratch_check(unlink(scratch(scratch_inside(name, "LICENSE-00"))) == 0, "unlink");
    scratch_check(truncate(scratch(scratch_inside(name, "README")), 268435457) == 0, "truncate");
    is_refused(name, NULL, FM_ECONFIG, "one file too many");
}

TEST(counts_what_is_left_out_beyond_the_limit)
{
    const char *name = make();
    char file[32];
    for (int i = 0; i < FM_CARRIED_MAX + 3; i++) {
        snprintf(file, sizeof file, "n%02d.txt", i);
        scratch_put(name, file, "");
    }
    struct fm_hfdir dir;
    list(&dir, name, NULL);
    assert_int_equal(dir.left_count, FM_CARRIED_MAX);
    assert_int_equal(dir.left_more, 3);
    fm_hfdir_close(&dir);
}

TEST(follows_links_inside_and_into_a_cache)
{
    static const char snapshot[] = "models--a--b/snapshots/0123";
    const char *name = make();
    scratch_put(name, "real.jinja", "x");
    link_to("real.jinja", name, "chat_template.jinja");
    carries(name, NULL, "chat_template.jinja config.json real.jinja");
    scratch_mkdir("models--a--b");
    scratch_mkdir("models--a--b/blobs");
    scratch_mkdir("models--a--b/snapshots");
    scratch_mkdir(snapshot);
    scratch_put("models--a--b/blobs", "70", "tokenizer");
    scratch_put(snapshot, "config.json", "{}");
    link_to("../../../model0/model.safetensors", snapshot, "model.safetensors");
    link_to("../../blobs/70", snapshot, "tokenizer.json");
    carries(snapshot, NULL, "config.json tokenizer.json");
    struct fm_hfdir dir;
    list(&dir, snapshot, NULL);
    assert_int_equal(dir.carried[1].size, 9);
    fm_hfdir_close(&dir);
    scratch_check(unlink(scratch("models--a--b/blobs/70")) == 0, "unlink");
    is_refused(snapshot, NULL, FM_ENOENT, "cannot examine 'tokenizer.json'");
}

/* A private file to which a link in a downloaded checkpoint points must not become part of a
 * bundle, unless a pattern names the link. */
TEST(refuses_links_that_lead_elsewhere)
{
    const char *name = make();
    scratch_mkdir("home");
    scratch_mkdir("home/blobs");
    scratch_put("home", "secret", "s3cret");
    scratch_put("home/blobs", "secret", "s3cret");
    link_to("../home/secret", name, "tokenizer.json");
    is_refused(name, NULL, FM_ECONFIG, "'tokenizer.json' is a link to '");
    is_refused(name, NULL, FM_ECONFIG, "home/secret', outside the checkpoint");
    carries(name, (const char *const[]){"tokenizer.json", NULL}, "config.json tokenizer.json");
    scratch_check(unlink(scratch(scratch_inside(name, "tokenizer.json"))) == 0, "unlink");
    link_to(scratch("home/blobs/secret"), name, "LICENSE"); /* blobs, but not those of a cache */
    is_refused(name, NULL, FM_ECONFIG, "'LICENSE' is a link to '");
    scratch_check(unlink(scratch(scratch_inside(name, "LICENSE"))) == 0, "unlink");
    link_to("../home/secret", name, "id_rsa"); /* a file that is not carried */
    carries(name, NULL, "config.json");
    scratch_check(unlink(scratch(scratch_inside(name, "config.json"))) == 0, "unlink");
    scratch_put("home", "config.json", "{}");
    link_to("../home/config.json", name, "config.json");
    is_refused(name, NULL, FM_ECONFIG, "'config.json' is a link to '");
}

/* The cache may also contain private repositories. */
TEST(refuses_blobs_of_another_repository)
{
    static const char snapshot[] = "models--c--d/snapshots/0123";
    const char *name = make();
    const char *made[] = {"models--c--d", "models--c--d/blobs", "models--c--d/snapshots",
                          snapshot,       "models--c--secret",  "models--c--secret/blobs"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        scratch_mkdir(made[i]);
    scratch_put("models--c--secret/blobs", "70", "s3cret");
    scratch_put("models--c--d/blobs", "70", "tokenizer");
    scratch_put(snapshot, "config.json", "{}");
    link_to(scratch(scratch_inside(name, "model.safetensors")), snapshot, "model.safetensors");
    link_to("../../../models--c--secret/blobs/70", snapshot, "tokenizer.json");
    is_refused(snapshot, NULL, FM_ECONFIG, "models--c--secret/blobs/70', outside the checkpoint");
    carries(snapshot, (const char *const[]){"tokenizer.json", NULL}, "config.json tokenizer.json");
    /* A blob of this repository that is itself a link out of it */
    scratch_check(unlink(scratch(scratch_inside(snapshot, "tokenizer.json"))) == 0, "unlink");
    link_to("../../blobs/71", snapshot, "tokenizer.json");
    link_to("../../models--c--secret/blobs/70", "models--c--d/blobs", "71");
    is_refused(snapshot, NULL, FM_ECONFIG, "models--c--secret/blobs/70', outside the checkpoint");
    /* From a directory that is not a snapshot, to blobs of any repository */
    link_to("../models--c--d/blobs/70", name, "tokenizer.json");
    is_refused(name, NULL, FM_ECONFIG, "models--c--d/blobs/70', outside the checkpoint");
}

TEST_MAIN(NULL, NULL)
