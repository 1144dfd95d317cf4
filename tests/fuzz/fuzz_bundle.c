/*
 * Fuzz everything that reads a stream of strangers: tar subset, manifest, checksums, typed members.
 *   clang -DFM_FUZZ -fsanitize=fuzzer,address,undefined -I. ... tests/fuzz/fuzz_bundle.c
 * Without FM_FUZZ a program that replays files given as arguments.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/bundle/archive.h"
#include "formats/json/json.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "tests/fuzz/fuzz.h"

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

/*
 * Digests keep a fuzzer from reaching the code after them.  So the members that can be found are
 * written again as a stream whose digests are right, around the manifest as it is.
 */
static int sign(const char *path, const struct fm_file *file, const struct fm_archive_member *m,
                size_t members)
{
    static const char *const order[] = {FM_MEMBER_BUILD, FM_MEMBER_RANKING, FM_MEMBER_MASKS,
                                        FM_MEMBER_ADAPTER};
    struct fm_part part[4];
    char *bytes[5] = {NULL};
    size_t parts = 0;
    cJSON *manifest = NULL;
    struct fm_err err = {0};
    for (size_t k = 0; k < 4; k++)
        for (size_t i = 0; i < members; i++)
            if (strcmp(m[i].name, order[k]) == 0) {
                bytes[parts] = calloc(1, (size_t)m[i].size + 1);
                if (fm_file_read(file, m[i].offset, bytes[parts], (size_t)m[i].size, &err))
                    abort();
                part[parts] = (struct fm_part){
                    .name = order[k], .size = m[i].size, .data = bytes[parts], .aligned = k == 1};
                parts++;
            }
    bytes[4] = calloc(1, (size_t)m[0].size + 1);
    int code = fm_file_read(file, m[0].offset, bytes[4], (size_t)m[0].size, &err);
    if (!code)
        code = fm_json_tree(&manifest, bytes[4], (size_t)m[0].size, &err);
    struct fm_bundle_writer *w = NULL;
    if (!code && !cJSON_IsObject(manifest)) {
        cJSON_Delete(manifest);
        code = FM_EFORMAT;
    }
    if (!code)
        code = fm_bundle_begin(&w, path, true, manifest, part, parts, &err);
    if (!code)
        code = fm_bundle_finish(w, &err);
    for (size_t i = 0; i < 5; i++)
        free(bytes[i]);
    return code;
}

static void read_signed(const char *from)
{
    char again[64];
    struct fm_file file;
    struct fm_archive_member *m = NULL;
    size_t members = 0;
    uint64_t end;
    struct fm_err err = {0};
    struct fm_bundle b;
    snprintf(again, sizeof again, "%s-signed", from);
    if (fm_file_open(&file, from, &err))
        abort();
    if (fm_archive_list(&m, &members, 64, &file, true, &end, &err) == FM_OK && members > 0 &&
        sign(again, &file, m, members) == FM_OK) {
        if (fm_stage_open(&b, again, NULL, &err) == FM_OK)
            read_typed(&b);
        fm_bundle_close(&b);
        unlink(again);
    }
    fm_archive_release(m, members);
    fm_file_close(&file);
}

static char path[] = "/tmp/fm-fuzz-bundle-XXXXXX";

static void remove_file(void)
{
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static FILE *file;
    struct fm_bundle b;
    struct fm_err err = {0};
    if (!file) {
        int fd = mkstemp(path);
        file = fd < 0 ? NULL : fdopen(fd, "r+b");
        atexit(remove_file);
    }
    if (!file || fseek(file, 0, SEEK_SET) || fwrite(data, 1, size, file) != size || fflush(file) ||
        ftruncate(fileno(file), (off_t)size))
        abort();
    int code = fm_bundle_open_prefix(&b, path, &err);
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
    read_signed(path);
    return 0;
}

FUZZ_MAIN
