/*
 * Weights are bfloat16 in memory if both the file and the products use it, else float32.  The
 * values are the same in both cases, and as many layers stay in memory as fit.
 */
#include "kernels/ops/ops.h"
#include "lib/model/model.h"
#include "tests/unit/test.h"

static struct fm_model *open_model(const char *path, uint64_t memory, const struct fm_ops *ops)
{
    struct fm_err err = {0};
    struct fm_model *m;
    assert_ok(fm_model_open(&m, path, memory, &err));
    fm_model_use(m, ops);
    return m;
}

/* Compare n values of any types. */
static void expect_same(struct fm_in got, struct fm_in want, size_t n)
{
    float *a = calloc(n + 1, sizeof *a), *b = calloc(n + 1, sizeof *b);
    assert_true(n > 0);
    fm_dtype_to_f32(a, got.data, got.dtype, n);
    fm_dtype_to_f32(b, want.data, want.dtype, n);
    assert_memory_equal(a, b, n * sizeof *a);
    free(a);
    free(b);
}

/* Dense layers, shared and routed experts, in the checkpoint's order and in that of a ranking. */
TEST(values_are_the_same_in_either_type)
{
    struct fm_model *wide = open_model("golden/odd-qwen2", 0, fm_ops_ref());
    struct fm_model *narrow = open_model("golden/odd-qwen2", 0, fm_ops_cpu_bf16());
    const struct fm_config *c = fm_model_config(wide);
    size_t X = (size_t)c->M * (size_t)c->E, I = (size_t)c->I, H = (size_t)c->H, dense = 0;
    int32_t *order = calloc(X * I, sizeof *order);
    for (size_t i = 0; i < X * I; i++)
        order[i] = (int32_t)(I - 1 - i % I);
    for (int ranked = 0; ranked < 2; ranked++) {
        fm_model_rank(wide, ranked ? order : NULL);
        fm_model_rank(narrow, ranked ? order : NULL);
        for (int l = 0; l < c->L; l++) {
            const struct fm_layer *want, *got;
            size_t mlp = (size_t)fm_config_mlp(c, l) * H, experts = (size_t)c->E * I * H;
            assert_ok(fm_model_layer(wide, l, -1, &want, &err));
            assert_ok(fm_model_layer(narrow, l, -1, &got, &err));
            dense += fm_config_moe(c, l) < 0;
            assert_int_equal(want->mlp_down.dtype, FM_F32);
            assert_int_equal(got->mlp_down.dtype, FM_BF16);
            expect_same(got->mlp_gate_up, want->mlp_gate_up, 2 * mlp);
            expect_same(got->mlp_down, want->mlp_down, mlp);
            if (fm_config_moe(c, l) < 0)
                continue;
            expect_same(got->gate_up, want->gate_up, 2 * experts);
            expect_same(got->down, want->down, experts);
        }
    }
    assert_true(dense > 0);
    free(order);
    fm_model_close(wide);
    fm_model_close(narrow);
}

TEST(half_the_bytes_let_more_layers_stay)
{
    struct fm_model *m = open_model("golden/odd-qwen2", 0, fm_ops_ref());
    uint64_t wide = fm_model_layer_bytes(m), least = fm_model_resident_bytes(m);
    fm_model_use(m, fm_ops_cpu_bf16());
    uint64_t narrow = fm_model_layer_bytes(m);
    assert_true(narrow < wide && 2 * narrow > wide);
    fm_model_close(m);
    /* Memory for one layer besides the slot in float32, and for more than one in bfloat16. */
    m = open_model("golden/odd-qwen2", least + wide, fm_ops_ref());
    const struct fm_layer *layer;
    uint64_t before = fm_model_resident_bytes(m);
    assert_ok(fm_model_layer(m, 0, -1, &layer, &err));
    fm_model_use(m, fm_ops_cpu_bf16());
    assert_ok(fm_model_layer(m, 0, -1, &layer, &err));
    assert_int_equal(layer->mlp_down.dtype, FM_BF16);
    assert_true(fm_model_resident_bytes(m) <= before);
    fm_model_use(m, fm_ops_ref());
    assert_ok(fm_model_layer(m, 0, -1, &layer, &err));
    assert_int_equal(layer->mlp_down.dtype, FM_F32);
    assert_true(fm_model_resident_bytes(m) == before);
    fm_model_close(m);
}

/* Scores use the values of the file, and products the rounded ones. */
TEST(other_types_are_held_in_float32)
{
    struct fm_model *m = open_model("golden/odd-mixtral", 0, fm_ops_cpu_bf16());
    const struct fm_layer *layer;
    assert_ok(fm_model_layer(m, 0, -1, &layer, &err));
    assert_int_equal(layer->gate_up.dtype, FM_F32);
    fm_model_close(m);
}

TEST_MAIN(NULL, NULL)
