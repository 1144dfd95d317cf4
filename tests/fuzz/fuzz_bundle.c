/*
 * Fuzz everything that reads an untrusted stream: tar subset, manifest, checksums, typed members,
 * and a family as fm-pack --list opens it.  The mutator keeps headers, offsets and digests correct,
 * so that changed members are read.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/bundle/archive.h"
#include "formats/json/json.h"
#include "lib/export/opened.h"
#include "lib/stage/budgets.h"
#include "lib/stage/lorafile.h"
#include "lib/stage/ranking.h"
#include "lib/stage/stage.h"
#include "tests/fuzz/fuzz.h"

#define MEMBERS_MAX 64

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

/* Mutate a member's bytes by the format that its name implies; a NUL follows them. */
static void change(char **bytes, size_t *size, const char *name, unsigned seed)
{
    size_t room = *size + 256, end = strlen(name);
    char *more = realloc(*bytes, room + 1);
    must(more != NULL);
    *bytes = more;
    if (end > 5 && strcmp(name + end - 5, ".json") == 0)
        *size = fuzz_json((uint8_t *)more, *size, room, seed);
    else if (end > 12 && strcmp(name + end - 12, ".safetensors") == 0)
        *size = fuzz_safetensors((uint8_t *)more, *size, room, seed);
    else
        *size = LLVMFuzzerMutate((uint8_t *)more, *size, room);
    more[*size] = '\0';
}

/*
 * Write the members again, one of them changed, as a stream whose headers, offsets and digests are
 * right.  Members whose names are not in order[] are left out.
 */
static int sign(const char *path, const struct fm_file *file, const struct fm_archive_member *m,
                size_t members, unsigned seed)
{
    static const char *const order[] = {FM_MEMBER_MANIFEST, FM_MEMBER_BUILD,  FM_MEMBER_CARRIED,
                                        FM_MEMBER_RANKING,  FM_MEMBER_MASKS,  FM_MEMBER_ADAPTER,
                                        FM_MEMBER_SEGMENTS, FM_MEMBER_WEIGHTS};
    struct fm_part part[MEMBERS_MAX];
    char *bytes[MEMBERS_MAX] = {NULL};
    size_t parts = 0, changed = fuzz_draw(&seed, (uint32_t)members);
    struct fm_err err = {0};
    for (size_t k = 0; k < sizeof order / sizeof *order; k++)
        for (size_t i = 0; i < members; i++) {
            size_t n = strlen(order[k]), size = (size_t)m[i].size;
            if (strncmp(m[i].name, order[k], n) != 0 ||
                (order[k][n - 1] != '/' && m[i].name[n] != '\0') || (i == 0) != (k == 0))
                continue;
            bytes[parts] = calloc(1, size + 1);
            must(bytes[parts] &&
                 fm_file_read(file, m[i].offset, bytes[parts], size, &err) == FM_OK);
            if (i == changed)
                change(&bytes[parts], &size, m[i].name, seed);
            part[parts] = (struct fm_part){
                .name = m[i].name, .size = size, .data = bytes[parts], .aligned = k == 3 || k == 7};
            parts++;
        }
    cJSON *manifest = NULL;
    int code =
        parts == 0 ? FM_EFORMAT : fm_json_tree(&manifest, bytes[0], (size_t)part[0].size, &err);
    if (!code && !cJSON_IsObject(manifest)) {
        cJSON_Delete(manifest);
        code = FM_EFORMAT;
    }
    struct fm_bundle_writer *w = NULL;
    if (!code)
        code = fm_bundle_begin(&w, path, true, manifest, part + 1, parts - 1, &err);
    if (!code)
        code = fm_bundle_finish(w, &err);
    for (size_t i = 0; i < parts; i++)
        free(bytes[i]);
    return code;
}

static const char *dir;
static char again[64]; /* the path of the file that the mutator writes */

static void clean(void)
{
    unlink(again);
    rmdir(dir);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    struct fm_file file, made = {.fd = -1};
    struct fm_archive_member *m = NULL;
    size_t members = 0, result = 0;
    uint64_t end;
    struct fm_err err = {0};
    if (!dir) {
        dir = fuzz_directory();
        snprintf(again, sizeof again, "%s/signed.fm", dir);
        atexit(clean);
    }
    if (fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    must(fm_file_open(&file, fuzz_file(data, size), &err) == FM_OK);
    if (fm_archive_list(&m, &members, MEMBERS_MAX, &file, true, &end, &err) == FM_OK &&
        members > 0 && sign(again, &file, m, members, seed) == FM_OK &&
        fm_file_open(&made, again, &err) == FM_OK && made.size <= capacity) {
        result = (size_t)made.size;
        must(fm_file_read(&made, 0, data, result, &err) == FM_OK);
    }
    fm_file_close(&made);
    fm_archive_release(m, members);
    fm_file_close(&file);
    return result ? result : LLVMFuzzerMutate(data, size, capacity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fm_bundle b;
    struct fm_opened opened = {0};
    struct fm_err err = {0};
    const char *path = fuzz_file(data, size);
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
    err = (struct fm_err){0};
    check(fm_opened_open(&opened, path, 0, &err), &err);
    fm_opened_release(&opened);
    return 0;
}

FUZZ_MAIN
