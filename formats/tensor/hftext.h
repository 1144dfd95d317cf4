/*
 * The text part of a multimodal checkpoint, seen as the checkpoint that its text class would save.
 */
#ifndef FM_HFTEXT_H
#define FM_HFTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/tensor/safetensors.h"
#include "lib/base/err.h"

/* The key of the text class's config.json for what the wrapper's had beside text_config. */
#define FM_HFTEXT_WRAPPER "fm_wrapper"

/*
 * *text (NUL-terminated, free()) = config.json of the text class, where `config` is that of a
 * wrapper: its text_config has a model_type of its own, "X_text" in "X".  NULL: it is not one, or
 * broken, which is reported when it is parsed whole.  FM_ENOMEM.
 */
int fm_hftext_config(char **text, const char *config, size_t size, struct fm_err *err);

/* Has the text class's config.json the wrapper with it? */
bool fm_hftext_wrapped(const char *config, size_t size);

/*
 * The way back.  *whole (free()) = the wrapper's config.json around that of the text class, which
 * has FM_HFTEXT_WRAPPER; where the text says no quantization_config any more, nor does the whole.
 * FM_EFORMAT, FM_ENOMEM.  And the wrapper's name of one of the text class's tensors, FM_EFORMAT
 * where that is too long.
 */
int fm_hftext_wrap(char **whole, const char *config, size_t size, struct fm_err *err);
int fm_hftext_name(char whole[FM_ST_NAME_BYTES_MAX + 1], const char *name, struct fm_err *err);

/* Tensors "model.language_model.layers.0..." are called "model.layers.0..." from now on, and all
 * are sorted again; those of other parts keep their names. */
void fm_hftext_cut(struct fm_safetensors *st);

#endif
