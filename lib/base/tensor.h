/*
 * A tensor in a file: its name, dtype, shape and place.
 */
#ifndef FM_TENSOR_H
#define FM_TENSOR_H

#include <stdint.h>

#include "lib/base/dtype.h"

#define FM_ST_DIMS_MAX 8
#define FM_ST_NAME_BYTES_MAX 512

/* How fm_tensor_read (formats/tensor/safetensors.h) gets the bytes of a tensor whose quant_method
 * stores it in an order of its own. */
enum fm_tensor_form {
    FM_TENSOR_STORED,  /* from the file */
    FM_TENSOR_TURNED,  /* by transposing the matrix in the file */
    FM_TENSOR_NIBBLES, /* from the nibbles of a matrix whose words hold eight rows of a column */
    FM_TENSOR_SIZES    /* from `sizes` */
};

struct fm_tensor {
    const char *name; /* borrowed from the index, NUL-terminated */
    enum fm_dtype dtype;
    int dims;
    uint64_t shape[FM_ST_DIMS_MAX];
    uint64_t offset, size; /* bytes, absolute in the file that was opened */
    enum fm_tensor_form form;
    int64_t sizes[2]; /* of FM_TENSOR_SIZES */
};

#endif
