/*
 * Compare fm_move with a reference mover: one loop over the elements of an expert's matrices, whose
 * places follow from the shapes in fm-bundle(5) and lib/block/weight.h, not from strides.  All
 * pairs of a cut of a file and a plane of a format are compared, or must be refused; the table of
 * them is printed.  Elements are random bits: every code occurs, and so do NaN, negative zero and
 * subnormal numbers, none of which may change.
 */
#include "formats/quant/formats.h"
#include "lib/block/clamped.h"
#include "lib/model/packed.h"
#include "tests/unit/test.h"

/* ---- any box between any two forms ---- */

enum { AXES = 3 };

/* Give the axes of a box strides, innermost first in a random order, with gaps; returns the bytes
 * that they span. */
static size_t random_form(struct fm_form *form, const struct fm_box *box)
{
    size_t *stride[AXES] = {&form->group, &form->row, &form->item};
    size_t n[AXES] = {box->groups, box->rows, box->items}, extent = box->size;
    bool done[AXES] = {false};
    for (int k = 0; k < AXES; k++) {
        int a = rand() % AXES;
        while (done[a])
            a = (a + 1) % AXES;
        done[a] = true;
        *stride[a] = extent + (rand() % 4 ? 0 : (size_t)(rand() % 9));
        extent = n[a] ? (n[a] - 1) * *stride[a] + extent : extent;
    }
    return extent;
}

static unsigned char *random_bytes(size_t n)
{
    unsigned char *b = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        b[i] = (unsigned char)(i < 256 ? i : (size_t)(rand() >> 7));
    return b;
}

/* A random permutation of n groups of `group` channels that stay together. */
static int32_t *random_order(size_t n, size_t group)
{
    int32_t *order = malloc((n * group + 1) * sizeof *order);
    int32_t *at = malloc((n + 1) * sizeof *at);
    for (size_t j = 0; j < n; j++)
        at[j] = (int32_t)j;
    for (size_t j = n; j-- > 1;) {
        size_t k = (size_t)rand() % (j + 1);
        int32_t t = at[j];
        at[j] = at[k];
        at[k] = t;
    }
    for (size_t j = 0; j < n * group; j++)
        order[j] = at[j / group] * (int32_t)group + (int32_t)(j % group);
    free(at);
    return order;
}

static void reference(unsigned char *to, const struct fm_form *t, const unsigned char *from,
                      const struct fm_form *f, const struct fm_box *box, const int32_t *order)
{
    for (size_t g = 0; g < box->groups; g++)
        for (size_t r = 0; r < box->rows; r++)
            for (size_t i = 0; i < box->items; i++)
                for (size_t b = 0; b < box->size; b++)
                    to[g * t->group + r * t->row + i * t->item + b] =
                        from[(order ? (size_t)order[g] : g) * f->group + r * f->row + i * f->item +
                             b];
}

/* Sizes on both sides of a tile, sizes of numbers, and others. */
TEST(any_box_is_moved_between_any_two_forms)
{
    static const size_t counts[] = {1, 2, 3, 7, 64, 65, 130};
    static const size_t bytes[] = {1, 2, 3, 4, 5, 8, 16, 24};
    for (int round = 0; round < 3000; round++) {
        struct fm_box box = {counts[rand() % 7], counts[rand() % 4], counts[rand() % 7],
                             bytes[rand() % 8]};
        if (round % 100 == 0)
            *(round % 200 ? &box.groups : &box.items) = 0;
        struct fm_form t, f;
        size_t to_bytes = random_form(&t, &box), from_bytes = random_form(&f, &box);
        if (round % 7 == 0)
            f.item = 0; /* repeated */
        unsigned char *from = random_bytes(from_bytes);
        unsigned char *want = malloc(to_bytes), *got = malloc(to_bytes);
        int32_t *order = round % 2 ? random_order(box.groups, 1) : NULL;
        memset(want, 0xa5, to_bytes); /* bytes between the items are not written */
        memset(got, 0xa5, to_bytes);
        reference(want, &t, from, &f, &box, order);
        fm_move(got, &t, from, &f, &box, order);
        assert_memory_equal(got, want, to_bytes);
        memset(want, 0xa5, to_bytes);
        memset(got, 0xa5, to_bytes);
        const unsigned char blank = 0x88;
        reference(want, &t, &(unsigned char[24]){[0 ... 23] = blank}[0], &(struct fm_form){0}, &box,
                  NULL);
        fm_move_blank(got, &t, &box, blank);
        assert_memory_equal(got, want, to_bytes);
        free(from);
        free(want);
        free(got);
        free(order);
    }
}

/* ---- all cuts in all formats ---- */

/* Formats: block sizes of the scales, bits of a code and of a scale; those of plain numbers are 0,
 * with the bits of an element.  A group has whole blocks and whole bytes. */
static const struct fm_storage int4 = {
    .name = "int4", .code = FM_CODE_INT4, .codes = FM_I32, .whole = true};
static const struct format {
    const char *name, *rounded; /* the format of --weights with this storage */
    const struct fm_storage *storage;
    int rows, columns, bits, scale_bits;
    enum fm_dtype dtype, scales; /* of values; of scales */
    size_t group;
    size_t I, H;
} formats[] = {
    {"bf16", NULL, NULL, 0, 0, 16, 0, FM_BF16, FM_U8, 1, 195, 131},
    {"f32", NULL, NULL, 0, 0, 32, 0, FM_F32, FM_U8, 1, 77, 133},
    {"fp8 4x4", "fp8-block", &fm_fp8, 4, 4, 8, 32, FM_BF16, FM_F32, 4, 68, 37},
    {"fp8 rows", "fp8", &fm_fp8, 1, 0, 8, 16, FM_BF16, FM_BF16, 1, 67, 65},
    {"int4", "w4a16:32", &int4, 1, 32, 4, 16, FM_BF16, FM_BF16, 32, 192, 160},
    {"int4 rows", "w4a16", &int4, 1, 0, 4, 16, FM_BF16, FM_BF16, 8, 72, 48},
    {"nvfp4", "nvfp4", &fm_nvfp4, 1, 16, 4, 8, FM_BF16, FM_F8_E4M3, 16, 80, 48},
    {"mxfp4", "mxfp4", &fm_mxfp4, 1, 32, 4, 8, FM_BF16, FM_U8, 32, 128, 96},
    {"mxfp8", "mxfp8", &fm_mxfp8, 1, 32, 8, 8, FM_BF16, FM_U8, 32, 96, 64},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static const struct cutting {
    const char *name;
    enum fm_weight_part part;
} cuttings[] = {
    {"gate", FM_PART_GATE},
    {"up", FM_PART_UP},
    {"gate, then up", FM_PART_GATE_THEN_UP},
    {"gate_up columns", FM_PART_GATE_UP_T},
    {"gate_up", FM_PART_GATE_UP},
    {"down", FM_PART_DOWN},
    {"down rows", FM_PART_DOWN_T},
    {"biases", FM_PART_BIAS},
};
enum { CUTTINGS = sizeof cuttings / sizeof *cuttings };

/* One element of a plane: row r of block c of channels (of `wide` channels), block h of the hidden
 * size. */
struct element {
    size_t c, r, h;
};

/* A plane of one part of an expert. */
struct plane {
    const struct format *format;
    enum fm_weight_part part; /* of the file */
    bool down, bias;
    int plane, bits;
    size_t rows, high, wide; /* rows of a channel; hidden size and channels of a block */
};

static struct plane plane_of(const struct format *format, enum fm_weight_part part, int plane)
{
    struct plane p = {.format = format, .part = part, .plane = plane, .bits = format->bits};
    p.down = part == FM_PART_DOWN || part == FM_PART_DOWN_T;
    p.bias = part == FM_PART_BIAS;
    p.rows = p.down ? 1 : 2;
    p.high = p.wide = 1;
    if (plane == 1) {
        size_t block_rows = (size_t)format->rows, block_columns = (size_t)format->columns;
        p.bits = format->scale_bits;
        p.wide = p.down ? block_columns : block_rows;
        p.high = p.down ? block_rows : block_columns ? block_columns : format->H;
    }
    return p;
}

static size_t across(const struct plane *p)
{
    return p->bias ? 1 : (p->format->H + p->high - 1) / p->high;
}

/* The element's number in the bundle's tensor: gate_up (I / wide, r, H / high), down (I / group,
 * H / high, group / wide). */
static size_t in_bundle(const struct plane *p, struct element x)
{
    size_t n = across(p), group = p->plane < 0 ? 1 : p->format->group / p->wide;
    return p->down ? (x.c / group * n + x.h) * group + x.c % group
                   : (x.c * p->rows + x.r) * n + x.h;
}

/* The element's number in a file with that many blocks of channels. */
static size_t in_file(const struct plane *p, struct element x, size_t blocks)
{
    size_t n = across(p);
    switch (p->part) {
    case FM_PART_GATE:
    case FM_PART_UP:
        return x.c * n + x.h;
    case FM_PART_GATE_THEN_UP:
        return (x.r * blocks + x.c) * n + x.h;
    case FM_PART_GATE_UP_T:
        return x.h * blocks * p->rows + x.c * p->rows + x.r;
    case FM_PART_DOWN:
        return x.h * blocks + x.c;
    default:
        return in_bundle(p, x);
    }
}

static bool is_in_file(const struct plane *p, size_t r)
{
    return p->part == FM_PART_GATE ? r == 0 : p->part == FM_PART_UP ? r == 1 : true;
}

/* Copy element number j of `from` to number i of `to`, bit by bit. */
static void copy_element(unsigned char *to, size_t i, const unsigned char *from, size_t j, int bits)
{
    for (int b = 0; b < bits; b++) {
        size_t at = i * (size_t)bits + (size_t)b, source = j * (size_t)bits + (size_t)b;
        unsigned bit = from[source / 8] >> source % 8 & 1u;
        to[at / 8] = (unsigned char)((to[at / 8] & ~(1u << at % 8)) | bit << at % 8);
    }
}

/* The reference mover: the first `channels` channels of the rows that the file has, in an order of
 * channels, or NULL. */
static void move_elements(const struct plane *p, unsigned char *bundle, unsigned char *file,
                          bool to_file, size_t channels, size_t stored, const int32_t *order)
{
    for (size_t c = 0; c < channels / p->wide; c++)
        for (size_t r = 0; r < p->rows; r++)
            for (size_t h = 0; h < across(p) && is_in_file(p, r); h++) {
                size_t other = order ? (size_t)order[c * p->wide] / p->wide : c;
                size_t i = in_bundle(p, (struct element){c, r, h});
                size_t j = in_file(p, (struct element){other, r, h}, stored / p->wide);
                if (to_file)
                    copy_element(file, j, bundle, i, p->bits);
                else
                    copy_element(bundle, i, file, j, p->bits);
            }
}

/* Pairs that occur in no file: codes of gate and up as columns of one matrix, biases as codes, and
 * scales that have no channels. */
static bool is_refused(const struct plane *p)
{
    return p->plane >= 0 && (p->part == FM_PART_GATE_UP_T || p->bias || p->wide == 0);
}

struct model {
    struct fm_config config;
    struct fm_packed_layers packed;
};

static void make_model(struct model *m, const struct format *f)
{
    m->config = (struct fm_config){.E = 1, .M = 1, .I = (int)f->I, .H = (int)f->H};
    m->config.expert = &fm_swiglu_clamped;
    m->config.scheme = (struct fm_scheme){f->storage, f->rows, f->columns};
    if (f->storage)
        fm_packed_codes(&m->packed, &m->config, f->dtype, f->scales);
    else
        fm_packed_plain(&m->packed, &m->config, f->dtype);
    assert_int_equal(fm_packed_at(&m->packed, 0)->group, f->group);
}

/* All cuts of the part; returns their number. */
static int all_cuts(struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX], const struct model *m,
                    const struct plane *p)
{
    return fm_expert_cuts(cut, m->config.expert, p->part);
}

/* Compare moves of `channels` channels with a file of `stored`; an order needs all of them. */
static void compare(const struct model *m, const struct plane *p, size_t channels, size_t stored,
                    const int32_t *order, int blank)
{
    struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
    struct fm_packed_forms f[FM_EXPERT_CUTS_MAX];
    size_t group = p->plane < 0 ? 1 : p->format->group, file_bytes = 0;
    int cuts = all_cuts(cut, m, p);
    for (int i = 0; i < cuts; file_bytes += f[i++].file_bytes)
        f[i] = fm_packed_forms(&m->config, fm_packed_at(&m->packed, 0), p->plane, p->format->dtype,
                               &cut[i], channels, stored);
    size_t part_bytes = channels / group * f[0].part_group;
    unsigned char *file = random_bytes(file_bytes), *part = random_bytes(part_bytes);
    unsigned char *want = malloc(part_bytes + 1), *got = malloc(part_bytes + 1), *at = file;

    memcpy(want, part, part_bytes); /* rows of other cuts stay as they are */
    memcpy(got, part, part_bytes);
    move_elements(p, want, file, false, channels, stored, order);
    for (int i = 0; i < cuts; at += f[i++].file_bytes) {
        int32_t *groups = order ? malloc(channels / group * sizeof *groups) : NULL;
        for (size_t g = 0; order && g < channels / group; g++)
            groups[g] = order[g * group] / (int32_t)group;
        fm_move(got + f[i].part_first, &f[i].part, at, &f[i].file, &f[i].box, groups);
        free(groups);
    }
    assert_memory_equal(got, want, part_bytes);
    free(want);
    free(got);

    if (!order) {
        want = malloc(file_bytes + 1), got = at = malloc(file_bytes + 1);
        memset(want, blank, file_bytes);
        move_elements(p, part, want, true, channels, stored, NULL);
        for (int i = 0; i < cuts; at += f[i++].file_bytes) {
            fm_move(at, &f[i].file, part + f[i].part_first, &f[i].part, &f[i].box, NULL);
            fm_move_blank(at + f[i].file_padding, &f[i].file, &f[i].padding, blank);
        }
        assert_memory_equal(got, want, file_bytes);
        free(want);
        free(got);
    }
    free(file);
    free(part);
}

static void compare_widths(const struct model *m, const struct plane *p)
{
    size_t I = p->format->I, group = p->plane < 0 ? 1 : p->format->group;
    const size_t widths[] = {0, group, I / 2 / group * group, I};
    int32_t *order = random_order(I / p->format->group, p->format->group);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k <= i; k++)
            compare(m, p, widths[k], widths[i], NULL, k % 2 ? 0x88 : 0);
    compare(m, p, I, I, order, 0);
    free(order);
}

TEST(every_cut_is_moved_in_every_format_that_has_it)
{
    int pairs = 0, refused = 0;
    for (int n = -1; n < CUTTINGS; n++) {
        print_message("%-16s", n < 0 ? "" : cuttings[n].name);
        for (int i = 0; i < FORMATS; i++) {
            struct model m;
            char cell[24] = "";
            make_model(&m, &formats[i]);
            for (int plane = formats[i].storage ? 0 : -1; plane < FM_PLANES; plane++) {
                if (n < 0 || (plane >= 0 && !formats[i].storage))
                    continue;
                struct plane p = plane_of(&formats[i], cuttings[n].part, plane);
                struct fm_expert_cut cut[FM_EXPERT_CUTS_MAX];
                bool moved = !is_refused(&p);
                for (int k = all_cuts(cut, &m, &p); k-- > 0;)
                    assert_int_equal(fm_packed_has(fm_packed_at(&m.packed, 0), plane, &cut[k]),
                                     moved);
                if (moved)
                    compare_widths(&m, &p);
                pairs += moved;
                refused += !moved;
                snprintf(cell + strlen(cell), sizeof cell - strlen(cell), "%s%s",
                         cell[0] ? "/" : "", moved ? "yes" : "no");
            }
            print_message(" %-10s", n < 0 ? formats[i].name : cell);
        }
        print_message("\n");
    }
    print_message("%d pairs moved, %d refused; codes/scales\n", pairs, refused);
    assert_true(pairs > 80 && refused > 20);
}

/* ---- channels ---- */

/* A matrix of a part of values, by a loop over its elements: gate (0), up (1) or down (2). */
static uint16_t *matrix_of(const uint16_t *part, int matrix, size_t k, size_t H)
{
    uint16_t *w = malloc((k * H + 1) * sizeof *w);
    for (size_t c = 0; c < k; c++)
        for (size_t h = 0; h < H; h++)
            if (matrix < 2)
                w[c * H + h] = part[(2 * c + (size_t)matrix) * H + h];
            else
                w[h * k + c] = part[c * H + h];
    return w;
}

/* Compare a cut with the matrix w (N, K) that is rounded alone with the factor, and decoded. */
static void compare_rounded(const struct fm_channels *c, const struct fm_channels *decoded,
                            const struct format *f, enum fm_weight_part cut, const uint16_t *w,
                            size_t N, size_t K)
{
    const struct fm_scheme *scheme = &c->packed->scheme;
    const struct fm_encode_matrix own = {(const char *)w, 2 * K, FM_BF16, N, K};
    size_t codes = N * K * (size_t)f->bits / 8, blocks = fm_scheme_blocks(scheme, N, K);
    char *code = malloc(codes + 1), *scale = malloc(blocks * sizeof(float) + 1);
    float *wide = malloc((blocks + 1) * sizeof *wide), *want = malloc((N * K + 1) * sizeof *want);
    assert_true(fm_encode(code, scale, fm_quantisers_find(f->rounded), scheme, &own, c->factor[0]));
    assert_memory_equal(fm_packed_cut(c, cut, 0, c->count, c->count, 0), code, codes);
    bool has = fm_packed_find(c->packed, c->of, 1);
    assert_memory_equal(has ? fm_packed_cut(c, cut, 1, c->count, c->count, 0) : c->plane[1], scale,
                        blocks * (size_t)f->scale_bits / 8);
    fm_storage_scales(wide, f->storage, scale, f->scales, blocks, c->factor[0]);
    fm_scheme_decode(want, scheme, code, wide, N, K);
    assert_memory_equal(fm_packed_cut(decoded, cut, -1, c->count, c->count, 0), want,
                        N * K * sizeof *want);
    free(code);
    free(scale);
    free(wide);
    free(want);
}

static void round_part(const struct model *m, const struct format *f, bool down, size_t k)
{
    const struct fm_quantiser *q = fm_quantisers_find(f->rounded);
    const struct fm_packed *packed = fm_packed_at(&m->packed, 0);
    size_t H = f->H, rows = down ? 1 : 2;
    uint16_t *part = malloc((rows * k * H + 1) * sizeof *part);
    for (size_t i = 0; i < rows * k * H; i++)
        part[i] = (uint16_t)(rand() % 2 << 15 | (0x3f00 + rand() % 0x100)); /* 0.5 to 2 */
    const struct fm_encode_matrix all = {(const char *)part, 2 * H, FM_BF16, rows * k, H};
    struct fm_mark mark = fm_scratch_mark();
    struct fm_channels c = {.config = &m->config,
                            .of = down ? FM_PART_DOWN_T : FM_PART_GATE_UP,
                            .count = k,
                            .dtype = FM_BF16,
                            .plane = {part}};
    float factor;
    assert_true(fm_encode_factor(&factor, q, &packed->scheme, &all));
    assert_true(fm_packed_convert(&c, packed, q));
    struct fm_channels decoded = c;
    decoded.dtype = FM_F32;
    assert_true(fm_packed_convert(&decoded, NULL, NULL));
    for (int i = 0; i < (int)rows; i++) {
        uint16_t *w = matrix_of(part, down ? 2 : i, k, H);
        assert_true(c.factor[i] == factor);
        compare_rounded(&c, &decoded, f, fm_packed_matrix(c.of, i), w, down ? H : k, down ? k : H);
        free(w);
    }
    fm_scratch_release(mark);
    free(part);
}

/* All matrices of a part have one factor, that of all their values. */
TEST(channels_are_rounded_and_decoded_as_their_matrices)
{
    for (int i = 0; i < FORMATS; i++) {
        struct model m;
        make_model(&m, &formats[i]);
        for (int down = 0; down < 2 && formats[i].rounded; down++) {
            round_part(&m, &formats[i], down, formats[i].group);
            round_part(&m, &formats[i], down, 32 * formats[i].I); /* in several steps */
        }
    }
}

TEST_MAIN(NULL, NULL)
