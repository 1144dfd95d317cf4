/*
 * All forms have the same items.  Where channels are rows, an item is a row, or for codes the part
 * of a block of rows; where they are columns, it is what a channel group has of one row.  So the
 * forms follow from the number of rows and items and from two questions: whether rows of a group
 * follow each other or are interleaved, and whether the file has channels as rows or as columns.
 *
 * Codes are decoded, and values rounded, only as matrices of a file:
 *
 *     part of a bundle    | g0 gate | g0 up | g1 gate | g1 up | ...     and the same of its scales
 *                              |                 |
 *                              v  fm_move        v
 *     cut of a file       | g0 gate   | g1 gate   | ...                 codes, scales: N x K
 *                              |  fm_scheme_decode, or encode and decode (formats/quant)
 *                              v
 *     values              | g0 gate   | g1 gate   | ...                 N x K
 *                              |  fm_move
 *                              v
 *     part                | g0 gate | g0 up | g1 gate | g1 up | ...     rows of the online layout
 *
 * Invariants:
 *   1. A cut's rows are inside a channel group of its part, and numbers of channels are whole
 *      groups (fm_forms_of).
 *   2. A cut and the padding after it fill the file's cut, each byte once (fm_forms_of).
 *   3. The cuts of a part fill its rows: their sizes add up to the part's (fm_forms_values).
 *   4. Every block of a matrix has one scale (decode_cut).
 */
#include "lib/model/forms.h"

#include <assert.h>

#include "lib/base/pool.h"

bool fm_forms_has(const struct fm_packed *packed, int plane, const struct fm_expert_cut *cut)
{
    return plane < 0 ||
           (fm_packed_find(packed, cut->of, plane) && !(cut->columns && cut->rows > 1));
}

/* The box of a cut's channels. */
static struct fm_box box_of(const struct fm_config *c, const struct fm_packed *packed, int plane,
                            enum fm_dtype dtype, const struct fm_expert_cut *cut, uint64_t channels)
{
    size_t rows = (size_t)cut->rows, row = (size_t)fm_expert_part_row(cut->of, c->H);
    size_t element = (size_t)fm_dtype_bits(dtype) / 8;
    if (plane >= 0) {
        const struct fm_packed_part *part = fm_packed_find(packed, cut->of, plane);
        return (struct fm_box){(size_t)channels / (size_t)packed->group, rows, part->items,
                               part->item};
    }
    if (cut->columns)
        return (struct fm_box){(size_t)channels, rows, row, element};
    return (struct fm_box){(size_t)channels, rows, 1, row * element};
}

struct fm_forms fm_forms_of(const struct fm_config *c, const struct fm_packed *packed, int plane,
                            enum fm_dtype dtype, const struct fm_expert_cut *cut, uint64_t channels,
                            uint64_t stored)
{
    assert(fm_forms_has(packed, plane, cut) && channels <= stored);
    assert(plane < 0 || /* invariant 1 */
           (channels % (uint64_t)packed->group == 0 && stored % (uint64_t)packed->group == 0));
    const struct fm_box box = box_of(c, packed, plane, dtype, cut, channels);
    size_t all = (size_t)fm_expert_part_rows(c->expert, cut->of), s = box.size;
    assert(cut->first >= 0 && (size_t)cut->first + box.rows <= all && s > 0);
    size_t groups = (size_t)stored / (plane < 0 ? 1 : (size_t)packed->group);
    /* In the part, the elements of a row are adjacent, and whole rows are interleaved. */
    size_t part_row = cut->columns ? box.items * s : s, part_item = cut->columns ? s : all * s;
    struct fm_forms f = {.box = box,
                         .part = {all * box.items * s, part_row, part_item},
                         .file = {box.rows * box.items * s, s, box.rows * s},
                         .part_first = (size_t)cut->first * part_row,
                         .part_group = all * box.items * s,
                         .file_bytes = groups * box.rows * box.items * s,
                         .padding = box};
    if (cut->columns)
        f.file = (struct fm_form){box.rows * s, s, groups * box.rows * s};
    f.padding.groups = groups - box.groups;
    f.file_padding = box.groups * f.file.group;
    assert(fm_box_bytes(&f.box) + fm_box_bytes(&f.padding) == f.file_bytes); /* invariant 2 */
    return f;
}

struct fm_quantise_matrix fm_forms_rows(const struct fm_config *c, enum fm_weight_part of,
                                        const void *part, enum fm_dtype dtype, uint64_t channels)
{
    size_t rows = (size_t)fm_expert_part_rows(c->expert, of) * (size_t)channels, H = (size_t)c->H;
    return (struct fm_quantise_matrix){part, H * (size_t)fm_dtype_bits(dtype) / 8, dtype, rows, H};
}

struct fm_quantise_matrix fm_forms_matrix(const struct fm_config *c,
                                          const struct fm_expert_cut *cut,
                                          const struct fm_quantise_matrix *part)
{
    size_t k = part->rows / (size_t)fm_expert_part_rows(c->expert, cut->of);
    size_t wide = k * (size_t)cut->rows;
    const struct fm_forms f = fm_forms_of(c, NULL, -1, part->dtype, cut, k, k);
    struct fm_quantise_matrix w = *part;
    if (!cut->columns) {
        w.at += k ? f.part_first : 0;
        w.stride = cut->rows == 1 ? f.part.group : part->stride;
        w.rows = wide;
        return w;
    }
    char *at = fm_scratch(f.file_bytes + 1);
    if (k)
        fm_move(at, &f.file, part->at + f.part_first, &f.part, &f.box, NULL);
    return (struct fm_quantise_matrix){at, f.file_bytes / part->columns, part->dtype, part->columns,
                                       wide};
}

/* The bytes of a cut in a plane of codes as a file has them, in scratch; `part` has `channels`
 * channels. */
static char *take_plane(size_t *size, const struct fm_packed *p, const struct fm_config *c,
                        int plane, const struct fm_expert_cut *cut, uint64_t channels,
                        const char *part)
{
    const struct fm_forms f = fm_forms_of(c, p, plane, FM_U8, cut, channels, channels);
    char *file = fm_scratch(f.file_bytes);
    fm_move(file, &f.file, part + f.part_first, &f.part, &f.box, NULL);
    *size = f.file_bytes;
    return file;
}

/* Decode a cut of `channels` channels, a matrix of a file, and move it to `rows`; return its bytes
 * there. */
static size_t decode_cut(char *rows, enum fm_dtype dtype, const struct fm_packed *p,
                         const struct fm_config *c, const struct fm_expert_cut *cut,
                         uint64_t channels, const char *codes, const char *scales, float factor)
{
    size_t N = cut->columns ? (size_t)c->H : (size_t)channels,
           K = cut->columns ? (size_t)channels : (size_t)c->H, size;
    const char *code = take_plane(&size, p, c, 0, cut, channels, codes);
    size_t count = fm_scheme_blocks(&p->scheme, N, K);
    if (fm_packed_find(p, cut->of, 1)) {
        scales = take_plane(&size, p, c, 1, cut, channels, scales);
        assert(size * 8 == count * (size_t)fm_dtype_bits(p->scales)); /* invariant 4 */
    }
    float *scale = fm_scratch(count * sizeof *scale), *wide = fm_scratch(N * K * sizeof *wide);
    fm_storage_scales(scale, p->scheme.storage, scales, p->scales, count, factor);
    fm_scheme_decode(wide, &p->scheme, code, scale, N, K);
    const struct fm_forms f = fm_forms_of(c, NULL, -1, dtype, cut, channels, channels);
    void *values = dtype == FM_F32 ? wide : fm_scratch(f.file_bytes);
    if (dtype != FM_F32)
        fm_dtype_from_f32(values, wide, dtype, N * K);
    fm_move(rows + f.part_first, &f.part, values, &f.file, &f.box, NULL);
    return f.file_bytes;
}

/* Values that are decoded at a time, so that they stay in the cache. */
#define SOME ((uint64_t)1 << 16)

void fm_forms_values(void *rows, enum fm_dtype dtype, const struct fm_packed *p,
                     const struct fm_config *c, enum fm_weight_part of, uint64_t channels,
                     const void *codes, const void *scales, const float *factor)
{
    static const enum fm_weight_part parts[] = {FM_PART_GATE, FM_PART_UP};
    const struct fm_packed_part *part = fm_packed_find(p, of, 0), *own = fm_packed_find(p, of, 1);
    uint64_t group = (uint64_t)p->group, H = (uint64_t)c->H, some = SOME / H / group * group, n;
    size_t row = (size_t)H * (size_t)part->rows * (size_t)fm_dtype_bits(dtype) / 8;
    some = some > group ? some : group;
    for (uint64_t at = 0; at < channels; at += n) {
        n = channels - at < some ? channels - at : some;
        size_t left = (size_t)n * row;
        for (int i = 0; i < part->rows; i++) {
            const struct fm_expert_cut cut =
                fm_expert_cut(c->expert, of == FM_PART_DOWN_T ? FM_PART_DOWN : parts[i]);
            struct fm_mark mark = fm_scratch_mark();
            left -= decode_cut((char *)rows + at * row, dtype, p, c, &cut, n,
                               (const char *)codes + fm_packed_bytes(p, part, at),
                               (const char *)scales + (own ? fm_packed_bytes(p, own, at) : 0),
                               factor[i]);
            fm_scratch_release(mark);
        }
        assert(left == 0); /* invariant 3 */
    }
}
