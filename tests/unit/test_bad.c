/*
 * Read every file that tests/bad/make.py makes in build/bad, and compare the error with its line in
 * tests/bad/EXPECT: path, reader, exit code and text, separated by tabs.  A file without a line, or
 * a line without a file, is a failure, too.
 */
#include <dirent.h>
#include <limits.h>
#include <unistd.h>

#include "formats/bundle/bundle.h"
#include "formats/bundle/maskset.h"
#include "formats/file/file.h"
#include "formats/json/json.h"
#include "formats/sign/oms.h"
#include "formats/tensor/hfdir.h"
#include "formats/tensor/safetensors.h"
#include "formats/text/tokenizer.h"
#include "formats/text/tokens.h"
#include "lib/data/corpus.h"
#include "lib/model/model.h"
#include "tests/unit/test.h"

#define EXPECT "tests/bad/EXPECT"
#define VOCABULARY 100 /* of the token files */
#define LINES_MAX 1024

struct expectation {
    char *file, *reader, *text;
    int code;
};

static struct expectation expected[LINES_MAX];
static size_t count;
static char tokenizer[PATH_MAX];

static int read_safetensors(const char *path, struct fm_err *err)
{
    struct fm_file f;
    struct fm_safetensors st;
    int rc = fm_file_open(&f, path, err);
    if (rc != FM_OK)
        return rc;
    rc = fm_safetensors_open(&st, &f, 0, f.size, err);
    fm_safetensors_close(&st);
    fm_file_close(&f);
    return rc;
}

static int slurp(const char *path, char **text, size_t *size, struct fm_err *err)
{
    struct fm_file f;
    int rc = fm_file_open(&f, path, err);
    if (rc == FM_OK)
        rc = fm_file_slurp(&f, 1 << 20, text, size, err);
    fm_file_close(&f);
    return rc;
}

static int read_json(const char *path, struct fm_err *err)
{
    char *text = NULL;
    size_t size = 0;
    cJSON *tree = NULL;
    int rc = slurp(path, &text, &size, err);
    if (rc == FM_OK)
        rc = fm_json_tree(&tree, text, size, err);
    cJSON_Delete(tree);
    free(text);
    return rc;
}

static int read_config(const char *path, struct fm_err *err)
{
    char *text = NULL;
    size_t size = 0;
    struct fm_config config = {0};
    int rc = slurp(path, &text, &size, err);
    if (rc == FM_OK)
        rc = fm_config_parse(&config, text, size, err);
    fm_config_release(&config);
    free(text);
    return rc;
}

static int read_hfdir(const char *path, struct fm_err *err)
{
    struct fm_hfdir dir;
    int rc = fm_hfdir_open(&dir, path, err);
    fm_hfdir_close(&dir);
    return rc;
}

static int read_model(const char *path, struct fm_err *err)
{
    struct fm_model *model = NULL;
    int rc = fm_model_open(&model, path, 1 << 26, err);
    fm_model_close(model);
    return rc;
}

static int read_tokens(const char *path, struct fm_err *err)
{
    struct fm_tokens t;
    int32_t ids[64];
    int rc = fm_tokens_open(&t, path, err);
    if (rc == FM_OK)
        rc = fm_tokens_read(&t, 0, ids, t.count < 64 ? t.count : 64, VOCABULARY, err);
    fm_tokens_close(&t);
    return rc;
}

static int read_tokenizer(const char *path, struct fm_err *err)
{
    struct fm_tokenizer *t = NULL;
    int rc = fm_tokenizer_open(&t, path, err);
    fm_tokenizer_close(t);
    return rc;
}

static int read_text(const char *path, struct fm_err *err)
{
    const struct fm_run_options run = {.inputs.tokenizer = tokenizer};
    struct fm_corpus corpus;
    struct fm_tokens t;
    int rc = fm_corpus_encode(&corpus, &t, &run, path, 0, err);
    if (rc == FM_OK)
        fm_tokens_close(&t);
    return rc;
}

/* Read a stage stream, and every member of it. */
static int read_stream(const char *path, struct fm_err *err)
{
    struct fm_bundle b;
    int rc = fm_bundle_open(&b, path, err);
    for (size_t i = 0; rc == FM_OK && i < b.members; i++) {
        void *data = NULL;
        size_t size;
        rc = fm_bundle_read(&b, &b.member[i], &data, &size, err);
        free(data);
    }
    fm_bundle_close(&b);
    return rc;
}

/* Read eight widths. */
static int read_masks(const char *path, struct fm_err *err)
{
    char *frame = NULL;
    size_t size = 0;
    uint32_t widths[8];
    int rc = slurp(path, &frame, &size, err);
    if (rc == FM_OK)
        rc = fm_maskset_unpack(widths, 8, frame, size, err);
    free(frame);
    return rc;
}

/* Read the statement of a signature, without verifying it with a key. */
static int read_signature(const char *path, struct fm_err *err)
{
    char *text = NULL;
    size_t size = 0;
    struct fm_oms_envelope e = {0};
    struct fm_oms m = {0};
    int rc = slurp(path, &text, &size, err);
    if (rc == FM_OK)
        rc = fm_oms_read_envelope(&e, text, size, err);
    if (rc == FM_OK)
        rc = fm_oms_read_statement(&m, e.pae + e.pae_size - e.payload_size, e.payload_size, err);
    fm_oms_release(&m);
    fm_oms_envelope_release(&e);
    free(text);
    return rc;
}

static const struct {
    const char *name;
    int (*read)(const char *path, struct fm_err *err);
} readers[] = {
    {"safetensors", read_safetensors},
    {"json", read_json},
    {"config", read_config},
    {"hfdir", read_hfdir},
    {"model", read_model},
    {"tokens", read_tokens},
    {"tokens-u16", read_tokens},
    {"tokens-u32", read_tokens},
    {"tokenizer", read_tokenizer},
    {"text", read_text},
    {"stream", read_stream},
    {"masks", read_masks},
    {"signature", read_signature},
};

static int read_by(const char *reader, const char *path, struct fm_err *err)
{
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(readers[i].name, reader) == 0)
            return readers[i].read(path, err);
    fail_msg(EXPECT ": no reader '%s'", reader);
    return -1;
}

static void load_expectations(void)
{
    static char text[1 << 18];
    FILE *f = fopen(EXPECT, "r");
    if (!f) {
        perror(EXPECT " (run from the root)");
        exit(1);
    }
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    for (char *line = strtok(text, "\n"); line && count < LINES_MAX; line = strtok(NULL, "\n")) {
        if (*line == '#')
            continue;
        struct expectation *e = &expected[count++];
        char *code = NULL;
        e->file = strsep(&line, "\t");
        e->reader = strsep(&line, "\t");
        code = strsep(&line, "\t");
        e->text = line ? line : "";
        e->code = code ? atoi(code) : -1;
    }
}

/* An expectation that ends in "..." is the beginning of the sentence. */
static bool is_expected(const char *text, const char *expected_text)
{
    size_t n = strlen(expected_text), dots = strlen("...");
    if (n > dots && strcmp(expected_text + n - dots, "...") == 0)
        return strncmp(text, expected_text, n - dots) == 0;
    return strcmp(text, expected_text) == 0;
}

TEST(every_file_meets_its_expectation)
{
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        const struct expectation *e = &expected[i];
        if (access(e->file, F_OK) != 0) {
            print_error("%s: expected, but not there\n", e->file);
            wrong++;
            continue;
        }
        int rc = read_by(e->reader, e->file, &err);
        if (rc == e->code && is_expected(rc ? err.text : "", e->text))
            continue;
        print_error("%s\t%s\t%d\t%s\n", e->file, e->reader, rc, rc ? err.text : "");
        wrong++;
    }
    print_message("%zu files\n", count);
    assert_true(count > 0);
    assert_int_equal(wrong, 0);
}

TEST(every_file_is_expected)
{
    DIR *d = opendir(".");
    size_t files = 0;
    assert_non_null(d);
    for (const struct dirent *f; (f = readdir(d));) {
        if (f->d_name[0] == '.')
            continue;
        size_t i = 0;
        size_t n = strlen(f->d_name); /* a directory is listed by a file in it: DIR/t.bin */
        while (i < count && (strncmp(expected[i].file, f->d_name, n) != 0 ||
                             (expected[i].file[n] && expected[i].file[n] != '/')))
            i++;
        if (i == count)
            fail_msg("%s is not in EXPECT", f->d_name);
        files++;
    }
    closedir(d);
    assert_true(files > 100);
}

int main(void)
{
    const char *build = getenv("BUILD");
    char folder[PATH_MAX];
    load_expectations();
    snprintf(folder, sizeof folder, "%s/bad", build ? build : "build");
    if (!realpath("golden/text/mixtral.json", tokenizer) || chdir(folder) != 0) {
        perror(folder);
        return 1;
    }
    return tests_run(NULL, NULL);
}
