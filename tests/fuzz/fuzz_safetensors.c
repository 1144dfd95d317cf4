/* Fuzz the reader of safetensors files: an accepted file must be consistent with its header. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "formats/tensor/safetensors.h"

static void keeps_its_promises(const struct fm_safetensors *st, uint64_t size)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < st->count; i++) {
        const struct fm_tensor *t = &st->tensor[i];
        must(t->offset >= st->header_bytes && t->offset <= size && t->size <= size - t->offset);
        must(fm_tensor_count(t) * (uint64_t)fm_dtype_bits(t->dtype) == 8 * t->size);
        must(fm_safetensors_find(st, t->name) == t);
        must(i == 0 || strcmp(st->tensor[i - 1].name, t->name) < 0);
        bytes += t->size;
    }
    must(st->header_bytes + bytes == size);
    for (const char **m = st->metadata; *m; m += 2)
        must(fm_safetensors_metadata(st, m[0]) == m[1]);
}

/* A file planned for these tensors must be as long as its header and the tensors. */
static void can_be_written_again(const struct fm_safetensors *st)
{
    struct fm_tensor *copy = malloc((st->count + 1) * sizeof *copy);
    char *header = NULL;
    uint64_t header_bytes = 0, file_bytes = 0, bytes = 0;
    struct fm_err err = {0};
    must(copy != NULL);
    if (st->count)
        memcpy(copy, st->tensor, st->count * sizeof *copy);
    must(fm_safetensors_plan(copy, st->count, st->metadata, &header, &header_bytes, &file_bytes,
                             &err) == FM_OK);
    for (size_t i = 0; i < st->count; i++)
        bytes += st->tensor[i].size;
    must(file_bytes == header_bytes + bytes && header_bytes % FM_ST_ALIGN == 0);
    free(header);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_file f;
    struct fm_safetensors st;
    struct fm_err err = {0};
    if (fm_file_open(&f, fuzz_file(data, size), &err) != FM_OK)
        abort();
    int rc = fm_safetensors_open(&st, &f, 0, f.size, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    if (rc == FM_OK) {
        keeps_its_promises(&st, size);
        can_be_written_again(&st);
    }
    fm_safetensors_close(&st);
    fm_file_close(&f);
    return 0;
}

FUZZ_MUTATOR(fuzz_safetensors)
FUZZ_MAIN
