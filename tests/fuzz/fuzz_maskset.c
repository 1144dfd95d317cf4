/*
 * Fuzz the mask decoder.  The first two bytes are the count, the rest the frame.
 *   clang -DFM_FUZZ -fsanitize=fuzzer,address,undefined -I. ... tests/fuzz/fuzz_maskset.c
 * Without FM_FUZZ a program that replays files given as arguments.
 */
#include <stdint.h>
#include <stdlib.h>

#include "formats/bundle/maskset.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    size_t count = (size_t)data[0] << 8 | data[1];
    uint32_t *widths = malloc(count * sizeof *widths + 1);
    struct fm_err err = {0};
    int code = fm_maskset_unpack(widths, count, data + 2, size - 2, &err);
    if (code != FM_OK && (code != err.code || !err.text[0]))
        abort();
    free(widths);
    return 0;
}

FUZZ_MAIN
