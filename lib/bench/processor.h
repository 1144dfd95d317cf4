/*
 * The processor that measurements run on: its name, and the reference speed (oneDNN's product of
 * large matrices on all threads), which is measured in the same run.
 */
#ifndef FM_PROCESSOR_H
#define FM_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* The name that the processor reports, or "unknown". */
void fm_processor_name(char *text, size_t size);

/* Floating-point operations per second, the best of several sizes and rounds, with and without a
 * transposed operand; also with bfloat16 operands if `bf16` is set and oneDNN supports them on this
 * machine. */
double fm_processor_peak(bool bf16);

#endif
