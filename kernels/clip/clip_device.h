/*
 * This room, kernels/clip: libfm_clip, a separate library that servers link.  kernels/clip/clip.h
 * is its public interface; fm-bench also uses clip_gpu.h; everything else here is private.  It
 * computes one layer's routed experts from flat arrays, independently of models, files and options
 * of the tools.  In reading order: clip.h, clip_ref.c (the reference implementation), clip.c
 * (arguments), this header, clip_plan, clip_cpu.c, clip_tile and its implementations (clip_avx2,
 * clip_avx512, clip_bf16), clip_few.c, clip_pool, clip_shard.c, clip_gpu.
 *
 * Private to kernels/clip: the table of a device. clip.c checks arguments and calls the table of
 * the layer's device, so the functions of a table may assume valid pointers, sizes and types.
 */
#ifndef FM_KERNELS_CLIP_DEVICE_H
#define FM_KERNELS_CLIP_DEVICE_H

#include "kernels/clip/clip.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The beginning of every prepared layer; a device's own struct has it as its first member. */
struct fm_clip {
    const struct fm_clip_driver *driver;
    struct fm_clip_layer layer;
    char name[64]; /* fm_clip_name */
};

struct fm_clip_driver {
    int32_t (*available)(struct fm_clip_error *error);
    /* Allocate the device's struct and set its name; *clip is set only on success.  driver and
     * layer are filled in afterwards by clip.c.  Checks row0 and cap with fm_clip_check_rows. */
    int32_t (*prepare)(struct fm_clip **clip, const struct fm_clip_layer *layer,
                       struct fm_clip_error *error);
    void (*release)(struct fm_clip *clip);
    uint64_t (*workspace_bytes)(const struct fm_clip_layer *layer, int64_t N_max, int32_t K);
    /* N > 0; call->budget and its type are set, to the layer's if the caller gave none. */
    int32_t (*forward)(struct fm_clip *clip, const struct fm_clip_call *call,
                       struct fm_clip_error *error);
    int32_t (*status)(struct fm_clip *clip, struct fm_clip_error *error);
};

extern const struct fm_clip_driver fm_clip_cpu;
extern const struct fm_clip_driver fm_clip_cuda; /* if FM_CUDA is defined */

/* Set code and sentence if `error` is not NULL; return code. */
int32_t fm_clip_fail(struct fm_clip_error *error, int32_t code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Convert a caller's struct of any size to the one of this library. */
int32_t fm_clip_copy_layer(struct fm_clip_layer *layer, const struct fm_clip_layer *given,
                           struct fm_clip_error *error);
int32_t fm_clip_copy_call(struct fm_clip_call *call, const struct fm_clip_call *given,
                          struct fm_clip_error *error);

/* Check everything that needs no access to an array, except a call's out and workspace. */
int32_t fm_clip_check_layer(const struct fm_clip_layer *layer, struct fm_clip_error *error);
int32_t fm_clip_check_inputs(const struct fm_clip_layer *layer, const struct fm_clip_call *call,
                             struct fm_clip_error *error);

/* Check row0 and cap (E), in host memory, against cap_max and channels. */
int32_t fm_clip_check_rows(const struct fm_clip_layer *layer, const int64_t *row0,
                           const int32_t *cap, struct fm_clip_error *error);

/* The most tokens, up to N, whose fm_clip_workspace_bytes is at most `bytes`; 0: not even one. */
int64_t fm_clip_chunk(const struct fm_clip_layer *layer, int64_t N, int32_t K, uint64_t bytes);

/* Bytes of an element. */
int fm_clip_type_bytes(int32_t type);

#ifdef __cplusplus
}
#endif
#endif
