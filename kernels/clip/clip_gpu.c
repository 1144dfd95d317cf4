/* Stubs for a build without CUDA; with CUDA, these functions are in clip_cuda_gpu.cu. */
#include "kernels/clip/clip_gpu.h"

#include "kernels/clip/clip_device.h"

#ifdef FM_CUDA
extern const int fm_clip_gpu_is_elsewhere; /* a translation unit must not be empty */
#else
int32_t fm_clip_gpu_open(struct fm_clip_gpu **gpu, const struct fm_clip_layer *host,
                         struct fm_clip_error *error)
{
    (void)host;
    *gpu = NULL;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

void fm_clip_gpu_close(struct fm_clip_gpu *gpu)
{
    (void)gpu;
}

double fm_clip_gpu_run(struct fm_clip_gpu *gpu, int32_t path, const struct fm_clip_call *call,
                       int32_t budget)
{
    (void)gpu, (void)path, (void)call, (void)budget;
    return 0;
}

const char *fm_clip_gpu_name(const struct fm_clip_gpu *gpu)
{
    (void)gpu;
    return "";
}

double fm_clip_gpu_bandwidth(void)
{
    return 0;
}

double fm_clip_gpu_peak(void)
{
    return 0;
}
#endif
