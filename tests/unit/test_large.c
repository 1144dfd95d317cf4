/* A checkpoint larger than 4 GiB, with holes that take no disk space: the weights after them are
 * found. */
#include <inttypes.h>
#include <unistd.h>

#include "formats/tensor/hfdir.h"
#include "lib/base/pool.h"
#include "lib/model/model.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

#define ODD "golden/odd-mixtral"
#define GIB ((uint64_t)1 << 30)

/* Write the shard with a tensor of `filler` zero bytes before all others. */
static void write_shard(const struct fm_shard *shard, uint64_t filler, const char *name)
{
    struct fm_err err = {0};
    static char json[1 << 16], data[1 << 20];
    char path[300];
    int used = snprintf(json, sizeof json,
                        "{\"%s\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
                        "],\"data_offsets\":[0,%" PRIu64 "]}",
                        name, filler, filler);
    uint64_t begin = shard->st.header_bytes, end = begin;
    for (size_t i = 0; i < shard->st.count; i++) {
        const struct fm_tensor *t = &shard->st.tensor[i];
        used += snprintf(json + used, sizeof json - (size_t)used,
                         ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, fm_dtype_name(t->dtype));
        for (int d = 0; d < t->dims; d++)
            used += snprintf(json + used, sizeof json - (size_t)used, "%s%" PRIu64, d ? "," : "",
                             t->shape[d]);
        used += snprintf(json + used, sizeof json - (size_t)used,
                         "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                         filler + t->offset - begin, filler + t->offset - begin + t->size);
        end = t->offset + t->size > end ? t->offset + t->size : end;
    }
    used += snprintf(json + used, sizeof json - (size_t)used, "}");
    assert_true((size_t)used < sizeof json && end - begin <= sizeof data);
    assert_ok(fm_file_read(&shard->file, begin, data, (size_t)(end - begin), &err));
    snprintf(path, sizeof path, "large/%.200s", shard->name);
    scratch_safetensors(path, json, (size_t)used, filler);
    FILE *f = fopen(scratch(path), "ab");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, (size_t)(end - begin), f), end - begin);
    assert_int_equal(fclose(f), 0);
}

/* Add a line for each filler to the index. */
static void write_index(void)
{
    static char text[1 << 16];
    FILE *f = fopen(ODD "/model.safetensors.index.json", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    char *map = strstr(text, "\"weight_map\": {");
    assert_non_null(map);
    map += strlen("\"weight_map\": {");
    f = fopen(scratch("large/model.safetensors.index.json"), "w");
    assert_non_null(f);
    fprintf(f,
            "%.*s\"filler.1\": \"model-00001-of-00002.safetensors\","
            "\"filler.2\": \"model-00002-of-00002.safetensors\",%s",
            (int)(map - text), text, map);
    assert_int_equal(fclose(f), 0);
}

static void copy_config(void)
{
    static char text[1 << 16];
    FILE *f = fopen(ODD "/config.json", "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof text, f);
    fclose(f);
    scratch_write("large/config.json", text, n);
}

static int make_large(void **unused)
{
    struct fm_err err = {0};
    (void)unused;
    struct fm_hfdir dir;
    scratch_mkdir("large");
    assert_ok(fm_hfdir_open(&dir, ODD, &err));
    assert_int_equal(dir.shards, 2);
    write_shard(&dir.shard[0], 3 * GIB, "filler.1");
    write_shard(&dir.shard[1], 5 * GIB + 7, "filler.2");
    write_index();
    copy_config();
    fm_hfdir_close(&dir);
    return 0;
}

TEST(a_large_checkpoint_lists_its_tensors)
{
    struct fm_hfdir dir;
    uint64_t all = 0, last = 0;
    assert_ok(fm_hfdir_open(&dir, scratch("large"), &err));
    for (size_t i = 0; i < dir.shards; i++)
        for (size_t k = 0; k < dir.shard[i].st.count; k++) {
            const struct fm_tensor *t = &dir.shard[i].st.tensor[k];
            all += t->size;
            last = t->offset > last ? t->offset : last;
        }
    assert_true(all > 8 * GIB && last > 5 * GIB);
    fm_hfdir_close(&dir);
}

static size_t layer_floats(const struct fm_config *c)
{
    return (size_t)c->E * (size_t)c->I * (size_t)c->H;
}

TEST(weights_after_4_gib_are_those_of_the_small_checkpoint)
{
    struct fm_model *small, *large;
    assert_ok(fm_model_open(&small, ODD, 1 << 30, &err));
    assert_ok(fm_model_open(&large, scratch("large"), 1 << 30, &err));
    const struct fm_config *c = fm_model_config(small);
    for (int l = 0; l < c->L; l++) {
        const struct fm_layer *a, *b;
        assert_ok(fm_model_layer(small, l, -1, &a, &err));
        assert_ok(fm_model_layer(large, l, l + 1 < c->L ? l + 1 : -1, &b, &err));
        assert_memory_equal(a->gate_up.data, b->gate_up.data, 2 * layer_floats(c) * sizeof(float));
        assert_memory_equal(a->down.data, b->down.data, layer_floats(c) * sizeof(float));
        assert_memory_equal(a->router.w, b->router.w, (size_t)(c->E * c->H) * sizeof(float));
    }
    fm_model_close(small);
    fm_model_close(large);
}

TEST(a_cut_large_checkpoint_is_refused)
{
    struct fm_hfdir dir;
    const char *path = scratch("large/model-00002-of-00002.safetensors");
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - (off_t)(4 * GIB)), 0); /* the low 32 bits are
                                                                           equal */
    assert_int_equal(fm_hfdir_open(&dir, scratch("large"), &err), FM_EFORMAT);
}

int main(void)
{
    struct fm_err err = {0};
    if (fm_pool_start(1, &err) != FM_OK)
        return 1;
    int failed = tests_run(make_large, NULL);
    fm_pool_stop();
    return failed;
}
