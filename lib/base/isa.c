/*
 * The limit and the level are found once, at the first call, so that a later change of the
 * environment affects neither.
 */
#include "lib/base/isa.h"

#include <assert.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static const char *const names[] = {"base", "avx2", "avx512", "amx"};
enum { LEVELS = sizeof names / sizeof *names };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static enum fm_isa level, limit;
static bool invalid; /* FM_ISA is not one of the names */

#if defined(__x86_64__)
/* CPUID leaf 7, subleaf 0, EDX. */
enum { AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
/* Bits of XCR0, which XGETBV returns: the operating system saves the tile registers. */
enum { XTILE = 1 << 17 | 1 << 18 };

static bool saves_tiles(void)
{
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & XTILE) == XTILE;
}

/* __builtin_cpu_supports also checks that the operating system saves the registers.  clang 14
 * rejects "f16c" there. */
static enum fm_isa find_level(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C))
        return FM_ISA_BASE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return FM_ISA_AVX2;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE) ||
        !saves_tiles())
        return FM_ISA_AVX512;
    return FM_ISA_AMX;
}

bool fm_isa_avx512_bf16(void)
{
    return fm_isa() >= FM_ISA_AVX512 && __builtin_cpu_supports("avx512bf16");
}

enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */

static bool granted;

static void request_tiles(void)
{
    granted = fm_isa() >= FM_ISA_AMX && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

bool fm_isa_amx(void)
{
    static pthread_once_t requested = PTHREAD_ONCE_INIT;
    pthread_once(&requested, request_tiles);
    return granted;
}
#else
static enum fm_isa find_level(void)
{
    return FM_ISA_BASE;
}

bool fm_isa_avx512_bf16(void)
{
    return false;
}

bool fm_isa_amx(void)
{
    return false;
}
#endif

/* Read the limit, and find the level: the CPU's, at most the limit. */
static void find_both(void)
{
    const char *value = getenv("FM_ISA");
    int named = FM_ISA_AMX;
    if (value && *value)
        for (named = 0; named < LEVELS && strcmp(value, names[named]) != 0;)
            named++;
    invalid = named == LEVELS;
    limit = invalid ? FM_ISA_BASE : (enum fm_isa)named;
    enum fm_isa found = find_level();
    level = found < limit ? found : limit;
}

enum fm_isa fm_isa(void)
{
    pthread_once(&once, find_both);
    return level;
}

enum fm_isa fm_isa_limit(void)
{
    pthread_once(&once, find_both);
    return limit;
}

const char *fm_isa_name(enum fm_isa isa)
{
    assert((unsigned)isa < LEVELS);
    return names[isa];
}

const char *fm_isa_mistake(void)
{
    pthread_once(&once, find_both);
    return invalid ? getenv("FM_ISA") : NULL;
}
