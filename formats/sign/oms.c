/*
 * The envelope is parsed first, without its payload; then the signature is verified, and only a
 * payload that the key has signed is parsed.  libcrypto's base64 decoder accepts much that is not
 * base64, so the decoded bytes are encoded again and compared.
 */
#include "formats/sign/oms.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "formats/json/json.h"
#include "lib/base/mem.h"
#include "lib/base/names.h"
#include "lib/base/printable.h"

#define MEDIA_TYPE "application/vnd.dev.sigstore.bundle.v0.3+json"
#define PAYLOAD_TYPE "application/vnd.in-toto+json"
#define STATEMENT_TYPE "https://in-toto.io/Statement/v1"
#define PREDICATE_TYPE "https://model_signing/signature/v1.0"
#define PAE_BYTES_MAX 64 /* size of the text before the payload */

/* ---- reading and writing ---- */

void fm_oms_release(struct fm_oms *m)
{
    for (size_t i = 0; i < m->resources; i++)
        free(m->resource[i].name);
    free(m->resource);
    free(m->subject);
    *m = (struct fm_oms){0};
}

int fm_oms_check_name(const char *name, struct fm_err *err)
{
    char printable[FM_OMS_NAME_MAX + 1];
    size_t size = strlen(name);
    if (size == 0 || size > FM_OMS_NAME_MAX)
        return fm_fail(err, FM_EFORMAT,
                       "a file name has %zu bytes; names of 1 to %d bytes can be signed", size,
                       FM_OMS_NAME_MAX);
    memcpy(printable, name, size + 1);
    fm_printable(printable, false);
    if (strcmp(printable, name) != 0)
        return fm_fail(
            err, FM_EFORMAT,
            "the file name '%.200s' has bytes that are not UTF-8, or invisible characters", name);
    for (const char *part = name;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return fm_fail(err, FM_EFORMAT, "'%.200s' is not a path inside the directory", name);
        part += n;
        if (!*part)
            return FM_OK;
    }
}

/* Compute SHA-256 of the digests in their order. */
static int compute_root(char hex[FM_SHA256_HEX], const struct fm_oms *m, struct fm_err *err)
{
    struct fm_sha256 root;
    struct fm_sha256_hasher *hasher = fm_sha256_new(err);
    if (!hasher)
        return err->code;
    for (size_t i = 0; i < m->resources; i++)
        fm_sha256_add(hasher, m->resource[i].digest.byte, sizeof m->resource[i].digest.byte);
    int rc = fm_sha256_done(&root, hasher, err);
    fm_sha256_free(hasher);
    if (!rc)
        fm_sha256_hex(hex, &root);
    return rc;
}

/* The signed bytes (DSSE's pre-authentication encoding): *pae (malloc) of *size bytes. */
static int encode_pae(char **pae, size_t *size, const void *payload, size_t payload_size,
                      struct fm_err *err)
{
    *pae = malloc(PAE_BYTES_MAX + payload_size);
    if (!*pae)
        return fm_fail(err, FM_ENOMEM, "no memory for a signature");
    int n = snprintf(*pae, PAE_BYTES_MAX, "DSSEv1 %zu " PAYLOAD_TYPE " %zu ",
                     sizeof PAYLOAD_TYPE - 1, payload_size);
    assert(n > 0 && n < PAE_BYTES_MAX);
    memcpy(*pae + n, payload, payload_size);
    *size = (size_t)n + payload_size;
    return FM_OK;
}

/* Encode bytes as base64, malloced; NULL: FM_ENOMEM. */
static char *encode_base64(const void *bytes, size_t size, struct fm_err *err)
{
    char *text = malloc((size + 2) / 3 * 4 + 1);
    if (text)
        EVP_EncodeBlock((unsigned char *)text, bytes, (int)size);
    else
        fm_fail(err, FM_ENOMEM, "no memory for a signature");
    return text;
}

/* ---- writing ---- */

/* Print the statement, malloced. */
static int print_statement(char **text, const struct fm_oms *m, const char *const *ignored,
                           size_t count, struct fm_err *err)
{
    char hex[FM_SHA256_HEX];
    if (compute_root(hex, m, err))
        return err->code;
    cJSON *tree = cJSON_CreateObject();
    fm_json_add_string(tree, "_type", STATEMENT_TYPE);
    cJSON *subject = fm_json_add_object(fm_json_add_array(tree, "subject"), NULL);
    fm_json_add_string(subject, "name", m->subject);
    fm_json_add_string(fm_json_add_object(subject, "digest"), "sha256", hex);
    fm_json_add_string(tree, "predicateType", PREDICATE_TYPE);
    cJSON *predicate = fm_json_add_object(tree, "predicate");
    cJSON *resources = fm_json_add_array(predicate, "resources");
    for (size_t i = 0; i < m->resources; i++) {
        cJSON *resource = fm_json_add_object(resources, NULL);
        fm_json_add_string(resource, "name", m->resource[i].name);
        fm_sha256_hex(hex, &m->resource[i].digest);
        fm_json_add_string(resource, "digest", hex);
        fm_json_add_string(resource, "algorithm", "sha256");
    }
    cJSON *how = fm_json_add_object(predicate, "serialization");
    fm_json_add_string(how, "method", "files");
    fm_json_add_string(how, "hash_type", "sha256");
    fm_json_add_bool(how, "allow_symlinks", false);
    cJSON *paths = fm_json_add_array(how, "ignore_paths");
    for (size_t i = 0; i < count; i++)
        fm_json_add_string(paths, NULL, ignored[i]);
    *text = fm_json_print(tree);
    cJSON_Delete(tree);
    return *text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a signature");
}

/* Print the bundle, malloced. */
static int print_bundle(char **text, const char *payload, const char *signature,
                        const struct fm_key *key, struct fm_err *err)
{
    cJSON *tree = cJSON_CreateObject();
    fm_json_add_string(tree, "mediaType", MEDIA_TYPE);
    cJSON *material = fm_json_add_object(tree, "verificationMaterial");
    fm_json_add_string(fm_json_add_object(material, "publicKey"), "hint", key->hint);
    fm_json_add_array(material, "tlogEntries");
    cJSON *envelope = fm_json_add_object(tree, "dsseEnvelope");
    fm_json_add_string(envelope, "payload", payload);
    fm_json_add_string(envelope, "payloadType", PAYLOAD_TYPE);
    cJSON *entry = fm_json_add_object(fm_json_add_array(envelope, "signatures"), NULL);
    fm_json_add_string(entry, "sig", signature);
    fm_json_add_string(entry, "keyid", "");
    *text = fm_json_print(tree);
    cJSON_Delete(tree);
    return *text ? FM_OK : fm_fail(err, FM_ENOMEM, "no memory for a signature");
}

int fm_oms_write(char **text, const struct fm_oms *m, const char *const *ignored, size_t count,
                 const struct fm_key *key, struct fm_err *err)
{
    uint8_t bytes[FM_KEY_SIGNATURE_MAX];
    char *statement = NULL, *pae = NULL, *payload = NULL, *signature = NULL;
    size_t size = 0, pae_size = 0;
    int rc = FM_OK;
    *text = NULL;
    for (size_t i = 1; i < m->resources; i++)
        assert(strcmp(m->resource[i - 1].name, m->resource[i].name) < 0);
    if (print_statement(&statement, m, ignored, count, err) ||
        encode_pae(&pae, &pae_size, statement, strlen(statement), err) ||
        fm_key_sign(key, pae, pae_size, bytes, &size, err) ||
        !(payload = encode_base64(statement, strlen(statement), err)) ||
        !(signature = encode_base64(bytes, size, err)) ||
        print_bundle(text, payload, signature, key, err))
        rc = err->code;
    free(statement);
    free(pae);
    free(payload);
    free(signature);
    return rc;
}

/* ---- reading ---- */

static int fail_base64(const char *what, struct fm_err *err)
{
    return fm_fail(err, FM_EFORMAT, "'%s' is not standard base64 with its padding", what);
}

/* Decode base64 into *bytes (malloc), *size of them.  Text that encode_base64 would not produce is
 * refused. */
static int decode_base64(unsigned char **bytes, size_t *size, const char *text, const char *what,
                         struct fm_err *err)
{
    size_t length = strlen(text);
    size_t padding =
        length < 4 ? 0 : (size_t)((text[length - 1] == '=') + (text[length - 2] == '='));
    *bytes = NULL;
    if (length == 0 || length % 4 != 0 || length > INT_MAX)
        return fail_base64(what, err);
    *bytes = malloc(length / 4 * 3);
    if (!*bytes)
        return fm_fail(err, FM_ENOMEM, "no memory for a signature");
    int n = EVP_DecodeBlock(*bytes, (const unsigned char *)text, (int)length);
    if (n != (int)(length / 4 * 3))
        return fail_base64(what, err);
    *size = (size_t)n - padding;
    char *again = encode_base64(*bytes, *size, err);
    if (!again)
        return err->code;
    bool same = strcmp(again, text) == 0;
    free(again);
    return same ? FM_OK : fail_base64(what, err);
}

/* Get the object at `key` of `from` (NULL key: `from` itself), whose members must all be in `may`,
 * a list that ends with NULL; NULL: any members. */
static int get_object(const cJSON **object, const cJSON *from, const char *key,
                      const char *const *may, struct fm_err *err)
{
    const cJSON *member;
    *object = key ? cJSON_GetObjectItemCaseSensitive(from, key) : from;
    if (!cJSON_IsObject(*object))
        return key ? fm_fail(err, FM_EFORMAT, "'%s' is not an object", key)
                   : fm_fail(err, FM_EFORMAT, "an object was expected");
    if (!may)
        return FM_OK;
    cJSON_ArrayForEach(member, *object)
    {
        if (fm_names_index(may, member->string) < 0)
            return key ? fm_fail(err, FM_EFORMAT, "'%.100s' in '%s' is not known", member->string,
                                 key)
                       : fm_fail(err, FM_EFORMAT, "'%.100s' is not known", member->string);
    }
    return FM_OK;
}

/* Get the only element of the array at `key`, an object. */
static int get_single(const cJSON **object, const cJSON *from, const char *key,
                      const char *const *may, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(from, key);
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 1)
        return fm_fail(err, FM_EFORMAT, "'%s' is not a list of one element", key);
    return get_object(object, list->child, NULL, may, err) ? fm_within(err, "'%s'", key) : FM_OK;
}

/* Check that the value of `key` is this string. */
static int check_word(const cJSON *from, const char *key, const char *word, int code,
                      struct fm_err *err)
{
    const char *have = NULL;
    if (fm_json_get_string(from, key, &have, err))
        return err->code;
    return strcmp(have, word) == 0
               ? FM_OK
               : fm_fail(err, code, "'%s' is '%.100s', not '%s'", key, have, word);
}

static int parse_digest(struct fm_sha256 *digest, const char *hex, struct fm_err *err)
{
    if (strlen(hex) != FM_SHA256_HEX - 1 || hex[strspn(hex, "0123456789abcdef")])
        return fm_fail(err, FM_EFORMAT, "a digest is not 64 lower-case hex digits");
    for (size_t i = 0; i < sizeof digest->byte; i++)
        digest->byte[i] = (uint8_t)strtoul((char[]){hex[2 * i], hex[2 * i + 1], '\0'}, NULL, 16);
    return FM_OK;
}

static int read_material(struct fm_oms_envelope *e, const cJSON *bundle, struct fm_err *err)
{
    static const char *const may[] = {"publicKey", "tlogEntries", "timestampVerificationData",
                                      NULL};
    static const char *const may_key[] = {"hint", NULL};
    const cJSON *material, *key;
    const char *hint = "";
    struct fm_sha256 unused;
    if (get_object(&material, bundle, "verificationMaterial", NULL, err))
        return err->code;
    if (cJSON_GetObjectItemCaseSensitive(material, "certificate") ||
        cJSON_GetObjectItemCaseSensitive(material, "x509CertificateChain"))
        return fm_fail(err, FM_ECONFIG, "is signed with a certificate; only keys are supported");
    if (get_object(&material, bundle, "verificationMaterial", may, err) ||
        get_object(&key, material, "publicKey", may_key, err))
        return err->code;
    for (const char *const *empty = may + 1; *empty; empty++) {
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(material, *empty);
        if (list &&
            (cJSON_GetArraySize(list) != 0 || !(cJSON_IsArray(list) || cJSON_IsObject(list))))
            return fm_fail(err, FM_ECONFIG,
                           "'%s' is not empty; only signatures with a key are supported", *empty);
    }
    if (cJSON_GetObjectItemCaseSensitive(key, "hint") &&
        (fm_json_get_string(key, "hint", &hint, err) || parse_digest(&unused, hint, err)))
        return fm_within(err, "'hint'");
    memcpy(e->hint, hint, strlen(hint) + 1);
    return FM_OK;
}

static int read_signature(struct fm_oms_envelope *e, const cJSON *entry, struct fm_err *err)
{
    const char *text = NULL;
    const cJSON *keyid = fm_json_value(entry, "keyid");
    unsigned char *bytes = NULL;
    size_t size = 0;
    if (keyid && !(cJSON_IsString(keyid) && !*keyid->valuestring))
        return fm_fail(err, FM_EFORMAT, "'keyid' is not \"\"");
    if (fm_json_get_string(entry, "sig", &text, err))
        return err->code;
    if (strlen(text) > (FM_KEY_SIGNATURE_MAX + 2) / 3 * 4)
        return fm_fail(err, FM_EFORMAT, "'sig' has %zu characters; no ECDSA signature is that long",
                       strlen(text));
    int rc = decode_base64(&bytes, &size, text, "sig", err);
    if (!rc && size > sizeof e->signature)
        rc = fm_fail(err, FM_EFORMAT, "'sig' has %zu bytes; no ECDSA signature is that long", size);
    if (!rc) {
        memcpy(e->signature, bytes, size);
        e->signature_size = size;
    }
    free(bytes);
    return rc;
}

static int read_payload(struct fm_oms_envelope *e, const cJSON *envelope, struct fm_err *err)
{
    const char *text = NULL;
    unsigned char *payload = NULL;
    int rc = FM_OK;
    if (fm_json_get_string(envelope, "payload", &text, err) ||
        decode_base64(&payload, &e->payload_size, text, "payload", err) ||
        encode_pae(&e->pae, &e->pae_size, payload, e->payload_size, err))
        rc = err->code;
    free(payload);
    return rc;
}

int fm_oms_read_envelope(struct fm_oms_envelope *e, const char *text, size_t size,
                         struct fm_err *err)
{
    static const char *const may[] = {"mediaType", "verificationMaterial", "dsseEnvelope", NULL};
    static const char *const may_envelope[] = {"payload", "payloadType", "signatures", NULL};
    static const char *const may_entry[] = {"sig", "keyid", NULL};
    const cJSON *bundle = NULL, *envelope = NULL, *entry = NULL;
    cJSON *tree = NULL;
    *e = (struct fm_oms_envelope){0};
    if (size > FM_OMS_TEXT_MAX)
        return fm_fail(err, FM_EFORMAT, "has %zu bytes (limit %zu)", size, FM_OMS_TEXT_MAX);
    bool failed =
        fm_json_tree(&tree, text, size, err) || get_object(&bundle, tree, NULL, may, err) ||
        check_word(tree, "mediaType", MEDIA_TYPE, FM_ECONFIG, err) || read_material(e, tree, err) ||
        get_object(&envelope, tree, "dsseEnvelope", may_envelope, err) ||
        check_word(envelope, "payloadType", PAYLOAD_TYPE, FM_ECONFIG, err) ||
        get_single(&entry, envelope, "signatures", may_entry, err) ||
        read_signature(e, entry, err) || read_payload(e, envelope, err);
    cJSON_Delete(tree);
    return failed ? err->code : FM_OK;
}

void fm_oms_envelope_release(struct fm_oms_envelope *e)
{
    free(e->pae);
    *e = (struct fm_oms_envelope){0};
}

static int read_resource(struct fm_oms *m, const cJSON *json, size_t of, struct fm_err *err)
{
    const char *name = NULL, *hex = NULL;
    struct fm_oms_resource *r = &m->resource[m->resources];
    const cJSON *object;
    if (get_object(&object, json, NULL, NULL, err) ||
        check_word(json, "algorithm", "sha256", FM_ECONFIG, err) ||
        fm_json_get_string(json, "digest", &hex, err) || parse_digest(&r->digest, hex, err) ||
        fm_json_get_string(json, "name", &name, err) ||
        (!(of == 1 && strcmp(name, FM_OMS_FILE) == 0) && fm_oms_check_name(name, err)) ||
        !(r->name = fm_strdup(name, err)))
        return fm_within(err, "resource %zu", m->resources);
    m->resources++;
    return FM_OK;
}

static int read_resources(struct fm_oms *m, const cJSON *predicate, struct fm_err *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(predicate, "resources"), *resource;
    int n = cJSON_GetArraySize(list);
    if (!cJSON_IsArray(list) || n < 1 || n > FM_OMS_FILES_MAX)
        return fm_fail(err, FM_EFORMAT, "'resources' is not a list of 1 to %d files",
                       FM_OMS_FILES_MAX);
    m->resource = fm_alloc((size_t)n, sizeof *m->resource, "the files of a signature", err);
    int rc = m->resource ? FM_OK : err->code;
    cJSON_ArrayForEach(resource, list)
    {
        if (!rc)
            rc = read_resource(m, resource, (size_t)n, err);
    }
    return rc;
}

/* Check the root digest, which is that of the files' digests in their listed order; then sort the
 * files by name. */
static int check_root(struct fm_oms *m, const cJSON *subject, struct fm_err *err)
{
    char hex[FM_SHA256_HEX];
    const cJSON *digests;
    if (get_object(&digests, subject, "digest", NULL, err) || compute_root(hex, m, err) ||
        check_word(digests, "sha256", hex, FM_EFORMAT, err))
        return fm_within(err, "'subject'");
    fm_names_sort(m->resource, m->resources, sizeof *m->resource);
    const char *twin = fm_names_twin(m->resource, m->resources, sizeof *m->resource);
    return twin ? fm_fail(err, FM_EFORMAT, "'%.200s' is listed twice", twin) : FM_OK;
}

int fm_oms_read_statement(struct fm_oms *m, const char *payload, size_t size, struct fm_err *err)
{
    const cJSON *subject = NULL, *predicate = NULL, *how = NULL;
    const char *name = NULL;
    cJSON *tree = NULL;
    *m = (struct fm_oms){0};
    bool failed = fm_json_tree(&tree, payload, size, err) ||
                  check_word(tree, "_type", STATEMENT_TYPE, FM_ECONFIG, err) ||
                  check_word(tree, "predicateType", PREDICATE_TYPE, FM_ECONFIG, err) ||
                  get_single(&subject, tree, "subject", NULL, err) ||
                  fm_json_get_string(subject, "name", &name, err) ||
                  !(m->subject = fm_strdup(name, err)) ||
                  get_object(&predicate, tree, "predicate", NULL, err) ||
                  get_object(&how, predicate, "serialization", NULL, err) ||
                  check_word(how, "method", "files", FM_ECONFIG, err) ||
                  check_word(how, "hash_type", "sha256", FM_ECONFIG, err) ||
                  read_resources(m, predicate, err) || check_root(m, subject, err);
    cJSON_Delete(tree);
    return failed ? fm_within(err, "its payload") : FM_OK;
}

int fm_oms_read(struct fm_oms *m, const char *text, size_t size, const struct fm_key *key,
                struct fm_err *err)
{
    struct fm_oms_envelope e;
    *m = (struct fm_oms){0};
    int rc = fm_oms_read_envelope(&e, text, size, err);
    if (!rc && *e.hint && strcmp(e.hint, key->hint) != 0)
        rc = fm_fail(err, FM_EDIFF, "is signed with another key, %.16s...; this one is %.16s...",
                     e.hint, key->hint);
    if (!rc && !fm_key_signed(key, e.pae, e.pae_size, e.signature, e.signature_size))
        rc = fm_fail(err, FM_EDIFF,
                     "is not a signature by this key: it was changed, or made with "
                     "another key");
    if (!rc)
        rc = fm_oms_read_statement(m, e.pae + (e.pae_size - e.payload_size), e.payload_size, err);
    fm_oms_envelope_release(&e);
    return rc;
}
