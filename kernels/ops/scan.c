/*
 * Wrappers generated from the list of operations.  A C function cannot determine through which
 * table it was called, so each scanned table needs its own set of wrappers.  There are as many sets
 * as tables in a process: the reference table, and the fast table in either precision.
 */
#include "kernels/ops/scan.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SETS 3

static const struct fm_ops *scanned[SETS];
static int layer = -1;

void fm_scan_layer(int l)
{
    layer = l;
}

/* The smallest i < count for which x[i] is NaN or Inf, or count. */
static int64_t find_nonfinite(struct fm_in x, int64_t count)
{
    const double *wide = x.data;
    int64_t i = 0;
    if (x.dtype != FM_F64)
        return (int64_t)fm_dtype_nonfinite(x.data, x.dtype, (size_t)count);
    while (i < count && isfinite(wide[i]))
        i++;
    return i;
}

/* Check y (rows, columns), rows ld elements apart; NULL: nothing was written. */
static void check_written(const char *op, const char *array, struct fm_in y, int64_t rows,
                          int64_t columns, int64_t ld)
{
    char where[32] = "outside the layers";
    if (fm_pool_ending()) /* possibly not written */
        return;
    for (int64_t row = 0; y.data && row < rows; row++) {
        int64_t column = find_nonfinite(fm_element(y, (size_t)(row * ld)), columns);
        if (column == columns)
            continue;
        if (layer >= 0)
            snprintf(where, sizeof where, "layer %d", layer);
        fprintf(stderr,
                "%s: %s: %s wrote a value that is not finite (%s, row %" PRId64 ", column %" PRId64
                ")\n",
                program_invocation_short_name, where, op, array, row, column);
        abort();
    }
}

static struct fm_in of_f32(const float *y)
{
    return fm_f32(y);
}

static struct fm_in of_f64(const double *y)
{
    return (struct fm_in){y, FM_F64, NULL};
}

#define OF(y) _Generic((y), float * : of_f32, double * : of_f64, struct fm_out : fm_written)(y)
#define FM_WRITES_LD(y, rows, columns, ld) check_written(op, #y, OF(y), rows, columns, ld);
#define FM_WRITES(y, rows, columns) FM_WRITES_LD(y, rows, columns, columns)

/* SETn_NAME: a call of the nth scanned table. */
#define WRAPPER(set, name, parameters, arguments, writes)                                          \
    static void set##_##name parameters                                                            \
    {                                                                                              \
        const struct fm_ops *base = scanned[set];                                                  \
        const char *op = #name;                                                                    \
        base->name arguments;                                                                      \
        writes(void) op;                                                                           \
    }
enum { SET0, SET1, SET2 };
#define FM_OP(name, parameters, arguments, writes)                                                 \
    WRAPPER(SET0, name, parameters, arguments, writes)                                             \
    WRAPPER(SET1, name, parameters, arguments, writes)                                             \
    WRAPPER(SET2, name, parameters, arguments, writes)
#include "kernels/ops/kernels.def"
#undef FM_OP

static struct fm_ops table[SETS] = {
    {
#define FM_OP(name, parameters, arguments, writes) .name = SET0_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    },
    {
#define FM_OP(name, parameters, arguments, writes) .name = SET1_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    },
    {
#define FM_OP(name, parameters, arguments, writes) .name = SET2_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
    },
};

const struct fm_ops *fm_ops_scanned(const struct fm_ops *base)
{
    int i = 0;
    while (i < SETS && scanned[i] && scanned[i] != base)
        i++;
    assert(i < SETS);
    struct fm_ops *t = &table[i];
    if (scanned[i])
        return t;
    scanned[i] = base;
    t->name = base->name;
    t->operand = base->operand;
    t->f32 = base->f32 == base ? t : fm_ops_scanned(base->f32);
    return t;
}
