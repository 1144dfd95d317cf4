/* The expected digests are those of `xxhsum -H2` 0.8.1. */
#include "formats/file/digest.h"
#include "tests/unit/test.h"

static void check_hex(struct fm_digest d, const char *expected)
{
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &d);
    assert_string_equal(hex, expected);
}

TEST(digests_are_those_of_xxhsum)
{
    enum { N = 1000003 };
    unsigned char *ramp = malloc(N);
    assert_non_null(ramp);
    for (size_t i = 0; i < N; i++)
        ramp[i] = (unsigned char)(i * 7 + i / 256);
    check_hex(fm_digest_of(NULL, 0), "99aa06d3014798d86001c324468d497f");
    check_hex(fm_digest_of("abc", 3), "06b05ab6733a618578af5f94892f3950");
    check_hex(fm_digest_of(ramp, N), "3081efcce5d289fbc87a10fa435a29be");
    free(ramp);
}

TEST(any_split_gives_the_digest_of_the_whole)
{
    unsigned char text[1031];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (unsigned char)(i * i);
    struct fm_digest whole = fm_digest_of(text, sizeof text);
    struct fm_hasher *h = fm_hasher_new();
    assert_non_null(h);
    for (size_t step = 1; step < sizeof text; step += 13) {
        fm_hasher_reset(h);
        for (size_t at = 0; at < sizeof text; at += step)
            fm_hasher_add(h, text + at, sizeof text - at < step ? sizeof text - at : step);
        fm_hasher_add(h, NULL, 0);
        struct fm_digest d = fm_hasher_done(h);
        assert_true(fm_digest_equal(&d, &whole));
    }
    fm_hasher_free(h);
    fm_hasher_free(NULL);
}

TEST(only_32_lower_case_digits_are_parsed)
{
    struct fm_digest d = fm_digest_of("x", 1), back, other = fm_digest_of("y", 1);
    char hex[FM_DIGEST_HEX];
    fm_digest_hex(hex, &d);
    assert_true(fm_digest_parse(&back, hex, 32));
    assert_true(fm_digest_equal(&d, &back));
    assert_false(fm_digest_equal(&d, &other));
    back = other;
    assert_false(fm_digest_parse(&back, hex, 31));
    assert_false(fm_digest_parse(&back, hex, 33));
    assert_false(fm_digest_parse(&back, "99AA06D3014798D86001C324468D497F", 32));
    assert_false(fm_digest_parse(&back, "99aa06d3014798d86001c324468d497g", 32));
    assert_false(fm_digest_parse(&back, " 9aa06d3014798d86001c324468d497f", 32));
    assert_true(fm_digest_equal(&back, &other)); /* a refused text changes nothing */
}

TEST_MAIN(NULL, NULL)
