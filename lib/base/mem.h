/*
 * Memory: overflow-checked sizes and aligned blocks.  Every size that comes from a file or an
 * option goes through fm_mul and fm_add before it is used.  Also reads little-endian integers.
 */
#ifndef FM_BASE_MEM_H
#define FM_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_ALIGN 64

/* Overhead of a process, for memory estimates: the program, its libraries, small blocks. */
#define FM_PROCESS_BYTES ((uint64_t)18 << 20)
/* Overhead of the forward and backward passes: oneDNN, and tables of the layers. */
#define FM_ENGINE_BYTES ((uint64_t)7 << 20)
/* Overhead of bfloat16 products: the code that oneDNN compiles for every shape, and rounded copies
 * of the operands. */
#define FM_COMPILED_BYTES ((uint64_t)96 << 20)
/* The stack that a tool's first thread needs, with a margin; the tests reach 212 KiB. */
#define FM_STACK_BYTES ((size_t)256 << 10)

/* *out = a * b or a + b; false on overflow. */
static inline bool fm_mul(size_t *out, size_t a, size_t b)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool fm_add(size_t *out, size_t a, size_t b)
{
    return !__builtin_add_overflow(a, b, out);
}

/* The least common multiple of a and b, at most `most`; a if b is 0.  Both are below 2^32. */
static inline uint64_t fm_lcm(uint64_t a, uint64_t b, uint64_t most)
{
    uint64_t x = a, y = b;
    for (uint64_t rest; y; y = rest) {
        rest = x % y;
        x = y;
    }
    uint64_t multiple = b ? a / x * b : a;
    return multiple < most ? multiple : most;
}

/*
 * n zeroed elements of `size` bytes, FM_ALIGN-aligned; release with free().  NULL with FM_ENOMEM
 * and a sentence that names `what`.  If n * size is 0 the block may be freed but not accessed.
 */
void *fm_alloc(size_t n, size_t size, const char *what, struct fm_err *err);

/*
 * `bytes` bytes for arrays that operations compute in, aligned to FM_ALIGN or more; release with
 * free().  Contents are undefined.  Blocks of 2 MiB or more use huge pages.  NULL with FM_ENOMEM
 * and a sentence that names `what`.  If bytes is 0 the block may be freed but not accessed.
 */
void *fm_alloc_large(size_t bytes, const char *what, struct fm_err *err);

/* Whether so many bytes of memory could be allocated now.  Async-signal-safe. */
bool fm_memory_left(size_t bytes);

/* Let the calling thread's stack, the process's first, grow by FM_STACK_BYTES now.  FM_ENOMEM if
 * memory or the limit of the stack does not allow it; later the process would be ended by SIGSEGV.
 * Call it before other threads start. */
int fm_reserve_stack(struct fm_err *err);

/* A copy of text, NULL with FM_ENOMEM. */
char *fm_strdup(const char *text, struct fm_err *err);

/*
 * Make room for at least n elements in `array`, a pointer from malloc or realloc or NULL, which has
 * room for `capacity` elements, a size_t.  The capacity at least doubles when it grows.  FM_ENOMEM
 * names `what`; the old block stays valid.
 */
#define FM_GROW(array, capacity, n, what, err)                                                     \
    fm_grow(&(array), &(capacity), (n), sizeof *(array), (what), (err))
/* The function of FM_GROW, for elements of `size` bytes; `array` is the address of the pointer to
 * them. */
int fm_grow(void *array, size_t *capacity, size_t n, size_t size, const char *what,
            struct fm_err *err);

/* A little-endian unsigned integer of 1 to 8 bytes. */
static inline uint64_t fm_little_endian(const unsigned char *b, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | b[i];
    return v;
}

#endif
