/*
 * Test checkpoint directories: shards and an index that agree or differ, links as in the hub's
 * cache, and links that lead elsewhere.
 */
#include "formats/tensor/hfdir.h"
#include "tests/unit/scratch.h"
#include "tests/unit/tensors.h"
#include "tests/unit/test.h"

#define A "{\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}}"
#define B                                                                                          \
    "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"                            \
    "\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[6,10]}}"
#define SHARD_A "model-00001-of-00002.safetensors"
#define SHARD_B "model-00002-of-00002.safetensors"
#define INDEX "model.safetensors.index.json"
#define MAP(a, b, c)                                                                               \
    "{\"metadata\":{\"total_size\":7},\"weight_map\":{\"c\":\"" c "\",\"a\":\"" a "\",\"b\":\"" b  \
    "\"}}\n"

static void put_shard(const char *dir, const char *name, const char *json, uint64_t data)
{
    scratch_safetensors(scratch_inside(dir, name), json, strlen(json), data);
}

/* A checkpoint of two shards under a fresh name. */
static const char *make(const char *index)
{
    static char name[32];
    static int turn;
    snprintf(name, sizeof name, "model%d", turn++);
    scratch_mkdir(name);
    scratch_put(name, "config.json", "{}");
    put_shard(name, SHARD_A, A, 6);
    put_shard(name, SHARD_B, B, 10);
    if (index)
        scratch_put(name, INDEX, index);
    return name;
}

static void is_refused(const char *name, int code, const char *text)
{
    struct fm_hfdir dir;
    struct fm_err err = {0};
    assert_fails(fm_hfdir_open(&dir, scratch(name), &err), code, text);
    assert_non_null(strstr(err.text, scratch(name)));
    fm_hfdir_close(&dir);
}

TEST(opens_shards_by_their_index)
{
    struct fm_hfdir dir;
    const struct fm_shard *shard = NULL;
    const char *name = make(MAP(SHARD_A, SHARD_B, SHARD_B));
    assert_ok(fm_hfdir_open(&dir, scratch(name), &err));
    assert_int_equal(dir.shards, 2);
    assert_int_equal(dir.shard[0].st.count + dir.shard[1].st.count, 3);
    const struct fm_tensor *t = find_tensor(&dir, "c", &shard);
    assert_non_null(t);
    assert_string_equal(shard->name, SHARD_B);
    assert_int_equal(t->offset, shard->st.header_bytes + 6);
    assert_non_null(find_tensor(&dir, "a", NULL));
    assert_null(find_tensor(&dir, "d", &shard));
    assert_string_equal(dir.config, "{}");
    fm_hfdir_close(&dir);
    fm_hfdir_close(&dir);
}

TEST(opens_a_single_file)
{
    struct fm_hfdir dir;
    scratch_mkdir("single");
    scratch_put("single", "config.json", "{\"a\": 1}");
    is_refused("single", FM_ENOENT, "neither model.safetensors nor");
    put_shard("single", "model.safetensors", A, 6);
    assert_ok(fm_hfdir_open(&dir, scratch("single"), &err));
    assert_int_equal(dir.shards, 1);
    assert_int_equal(dir.config_bytes, 8);
    fm_hfdir_close(&dir);
    scratch_check(unlink(scratch("single/config.json")) == 0, "unlink");
    is_refused("single", FM_ENOENT, "config.json");
    is_refused("nowhere", FM_ENOENT, "cannot open the directory");
}

TEST(follows_the_links_of_a_cache)
{
    struct fm_hfdir dir;
    scratch_mkdir("cache");
    scratch_mkdir("cache/blobs");
    scratch_mkdir("cache/snapshots");
    scratch_mkdir("cache/snapshots/0123");
    scratch_put("cache/blobs", "c0", "{}");
    put_shard("cache/blobs", "f1", A, 6);
    const char *links[][2] = {{"c0", "config.json"}, {"f1", "model.safetensors"}};
    for (int i = 0; i < 2; i++) {
        char target[64];
        snprintf(target, sizeof target, "../../blobs/%s", links[i][0]);
        scratch_check(
            symlink(target, scratch(scratch_inside("cache/snapshots/0123", links[i][1]))) == 0,
            "symlink");
    }
    assert_ok(fm_hfdir_open(&dir, scratch("cache/snapshots/0123"), &err));
    assert_non_null(find_tensor(&dir, "a", NULL));
    fm_hfdir_close(&dir);
}

TEST(index_and_shards_must_agree)
{
    const char *name = make(MAP(SHARD_A, SHARD_A, SHARD_B));
    is_refused(name, FM_EFORMAT,
               "tensor 'b' is in '" SHARD_B "', but the index says '" SHARD_A "'");
    name = make("{\"weight_map\":{\"a\":\"" SHARD_A "\",\"b\":\"" SHARD_B "\"}}");
    is_refused(name, FM_EFORMAT, "tensor 'c' of '" SHARD_B "' is not in the index");
    name = make("{\"weight_map\":{\"a\":\"" SHARD_A "\",\"b\":\"" SHARD_B "\",\"c\":\"" SHARD_B
                "\",\"d\":\"" SHARD_B "\"}}");
    is_refused(name, FM_EFORMAT,
               "the index puts tensor 'd' into '" SHARD_B "', which does not have it");
    name = make(MAP(SHARD_A, SHARD_B, SHARD_B));
    scratch_check(unlink(scratch(scratch_inside(name, SHARD_B))) == 0, "unlink");
    is_refused(name, FM_ENOENT, SHARD_B);
}

TEST(unsafe_shards_are_refused)
{
    const char *name = make(MAP(SHARD_A, SHARD_B, SHARD_B));
    char b[256];
    snprintf(b, sizeof b, "%s", scratch(scratch_inside(name, SHARD_B)));
    scratch_check(unlink(b) == 0 && link(scratch(scratch_inside(name, SHARD_A)), b) == 0, "link");
    is_refused(name, FM_EFORMAT, "are the same file");
    scratch_check(unlink(b) == 0 && symlink(SHARD_A, b) == 0, "symlink");
    is_refused(name, FM_EFORMAT, "are the same file");
    scratch_check(unlink(b) == 0 && symlink(SHARD_B, b) == 0, "symlink");
    is_refused(name, FM_EFORMAT, "symbolic link");
    scratch_check(unlink(b) == 0 && symlink("/dev/zero", b) == 0, "symlink");
    is_refused(name, FM_EFORMAT, "is a device");
    scratch_check(unlink(b) == 0 && mkfifo(b, 0600) == 0, "mkfifo");
    is_refused(name, FM_EFORMAT, "is a FIFO");
    scratch_check(unlink(b) == 0 && mkdir(b, 0700) == 0, "mkdir");
    is_refused(name, FM_EFORMAT, "is a directory");
}

TEST(two_models_in_one_directory_are_refused)
{
    struct fm_hfdir dir;
    const char *name = make(MAP(SHARD_A, SHARD_B, SHARD_B));
    put_shard(name, "model.safetensors", A, 6);
    is_refused(name, FM_ECONFIG, "remove the one that is outdated");
    scratch_mkdir("named");
    scratch_put("named", "config.json", "{}");
    put_shard("named", "model.safetensors", A, 6);
    scratch_put("named", INDEX, "{\"weight_map\":{\"a\":\"model.safetensors\"}}");
    assert_ok(fm_hfdir_open(&dir, scratch("named"), &err));
    fm_hfdir_close(&dir);
}

TEST(shard_names_stay_in_the_directory)
{
    const char *bad[] = {"../x.safetensors", "/etc/x.safetensors",
                         "a/b.safetensors",  ".safetensors",
                         ".x.safetensors",   "x.bin",
                         "a b.safetensors",  ""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char index[256];
        snprintf(index, sizeof index, "{\"weight_map\":{\"a\":\"%s\"}}", bad[i]);
        is_refused(make(index), FM_EFORMAT, "is not the name of a .safetensors file");
    }
}

TEST(opens_the_golden_model)
{
    struct fm_hfdir dir;
    assert_ok(fm_hfdir_open(&dir, "golden/odd-mixtral", &err));
    assert_int_equal(dir.shards, 2);
    const struct fm_tensor *t = find_tensor(&dir, "model.embed_tokens.weight", NULL);
    assert_non_null(t);
    assert_int_equal(t->shape[1], 48);
    fm_hfdir_close(&dir);
}

/* 60,000 tensors in 40 shards, in order of their names. */
TEST(tensors_of_a_large_index_are_listed)
{
    enum { SHARDS = 40, EACH = 1500 };
    char *index = malloc(SHARDS * EACH * 96 + 64), *at = index;
    char *json = malloc(EACH * 96 + 64), name[64];
    scratch_mkdir("wide");
    scratch_put("wide", "config.json", "{}");
    at += sprintf(at, "{\"weight_map\":{");
    for (int s = 0; s < SHARDS; s++) {
        char *j = json;
        j += sprintf(j, "{");
        for (int i = 0; i < EACH; i++) {
            j += sprintf(j,
                         "%s\"layers.%d.experts.%d.w\":{\"dtype\":\"U8\",\"shape\":[0],\"data_"
                         "offsets\":[0,0]}",
                         i ? "," : "", s, i);
            at += sprintf(at, "%s\"layers.%d.experts.%d.w\":\"s%d.safetensors\"", s || i ? "," : "",
                          s, i, s);
        }
        sprintf(j, "}");
        snprintf(name, sizeof name, "s%d.safetensors", s);
        put_shard("wide", name, json, 0);
    }
    sprintf(at, "}}");
    scratch_put("wide", INDEX, index);
    free(index);
    free(json);
    struct fm_hfdir dir;
    assert_ok(fm_hfdir_open(&dir, scratch("wide"), &err));
    assert_int_equal(dir.shards, SHARDS);
    for (size_t i = 0; i < dir.shards; i++) {
        assert_int_equal(dir.shard[i].st.count, EACH);
        for (size_t k = 0; k < EACH; k++) {
            int layer = 0, expert = 0;
            assert_int_equal(
                sscanf(dir.shard[i].st.tensor[k].name, "layers.%d.experts.%d.w", &layer, &expert),
                2);
            assert_true(expert < EACH);
            snprintf(name, sizeof name, "s%d.safetensors", layer);
            assert_string_equal(dir.shard[i].name, name);
        }
    }
    fm_hfdir_close(&dir);
}

TEST_MAIN(NULL, NULL)
