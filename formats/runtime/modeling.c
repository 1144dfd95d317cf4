/*
 * The tools must work from any directory, so the file that they write into exports is part of the
 * program; a separate file could be missing or of another version.
 */
#include "formats/runtime/modeling.h"

__asm__(".pushsection .rodata\n"
        ".globl fm_modeling_begin, fm_modeling_end\n"
        "fm_modeling_begin: .incbin \"formats/runtime/modeling_fm.py\"\n"
        "fm_modeling_end: .byte 0\n"
        ".popsection\n");

extern const char fm_modeling_begin[], fm_modeling_end[];

const char *fm_modeling_text(size_t *size)
{
    *size = (size_t)(fm_modeling_end - fm_modeling_begin);
    return fm_modeling_begin;
}
