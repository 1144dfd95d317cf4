/* What a build without CUDA answers; with it, these are in serve_cuda.cu. */
#include "kernels/serve/serve_gpu.h"

#include "kernels/clip/clip_device.h"

#ifdef FM_CUDA
extern const int fm_serve_gpu_is_elsewhere; /* a translation unit may not be empty */
#else
uint64_t fm_serve_gpu_memory(void)
{
    return 0;
}

int32_t fm_serve_gpu_open(struct fm_serve_gpu **gpu, const struct fm_serve_gpu_shape *shape,
                          struct fm_clip_error *error)
{
    (void)shape;
    *gpu = NULL;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

int32_t fm_serve_gpu_layer(struct fm_serve_gpu *gpu, int l,
                           const struct fm_serve_gpu_weights *weights, struct fm_clip_error *error)
{
    (void)gpu, (void)l, (void)weights;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

void fm_serve_gpu_close(struct fm_serve_gpu *gpu)
{
    (void)gpu;
}

int32_t fm_serve_gpu_prefill(struct fm_serve_gpu *gpu, int32_t budget, struct fm_clip_error *error)
{
    (void)gpu, (void)budget;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

int32_t fm_serve_gpu_step(struct fm_serve_gpu *gpu, int at, int32_t budget,
                          struct fm_clip_error *error)
{
    (void)gpu, (void)at, (void)budget;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

int32_t fm_serve_gpu_last(struct fm_serve_gpu *gpu, float *last, struct fm_clip_error *error)
{
    (void)gpu, (void)last;
    return fm_clip_fail(error, FM_CLIP_EDEVICE, "built without CUDA");
}

const char *fm_serve_gpu_name(const struct fm_serve_gpu *gpu)
{
    (void)gpu;
    return "";
}

const char *fm_serve_gpu_path(const struct fm_serve_gpu *gpu)
{
    (void)gpu;
    return "";
}
#endif
