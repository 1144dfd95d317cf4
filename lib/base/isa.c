/*
 * The level depends only on the CPU and the environment, so threads that compute it at the same
 * time store the same number and no lock is needed.
 */
#include "lib/base/isa.h"

#include <pthread.h>
#include <stdatomic.h>
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

/* The level that FM_ISA names, or LEVELS if its value is invalid. */
static int read_limit(void)
{
    const char *value = getenv("FM_ISA");
    if (!value || !*value)
        return FM_ISA_AMX;
    int i = 0;
    while (i < LEVELS && strcmp(value, names[i]) != 0)
        i++;
    return i;
}

/* The limit, read only once, so that a later change of the environment affects neither the limit
 * nor the level. */
static int limit(void)
{
    static atomic_int known; /* limit + 1 */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is == 0) {
        is = read_limit() + 1;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return is - 1;
}

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
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, request_tiles);
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

enum fm_isa fm_isa(void)
{
    static atomic_int known; /* level + 1 */
    int is = atomic_load_explicit(&known, memory_order_relaxed);
    if (is == 0) {
        enum fm_isa found = find_level(), most = fm_isa_limit();
        is = (int)(found < most ? found : most) + 1;
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return (enum fm_isa)(is - 1);
}

enum fm_isa fm_isa_limit(void)
{
    return limit() < LEVELS ? (enum fm_isa)limit() : FM_ISA_BASE;
}

const char *fm_isa_name(enum fm_isa isa)
{
    return names[isa];
}

const char *fm_isa_mistake(void)
{
    return limit() < LEVELS ? NULL : getenv("FM_ISA");
}
