/*
 * A model's signature: the format of OpenSSF Model Signing 1.0, method "files" with SHA-256, signed
 * by a key.  The file is JSON, a Sigstore bundle:
 *
 *     {"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
 *      "verificationMaterial": {"publicKey": {"hint": NAME OF THE KEY}, "tlogEntries": []},
 *      "dsseEnvelope": {"payload": BASE64, "payloadType": "application/vnd.in-toto+json",
 *                       "signatures": [{"sig": BASE64 OF DER, "keyid": ""}]}}
 *
 * Its payload is a statement, also JSON, with every file and its digest:
 *
 *     {"_type": "https://in-toto.io/Statement/v1",
 *      "subject": [{"name": NAME OF THE DIRECTORY, "digest": {"sha256": ROOT}}],
 *      "predicateType": "https://model_signing/signature/v1.0",
 *      "predicate": {
 *        "resources": [{"name": "config.json", "digest": HEX, "algorithm": "sha256"}, ...],
 *        "serialization": {"method": "files", "hash_type": "sha256", "allow_symlinks": false,
 *                          "ignore_paths": [".git", ...]}}}
 *
 * ROOT is SHA-256 of the files' digests in their order.  The signed bytes are "DSSEv1 28
 * application/vnd.in-toto+json LENGTH " and the payload.
 *
 * Signatures are untrusted.  Outside the payload, which the key protects, any member that is not
 * listed above is refused (except an empty timestampVerificationData in verificationMaterial);
 * inside it, unknown members are ignored, as the specification requires.
 */
#ifndef FM_OMS_H
#define FM_OMS_H

#include <stddef.h>
#include <stdint.h>

#include "formats/sign/key.h"
#include "formats/sign/sha256.h"
#include "lib/base/err.h"

#define FM_OMS_TEXT_MAX ((size_t)48 << 20) /* limit of a signature's file, in bytes */
#define FM_OMS_FILES_MAX 50000
#define FM_OMS_NAME_MAX 4095
#define FM_OMS_NAME "model.sig" /* in the signed directory; that of FILE is FILE.sig */
#define FM_OMS_FILE "."         /* the name of a single signed file, without a directory */

struct fm_oms_resource {
    char *name; /* a path below the directory, with '/' between its parts */
    struct fm_sha256 digest;
};

/* A statement; it owns its strings and arrays. */
struct fm_oms {
    char *subject; /* the name that the directory or file had */
    struct fm_oms_resource *resource;
    size_t resources;
};
void fm_oms_release(struct fm_oms *m); /* zeroed struct is fine */

/*
 * Check that a file of this name can be signed: a relative path of plain parts, none of them "." or
 * "..", at most FM_OMS_NAME_MAX bytes of UTF-8 without control or invisible characters
 * (lib/base/printable.h).  FM_EFORMAT.
 */
int fm_oms_check_name(const char *name, struct fm_err *err);

/*
 * The text of a signature of `m` by a private key, malloced, NUL-terminated.  Resources must be
 * sorted by the bytes of their names, which have passed fm_oms_check_name; or the only one is
 * FM_OMS_FILE.
 * `ignored` (`count` names, sorted) is written as ignore_paths.  FM_ENOMEM.
 */
int fm_oms_write(char **text, const struct fm_oms *m, const char *const *ignored, size_t count,
                 const struct fm_key *key, struct fm_err *err);

/*
 * The statement of a signature, after verifying it with the public key.  FM_EDIFF if it was made
 * with a different key or does not match its payload; FM_EFORMAT if the text is malformed;
 * FM_ECONFIG for a kind of model signature that is not supported (a different method, a
 * certificate). Call fm_oms_release in every case.
 */
int fm_oms_read(struct fm_oms *m, const char *text, size_t size, const struct fm_key *key,
                struct fm_err *err);

/* The two steps of fm_oms_read.  An envelope: the signed bytes (pae; the last payload_size bytes
 * are the payload), the signature, and the key's name, or "". */
struct fm_oms_envelope {
    char *pae;
    size_t pae_size, payload_size;
    uint8_t signature[FM_KEY_SIGNATURE_MAX];
    size_t signature_size;
    char hint[FM_SHA256_HEX];
};
int fm_oms_read_envelope(struct fm_oms_envelope *e, const char *text, size_t size,
                         struct fm_err *err);
void fm_oms_envelope_release(struct fm_oms_envelope *e); /* zeroed struct is fine */
int fm_oms_read_statement(struct fm_oms *m, const char *payload, size_t size, struct fm_err *err);

#endif
