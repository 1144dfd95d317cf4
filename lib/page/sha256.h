/*
 * SHA-256 (FIPS 180-4), for one purpose: a Content-Security-Policy names the one script and the one
 * style that a page may run by this digest, and by no other that the suite has.
 */
#ifndef FM_SHA256_H
#define FM_SHA256_H

#include <stddef.h>

#define FM_SHA256_TEXT 45

/* The digest in base64 (RFC 4648, 4), as such a policy has it. */
void fm_sha256_base64(char text[FM_SHA256_TEXT], const void *data, size_t size);

#endif
