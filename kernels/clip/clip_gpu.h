/*
 * Measures a clipped layer on a GPU, for fm-bench: a copy of the layer on the first CUDA device,
 * timed runs of any path on it, and the limits of the device.  Without CUDA, or without a device,
 * fm_clip_gpu_open returns FM_CLIP_EDEVICE, and no other function may be called.  Every function
 * except fm_clip_gpu_name waits for the device.
 */
#ifndef FM_CLIP_GPU_H
#define FM_CLIP_GPU_H

#include "kernels/clip/clip.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fm_clip_gpu;

/* Copy the layer's weights and tables, all in host memory, to the device.  Close *gpu unless this
 * fails. */
int32_t fm_clip_gpu_open(struct fm_clip_gpu **gpu, const struct fm_clip_layer *host,
                         struct fm_clip_error *error);
void fm_clip_gpu_close(struct fm_clip_gpu *gpu); /* NULL is fine */

/* Seconds of one run of `path` with row `budget` of the widths, from a cold cache, not counting
 * copies; the arrays of `call` are in host memory, and its out is written.  Fused paths run as a
 * captured graph.  0: this path does not support this layer or device, or CUDA failed. */
double fm_clip_gpu_run(struct fm_clip_gpu *gpu, int32_t path, const struct fm_clip_call *call,
                       int32_t budget);

/* The device's name; its read bandwidth in bytes/s; FLOP/s of cuBLAS in bf16 on random numbers,
 * 0 without cuBLAS.  The last two are measured by each call. */
const char *fm_clip_gpu_name(const struct fm_clip_gpu *gpu);
double fm_clip_gpu_bandwidth(void);
double fm_clip_gpu_peak(void);

#ifdef __cplusplus
}
#endif
#endif
