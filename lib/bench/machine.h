/*
 * The machine that measurements are made on: its processor's name, and the speed they are a share
 * of, oneDNN's product on large matrices with all threads at work, in the same run.
 */
#ifndef FM_MACHINE_H
#define FM_MACHINE_H

#include <stdbool.h>
#include <stddef.h>

/* What the processor calls itself, or "unknown". */
void fm_machine_processor(char *text, size_t size);

/* Floating-point operations per second, the best of several sizes, forms and rounds; of bfloat16
 * operands too where `bf16` says so and oneDNN has such products here. */
double fm_machine_peak(bool bf16);

#endif
