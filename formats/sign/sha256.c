/* SHA-256 by libcrypto, which uses the processor's SHA instructions if it has them. */
#include "formats/sign/sha256.h"

#include <stdbool.h>
#include <stdlib.h>

#include <openssl/evp.h>

struct fm_sha256_hasher {
    EVP_MD_CTX *context;
    bool failed;
};

struct fm_sha256_hasher *fm_sha256_new(struct fm_err *err)
{
    struct fm_sha256_hasher *h = calloc(1, sizeof *h);
    if (h && (h->context = EVP_MD_CTX_new()) && EVP_DigestInit_ex(h->context, EVP_sha256(), NULL))
        return h;
    fm_sha256_free(h);
    fm_fail(err, FM_ENOMEM, "no memory for a SHA-256 digest");
    return NULL;
}

void fm_sha256_free(struct fm_sha256_hasher *h)
{
    if (!h)
        return;
    EVP_MD_CTX_free(h->context);
    free(h);
}

void fm_sha256_add(struct fm_sha256_hasher *h, const void *src, size_t size)
{
    h->failed |= !EVP_DigestUpdate(h->context, src, size);
}

int fm_sha256_done(struct fm_sha256 *digest, struct fm_sha256_hasher *h, struct fm_err *err)
{
    if (!h->failed && EVP_DigestFinal_ex(h->context, digest->byte, NULL))
        return FM_OK;
    return fm_fail(err, FM_ENOMEM, "libcrypto cannot compute a SHA-256 digest");
}

void fm_sha256_hex(char hex[FM_SHA256_HEX], const struct fm_sha256 *digest)
{
    static const char digit[] = "0123456789abcdef";
    for (size_t i = 0; i < sizeof digest->byte; i++) {
        hex[2 * i] = digit[digest->byte[i] >> 4];
        hex[2 * i + 1] = digit[digest->byte[i] & 15];
    }
    hex[FM_SHA256_HEX - 1] = '\0';
}
