/*
 * A wrapper of XXH3-128.  Digests are kept in the canonical (big-endian) form of the library, which
 * is what xxhsum prints, so anyone can check a bundle without these tools.
 */
#include "formats/file/digest.h"

#include <assert.h>
#include <string.h>

#include <xxhash.h>
/* On x86-64 the library has faster functions under other names, chosen at run time; its header
 * makes the plain names refer to them.  Same digests, three times the speed. */
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#endif

/* A struct fm_hasher is the library's state under another name: its size is private to the library,
 * which also aligns it to 64 bytes, so the library allocates it. */
_Static_assert(sizeof(XXH128_canonical_t) == sizeof(struct fm_digest), "a digest is 16 bytes");

struct fm_hasher *fm_hasher_new(void)
{
    struct fm_hasher *h = (struct fm_hasher *)XXH3_createState();
    if (h)
        fm_hasher_reset(h);
    return h;
}

void fm_hasher_free(struct fm_hasher *h)
{
    XXH3_freeState((XXH3_state_t *)h);
}

void fm_hasher_reset(struct fm_hasher *h)
{
    XXH_errorcode code = XXH3_128bits_reset((XXH3_state_t *)h);
    assert(code == XXH_OK);
    (void)code;
}

void fm_hasher_add(struct fm_hasher *h, const void *src, size_t size)
{
    if (size == 0)
        return;
    XXH_errorcode code = XXH3_128bits_update((XXH3_state_t *)h, src, size);
    assert(code == XXH_OK);
    (void)code;
}

static struct fm_digest make_canonical(XXH128_hash_t hash)
{
    struct fm_digest d;
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(d.byte, canonical.digest, sizeof d.byte);
    return d;
}

struct fm_digest fm_hasher_done(const struct fm_hasher *h)
{
    return make_canonical(XXH3_128bits_digest((const XXH3_state_t *)h));
}

struct fm_digest fm_digest_of(const void *src, size_t size)
{
    return make_canonical(XXH3_128bits(size ? src : "", size));
}

bool fm_digest_equal(const struct fm_digest *a, const struct fm_digest *b)
{
    return memcmp(a->byte, b->byte, sizeof a->byte) == 0;
}

static const char digit[] = "0123456789abcdef";

void fm_digest_hex(char hex[FM_DIGEST_HEX], const struct fm_digest *d)
{
    for (size_t i = 0; i < sizeof d->byte; i++) {
        hex[2 * i] = digit[d->byte[i] >> 4];
        hex[2 * i + 1] = digit[d->byte[i] & 15];
    }
    hex[FM_DIGEST_HEX - 1] = '\0';
}

bool fm_digest_parse(struct fm_digest *d, const char *hex, size_t len)
{
    if (len != FM_DIGEST_HEX - 1)
        return false;
    struct fm_digest parsed;
    for (size_t i = 0; i < sizeof d->byte; i++) {
        const char *high = memchr(digit, hex[2 * i], 16), *low = memchr(digit, hex[2 * i + 1], 16);
        if (!high || !low)
            return false;
        parsed.byte[i] = (uint8_t)((high - digit) << 4 | (low - digit));
    }
    *d = parsed;
    return true;
}
