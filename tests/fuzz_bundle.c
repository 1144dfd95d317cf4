/*
 * Fuzz everything that reads a stream of strangers: tar subset, manifest, checksums, typed members.
 *   clang -DFM_FUZZ -fsanitize=fuzzer,address,undefined -I. ... tests/fuzz_bundle.c
 * Without FM_FUZZ a program that replays files given as arguments.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/budgets.h"
#include "lib/lorafile.h"
#include "lib/ranking.h"
#include "lib/stage.h"
#include "tests/replay.h"

static void check(int code, const struct fm_err *err)
{
    if (code != FM_OK && (code != err->code || !err->text[0]))
        abort();
}

static void read_members(const struct fm_bundle *b)
{
    for (size_t i = 0; i < b->members; i++) {
        struct fm_err err = {0};
        void *data;
        size_t size;
        int code = fm_bundle_read(b, &b->member[i], &data, &size, &err);
        check(code, &err);
        if (code == FM_OK)
            free(data);
    }
}

static void read_typed(const struct fm_bundle *b)
{
    struct fm_err err = {0};
    struct fm_ranking ranking;
    struct fm_budgets budgets;
    struct fm_adapter adapter;
    check(fm_ranking_open(&ranking, b, &err), &err);
    fm_ranking_release(&ranking);
    err = (struct fm_err){0};
    check(fm_budgets_open(&budgets, b, &err), &err);
    fm_budgets_release(&budgets);
    err = (struct fm_err){0};
    check(fm_lorafile_open(&adapter, b, &err), &err);
    fm_adapter_release(&adapter);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[] = "/tmp/fm-fuzz-bundle-XXXXXX";
    static FILE *file;
    struct fm_bundle b;
    struct fm_err err = {0};
    if (!file) {
        int fd = mkstemp(path);
        file = fd < 0 ? NULL : fdopen(fd, "r+b");
    }
    if (!file || fseek(file, 0, SEEK_SET) || fwrite(data, 1, size, file) != size || fflush(file) ||
        ftruncate(fileno(file), (off_t)size))
        abort();
    fm_bundle_probe(path);
    int code = fm_bundle_open_head(&b, path, &err);
    check(code, &err);
    if (code == FM_OK)
        read_typed(&b);
    fm_bundle_close(&b);
    err = (struct fm_err){0};
    code = fm_stage_open(&b, path, NULL, &err);
    check(code, &err);
    if (code == FM_OK)
        read_members(&b);
    fm_bundle_close(&b);
    return 0;
}
