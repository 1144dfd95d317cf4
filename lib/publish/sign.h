/*
 * Sign a directory or a file, and verify a signature (formats/sign/oms.h).  The signature of a
 * directory is the file model.sig in it; that of FILE is FILE.sig.
 */
#ifndef FM_SIGN_H
#define FM_SIGN_H

#include <stdint.h>

#include "lib/publish/files.h"
#include "lib/run/run.h"

struct fm_sign_options {
    const char *target; /* a directory or a file */
    const char *key;    /* PEM: the private key to sign with, the public one to verify with */
    int passphrase_fd;  /* descriptor whose first line is the private key's passphrase; -1: none */
    /* Called for each ignored name at the top of the directory, in order, before the files are
     * read.  `self` is for both functions. */
    void (*ignored)(void *self, const char *name);
    /* Called for each file that differs from the signature, in order of names. */
    void (*finding)(void *self, const char *name, const char *what);
    void *self;
};

struct fm_sign_report {
    char *signature;         /* path of the signature; free() it */
    char *signed_as;         /* name of the file when it was signed, untrusted text, if it has
                                another one now; else NULL; free() it */
    const char *curve;       /* curve of the key: "P-256" */
    char key[FM_SHA256_HEX]; /* the public key's name: SHA-256 of its PEM text, in hex */
    uint64_t files, bytes;   /* signed, or read to verify */
    uint64_t links;          /* of those, links to blobs of a Hugging Face cache */
    uint64_t failed;         /* number of findings */
    double seconds;
};

/*
 * Sign.  Every file is read once, and the signature is written completely or not at all.
 * FM_ECREATE if there is one already, unless run->outputs.force is set.  FM_EUSAGE if the private
 * key is in the directory, or is encrypted and no passphrase was given; also the errors of files.h
 * and formats/sign/key.h.
 */
int fm_sign(const struct fm_run_options *run, const struct fm_sign_options *options,
            struct fm_sign_report *report, struct fm_err *err);

/*
 * Verify.  FM_OK only if the signature is by this key and the files are exactly those that it
 * lists, with their digests.  FM_EDIFF if a file differs, is missing or is not signed, or the
 * signature is by another key; FM_ENOENT if there is no signature; also the errors of files.h and
 * formats/sign. Files that are not signed are not read.  The name of a single file is not part of
 * what is verified: a file that was renamed, or exchanged for another signed one together with its
 * signature, is FM_OK, and report->signed_as is set.
 */
int fm_sign_verify(const struct fm_run_options *run, const struct fm_sign_options *options,
                   struct fm_sign_report *report, struct fm_err *err);

/* The number of files and bytes that signing would read; needs no key. */
int fm_sign_plan(const char *target, uint64_t *files, uint64_t *bytes, struct fm_err *err);

#endif
