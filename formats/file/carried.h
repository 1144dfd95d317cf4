/*
 * The small files of a checkpoint that are carried along: copied into a bundle as carried/NAME, and
 * from there into every export under their own names.  One rule is used for listing a checkpoint,
 * writing a bundle and reading one: listing skips, and the other two refuse, a name that contains a
 * directory, is hidden, or is that of a weight file.
 */
#ifndef FM_CARRIED_H
#define FM_CARRIED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_CARRIED_MAX 64
#define FM_CARRIED_BYTES_MAX ((uint64_t)256 << 20)
#define FM_CARRIED_NAME_MAX 90 /* "carried/" and the name must fit into a plain tar header */

/* The reason why a file of this name is not carried, as the end of a sentence ("it is hidden");
 * NULL if it is carried: 1 to FM_CARRIED_NAME_MAX bytes of [A-Za-z0-9._-], not hidden, and not the
 * name of a weight file (safetensors, bin, pt, pth, ckpt, gguf, onnx, h5, msgpack, ot, index.json,
 * consolidated.*). */
const char *fm_carried_refuse(const char *name);

/* Whether this is the name of a weight file. */
bool fm_carried_is_weights(const char *name);

/* Running totals of the carried files; zero it first. */
struct fm_carried_sum {
    size_t files;
    uint64_t bytes;
};
/* Check a name and add its size; FM_ECONFIG if it is refused, or over the limits. */
int fm_carried_add(struct fm_carried_sum *sum, const char *name, uint64_t size, struct fm_err *err);

#endif
