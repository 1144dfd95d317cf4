/*
 * Large arrays other than scratch (lib/base/pool.c) are allocated here: aligned for vectors, and
 * with an error that names their purpose if memory runs out.  Blocks of fm_alloc are zeroed, so
 * that bytes that were never written cannot differ between runs.  Blocks of fm_alloc_large use huge
 * pages, because matrix products read weights and activations in strides that would miss the TLB
 * with small pages.
 */
#include "lib/base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define LARGE_PAGE ((size_t)2 << 20)
#define FIRST 64 /* initial capacity of a growing array */

void *fm_alloc(size_t n, size_t size, const char *what, struct fm_err *err)
{
    size_t bytes = 0;
    void *block = NULL;
    if (fm_mul(&bytes, n, size) && fm_add(&bytes, bytes, FM_ALIGN)) {
        bytes -= bytes % FM_ALIGN; /* rounded up to a multiple of FM_ALIGN, not 0 */
        block = aligned_alloc(FM_ALIGN, bytes);
    }
    if (!block) {
        fm_fail(err, FM_ENOMEM, "no memory for %s (%zu x %zu bytes)", what, n, size);
        fm_advise(err, FM_ADVISE_LESS_MEMORY);
        return NULL;
    }
    memset(block, 0, bytes);
    return block;
}

void *fm_alloc_large(size_t bytes, const char *what, struct fm_err *err)
{
    size_t align = bytes < LARGE_PAGE ? FM_ALIGN : LARGE_PAGE, padded = 0;
    void *block = NULL;
    if (fm_add(&padded, bytes, align)) {
        padded -= padded % align; /* rounded up to a multiple of `align`, not 0 */
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

bool fm_memory_left(size_t bytes)
{
    void *probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return probe != MAP_FAILED && munmap(probe, bytes) == 0;
}

__attribute__((noinline)) static void touch_stack(void)
{
    char deep[FM_STACK_BYTES];
    deep[0] = 0;
    __asm__ volatile("" : : "r"(deep) : "memory"); /* so that the compiler keeps the array */
}

int fm_reserve_stack(struct fm_err *err)
{
    const size_t least = 2 * FM_STACK_BYTES; /* with what the arguments and the environment take */
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < least)
        return fm_fail(err, FM_ENOMEM,
                       "the stack is limited to %llu KiB, but needs %zu; raise 'ulimit -s'",
                       (unsigned long long)limit.rlim_cur >> 10, least >> 10);
    if (!fm_memory_left(FM_STACK_BYTES))
        return fm_fail(err, FM_ENOMEM, "no memory for the stack (%zu bytes)", FM_STACK_BYTES);
    touch_stack();
    return FM_OK;
}

char *fm_strdup(const char *text, struct fm_err *err)
{
    char *copy = strdup(text);
    if (!copy)
        fm_fail(err, FM_ENOMEM, "no memory for a string of %zu bytes", strlen(text));
    return copy;
}

int fm_grow(void *array, size_t *capacity, size_t n, size_t size, const char *what,
            struct fm_err *err)
{
    void *block;
    size_t room = 0, bytes = 0;
    memcpy(&block, array, sizeof block);
    if (block && n <= *capacity)
        return FM_OK;
    if (!fm_mul(&room, *capacity, 2) || room < n)
        room = n < FIRST ? FIRST : n;
    block = fm_mul(&bytes, room, size) ? realloc(block, bytes) : NULL;
    if (!block)
        return fm_fail(err, FM_ENOMEM, "no memory for %s (%zu x %zu bytes)", what, room, size);
    memcpy(array, &block, sizeof block);
    *capacity = room;
    return FM_OK;
}
