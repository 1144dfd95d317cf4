/* Fuzz the readers of token indexes, Megatron's and datatrove's, with 8 bytes of tokens. */
#include "tests/fuzz/fuzz.h"

#include "formats/text/tokens.h"

static const char *dir;

static void must_link(const char *name, const char *to)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    must(symlink(to, path) == 0);
}

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
    static int index;
    if (!there) {
        char path[64];
        int fd = memfd_create("words", MFD_CLOEXEC);
        dir = fuzz_directory();
        must(fd >= 0 && write(fd, words, 8) == 8);
        atexit(clean);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        must_link("t.bin", path);
        must_link("t.ds", path);
        index = memfd_create("index", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", index);
        must_link("t.idx", path);
        must_link("t.ds.index", path);
        there = true;
    }
    must(pwrite(index, data, size, 0) == (ssize_t)size && ftruncate(index, (off_t)size) == 0);
    try("t.bin");
    try("t.ds");
    return 0;
}

/* Make an index of Megatron or datatrove that agrees with the 8 bytes of tokens, and usually change
 * a few of its bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    static const struct {
        uint8_t type, width;
    } types[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    uint32_t n = fuzz_draw(&seed, 12), documents = 1 + fuzz_draw(&seed, 5),
             kind = fuzz_draw(&seed, 4);
    if (kind == 0 || capacity < 512)
        return LLVMFuzzerMutate(data, size, capacity);
    if (kind == 1) {
        uint64_t end = 0, last = fuzz_draw(&seed, 2) ? 4 : 2;
        size = 8 * ((size_t)n + 1);
        for (size_t at = 0; at < size; at += 8) {
            end += fuzz_draw(&seed, (uint32_t)(last - end + 1));
            fuzz_put_little(data + at, at + 8 < size ? end : last, 8);
        }
    } else {
        uint32_t type = fuzz_draw(&seed, 6), width = types[type].width, left = 8 / width, done = 0;
        memcpy(data, "MMIDIDX\0", 9);
        fuzz_put_little(data + 9, 1, 8);
        data[17] = types[type].type;
        fuzz_put_little(data + 18, ++n, 8);
        fuzz_put_little(data + 26, documents, 8);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t here = i + 1 < n ? fuzz_draw(&seed, left + 1) : left;
            fuzz_put_little(data + 34 + 4 * i, here, 4);
            fuzz_put_little(data + 34 + 4 * n + 8 * i, (uint64_t)done * width, 8);
            done += here;
            left -= here;
        }
        for (uint32_t i = 0; i < documents; i++)
            fuzz_put_little(data + 34 + 12 * n + 8 * i, i + 1 < documents ? 0 : n, 8);
        size = 34 + 12 * (size_t)n + 8 * documents;
        if (kind == 3) { /* modes */
            memset(data + size, 0, n);
            size += n;
        }
    }
    if (fuzz_draw(&seed, 4)) {
        size_t at = fuzz_draw(&seed, (uint32_t)size), few = size - at < 8 ? size - at : 8;
        (void)LLVMFuzzerMutate(data + at, few, few);
    }
    return size;
}

FUZZ_MAIN
