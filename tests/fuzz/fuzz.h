/*
 * Fuzz entry points: each tests/fuzz/fuzz_*.c defines LLVMFuzzerTestOneInput and ends with
 * FUZZ_MAIN.  With -DFM_FUZZ (clang -fsanitize=fuzzer,address,undefined) the fuzzer
 * brings its main; without, main runs the entry on every file given (of directories, on all in
 * them) and on RUNS mutations of each (bytes set, flipped, cut, repeated; always the same):
 *     build/tests/fuzz/fuzz_bundle [-n RUNS] FILE...
 * Status 0 once each has passed through, 1 where there was none.
 */
#ifndef FM_TESTS_FUZZ_H
#define FM_TESTS_FUZZ_H

#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input as a file that can be opened by name; the same file each time. */
static inline const char *fuzz_file(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

#ifdef FM_FUZZ
#define FUZZ_MAIN
#else

#define FUZZ_GROWTH_MAX 4096 /* bytes that mutations may add */

/* One to eight edits; the copy may become shorter or up to 64 bytes longer. */
static inline size_t fuzz_mutate(uint8_t *bytes, size_t size, size_t capacity, uint32_t run)
{
    uint32_t word[4];
    fm_rng_words(word, 1, run, 0);
    for (uint32_t edit = 0, edits = 1 + word[0] % 8; edit < edits && size > 0; edit++) {
        fm_rng_words(word, 1, run, 1 + edit);
        size_t at = (size_t)word[1] % size, n = 1 + (size_t)word[2] % 64;
        switch (word[0] % 6) {
        case 0:
            bytes[at] ^= (uint8_t)(1u << word[2] % 8);
            break;
        case 1:
            bytes[at] = (uint8_t)word[2];
            break;
        case 2: /* a digit: sizes and offsets are text */
            bytes[at] = (uint8_t)('0' + word[2] % 10);
            break;
        case 3:
            size = word[3] % 4 ? size : at;
            break;
        case 4:
            n = n < size - at ? n : size - at;
            memmove(bytes + at, bytes + at + n, size - at - n);
            size -= n;
            break;
        default:
            n = n < size - at ? n : size - at;
            if (size + n > capacity)
                break;
            memmove(bytes + at + n, bytes + at, size - at);
            size += n;
        }
    }
    return size;
}

/* In memory of exactly its size, so that a sanitizer sees one byte too far. */
static inline void fuzz_exactly(const uint8_t *bytes, size_t size)
{
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact)
        abort();
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static inline void fuzz_bytes(FILE *f, size_t size, uint32_t runs)
{
    size_t capacity = size + FUZZ_GROWTH_MAX;
    uint8_t *bytes = malloc(capacity), *copy = malloc(capacity);
    if (!bytes || !copy || fread(bytes, 1, size, f) != size)
        abort();
    fuzz_exactly(bytes, size);
    for (uint32_t run = 0; run < runs; run++) {
        memcpy(copy, bytes, size);
        fuzz_exactly(copy, fuzz_mutate(copy, size, capacity, run));
    }
    free(bytes);
    free(copy);
}

/* Files that were replayed. */
static inline int fuzz_replay(const char *path, uint32_t runs)
{
    struct stat st;
    int n = 0;
    FILE *f = fopen(path, "rb");
    if (!f || fstat(fileno(f), &st) != 0) {
        perror(path);
        exit(1);
    }
    if (S_ISREG(st.st_mode)) {
        fuzz_bytes(f, (size_t)st.st_size, runs);
        n = 1;
    }
    fclose(f);
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char inside[4096];
        snprintf(inside, sizeof inside, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            n += fuzz_replay(inside, runs);
    }
    if (d)
        closedir(d);
    return n;
}

#define FUZZ_MAIN                                                                                  \
    int main(int argc, char **argv)                                                                \
    {                                                                                              \
        uint32_t runs = 0;                                                                         \
        int n = 0;                                                                                 \
        for (int i = 1; i < argc; i++)                                                             \
            if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)                                        \
                runs = (uint32_t)strtoul(argv[++i], NULL, 10);                                     \
            else                                                                                   \
                n += fuzz_replay(argv[i], runs);                                                   \
        printf("%d inputs replayed, %u mutations of each\n", n, runs);                             \
        return n == 0;                                                                             \
    }
#endif

#endif
