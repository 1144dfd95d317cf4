/*
 * The functions of kernels/clip/cuda/clip_cuda_ptx.cuh for the emulated GPU of
 * tests/unit/cuda_emulator.h.  They are written from the layouts that the PTX ISA documents, and
 * not from kernels/clip/cuda/clip_cuda_maps.h, so that a wrong fragment also gives wrong numbers
 * here.
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

#endif
