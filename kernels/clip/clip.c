/* The functions of clip.h: they check arguments and call the table of the layer's device. */
#include "kernels/clip/clip_device.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/clip/clip_pool.h"

#define OFFSET(type, field, at)                                                                    \
    _Static_assert(offsetof(struct type, field) == (at), #type "." #field " moved")
OFFSET(fm_clip_layer, channels, 40);
OFFSET(fm_clip_layer, budget, 88);
OFFSET(fm_clip_layer, reserved, 108);
OFFSET(fm_clip_layer, down_bias, 120);
OFFSET(fm_clip_layer, limit, 132);
OFFSET(fm_clip_call, N, 8);
OFFSET(fm_clip_call, hidden, 24);
OFFSET(fm_clip_call, stream, 96);
OFFSET(fm_clip_call, budget_type, 112);
OFFSET(fm_clip_layer, path, FM_CLIP_LAYER_SIZE_MIN);
OFFSET(fm_clip_call, stream, FM_CLIP_CALL_SIZE_MIN);
_Static_assert(sizeof(struct fm_clip_layer) == 136, "fm_clip_layer changed");
_Static_assert(sizeof(struct fm_clip_call) == 120, "fm_clip_call changed");
_Static_assert(sizeof(struct fm_clip_error) == 1024, "fm_clip_error changed");

#ifndef FM_VERSION
#error "FM_VERSION must be defined"
#endif

uint32_t fm_clip_abi(void)
{
    return FM_CLIP_ABI;
}

const char *fm_clip_version(void)
{
    return FM_VERSION;
}

int32_t fm_clip_fail(struct fm_clip_error *error, int32_t code, const char *fmt, ...)
{
    va_list args;
    if (!error)
        return code;
    error->code = code;
    va_start(args, fmt);
    vsnprintf(error->text, sizeof error->text, fmt, args);
    va_end(args);
    return code;
}

int fm_clip_type_bytes(int32_t type)
{
    switch (type) {
    case FM_CLIP_F16:
    case FM_CLIP_BF16:
        return 2;
    case FM_CLIP_I64:
        return 8;
    default:
        return 4;
    }
}

static int32_t find_driver(const struct fm_clip_driver **driver, int32_t device,
                           struct fm_clip_error *error)
{
    *driver = NULL;
    if (device == FM_CLIP_CPU)
        *driver = &fm_clip_cpu;
#ifdef FM_CUDA
    else if (device == FM_CLIP_CUDA)
        *driver = &fm_clip_cuda;
#else
    else if (device == FM_CLIP_CUDA)
        return fm_clip_fail(error, FM_CLIP_EDEVICE, "this libfm_clip was built without CUDA");
#endif
    return *driver ? FM_CLIP_OK
                   : fm_clip_fail(error, FM_CLIP_EUSAGE, "device %d is not known", (int)device);
}

int32_t fm_clip_available(int32_t device, struct fm_clip_error *error)
{
    const struct fm_clip_driver *driver;
    int32_t code = find_driver(&driver, device, error);
    return code == FM_CLIP_OK ? driver->available(error) : code;
}

/* A number of a descriptor, and its limits. */
struct limit {
    const char *what;
    int64_t value, least, most;
};

static int32_t check_all(const struct limit *limit, int count, struct fm_clip_error *error)
{
    for (const struct limit *l = limit; l < limit + count; l++)
        if (l->value < l->least || l->value > l->most)
            return fm_clip_fail(error, FM_CLIP_EUSAGE, "%s is %lld, but may be %lld to %lld",
                                l->what, (long long)l->value, (long long)l->least,
                                (long long)l->most);
    return FM_CLIP_OK;
}

/*
 * Convert the caller's struct, of `size` bytes, to the version of this library: `known` has
 * known_size bytes, is 0 after the end of a shorter struct, and begins with its own size.  The
 * additional bytes of a newer caller's struct must be 0, so that it cannot use a feature that this
 * version lacks.
 */
static int32_t copy_struct(void *known, uint32_t known_size, uint32_t least, const void *given,
                           const char *what, struct fm_clip_error *error)
{
    uint32_t size;
    if (!given)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "%s is NULL", what);
    memcpy(&size, given, sizeof size);
    if (size < least || size > FM_CLIP_SIZE_MAX)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "%s size is %u, but may be %u to %d", what, size,
                            least, FM_CLIP_SIZE_MAX);
    if (size % FM_CLIP_SIZE_STEP) /* it could end inside a pointer */
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "%s size is %u, but must be a multiple of %d",
                            what, size, FM_CLIP_SIZE_STEP);
    for (uint32_t i = known_size; i < size; i++)
        if (((const char *)given)[i])
            return fm_clip_fail(error, FM_CLIP_EUSAGE,
                                "%s is not 0 at byte %u, but libfm_clip %s supports only %u bytes: "
                                "a newer one is needed",
                                what, i, FM_VERSION, known_size);
    memset(known, 0, known_size);
    memcpy(known, given, size < known_size ? size : known_size);
    memcpy(known, &known_size, sizeof known_size);
    return FM_CLIP_OK;
}

int32_t fm_clip_copy_layer(struct fm_clip_layer *layer, const struct fm_clip_layer *given,
                           struct fm_clip_error *error)
{
    return copy_struct(layer, sizeof *layer, FM_CLIP_LAYER_SIZE_MIN, given, "layer", error);
}

int32_t fm_clip_copy_call(struct fm_clip_call *call, const struct fm_clip_call *given,
                          struct fm_clip_error *error)
{
    return copy_struct(call, sizeof *call, FM_CLIP_CALL_SIZE_MIN, given, "call", error);
}

static int32_t check_sizes(const struct fm_clip_layer *l, struct fm_clip_error *error)
{
    const struct limit limits[] = {
        {"device", l->device, FM_CLIP_CPU, FM_CLIP_CUDA},
        {"type", l->type, FM_CLIP_F32, FM_CLIP_BF16},
        {"H", l->H, 1, 1 << 20},
        {"E", l->E, 1, 65536},
        {"cap_max", l->cap_max, 0, 1 << 24},
        {"threads", l->threads, 0, l->device == FM_CLIP_CPU ? 1024 : 0},
    };
    return check_all(limits, sizeof limits / sizeof *limits, error);
}

/* Check alpha and limit, and the fields that only the CPU supports. */
static int32_t check_activation(const struct fm_clip_layer *l, struct fm_clip_error *error)
{
    bool clamped = l->activation == FM_CLIP_SWIGLU_CLAMPED;
    if (clamped ? !(l->alpha > 0 && l->limit > 0) : l->alpha != 0 || l->limit != 0)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "alpha is %g and limit %g, but must be %s",
                            (double)l->alpha, (double)l->limit, clamped ? "above 0" : "0");
    if (l->device == FM_CLIP_CUDA && (clamped || l->gate_up_bias || l->down_bias))
        return fm_clip_fail(error, FM_CLIP_EDEVICE,
                            "FM_CLIP_SWIGLU_CLAMPED, gate_up_bias and down_bias are supported only "
                            "on the CPU");
    return FM_CLIP_OK;
}

int32_t fm_clip_check_layer(const struct fm_clip_layer *l, struct fm_clip_error *error)
{
    int32_t code = check_sizes(l, error);
    if (code != FM_CLIP_OK)
        return code;
    const struct limit limits[] = {
        {"ordinal", l->ordinal, 0, l->device == FM_CLIP_CPU ? 0 : INT32_MAX},
        {"activation", l->activation, FM_CLIP_SILU, FM_CLIP_SWIGLU_CLAMPED},
        {"e0", l->e0, 0, INT32_MAX - l->E},
        {"B", l->B, 1, 65536},
        {"channels", l->channels, 0, (int64_t)1 << 40},
        {"budget_type", l->budget_type, FM_CLIP_F32, FM_CLIP_I64},
        {"reserved", l->reserved, 0, 0},
    };
    if ((code = check_all(limits, sizeof limits / sizeof *limits, error)) != FM_CLIP_OK)
        return code;
    if (l->channels > 0 && (!l->gate_up || !l->down))
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "gate_up or down is NULL");
    if (!l->row0 || !l->cap || !l->widths || !l->budget)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "row0, cap, widths or budget is NULL");
    return check_activation(l, error);
}

int32_t fm_clip_check_rows(const struct fm_clip_layer *layer, const int64_t *row0,
                           const int32_t *cap, struct fm_clip_error *error)
{
    for (int e = 0; e < layer->E; e++) {
        if (cap[e] < 0 || cap[e] > layer->cap_max)
            return fm_clip_fail(error, FM_CLIP_EUSAGE, "cap[%d] is %d, but may be 0 to cap_max, %d",
                                e, (int)cap[e], (int)layer->cap_max);
        if (row0[e] < 0 || row0[e] > layer->channels - cap[e])
            return fm_clip_fail(error, FM_CLIP_EUSAGE,
                                "expert %d has %d channels from %lld on, but there are %lld", e,
                                (int)cap[e], (long long)row0[e], (long long)layer->channels);
    }
    return FM_CLIP_OK;
}

int32_t fm_clip_prepare(struct fm_clip **clip, const struct fm_clip_layer *layer,
                        struct fm_clip_error *error)
{
    const struct fm_clip_driver *driver;
    struct fm_clip_layer l;
    if (!clip)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "the pointer for the prepared layer is NULL");
    *clip = NULL;
    int32_t code = fm_clip_copy_layer(&l, layer, error);
    if (code == FM_CLIP_OK)
        code = fm_clip_check_layer(&l, error);
    if (code == FM_CLIP_OK)
        code = find_driver(&driver, l.device, error);
    if (code != FM_CLIP_OK)
        return code;
    if (l.device == FM_CLIP_CPU && l.threads == 0)
        l.threads = fm_clip_pool_cpus();
    if ((code = driver->prepare(clip, &l, error)) != FM_CLIP_OK)
        return code;
    (*clip)->driver = driver;
    (*clip)->layer = l;
    return FM_CLIP_OK;
}

void fm_clip_release(struct fm_clip *clip)
{
    if (clip)
        clip->driver->release(clip);
}

uint64_t fm_clip_workspace_bytes(const struct fm_clip_layer *layer, int64_t N_max, int32_t K)
{
    const struct fm_clip_driver *driver;
    struct fm_clip_layer l;
    if (fm_clip_copy_layer(&l, layer, NULL) != FM_CLIP_OK || check_sizes(&l, NULL) != FM_CLIP_OK ||
        N_max < 0 || K < 1 || K > 1024 || N_max > INT32_MAX / K ||
        find_driver(&driver, l.device, NULL) != FM_CLIP_OK)
        return 0;
    return driver->workspace_bytes(&l, N_max > 0 ? N_max : 1, K);
}

int64_t fm_clip_chunk(const struct fm_clip_layer *layer, int64_t N, int32_t K, uint64_t bytes)
{
    /* Bytes grow with the number of tokens: halve the interval between one that fits and one that
     * does not. */
    uint64_t all = fm_clip_workspace_bytes(layer, N, K);
    if (all > 0 && all <= bytes)
        return N;
    int64_t fits = 0, over = (N < INT32_MAX / K ? N : INT32_MAX / K) + 1;
    while (over - fits > 1) {
        int64_t middle = fits + (over - fits) / 2;
        uint64_t needed = fm_clip_workspace_bytes(layer, middle, K);
        if (needed > 0 && needed <= bytes)
            fits = middle;
        else
            over = middle;
    }
    return fits;
}

/* True if the memory of hidden and of out overlaps, counting the gaps between rows. */
static int overlap(const struct fm_clip_call *c, uint64_t element)
{
    uintptr_t a = (uintptr_t)c->hidden, b = (uintptr_t)c->out;
    return a < b + (uint64_t)c->N * (uint64_t)c->out_stride * element &&
           b < a + (uint64_t)c->N * (uint64_t)c->hidden_stride * element;
}

int32_t fm_clip_check_inputs(const struct fm_clip_layer *l, const struct fm_clip_call *c,
                             struct fm_clip_error *error)
{
    const struct limit limits[] = {
        {"ids_type", c->ids_type, FM_CLIP_I32, FM_CLIP_I64},
        {"N", c->N, 0, (int64_t)1 << 40},
        {"K", c->K, 1, 1024},
        {"threads", c->threads, 0, l->device == FM_CLIP_CPU ? 1024 : 0},
        {"hidden_stride", c->hidden_stride, l->H, (int64_t)1 << 20},
        {"out_stride", c->out_stride, l->H, (int64_t)1 << 20},
        {"budget_type", c->budget_type, FM_CLIP_F32, c->budget ? FM_CLIP_I64 : 0},
        {"reserved", c->reserved, 0, 0},
    };
    int32_t code = check_all(limits, sizeof limits / sizeof *limits, error);
    if (code != FM_CLIP_OK || c->N == 0)
        return code;
    if (!c->hidden || !c->ids || !c->weights)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "hidden, ids or weights is NULL");
    return FM_CLIP_OK;
}

static int32_t check_call(const struct fm_clip_layer *l, const struct fm_clip_call *c,
                          struct fm_clip_error *error)
{
    int32_t code = fm_clip_check_inputs(l, c, error);
    if (code != FM_CLIP_OK || c->N == 0)
        return code;
    if (!c->out || !c->workspace)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "out or workspace is NULL");
    if ((uintptr_t)c->workspace % FM_CLIP_ALIGN)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "workspace is not aligned to %d bytes",
                            FM_CLIP_ALIGN);
    if (overlap(c, (uint64_t)fm_clip_type_bytes(l->type)))
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "out overlaps hidden");
    uint64_t least = fm_clip_workspace_bytes(l, 1, c->K);
    if (c->workspace_bytes < least)
        return fm_clip_fail(error, FM_CLIP_EUSAGE,
                            "workspace has %llu bytes, but one token needs %llu",
                            (unsigned long long)c->workspace_bytes, (unsigned long long)least);
    return FM_CLIP_OK;
}

int32_t fm_clip_forward(struct fm_clip *clip, const struct fm_clip_call *call,
                        struct fm_clip_error *error)
{
    struct fm_clip_call c;
    if (!clip || !call)
        return fm_clip_fail(error, FM_CLIP_EUSAGE, "the layer or the call is NULL");
    int32_t code = fm_clip_copy_call(&c, call, error);
    if (code == FM_CLIP_OK)
        code = check_call(&clip->layer, &c, error);
    if (code != FM_CLIP_OK || c.N == 0)
        return code;
    if (!c.budget) {
        c.budget = clip->layer.budget;
        c.budget_type = clip->layer.budget_type;
    }
    return clip->driver->forward(clip, &c, error);
}

int32_t fm_clip_status(struct fm_clip *clip, struct fm_clip_error *error)
{
    assert(clip);
    return clip->driver->status(clip, error);
}

const char *fm_clip_name(const struct fm_clip *clip)
{
    return clip->name;
}
