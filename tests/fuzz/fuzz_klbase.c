/* Any bytes as a base-logits file: tokens that are read are in the vocabulary, values finite. */
#include "tests/fuzz/fuzz.h"

#include <math.h>

#include "formats/text/klbase.h"

static void must(int ok)
{
    if (!ok)
        abort();
}

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

FUZZ_MAIN
