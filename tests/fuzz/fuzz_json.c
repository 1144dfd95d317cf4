/* Fuzz the readers of JSON: the scanner; the tree, which is printed and read again; and the index
 * of a checkpoint. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "formats/json/json.h"
#include "formats/tensor/hfindex.h"

static void prints_what_it_read(const cJSON *tree)
{
    struct fm_err err = {0};
    cJSON *again = NULL;
    char *text = fm_json_print(tree);
    must(text != NULL);
    must(fm_json_tree(&again, text, strlen(text), &err) == FM_OK);
    char *same = fm_json_print(again);
    must(same && strcmp(text, same) == 0);
    cJSON_Delete(again);
    free(same);
    free(text);
}

static void scan_strings(const char *text, size_t size)
{
    struct fm_json j;
    struct fm_err err = {0};
    char dst[16];
    uint64_t value = 0;
    fm_json_init(&j, text, size);
    if (fm_json_text(&j, dst, sizeof dst, &err) == FM_OK)
        must(strlen(dst) < sizeof dst);
    fm_json_init(&j, text, size);
    if (fm_json_uint(&j, &value, &err) == FM_OK)
        must(value <= INT64_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_err err = {0};
    cJSON *tree = NULL;
    int rc = fm_json_tree(&tree, (const char *)data, size, &err);
    must(rc == FM_OK ? tree != NULL : rc == FM_EFORMAT && err.text[0]);
    if (rc == FM_OK) {
        must(fm_json_check((const char *)data, size, &err) == FM_OK);
        prints_what_it_read(tree);
    }
    cJSON_Delete(tree);
    scan_strings((const char *)data, size);

    struct fm_file f;
    struct fm_hfindex x;
    must(fm_file_open(&f, fuzz_file(data, size), &err) == FM_OK);
    if (fm_hfindex_open(&x, &f, &err) == FM_OK)
        for (size_t i = 0; i < x.count; i++)
            must(fm_hfindex_find(&x, x.entry[i].tensor) == &x.entry[i] &&
                 !strchr(x.entry[i].shard, '/'));
    fm_hfindex_close(&x);
    fm_file_close(&f);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
