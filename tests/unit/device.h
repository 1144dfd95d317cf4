/*
 * A device for tests: the operations of the definition on memory that nobody else can touch.
 *
 * One file in memory is mapped twice.  Pointers that alloc and scratch give out lie in a mapping
 * without any access (PROT_NONE), so whoever reads or writes there gets a fault; every operation
 * and every copy translates its pointers to the other mapping, which is open.  The translation in
 * turn refuses what is no memory of the device: a host pointer given to an operation, a block that
 * was freed.  Contents of new blocks and scratch are NaN.  Any number of threads may compute.
 */
#ifndef FM_TESTS_DEVICE_H
#define FM_TESTS_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/ops/ops.h"
#include "lib/base/mem.h"
#include "tests/unit/scratch.h"

#define DEVICE_BYTES ((size_t)16 << 30) /* of addresses; a block's are never used again */
#define DEVICE_SCRATCH ((size_t)64 << 20)
#define DEVICE_PAGE ((size_t)4096)

static struct {
    char *closed, *open;
    unsigned char *live;  /* one a page */
    size_t *pages;        /* of the block that begins at a page */
    pthread_mutex_t lock; /* of end */
    size_t end;
    int fd;
    _Atomic int failures; /* latched until sync */
} device = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The calling thread's scratch. */
static _Thread_local char *device_stack;
static _Thread_local size_t device_used;

static inline void device_start(void)
{
    size_t pages = DEVICE_BYTES / DEVICE_PAGE;
    device.fd = memfd_create("device", MFD_CLOEXEC);
    scratch_check(device.fd >= 0 && ftruncate(device.fd, (off_t)DEVICE_BYTES) == 0, "memfd");
    device.closed = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_SHARED | MAP_NORESERVE, device.fd, 0);
    device.open =
        mmap(NULL, DEVICE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, device.fd, 0);
    scratch_check(device.closed != MAP_FAILED && device.open != MAP_FAILED, "mmap");
    device.live = calloc(pages, 1);
    device.pages = calloc(pages, sizeof *device.pages);
    scratch_check(device.live && device.pages, "calloc");
}

static inline bool device_has(const void *p)
{
    const char *at = p;
    return at >= device.closed && at < device.closed + DEVICE_BYTES;
}

/* The open address of a pointer of the device; NULL stays NULL. */
static inline void *device_open(const void *p)
{
    if (!p)
        return NULL;
    if (!device_has(p) || !device.live[(size_t)((const char *)p - device.closed) / DEVICE_PAGE]) {
        fprintf(stderr, "device: %p is no memory of the device\n", p);
        abort();
    }
    return device.open + ((const char *)p - device.closed);
}

static inline void *device_alloc(size_t bytes, const char *what, struct fm_err *err)
{
    size_t pages = (bytes + FM_ALIGN) / DEVICE_PAGE + 1, first;
    pthread_mutex_lock(&device.lock);
    first = device.end / DEVICE_PAGE;
    bool fits = bytes < DEVICE_BYTES && pages < DEVICE_BYTES / DEVICE_PAGE - first;
    if (fits)
        device.end += pages * DEVICE_PAGE;
    pthread_mutex_unlock(&device.lock);
    if (!fits) {
        fm_fail(err, FM_ENOMEM, "the device has no memory for %s (%zu bytes)", what, bytes);
        return NULL;
    }
    memset(device.live + first, 1, pages);
    device.pages[first] = pages;
    memset(device.open + first * DEVICE_PAGE, 0xFF, bytes);
    return device.closed + first * DEVICE_PAGE;
}

static inline void device_free(void *block)
{
    if (!block)
        return;
    size_t at = (size_t)((char *)device_open(block) - device.open), first = at / DEVICE_PAGE;
    size_t pages = device.pages[first];
    scratch_check(at % DEVICE_PAGE == 0 && pages > 0, "a block of the device");
    memset(device.live + first, 0, pages);
    madvise(device.open + at, pages * DEVICE_PAGE, MADV_REMOVE);
}

static inline struct fm_mark device_mark(void)
{
    return (struct fm_mark){.used = device_used};
}

static inline void *device_scratch(size_t bytes)
{
    struct fm_err err = {0};
    if (!device_stack)
        device_stack = device_alloc(DEVICE_SCRATCH, "scratch", &err);
    scratch_check(device_stack && bytes <= DEVICE_SCRATCH - device_used, "scratch of the device");
    char *p = device_stack + device_used;
    device_used += (bytes + FM_ALIGN - 1) / FM_ALIGN * FM_ALIGN;
    memset(device_open(p), 0xFF, bytes);
    return p;
}

static inline void device_release(struct fm_mark mark)
{
    scratch_check(mark.used <= device_used, "marks of the device in order");
    device_used = mark.used;
}

static inline void device_copy_in(void *to, const void *from, size_t bytes)
{
    scratch_check(!device_has(from), "bytes of the host");
    memcpy(device_open(to), from, bytes);
}

static inline void device_copy_out(void *to, const void *from, size_t bytes)
{
    scratch_check(!device_has(to), "bytes of the host");
    memcpy(to, device_open(from), bytes);
}

static inline const void *device_stage_in(const void *from, size_t bytes)
{
    void *to = device_scratch(bytes);
    device_copy_in(to, from, bytes);
    return to;
}

static inline const void *device_stage_out(const void *from, size_t bytes)
{
    void *to = fm_scratch(bytes);
    device_copy_out(to, from, bytes);
    return to;
}

static inline int device_sync(struct fm_err *err)
{
    if (atomic_exchange(&device.failures, 0) == 0)
        return FM_OK;
    return fm_fail(err, FM_EDEVICE, "the device failed");
}

static const struct fm_device device_memory = {.name = "test",
                                               .alloc = device_alloc,
                                               .free = device_free,
                                               .mark = device_mark,
                                               .scratch = device_scratch,
                                               .release = device_release,
                                               .copy_in = device_copy_in,
                                               .copy_out = device_copy_out,
                                               .stage_in = device_stage_in,
                                               .stage_out = device_stage_out,
                                               .sync = device_sync};

/*
 * The operations: device_NAME calls ref_NAME with every pointer translated.  What an argument is
 * says its type: pointers to numbers are the device's, everything else is passed on.
 */
#define DEVICE_TYPES(POINTER, VALUE)                                                               \
    POINTER(float *, floats)                                                                       \
    POINTER(const float *, const_floats)                                                           \
    POINTER(double *, doubles)                                                                     \
    POINTER(const double *, const_doubles)                                                         \
    POINTER(int32_t *, ints)                                                                       \
    POINTER(const int32_t *, const_ints)                                                           \
    POINTER(int64_t *, longs)                                                                      \
    POINTER(void *, bytes)                                                                         \
    POINTER(const void *, const_bytes)                                                             \
    VALUE(bool, bool)                                                                              \
    VALUE(int, int)                                                                                \
    VALUE(enum fm_dtype, dtype)                                                                    \
    VALUE(int64_t, int64)                                                                          \
    VALUE(size_t, size)                                                                            \
    VALUE(float, float)                                                                            \
    VALUE(double, double)                                                                          \
    VALUE(const struct fm_loss_weights *, weights)                                                 \
    VALUE(const struct fm_route_rule *, rule)

#define DEVICE_POINTER(type, name)                                                                 \
    static inline type device_pass_##name(type p)                                                  \
    {                                                                                              \
        return device_open(p);                                                                     \
    }
#define DEVICE_VALUE(type, name)                                                                   \
    static inline type device_pass_##name(type value)                                              \
    {                                                                                              \
        return value;                                                                              \
    }
DEVICE_TYPES(DEVICE_POINTER, DEVICE_VALUE)

static inline struct fm_in device_pass_in(struct fm_in x)
{
    static _Thread_local struct fm_scales scales; /* of the one operand that has any */
    if (x.scales) {
        scales = *x.scales;
        scales.scale = device_open(scales.scale);
    }
    return (struct fm_in){device_open(x.data), x.dtype, x.scales ? &scales : NULL};
}

static inline struct fm_out device_pass_out(struct fm_out y)
{
    return (struct fm_out){device_open(y.data), y.dtype};
}

#define DEVICE_CHOICE(type, name)                                                                  \
    type:                                                                                          \
    device_pass_##name,
#define DEVICE_PASS(a)                                                                             \
    _Generic((a), DEVICE_TYPES(DEVICE_CHOICE, DEVICE_CHOICE) struct fm_in                          \
             : device_pass_in, struct fm_out                                                       \
             : device_pass_out)(a)

#define DEVICE_1(a) DEVICE_PASS(a)
#define DEVICE_2(a, ...) DEVICE_PASS(a), DEVICE_1(__VA_ARGS__)
#define DEVICE_3(a, ...) DEVICE_PASS(a), DEVICE_2(__VA_ARGS__)
#define DEVICE_4(a, ...) DEVICE_PASS(a), DEVICE_3(__VA_ARGS__)
#define DEVICE_5(a, ...) DEVICE_PASS(a), DEVICE_4(__VA_ARGS__)
#define DEVICE_6(a, ...) DEVICE_PASS(a), DEVICE_5(__VA_ARGS__)
#define DEVICE_7(a, ...) DEVICE_PASS(a), DEVICE_6(__VA_ARGS__)
#define DEVICE_8(a, ...) DEVICE_PASS(a), DEVICE_7(__VA_ARGS__)
#define DEVICE_9(a, ...) DEVICE_PASS(a), DEVICE_8(__VA_ARGS__)
#define DEVICE_10(a, ...) DEVICE_PASS(a), DEVICE_9(__VA_ARGS__)
#define DEVICE_11(a, ...) DEVICE_PASS(a), DEVICE_10(__VA_ARGS__)
#define DEVICE_12(a, ...) DEVICE_PASS(a), DEVICE_11(__VA_ARGS__)
#define DEVICE_13(a, ...) DEVICE_PASS(a), DEVICE_12(__VA_ARGS__)
#define DEVICE_14(a, ...) DEVICE_PASS(a), DEVICE_13(__VA_ARGS__)
#define DEVICE_15(a, ...) DEVICE_PASS(a), DEVICE_14(__VA_ARGS__)
#define DEVICE_16(a, ...) DEVICE_PASS(a), DEVICE_15(__VA_ARGS__)
#define DEVICE_17(a, ...) DEVICE_PASS(a), DEVICE_16(__VA_ARGS__)
#define DEVICE_18TH(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, which, ...) which
#define DEVICE_ALL(...)                                                                            \
    DEVICE_18TH(__VA_ARGS__, DEVICE_17, DEVICE_16, DEVICE_15, DEVICE_14, DEVICE_13, DEVICE_12,     \
                DEVICE_11, DEVICE_10, DEVICE_9, DEVICE_8, DEVICE_7, DEVICE_6, DEVICE_5, DEVICE_4,  \
                DEVICE_3, DEVICE_2, DEVICE_1, )                                                    \
    (__VA_ARGS__)

#define FM_OP(name, parameters, arguments, writes)                                                 \
    static void device_op_##name parameters                                                        \
    {                                                                                              \
        ref_##name(DEVICE_ALL arguments);                                                          \
    }
#include "kernels/ops/kernels.def"
#undef FM_OP

/* Named as the definition, whose bytes it has to give. */
static const struct fm_ops device_ops = {
    .name = "ref",
    .device = &device_memory,
    .f32 = &device_ops,
    .operand = FM_F32,
#define FM_OP(name, parameters, arguments, writes) .name = device_op_##name,
#include "kernels/ops/kernels.def"
#undef FM_OP
};

#endif
