/*
 * Number types: the dtypes that a safetensors file may name, their sizes, and the conversion of
 * rows between float and the types of weights, codes and scales.  Elsewhere only vector
 * instructions and GPU code convert a bfloat16.
 */
#ifndef FM_BASE_DTYPE_H
#define FM_BASE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

enum fm_dtype {
    FM_BOOL,
    FM_F4,
    FM_F6_E2M3,
    FM_F6_E3M2,
    FM_U8,
    FM_I8,
    FM_F8_E5M2,
    FM_F8_E4M3,
    FM_F8_E8M0,
    FM_F8_E4M3FNUZ,
    FM_F8_E5M2FNUZ,
    FM_I16,
    FM_U16,
    FM_F16,
    FM_BF16,
    FM_I32,
    FM_U32,
    FM_F32,
    FM_C64,
    FM_F64,
    FM_I64,
    FM_U64,
    FM_DTYPES
};

/* "BF16" and so on, as safetensors spells them; NULL for any other value. */
const char *fm_dtype_name(enum fm_dtype dtype);

/* "bfloat16" and so on: the name of a weight dtype in config.json. */
const char *fm_dtype_torch(enum fm_dtype dtype);

/* The dtype with exactly this name (len bytes, no NUL needed), or -1. */
int fm_dtype_from_name(const char *name, size_t len);

/* Bits of one element: 4, 6, 8, 16, 32 or 64. */
int fm_dtype_bits(enum fm_dtype dtype);

/* True for BF16, F16 and F32, the dtypes that weights may have. */
bool fm_dtype_is_weight(enum fm_dtype dtype);

/* n elements of a weight dtype, F8_E4M3 or F8_E8M0 -> float, exact; NaN stays NaN.  src and dst do
 * not overlap.
 *     F8_E4M3  sign 1, exponent 4 (bias 7), fraction 3 bits: up to 448, subnormals k 2^-9, no Inf,
 *              NaN 0x7f and 0xff (OCP 8-bit floating point, E4M3)
 *     F8_E8M0  2^(byte - 127); NaN 0xff (OCP microscaling formats, E8M0) */
void fm_dtype_to_f32(float *dst, const void *src, enum fm_dtype dtype, size_t n);

/* n floats -> a weight dtype, rounded to nearest, ties to even; F16 overflow gives Inf. */
void fm_dtype_from_f32(void *dst, const float *src, enum fm_dtype dtype, size_t n);

/* Round x[i], i < n, to the nearest value of a weight dtype. */
void fm_dtype_round(float *x, enum fm_dtype dtype, size_t n);

/* Index of the first NaN or Inf among n elements of a weight dtype or F8_E4M3; n if all are
 * finite. */
size_t fm_dtype_nonfinite(const void *src, enum fm_dtype dtype, size_t n);

#endif
