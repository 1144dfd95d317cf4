/* Base-logits files of any shape: values are read back as written, within half a step of their
 * 16 bits. */
#include <math.h>

#include "formats/text/klbase.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

#define V_MAX 301

/* Logits of a row: values within `span` nats, and one far below them. */
static void fill(float *logits, int V, int seed, float span)
{
    for (int i = 0; i < V; i++)
        logits[i] = 3 + span * (float)((i * 7919 + seed * 104729) % 1009) / 1009;
    if (V > 3)
        logits[3] = -40;
}

static void check_row(const struct fm_klbase *b, int32_t chunk, int i, float span)
{
    float logits[V_MAX], logprob[V_MAX];
    float row[V_MAX];
    struct fm_err err = {0};
    int V = b->shape.vocabulary;
    double sum = 0, most = -INFINITY;
    assert_ok(fm_klbase_logprobs(b, chunk, i, logprob, row, &err));
    fill(logits, V, chunk * 100 + i, span);
    for (int k = 0; k < V; k++)
        most = fmax(most, (double)logits[k]);
    for (int k = 0; k < V; k++)
        sum += exp((double)logits[k] - most);
    double floor = fmax(most - 16, V > 3 ? -40 : 3), step = 16 / 65535.0;
    for (int k = 0; k < V; k++) {
        double want = fmax((double)logits[k], floor) - most - log(sum);
        assert_true(fabs((double)logprob[k] - want) <= 0.5 * step + 1e-5);
        assert_true((double)logits[k] > floor || logprob[k] <= FM_KLBASE_LEAST || V <= 3);
    }
}

static void round_trip(const struct fm_klbase_shape *shape, float span)
{
    const char *path = scratch("base.kld");
    struct fm_klbase_writer w;
    struct fm_klbase b;
    struct fm_err err = {0};
    int rows = fm_klbase_rows(shape->n_ctx);
    int32_t ids[16];
    float logits[V_MAX], row[V_MAX];
    assert_true(shape->n_ctx <= 16 && shape->vocabulary <= V_MAX - 4);
    assert_ok(fm_klbase_check(shape, &err));
    assert_ok(fm_klbase_create(&w, path, true, shape, &err));
    for (int32_t c = shape->chunks - 1; c >= 0; c--) { /* in any order */
        for (int32_t i = 0; i < shape->n_ctx; i++)
            ids[i] = (c + i) % shape->vocabulary;
        assert_ok(fm_klbase_put_tokens(&w, c, ids, &err));
        for (int i = 0; i < rows; i++) {
            fill(logits, shape->vocabulary, c * 100 + i, span);
            fm_klbase_encode(row, logits, shape->vocabulary);
            assert_ok(fm_klbase_put_row(&w, c, i, row, &err));
        }
    }
    assert_ok(fm_output_end(&w.out, FM_OK, &err));
    assert_ok(fm_klbase_open(&b, path, &err));
    assert_memory_equal(&b.shape, shape, sizeof *shape);
    assert_int_equal(b.file.size, fm_klbase_bytes(shape));
    for (int32_t c = 0; c < shape->chunks; c++) {
        assert_ok(fm_klbase_tokens(&b, c, ids, &err));
        assert_int_equal(ids[shape->n_ctx - 1], (c + shape->n_ctx - 1) % shape->vocabulary);
        for (int i = 0; i < rows; i++)
            check_row(&b, c, i, span);
    }
    fm_klbase_close(&b);
}

TEST(what_is_written_is_read)
{
    round_trip(&(struct fm_klbase_shape){16, 297, 3}, 12);
    round_trip(&(struct fm_klbase_shape){15, 100, 2}, 30); /* many below the floor */
    round_trip(&(struct fm_klbase_shape){3, 3, 1}, 2);     /* its floor is not ignored */
    round_trip(&(struct fm_klbase_shape){4, 1, 1}, 0);     /* one token: scale 0 */
}

/* llama.cpp's nv is 2 * ((n_vocab + 1) / 2) + 4 words of 16 bits. */
TEST(sizes_are_those_of_llama_cpp)
{
    struct fm_klbase_shape s = {512, 151936, 20};
    assert_int_equal(fm_klbase_rows(512), 255);
    assert_int_equal(fm_klbase_rows(5), 2);
    assert_int_equal(fm_klbase_row_bytes(151936), 2 * (151936 + 4));
    assert_int_equal(fm_klbase_row_bytes(3), 2 * (4 + 4));
    assert_int_equal(fm_klbase_bytes(&s), 20 + 20 * 512 * 4 + 20ull * 255 * 2 * 151940);
}

TEST(impossible_shapes_are_refused)
{
    const struct fm_klbase_shape bad[] = {
        {2, 100, 1}, {512, 0, 1}, {512, 100, 0}, {512, 100, INT32_MAX / 512 + 1}, {-1, -1, -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fm_klbase_check(&bad[i], &err), FM_EUSAGE);
    }
}

TEST_MAIN(NULL, NULL)
