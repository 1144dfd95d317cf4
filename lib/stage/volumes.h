/*
 * The weights of an open bundle: the members under weights/, with the places of each layer's
 * experts and the index of all other tensors; and segments.safetensors, the checksums of their
 * bytes.  Headers are read and checked, weights are not.
 */
#ifndef FM_VOLUMES_H
#define FM_VOLUMES_H

#include <stddef.h>
#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/file/digest.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/dtype.h"
#include "lib/base/err.h"
#include "lib/family/family.h"
#include "lib/model/packed.h"

struct fm_volumes {
    const struct fm_config *config; /* borrowed */
    struct fm_packed_layers packed; /* the tensors of each layer */
    uint64_t *at;                   /* (M, FM_PACKED_PARTS_MAX) absolute offset of each tensor */
    struct fm_safetensors rest;     /* tensors outside the experts; offsets are absolute in the
                                       bundle */
    struct fm_safetensors extra;    /* extra tensors, with absolute offsets; may be empty */
};

/* FM_EFORMAT if a member is missing or does not match config.json and the manifest. */
int fm_volumes_open(struct fm_volumes *v, const struct fm_bundle *bundle,
                    const struct fm_config *config, struct fm_err *err);
void fm_volumes_close(struct fm_volumes *v); /* zeroed struct is fine */

/* The offset of channel 0 of an expert of the m-th layer of experts, in the part-th tensor. */
uint64_t fm_volumes_expert(const struct fm_volumes *v, int m, int part, int e);

/* "weights/layers-00003.safetensors", and the name of a tensor in it, "layers.3.down", for a
 * decoder layer. */
#define FM_VOLUMES_NAME_BYTES 64
void fm_volumes_member(char name[FM_VOLUMES_NAME_BYTES], int l);
void fm_volumes_tensor(char name[FM_VOLUMES_NAME_BYTES], int l, const struct fm_packed_part *part);
#define FM_VOLUMES_REST FM_MEMBER_WEIGHTS FM_WEIGHTS_REST
#define FM_VOLUMES_EXTRA FM_MEMBER_WEIGHTS FM_WEIGHTS_EXTRA

/*
 * Golden segment checksums: for every expert an XXH3-128 of each segment of its
 * ranked channels, with gate/up rows and down rows separate, and one for every other
 * tensor.  There is a boundary at every width that a mask or a uniform export can have, so
 * this member is enough to verify most exports; fm-verify(1) has the exceptions.
 *
 * segments.safetensors: `boundaries` I32 (S + 1) from 0 to I, strictly increasing;
 * `layers.{l}.gate_up` and so on, one for each tensor that a layer has in the bundle
 * (lib/model/packed.h), U8 (E, S, 16): digests of the bytes of channels [b_s, b_{s+1}) in it;
 * boundaries of codes are multiples of the channel group; `tensor.<original name>` U8 (16).
 * Metadata: fm.kind=segments; fm.dtype, the dtype of expert weights; and tensor.<original name> for
 * every other tensor, its dtype and shape, "BF16 512 64".
 */

/* There is a boundary at every multiple of this number of channels. */
#define FM_SEGMENT_CHANNELS 64

/* A tensor outside the experts. */
struct fm_segment_tensor {
    struct fm_tensor t; /* its original name, owned; the offset is unused */
    struct fm_digest digest;
};

struct fm_segments {
    int M, E, I, S;
    struct fm_packed_layers packed;   /* the tensors of each layer */
    int parts;                        /* largest number of tensors of a layer */
    const struct fm_config *config;   /* borrowed */
    enum fm_dtype dtype;              /* dtype of expert weights */
    int32_t *bound;                   /* (S + 1) */
    struct fm_digest *expert;         /* (M, parts, E, S) */
    struct fm_segment_tensor *tensor; /* sorted by name */
    size_t tensors;
};

/*
 * Make zero digests with boundaries at `widths` (n of them, each in [0, I], in any order, repeated
 * or not), at the multiples of FM_SEGMENT_CHANNELS, and at I; for codes each is rounded up to the
 * channel group. `dtype` is that of the experts' values.  Other tensors are copied from `rest`,
 * sorted by name. fm_segments_release takes a zeroed struct too.
 */
int fm_segments_init(struct fm_segments *seg, const struct fm_config *config,
                     const struct fm_packed_layers *packed, enum fm_dtype dtype,
                     const uint32_t *widths, size_t n, const struct fm_tensor *rest, size_t tensors,
                     struct fm_err *err);
void fm_segments_release(struct fm_segments *seg);

/* The S digests of one expert in the part-th tensor of its layer. */
struct fm_digest *fm_segments_expert(const struct fm_segments *seg, int m, int part, int e);

/* The number of segments that end at or before `width`, or -1 if width is not a boundary. */
int fm_segments_at(const struct fm_segments *seg, uint32_t width);

/* Find a tensor by original name, or NULL. */
struct fm_segment_tensor *fm_segments_find(const struct fm_segments *seg, const char *name);
/* Find a tensor with the name, type and shape of `t`, or NULL. */
struct fm_segment_tensor *fm_segments_match(const struct fm_segments *seg,
                                            const struct fm_tensor *t);

/* Compute the digests of the first `count` segments of contiguous channels in a tensor of the m-th
 * layer; group_bytes is the size of a channel group of that layer. */
void fm_segments_digest(struct fm_digest *digest, const struct fm_segments *seg, int m, int count,
                        const void *rows, size_t group_bytes);

/* The member's bytes; *bytes (malloc).  The size does not depend on the digests. */
int fm_segments_write(const struct fm_segments *seg, void **bytes, size_t *size,
                      struct fm_err *err);

/* Read the member of an open bundle (or of the beginning of one), and check it against the sizes of
 * the model and the codes in the manifest. */
int fm_segments_read(struct fm_segments *seg, const struct fm_bundle *bundle,
                     const struct fm_config *config, struct fm_err *err);

#endif
