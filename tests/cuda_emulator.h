/*
 * A GPU on the host, slow and strict, on which the kernels of kernels/clip_cuda_*.cuh run as they
 * are.  Every thread of a block is a coroutine; blocks run one after another.  The functions of
 * clip_cuda_ptx.cuh are here again, written from the layouts that the PTX ISA documents and not
 * from kernels/clip_cuda_maps.h, so that a wrong swizzle, descriptor, fragment or phase gives wrong
 * numbers here too.
 *
 * Strict: copies land as late, and matrix products read as late, as the program allows (or early:
 * by chance, from emu.chance on), threads run in random order, and a block in which nothing can go
 * on is a deadlock and aborts.
 *
 * Not modelled: time, caches, memory ordering between proxies, bank conflicts, registers.
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

#define FM_CUDA_EMULATED 1
#define FM_CLIP_CUDA_PTX_CUH /* this file stands for it */
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define SHARED_MEMORY(name) uint8_t *name = emu.shared.data()

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
struct alignas(64) CUtensorMap {
    uint64_t opaque[16];
};

inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline float2 make_float2(float x, float y)
{
    return {x, y};
}

/* --- numbers of 16 bits */

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

/* A gathering of `wanted` threads; who comes last lets all of them go. */
struct emu_meeting {
    int come = 0;
    uint64_t times = 0;
    uint64_t taken[32][8];
};

struct emu_barrier { /* an mbarrier */
    int wanted = 0, left = 0;
    int64_t bytes = 0;
    uint64_t phase = 0;
};

struct emu_map { /* inside a CUtensorMap */
    const uint8_t *base;
    int64_t rows, columns; /* of 2 bytes */
    int box_rows;
};

struct emu_product {
    float *d;
    uint64_t a, b;
    int n, a_across, b_across, add_to;
    float (*number)(uint16_t);
};

struct emu_thread {
    jmp_buf at; /* where it stopped; setjmp and longjmp switch without a system call */
    unsigned index;
    bool begun, done;
    std::vector<std::vector<std::function<void()>>> copies; /* cp.async, committed */
    std::vector<std::function<void()>> copies_open;         /* and not yet */
    std::vector<std::vector<emu_product>> products;         /* wgmma, committed */
    std::vector<emu_product> products_open;
};

struct emu_machine {
    emu_dim block, blocks, block_dim;
    std::vector<emu_thread> threads;
    emu_thread *now;
    jmp_buf scheduler;
    ucontext_t entered; /* left behind by the first switch to a thread */
    std::vector<uint8_t *> stacks;
    std::function<void()> kernel;
    std::vector<uint8_t> shared;
    std::map<int, emu_meeting> warps, halls; /* warps by number, barriers by id */
    std::map<uint32_t, emu_barrier> barriers;
    std::vector<std::function<void()>> flying; /* bulk copies under way */
    uint64_t chance = 1;
    bool moved;
};
inline emu_machine emu;

#define threadIdx (emu_dim{emu.now->index, 0, 0})
#define blockIdx (emu.block)
#define gridDim (emu.blocks)
#define blockDim (emu.block_dim)

inline uint64_t emu_random()
{
    emu.chance ^= emu.chance << 13, emu.chance ^= emu.chance >> 7, emu.chance ^= emu.chance << 17;
    return emu.chance;
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

/* Late or early bulk copies: some land now. */
inline void emu_land(bool all)
{
    while (!emu.flying.empty() && (all || emu_random() % 4 == 0)) {
        size_t i = (size_t)(emu_random() % emu.flying.size());
        std::function<void()> copy = emu.flying[i];
        emu.flying.erase(emu.flying.begin() + (long)i);
        copy();
        emu.moved = true;
    }
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
    while (emu.stacks.size() <= t.index)
        emu.stacks.push_back((uint8_t *)malloc(EMU_STACK));
    first.uc_stack.ss_sp = emu.stacks[t.index];
    first.uc_stack.ss_size = EMU_STACK;
    first.uc_link = nullptr;
    makecontext(&first, emu_enter, 0);
    swapcontext(&emu.entered, &first);
}

inline void emu_run_block()
{
    std::vector<size_t> order;
    for (emu_thread &t : emu.threads) {
        t.begun = t.done = false;
        order.push_back(order.size());
    }
    for (size_t left = order.size(); left > 0;) {
        emu.moved = false;
        size_t turn = (size_t)(emu_random() % order.size());
        uint64_t lazy = emu_random() & emu_random(); /* warps that do nothing this time */
        left = 0;
        for (size_t i = 0; i < order.size(); i++) {
            emu_thread &t = emu.threads[(i * 97 + turn) % order.size()];
            if (t.done)
                continue;
            if (lazy >> t.index / 32 & 1)
                emu.moved = true;
            else
                emu_resume(t);
            left += !t.done;
        }
        emu_land(!emu.moved);
        if (!emu.moved && left > 0) {
            fprintf(stderr, "cuda_emulator: block %u: deadlock of %zu threads\n", emu.block.x,
                    left);
            abort();
        }
    }
}

/* Run a kernel on a grid; shared memory starts as NaN. */
inline void emu_launch(emu_dim blocks, unsigned threads, size_t shared_bytes,
                       std::function<void()> kernel)
{
    emu.kernel = kernel;
    emu.blocks = blocks;
    emu.block_dim = {threads, 1, 1};
    emu.shared.assign(shared_bytes + 2048, 0xff);
    for (unsigned y = 0; y < blocks.y; y++)
        for (unsigned x = 0; x < blocks.x; x++) {
            emu.block = {x, y, 0};
            emu.threads.clear();
            emu.threads.resize(threads);
            for (unsigned i = 0; i < threads; i++)
                emu.threads[i].index = i;
            emu.warps.clear();
            emu.halls.clear();
            emu.barriers.clear();
            emu_run_block();
            if (!emu.flying.empty()) {
                fprintf(stderr, "cuda_emulator: block %u ended with copies under way\n", x);
                abort();
            }
        }
}

/* --- meetings */

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

/* All lanes of a warp give `words` numbers and see everyone's. */
inline const emu_meeting &emu_exchange(const uint64_t *given, int words)
{
    unsigned index = emu.now->index, lane = index % 32;
    emu_meeting &m = emu.warps[(int)(index / 32)];
    int wanted = (int)std::min(32u, emu.block_dim.x - index / 32 * 32);
    for (int i = 0; i < words; i++)
        m.taken[lane][i] = given[i];
    emu_meet(m, wanted);
    return m;
}

/* Read what others gave, then wait until all have read. */
template <typename F> inline auto emu_collective(const uint64_t *given, int words, F read)
{
    const emu_meeting &m = emu_exchange(given, words);
    auto result = read(m);
    emu_exchange(given, 0);
    return result;
}

inline void __syncthreads()
{
    emu_meet(emu.halls[0], (int)emu.block_dim.x);
}
inline void __syncwarp()
{
    uint64_t none = 0;
    emu_exchange(&none, 0);
}
inline void named_barrier(int id, int threads)
{
    emu_meet(emu.halls[id], threads);
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

/* --- shared memory; address 1024 is its first byte, so that 0 is nobody's */

#define EMU_BASE 1024u

inline uint32_t shared_address(const void *p)
{
    return EMU_BASE + (uint32_t)((const uint8_t *)p - emu.shared.data());
}
inline uint8_t *emu_at(uint32_t address, uint32_t bytes)
{
    if (address < EMU_BASE || address - EMU_BASE + bytes > emu.shared.size()) {
        fprintf(stderr, "cuda_emulator: shared address %u + %u is outside\n", address, bytes);
        abort();
    }
    return emu.shared.data() + (address - EMU_BASE);
}
inline void shared_clear16(uint32_t to)
{
    memset(emu_at(to, 16), 0, 16);
}
/* The 128-byte swizzle works on address bits: 4..6 are xor-ed with 7..9. */
inline uint32_t emu_swizzled(uint32_t address)
{
    return address ^ ((address & 0x380) >> 3);
}
inline uint16_t emu_half_at(uint32_t address)
{
    uint16_t v;
    memcpy(&v, emu_at(address, 2), 2);
    return v;
}

/* --- sm_80 */

inline void copy16(uint32_t to, const void *from, bool there)
{
    emu.now->copies_open.push_back([=]() {
        if (there)
            memcpy(emu_at(to, 16), from, 16);
        else
            memset(emu_at(to, 16), 0, 16);
    });
}
inline void copies_end()
{
    if (emu_random() % 4 == 0) { /* early */
        for (auto &copy : emu.now->copies_open)
            copy();
        emu.now->copies_open.clear();
    }
    emu.now->copies.push_back(emu.now->copies_open);
    emu.now->copies_open.clear();
}
template <int LEFT> inline void copies_wait()
{
    auto &queue = emu.now->copies;
    while (queue.size() > LEFT || (!queue.empty() && emu_random() % 16 == 0)) {
        for (auto &copy : queue.front())
            copy();
        queue.erase(queue.begin());
    }
}

/* Four 8 x 8 matrices, row r of matrix i at the address of lane 8 i + r; lane l receives of each
 * the numbers (row l / 4, columns 2 (l % 4), + 1), or of the transpose. */
inline void emu_load_matrices(uint32_t r[4], uint32_t address, bool across)
{
    uint64_t mine = address;
    uint32_t lane = emu.now->index % 32;
    emu_collective(&mine, 1, [&](const emu_meeting &m) {
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t halves[2];
            for (uint32_t j = 0; j < 2; j++) {
                uint32_t row = across ? lane % 4 * 2 + j : lane / 4;
                uint32_t column = across ? lane / 4 : lane % 4 * 2 + j;
                uint32_t at = (uint32_t)m.taken[8 * i + row][0];
                if (at % 16) {
                    fprintf(stderr, "cuda_emulator: ldmatrix at %u\n", at);
                    abort();
                }
                halves[j] = emu_half_at(at + column * 2);
            }
            r[i] = halves[0] | halves[1] << 16;
        }
        return 0;
    });
}
inline void load_matrices(uint32_t r[4], uint32_t address)
{
    emu_load_matrices(r, address, false);
}
inline void load_matrices_across(uint32_t r[4], uint32_t address)
{
    emu_load_matrices(r, address, true);
}

template <typename T> float emu_number(uint16_t bits);
template <> inline float emu_number<__nv_bfloat16>(uint16_t bits)
{
    return __bfloat162float({bits});
}
template <> inline float emu_number<__half>(uint16_t bits)
{
    return __half2float({bits});
}

/* mma.m16n8k16: A registers hold (row g, k), (g + 8, k), (g, k + 8), (g + 8, k + 8) with g = lane /
 * 4 and k = 2 (lane % 4), + 1; B registers (k, column g), (k + 8, g). */
template <typename T>
inline void multiply(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    uint64_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    uint32_t lane = emu.now->index % 32;
    emu_collective(mine, 6, [&](const emu_meeting &m) {
        auto half = [](uint64_t word, uint32_t j) {
            return emu_number<T>((uint16_t)(word >> 16 * j));
        };
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            for (uint32_t k = 0; k < 16; k++) {
                uint32_t a_lane = row % 8 * 4 + k % 8 / 2, b_lane = column * 4 + k % 8 / 2;
                float x = half(m.taken[a_lane][row / 8 + k / 8 * 2], k % 2);
                d[i] += x * half(m.taken[b_lane][4 + k / 8], k % 2);
            }
        }
        return 0;
    });
}

/* --- Hopper */

inline void barrier_init(uint32_t barrier, uint32_t arrivals)
{
    emu_at(barrier, 8);
    emu_barrier b;
    b.wanted = b.left = (int)arrivals;
    emu.barriers[barrier] = b;
}
inline void barrier_inits_end()
{
}
inline emu_barrier &emu_barrier_at(uint32_t address)
{
    auto found = emu.barriers.find(address);
    if (found == emu.barriers.end() || address % 8) {
        fprintf(stderr, "cuda_emulator: no barrier at %u\n", address);
        abort();
    }
    return found->second;
}
inline void emu_settle(emu_barrier &b)
{
    if (b.left < 0) {
        fprintf(stderr, "cuda_emulator: too many arrivals at a barrier\n");
        abort();
    }
    if (b.left == 0 && b.bytes == 0) {
        b.phase++;
        b.left = b.wanted;
        emu.moved = true;
    }
}
inline void barrier_arrive(uint32_t barrier)
{
    emu_barrier &b = emu_barrier_at(barrier);
    b.left--;
    emu_settle(b);
}
inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    emu_barrier &b = emu_barrier_at(barrier);
    b.bytes += bytes;
    b.left--;
    emu_settle(b);
}
inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    while ((emu_barrier_at(barrier).phase & 1) == parity)
        emu_yield();
}

/* Numbers past the tensor are zeros, and the barrier counts the whole box all the same. */
inline void copy_box(uint32_t to, const CUtensorMap *map, int32_t c0, int32_t c1, uint32_t barrier)
{
    emu_map m;
    memcpy(&m, map, sizeof m);
    if (to % 1024) {
        fprintf(stderr, "cuda_emulator: a box to %u\n", to);
        abort();
    }
    emu.flying.push_back([=]() {
        for (int r = 0; r < m.box_rows; r++)
            for (int c = 0; c < 64; c++) {
                int64_t row = c1 + r, column = c0 + c;
                uint16_t v = 0;
                if (row >= 0 && row < m.rows && column >= 0 && column < m.columns)
                    memcpy(&v, m.base + 2 * (row * m.columns + column), 2);
                uint32_t at = emu_swizzled(to + (uint32_t)(r * 128 + c * 2));
                memcpy(emu_at(at, 2), &v, 2);
            }
        emu_barrier &b = emu_barrier_at(barrier);
        b.bytes -= m.box_rows * 128;
        emu_settle(b);
    });
    emu.moved = true;
}
inline void prefetch_map(const CUtensorMap *)
{
}
inline void fence_async()
{
}
template <int REGISTERS> inline void registers_take()
{
}
template <int REGISTERS> inline void registers_give()
{
}

/* Element (mn, k) of an operand: the canonical layouts of the 128-byte swizzle.  Along the sum,
 * rows of 128 bytes in groups of 8, `stride` apart; across it, rows of 64 elements of mn for one k,
 * 8 of them a group, groups of k `stride` apart, groups of mn `leading` apart. */
inline uint16_t emu_operand(uint64_t descriptor, int across, uint32_t mn, uint32_t k)
{
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != 1 || (descriptor >> 49 & 7) != 0) {
        fprintf(stderr, "cuda_emulator: a descriptor that is not the 128-byte swizzle's\n");
        abort();
    }
    uint32_t at = across ? mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * 2
                         : mn / 8 * stride + mn % 8 * 128 + k * 2;
    return emu_half_at(emu_swizzled(start + at));
}

/* This thread's registers of a 64 x n product: rows 16 warp + lane / 4 (+ 8), columns in groups of
 * 8, two neighbours a lane. */
inline void emu_multiply(const emu_product &p)
{
    uint32_t t = emu.now->index % 128;
    uint32_t rows[2] = {t / 32 * 16 + t % 32 / 4, t / 32 * 16 + t % 32 / 4 + 8};
    float a[2][16];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 16; k++)
            a[r][k] = p.number(emu_operand(p.a, p.a_across, rows[r], k));
    for (int i = 0; i < p.n / 2; i++) {
        uint32_t column = (uint32_t)i / 4 * 8 + t % 4 * 2 + (uint32_t)(i & 1);
        float sum = p.add_to ? p.d[i] : 0.0f;
        for (uint32_t k = 0; k < 16; k++)
            sum += a[i >> 1 & 1][k] * p.number(emu_operand(p.b, p.b_across, column, k));
        p.d[i] = sum;
    }
}
template <typename T, int N, int A_ACROSS, int B_ACROSS> struct product {
    static void add(float (&d)[N / 2], uint64_t a, uint64_t b, int add_to)
    {
        emu.now->products_open.push_back({d, a, b, N, A_ACROSS, B_ACROSS, add_to, emu_number<T>});
    }
};
inline void products_begin()
{
}
inline void products_end()
{
    emu.now->products.push_back(emu.now->products_open);
    emu.now->products_open.clear();
}
template <int LEFT> inline void products_wait()
{
    auto &queue = emu.now->products;
    while (queue.size() > LEFT || (!queue.empty() && emu_random() % 16 == 0)) {
        for (const emu_product &p : queue.front())
            emu_multiply(p);
        queue.erase(queue.begin());
    }
}

/* A map as copy_box wants it. */
inline CUtensorMap emu_make_map(const void *base, int64_t rows, int64_t columns, int box_rows)
{
    CUtensorMap map = {};
    emu_map m = {(const uint8_t *)base, rows, columns, box_rows};
    memcpy(&map, &m, sizeof m);
    return map;
}

#endif
