/*
 * The text part of a multimodal checkpoint, seen as the checkpoint that its text class would save.
 */
#ifndef FM_HFTEXT_H
#define FM_HFTEXT_H

#include <stddef.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"

/*
 * *text (NUL-terminated, free()) = config.json of the text class, where `config` is that of a
 * wrapper: its text_config has a model_type of its own, "X_text" in "X".  NULL: it is not one, or
 * broken, which is reported when it is parsed whole.  FM_ENOMEM.
 */
int fm_hftext_config(char **text, const char *config, size_t size, struct fm_err *err);

/* Tensors "model.language_model.layers.0..." are called "model.layers.0..." from now on, and all
 * are sorted again; those of other parts keep their names. */
void fm_hftext_cut(struct fm_safetensors *st);

#endif
