/* Fuzz the reader of tokenizer.json, and use it to encode the same bytes. */
#include "tests/fuzz/fuzz.h"

#include "formats/text/tokenizer.h"
#include "formats/text/tokenizerparts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_tokenizer *t = NULL;
    struct fm_encoder *e = NULL;
    struct fm_err err = {0};
    const int32_t *ids;
    size_t n;
    int rc = fm_tokenizer_open(&t, fuzz_file(data, size), &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_ECONFIG) && err.text[0]));
    if (rc != FM_OK)
        return 0;
    must(fm_encoder_new(&e, t, &err) == FM_OK);
    rc = fm_encoder_run(e, (const char *)data, size < 4096 ? size : 4096, &ids, &n, &err);
    must(rc == FM_OK || rc == FM_EFORMAT);
    for (size_t i = 0; rc == FM_OK && i < n; i++)
        must(ids[i] >= 0 && ids[i] <= t->last);
    fm_encoder_free(e);
    fm_tokenizer_close(t);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
