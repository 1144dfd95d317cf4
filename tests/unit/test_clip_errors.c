/* Test which arguments libfm_clip refuses, and its error messages. */
#include "tests/unit/clip.h"

#include <sys/mman.h>
#include <unistd.h>

static void refuse_layer(struct fm_clip_layer l, int code, const char *text)
{
    struct fm_clip_error error = {0};
    struct fm_clip *clip = (struct fm_clip *)&l;
    assert_int_equal(fm_clip_prepare(&clip, &l, &error), code);
    assert_int_equal(error.code, code);
    assert_string_equal(error.text, text);
    assert_null(clip);
}

KERNEL_TEST(wrong_layers_are_refused_with_a_sentence)
{
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct fm_clip_layer l;
#define BAD(change, code, text) (l = s.l, change, refuse_layer(l, code, text))
    BAD(l.size = 103, FM_CLIP_EUSAGE, "layer size is 103, but may be 104 to 4096");
    BAD(l.size = 124, FM_CLIP_EUSAGE, "layer size is 124, but must be a multiple of 8");
    BAD(l.size = 4097, FM_CLIP_EUSAGE, "layer size is 4097, but may be 104 to 4096");
    BAD(l.device = 7, FM_CLIP_EUSAGE, "device is 7, but may be 0 to 1");
    BAD(l.type = FM_CLIP_I32, FM_CLIP_EUSAGE, "type is 3, but may be 0 to 2");
    BAD(l.activation = 2, FM_CLIP_EUSAGE, "activation is 2, but may be 0 to 1");
    BAD(l.activation = 1, FM_CLIP_EUSAGE, "alpha is 0 and limit 0, but must be above 0");
    BAD(l.limit = 7, FM_CLIP_EUSAGE, "alpha is 0 and limit 7, but must be 0");
    BAD(l.H = 0, FM_CLIP_EUSAGE, "H is 0, but may be 1 to 1048576");
    BAD(l.E = 0, FM_CLIP_EUSAGE, "E is 0, but may be 1 to 65536");
    BAD(l.B = 0, FM_CLIP_EUSAGE, "B is 0, but may be 1 to 65536");
    BAD(l.e0 = -1, FM_CLIP_EUSAGE, "e0 is -1, but may be 0 to 2147483645");
    BAD(l.reserved = 1, FM_CLIP_EUSAGE, "reserved is 1, but may be 0 to 0");
    BAD(l.threads = -1, FM_CLIP_EUSAGE, "threads is -1, but may be 0 to 1024");
    BAD(l.down = NULL, FM_CLIP_EUSAGE, "gate_up or down is NULL");
    BAD(l.widths = NULL, FM_CLIP_EUSAGE, "row0, cap, widths or budget is NULL");
    BAD(l.path = FM_CLIP_MMA, FM_CLIP_EDEVICE, "path 18 is not supported on this CPU with type 0");
    BAD(l.path = FM_CLIP_AVX512_BF16, FM_CLIP_EDEVICE,
        "path 4 is not supported on this CPU with type 0");
    BAD(l.cap_max = 19, FM_CLIP_EUSAGE, "cap[0] is 20, but may be 0 to cap_max, 19");
    BAD(l.channels = l.row0[1] + 19, FM_CLIP_EUSAGE,
        "expert 1 has 20 channels from 23 on, but there are 42");
#undef BAD
    assert_int_equal(fm_clip_prepare(NULL, &s.l, NULL), FM_CLIP_EUSAGE);
    fm_clip_release(NULL);
    free_arrays();
}

KERNEL_TEST(wrong_calls_are_refused_with_a_sentence)
{
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call good = make_call(&s, 3, 2);
    struct fm_clip_call c;
    struct fm_clip_error error;
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
#define BAD(change, sentence)                                                                      \
    (c = good.c, change, assert_int_equal(fm_clip_forward(clip, &c, &error), FM_CLIP_EUSAGE),      \
     assert_string_equal(error.text, sentence))
    BAD(c.size = 95, "call size is 95, but may be 96 to 4096");
    BAD(c.size = 108, "call size is 108, but must be a multiple of 8");
    BAD(c.size = 4095, "call size is 4095, but must be a multiple of 8");
    BAD(c.size = UINT32_MAX, "call size is 4294967295, but may be 96 to 4096");
    BAD(c.ids_type = FM_CLIP_F32, "ids_type is 0, but may be 3 to 4");
    BAD(c.N = -1, "N is -1, but may be 0 to 1099511627776");
    BAD(c.K = 0, "K is 0, but may be 1 to 1024");
    BAD(c.hidden_stride = 15, "hidden_stride is 15, but may be 16 to 1048576");
    BAD(c.out_stride = 0, "out_stride is 0, but may be 16 to 1048576");
    BAD(c.budget_type = FM_CLIP_I32, "budget_type is 3, but may be 0 to 0");
    BAD(c.reserved = 1, "reserved is 1, but may be 0 to 0");
    BAD(c.ids = NULL, "hidden, ids or weights is NULL");
    BAD(c.out = NULL, "out or workspace is NULL");
    BAD(c.out = (void *)(uintptr_t)c.hidden, "out overlaps hidden");
    BAD(c.workspace = (char *)c.workspace + 8, "workspace is not aligned to 256 bytes");
    c = good.c;
    c.workspace_bytes = fm_clip_workspace_bytes(&s.l, 1, 2) - 1;
    assert_int_equal(fm_clip_forward(clip, &c, &error), FM_CLIP_EUSAGE);
    assert_non_null(strstr(error.text, "but one token needs"));
#undef BAD
    assert_int_equal(fm_clip_forward(NULL, &c, &error), FM_CLIP_EUSAGE);
    fm_clip_release(clip);
    free_arrays();
}

/* Arrays are read only after the numbers that give their sizes are checked. */
KERNEL_TEST(the_definition_refuses_what_a_forward_refuses)
{
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call good = make_call(&s, 3, 2);
    struct fm_clip_call c;
    struct fm_clip_layer l;
    struct fm_clip_error error;
    double out[3 * 16];
#define BAD(change, sentence)                                                                      \
    (c = good.c, l = s.l, change,                                                                  \
     assert_int_equal(fm_clip_reference(out, NULL, &l, &c, &error), FM_CLIP_EUSAGE),               \
     assert_string_equal(error.text, sentence))
    BAD(c.N = -1, "N is -1, but may be 0 to 1099511627776");
    BAD(c.N = INT32_MAX, "2147483647 tokens of 2 slots are 2^31 slots or more");
    BAD(c.K = 0, "K is 0, but may be 1 to 1024");
    BAD(c.ids_type = 9, "ids_type is 9, but may be 3 to 4");
    BAD(c.ids = NULL, "hidden, ids or weights is NULL");
    BAD(c.hidden = NULL, "hidden, ids or weights is NULL");
    BAD(c.weights = NULL, "hidden, ids or weights is NULL");
    BAD(c.budget_type = 7, "budget_type is 7, but may be 0 to 0");
    BAD(c.size = 108, "call size is 108, but must be a multiple of 8");
    BAD(l.H = -1, "H is -1, but may be 1 to 1048576");
    BAD(l.E = INT32_MAX, "E is 2147483647, but may be 1 to 65536");
    BAD(l.type = 7, "type is 7, but may be 0 to 2");
    BAD(l.row0 = NULL, "row0, cap, widths or budget is NULL");
    BAD(l.gate_up = NULL, "gate_up or down is NULL");
    BAD(l.size = 124, "layer size is 124, but must be a multiple of 8");
#undef BAD
    assert_int_equal(fm_clip_reference(NULL, NULL, &s.l, &good.c, &error), FM_CLIP_EUSAGE);
    assert_string_equal(error.text, "out is NULL");
    assert_int_equal(fm_clip_reference(out, NULL, NULL, &good.c, NULL), FM_CLIP_EUSAGE);
    assert_int_equal(fm_clip_reference(out, NULL, &s.l, NULL, NULL), FM_CLIP_EUSAGE);
    c = (struct fm_clip_call){.size = sizeof c, .ids_type = FM_CLIP_I32, .K = 2};
    c.hidden_stride = c.out_stride = s.l.H;
    assert_int_equal(fm_clip_reference(NULL, NULL, &s.l, &c, NULL), FM_CLIP_OK); /* no tokens */
    free_arrays();
}

/* row0 + cap overflows an int64_t; the message still names both. */
KERNEL_TEST(channels_that_overflow_are_named)
{
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call c = make_call(&s, 3, 2);
    struct fm_clip_error error = {0};
    struct fm_clip *clip = NULL;
    double out[3 * 16];
    int64_t row0[2] = {INT64_MAX, 0};
    s.l.row0 = row0;
    const char *sentence = "expert 0 has 20 channels from 9223372036854775807 on, but there are 46";
    assert_int_equal(fm_clip_prepare(&clip, &s.l, &error), FM_CLIP_EUSAGE);
    assert_string_equal(error.text, sentence);
    assert_int_equal(fm_clip_reference(out, NULL, &s.l, &c.c, &error), FM_CLIP_EUSAGE);
    assert_string_equal(error.text, sentence);
    free_arrays();
}

KERNEL_TEST(shards_with_invalid_arguments_are_empty)
{
    static const int32_t wrong[][4] = {
        {8, 0, 2, 0}, {8, -1, 2, 0}, {8, 2, 0, 0},  {8, 2, -2, 0},
        {8, 2, 2, 2}, {8, 2, 2, -1}, {-8, 2, 2, 0}, {INT32_MIN, INT32_MIN, -1, INT32_MAX}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const int32_t *w = wrong[i];
        char gate_up[2] = "ab", down[1] = "c", none[2] = "--";
        assert_int_equal(fm_clip_shard_width(w[0], w[1], w[2], w[3]), 0);
        assert_int_equal(fm_clip_shard_channel(w[0], w[1], w[2], w[3]), -1);
        fm_clip_shard_copy(none, none, gate_up, down, w[0], 1, w[1], w[2], w[3]);
        assert_memory_equal(none, "--", 2);
    }
    const int32_t most = INT32_MAX;
    assert_int_equal(fm_clip_shard_width(most, most, most, 0), most);
    assert_int_equal(fm_clip_shard_width(most, most, most, most - 1), 0);
    assert_int_equal(fm_clip_shard_channel(most, 1, 1, 0), most);
    assert_int_equal(fm_clip_shard_channel(most, most, most, most - 1), -1);
    assert_int_equal(fm_clip_shard_channel(most / 2 + 1, 1, 2, 0), -1);
    assert_int_equal(fm_clip_shard_width(10, 4, 2, 0), 6);
    assert_int_equal(fm_clip_shard_channel(5, 4, 2, 0), 9);
}

/* A copy of a caller's struct at the end of accessible memory. */
struct edge {
    void *at;
    char *map;
    size_t page;
};

static struct edge put_at_edge(const void *known, size_t known_size, uint32_t size)
{
    struct edge e = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    e.map = mmap(NULL, 2 * e.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(e.map != MAP_FAILED && mprotect(e.map + e.page, e.page, PROT_NONE) == 0);
    e.at = e.map + e.page - size;
    memcpy(e.at, known, size < known_size ? size : known_size);
    memcpy(e.at, &size, sizeof size);
    return e;
}

static void remove_edge(struct edge *e)
{
    munmap(e->map, 2 * e->page);
}

/* Structs of older headers, of this one, and of newer ones that use no new feature. */
KERNEL_TEST(structs_of_other_headers_give_the_same_bits)
{
    static const uint32_t layer_sizes[] = {FM_CLIP_LAYER_SIZE_MIN, 112, 136, FM_CLIP_SIZE_MAX};
    static const uint32_t call_sizes[] = {FM_CLIP_CALL_SIZE_MIN, 104, 112, 120, FM_CLIP_SIZE_MAX};
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call good = make_call(&s, 3, 2);
    double want[3 * 16], got[3 * 16];
    assert_true(run_once(&s, &good));
    assert_int_equal(fm_clip_reference(want, NULL, &s.l, &good.c, NULL), FM_CLIP_OK);
    for (size_t i = 0; i < sizeof layer_sizes / sizeof *layer_sizes; i++)
        for (size_t j = 0; j < sizeof call_sizes / sizeof *call_sizes; j++) {
            struct call other = copy_call(&s, &good);
            struct edge l = put_at_edge(&s.l, sizeof s.l, layer_sizes[i]);
            struct edge c = put_at_edge(&other.c, sizeof other.c, call_sizes[j]);
            struct fm_clip *clip = NULL;
            assert_int_equal(fm_clip_workspace_bytes(l.at, 3, 2),
                             fm_clip_workspace_bytes(&s.l, 3, 2));
            assert_int_equal(fm_clip_prepare(&clip, l.at, NULL), FM_CLIP_OK);
            assert_int_equal(fm_clip_forward(clip, c.at, NULL), FM_CLIP_OK);
            expect_same(&s, &good, &other);
            assert_int_equal(fm_clip_reference(got, NULL, l.at, c.at, NULL), FM_CLIP_OK);
            assert_memory_equal(got, want, sizeof want);
            fm_clip_release(clip);
            remove_edge(&c);
            remove_edge(&l);
        }
    free_arrays();
}

/* Newer structs that use features unknown here, in the first unknown byte or in the last. */
KERNEL_TEST(fields_not_known_here_are_refused)
{
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call good = make_call(&s, 3, 2);
    struct fm_clip_error error;
    struct fm_clip *clip = NULL, *none = NULL;
    double out[3 * 16];
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
    for (int last = 0; last < 2; last++) {
        struct edge l = put_at_edge(&s.l, sizeof s.l, 144);
        struct edge c = put_at_edge(&good.c, sizeof good.c, 128);
        ((char *)l.at)[last ? 143 : 136] = 1;
        ((char *)c.at)[last ? 127 : 120] = 1;
        assert_int_equal(fm_clip_prepare(&none, l.at, &error), FM_CLIP_EUSAGE);
        assert_string_equal(error.text,
                            last ? "layer is not 0 at byte 143, but libfm_clip " FM_VERSION
                                   " supports only 136 bytes: a newer one is needed"
                                 : "layer is not 0 at byte 136, but libfm_clip " FM_VERSION
                                   " supports only 136 bytes: a newer one is needed");
        assert_int_equal(fm_clip_workspace_bytes(l.at, 3, 2), 0);
        assert_int_equal(fm_clip_forward(clip, c.at, &error), FM_CLIP_EUSAGE);
        assert_string_equal(error.text,
                            last ? "call is not 0 at byte 127, but libfm_clip " FM_VERSION
                                   " supports only 120 bytes: a newer one is needed"
                                 : "call is not 0 at byte 120, but libfm_clip " FM_VERSION
                                   " supports only 120 bytes: a newer one is needed");
        assert_int_equal(fm_clip_reference(out, NULL, &s.l, c.at, NULL), FM_CLIP_EUSAGE);
        assert_int_equal(fm_clip_reference(out, NULL, l.at, &good.c, NULL), FM_CLIP_EUSAGE);
        remove_edge(&c);
        remove_edge(&l);
    }
    fm_clip_release(clip);
    free_arrays();
}

KERNEL_TEST(the_workspace_depends_only_on_bounds)
{
    struct fm_clip_layer l = {.size = sizeof l, .type = FM_CLIP_BF16, .H = 64, .E = 8};
    l.cap_max = 100;
    l.threads = 2;
    uint64_t one = fm_clip_workspace_bytes(&l, 1, 2), last = 0;
    assert_true(one > 0 && one == fm_clip_workspace_bytes(&l, 0, 2));
    for (int64_t N = 1; N < 5000; N *= 3) {
        uint64_t bytes = fm_clip_workspace_bytes(&l, N, 2);
        assert_true(bytes >= last && bytes % FM_CLIP_ALIGN == 0);
        last = bytes;
    }
    assert_int_equal(fm_clip_workspace_bytes(&l, -1, 2), 0);
    assert_int_equal(fm_clip_workspace_bytes(&l, 1, 0), 0);
    assert_int_equal(fm_clip_workspace_bytes(&l, (int64_t)1 << 31, 1), 0);
    l.size = 0;
    assert_int_equal(fm_clip_workspace_bytes(&l, 1, 2), 0);
    assert_int_equal(fm_clip_abi(), FM_CLIP_ABI);
    assert_int_equal(fm_clip_available(FM_CLIP_CPU, NULL), FM_CLIP_OK);
}

TEST_MAIN(NULL, NULL)
