/*
 * This room, formats/sign: signatures of files, with OpenSSL's libcrypto, which no other room
 * includes.  In reading order: sha256 (cryptographic digests), key (ECDSA keys in PEM), oms (the
 * file that holds a signature). lib/publish chooses the files to sign.
 *
 * SHA-256 of bytes that are added in pieces.  The digests of the suite's own formats
 * (formats/file/digest.h) are XXH3, which is ten times as fast but finds only accidental changes.
 */
#ifndef FM_SHA256_H
#define FM_SHA256_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_SHA256_HEX 65

struct fm_sha256 {
    uint8_t byte[32];
};

struct fm_sha256_hasher;
struct fm_sha256_hasher *fm_sha256_new(struct fm_err *err); /* NULL: FM_ENOMEM */
void fm_sha256_free(struct fm_sha256_hasher *h);            /* NULL is fine */
void fm_sha256_add(struct fm_sha256_hasher *h, const void *src, size_t size);
/* The digest of all added bytes.  FM_ENOMEM if libcrypto failed.  No bytes may be added
 * afterwards. */
int fm_sha256_done(struct fm_sha256 *digest, struct fm_sha256_hasher *h, struct fm_err *err);

/* 64 lower-case hex digits. */
void fm_sha256_hex(char hex[FM_SHA256_HEX], const struct fm_sha256 *digest);

#endif
