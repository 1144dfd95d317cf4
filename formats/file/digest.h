/*
 * XXH3-128 digests: 16 bytes in canonical big-endian order, 32 lower-case hex digits.  They detect
 * corruption; they do not protect against deliberate changes.
 */
#ifndef FM_DIGEST_H
#define FM_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_DIGEST_HEX 33

struct fm_digest {
    uint8_t byte[16];
};

/* Streaming state, opaque; only fm_hasher_new allocates. */
struct fm_hasher;
struct fm_hasher *fm_hasher_new(void);    /* NULL: no memory */
void fm_hasher_free(struct fm_hasher *h); /* NULL is fine */
void fm_hasher_reset(struct fm_hasher *h);
void fm_hasher_add(struct fm_hasher *h, const void *src, size_t size);
struct fm_digest fm_hasher_done(const struct fm_hasher *h);

struct fm_digest fm_digest_of(const void *src, size_t size);
bool fm_digest_equal(const struct fm_digest *a, const struct fm_digest *b);
void fm_digest_hex(char hex[FM_DIGEST_HEX], const struct fm_digest *d);
/* Exactly 32 lower-case hex digits, else false. */
bool fm_digest_parse(struct fm_digest *d, const char *hex, size_t len);

#endif
