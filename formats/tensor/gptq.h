/*
 * Checkpoints of GPTQ (quant_method gptq), read as compressed-tensors' pack-quantized: the codes
 * are the same words and the scales the same numbers, in matrices that are transposed.
 *
 *     X.qweight I32 (K / 8, N)         X.weight_packed I32 (N, K / 8)  four-bit integers, 8 added
 *     X.scales (K / group, N)          X.weight_scale (N, K / group)
 *     X.qzeros I32 (K / group, N / 8)  X.weight_shape I64 (2)          zero points, all 8
 *     X.g_idx I32 (K)                  absent                          groups, ascending
 *
 * Checkpoints of AWQ (quant_method awq) keep their names and quantization_config
 * (formats/quant/awq.c reads it), but their tensors are presented in the same order: X.qweight I32
 * (K, N / 8) as (N, K / 8), X.scales (K / group, N) as (N, K / group), and X.qzeros I32 (K / group,
 * N / 8) as U8 (N, K / group).
 *
 * Source: AutoGPTQ's and GPTQModel's qlinear modules, which store a zero point minus one unless
 * checkpoint_format is gptq_v2.
 */
#ifndef FM_GPTQ_H
#define FM_GPTQ_H

#include "formats/tensor/hfdir.h"

/*
 * If config.json of the directory, whose weights are open, specifies AWQ, turn its tensors.  If it
 * specifies GPTQ: give its tensors the
 * names, shapes and reading order of the other format, and set `*config` (malloc) to its
 * quantization_config in that format; else *config is NULL.  Reads all zero points and g_idx.
 * FM_ECONFIG, naming the key or tensor, for widths other than 4 bits, zero points that are missing
 * or not 8, columns in another order, or a missing g_idx if desc_act is true.
 */
int fm_gptq_take(char **config, struct fm_hfdir *dir, struct fm_err *err);

#endif
