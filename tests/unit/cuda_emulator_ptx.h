/*
 * The functions of kernels/clip/cuda/clip_cuda_ptx.cuh for the emulated GPU of
 * tests/unit/cuda_emulator.h.  They are written from the layouts that the PTX ISA documents, and
 * not from kernels/clip/cuda/clip_cuda_maps.h, so that a wrong swizzle, descriptor, fragment or
 * phase also gives wrong numbers here.
 */
#ifndef TESTS_CUDA_EMULATOR_PTX_H
#define TESTS_CUDA_EMULATOR_PTX_H

#include "tests/unit/cuda_emulator.h"

#define FM_CLIP_CUDA_PTX_CUH /* this file replaces it */
#define SHARED_MEMORY(name) uint8_t *name = emu.block.shared.data()

/* --- shared memory; address 1024 is its first byte, so that 0 is never a valid address */

#define EMU_BASE 1024u

inline uint32_t shared_address(const void *p)
{
    return EMU_BASE + (uint32_t)((const uint8_t *)p - emu.block.shared.data());
}
inline uint8_t *emu_at(uint32_t address, uint32_t bytes)
{
    if (address < EMU_BASE || address - EMU_BASE + bytes > emu.block.shared.size()) {
        fprintf(stderr, "cuda_emulator: shared address %u + %u is outside\n", address, bytes);
        abort();
    }
    return emu.block.shared.data() + (address - EMU_BASE);
}
inline void shared_store(uint32_t to, int32_t v)
{
    memcpy(emu_at(to, 4), &v, 4);
}
inline int32_t shared_load(uint32_t from)
{
    int32_t v;
    memcpy(&v, emu_at(from, 4), 4);
    return v;
}
/* An ordinary store of data that products may read. */
inline void shared_clear16(uint32_t to)
{
    memset(emu_at(to, 16), 0, 16);
    memset(&emu.block.unfenced[to - EMU_BASE], 1, 16);
    for (uint32_t i = 0; i < 16; i++)
        emu.now->stored.push_back(to - EMU_BASE + i);
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

/* Four 8 x 8 matrices, row r of matrix i at the address of lane 8 i + r; from each, lane l
 * receives the numbers (row l / 4, columns 2 (l % 4), + 1), or those of the transpose. */
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
    emu.block.barriers[barrier] = b;
}
inline void barrier_inits_end()
{
}
inline emu_barrier &emu_barrier_at(uint32_t address)
{
    auto found = emu.block.barriers.find(address);
    if (found == emu.block.barriers.end() || address % 8) {
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
inline void barrier_wait(uint32_t barrier, uint32_t parity, const char *, uint32_t, uint32_t)
{
    while ((emu_barrier_at(barrier).phase & 1) == parity)
        emu_yield();
}

/* Numbers past the tensor are zeros; the barrier still counts the whole box. */
inline void copy_box(uint32_t to, const CUtensorMap *map, int32_t c0, int32_t c1, uint32_t barrier)
{
    emu_map m;
    memcpy(&m, map, sizeof m);
    if (to % 1024) {
        fprintf(stderr, "cuda_emulator: a box to %u\n", to);
        abort();
    }
    auto land = [=]() {
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
    };
    emu.flying.push_back(land);
    emu.moved = true;
}
inline uint64_t policy_once()
{
    return 1;
}
inline void copy_box_by(uint32_t to, const CUtensorMap *map, int32_t c0, int32_t c1,
                        uint32_t barrier, uint64_t)
{
    copy_box(to, map, c0, c1, barrier);
}
inline void prefetch_map(const CUtensorMap *)
{
}
inline void fence_async()
{
    for (uint32_t at : emu.now->stored)
        emu.block.unfenced[at] = 0;
    emu.now->stored.clear();
}
inline void named_barrier(int id, int threads)
{
    emu_meet(emu.block.halls[id], threads);
}
template <int REGISTERS> inline void registers_take()
{
}
template <int REGISTERS> inline void registers_give()
{
}

/* Element (mn, k) of an operand: the canonical layouts of the 128-byte swizzle.  If not `across`,
 * rows of 128 bytes along k, in groups of 8 that are `stride` apart.  If `across`, rows of 64
 * elements along mn for one k, in groups of 8; groups of k are `stride` apart, and groups of mn
 * `leading` apart. */
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
    uint32_t address = emu_swizzled(start + at);
    uint16_t number = emu_half_at(address);
    if (emu.block.unfenced[address - EMU_BASE])
        emu_stop("another proxy reads stored data that was not fenced");
    return number;
}

/* This thread's registers of a 64 x n product: rows 16 warp + lane / 4 (+ 8), columns in groups of
 * 8, two adjacent ones per lane. */
inline void emu_multiply(const emu_product &p)
{
    uint32_t t = emu.now->index % 128;
    uint32_t rows[2] = {t / 32 * 16 + t % 32 / 4, t / 32 * 16 + t % 32 / 4 + 8};
    float a[2][16];
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t k = 0; k < 16; k++)
            a[r][k] = p.number(emu_operand(p.a, p.a_across, rows[r], k));
    std::vector<float> &sums = emu.now->sums[p.d];
    if (sums.empty())
        sums.assign(p.d, p.d + p.n / 2);
    for (int i = 0; i < p.n / 2; i++) {
        uint32_t column = (uint32_t)i / 4 * 8 + t % 4 * 2 + (uint32_t)(i & 1);
        float sum = p.add_to ? sums[(size_t)i] : 0.0f;
        for (uint32_t k = 0; k < 16; k++)
            sum += a[i >> 1 & 1][k] * p.number(emu_operand(p.b, p.b_across, column, k));
        sums[(size_t)i] = sum;
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
    __syncwarp(); /* .sync.aligned: no lane continues before the others have read */
}

template <int N> inline void products_fence(float (&d)[N])
{
    auto at = emu.now->sums.find(d);
    if (at == emu.now->sums.end() || !emu.now->products.empty() || !emu.now->products_open.empty())
        return;
    std::copy(at->second.begin(), at->second.end(), d);
    emu.now->sums.erase(at);
}

/* Make a map for copy_box. */
inline CUtensorMap emu_make_map(const void *base, int64_t rows, int64_t columns, int box_rows)
{
    CUtensorMap map = {};
    emu_map m = {(const uint8_t *)base, rows, columns, box_rows};
    memcpy(&map, &m, sizeof m);
    return map;
}

#endif
