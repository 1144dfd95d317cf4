/*
 * MXFP4 by the format's definition: every code with every scale, blocks of random bytes, values
 * that are not finite, and the memory for reading.
 */
#include <math.h>

#include "formats/quant/quant.h"
#include "lib/base/dtype.h"
#include "lib/base/rng.h"
#include "lib/base/scaled.h"
#include "lib/model/model.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* The value of a code, in double; an infinity if it exceeds bfloat16. */
static double value_of(unsigned code, unsigned scale)
{
    double x = values[code & 7] * ldexp(1, (int)scale - 127);
    if (x > 0x1.fep127)
        x = INFINITY;
    return code & 8 ? -x : x;
}

static void expect(uint16_t got, unsigned code, unsigned scale)
{
    float x;
    fm_dtype_to_f32(&x, &got, FM_BF16, 1);
    if (scale == 255)
        assert_true(isnan(x));
    else
        assert_true((double)x == value_of(code, scale) && !signbit(x) == !(code & 8));
}

/* Decode n blocks as they are stored: codes, and a scale of one byte for each block. */
static void decode(uint16_t *got, const unsigned char *codes, const unsigned char *scales, size_t n)
{
    float *wide = malloc(n * sizeof *wide), *values_of = malloc(32 * n * sizeof *wide);
    assert_true(wide && values_of);
    fm_dtype_to_f32(wide, scales, FM_F8_E8M0, n);
    const struct fm_scales s = {.scale = wide,
                                .count = n,
                                .columns = 32,
                                .block_rows = 1,
                                .block_columns = 32,
                                .code = fm_mxfp4.code};
    fm_scaled_to_f32(values_of, codes, &s, 0, 32 * n);
    fm_dtype_from_f32(got, values_of, FM_BF16, 32 * n);
    free(wide);
    free(values_of);
}

TEST(every_code_under_every_scale_is_exact)
{
    for (unsigned scale = 0; scale < 256; scale++) {
        unsigned char codes[16], one = (unsigned char)scale;
        uint16_t got[32];
        for (unsigned i = 0; i < 16; i++)
            codes[i] = (unsigned char)(i | (15 - i) << 4);
        decode(got, codes, &one, 1);
        for (unsigned i = 0; i < 16; i++) {
            expect(got[2 * i], i, scale);
            expect(got[2 * i + 1], 15 - i, scale);
        }
    }
}

TEST(random_blocks_have_their_own_scales)
{
    enum { BLOCKS = 500 };
    static unsigned char codes[BLOCKS * 16], scales[BLOCKS];
    static uint16_t got[BLOCKS * 32];
    for (size_t i = 0; i < sizeof codes; i += 4) {
        uint32_t word[4];
        fm_rng_words(word, 5, FM_STREAM_BENCH, i);
        memcpy(codes + i, word, 4);
        scales[i / 16] = (unsigned char)(word[1] & 255);
    }
    decode(got, codes, scales, BLOCKS);
    for (size_t i = 0; i < BLOCKS * 32; i++)
        expect(got[i], codes[i / 2] >> (i % 2 * 4) & 15, scales[i / 32]);
}

#define LAYER "model.layers.0."
#define EXPERTS LAYER "mlp.experts."

/* Write a checkpoint of zeros: width 64, one layer, and three experts of width 96. */
static const char *zeros_in_blocks(void)
{
    static const struct {
        const char *name, *dtype, *shape;
        size_t bytes;
    } tensors[] = {
        {"model.embed_tokens.weight", "BF16", "5, 64", 640},
        {"lm_head.weight", "BF16", "5, 64", 640},
        {"model.norm.weight", "BF16", "64", 128},
        {LAYER "input_layernorm.weight", "BF16", "64", 128},
        {LAYER "post_attention_layernorm.weight", "BF16", "64", 128},
        {LAYER "self_attn.q_proj.weight", "BF16", "32, 64", 4096},
        {LAYER "self_attn.q_proj.bias", "BF16", "32", 64},
        {LAYER "self_attn.k_proj.weight", "BF16", "32, 64", 4096},
        {LAYER "self_attn.k_proj.bias", "BF16", "32", 64},
        {LAYER "self_attn.v_proj.weight", "BF16", "32, 64", 4096},
        {LAYER "self_attn.v_proj.bias", "BF16", "32", 64},
        {LAYER "self_attn.o_proj.weight", "BF16", "64, 32", 4096},
        {LAYER "self_attn.o_proj.bias", "BF16", "64", 128},
        {LAYER "self_attn.sinks", "BF16", "1", 2},
        {LAYER "mlp.router.weight", "BF16", "3, 64", 384},
        {LAYER "mlp.router.bias", "BF16", "3", 6},
        {EXPERTS "gate_up_proj_blocks", "U8", "3, 192, 2, 16", 18432},
        {EXPERTS "gate_up_proj_scales", "U8", "3, 192, 2", 1152},
        {EXPERTS "gate_up_proj_bias", "BF16", "3, 192", 1152},
        {EXPERTS "down_proj_blocks", "U8", "3, 64, 3, 16", 9216},
        {EXPERTS "down_proj_scales", "U8", "3, 64, 3", 576},
        {EXPERTS "down_proj_bias", "BF16", "3, 64", 384},
    };
    static const char config[] =
        "{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
        "\"head_dim\":32,\"num_local_experts\":3,\"num_experts_per_tok\":2,\"vocab_size\":5,"
        "\"rope_parameters\":{\"rope_theta\":150000,\"rope_type\":\"default\"},"
        "\"quantization_config\":{\"quant_method\":\"mxfp4\"}}";
    char json[4096] = "{";
    size_t at = 0, n = 1;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        n += (size_t)snprintf(
            json + n, sizeof json - n,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "",
            tensors[i].name, tensors[i].dtype, tensors[i].shape, at, at + tensors[i].bytes);
        at += tensors[i].bytes;
    }
    n += (size_t)snprintf(json + n, sizeof json - n, "}");
    scratch_check(mkdir(scratch("blocks"), 0755) == 0, "blocks");
    scratch_write("blocks/config.json", config, sizeof config - 1);
    scratch_safetensors("blocks/model.safetensors", json, n, at);
    return scratch("blocks");
}

TEST(room_for_scales_is_counted)
{
    struct fm_model *m;
    assert_ok(fm_model_open(&m, zeros_in_blocks(), 1, &err));
    uint64_t ends = (2 * 5 + 1) * 64 * sizeof(float);
    uint64_t codes = 192 * (64 / 2 + 2), scales = 192 * 2 * sizeof(float);
    assert_int_equal(fm_model_resident_bytes(m), ends + fm_model_layer_bytes(m) + codes + scales);
    fm_model_close(m);
}

TEST_MAIN(NULL, NULL)
