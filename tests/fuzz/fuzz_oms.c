/* Fuzz the readers of a signature's envelope and of its statement.  Sizes must be consistent; names
 * of files must be valid and in increasing order. */
#include "tests/fuzz/fuzz.h"

#include "formats/sign/oms.h"

static void read_statement(const char *payload, size_t size)
{
    struct fm_oms m;
    struct fm_err err = {0};
    int rc = fm_oms_read_statement(&m, payload, size, &err);
    must(rc == FM_OK || (rc == err.code && err.text[0]));
    for (size_t i = 0; rc == FM_OK && i < m.resources; i++) {
        const char *name = m.resource[i].name;
        must((m.resources == 1 && strcmp(name, FM_OMS_FILE) == 0) ||
             fm_oms_check_name(name, &err) == FM_OK);
        must(i == 0 || strcmp(m.resource[i - 1].name, name) < 0);
    }
    fm_oms_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_oms_envelope e;
    struct fm_err err = {0};
    int rc = fm_oms_read_envelope(&e, (const char *)data, size, &err);
    must(rc == FM_OK || (rc == err.code && err.text[0]));
    if (rc == FM_OK) {
        must(e.payload_size < e.pae_size && e.signature_size <= sizeof e.signature &&
             strlen(e.hint) < sizeof e.hint);
        read_statement(e.pae + e.pae_size - e.payload_size, e.payload_size);
    }
    fm_oms_envelope_release(&e);
    read_statement((const char *)data, size);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
