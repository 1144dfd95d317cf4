/*
 * This room, formats/runtime: code that runs in other programs: modeling_fm.py, with which
 * transformers, vLLM and SGLang load ragged, elastic and layer exports; fm_clip/, the Python
 * interface of libfm_clip; fm_sglang/, a plug-in of SGLang; and wheel.py, which packs these three.
 * The C here only embeds modeling_fm.py in the tools, and includes no other
 * room.
 *
 * The modelling file of exports: formats/runtime/modeling_fm.py as it was when the tool was built.
 */
#ifndef FM_MODELING_H
#define FM_MODELING_H

#include <stddef.h>

/* The text of the file, *size bytes; the NUL that follows is not counted. */
const char *fm_modeling_text(size_t *size);

#endif
