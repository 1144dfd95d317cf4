/* Golden segment checksums: boundaries, digests, and the size of the member. */
#include "lib/block/swiglu.h"
#include "lib/stage/volumes.h"
#include "tests/unit/test.h"

static const struct fm_tensor rest[] = {
    {.name = "b.weight", .dtype = FM_BF16, .dims = 2, .shape = {3, 17}},
    {.name = "a.scalar", .dtype = FM_F32, .dims = 0},
};

static struct fm_config config = {.L = 4, .M = 2, .moe = {1, 3}, .E = 3, .expert = &fm_swiglu};

static void make(struct fm_segments *seg, int I, const uint32_t *widths, size_t n)
{
    struct fm_err err = {0};
    config.I = I;
    struct fm_packed_layers packed;
    fm_packed_plain(&packed, &config, FM_BF16);
    assert_ok(fm_segments_init(seg, &config, &packed, FM_BF16, widths, n, rest, 2, &err));
}

TEST(boundaries_are_sorted_each_once_with_multiples_of_64)
{
    struct fm_segments seg;
    const uint32_t widths[] = {150, 64, 7, 150, 133, 7};
    make(&seg, 150, widths, 6);
    const int32_t want[] = {0, 7, 64, 128, 133, 150};
    assert_int_equal(seg.S, 5);
    assert_memory_equal(seg.bound, want, sizeof want);
    assert_int_equal(fm_segments_at(&seg, 133), 4);
    assert_int_equal(fm_segments_at(&seg, 134), -1);
    assert_int_equal(fm_segments_at(&seg, 150), 5);
    fm_segments_release(&seg);
    make(&seg, 1, NULL, 0);
    assert_int_equal(seg.S, 1);
    fm_segments_release(&seg);
}

TEST(digests_are_those_of_the_rows_between_boundaries)
{
    struct fm_segments seg;
    const uint32_t widths[] = {5};
    unsigned char rows[70 * 6];
    struct fm_digest digest[4];
    for (size_t i = 0; i < sizeof rows; i++)
        rows[i] = (unsigned char)(i * i >> 2);
    make(&seg, 70, widths, 1); /* 0 5 64 70 */
    fm_segments_digest(digest, &seg, 0, 3, rows, 6);
    const struct fm_digest want[] = {fm_digest_of(rows, 30), fm_digest_of(rows + 30, 59 * 6),
                                     fm_digest_of(rows + 64 * 6, 36)};
    assert_memory_equal(digest, want, sizeof want);
    fm_segments_release(&seg);
}

TEST(the_size_is_known_before_the_digests)
{
    struct fm_segments seg;
    void *empty, *full;
    size_t a, b;
    make(&seg, 70, NULL, 0);
    assert_ok(fm_segments_write(&seg, &empty, &a, &err));
    for (int l = 0; l < 2; l++)
        for (int e = 0; e < 3; e++)
            memset(fm_segments_expert(&seg, l, 1, e), 16 * l + e + 1,
                   sizeof(struct fm_digest) * (size_t)seg.S);
    memset(&fm_segments_find(&seg, "b.weight")->digest, 0x77, sizeof(struct fm_digest));
    assert_ok(fm_segments_write(&seg, &full, &b, &err));
    assert_int_equal(a, b);
    assert_memory_not_equal(empty, full, a);
    assert_null(fm_segments_find(&seg, "c"));
    assert_string_equal(seg.tensor[0].t.name, "a.scalar");
    free(empty);
    free(full);
    fm_segments_release(&seg);
}

TEST_MAIN(NULL, NULL)
