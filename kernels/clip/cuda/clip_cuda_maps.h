/*
 * The layout of numbers: shared-memory swizzle, and the registers that hold the fragments of the
 * matrix instructions.  The functions use only integers and are compiled for the
 * device and for the host, where tests/unit/test_clip_cuda_emulated.cc runs whole products with
 * them, on the layouts that the PTX ISA documents.
 *
 * The mma path copies FM_CUDA_STEP (64) elements of the sum at a time, of 16 bits each:
 * 128 bytes per row, swizzled in atoms of 8 rows (1024 bytes, aligned to 1024).  A block is 64
 * rows, 8192 bytes.
 *   rows of x or h, rows of gate_up: a row belongs to one row or column of the product, and its 64
 *     elements are consecutive terms of the sum ("along the sum", K-major);
 *   down: a row is one channel, and its 64 elements are 64 columns of the product; a block is 64
 *     channels x 64 columns ("across the sum", MN-major).
 */
#ifndef FM_CLIP_CUDA_MAPS_H
#define FM_CLIP_CUDA_MAPS_H

#include "kernels/clip/cuda/clip_cuda_tiles.h"

#define FM_MAP_ROW_BYTES 128
#define FM_MAP_ATOM_BYTES 1024
#define FM_MAP_BLOCK_BYTES 8192

/* The 128-byte swizzle: 16-byte chunk c of row r of an atom is at chunk c ^ r. */
FM_HD uint32_t fm_map_swizzle(uint32_t byte)
{
    return byte ^ (byte >> 3 & 0x70);
}

/* Byte of element `column` (0..63) of row `row`, in rows that start at an atom. */
FM_HD uint32_t fm_map_byte(uint32_t row, uint32_t column)
{
    return fm_map_swizzle(row * FM_MAP_ROW_BYTES + column * 2);
}

/* Row and column of a product (16 x 8 n) that a lane holds in its accumulator register `i`: four
 * registers for every 8 columns. */
FM_HD uint32_t fm_map_d_row(uint32_t lane, uint32_t i)
{
    return lane / 4 + (i & 2) * 4;
}

FM_HD uint32_t fm_map_d_column(uint32_t lane, uint32_t i)
{
    return i / 4 * 8 + lane % 4 * 2 + (i & 1);
}

/* ldmatrix x4: the row address that `lane` supplies for the four 8 x 8 matrices of a 16 x 16 A
 * fragment stored along the sum, as row and element of the sum. */
FM_HD uint32_t fm_map_a_row(uint32_t lane)
{
    return lane & 15;
}

FM_HD uint32_t fm_map_a_k(uint32_t lane)
{
    return lane / 16 * 8;
}

/* The row address that `lane` supplies for two neighbouring 16 x 8 B fragments (registers 0,1 and
 * 2,3), as column of the product and element of the sum.  Along the sum the stored row is the
 * column; across (ldmatrix .trans) it is the element. */
FM_HD uint32_t fm_map_b_along_column(uint32_t lane)
{
    return lane / 16 * 8 + lane % 8;
}

FM_HD uint32_t fm_map_b_along_k(uint32_t lane)
{
    return lane & 8;
}

FM_HD uint32_t fm_map_b_across_column(uint32_t lane)
{
    return lane / 16 * 8;
}

FM_HD uint32_t fm_map_b_across_k(uint32_t lane)
{
    return lane & 15;
}

/*
 * A quad (4 lanes) holds, for four neighbouring groups of 8 columns, one channel per lane and
 * group: lane i has channel 4 c + i, in group c.  Two exchanges give lane i four consecutive
 * channels from 4 i on: first with lane ^ 1, for each pair of groups p: keep group 2 p + (i & 1),
 * give the other; then with lane ^ 2: keep pair i >> 1, give the other.  What a lane receives goes
 * after its own channels if the lane's bit is 0, and before them if it is 1.
 */
FM_HD uint32_t fm_map_quad_keep(uint32_t lane, uint32_t round)
{
    return lane >> round & 1;
}

#endif
