/*
 * Fuzz the opening of a checkpoint directory, config.json and one safetensors file, as the tools
 * open it (names and shapes of the family, codes and scales, GPTQ, exports).  The input is
 * config.json, the header of the safetensors file and its data, separated by NULs; the length
 * before the header is right, and the file is as long as the header says.
 */
#include "tests/fuzz/fuzz.h"

#include "formats/tensor/hfdir.h"
#include "lib/model/model.h"
#include "lib/model/source.h"

#define FILE_BYTES_MAX ((size_t)1 << 40) /* mostly a hole, which takes no memory */

static const char *dir;
static const char *const names[] = {"config.json", "model.safetensors"};

static void clean(void)
{
    char path[128];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* Make a file in memory, with a link to it under names[i]; returns its descriptor. */
static int make(int i)
{
    char path[128], to[64];
    int fd = memfd_create(names[i], MFD_CLOEXEC);
    snprintf(path, sizeof path, "%s/%s", dir, names[i]);
    snprintf(to, sizeof to, "/proc/self/fd/%d", fd);
    must(fd >= 0 && symlink(to, path) == 0);
    return fd;
}

static void put(int fd, size_t at, const void *bytes, size_t size)
{
    must(pwrite(fd, bytes, size, (off_t)at) == (ssize_t)size);
}

/* The next part of the input. */
static struct fuzz_token next(const uint8_t *data, size_t size, size_t *at)
{
    size_t from = *at < size ? *at : size;
    const uint8_t *end = memchr(data + from, 0, size - from);
    size_t n = end ? (size_t)(end - data) - from : size - from;
    *at = from + n + 1;
    return (struct fuzz_token){from, n};
}

static void open_model(void)
{
    struct fm_hfdir hf;
    struct fm_err err = {0};
    int rc = fm_hfdir_open(&hf, dir, &err);
    must(rc == FM_OK || (rc == err.code && err.text[0]));
    if (rc != FM_OK)
        return;
    struct fm_model *model = NULL;
    struct fm_tensors tensors;
    rc = fm_model_open_dir(&model, &hf, 0, &err);
    must(rc == FM_OK || (rc == err.code && err.text[0]));
    err = (struct fm_err){0};
    if (rc == FM_OK && fm_source_borrow(&tensors, &hf, &err) == FM_OK) {
        rc = fm_source_resolve(&tensors, fm_model_config(model), &err);
        rc = rc ? rc : fm_source_check(&tensors, &err);
        must(rc == FM_OK || (rc == err.code && err.text[0]));
        fm_source_close(&tensors);
    }
    fm_model_close(model);
    fm_hfdir_close(&hf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int config = -1, weights = -1;
    if (config < 0) {
        dir = fuzz_directory();
        atexit(clean);
        config = make(0);
        weights = make(1);
    }
    size_t at = 0;
    struct fuzz_token text = next(data, size, &at), header = next(data, size, &at);
    put(config, 0, data + text.at, text.size);
    must(ftruncate(config, (off_t)text.size) == 0);
    uint8_t length[8];
    fuzz_put_little(length, header.size, 8);
    put(weights, 0, length, 8);
    put(weights, 8, data + header.at, header.size);
    size_t begin = 8 + header.size;
    size_t bytes = fuzz_safetensors_end(data + header.at, header.size, FILE_BYTES_MAX);
    must(ftruncate(weights, (off_t)begin) == 0);
    if (at < size)
        put(weights, begin, data + at, size - at);
    must(bytes > FILE_BYTES_MAX || ftruncate(weights, (off_t)(begin + bytes)) == 0);
    open_model();
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
