/*
 * Fuzz fm-verify of a pipe, which checks weights as they pass, before the end of the stream is
 * known: bundles in one file or in parts, cut off anywhere, with other values in the manifest.  It
 * must accept exactly what it accepts as a file.
 */
#include "lib/verify/verify.h"
#include "tests/fuzz/fuzz.h"

#define BLOCK 512

/* Standard input becomes a file that is not at its start, which is read as a pipe is. */
static void give(const uint8_t *data, size_t size)
{
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("fuzz-pipe", MFD_CLOEXEC);
    must(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 1) == (ssize_t)size &&
         dup2(fd, STDIN_FILENO) == STDIN_FILENO && lseek(fd, 1, SEEK_SET) == 1);
}

static int verify(const char *target)
{
    struct fm_run_options run = {0};
    struct fm_verify_options options = {.target = target};
    struct fm_verify_report report;
    struct fm_err err = {0};
    int rc = fm_verify(&run, &options, &report, &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_EDIFF || rc == FM_ECONFIG) &&
                         err.code == rc && err.text[0]));
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    give(data, size);
    int piped = verify("-"), whole = verify(fuzz_file(data, size));
    must((piped == FM_OK) == (whole == FM_OK));
    return 0;
}

/* The size of the manifest, which is the first member; 0 if it is missing. */
static size_t manifest_size(const uint8_t *data, size_t size)
{
    char digits[12] = "";
    if (size < BLOCK || memcmp(data, "manifest.json", 13) != 0)
        return 0;
    memcpy(digits, data + 124, 11); /* the size field of a tar header */
    size_t n = strtoul(digits, NULL, 8);
    return n <= size - BLOCK ? n : 0;
}

/* Change a value of the manifest, at the same size; cut the stream off, at a block and among the
 * weights, which come last, in half of the cases; or change any bytes. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    size_t n = manifest_size(data, size);
    uint32_t kind = fuzz_draw(&seed, 8);
    if (!n || kind == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    if (kind < 6) {
        uint8_t *text = malloc(2 * n);
        must(text != NULL);
        memcpy(text, data + BLOCK, n);
        size_t now = fuzz_json(text, n, 2 * n, seed);
        while (now > n && text[now - 1] == ' ')
            now--;
        if (now <= n) {
            memcpy(data + BLOCK, text, now);
            memset(data + BLOCK + now, ' ', n - now);
        }
        free(text);
    }
    if (kind > 3) {
        size_t at = fuzz_draw(&seed, (uint32_t)size + 1);
        if (fuzz_draw(&seed, 2))
            at = size / 2 + at / 2 - (size / 2 + at / 2) % BLOCK;
        size = at;
    }
    return size;
}

FUZZ_MAIN
