/*
 * The serving loop of fm-bench on the first CUDA device: the decoder of lib/bench/servecase.h with
 * cuBLAS's projections and libfm_clip's experts, its single steps one captured graph that is
 * replayed with position and budget in the device's memory.  Without CUDA, or without a device,
 * fm_serve_gpu_open says FM_CLIP_EDEVICE and nothing else is called.  Every function waits
 * for the device and returns a status of libfm_clip; why this is not a struct fm_device is said
 * in kernels/serve/serve.h.
 */
#ifndef FM_SERVE_GPU_H
#define FM_SERVE_GPU_H

#include "kernels/clip/clip.h"

#ifdef __cplusplus
extern "C" {
#endif

struct fm_serve_gpu;

/* Letters as in kernels/ops/kernels.h; arrays are the host's and are copied. */
struct fm_serve_gpu_shape {
    int type; /* FM_CLIP_F32 or FM_CLIP_BF16: of weights, cache, and what goes through products */
    int L, H, I, E, K, Q, G, C, B, V;
    int batch, prompt, decode;
    int rows; /* at most so many at a time go through; at least batch and prompt */
    float eps;
    const float *table;     /* (V, H) */
    const int32_t *tokens;  /* (batch, prompt + decode) */
    const float *cos, *sin; /* (prompt + decode, C / 2) */
};

struct fm_serve_gpu_weights {
    const float *input_norm, *post_norm; /* (H) */
    const void *qkv, *o;                 /* ((Q + 2 G) C, H), (H, Q C) */
    const float *router;                 /* (E, H) */
    const void *gate_up, *down;          /* (2 E I, H), (E I, H) */
    const int32_t *widths;               /* (B, E) */
};

/* Bytes that are free on the device, 0 where there is none. */
uint64_t fm_serve_gpu_memory(void);

/* Then every layer once, in any order.  Close in any case but after an error of open. */
int32_t fm_serve_gpu_open(struct fm_serve_gpu **gpu, const struct fm_serve_gpu_shape *shape,
                          struct fm_clip_error *error);
int32_t fm_serve_gpu_layer(struct fm_serve_gpu *gpu, int l,
                           const struct fm_serve_gpu_weights *weights, struct fm_clip_error *error);
void fm_serve_gpu_close(struct fm_serve_gpu *gpu); /* NULL is fine */

/* All prompts; then position `at` of every sequence. */
int32_t fm_serve_gpu_prefill(struct fm_serve_gpu *gpu, int32_t budget, struct fm_clip_error *error);
int32_t fm_serve_gpu_step(struct fm_serve_gpu *gpu, int at, int32_t budget,
                          struct fm_clip_error *error);

/* last (batch, H): hidden state of each sequence's newest position. */
int32_t fm_serve_gpu_last(struct fm_serve_gpu *gpu, float *last, struct fm_clip_error *error);

/* The device's name; what libfm_clip runs. */
const char *fm_serve_gpu_name(const struct fm_serve_gpu *gpu);
const char *fm_serve_gpu_path(const struct fm_serve_gpu *gpu);

#ifdef __cplusplus
}
#endif
#endif
