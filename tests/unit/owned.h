/* Configs that a test's `must` returns by value, released when the program ends. */
#ifndef FM_TESTS_OWNED_H
#define FM_TESTS_OWNED_H

#include "lib/block/block.h"
#include "tests/unit/test.h"

static struct {
    struct fm_config config[256];
    int count;
} owned;

static inline void owned_release(void)
{
    while (owned.count > 0)
        fm_config_release(&owned.config[--owned.count]);
}

/* The same config, which the caller must not release. */
static inline struct fm_config owned_config(const struct fm_config *c)
{
    assert_in_range(owned.count, 0, sizeof owned.config / sizeof *owned.config - 1);
    if (owned.count == 0)
        atexit(owned_release);
    owned.config[owned.count++] = *c;
    return *c;
}

#endif
