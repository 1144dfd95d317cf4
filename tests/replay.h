/*
 * main() of a fuzz program that is built without a fuzzer: runs the entry on every file given,
 * and on RUNS mutations of each (bytes set, flipped, cut, repeated) drawn from a fixed seed.
 *     build/tests/fuzz_bundle [-n RUNS] FILE...
 */
#ifndef FM_TESTS_REPLAY_H
#define FM_TESTS_REPLAY_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef FM_FUZZ

#include "lib/base/rng.h"

#define REPLAY_BYTES_MAX (1 << 26)

/* One to eight edits; the copy may become shorter or up to 64 bytes longer. */
static size_t replay_mutate(uint8_t *bytes, size_t size, size_t capacity, uint32_t run)
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

static int replay_file(const char *path, uint32_t runs)
{
    FILE *f = fopen(path, "rb");
    uint8_t *bytes = malloc(REPLAY_BYTES_MAX);
    if (!f || !bytes) {
        perror(path);
        exit(1);
    }
    size_t size = fread(bytes, 1, REPLAY_BYTES_MAX - 4096, f), capacity = size + 4096;
    fclose(f);
    LLVMFuzzerTestOneInput(bytes, size);
    for (uint32_t run = 0; run < runs; run++) {
        uint8_t *copy = malloc(capacity);
        if (!copy)
            exit(1);
        memcpy(copy, bytes, size);
        LLVMFuzzerTestOneInput(copy, replay_mutate(copy, size, capacity, run));
        free(copy);
    }
    free(bytes);
    return 1;
}

int main(int argc, char **argv)
{
    uint32_t runs = 0;
    int files = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc)
            runs = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            files += replay_file(argv[i], runs);
    }
    printf("%d files\n", files);
    return files > 0 ? 0 : 1;
}

#endif
#endif
