/*
 * The processor that measurements are made on: its name, and the speed they are a share of,
 * oneDNN's product on large matrices with all threads at work, in the same run.
 */
#ifndef FM_PROCESSOR_H
#define FM_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* What the processor calls itself, or "unknown". */
void fm_processor_name(char *text, size_t size);

/* Floating-point operations per second, the best of several sizes, forms and rounds; of bfloat16
 * operands too where `bf16` says so and oneDNN has such products here. */
double fm_processor_peak(bool bf16);

#endif
