/* Fuzz the readers of token files: ids must be in the vocabulary. */
#include "tests/fuzz/fuzz.h"

#include "formats/text/tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_tokens t;
    struct fm_err err = {0};
    int32_t ids[64];
    int rc = fm_tokens_open(&t, fuzz_file(data, size), &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_EUSAGE) && err.text[0]));
    if (rc != FM_OK)
        return 0;
    must(t.count > 0 && t.data + t.count * (uint64_t)t.width == size);
    must(t.rows == 0 || t.rows * t.cols == t.count);
    uint64_t n = t.count < 64 ? t.count : 64;
    if (fm_tokens_read(&t, t.count - n, ids, n, 1000, &err) == FM_OK)
        for (uint64_t i = 0; i < n; i++)
            must(ids[i] >= 0 && ids[i] < 1000);
    fm_tokens_close(&t);
    return 0;
}

/* Mutate the text of an npy header and correct its length; in half of the cases, give the data the
 * size of a small shape. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    static const uint8_t magic[8] = "\x93NUMPY\1";
    size_t n = size < 10 ? 0 : (size_t)fuzz_little(data + 8, 2);
    if (size < 10 || memcmp(data, magic, 8) != 0 || n > size - 10 || fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    size_t room = capacity - 10 < UINT16_MAX ? capacity - 10 : UINT16_MAX;
    size_t rest = size - 10 - n;
    uint8_t *tail = malloc(rest + 1);
    must(tail != NULL);
    memcpy(tail, data + 10 + n, rest);
    n = fuzz_json(data + 10, n, room, seed);
    fuzz_put_little(data + 8, n, 2);
    size_t want = fuzz_draw(&seed, 2) ? rest : 8 * (size_t)fuzz_draw(&seed, 9);
    want = want < capacity - 10 - n ? want : capacity - 10 - n;
    memset(data + 10 + n, 0, want);
    memcpy(data + 10 + n, tail, rest < want ? rest : want);
    free(tail);
    return 10 + n + want;
}

FUZZ_MAIN
