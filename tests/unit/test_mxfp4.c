/*
 * MXFP4 by the format's definition: every code under every scale, blocks of random bytes, and where
 * a value stops being a number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "lib/base/dtype.h"
#include "lib/base/rng.h"
#include "lib/block/storage.h"

static const double values[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* What a code is, in double; beyond bfloat16 an infinity. */
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

static void every_code_under_every_scale_is_exact(void **state)
{
    (void)state;
    for (unsigned scale = 0; scale < 256; scale++) {
        unsigned char codes[16], one = (unsigned char)scale;
        uint16_t got[32];
        for (unsigned i = 0; i < 16; i++)
            codes[i] = (unsigned char)(i | (15 - i) << 4);
        fm_mxfp4.decode(got, codes, &one, 1);
        for (unsigned i = 0; i < 16; i++) {
            expect(got[2 * i], i, scale);
            expect(got[2 * i + 1], 15 - i, scale);
        }
    }
}

static void random_blocks_have_their_own_scales(void **state)
{
    (void)state;
    enum { BLOCKS = 500 };
    static unsigned char codes[BLOCKS * 16], scales[BLOCKS];
    static uint16_t got[BLOCKS * 32];
    for (size_t i = 0; i < sizeof codes; i += 4) {
        uint32_t word[4];
        fm_rng_words(word, 5, FM_STREAM_BENCH, i);
        memcpy(codes + i, word, 4);
        scales[i / 16] = (unsigned char)(word[1] & 255);
    }
    fm_mxfp4.decode(got, codes, scales, BLOCKS);
    for (size_t i = 0; i < BLOCKS * 32; i++)
        expect(got[i], codes[i / 2] >> (i % 2 * 4) & 15, scales[i / 32]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_under_every_scale_is_exact),
        cmocka_unit_test(random_blocks_have_their_own_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
