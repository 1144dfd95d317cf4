/*
 * Fuzz the readers of private and public keys.  No passphrase is given, because an encrypted key
 * determines how long its decryption takes.  A key that is read must have one of the three curves
 * and a hint, and a public key must reject a false signature.
 */
#include "tests/fuzz/fuzz.h"

#include <openssl/evp.h>

#include "formats/sign/key.h"

static void check_key(const struct fm_key *key)
{
    must(strcmp(key->curve, "P-256") == 0 || strcmp(key->curve, "P-384") == 0 ||
         strcmp(key->curve, "P-521") == 0);
    must(strlen(key->hint) == FM_SHA256_HEX - 1);
}

static void read_private(const char *path)
{
    struct fm_key key;
    struct fm_err err = {0};
    bool asks = true;
    int rc = fm_key_read_private(&key, path, NULL, &asks, &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_ECONFIG) && err.text[0]));
    must(!asks || rc == FM_EFORMAT);
    if (rc == FM_OK)
        check_key(&key);
    fm_key_release(&key);
}

static void read_public(const char *path)
{
    struct fm_key key;
    struct fm_err err = {0};
    int rc = fm_key_read_public(&key, path, &err);
    must(rc == FM_OK || ((rc == FM_EFORMAT || rc == FM_ECONFIG) && err.text[0]));
    if (rc == FM_OK) {
        check_key(&key);
        must(!fm_key_signed(&key, "x", 1, (const uint8_t *)"0", 1));
    }
    fm_key_release(&key);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* Without the first line of a key libcrypto only skips lines, slowly: run few such inputs. */
    if (size % 64 && !memmem(data, size, "-----BEGIN", 10))
        return 0;
    const char *path = fuzz_file(data, size);
    read_private(path);
    read_public(path);
    return 0;
}

/* Mutate the key's bytes, and encode them in base64 again. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed)
{
    uint8_t raw[2048], text[4096];
    uint8_t *begin = memmem(data, size, "-----\n", 6);
    uint8_t *end =
        begin ? memmem(begin + 6, size - (size_t)(begin + 6 - data), "\n-----END", 9) : NULL;
    size_t packed = 0, made = 0;
    if (!end || fuzz_draw(&seed, 4) == 0)
        return LLVMFuzzerMutate(data, size, capacity);
    begin += 6;
    for (const uint8_t *at = begin; at < end && packed < sizeof text - 1; at++)
        if (*at != '\n')
            text[packed++] = *at;
    text[packed] = '\0';
    int n = EVP_DecodeBlock(raw, text, (int)(packed < 4 * sizeof raw / 3 ? packed : 0));
    if (n <= 0)
        return LLVMFuzzerMutate(data, size, capacity);
    while (packed > 0 && n > 0 && text[--packed] == '=')
        n--;
    n = (int)LLVMFuzzerMutate(raw, (size_t)n, sizeof raw);
    uint8_t lines[4096];
    EVP_ENCODE_CTX *ctx = EVP_ENCODE_CTX_new();
    int out = 0, last = 0;
    must(ctx != NULL);
    EVP_EncodeInit(ctx);
    EVP_EncodeUpdate(ctx, lines, &out, raw, n);
    EVP_EncodeFinal(ctx, lines + out, &last);
    EVP_ENCODE_CTX_free(ctx);
    made = (size_t)(out + last);
    return fuzz_splice(data, size, capacity, (size_t)(begin - data), (size_t)(end + 1 - begin),
                       lines, made);
}

FUZZ_MAIN
