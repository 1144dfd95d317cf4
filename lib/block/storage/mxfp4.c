/*
 * MXFP4: `X_blocks` U8 (E, R, C / 32, 16) and `X_scales` U8 (E, R, C / 32) for a weight `X` whose
 * own shape is (E, C, R): codes lie transposed.  A block is 32 values of a row, two in a byte, the
 * first in the low half:
 *
 *     value = code * 2^(scale - 127),  code of the low three bits 0 .5 1 1.5 2 3 4 6, the fourth
 * its sign
 *
 * Every finite value has at most two digits and is exactly a bfloat16, so that codes are read as
 * what bundles hold.  A scale of 255 is NaN, and one so large that a value is beyond bfloat16 makes
 * that value infinite: both are refused where they are met.  modules_to_not_convert only says again
 * what the tensors' own names say.
 *
 * Source: OCP Microscaling Formats 1.0, and transformers' integrations/mxfp4.py, which does not
 * look for NaN.
 */
#include "lib/block/block.h"
#include "lib/block/storage.h"

/* The scales of transformers and of the format, and nothing that says another. */
static int read_mxfp4(struct fm_config *c, const cJSON *json, struct fm_err *err)
{
    double block = FM_STORAGE_BLOCK;
    const char *const keys[] = {"block_size", "group_size"};
    int rc = FM_OK;
    c->block_rows = 1;
    c->block_columns = FM_STORAGE_BLOCK;
    for (int i = 0; i < 2 && !rc; i++)
        rc = fm_json_opt_double(json, keys[i], 0, 1e9, &block, err);
    if (!rc && block != FM_STORAGE_BLOCK)
        rc = fm_fail(err, FM_ECONFIG,
                     "mxfp4 in blocks of %g is not supported (only %d); use the model's BF16 "
                     "original, or dequantize it first",
                     block, FM_STORAGE_BLOCK);
    return rc;
}

/* code << 6 | scale's place in it: a bfloat16 is a sign, eight bits of exponent, seven of fraction;
 * below 2^-126 the fraction counts by itself. */
static uint16_t value_of(unsigned code, unsigned scale)
{
    static const struct {
        int exponent;      /* of the leading digit */
        unsigned fraction; /* the next digit */
    } digits[8] = {{0, 0}, {-1, 0}, {0, 0}, {0, 1}, {1, 0}, {1, 1}, {2, 0}, {2, 1}};
    uint16_t sign = (uint16_t)((code & 8) << 12);
    unsigned magnitude = code & 7;
    if (scale == 255)
        return 0x7fc0;
    if (magnitude == 0)
        return sign;
    int exponent = digits[magnitude].exponent + (int)scale;
    unsigned fraction = digits[magnitude].fraction << 6;
    if (exponent >= 255)
        return sign | 0x7f80;
    if (exponent > 0)
        return (uint16_t)(sign | (unsigned)exponent << 7 | fraction);
    return (uint16_t)(sign | (0x80 | fraction) >> (1 - exponent));
}

static void decode(uint16_t *values, const unsigned char *codes, const unsigned char *scales,
                   size_t blocks)
{
    for (size_t b = 0; b < blocks; b++) {
        uint16_t value[16];
        for (unsigned code = 0; code < 16; code++)
            value[code] = value_of(code, scales[b]);
        for (int i = 0; i < FM_STORAGE_BLOCK / 2; i++) {
            *values++ = value[*codes & 15];
            *values++ = value[*codes++ >> 4];
        }
    }
}

static int planes(struct fm_plane plane[FM_PLANES_MAX], const struct fm_config *c)
{
    plane[0] = (struct fm_plane){"", 4, 2, 1, 1};
    plane[1] = (struct fm_plane){"_scale", 8, 1, 1, c->block_columns};
    return 2;
}

const struct fm_storage fm_mxfp4 = {.method = "mxfp4",
                                    .read = read_mxfp4,
                                    .codes = FM_U8,
                                    .written = FM_BF16,
                                    .blocks = "_blocks",
                                    .scale = "_scales",
                                    .decode = decode,
                                    .planes = planes};
