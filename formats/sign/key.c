/*
 * libcrypto reads PEM from memory, not from a file name, so the rules of formats/file apply to keys
 * too.  Without a callback it would ask for a passphrase on the terminal, even for a public key;
 * our callback returns the caller's passphrase or fails.
 */
#include "formats/sign/key.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "formats/file/file.h"

#define PEM_BYTES_MAX ((size_t)64 << 10)

static const struct curve {
    const char *group, *name;
    const EVP_MD *(*digest)(void);
} curves[] = {
    {"prime256v1", "P-256", EVP_sha256},
    {"secp384r1", "P-384", EVP_sha384},
    {"secp521r1", "P-521", EVP_sha512},
};

static const EVP_MD *digest_of(const struct fm_key *key)
{
    size_t i = 0;
    while (strcmp(curves[i].name, key->curve) != 0)
        i++;
    assert(i < sizeof curves / sizeof *curves); /* examine() took the name from there */
    return curves[i].digest();
}

struct asked {
    const char *passphrase;
    bool *asks;
};

static int give_passphrase(char *to, int capacity, int writing, void *arg)
{
    const struct asked *a = arg;
    (void)writing;
    if (a->asks)
        *a->asks = true;
    if (!a->passphrase || strlen(a->passphrase) > (size_t)capacity)
        return -1;
    memcpy(to, a->passphrase, strlen(a->passphrase));
    return (int)strlen(a->passphrase);
}

/* Set key->hint from the public key. */
static int name_key(struct fm_key *key, struct fm_err *err)
{
    BIO *pem = BIO_new(BIO_s_mem());
    struct fm_sha256 digest;
    char *text = NULL;
    bool made = pem && PEM_write_bio_PUBKEY(pem, key->pkey);
    size_t size = made ? (size_t)BIO_get_mem_data(pem, &text) : 0;
    made = made && EVP_Digest(text, size, digest.byte, NULL, EVP_sha256(), NULL) == 1;
    if (made)
        fm_sha256_hex(key->hint, &digest);
    BIO_free(pem);
    return made ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a public key");
}

/* Set the curve and the hint of a key that was read; FM_ECONFIG if the curve is not supported. */
static int examine(struct fm_key *key, const char *path, struct fm_err *err)
{
    char group[64] = "";
    if (EVP_PKEY_is_a(key->pkey, "EC"))
        EVP_PKEY_get_group_name(key->pkey, group, sizeof group, NULL);
    for (size_t i = 0; i < sizeof curves / sizeof *curves; i++)
        if (strcmp(group, curves[i].group) == 0)
            key->curve = curves[i].name;
    if (!key->curve)
        return fm_fail(
            err, FM_ECONFIG,
            "'%s' has a key of type %s%s; model signatures use ECDSA on P-256, P-384 or P-521",
            path, EVP_PKEY_get0_type_name(key->pkey), *group ? " on another curve" : "");
    return name_key(key, err);
}

/* Read a private key if `asks` is not NULL, else a public key. */
static int read_key(struct fm_key *key, const char *path, const char *passphrase, bool *asks,
                    struct fm_err *err)
{
    struct fm_file file;
    char *text = NULL;
    size_t size = 0;
    struct asked asked = {passphrase, asks};
    *key = (struct fm_key){0};
    int rc = fm_file_open(&file, path, err);
    if (rc)
        return rc;
    key->dev = file.dev;
    key->ino = file.ino;
    rc = fm_file_slurp(&file, PEM_BYTES_MAX, &text, &size, err);
    fm_file_close(&file);
    BIO *pem = !rc ? BIO_new_mem_buf(text, (int)size) : NULL;
    if (!rc && !pem)
        rc = fm_fail(err, FM_ENOMEM, "no memory for a key");
    if (!rc)
        key->pkey = asks ? PEM_read_bio_PrivateKey(pem, NULL, give_passphrase, &asked)
                         : PEM_read_bio_PUBKEY(pem, NULL, give_passphrase, &asked);
    if (!rc && !key->pkey)
        rc = fm_fail(err, FM_EFORMAT,
                     asks && *asks ? "'%s' is encrypted, and this passphrase does not decrypt it"
                     : asks        ? "'%s' is not a private key in PEM"
                            : "'%s' is not a public key in PEM ('-----BEGIN PUBLIC KEY-----')",
                     path);
    ERR_clear_error();
    BIO_free(pem);
    if (text)
        fm_key_forget(text, size);
    free(text);
    return rc ? rc : examine(key, path, err);
}

int fm_key_read_private(struct fm_key *key, const char *path, const char *passphrase, bool *asks,
                        struct fm_err *err)
{
    *asks = false;
    return read_key(key, path, passphrase, asks, err);
}

int fm_key_read_public(struct fm_key *key, const char *path, struct fm_err *err)
{
    return read_key(key, path, NULL, NULL, err);
}

void fm_key_release(struct fm_key *key)
{
    EVP_PKEY_free(key->pkey);
    *key = (struct fm_key){0};
}

int fm_key_sign(const struct fm_key *key, const void *message, size_t message_size,
                uint8_t signature[FM_KEY_SIGNATURE_MAX], size_t *size, struct fm_err *err)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    *size = FM_KEY_SIGNATURE_MAX;
    bool ok = context && EVP_DigestSignInit(context, NULL, digest_of(key), NULL, key->pkey) == 1 &&
              EVP_DigestSign(context, signature, size, message, message_size) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return ok ? FM_OK : fm_fail(err, FM_ENOMEM, "libcrypto cannot sign with this key");
}

bool fm_key_signed(const struct fm_key *key, const void *message, size_t message_size,
                   const uint8_t *signature, size_t size)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context &&
              EVP_DigestVerifyInit(context, NULL, digest_of(key), NULL, key->pkey) == 1 &&
              EVP_DigestVerify(context, signature, size, message, message_size) == 1;
    EVP_MD_CTX_free(context);
    ERR_clear_error();
    return ok;
}

void fm_key_forget(void *secret, size_t size)
{
    OPENSSL_cleanse(secret, size);
}
