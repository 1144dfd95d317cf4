/* libfm_clip: what is refused, and with which sentence. */
#include "tests/unit/clip.h"

static void refuse_layer(struct fm_clip_layer l, int code, const char *text)
{
    struct fm_clip_error error = {0};
    struct fm_clip *clip = (struct fm_clip *)&l;
    assert_int_equal(fm_clip_prepare(&clip, &l, &error), code);
    assert_int_equal(error.code, code);
    assert_string_equal(error.text, text);
    assert_null(clip);
}

static void wrong_layers_are_refused_with_a_sentence(void **state)
{
    (void)state;
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct fm_clip_layer l;
#define BAD(change, code, text) (l = s.l, change, refuse_layer(l, code, text))
    BAD(l.size = 8, FM_CLIP_EUSAGE, "layer size is 8, but may be 112 to 112");
    BAD(l.device = 7, FM_CLIP_EUSAGE, "device is 7, but may be 0 to 1");
    BAD(l.type = FM_CLIP_I32, FM_CLIP_EUSAGE, "type is 3, but may be 0 to 2");
    BAD(l.activation = 1, FM_CLIP_EUSAGE, "activation is 1, but may be 0 to 0");
    BAD(l.H = 0, FM_CLIP_EUSAGE, "H is 0, but may be 1 to 1048576");
    BAD(l.E = 0, FM_CLIP_EUSAGE, "E is 0, but may be 1 to 65536");
    BAD(l.B = 0, FM_CLIP_EUSAGE, "B is 0, but may be 1 to 65536");
    BAD(l.e0 = -1, FM_CLIP_EUSAGE, "e0 is -1, but may be 0 to 2147483645");
    BAD(l.reserved = 1, FM_CLIP_EUSAGE, "reserved is 1, but may be 0 to 0");
    BAD(l.threads = -1, FM_CLIP_EUSAGE, "threads is -1, but may be 0 to 1024");
    BAD(l.down = NULL, FM_CLIP_EUSAGE, "gate_up or down is NULL");
    BAD(l.widths = NULL, FM_CLIP_EUSAGE, "row0, cap, widths or budget is NULL");
    BAD(l.path = FM_CLIP_HOPPER, FM_CLIP_EDEVICE, "path 19 is not for this CPU and a type of 0");
    BAD(l.path = FM_CLIP_AVX512_BF16, FM_CLIP_EDEVICE,
        "path 4 is not for this CPU and a type of 0");
    BAD(l.cap_max = 19, FM_CLIP_EUSAGE, "cap[0] is 20, but may be 0 to cap_max, 19");
    BAD(l.channels = l.row0[1] + 19, FM_CLIP_EUSAGE,
        "expert 1 has channels 23 to 43, but there are 42");
#undef BAD
    assert_int_equal(fm_clip_prepare(NULL, &s.l, NULL), FM_CLIP_EUSAGE);
    fm_clip_release(NULL);
    free_arrays();
}

static void wrong_calls_are_refused_with_a_sentence(void **state)
{
    (void)state;
    struct layer s = make_layer(FM_CLIP_F32, 16, 20, 2);
    struct call good = make_call(&s, 3, 2);
    struct fm_clip_call c;
    struct fm_clip_error error;
    struct fm_clip *clip = NULL;
    assert_int_equal(fm_clip_prepare(&clip, &s.l, NULL), FM_CLIP_OK);
#define BAD(change, sentence)                                                                      \
    (c = good.c, change, assert_int_equal(fm_clip_forward(clip, &c, &error), FM_CLIP_EUSAGE),      \
     assert_string_equal(error.text, sentence))
    BAD(c.size = 0, "call size is 0, but may be 120 to 120");
    BAD(c.ids_type = FM_CLIP_F32, "ids_type is 0, but may be 3 to 4");
    BAD(c.N = -1, "N is -1, but may be 0 to 1099511627776");
    BAD(c.K = 0, "K is 0, but may be 1 to 1024");
    BAD(c.hidden_stride = 15, "hidden_stride is 15, but may be 16 to 1048576");
    BAD(c.out_stride = 0, "out_stride is 0, but may be 16 to 1048576");
    BAD(c.budget_type = FM_CLIP_I32, "budget_type is 3, but may be 0 to 0");
    BAD(c.reserved = 1, "reserved is 1, but may be 0 to 0");
    BAD(c.ids = NULL, "hidden, ids, weights, out or workspace is NULL");
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

static void the_workspace_depends_on_bounds_alone(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        KERNEL_TEST(wrong_layers_are_refused_with_a_sentence),
        KERNEL_TEST(wrong_calls_are_refused_with_a_sentence),
        KERNEL_TEST(the_workspace_depends_on_bounds_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
