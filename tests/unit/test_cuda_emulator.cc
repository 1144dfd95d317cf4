/*
 * Test that the emulator of tests/unit/cuda_emulator.h is strict about when copies arrive and when
 * products read stored data: errors that a GPU shows only sometimes end the program.
 */
#include "tests/unit/cuda_emulator_ptx.h"

#include <sys/wait.h>
#include <unistd.h>

static int failures;

static const emu_dim one_block = {1, 1, 1};

static void dies(const char *what, std::function<void()> wrong)
{
    int status = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr))
            _exit(0);
        wrong();
        _exit(0);
    }
    waitpid(child, &status, 0);
    failures += !WIFSIGNALED(status);
    printf("%s %s is caught\n", WIFSIGNALED(status) ? "ok  " : "FAIL", what);
}

static void the_emulator_is_strict()
{
    dies("an arrival at a barrier that is not there",
         []() { emu_launch(one_block, 32, 2048, []() { barrier_arrive(EMU_BASE + 1024); }); });
    static std::vector<uint16_t> numbers(64 * 64, 0x3f80);
    dies("a block that ends before its box has come", []() {
        CUtensorMap map = emu_make_map(numbers.data(), 64, 64, 64);
        emu_launch(one_block, 1, 16384, [=]() {
            barrier_init(EMU_BASE + 1024, 1);
            barrier_expect(EMU_BASE + 1024, 8192);
            copy_box(4096, &map, 0, 0, EMU_BASE + 1024);
        });
    });
}

/* A warpgroup clears 64 rows of 64 numbers and multiplies the first 16 columns with themselves. */
static void multiply_cleared(bool fenced, float *got)
{
    emu_launch(one_block, 128, 16384, [=]() {
        const uint32_t at = 4096, stride = 1024;
        const uint64_t operand = at >> 4 | (uint64_t)(stride >> 4) << 32 | (uint64_t)1 << 62;
        float d[8];
        for (uint32_t i = threadIdx.x; i < 512; i += 128)
            shared_clear16(at + 16 * i);
        if (fenced)
            fence_async();
        named_barrier(1, 128);
        product<__half, 16, 0, 0>::add(d, operand, operand, 0);
        products_end();
        products_wait<0>();
        products_fence(d);
        got[threadIdx.x] = d[7];
    });
}

static void products_are_strict()
{
    static float got[128];
    dies("a product of what was not fenced", []() { multiply_cleared(false, got); });
    std::fill(got, got + 128, 1.0f);
    multiply_cleared(true, got);
    bool good = std::count(got, got + 128, 0.0f) == 128;
    failures += !good;
    printf("%s a product of cleared rows\n", good ? "ok  " : "FAIL");
}

int main(void)
{
    the_emulator_is_strict();
    products_are_strict();
    printf("%d failures\n", failures);
    return failures != 0;
}
