/*
 * Measuring a clipped layer on a GPU, for fm-bench and the check of the GPU paths: a copy of a
 * host's layer on the first CUDA device, timed runs of any path on it, and the device's own limits.
 * Without CUDA, or without a device, fm_clip_gpu_open says FM_CLIP_EDEVICE and nothing else is
 * called.  Everything waits for the device.
 */
#ifndef FM_CLIP_GPU_H
#define FM_CLIP_GPU_H

#include "kernels/clip/clip.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fm_clip_gpu;

/* Copy the layer's weights and tables, all in host memory, to the device.  Close in any case but
 * after an error. */
int32_t fm_clip_gpu_open(struct fm_clip_gpu **gpu, const struct fm_clip_layer *host,
                         struct fm_clip_error *error);
void fm_clip_gpu_close(struct fm_clip_gpu *gpu); /* NULL is fine */

/* Seconds of one run of `path` with row `budget` of the widths, from a cold cache, without copies;
 * call is on the host, and gets its out.  Fused paths run as a captured graph.  0: this path does
 * not serve this layer or device. */
double fm_clip_gpu_run(struct fm_clip_gpu *gpu, int32_t path, const struct fm_clip_call *call,
                       int32_t budget);

/* The device's name; bytes/s that a kernel reads; flop/s of cuBLAS in bf16 on random numbers, 0
 * without cuBLAS.  Measured anew by each call. */
const char *fm_clip_gpu_name(const struct fm_clip_gpu *gpu);
double fm_clip_gpu_bandwidth(void);
double fm_clip_gpu_peak(void);

#ifdef __cplusplus
}
#endif
#endif
