/*
 * The modelling file that ragged exports carry: formats/runtime/modeling_fm.py as it was when the
 * tool was built.
 */
#ifndef FM_MODELING_H
#define FM_MODELING_H

#include <stddef.h>

/* Its text, not NUL-terminated. */
const char *fm_modeling_text(size_t *size);

#endif
