/*
 * Fuzz the readers of small texts, most of them from our tools: a model card with front matter, an
 * fm-export.json with its table of files, a JSON text whose keys are replaced or removed, and a
 * report or plot that may be replaced.
 */
#include "tests/fuzz/fuzz.h"

#include "formats/json/json.h"
#include "formats/json/jsonedit.h"
#include "lib/bench/plot.h"
#include "lib/export/card.h"
#include "lib/export/filetable.h"
#include "lib/export/frontmatter.h"

static char *copy_of(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

static void read_card(const char *card, size_t size)
{
    static const char *const keys[] = {"license", "tags", "language"};
    char text[256] = "";
    for (int i = 0; i < 3; i++) {
        size_t before = strlen(text);
        bool there = fm_frontmatter_repeat(text, sizeof text, card, keys[i]);
        must(there ? text[strlen(text) - 1] == '\n' : strlen(text) == before);
    }
    struct fm_digest digest;
    struct fm_err err = {0};
    int rc = fm_card_digest(&digest, card, size, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
}

static void read_table(const char *text, size_t size)
{
    struct fm_filetable t = {0};
    struct fm_err err = {0};
    cJSON *json = NULL;
    if (fm_json_tree(&json, text, size, &err) != FM_OK)
        return;
    int rc = fm_filetable_read(&t, json, &err);
    must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
    for (size_t i = 0; rc == FM_OK && i < t.entries; i++)
        must(fm_filetable_find(&t, t.entry[i].name) == &t.entry[i]);
    fm_filetable_release(&t);
    cJSON_Delete(json);
}

static bool stays(void *self, const char *key, int depth)
{
    (void)self;
    return depth > 2 || strlen(key) % 3 != 0;
}

/* An edited text must still be JSON. */
static void edit(const uint8_t *data, size_t size)
{
    static const struct fm_jsonedit change[] = {{"a", "[1]"}, {"files", NULL}, {"new", "\"x\""}};
    for (int way = 0; way < 2; way++) {
        char *text = copy_of(data, size);
        size_t n = size;
        struct fm_err err = {0};
        bool was = fm_json_check(text, size, &err) == FM_OK;
        int rc = way == 0 ? fm_jsonedit_set(&text, &n, change, 3, &err)
                          : fm_jsonedit_prune(&text, &n, stays, NULL, &err);
        must(rc == FM_OK || (rc == FM_EFORMAT && err.text[0]));
        must(rc != FM_OK || !was || fm_json_check(text, n, &err) == FM_OK);
        free(text);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = copy_of(data, size);
    read_card(text, size);
    read_table(text, size);
    (void)fm_plot_is_own(text, size, "fm-bench");
    free(text);
    edit(data, size);
    return 0;
}

FUZZ_MUTATOR(fuzz_json_or_bytes)
FUZZ_MAIN
