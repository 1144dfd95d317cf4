/*
 * The host's memory as a device: copies are memcpy, nothing is staged and nothing is queued, so
 * what the contract asks for costs nothing here.  Large blocks lie on large pages: products walk
 * through weights and activations in strides that small ones serve badly.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/ops/kernels.h"
#include "lib/base/mem.h"

#define LARGE_PAGE ((size_t)2 << 20)

static void *take(size_t bytes, const char *what, struct fm_err *err)
{
    size_t align = bytes < LARGE_PAGE ? FM_ALIGN : LARGE_PAGE, padded = 0;
    void *block = NULL;
    if (fm_add(&padded, bytes, align)) {
        padded -= padded % align; /* at least one unit, a multiple of it */
        block = aligned_alloc(align, padded);
    }
    if (!block) {
        fm_fail(err, FM_ENOMEM, "no memory for %s (%zu bytes)", what, bytes);
        fm_advise(err, FM_ADVISE_LESS_MEMORY);
        return NULL;
    }
    if (align == LARGE_PAGE)
        madvise(block, padded, MADV_HUGEPAGE);
    return block;
}

static void copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static const void *stay(const void *from, size_t bytes)
{
    (void)bytes;
    return from;
}

static int is_done(struct fm_err *err)
{
    (void)err;
    return FM_OK;
}

const struct fm_device fm_device_host = {.name = "host",
                                         .alloc = take,
                                         .free = free,
                                         .mark = fm_scratch_mark,
                                         .scratch = fm_scratch,
                                         .release = fm_scratch_release,
                                         .copy_in = copy,
                                         .copy_out = copy,
                                         .stage_in = stay,
                                         .stage_out = stay,
                                         .sync = is_done};
