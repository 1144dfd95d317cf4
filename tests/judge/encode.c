/*
 * Encode texts with a tokenizer.json, for tests/judge/textjudge.py.
 *     build/tests/judge/encode TOKENIZER.json <records >records
 * A record is a little-endian 32-bit count, followed by that many bytes of text (input) or 32-bit
 * ids (output); the count -1 means that the text was refused.  With a second argument it prints
 * only the processor time of encoding, in seconds, and the number of ids.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "formats/text/tokenizer.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    struct fm_err err = {0};
    struct fm_tokenizer *t;
    struct fm_encoder *e;
    uint32_t size;
    double seconds = 0;
    uint64_t total = 0;
    if (argc < 2 || fm_tokenizer_open(&t, argv[1], &err) != FM_OK ||
        fm_encoder_new(&e, t, &err) != FM_OK) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: encode TOKENIZER.json" : err.text);
        return argc < 2 ? 2 : err.code;
    }
    while (fread(&size, sizeof size, 1, stdin) == 1) {
        char *text = malloc((size_t)size + 1);
        const int32_t *ids = NULL;
        size_t n = 0;
        int32_t count = -1;
        if (!text || fread(text, 1, size, stdin) != size)
            return 1;
        double began = now();
        if (fm_encoder_run(e, text, size, &ids, &n, &err) == FM_OK)
            count = (int32_t)n;
        seconds += now() - began;
        total += n;
        if (argc == 2)
            fwrite(&count, sizeof count, 1, stdout);
        if (argc == 2 && n)
            fwrite(ids, sizeof *ids, n, stdout);
        free(text);
    }
    if (argc > 2)
        printf("%.6f %llu\n", seconds, (unsigned long long)total);
    fm_encoder_free(e);
    fm_tokenizer_close(t);
    return fflush(stdout) != 0;
}
