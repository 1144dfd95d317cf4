/* Fuzz the matching of modules.  The first line is an entry of a list of modules in
 * quantization_config, the others are names of modules. */
#include "tests/fuzz/fuzz.h"

#include "lib/base/modules.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_modules modules;
    char *text = malloc(size + 1), *line = text;
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    const char *entry = strsep(&line, "\n");
    if (fm_modules_read(&modules, entry)) {
        bool plain = strncmp(entry, "re:", 3) != 0 && !strchr(entry, '*');
        if (plain && entry[0])
            must(fm_modules_match(&modules, entry));
        while (line)
            (void)fm_modules_match(&modules, strsep(&line, "\n"));
        fm_modules_release(&modules);
    }
    free(text);
    return 0;
}

FUZZ_MAIN
