/*
 * The small files of a checkpoint that travel with it: copied into a bundle as carried/NAME, and
 * from there into every export under their own names.  So the rule is one, here, for listing a
 * checkpoint, writing a bundle and reading one: what the first would leave behind, the others
 * refuse.  Names are plain: none means a directory, none is hidden, none is a weight
 * file.
 */
#ifndef FM_CARRIED_H
#define FM_CARRIED_H

#include <stddef.h>
#include <stdint.h>

#include "lib/base/err.h"

#define FM_CARRIED_MAX 64
#define FM_CARRIED_BYTES_MAX ((uint64_t)256 << 20)
#define FM_CARRIED_NAME_MAX 90 /* "carried/" and the name fit a plain tar header */

/* Why no file of this name travels, as the end of a sentence ("it is hidden"); NULL where one
 * does: a single component of [A-Za-z0-9._-] that is not the name of a weight file (safetensors,
 * bin, pt, pth, ckpt, gguf, onnx, h5, msgpack, ot, index.json, consolidated.*). */
const char *fm_carried_refuse(const char *name);

/* Those that travel together; begin zeroed. */
struct fm_carried_sum {
    size_t files;
    uint64_t bytes;
};
/* One more; FM_ECONFIG for a name that is refused, and over the limits. */
int fm_carried_add(struct fm_carried_sum *sum, const char *name, uint64_t size, struct fm_err *err);

#endif
