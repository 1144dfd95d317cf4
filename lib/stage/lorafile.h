/*
 * The adapter as the member adapter.safetensors: tensors
 * `layers.{l}.experts.{e}.{gate_A,gate_B,up_A,up_B,down_A,down_B}` in F32, only for channels that
 * have an adapter; metadata rank, alpha.  An adapter of routers has `layers.{l}.router` (E, H) and,
 * if its logits have a bias, `layers.{l}.router_bias` (E) in F32, the differences from the
 * checkpoint's values; metadata train, "router".  Down projections are `layers.{l}.down` (E I, H)
 * in the checkpoint's dtype, in ranked order and transposed; metadata train, "down".
 */
#ifndef FM_LORAFILE_H
#define FM_LORAFILE_H

#include <stddef.h>

#include "formats/bundle/bundle.h"
#include "lib/engine/adapter.h"
#include "lib/masks/masks.h"

#define FM_LORA_RANK_MAX 4096

/* The bytes of the member; free() *data. */
int fm_lorafile_pack(const struct fm_adapter *a, const int16_t *moe, void **data, size_t *size,
                     struct fm_err *err);

/* The values of "train" for routers and for down projections, in metadata and manifest. */
#define FM_LORAFILE_ROUTER "router"
#define FM_LORAFILE_DOWN "down"
#define FM_LORAFILE_SERVED 4 /* most masks for which down projections are solved */

/* Read an adapter from a stream and check its digest; release by fm_adapter_release.  FM_EFORMAT,
 * naming the tensor, if its shape does not fit the model or a value is not finite. */
int fm_lorafile_open(struct fm_adapter *a, const struct fm_bundle *b, struct fm_err *err);

/*
 * FM_EFORMAT unless the manifest's "adapter" matches this adapter: for experts rank, alpha, and the
 * widths of the named mask (strategy single) or of the full mask (cross); for the others, "train".
 * `masks` is the family of the stream.
 */
int fm_lorafile_check(const struct fm_adapter *a, const struct fm_bundle *b,
                      const struct fm_masks *masks, struct fm_err *err);

#endif
