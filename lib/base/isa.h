/*
 * The vector instructions that the hand-written kernels, FM_CLONES (vector.h) and oneDNN use.  The
 * CPU and the operating system are queried once, and only here.
 *
 * The environment variable FM_ISA (base, avx2, avx512 or amx) is an upper limit, so that one
 * machine can run the code of a less capable one; there is no limit if it is not set.  It is read
 * once, when a function below first needs it.  Any other value is an error: fm_isa_mistake
 * returns it, and fm_cli_begin and fm_clip_prepare refuse to start.
 */
#ifndef FM_BASE_ISA_H
#define FM_BASE_ISA_H

#include <stdbool.h>

/* Each level includes those before it.  On a machine that is not an x86-64 the level is
 * FM_ISA_BASE. */
enum fm_isa {
    FM_ISA_BASE,   /* the baseline of the architecture: SSE2 on x86-64 */
    FM_ISA_AVX2,   /* AVX2, FMA, F16C */
    FM_ISA_AVX512, /* AVX-512 F, BW, DQ, VL */
    FM_ISA_AMX     /* AMX-TILE and AMX-BF16; fm_isa_amx checks whether the process may use them */
};

/* The level in force: the CPU's, at most the limit.  Takes a few nanoseconds. */
enum fm_isa fm_isa(void);

/* The limit that FM_ISA sets; FM_ISA_AMX if it is not set. */
enum fm_isa fm_isa_limit(void);

/* AVX512_BF16, an extension that not every CPU of level FM_ISA_AVX512 has. */
bool fm_isa_avx512_bf16(void);

/* True if the level is FM_ISA_AMX and this process may use the tile registers.  The first call
 * requests them from the operating system, which makes the signal frames of the process larger. */
bool fm_isa_amx(void);

/* "base", "avx2", "avx512", "amx". */
const char *fm_isa_name(enum fm_isa isa);

/* The value of FM_ISA if it is not a valid name (the level is then FM_ISA_BASE), else NULL. */
const char *fm_isa_mistake(void);

#endif
