/* Test the plan of an export: its blocks, its files, and planning several members in turn. */
#include "lib/export/piece.h"
#include "lib/export/exportplan.h"
#include "tests/unit/exports.h"
#include "tests/unit/test.h"

static struct fm_opened opened;

static int open_family(void **unused)
{
    int rc = make_bundle(unused);
    GIVEN_TRY(fm_opened_open(&opened, bundle, FM_OPENED_WEIGHTS | FM_OPENED_CHECKSUMS, &given_err));
    return rc;
}

static int close_family(void **unused)
{
    (void)unused;
    fm_opened_release(&opened);
    return 0;
}

static struct fm_exportplan plan_of(int i, int index)
{
    struct fm_exportplan p;
    struct fm_export_options o = form(i);
    GIVEN_TRY(fm_exportplan_begin(&p, &opened, &o, &given_err));
    GIVEN_TRY(fm_exportplan_member(&p, index, &given_err));
    return p;
}

/* Blocks fill their tensor without a gap, in whole channels. */
static void check_tensor(const struct fm_exportplan *p, size_t i)
{
    const struct fm_planned_tensor *t = &p->tensor[i];
    uint64_t at = 0;
    assert_true((t->kind == FM_PLANNED_EXPERTS) == (t->blocks > 0));
    assert_true((t->kind == FM_PLANNED_COPY) == (t->from != NULL));
    assert_true((t->kind == FM_PLANNED_COPY) == (t->m < 0));
    for (size_t n = t->block; n < t->block + t->blocks; n++) {
        const struct fm_planned_block *b = &p->block[n];
        assert_int_equal(b->tensor, i);
        assert_int_equal(b->m, t->m);
        assert_int_equal(b->at, at);
        assert_true(fm_planned_kept(p, b) <= fm_planned_stored(p, b));
        at += b->bytes;
        if (b->part != FM_PART_GATE)
            continue;
        assert_true(n + 1 < p->blocks && b[1].part == FM_PART_UP);
        assert_true(b[1].m == b->m && b[1].e == b->e);
    }
    assert_true(t->blocks == 0 || at == t->t.size);
}

TEST(every_tensor_is_made_of_its_blocks_and_every_file_of_its_tensors)
{
    for (int i = 0; kind_of(i); i++) {
        struct fm_exportplan p = plan_of(i, 5);
        uint64_t channels = 0;
        size_t next = 0;
        for (size_t t = 0; t < p.tensors; t++)
            check_tensor(&p, t);
        for (size_t f = 0; f < p.files; f++) {
            uint64_t end = p.file[f].header_bytes;
            assert_true(p.file[f].weights == (p.file[f].tensors > 0));
            assert_true(p.file[f].tensors == 0 || p.file[f].tensor == next);
            for (; next < p.file[f].tensor + p.file[f].tensors; next++) {
                assert_int_equal(p.tensor[next].file, f);
                assert_true(p.tensor[next].t.offset >= end);
                end = p.tensor[next].t.offset + p.tensor[next].t.size;
            }
            assert_int_equal(end, p.file[f].bytes);
        }
        assert_int_equal(next, p.tensors);
        for (size_t b = 0; b < p.blocks; b++)
            if (p.block[b].part == FM_PART_DOWN || p.block[b].part == FM_PART_DOWN_T)
                channels += fm_planned_stored(&p, &p.block[b]);
        assert_int_equal(channels, fm_planned_channels_all(&p));
        fm_planned_release(&p);
    }
}

/* Change one number, and return whether the plan is still sane. */
static bool stays_sane(struct fm_exportplan *p, uint64_t *number, uint64_t other)
{
    uint64_t kept = *number;
    *number = other;
    bool sane = fm_planned_sane(p);
    *number = kept;
    return sane;
}

TEST(a_plan_with_a_gap_is_not_sane)
{
    for (int i = 0; kind_of(i); i++) {
        struct fm_exportplan p = plan_of(i, 5);
        struct fm_tensor *t = &p.tensor[p.tensors - 1].t;
        size_t b = p.blocks - 1, f = p.weight_files - 1;
        assert_true(fm_planned_sane(&p));
        assert_false(stays_sane(&p, &t->offset, t->offset + 1));
        assert_false(stays_sane(&p, &t->size, t->size + 1));
        assert_false(stays_sane(&p, &p.block[b].at, p.block[b].at + 1));
        assert_false(stays_sane(&p, &p.file[f].bytes, p.file[f].bytes + 1));
        p.widths.kept[0] = p.widths.stored[0] + 1;
        assert_false(fm_planned_sane(&p));
        fm_planned_release(&p);
    }
}

static void expect_same(const struct fm_exportplan *a, const struct fm_exportplan *b)
{
    assert_int_equal(a->tensors, b->tensors);
    assert_int_equal(a->files, b->files);
    for (size_t f = 0; f < a->files; f++) {
        assert_string_equal(a->file[f].name, b->file[f].name);
        assert_int_equal(a->file[f].bytes, b->file[f].bytes);
        assert_true((a->file[f].header == NULL) == (b->file[f].header == NULL));
        if (a->file[f].header)
            assert_memory_equal(a->file[f].header, b->file[f].header, a->file[f].header_bytes);
    }
    assert_memory_equal(a->widths.kept, b->widths.kept, GIVEN_L * GIVEN_E * sizeof(uint32_t));
    assert_memory_equal(a->widths.stored, b->widths.stored, GIVEN_L * GIVEN_E * sizeof(uint32_t));
}

/* Parts that are kept from the previous member's plan are valid for the next. */
TEST(members_planned_one_after_another_are_as_if_planned_alone)
{
    static const int order[] = {5, 6, 5, 5};
    for (int i = 0; kind_of(i); i++) {
        struct fm_exportplan p = plan_of(i, 4);
        for (size_t n = 0; n < sizeof order / sizeof *order; n++) {
            GIVEN_TRY(fm_exportplan_member(&p, order[n], &given_err));
            struct fm_exportplan alone = plan_of(i, order[n]);
            expect_same(&p, &alone);
            fm_planned_release(&alone);
        }
        fm_planned_release(&p);
    }
}

/* Blocks of a tensor that have bytes. */
static size_t count_filled(const struct fm_exportplan *p, const struct fm_planned_tensor *t)
{
    size_t n = 0;
    for (size_t b = t->block; b < t->block + t->blocks; b++)
        n += p->block[b].bytes > 0;
    return n;
}

/* Make the pieces of a tensor, each alone. */
static size_t fill(char *bytes, const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                   uint64_t limit)
{
    struct fm_piece x = {0};
    size_t n = 0;
    for (uint64_t at = 0; at < t->t.size; at += x.size, n++) {
        struct fm_channels c = {0};
        struct fm_mark mark = fm_scratch_mark();
        const void *made;
        x = fm_piece_next(p, t, at, limit);
        assert_true(x.size > 0 && x.size <= t->t.size - at);
        if (t->kind == FM_PLANNED_COPY) {
            made = bytes + at;
            GIVEN_TRY(fm_file_read(&p->from->bundle.file, t->from->t.offset + at, bytes + at,
                                   (size_t)x.size, &given_err));
        } else {
            GIVEN_TRY(fm_piece_read(&c, p, &x, &given_err));
            GIVEN_TRY(fm_piece_bytes(&made, &c, p, &x, &given_err));
        }
        memmove(bytes + at, made, (size_t)x.size);
        fm_scratch_release(mark);
    }
    return n;
}

/* A tensor filled in pieces of any size has the bytes of one filled at once. */
TEST(pieces_are_parts_of_the_whole)
{
    for (int i = 0; kind_of(i); i++) {
        struct fm_exportplan p = plan_of(i, 5);
        size_t most = 0;
        for (size_t n = 0; n < p.tensors; n++) {
            const struct fm_planned_tensor *t = &p.tensor[n];
            char *whole = malloc((size_t)t->t.size), *part = malloc((size_t)t->t.size);
            size_t pieces = fill(whole, &p, t, UINT64_MAX);
            assert_int_equal(pieces, t->blocks ? count_filled(&p, t) : t->t.size > 0);
            for (uint64_t limit = 16; limit < 3000; limit *= 3) {
                pieces = fill(part, &p, t, limit);
                most = pieces > most ? pieces : most;
                assert_memory_equal(part, whole, (size_t)t->t.size);
            }
            free(whole);
            free(part);
        }
        /* at least one tensor is cut inside an expert */
        assert_true(most > (p.options.layout->names == FM_NAMING_STOCK ? 1 : GIVEN_E));
        fm_planned_release(&p);
    }
}

/* The table of formats in a list plans one layer and counts it for all of them; the plan of all
 * layers has the same number of bytes. */
TEST(one_layer_counts_for_all)
{
    int made = 0;
    for (int q = -1; q < 0 || fm_quantisers[q]; q++) {
        struct fm_exportplan p;
        struct fm_export_options o = form_of(&fm_layout_uniform);
        uint64_t counted = 0, planned = 0;
        o.quantise = q < 0 ? NULL : fm_quantisers[q];
        if (fm_exportplan_begin(&p, &opened, &o, &err) == FM_OK) {
            made++;
            GIVEN_TRY(fm_exportplan_same_layers(&p, 5, &counted, &given_err));
            GIVEN_TRY(fm_exportplan_member(&p, 5, &given_err));
            for (size_t t = 0; t < p.tensors; t++)
                planned += p.tensor[t].t.size;
            assert_int_equal(counted, planned);
        }
        fm_planned_release(&p);
    }
    assert_true(made > 0); /* formats that fit the sizes */
}

/* The layouts with our modelling file: a tensor for each plane of codes, in blocks of whole
 * groups, and the values that belong to no channel. */
TEST(rounded_experts_are_planes_of_whole_groups)
{
    const struct fm_layout *const layouts[] = {&fm_layout_ragged, &fm_layout_elastic,
                                               &fm_layout_layer};
    int made = 0;
    for (int i = 0; i < 3; i++)
        for (int q = 0; fm_quantisers[q]; q++) {
            struct fm_exportplan p;
            struct fm_export_options o = form_of(layouts[i]);
            uint64_t codes = 0, apart = 0;
            o.quantise = fm_quantisers[q];
            if (fm_exportplan_begin(&p, &opened, &o, &err) ==
                FM_ECONFIG) { /* the format does not support these sizes */
                fm_planned_release(&p);
                continue;
            }
            made++;
            GIVEN_TRY(fm_exportplan_member(&p, 5, &given_err));
            assert_true(fm_planned_sane(&p));
            for (size_t k = 0; k < fm_opened_experts(&opened); k++)
                assert_int_equal(p.widths.kept[k] % (uint32_t)p.packed.group, 0);
            for (size_t t = 0; t < p.tensors; t++) {
                const struct fm_planned_block *b = &p.block[p.tensor[t].block];
                bool has = p.tensor[t].blocks > 0;
                bool in = has && fm_packed_find(&p.packed.form[0], b->part, b->plane);
                codes += in ? p.tensor[t].t.size : 0;
                apart += has && !in;
                /* One piece for each expert, whatever the limit. */
                if (p.tensor[t].blocks)
                    assert_int_equal(fm_piece_next(&p, &p.tensor[t], 0, 16).size,
                                     p.block[p.tensor[t].block].bytes);
            }
            assert_int_equal(codes, fm_planned_channel_bytes(&p, fm_planned_channels_all(&p)));
            bool rows = p.rounded.scheme.block_columns == 0,
                 factors = p.rounded.scheme.storage->factor_end;
            assert_int_equal(apart, (rows + 2 * factors) * p.from->config.M);
            fm_planned_release(&p);
        }
    assert_int_equal(made, 3); /* fp8: these sizes are not multiples of those that the others
                                  require */
}

/* The beginning of a bundle gives the same plan of an export, and the same digests of tensors
 * outside the experts. */
TEST(the_beginning_of_a_bundle_gives_the_same_plan)
{
    struct fm_opened header;
    write_head();
    GIVEN_TRY(fm_opened_open(&header, scratch("head.fm"), FM_OPENED_CHECKSUMS, &given_err));
    assert_int_equal(header.rests, opened.rests);
    for (int i = 0; kind_of(i); i++) {
        struct fm_exportplan whole = plan_of(i, 5), p;
        struct fm_export_options o = form(i);
        GIVEN_TRY(fm_exportplan_begin(&p, &header, &o, &given_err));
        GIVEN_TRY(fm_exportplan_member(&p, 5, &given_err));
        expect_same(&p, &whole);
        for (size_t t = 0; t < p.tensors; t++)
            if (p.tensor[t].from)
                assert_memory_equal(p.tensor[t].from->digest, whole.tensor[t].from->digest,
                                    sizeof(struct fm_digest));
        fm_planned_release(&whole);
        fm_planned_release(&p);
    }
    fm_opened_release(&header);
}

TEST_MAIN(open_family, close_family)
