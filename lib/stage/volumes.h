/*
 * The weights/ members of an open bundle: where the tensors of each layer's experts begin, and
 * the index of all other tensors.  Headers are read and checked, weights are not.
 */
#ifndef FM_VOLUMES_H
#define FM_VOLUMES_H

#include <stdint.h>

#include "formats/bundle/bundle.h"
#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"
#include "lib/model/model.h"
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

#endif
