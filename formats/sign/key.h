/*
 * Keys that sign: ECDSA on P-256, P-384 or P-521, in PEM, as `openssl genpkey` writes them.  A
 * message is signed by the digest that belongs to its key's curve: SHA-256, SHA-384 or SHA-512.
 */
#ifndef FM_KEY_H
#define FM_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/sign/sha256.h"
#include "lib/base/err.h"

/* Bytes of a signature at most: DER of two numbers of P-521. */
#define FM_KEY_SIGNATURE_MAX 139

struct fm_key {
    void *pkey;               /* libcrypto's EVP_PKEY */
    const char *curve;        /* "P-256", "P-384", "P-521" */
    char hint[FM_SHA256_HEX]; /* the public key's name: SHA-256 of its PEM text, in hex */
    uint64_t dev, ino;        /* of the file */
};

/*
 * The private key in the file `path`.  `passphrase` is for an encrypted one; NULL: there is none.
 * *asks says whether the key is encrypted, in failure too.  FM_EFORMAT where the file is not a
 * private key in PEM, or does not open with that passphrase, FM_ECONFIG where the key is not of
 * these curves; what formats/file/file.h says of the file.
 */
int fm_key_read_private(struct fm_key *key, const char *path, const char *passphrase, bool *asks,
                        struct fm_err *err);
/* The public key in the file `path`, with the same errors. */
int fm_key_read_public(struct fm_key *key, const char *path, struct fm_err *err);
void fm_key_release(struct fm_key *key); /* zeroed struct is fine */

/* Sign a message with a private key: *size bytes of DER.  Each call gives another signature, as
 * ECDSA draws a random number.  FM_ENOMEM where libcrypto fails. */
int fm_key_sign(const struct fm_key *key, const void *message, size_t message_size,
                uint8_t signature[FM_KEY_SIGNATURE_MAX], size_t *size, struct fm_err *err);

/* True where the signature is one of this message by this key. */
bool fm_key_signed(const struct fm_key *key, const void *message, size_t message_size,
                   const uint8_t *signature, size_t size);

/* Overwrite a secret before its memory is given back. */
void fm_key_forget(void *secret, size_t size);

#endif
