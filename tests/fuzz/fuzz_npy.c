/* Any bytes as a token file of every kind; ids that are read are in the vocabulary. */
#include "tests/fuzz/fuzz.h"

#include "formats/text/tokens.h"

static void must(int ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const enum fm_token_type kinds[] = {FM_TOKEN_AUTO, FM_TOKEN_U16, FM_TOKEN_U32};
    const char *path = fuzz_file(data, size);
    for (int k = 0; k < 3; k++) {
        struct fm_tokens t;
        struct fm_err err = {0};
        int32_t ids[64];
        int rc = fm_tokens_open(&t, path, kinds[k], &err);
        must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_EUSAGE) && err.text[0]));
        if (rc != FM_OK)
            continue;
        must(t.count > 0 && t.data + t.count * (uint64_t)t.width == size);
        must(t.rows == 0 || t.rows * t.cols == t.count);
        uint64_t n = t.count < 64 ? t.count : 64;
        if (fm_tokens_read(&t, t.count - n, ids, n, 1000, &err) == FM_OK)
            for (uint64_t i = 0; i < n; i++)
                must(ids[i] >= 0 && ids[i] < 1000);
        fm_tokens_close(&t);
    }
    return 0;
}

FUZZ_MAIN
