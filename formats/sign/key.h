/*
 * Signing keys: ECDSA on P-256, P-384 or P-521, in PEM, as `openssl genpkey` writes them.  A
 * message is hashed with the digest that belongs to the key's curve: SHA-256, SHA-384 or SHA-512.
 */
#ifndef FM_KEY_H
#define FM_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/sign/sha256.h"
#include "lib/base/err.h"

/* Largest size of a signature: two P-521 integers in DER. */
#define FM_KEY_SIGNATURE_MAX 139

struct fm_key {
    void *pkey;               /* libcrypto's EVP_PKEY */
    const char *curve;        /* "P-256", "P-384", "P-521" */
    char hint[FM_SHA256_HEX]; /* the public key's name: SHA-256 of its PEM text, in hex */
    uint64_t dev, ino;        /* of the file */
};

/*
 * Read the private key in the file `path`.  `passphrase` is for an encrypted key; NULL: none was
 * given.  *asks is set, on failure too: true if the key is encrypted.  FM_EFORMAT if the file is
 * not a private key in PEM, or the passphrase is wrong; FM_ECONFIG if the key is not on one of
 * these curves; also the errors of formats/file/file.h.
 */
int fm_key_read_private(struct fm_key *key, const char *path, const char *passphrase, bool *asks,
                        struct fm_err *err);
/* Read the public key in the file `path`; the same errors. */
int fm_key_read_public(struct fm_key *key, const char *path, struct fm_err *err);
void fm_key_release(struct fm_key *key); /* zeroed struct is fine */

/* Sign a message with a private key: *size bytes of DER.  Each call gives a different signature,
 * because ECDSA uses a random number.  FM_ENOMEM if libcrypto fails. */
int fm_key_sign(const struct fm_key *key, const void *message, size_t message_size,
                uint8_t signature[FM_KEY_SIGNATURE_MAX], size_t *size, struct fm_err *err);

/* True if the signature is valid for this message and key. */
bool fm_key_signed(const struct fm_key *key, const void *message, size_t message_size,
                   const uint8_t *signature, size_t size);

/* Overwrite a secret before its memory is freed. */
void fm_key_forget(void *secret, size_t size);

#endif
