/*
 * Every large block of the suite is allocated here: aligned for vectors, zeroed (so that bytes
 * that were never written cannot differ between runs), and refused with a sentence that names its
 * purpose.
 */
#include "lib/base/mem.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 64 /* elements of an array that grows */

void *fm_alloc(size_t n, size_t size, const char *what, struct fm_err *err)
{
    size_t bytes = 0;
    void *block = NULL;
    if (fm_mul(&bytes, n, size) && fm_add(&bytes, bytes, FM_ALIGN)) {
        bytes -= bytes % FM_ALIGN; /* at least FM_ALIGN, a multiple of it */
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
