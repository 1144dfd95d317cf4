/* Any bytes as the index of a pair, Megatron's and datatrove's, beside 8 bytes of tokens. */
#include "tests/fuzz/fuzz.h"

#include "formats/text/tokens.h"

static void must(int ok)
{
    if (!ok)
        abort();
}

static void must_link(const char *dir, const char *name, const char *to)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    must(symlink(to, path) == 0);
}

static char dir[] = "/tmp/fm-fuzz-XXXXXX";

static void clean(void)
{
    static const char *const names[] = {"t.bin", "t.idx", "t.ds", "t.ds.index"};
    char path[128];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void try(const char *name)
{
    struct fm_tokens t;
    struct fm_err err = {0};
    char path[128];
    int32_t ids[8];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int rc = fm_tokens_open(&t, path, FM_TOKEN_AUTO, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    if (rc != FM_OK)
        return;
    must(t.count > 0 && t.data == 0 && t.count * (uint64_t)t.width == 8);
    if (fm_tokens_read(&t, 0, ids, t.count, 1000, &err) == FM_OK)
        for (uint64_t i = 0; i < t.count; i++)
            must(ids[i] >= 0 && ids[i] < 1000);
    fm_tokens_close(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint16_t words[4] = {1, 2, 3, 4};
    static bool there;
    const char *index = fuzz_file(data, size);
    if (!there) {
        char path[64];
        int fd = memfd_create("words", MFD_CLOEXEC);
        must(mkdtemp(dir) != NULL && fd >= 0 && write(fd, words, 8) == 8);
        atexit(clean);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        must_link(dir, "t.bin", path);
        must_link(dir, "t.ds", path);
        must_link(dir, "t.idx", index);
        must_link(dir, "t.ds.index", index);
        there = true;
    }
    try("t.bin");
    try("t.ds");
    return 0;
}

FUZZ_MAIN
