/*
 * Test the level of lib/base/isa.h: it is the CPU's level according to the kernel, limited by
 * FM_ISA, and every part that chooses instructions respects it.  The level is determined once per
 * process, so the program runs itself again for each value.
 *
 *     test_isa level      prints the level in force, for tests/run.sh
 */
#include "tests/unit/kernels.h"

#include "kernels/clip/clip_tile.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_tile.h"
#include "lib/base/isa.h"

static const char *self;

/* What this process uses: "level bf16 tiles clip-f32 clip-bf16 oneDNN". */
static int print_use(void)
{
    char onednn[64], isa[32] = "?";
    int tiles = 0;
    while (fm_cpu_tile_get(tiles))
        tiles++;
    fm_ops_dnnl_version(onednn, sizeof onednn);
    sscanf(onednn, "%*d.%*d.%*d %31s", isa);
    printf("%s %d %d %s %s %s\n", fm_isa_name(fm_isa()), fm_isa_avx512_bf16(), tiles,
           fm_clip_tile_choose(FM_CLIP_BEST, FM_CLIP_F32)->name,
           fm_clip_tile_choose(FM_CLIP_BEST, FM_CLIP_BF16)->name, isa);
    return 0;
}

struct use {
    char level[16], f32[16], bf16[16], onednn[32];
    int has_bf16, tiles;
};

/* The first line that `self what` prints with FM_ISA=value (NULL: without). */
static void ask(char line[256], const char *value, const char *what)
{
    char command[4200];
    if (value)
        assert_int_equal(setenv("FM_ISA", value, 1), 0);
    else
        assert_int_equal(unsetenv("FM_ISA"), 0);
    snprintf(command, sizeof command, "'%s' %s", self, what);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, 256, f));
    assert_int_equal(pclose(f), 0);
}

static struct use use_under(const char *value)
{
    char line[256];
    struct use u;
    ask(line, value, "use");
    assert_int_equal(sscanf(line, "%15s %d %d %15s %15s %31s", u.level, &u.has_bf16, &u.tiles,
                            u.f32, u.bf16, u.onednn),
                     6);
    return u;
}

static bool flagged(const char *flags, const char *name)
{
    char word[32];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(flags, word) != NULL;
}

/* The CPU's features according to /proc/cpuinfo. */
static enum fm_isa expected(bool *bf16)
{
    enum fm_isa isa = FM_ISA_BASE;
    FILE *f = fopen("/proc/cpuinfo", "r");
    char *line = NULL;
    size_t size = 0;
    *bf16 = false;
    while (f && getline(&line, &size, f) > 0 && strncmp(line, "flags", 5) != 0)
        ;
    if (f)
        fclose(f);
    if (!line || strncmp(line, "flags", 5) != 0) {
        free(line);
        return isa;
    }
    line[strcspn(line, "\n")] = ' ';
    if (flagged(line, "avx2") && flagged(line, "fma") && flagged(line, "f16c"))
        isa = FM_ISA_AVX2;
    if (isa == FM_ISA_AVX2 && flagged(line, "avx512f") && flagged(line, "avx512bw") &&
        flagged(line, "avx512dq") && flagged(line, "avx512vl"))
        isa = FM_ISA_AVX512;
    *bf16 = isa == FM_ISA_AVX512 && flagged(line, "avx512_bf16");
    if (isa == FM_ISA_AVX512 && flagged(line, "amx_tile") && flagged(line, "amx_bf16"))
        isa = FM_ISA_AMX;
    free(line);
    return isa;
}

KERNEL_TEST(without_a_limit_the_level_is_the_cpus)
{
    bool bf16;
    enum fm_isa isa = expected(&bf16);
    struct use u = use_under(NULL), empty = use_under("");
    assert_string_equal(u.level, fm_isa_name(isa));
    assert_int_equal(u.has_bf16, bf16);
    assert_int_equal(u.tiles, isa >= FM_ISA_AVX512 ? 2 : isa == FM_ISA_AVX2 ? 1 : 0);
    assert_string_equal(empty.level, u.level);
    assert_string_equal(empty.onednn, u.onednn);
}

/* For each value, the level is the lower of it and the CPU's level, and no part uses more. */
KERNEL_TEST(every_part_stays_under_the_limit)
{
#if defined(__x86_64__)
    static const char *const onednn[] = {"sse41", "avx2", "avx512"};
#endif
    static const char *const clip[] = {"portable", "avx2", "avx512"};
    bool bf16;
    enum fm_isa most = expected(&bf16);
    for (enum fm_isa isa = FM_ISA_BASE; isa <= FM_ISA_AMX; isa++) {
        enum fm_isa is = isa < most ? isa : most;
        int kind = is < FM_ISA_AVX512 ? (int)is : FM_ISA_AVX512;
        struct use u = use_under(fm_isa_name(isa));
        assert_string_equal(u.level, fm_isa_name(is));
        assert_int_equal(u.has_bf16, is >= FM_ISA_AVX512 && bf16);
        assert_int_equal(u.tiles, kind);
        assert_string_equal(u.f32, clip[kind]);
        assert_string_equal(u.bf16, u.has_bf16 ? "avx512-bf16" : clip[kind]);
#if defined(__x86_64__)
        if (isa < most)
            assert_memory_equal(u.onednn, onednn[kind], strlen(onednn[kind]));
        if (isa == FM_ISA_AVX512)
            assert_null(strstr(u.onednn, "amx"));
#endif
    }
}

KERNEL_TEST(another_value_is_a_mistake)
{
    static const char *const wrong[] = {"AVX2", "avx", "avx2 ", "sse41", "avx512_bf16", "0"};
    char line[256];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char want[64];
        ask(line, wrong[i], "mistake");
        snprintf(want, sizeof want, "%s: the environment variable FM_ISA is '%s'", wrong[i],
                 wrong[i]);
        assert_memory_equal(line, want, strlen(want));
        assert_string_equal(use_under(wrong[i]).level, "base");
    }
    ask(line, "avx2", "mistake");
    assert_string_equal(line, "none: fine\n");
}

/* Print FM_ISA if it is invalid, or "none", and libfm_clip's message. */
static int print_mistake(void)
{
    struct fm_clip_error error = {.text = "fine"};
    int32_t code = fm_clip_available(FM_CLIP_CPU, &error);
    const char *mistake = fm_isa_mistake();
    printf("%s: %s\n", mistake ? mistake : "none", error.text);
    return code != (mistake ? FM_CLIP_EUSAGE : FM_CLIP_OK);
}

int main(int argc, char **argv)
{
    self = argv[0];
    if (argc == 1)
        return tests_run(NULL, NULL);
    if (strcmp(argv[1], "use") == 0)
        return print_use();
    if (strcmp(argv[1], "mistake") == 0)
        return print_mistake();
    puts(fm_isa_name(fm_isa()));
    return 0;
}
