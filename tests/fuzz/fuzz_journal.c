/* Fuzz the reader of a run's state file. */
#include "tests/fuzz/fuzz.h"

#include "lib/state/journal.h"

#define COUNT_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float value[COUNT_MAX];
    static int32_t index[COUNT_MAX];
    struct fm_journal j;
    struct fm_digest params;
    struct fm_err err = {0};
    bool found = false;
    const char *path = fuzz_file(data, size);
    must(fm_journal_params(&params, &err, "x") == FM_OK);
    int rc = fm_journal_open(&j, NULL, path, "fm-train", &params, &found, &err);
    must(rc == FM_OK || (rc == err.code && err.text[0]));
    must(rc != FM_OK || (found && fm_journal_is_own(path, "fm-train")));
    if (rc != FM_OK)
        return 0;
    const struct fm_journal_item item[] = {
        {.name = "value", .dtype = FM_F32, .count = fm_journal_count(&j, "value"), .data = value},
        {.name = "index", .dtype = FM_I32, .count = fm_journal_count(&j, "index"), .data = index}};
    if (item[0].count <= COUNT_MAX && item[1].count <= COUNT_MAX) {
        rc = fm_journal_read(&j, item, 2, &err);
        must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    }
    fm_journal_close(&j);
    return 0;
}

FUZZ_MUTATOR(fuzz_safetensors)
FUZZ_MAIN
