/*
 * Test one model in all its forms on disk (checkpoint, bundle, native and ragged exports), which
 * must all give the same rows; and checkpoints with one fault each, which must be refused with an
 * error that names the tensor.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/hfdir.h"
#include "lib/block/gqa.h"
#include "lib/model/model.h"
#include "tests/unit/golden.h"
#include "tests/unit/scratch.h"
#include "tests/unit/tensors.h"
#include "tests/unit/test.h"

#define ODD "golden/odd-mixtral"
enum { L = 3, E = 5, I = 37, H = 48, V = 97, QC = 60, GC = 20 };

/* A tensor to be written in float32. */
struct piece {
    char name[96];
    int dims;
    uint64_t shape[3];
    const float *data;
};

static struct piece piece(const float *data, uint64_t a, uint64_t b, const char *format, int l,
                          int e)
{
    struct piece p = {.dims = b ? 2 : 1, .shape = {a, b}, .data = data};
    snprintf(p.name, sizeof p.name, format, l, e);
    return p;
}

/* The tensors as the bytes of one safetensors file; free() them. */
static char *file_of(const struct piece *piece, size_t n, size_t *size)
{
    struct fm_err err = {0};
    struct fm_tensor tensor[128];
    char *header = NULL;
    uint64_t header_bytes = 0, file_bytes = 0;
    memset(tensor, 0, sizeof tensor);
    for (size_t i = 0; i < n; i++) {
        tensor[i] =
            (struct fm_tensor){.name = piece[i].name, .dtype = FM_F32, .dims = piece[i].dims};
        memcpy(tensor[i].shape, piece[i].shape, sizeof piece[i].shape);
    }
    assert_ok(fm_safetensors_plan(tensor, n, NULL, &header, &header_bytes, &file_bytes, &err));
    char *bytes = malloc(file_bytes);
    memcpy(bytes, header, header_bytes);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++)
            if (strcmp(tensor[i].name, piece[j].name) == 0)
                memcpy(bytes + tensor[i].offset, piece[j].data, tensor[i].size);
    free(header);
    *size = file_bytes;
    return bytes;
}

static const char *write_file(const char *dir, const char *name, const struct piece *piece,
                              size_t n)
{
    char path[128];
    size_t size = 0;
    char *bytes = file_of(piece, n, &size);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    const char *written = scratch_write(path, bytes, size);
    free(bytes);
    return written;
}

static char *config_text(size_t *size)
{
    struct fm_err err = {0};
    struct fm_file f;
    char *text = NULL;
    assert_ok(fm_file_open(&f, ODD "/config.json", &err));
    assert_ok(fm_file_slurp(&f, 1 << 16, &text, size, &err));
    fm_file_close(&f);
    return text;
}

/* One tensor of the checkpoint, unchanged. */
static float *stored(const char *format, int l, int e)
{
    struct fm_err err = {0};
    static struct fm_hfdir dir;
    char name[96];
    const struct fm_shard *shard;
    if (!dir.path)
        assert_ok(fm_hfdir_open(&dir, ODD, &err));
    snprintf(name, sizeof name, format, l, e);
    const struct fm_tensor *t = find_tensor(&dir, name, &shard);
    assert_non_null(t);
    size_t n = (size_t)fm_tensor_count(t);
    void *raw = malloc(t->size);
    float *f = malloc(n * sizeof *f);
    assert_ok(fm_file_read(&shard->file, t->offset, raw, t->size, &err));
    fm_dtype_to_f32(f, raw, t->dtype, n);
    free(raw);
    return f;
}

static struct fm_model *open_model(const char *path, uint64_t memory)
{
    struct fm_err err = {0};
    struct fm_model *m;
    assert_ok(fm_model_open(&m, path, memory, &err));
    return m;
}

static const struct fm_layer *layer_of(struct fm_model *m, int l, int next)
{
    struct fm_err err = {0};
    const struct fm_layer *layer;
    assert_ok(fm_model_layer(m, l, next, &layer, &err));
    return layer;
}

static void expect_expert(const struct fm_layer *layer, int l, int e, const int32_t *order)
{
    float *w1 = stored("model.layers.%d.block_sparse_moe.experts.%d.w1.weight", l, e);
    float *w2 = stored("model.layers.%d.block_sparse_moe.experts.%d.w2.weight", l, e);
    float *w3 = stored("model.layers.%d.block_sparse_moe.experts.%d.w3.weight", l, e);
    const float *gate_up = (const float *)layer->gate_up.data + 2 * layer->row0[e] * H;
    const float *down = (const float *)layer->down.data + layer->row0[e] * H;
    for (size_t j = 0; j < (size_t)layer->cap[e]; j++) {
        size_t c = order ? (size_t)order[j] : j;
        assert_memory_equal(gate_up + 2 * j * H, w1 + c * H, H * sizeof(float));
        assert_memory_equal(gate_up + (2 * j + 1) * H, w3 + c * H, H * sizeof(float));
        for (size_t h = 0; h < H; h++)
            assert_true(down[j * H + h] == w2[h * I + c]);
    }
    free(w1);
    free(w2);
    free(w3);
}

static void expect_same(const float *got, size_t n, const char *format, int l)
{
    float *want = stored(format, l, 0);
    assert_memory_equal(got, want, n * sizeof *got);
    free(want);
}

TEST(a_checkpoint_is_read_into_the_bundles_layout)
{
    const struct fm_nonlayer *nonlayer;
    /* Memory for all layers; for one and the slot that the other two share; for none. */
    struct fm_model *probe = open_model(ODD, 0);
    uint64_t one = fm_model_layer_bytes(probe);
    fm_model_close(probe);
    const uint64_t memory[] = {1 << 30, 3 * one, 0};
    for (int i = 0; i < 3; i++) {
        struct fm_model *m = open_model(ODD, memory[i]);
        for (int turn = 0; turn < 5; turn++) { /* 0 1 2 1 0, reading ahead in both directions */
            int l = turn < L ? turn : 2 * L - 2 - turn;
            int next = turn < L - 1 ? l + 1 : l - 1;
            const struct fm_layer *layer = layer_of(m, l, next);
            for (int e = 0; e < E; e++)
                expect_expert(layer, l, e, NULL);
            expect_same(layer->gqa.q, QC * H, "model.layers.%d.self_attn.q_proj.weight", l);
            expect_same(layer->gqa.k, GC * H, "model.layers.%d.self_attn.k_proj.weight", l);
            expect_same(layer->gqa.v, GC * H, "model.layers.%d.self_attn.v_proj.weight", l);
            expect_same(layer->gqa.o, H * QC, "model.layers.%d.self_attn.o_proj.weight", l);
            expect_same(layer->router.w, E * H, "model.layers.%d.block_sparse_moe.gate.weight", l);
            expect_same(layer->input_norm, H, "model.layers.%d.input_layernorm.weight", l);
            expect_same(layer->post_norm, H, "model.layers.%d.post_attention_layernorm.weight", l);
        }
        assert_ok(fm_model_nonlayer(m, &nonlayer, &err));
        expect_same(nonlayer->embed.data, V * H, "model.embed_tokens.weight", 0);
        expect_same(nonlayer->norm, H, "model.norm.weight", 0);
        assert_ptr_equal(nonlayer->lm_head.data, nonlayer->embed.data);
        assert_int_equal(fm_model_dtype(m), FM_F16);
        fm_model_close(m);
    }
}

TEST(a_ranking_permutes_what_is_read)
{
    struct golden g;
    golden_open(&g, ODD "/golden.safetensors");
    int32_t *order = golden_read(&g, "rank.order", FM_I32, NULL);
    struct fm_model *m = open_model(ODD, 1 << 30);
    expect_expert(layer_of(m, 1, 2), 1, 3, NULL);
    fm_model_rank(m, order);
    for (int l = 0; l < L; l++)
        for (int e = 0; e < E; e++)
            expect_expert(layer_of(m, l, -1), l, e, order + (l * E + e) * I);
    fm_model_rank(m, NULL);
    expect_expert(layer_of(m, 0, -1), 0, 0, NULL);
    fm_model_close(m);
    free(order);
    golden_close(&g);
}

/* A layer's tensors except those of experts, by their stock names; the router's is `router`. */
static size_t add_rest(struct piece *p, const struct fm_layer *y, int l, const char *router)
{
    p[0] = piece(y->input_norm, H, 0, "model.layers.%d.input_layernorm.weight", l, 0);
    p[1] = piece(y->post_norm, H, 0, "model.layers.%d.post_attention_layernorm.weight", l, 0);
    p[2] = piece(y->gqa.q, QC, H, "model.layers.%d.self_attn.q_proj.weight", l, 0);
    p[3] = piece(y->gqa.k, GC, H, "model.layers.%d.self_attn.k_proj.weight", l, 0);
    p[4] = piece(y->gqa.v, GC, H, "model.layers.%d.self_attn.v_proj.weight", l, 0);
    p[5] = piece(y->gqa.o, H, QC, "model.layers.%d.self_attn.o_proj.weight", l, 0);
    p[6] = piece(y->router.w, E, H, router, l, 0);
    return 7;
}

static const uint32_t widths[L][E] = {{37, 1, 20, 5, 36}, {2, 37, 37, 9, 11}, {3, 4, 5, 6, 7}};

static const char *widths_json(void)
{
    return "[[37,1,20,5,36],[2,37,37,9,11],[3,4,5,6,7]]";
}

static const char *router_of(bool ragged)
{
    return ragged ? "model.layers.%d.mlp.gate.weight"
                  : "model.layers.%d.block_sparse_moe.gate.weight";
}

/* The experts' kept channels, one after another; free() both. */
static size_t clip(const struct fm_layer *y, int l, float **gate_up, float **down)
{
    size_t rows = 0;
    *gate_up = malloc(2 * E * I * H * sizeof(float));
    *down = malloc(E * I * H * sizeof(float));
    for (int e = 0; e < E; e++) {
        size_t k = widths[l][e], from = (size_t)y->row0[e];
        memcpy(*gate_up + 2 * rows * H, fm_element(y->gate_up, 2 * from * H).data,
               2 * k * H * sizeof(float));
        memcpy(*down + rows * H, fm_element(y->down, from * H).data, k * H * sizeof(float));
        rows += k;
    }
    return rows;
}

static void expect_clipped(const char *path)
{
    struct fm_model *full = open_model(ODD, 1 << 30), *m = open_model(path, 0);
    for (int l = 0; l < L; l++) {
        const struct fm_layer *want = layer_of(full, l, -1), *got = layer_of(m, l, (l + 1) % L);
        for (int e = 0; e < E; e++) {
            size_t k = widths[l][e], row = (size_t)got->row0[e], from = (size_t)want->row0[e];
            assert_int_equal(got->cap[e], k);
            assert_int_equal(fm_model_caps(m)[l * E + e], k);
            assert_memory_equal(fm_element(got->gate_up, 2 * row * H).data,
                                fm_element(want->gate_up, 2 * from * H).data,
                                2 * k * H * sizeof(float));
            assert_memory_equal(fm_element(got->down, row * H).data,
                                fm_element(want->down, from * H).data, k * H * sizeof(float));
        }
        assert_memory_equal(got->router.w, want->router.w, E * H * sizeof(float));
        assert_memory_equal(got->gqa.o, want->gqa.o, H * QC * sizeof(float));
    }
    fm_model_close(full);
    fm_model_close(m);
}

static void write_native(struct fm_model *m, const struct fm_nonlayer *nonlayer)
{
    struct piece rest[32];
    size_t n = 2, size = 0;
    char *config = config_text(&size), text[256];
    scratch_mkdir("native");
    rest[0] = piece(nonlayer->embed.data, V, H, "model.embed_tokens.weight", 0, 0);
    rest[1] = piece(nonlayer->norm, H, 0, "model.norm.weight", 0, 0);
    for (int l = 0; l < L; l++) {
        const struct fm_layer *y = layer_of(m, l, -1);
        float *gate_up, *down;
        size_t rows = clip(y, l, &gate_up, &down);
        struct piece p[2] = {piece(gate_up, 2 * rows, H, "layers.%d.gate_up", l, 0),
                             piece(down, rows, H, "layers.%d.down", l, 0)};
        char name[40];
        snprintf(name, sizeof name, "layers-%05d.safetensors", l);
        write_file("native", name, p, 2);
        free(gate_up);
        free(down);
        n += add_rest(rest + n, y, l, router_of(false));
    }
    write_file("native", "rest.safetensors", rest, n);
    scratch_write("native/config.json", config, size);
    snprintf(text, sizeof text, "{\"schema\":1,\"layout\":\"native\",\"widths\":%s}",
             widths_json());
    scratch_write("native/fm-export.json", text, strlen(text));
    free(config);
}

static void write_ragged(struct fm_model *m, const struct fm_nonlayer *nonlayer)
{
    struct piece p[64];
    float *gate_up[L], *down[L];
    size_t n = 2, size = 0;
    char *config = config_text(&size), text[4096];
    scratch_mkdir("ragged");
    p[0] = piece(nonlayer->embed.data, V, H, "model.embed_tokens.weight", 0, 0);
    p[1] = piece(nonlayer->norm, H, 0, "model.norm.weight", 0, 0);
    for (int l = 0; l < L; l++) {
        const struct fm_layer *y = layer_of(m, l, -1);
        size_t rows = clip(y, l, &gate_up[l], &down[l]);
        n += add_rest(p + n, y, l, router_of(true));
        p[n++] = piece(gate_up[l], 2 * rows, H, "model.layers.%d.mlp.experts.gate_up", l, 0);
        p[n++] = piece(down[l], rows, H, "model.layers.%d.mlp.experts.down", l, 0);
    }
    write_file("ragged", "model.safetensors", p, n);
    snprintf(text, sizeof text, "{\"fm_widths\":%s,%s", widths_json(), strchr(config, '{') + 1);
    scratch_write("ragged/config.json", text, strlen(text));
    for (int l = 0; l < L; l++) {
        free(gate_up[l]);
        free(down[l]);
    }
    free(config);
}

TEST(exports_are_read_as_they_are_clipped)
{
    const struct fm_nonlayer *nonlayer;
    struct fm_model *m = open_model(ODD, 1 << 30);
    assert_ok(fm_model_nonlayer(m, &nonlayer, &err));
    write_native(m, nonlayer);
    write_ragged(m, nonlayer);
    fm_model_close(m);
    expect_clipped(scratch("native"));
    expect_clipped(scratch("ragged"));
}

TEST(a_bundle_is_read_like_its_checkpoint)
{
    const struct fm_nonlayer *nonlayer;
    struct piece rest[32];
    struct fm_part part[L + 2];
    size_t n = 2, size = 0;
    char *bytes[L + 1], *config = config_text(&size), names[L][48];
    struct fm_model *m = open_model(ODD, 1 << 30);
    assert_ok(fm_model_nonlayer(m, &nonlayer, &err));
    rest[0] = piece(nonlayer->embed.data, V, H, "model.embed_tokens.weight", 0, 0);
    rest[1] = piece(nonlayer->norm, H, 0, "model.norm.weight", 0, 0);
    part[0] = (struct fm_part){.name = "carried/config.json", .size = size, .data = config};
    for (int l = 0; l < L; l++) {
        const struct fm_layer *y = layer_of(m, l, -1);
        struct piece p[2] = {piece((float *)y->gate_up.data, E, 2 * I, "layers.%d.gate_up", l, 0),
                             piece((float *)y->down.data, E, I, "layers.%d.down", l, 0)};
        p[0].dims = p[1].dims = 3;
        p[0].shape[2] = p[1].shape[2] = H;
        bytes[l] = file_of(p, 2, &size);
        snprintf(names[l], sizeof names[l], "weights/layers-%05d.safetensors", l);
        part[l + 1] =
            (struct fm_part){.name = names[l], .size = size, .data = bytes[l], .aligned = true};
        n += add_rest(rest + n, y, l, router_of(false));
    }
    bytes[L] = file_of(rest, n, &size);
    part[L + 1] = (struct fm_part){
        .name = "weights/rest.safetensors", .size = size, .data = bytes[L], .aligned = true};
    struct fm_bundle_writer *w;
    cJSON *manifest = cJSON_CreateObject();
    cJSON_AddNumberToObject(manifest, "schema", 1);
    cJSON_AddStringToObject(manifest, "suite", "fm");
    cJSON_AddStringToObject(manifest, "stage", "pack");
    assert_ok(fm_bundle_begin(&w, scratch("odd.fm"), false, manifest, part, L + 2, &err));
    assert_ok(fm_bundle_finish(w, &err));
    struct fm_model *packed = open_model(scratch("odd.fm"), 0);
    for (int l = 0; l < L; l++)
        for (int e = 0; e < E; e++)
            expect_expert(layer_of(packed, l, -1), l, e, NULL);
    assert_ok(fm_model_nonlayer(packed, &nonlayer, &err));
    expect_same(nonlayer->embed.data, V * H, "model.embed_tokens.weight", 0);
    fm_model_close(packed);
    fm_model_close(m);
    for (int i = 0; i <= L; i++)
        free(bytes[i]);
    free(config);
}

/* A stock checkpoint in one float32 file, which tests corrupt. */
struct spoiled {
    struct piece p[128];
    size_t n;
    float *data[128];
};

static void take_stock(struct spoiled *s)
{
    struct fm_err err = {0};
    struct fm_model *m = open_model(ODD, 1 << 30);
    const struct fm_nonlayer *nonlayer;
    const char *experts[3] = {"model.layers.%d.block_sparse_moe.experts.%d.w1.weight",
                              "model.layers.%d.block_sparse_moe.experts.%d.w3.weight",
                              "model.layers.%d.block_sparse_moe.experts.%d.w2.weight"};
    s->n = 2;
    assert_ok(fm_model_nonlayer(m, &nonlayer, &err));
    s->p[0] = piece(nonlayer->embed.data, V, H, "model.embed_tokens.weight", 0, 0);
    s->p[1] = piece(nonlayer->norm, H, 0, "model.norm.weight", 0, 0);
    for (int l = 0; l < L; l++) {
        s->n += add_rest(s->p + s->n, layer_of(m, l, -1), l, router_of(false));
        for (int e = 0; e < E; e++)
            for (int w = 0; w < 3; w++) {
                uint64_t rows = w < 2 ? I : H, cols = w < 2 ? H : I;
                float *own = stored(experts[w], l, e);
                s->p[s->n++] = piece(own, rows, cols, experts[w], l, e);
                s->data[s->n - 1] = own;
            }
    }
    for (size_t i = 0; i < s->n; i++) {
        size_t bytes = s->p[i].shape[0] * (s->p[i].dims > 1 ? s->p[i].shape[1] : 1) * 4;
        if (s->data[i])
            continue;
        s->data[i] = malloc(bytes);
        memcpy(s->data[i], s->p[i].data, bytes);
        s->p[i].data = s->data[i];
    }
    fm_model_close(m);
}

static size_t find_piece(const struct spoiled *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->p[i].name, name) == 0)
            return i;
    fail_msg("no piece '%s'", name);
    return 0;
}

static void release(struct spoiled *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->data[i]);
}

/* Write the checkpoint as directory `name`; returns the result of opening it and of reading all
 * layers and the tensors outside them. */
static int open_spoiled(const struct spoiled *s, const char *name, struct fm_model **m,
                        struct fm_err *err)
{
    size_t size = 0;
    char *config = config_text(&size), path[64];
    const struct fm_layer *layer;
    const struct fm_nonlayer *nonlayer;
    scratch_mkdir(name);
    write_file(name, "model.safetensors", s->p, s->n);
    snprintf(path, sizeof path, "%s/config.json", name);
    scratch_write(path, config, size);
    free(config);
    int rc = fm_model_open(m, scratch(name), 0, err);
    for (int l = 0; !rc && l < L; l++)
        rc = fm_model_layer(*m, l, l + 1 < L ? l + 1 : -1, &layer, err);
    return rc ? rc : fm_model_nonlayer(*m, &nonlayer, err);
}

TEST(spoiled_checkpoints_are_refused_by_name)
{
    struct spoiled s = {0};
    struct fm_model *m = NULL;
    const char *w1 = "model.layers.2.block_sparse_moe.experts.4.w1.weight";
    take_stock(&s);
    size_t i = find_piece(&s, w1), norm = find_piece(&s, "model.norm.weight");

    assert_ok(open_spoiled(&s, "good", &m, &err));
    assert_int_equal(fm_model_dtype(m), FM_F32);
    expect_expert(layer_of(m, 2, -1), 2, 4, NULL);
    fm_model_close(m);

    s.data[i][100] = NAN;
    assert_fails(open_spoiled(&s, "nan", &m, &err), FM_EFORMAT, w1);
    assert_non_null(strstr(err.text, "element 100"));
    fm_model_close(m);
    s.data[i][100] = 0;

    s.data[norm][7] = -INFINITY;
    assert_fails(open_spoiled(&s, "inf", &m, &err), FM_EFORMAT, "model.norm.weight");
    fm_model_close(m);
    s.data[norm][7] = 1;

    s.p[i].shape[0] = H;
    s.p[i].shape[1] = I;
    assert_fails(open_spoiled(&s, "shape", &m, &err), FM_EFORMAT, "(48, 37)");
    assert_non_null(strstr(err.text, "(37, 48)"));
    s.p[i].shape[0] = I;
    s.p[i].shape[1] = H;

    snprintf(s.p[i].name, sizeof s.p[i].name, "model.layers.2.w1");
    assert_fails(open_spoiled(&s, "missing", &m, &err), FM_EFORMAT, w1);
    assert_non_null(strstr(err.text, "missing"));
    release(&s);
}

TEST(tensors_outside_the_model_are_ignored)
{
    struct spoiled s = {0};
    struct fm_model *m = NULL;
    take_stock(&s);
    s.data[s.n] = calloc(5, sizeof(float));
    s.p[s.n] = piece(s.data[s.n], 5, 0, "model.layers.0.self_attn.rotary_emb.inv_freq", 0, 0);
    s.n++;
    assert_ok(open_spoiled(&s, "more", &m, &err));
    fm_model_close(m);
    release(&s);
}

TEST(a_tied_head_is_the_embedding)
{
    struct spoiled s = {0};
    struct fm_model *m = NULL;
    take_stock(&s);
    size_t i = s.n++, bytes = (size_t)V * H * sizeof(float);
    s.data[i] = malloc(bytes);
    memcpy(s.data[i], s.data[find_piece(&s, "model.embed_tokens.weight")], bytes);
    s.p[i] = piece(s.data[i], V, H, "lm_head.weight", 0, 0);
    assert_ok(open_spoiled(&s, "tied", &m, &err));
    fm_model_close(m);
    s.data[i][V * H - 1] += 1;
    assert_fails(open_spoiled(&s, "untied", &m, &err), FM_ECONFIG,
                 "'lm_head.weight' differs from 'model.embed_tokens.weight'");
    fm_model_close(m);
    s.p[i].shape[0] = V - 1;
    assert_fails(open_spoiled(&s, "short", &m, &err), FM_ECONFIG, "differs from");
    fm_model_close(m);
    release(&s);
}

TEST(paths_without_a_model_are_refused)
{
    struct fm_model *m;
    assert_int_equal(fm_model_open(&m, scratch("nowhere"), 0, &err), FM_ENOENT);
    assert_int_equal(fm_model_open(&m, scratch_write("text", "hello", 5), 0, &err), FM_EFORMAT);
    scratch_mkdir("empty");
    assert_int_equal(fm_model_open(&m, scratch("empty"), 0, &err), FM_ENOENT);
    assert_null(m);
}

/* Even if the weights that are read are in other files. */
TEST(a_file_that_changes_while_weights_are_read_is_noticed)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    const struct fm_nonlayer *nonlayer;
    const struct fm_layer *layer;
    char command[2048], path[512];
    for (int shard = 1; shard <= 2; shard++) {
        snprintf(path, sizeof path, "%s", scratch(shard == 1 ? "first" : "second"));
        snprintf(command, sizeof command, "cp -r %s %s", ODD, path);
        assert_int_equal(system(command), 0);
        struct fm_model *m = open_model(path, 0);
        layer_of(m, 0, -1);
        snprintf(command, sizeof command, "%s/model-%05d-of-00002.safetensors", path, shard);
        scratch_check(utimensat(AT_FDCWD, command, times, 0) == 0, "utimensat");
        for (int l = 1; l < L; l++)
            assert_fails(fm_model_layer(m, l, -1, &layer, &err), FM_EIO, "was changed");
        assert_fails(fm_model_nonlayer(m, &nonlayer, &err), FM_EIO, "was changed");
        fm_model_close(m);
    }
}

/* The model is read from the directory that was opened, even if another one has its name later. */
TEST(a_model_is_read_from_the_directory_that_was_opened)
{
    struct fm_hfdir dir = {0};
    struct fm_model *m;
    char command[2048], path[512];
    snprintf(path, sizeof path, "%s", scratch("opened"));
    snprintf(command, sizeof command, "cp -r %s %s", ODD, path);
    assert_int_equal(system(command), 0);
    assert_ok(fm_hfdir_open(&dir, path, &err));
    snprintf(command, sizeof command, "mv %s %s.away && cp -r golden/odd-qwen2 %s", path, path,
             path);
    assert_int_equal(system(command), 0);
    assert_ok(fm_model_open_dir(&m, &dir, 0, &err));
    for (int l = 0; l < L; l++)
        expect_expert(layer_of(m, l, -1), l, 4, NULL);
    fm_model_close(m);
    fm_hfdir_close(&dir);
}

TEST_MAIN(start_pool, stop_pool)
