/* The models that llama.cpp computes correctly. */
#include "lib/block/gqa.h"
#include "lib/block/softmax.h"
#include "lib/block/sparsemix.h"
#include "lib/export/runtimes.h"
#include "lib/family/family.h"
#include "tests/unit/test.h"

static struct fm_gqa own;

/* A model of the given family, like the published ones. */
static struct fm_config published(const char *family, const struct fm_router *router)
{
    const struct fm_model_family *f = fm_families_find(family);
    const struct fm_gqa_options *attention = f->attention_options;
    struct fm_config c = {.family = f,
                          .attention = f->attention,
                          .router = router,
                          .L = 4,
                          .M = 4,
                          .Q = 16,
                          .G = 16,
                          .eps = 1e-5F};
    own =
        (struct fm_gqa){.qk_norm = attention->qk_norm, .rope = {.R = 2, .scale = 1, .factor = {1}}};
    c.gqa = &own;
    return c;
}

TEST(published_models_are_computed_correctly)
{
    struct fm_config c = published("mixtral", &fm_softmax);
    assert_true(fm_runtimes_llama(&c));
    c.G = 4;
    c.eps = 1e-6F;
    assert_true(fm_runtimes_llama(&c));
    c = published("qwen3_moe", &fm_softmax);
    assert_true(fm_runtimes_llama(&c));
    c = published("qwen2_moe", &fm_softmax_raw);
    assert_true(fm_runtimes_llama(&c));
    c = published("olmoe", &fm_softmax_raw);
    assert_true(fm_runtimes_llama(&c));
}

TEST(other_routers_are_not_computed_correctly)
{
    struct fm_config c = published("phimoe", &fm_sparsemix);
    assert_false(fm_runtimes_llama(&c));
    c = published("qwen3_moe", &fm_softmax_raw);
    assert_false(fm_runtimes_llama(&c));
    c = published("qwen2_moe", &fm_softmax);
    assert_false(fm_runtimes_llama(&c));
    c = published("olmoe", &fm_softmax);
    assert_false(fm_runtimes_llama(&c));
}

TEST(yarn_was_not_compared)
{
    struct fm_config c = published("qwen3_moe", &fm_softmax);
    own.rope.factor[0] = 4;
    assert_false(fm_runtimes_llama(&c));
    c = published("qwen3_moe", &fm_softmax);
    own.rope.scale = 2;
    assert_false(fm_runtimes_llama(&c));
}

TEST(windows_and_dense_layers_are_not_computed_correctly)
{
    struct fm_config c = published("mixtral", &fm_softmax);
    own.window = 7;
    assert_false(fm_runtimes_llama(&c));
    c = published("qwen2_moe", &fm_softmax_raw);
    c.M = 3;
    assert_false(fm_runtimes_llama(&c));
}

TEST(olmoe_with_other_values_is_not_computed_correctly)
{
    struct fm_config c = published("olmoe", &fm_softmax_raw);
    own.clip = 8;
    assert_false(fm_runtimes_llama(&c));
    own.clip = 0;
    c.G = 4;
    assert_false(fm_runtimes_llama(&c));
    c.G = 16;
    c.eps = 1e-6F;
    assert_false(fm_runtimes_llama(&c));
}

TEST_MAIN(NULL, NULL)
