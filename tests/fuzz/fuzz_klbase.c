/* Fuzz the reader of base-logits files: tokens must be in the vocabulary, and values finite. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "formats/text/klbase.h"

static void try_row(const struct fm_klbase *b, int32_t chunk, int i)
{
    struct fm_err err = {0};
    float *logprob = malloc((size_t)b->shape.vocabulary * sizeof *logprob);
    void *row = malloc(fm_klbase_row_bytes(b->shape.vocabulary));
    must(logprob && row);
    int rc = fm_klbase_logprobs(b, chunk, i, logprob, row, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    for (int32_t k = 0; rc == FM_OK && k < b->shape.vocabulary; k++)
        must(isfinite(logprob[k]) && logprob[k] < 0.01f);
    free(logprob);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size);
    struct fm_klbase b;
    struct fm_err err = {0};
    int rc = fm_klbase_open(&b, path, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    if (rc != FM_OK)
        return 0;
    must(fm_klbase_bytes(&b.shape) == size);
    int32_t *ids = malloc((size_t)b.shape.n_ctx * sizeof *ids), last = b.shape.chunks - 1;
    must(ids != NULL);
    if (fm_klbase_tokens(&b, last, ids, &err) == FM_OK)
        for (int32_t i = 0; i < b.shape.n_ctx; i++)
            must(ids[i] >= 0 && ids[i] < b.shape.vocabulary);
    try_row(&b, 0, 0);
    try_row(&b, last, fm_klbase_rows(b.shape.n_ctx) - 1);
    free(ids);
    fm_klbase_close(&b);
    return 0;
}

/* Mutate what follows the header; the header has a small shape, and the file the size of that
 * shape. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    if (size < 20 || fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    struct fm_klbase_shape shape = {(int32_t)(3 + fuzz_draw(&seed, 10)),
                                    (int32_t)(1 + fuzz_draw(&seed, 9)),
                                    (int32_t)(1 + fuzz_draw(&seed, 3))};
    size_t bytes = (size_t)fm_klbase_bytes(&shape);
    if (bytes > capacity)
        return size;
    size = size < bytes ? size : bytes;
    size_t at = 20 + fuzz_draw(&seed, (uint32_t)size - 19);
    size = at + LLVMFuzzerMutate(data + at, size - at, bytes - at);
    memset(data + size, 0, bytes > size ? bytes - size : 0);
    memcpy(data, "_logits_", 8);
    fuzz_put_little(data + 8, (uint64_t)shape.n_ctx, 4);
    fuzz_put_little(data + 12, (uint64_t)shape.vocabulary, 4);
    fuzz_put_little(data + 16, (uint64_t)shape.chunks, 4);
    return bytes;
}

FUZZ_MAIN
