/*
 * This room, formats/runtime: code that runs in other people's programs: modeling_fm.py, by which
 * transformers, vLLM and SGLang load ragged and elastic exports; fm_sglang/, a plug-in of SGLang;
 * and torch_channel.py with torch_experts.py or torch_loops.py, the PyTorch that fm-bench measures
 * beside our kernels.  They know config.json of an export; the C here only puts modeling_fm.py
 * into the tools, and includes nothing of ours.
 *
 * The modelling file that ragged exports carry: formats/runtime/modeling_fm.py as it was when the
 * tool was built.
 */
#ifndef FM_MODELING_H
#define FM_MODELING_H

#include <stddef.h>

/* Its text, not NUL-terminated. */
const char *fm_modeling_text(size_t *size);

#endif
