/*
 * A slow and strict emulation of a GPU on the host, which runs the kernels of kernels/clip/cuda
 * unchanged.  Every thread of a block is a coroutine; blocks run one after another.  This file has
 * the features of CUDA itself: 16-bit numbers, threads and their synchronisation.  The instructions
 * of clip_cuda_ptx.cuh are in tests/unit/cuda_emulator_ptx.h.
 *
 * Strict: copies arrive as late as the program allows, or early at random (emu.chance is the
 * generator's state).  Threads run in random order, and a block in which no thread can continue is
 * a deadlock and aborts the program.
 *
 * Not modelled: time, caches, bank conflicts, registers.
 */
#ifndef TESTS_CUDA_EMULATOR_H
#define TESTS_CUDA_EMULATOR_H

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static

struct emu_dim {
    unsigned x, y, z;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};

inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline float2 make_float2(float x, float y)
{
    return {x, y};
}

/* --- 16-bit numbers */

struct __nv_bfloat16 {
    uint16_t bits;
};
struct __half {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
struct __half2 {
    __half x, y;
};

inline float __bfloat162float(__nv_bfloat16 v)
{
    uint32_t u = (uint32_t)v.bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if (f != f)
        return {0x7fff};
    return {(uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
inline float __half2float(__half v)
{
    _Float16 h;
    memcpy(&h, &v.bits, sizeof h);
    return (float)h;
}
inline __half __float2half_rn(float f)
{
    _Float16 h = (_Float16)f;
    __half v;
    memcpy(&v.bits, &h, sizeof h);
    return v;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}
inline float __expf(float x)
{
    return expf(x);
}
inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float __fadd_rn(float x, float y)
{
    return x + y;
}
inline float __fmul_rn(float x, float y)
{
    return x * y;
}
inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

/* --- threads */

/* A barrier of threads; the last one to arrive releases all of them. */
struct emu_meeting {
    int come = 0;
    uint64_t times = 0;
    uint64_t taken[32][8];
};

struct emu_block { /* state shared by the threads of a block */
    emu_dim at;
    std::vector<uint8_t> shared;
    std::map<int, emu_meeting> warps; /* by number */
    emu_meeting hall;                 /* of __syncthreads */
};

struct emu_thread {
    uint8_t *stack;
    jmp_buf at; /* where it stopped; setjmp and longjmp switch without a system call */
    unsigned index;
    bool begun, done;
    std::vector<std::vector<std::function<void()>>> copies; /* committed cp.async copies */
    std::vector<std::function<void()>> copies_open;         /* copies not yet committed */
};

struct emu_machine {
    emu_dim blocks, block_dim;
    emu_block block; /* the running one */
    std::vector<emu_thread> threads;
    emu_thread *now; /* the running thread */
    jmp_buf scheduler;
    ucontext_t entered; /* saved by the first switch to a thread */
    std::vector<uint8_t *> stacks;
    std::function<void()> kernel;
    uint64_t chance = 1;
    bool moved;
};
inline emu_machine emu;

#define threadIdx (emu_dim{emu.now->index, 0, 0})
#define blockIdx (emu.block.at)
#define gridDim (emu.blocks)
#define blockDim (emu.block_dim)

inline uint64_t emu_random()
{
    emu.chance ^= emu.chance << 13, emu.chance ^= emu.chance >> 7, emu.chance ^= emu.chance << 17;
    return emu.chance;
}

[[noreturn]] inline void emu_stop(const char *what)
{
    fprintf(stderr, "cuda_emulator: block %u: %s\n", emu.block.at.x, what);
    abort();
}

inline void emu_yield()
{
    if (!_setjmp(emu.now->at))
        _longjmp(emu.scheduler, 1);
}

inline void emu_enter()
{
    emu.kernel();
    emu.now->done = true;
    emu.moved = true;
    emu_yield();
}

#define EMU_STACK (64u << 10)

/* Let a thread run until it yields. */
inline void emu_resume(emu_thread &t)
{
    emu.now = &t;
    if (_setjmp(emu.scheduler))
        return;
    if (t.begun)
        _longjmp(t.at, 1);
    t.begun = true;
    ucontext_t first;
    getcontext(&first);
    first.uc_stack.ss_sp = t.stack;
    first.uc_stack.ss_size = EMU_STACK;
    first.uc_link = nullptr;
    makecontext(&first, emu_enter, 0);
    swapcontext(&emu.entered, &first);
}

inline void emu_run_block()
{
    size_t threads = emu.threads.size();
    for (size_t left = threads; left > 0;) {
        emu.moved = false;
        size_t turn = (size_t)(emu_random() % threads);
        uint64_t lazy = emu_random() & emu_random(); /* warps that are skipped this time */
        left = 0;
        for (size_t i = 0; i < threads; i++) {
            emu_thread &t = emu.threads[(i * 97 + turn) % threads];
            if (t.done)
                continue;
            if (lazy >> t.index / 32 % 64 & 1)
                emu.moved = true;
            else
                emu_resume(t);
            left += !t.done;
        }
        if (!emu.moved && left > 0)
            emu_stop("a deadlock");
    }
}

inline emu_dim emu_block_at(unsigned i)
{
    return {i % emu.blocks.x, i / emu.blocks.x % emu.blocks.y, i / emu.blocks.x / emu.blocks.y};
}

/* Initialise block number `i`; shared memory starts as NaN. */
inline void emu_gather(unsigned i, size_t shared_bytes)
{
    unsigned threads = emu.block_dim.x;
    emu.block = {};
    emu.block.at = emu_block_at(i);
    emu.block.shared.assign(shared_bytes + 2048, 0xff);
    emu.threads.clear();
    emu.threads.resize(threads);
    while (emu.stacks.size() < threads)
        emu.stacks.push_back((uint8_t *)malloc(EMU_STACK));
    for (unsigned t = 0; t < threads; t++) {
        emu.threads[t].index = t;
        emu.threads[t].stack = emu.stacks[t];
        emu.threads[t].begun = emu.threads[t].done = false;
    }
}

/* Run a kernel on a grid, block after block. */
inline void emu_launch(emu_dim blocks, unsigned threads, size_t shared_bytes,
                       std::function<void()> kernel)
{
    emu.kernel = kernel;
    emu.blocks = blocks;
    emu.block_dim = {threads, 1, 1};
    for (unsigned i = 0; i < blocks.x * blocks.y * blocks.z; i++) {
        emu_gather(i, shared_bytes);
        emu_run_block();
    }
}

/* --- synchronisation */

inline void emu_meet(emu_meeting &m, int wanted)
{
    uint64_t times = m.times;
    if (++m.come == wanted) {
        m.come = 0;
        m.times++;
        emu.moved = true;
    } else {
        while (m.times == times)
            emu_yield();
    }
}

/* All lanes of a warp contribute `words` numbers and read those of all lanes. */
inline const emu_meeting &emu_exchange(const uint64_t *given, int words)
{
    unsigned index = emu.now->index, lane = index % 32;
    emu_meeting &m = emu.block.warps[(int)(index / 32)];
    int wanted = (int)std::min(32u, emu.block_dim.x - index / 32 * 32);
    for (int i = 0; i < words; i++)
        m.taken[lane][i] = given[i];
    emu_meet(m, wanted);
    return m;
}

/* Read the numbers of the others, then wait until all lanes have read. */
template <typename F> inline auto emu_collective(const uint64_t *given, int words, F read)
{
    const emu_meeting &m = emu_exchange(given, words);
    auto result = read(m);
    emu_exchange(given, 0);
    return result;
}

inline void __syncthreads()
{
    emu_meet(emu.block.hall, (int)emu.block_dim.x);
}
inline void __syncwarp()
{
    uint64_t none = 0;
    emu_exchange(&none, 0);
}
inline unsigned __ballot_sync(unsigned, int yes)
{
    uint64_t mine = yes != 0;
    return emu_collective(&mine, 1, [](const emu_meeting &m) {
        unsigned mask = 0;
        for (int i = 0; i < 32; i++)
            mask |= (unsigned)(m.taken[i][0] & 1) << i;
        return mask;
    });
}
inline unsigned __match_any_sync(unsigned, int value)
{
    uint64_t mine = (uint32_t)value;
    return emu_collective(&mine, 1, [&](const emu_meeting &m) {
        unsigned mask = 0;
        for (int i = 0; i < 32; i++)
            mask |= (unsigned)(m.taken[i][0] == mine) << i;
        return mask;
    });
}
template <typename T> inline T emu_shuffle(T value, int from)
{
    uint64_t mine = 0;
    memcpy(&mine, &value, sizeof value);
    return emu_collective(&mine, 1, [&](const emu_meeting &m) {
        T got;
        memcpy(&got, &m.taken[from & 31][0], sizeof got);
        return got;
    });
}
template <typename T> inline T __shfl_sync(unsigned, T value, int from)
{
    return emu_shuffle(value, from);
}
template <typename T> inline T __shfl_xor_sync(unsigned, T value, int bits)
{
    return emu_shuffle(value, (int)(emu.now->index % 32) ^ bits);
}
template <typename T> inline T __shfl_up_sync(unsigned, T value, int by)
{
    int lane = (int)(emu.now->index % 32);
    return emu_shuffle(value, lane < by ? lane : lane - by);
}
inline int atomicAdd(int *at, int value)
{
    int before = *at;
    *at += value;
    return before;
}
inline int atomicOr(int *at, int value)
{
    int before = *at;
    *at |= value;
    return before;
}

#endif
