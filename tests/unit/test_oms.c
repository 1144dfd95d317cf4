/* Signatures and keys: what is signed can be verified, and every other byte, key and name is
 * refused. */
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <sys/wait.h>
#include <unistd.h>

#include "formats/sign/oms.h"
#include "tests/unit/scratch.h"
#include "tests/unit/test.h"

static const char *const curve[] = {"P-256", "P-384", "P-521"};

/* NAME and NAME.pub in the scratch directory; `passphrase` encrypts the private key. */
static void put_key(const char *name, EVP_PKEY *pkey, const char *passphrase)
{
    char pub[64];
    snprintf(pub, sizeof pub, "%s.pub", name);
    FILE *f = fopen(scratch(name), "w");
    assert_non_null(f);
    assert_true(PEM_write_PrivateKey(f, pkey, passphrase ? EVP_aes_128_cbc() : NULL, NULL, 0, NULL,
                                     (void *)passphrase));
    fclose(f);
    f = fopen(scratch(pub), "w");
    assert_non_null(f);
    assert_true(PEM_write_PUBKEY(f, pkey));
    fclose(f);
    EVP_PKEY_free(pkey);
}

static void open_keys(struct fm_key *private_key, struct fm_key *public_key, const char *name,
                      const char *of_curve)
{
    struct fm_err err = {0};
    char pub[64];
    bool asks;
    snprintf(pub, sizeof pub, "%s.pub", name);
    put_key(name, EVP_EC_gen(of_curve), NULL);
    assert_ok(fm_key_read_private(private_key, scratch(name), NULL, &asks, &err));
    assert_ok(fm_key_read_public(public_key, scratch(pub), &err));
    assert_string_equal(private_key->curve, of_curve);
    assert_string_equal(private_key->hint, public_key->hint);
}

static struct fm_oms_resource files[] = {
    {(char *)"config.json", {{1, 2, 3}}}, {(char *)"sub-b", {{4}}}, {(char *)"sub/\"a\"", {{5}}}};
static const struct fm_oms statement = {(char *)"out40", files, 3};
static const char *const ignored[] = {".cache", ".git"};

static char *sign(const struct fm_key *key)
{
    struct fm_err err = {0};
    char *text = NULL;
    assert_ok(fm_oms_write(&text, &statement, ignored, 2, key, &err));
    return text;
}

TEST(digests_are_those_of_the_standard)
{
    struct fm_sha256 digest;
    char hex[FM_SHA256_HEX];
    struct fm_sha256_hasher *h = fm_sha256_new(&err);
    fm_sha256_add(h, "a", 1);
    fm_sha256_add(h, "bc", 2);
    assert_ok(fm_sha256_done(&digest, h, &err));
    fm_sha256_free(h);
    fm_sha256_hex(hex, &digest); /* FIPS 180-4, example of one block */
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(what_is_signed_reads_back)
{
    for (size_t c = 0; c < 3; c++) {
        struct fm_key private_key, public_key;
        struct fm_oms m;
        open_keys(&private_key, &public_key, "key", curve[c]);
        char *text = sign(&private_key);
        if (fm_oms_read(&m, text, strlen(text), &public_key, &err) != FM_OK)
            fail_msg("%s: %s", curve[c], err.text);
        assert_string_equal(m.subject, "out40");
        assert_int_equal(m.resources, 3);
        for (size_t i = 0; i < 3; i++) {
            assert_string_equal(m.resource[i].name, files[i].name);
            assert_memory_equal(&m.resource[i].digest, &files[i].digest, sizeof files[i].digest);
        }
        fm_oms_release(&m);
        free(text);
        fm_key_release(&private_key);
        fm_key_release(&public_key);
    }
}

/* An encrypted key where a public one belongs: the user is not asked for a passphrase, and standard
 * input, which has one here, is not read. */
TEST(a_public_key_needs_no_passphrase)
{
    int pipe_to[2], status;
    put_key("encrypted", EVP_EC_gen("P-256"), "secret");
    assert_int_equal(pipe(pipe_to), 0);
    assert_int_equal(write(pipe_to[1], "secret\n", 7), 7);
    close(pipe_to[1]);
    pid_t pid = fork();
    if (pid == 0) {
        struct fm_key key;
        char byte;
        setsid(); /* no terminal */
        dup2(pipe_to[0], STDIN_FILENO);
        int rc = fm_key_read_public(&key, scratch("encrypted"), &err);
        _exit(rc == FM_EFORMAT && read(STDIN_FILENO, &byte, 1) == 1 ? 0 : 1);
    }
    close(pipe_to[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Every bit of the file counts: no byte can be replaced. */
TEST(a_changed_bit_anywhere_is_refused)
{
    struct fm_key private_key, public_key;
    struct fm_oms m;
    open_keys(&private_key, &public_key, "key", "P-256");
    char *text = sign(&private_key);
    size_t size = strlen(text), refused = 0;
    for (size_t i = 0; i < 8 * size; i++) {
        text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
        int rc = fm_oms_read(&m, text, size, &public_key, &err);
        if (rc == FM_OK)
            fail_msg("bit %zu of byte %zu ('%c') can be changed", i % 8, i / 8, text[i / 8]);
        assert_true(rc == FM_EFORMAT || rc == FM_EDIFF || rc == FM_ECONFIG);
        refused++;
        fm_oms_release(&m);
        text[i / 8] = (char)(text[i / 8] ^ 1 << i % 8);
    }
    for (size_t n = 0; n + 1 < size; n++, refused++) /* the last byte is a line feed */
        assert_int_equal(fm_oms_read(&m, text, n, &public_key, &err), FM_EFORMAT);
    assert_ok(fm_oms_read(&m, text, size, &public_key, &err));
    fm_oms_release(&m);
    print_message("%zu changed or cut signatures refused\n", refused);
    free(text);
    fm_key_release(&private_key);
    fm_key_release(&public_key);
}

TEST(another_key_is_refused)
{
    struct fm_key a, a_public, b, b_public;
    struct fm_oms m;
    open_keys(&a, &a_public, "a", "P-256");
    open_keys(&b, &b_public, "b", "P-256");
    char *text = sign(&a);
    assert_fails(fm_oms_read(&m, text, strlen(text), &b_public, &err), FM_EDIFF,
                 "is signed with another key");
    memcpy(b_public.hint, a_public.hint, sizeof b_public.hint); /* it claims to be the other key */
    assert_fails(fm_oms_read(&m, text, strlen(text), &b_public, &err), FM_EDIFF,
                 "is not a signature by this key");
    free(text);
    fm_key_release(&a);
    fm_key_release(&a_public);
    fm_key_release(&b);
    fm_key_release(&b_public);
}

static void cannot_be_read(const char *name, bool private_key, const char *passphrase, int code,
                           const char *why)
{
    struct fm_key key;
    struct fm_err err = {0};
    bool asks;
    int rc = private_key ? fm_key_read_private(&key, scratch(name), passphrase, &asks, &err)
                         : fm_key_read_public(&key, scratch(name), &err);
    if (rc != code || !strstr(err.text, why))
        fail_msg("%s: wanted %d with '%s', got %d: %s", name, code, why, rc, err.text);
    fm_key_release(&key);
}

TEST(keys_of_other_kinds_are_refused)
{
    put_key("k256", EVP_EC_gen("secp256k1"), NULL);
    put_key("rsa", EVP_RSA_gen(2048), NULL);
    put_key("ed", EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"), NULL);
    put_key("good", EVP_EC_gen("P-256"), NULL);
    put_key("locked", EVP_EC_gen("P-256"), "open sesame");
    scratch_write("text", "hello\n", 6);
    scratch_write("nothing", "", 0);
    cannot_be_read("k256", true, NULL, FM_ECONFIG, "a key of type EC on another curve; model");
    cannot_be_read("k256.pub", false, NULL, FM_ECONFIG, "a key of type EC on another curve; model");
    cannot_be_read("rsa", true, NULL, FM_ECONFIG,
                   "has a key of type RSA; model signatures use ECDSA");
    cannot_be_read("rsa.pub", false, NULL, FM_ECONFIG, "has a key of type RSA; model");
    cannot_be_read("ed", true, NULL, FM_ECONFIG, "has a key of type ED25519; model");
    cannot_be_read("good.pub", true, NULL, FM_EFORMAT, "is not a private key in PEM");
    cannot_be_read("good", false, NULL, FM_EFORMAT, "is not a public key in PEM");
    cannot_be_read("text", true, NULL, FM_EFORMAT, "is not a private key in PEM");
    cannot_be_read("nothing", false, NULL, FM_EFORMAT, "is not a public key in PEM");
    cannot_be_read("absent", true, NULL, FM_ENOENT, "cannot open");
    cannot_be_read("locked", true, NULL, FM_EFORMAT, "is encrypted");
    cannot_be_read("locked", true, "open barley", FM_EFORMAT,
                   "this passphrase does not decrypt it");
    struct fm_key key;
    bool asks = false;
    int rc = fm_key_read_private(&key, scratch("locked"), "open sesame", &asks, &err);
    assert_int_equal(rc, FM_OK);
    assert_true(asks);
    fm_key_release(&key);
}

TEST(unsafe_names_are_refused)
{
    static const char *const good[] = {"a", "a/b", "..a", "a..", ".git/config", "\xc3\xa4"};
    static const char *const bad[] = {"",     "/a",   "a/",    "a//b", ".",        "..",      "./a",
                                      "../a", "a/..", "a/./b", "a\tb", "\xff\xfe", "a\x7f/b", "//"};
    char longest[FM_OMS_NAME_MAX + 2];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_ok(fm_oms_check_name(good[i], &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (fm_oms_check_name(bad[i], &err) != FM_EFORMAT)
            fail_msg("'%s' passes", bad[i]);
    memset(longest, 'a', sizeof longest);
    longest[FM_OMS_NAME_MAX + 1] = '\0';
    assert_int_equal(fm_oms_check_name(longest, &err), FM_EFORMAT);
    longest[FM_OMS_NAME_MAX] = '\0';
    assert_ok(fm_oms_check_name(longest, &err));
}

TEST(a_large_statement_is_refused)
{
    struct fm_oms_envelope e;
    char *text = calloc(1, FM_OMS_TEXT_MAX + 1);
    assert_non_null(text);
    assert_fails(fm_oms_read_envelope(&e, text, FM_OMS_TEXT_MAX + 1, &err), FM_EFORMAT,
                 "bytes (limit ");
    fm_oms_envelope_release(&e);
    free(text);
}

TEST_MAIN(NULL, NULL)
